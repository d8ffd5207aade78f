"""Models, batches, seeds, accuracy, and what programs print."""

from __future__ import annotations

import pytest
import torch

from course_lib.training import data, loops
from course_lib.training.models import MLP, LeNet, ResNet, checksum, parameter_count


def test_lenet_has_the_published_number_of_parameters() -> None:
    # Fully connected variant: 156 + 2,416 + 48,120 + 10,164 + 850.
    assert parameter_count(LeNet()) == 61_706
    assert LeNet(size=28)(torch.zeros(2, 1, 28, 28)).shape == (2, 10)
    assert LeNet(channels=3, size=32)(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
    with pytest.raises(ValueError, match="28 or 32"):
        LeNet(size=30)
    with pytest.raises(ValueError, match="28 x 28 pixels, not 32 x 32"):
        LeNet()(torch.zeros(2, 1, 32, 32))


def test_mlp_takes_images() -> None:
    assert parameter_count(MLP(64, (128,), 10)) == 64 * 128 + 128 + 128 * 10 + 10
    assert MLP()(torch.zeros(5, 1, 8, 8)).shape == (5, 10)


def test_batches_cover_every_sample_once() -> None:
    seen = torch.cat(list(loops.batches(10, 4, seed=3)))
    assert sorted(seen.tolist()) == list(range(10))
    assert [len(batch) for batch in loops.batches(10, 4, seed=3)] == [4, 4, 2]
    assert not torch.equal(seen, torch.cat(list(loops.batches(10, 4, seed=4))))
    assert list(loops.batches(0, 4, seed=3)) == []
    for samples, batch_size, first in ((10, 0, 0), (-1, 4, 0), (10, 4, -1)):
        with pytest.raises(ValueError, match="must be at least"):
            loops.batches(samples, batch_size, seed=3, first=first)


def test_accuracy_is_exact_and_keeps_the_training_mode() -> None:
    labels = torch.tensor([0, 1, 2, 1])
    images = torch.eye(3)[[0, 1, 2, 2]]  # as logits: the last one is wrong
    model = torch.nn.Identity()
    assert loops.accuracy(model, data.DataSet(images, labels)) == 0.75
    assert loops.accuracy(model, data.DataSet(images, labels), batch_size=3) == 0.75
    assert model.training
    for empty, batch_size in ((0, 4), (4, 0)):
        with pytest.raises(ValueError, match="have no accuracy"):
            loops.accuracy(model, data.DataSet(images[:empty], labels[:empty]), batch_size)
    loops.accuracy(model.eval(), data.DataSet(images, labels))
    assert not model.training


def test_rank_seeds_are_independent_and_repeatable() -> None:
    seeds = [loops.set_seed_of_rank(seed, rank) for seed in range(10) for rank in range(10)]
    assert len(set(seeds)) == 100
    assert loops.set_seed_of_rank(3, 4) == seeds[34]
    first = torch.rand(3)
    loops.set_seed_of_rank(3, 4)
    assert torch.equal(torch.rand(3), first)
    with pytest.raises(ValueError, match="non-negative"):
        loops.set_seed_of_rank(-1, 0)


def test_batches_resume_in_the_middle_of_an_epoch() -> None:
    every = [batch.tolist() for batch in loops.batches(10, 4, seed=3)]
    for first in range(5):
        rest = [batch.tolist() for batch in loops.batches(10, 4, seed=3, first=first)]
        assert rest == every[first:]


def test_resnet_has_the_published_layers() -> None:
    for blocks in (1, 3):  # ResNet-8 and ResNet-20: 6n + 2 layers with weights
        model = ResNet((blocks,) * 3, channels=3)
        main = [
            module
            for name, module in model.named_modules()
            if isinstance(module, torch.nn.Conv2d | torch.nn.Linear) and "shortcut" not in name
        ]
        assert len(main) == 6 * blocks + 2
    # He et al. 2015, table 6: 0.27 million for 20 layers, counted with their option A.
    projections = sum(p.numel() for name, p in model.named_parameters() if "shortcut" in name)
    assert round((parameter_count(model) - projections) / 1e6, 2) == 0.27


def test_resnet_takes_small_images_and_other_norms() -> None:
    assert ResNet()(torch.zeros(2, 1, 8, 8)).shape == (2, 10)
    assert ResNet(channels=3, classes=5)(torch.zeros(2, 3, 32, 32)).shape == (2, 5)
    grouped = ResNet((2,), width=8, norm=lambda maps: torch.nn.GroupNorm(4, maps))
    assert grouped(torch.zeros(1, 1, 28, 28)).shape == (1, 10)
    assert not any(isinstance(m, torch.nn.BatchNorm2d) for m in grouped.modules())
    for blocks in ((), (1, 0)):
        with pytest.raises(ValueError, match="at least one block"):
            ResNet(blocks)


def test_resnet_learns() -> None:
    loops.set_seed(0)
    images, labels = data.load("digits")[0][:64]
    model = ResNet((1, 1), width=8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for _ in range(40):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2


def test_checksum_detects_one_changed_bit() -> None:
    loops.set_seed(0)
    model = MLP(4, (3,), 2)
    first = checksum(model)
    assert len(first) == 16
    assert checksum(torch.nn.DataParallel(model)) == first
    with torch.no_grad():
        model.layers[1].weight[0, 0] = torch.nextafter(
            model.layers[1].weight[0, 0], torch.tensor(9.0)
        )
    assert checksum(model) != first
