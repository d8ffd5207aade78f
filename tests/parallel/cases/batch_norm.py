"""Batch norm over uneven shards equals batch norm over their union."""

from __future__ import annotations

import copy

import torch
import torch.distributed as dist
from torch import nn

from course_lib.parallel.batch_norm import SyncBatchNorm, convert_sync_batch_norm
from course_lib.parallel.invariants import assert_replicas_equal
from tests.parallel.cases.toys import error_on_all_ranks

CHANNELS = 3
TOLERANCE = 1e-12


def bounds(rank: int, size: int) -> slice:
    """Return a rank's rows: 2, 3, 4, ... of them, and the last of three or more ranks has none."""
    counts = [2 + index for index in range(size)]
    if size > 2:
        counts[-1] = 0
    return slice(sum(counts[:rank]), sum(counts[: rank + 1]))


def rows(size: int) -> int:
    return bounds(size - 1, size).stop


def close(one: torch.Tensor, other: torch.Tensor, what: str) -> None:
    torch.testing.assert_close(
        one, other, rtol=0, atol=TOLERANCE, msg=lambda text: f"{what}: {text}"
    )


def summed(tensor: torch.Tensor) -> torch.Tensor:
    total = tensor.detach().clone()
    dist.all_reduce(total)
    return total


def compare(rank: int, size: int, shape: tuple[int, ...], shift: float = 0, **options) -> None:
    """Train both for three steps and compare all there is to compare."""
    full = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}
    serial = full[1 + len(shape)](CHANNELS, **options).double()
    synced = SyncBatchNorm(CHANNELS, **options).double()
    if serial.affine:
        with torch.no_grad():
            serial.weight.copy_(torch.tensor([0.5, 2.0, -1.0]))
            serial.bias.copy_(torch.tensor([1.0, -1.0, 0.0]))
    synced.load_state_dict(serial.state_dict())
    own = bounds(rank, size)
    generator = torch.Generator().manual_seed(7)
    for _ in range(3):
        inputs = shift + torch.randn(rows(size), *shape, generator=generator, dtype=torch.float64)
        slope = torch.randn(inputs.shape, generator=generator, dtype=torch.float64)
        whole = inputs.clone().requires_grad_()
        part = inputs[own].clone().requires_grad_()
        for module, values, weights in ((serial, whole, slope), (synced, part, slope[own])):
            module.zero_grad()
            outputs = module(values)
            (outputs * weights).sum().backward()
            if module is serial:
                wanted = outputs[own]
            else:
                close(outputs, wanted, "outputs")
        close(part.grad, whole.grad[own], "gradient of the inputs")
        for name, parameter in synced.named_parameters():
            close(summed(parameter.grad), serial.get_parameter(name).grad, f"gradient of {name}")
        for name, buffer in synced.named_buffers():
            close(buffer, serial.get_buffer(name), name)
    assert_replicas_equal(dict(synced.named_buffers()))
    synced.eval()
    serial.eval()
    if serial.track_running_stats:
        close(synced(inputs[own]), serial(inputs)[own], "outputs in eval mode")


def case_images(rank, size):
    compare(rank, size, (CHANNELS, 4, 5))


def case_vectors(rank, size):
    compare(rank, size, (CHANNELS,))


def case_sequences_and_volumes(rank, size):
    compare(rank, size, (CHANNELS, 4))
    compare(rank, size, (CHANNELS, 2, 3, 2))


def case_options(rank, size):
    compare(rank, size, (CHANNELS, 4), momentum=None)
    compare(rank, size, (CHANNELS, 4), affine=False)
    compare(rank, size, (CHANNELS, 4), track_running_stats=False)
    compare(rank, size, (CHANNELS, 4), eps=0.1, momentum=0.5)


def case_values_far_from_zero(rank, size):
    """A sum of squares would lose all digits at 1e8; 1e8 itself rounds to 1e-8."""
    torch.manual_seed(0)
    inputs = 1e8 + torch.randn(rows(size), CHANNELS, 4, dtype=torch.float64)
    wanted = nn.BatchNorm1d(CHANNELS).double()(inputs)[bounds(rank, size)]
    outputs = SyncBatchNorm(CHANNELS).double()(inputs[bounds(rank, size)])
    torch.testing.assert_close(outputs, wanted, rtol=0, atol=1e-7)


def case_half_precision_computes_in_float32(rank, size):
    torch.manual_seed(0)
    inputs = torch.randn(rows(size), CHANNELS, 8)
    module = SyncBatchNorm(CHANNELS)
    outputs = module(inputs[bounds(rank, size)].bfloat16())
    assert outputs.dtype == torch.bfloat16
    wanted = nn.BatchNorm1d(CHANNELS)(inputs.bfloat16().float())[bounds(rank, size)]
    torch.testing.assert_close(outputs.float(), wanted, rtol=2**-8, atol=2**-8)


def case_conversion_keeps_tensors_and_training(rank, size):
    shared = nn.BatchNorm1d(4)
    model = nn.Sequential(nn.Linear(4, 4), shared, nn.Sequential(nn.ReLU(), shared), nn.Dropout())
    frozen = nn.BatchNorm1d(4).eval()
    model.append(frozen)
    before = dict(model.named_parameters()) | dict(model.named_buffers())
    names = list(model.state_dict())
    converted = convert_sync_batch_norm(model)
    assert converted is model
    assert isinstance(model[1], SyncBatchNorm)
    assert model[2][1] is model[1]
    assert not model[4].training
    assert model[1].training
    after = dict(model.named_parameters()) | dict(model.named_buffers())
    assert after.keys() == before.keys()
    assert all(after[name] is before[name] for name in before)
    assert list(model.state_dict()) == names
    alone = convert_sync_batch_norm(nn.BatchNorm2d(3, eps=0.5, momentum=None, affine=False))
    assert isinstance(alone, SyncBatchNorm)
    assert (alone.eps, alone.momentum, alone.affine) == (0.5, None, False)
    assert convert_sync_batch_norm(copy.deepcopy(model))[1] is not model[1]


def case_wrong_inputs(rank, size):
    """All ranks together need two values per channel; the shape is each rank's own."""
    module = SyncBatchNorm(CHANNELS)
    one = torch.ones(int(rank == 0), CHANNELS)
    message = None
    try:
        module(one)
    except ValueError as error:
        message = str(error)
    assert "more than one value per channel" in str(message)
    error_on_all_ranks(ValueError, module, torch.ones(2, CHANNELS + 1))
