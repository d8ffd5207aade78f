"""The small transformer has the parts of a large one, and looks at every token."""

import pytest
import torch

from course_lib.training.models import parameter_count
from course_lib.training.transformer import Attention, Transformer


def test_shapes_and_size() -> None:
    model = Transformer(size=8, width=16, heads=4, depth=3, classes=5)
    assert model(torch.zeros(2, 1, 8, 8)).shape == (2, 5)
    block = 4 * (16 * 16 + 16) + (16 * 64 + 64) + (64 * 16 + 16) + 2 * 2 * 16
    assert parameter_count(model.blocks) == 3 * block


def test_output_depends_on_every_row_and_its_position() -> None:
    torch.manual_seed(0)
    model = Transformer(size=8, width=16).double()
    images = torch.rand(1, 1, 8, 8, dtype=torch.float64, requires_grad=True)
    model(images)[0, 0].backward()
    assert (images.grad.abs().sum(dim=3) > 0).all()
    assert not torch.allclose(model(images), model(images.flip(2)))


def test_attention_equals_pytorch() -> None:
    torch.manual_seed(0)
    ours = Attention(width=8, heads=2).double()
    theirs = torch.nn.MultiheadAttention(8, 2, batch_first=True).double()
    projections = (ours.query, ours.key, ours.value)
    theirs.in_proj_weight.data = torch.cat([layer.weight for layer in projections])
    theirs.in_proj_bias.data = torch.cat([layer.bias for layer in projections])
    theirs.out_proj.load_state_dict(ours.out.state_dict())
    x = torch.randn(3, 5, 8, dtype=torch.float64)
    torch.testing.assert_close(ours(x), theirs(x, x, x)[0], rtol=0, atol=1e-12)


def test_width_must_be_divisible_by_heads() -> None:
    with pytest.raises(ValueError, match="3 heads cannot share a width of 8"):
        Attention(8, 3)
