"""Every dtype with every reduce operation, against the same sum done serially.

The serial result folds the ranks' values in rank order. Values are small whole numbers, so
every intermediate result is exact in every dtype and ``==`` is the comparison.
"""

from __future__ import annotations

import functools
import operator

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

from tests.torch_mpi4py.cases.collectives import same

SIGNED = (torch.int8, torch.int16, torch.int32, torch.int64)
UNSIGNED = (torch.uint8, torch.uint16, torch.uint32, torch.uint64)
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
COMPLEX = (torch.complex64, torch.complex128)
FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
NUMBERS = SIGNED + UNSIGNED + FLOATS
ALL = (*NUMBERS, *COMPLEX, *FLOAT8, torch.bool)

FOLD = {
    "SUM": operator.add,
    "PRODUCT": operator.mul,
    "MIN": torch.minimum,
    "MAX": torch.maximum,
    "BAND": operator.and_,
    "BOR": operator.or_,
    "BXOR": operator.xor,
}


def gloo() -> bool:
    return dist.get_backend() == "gloo"


def contribution(rank: int, dtype: torch.dtype) -> torch.Tensor:
    """Return six small values; complex ones have an imaginary part."""
    whole = (torch.arange(6) * (rank + 1)) % 3 + 1
    if dtype.is_complex:
        return torch.complex(whole.double(), (whole + rank).double() % 2).to(dtype)
    if dtype == torch.bool:
        return (whole + rank) % 3 == 1
    return whole.to(dtype)


def serial(size: int, dtype: torch.dtype, name: str) -> torch.Tensor:
    """Return the reduction of all ranks' contributions, done in one place."""
    # torch has no arithmetic for the wide unsigned types; these small values fit int64.
    wide = torch.int64 if dtype in UNSIGNED else dtype
    parts = [contribution(rank, dtype).to(wide) for rank in range(size)]
    return functools.reduce(FOLD[name], parts).to(dtype)


def all_reduced(rank: int, dtype: torch.dtype, op: ReduceOp) -> torch.Tensor:
    tensor = contribution(rank, dtype)
    dist.all_reduce(tensor, op)
    return tensor


def case_sums_of_small_integers_wrap_as_in_torch(rank, size):
    """In every element: vector code and the scalar code behind it must agree."""
    if gloo():
        return
    for dtype in (torch.int8, torch.uint8, torch.int16, torch.uint16):
        most = torch.iinfo(dtype).max
        tensor = torch.full((101,), most, dtype=torch.int64).to(dtype)
        dist.all_reduce(tensor)
        expected = torch.tensor(most * size).to(dtype).item()
        assert set(tensor.to(torch.int64).tolist()) == {expected}, (dtype, size)


def case_numbers_reduce(rank, size):
    if gloo():
        return
    for dtype in NUMBERS:
        for name in ("SUM", "PRODUCT", "MIN", "MAX"):
            same(all_reduced(rank, dtype, getattr(ReduceOp, name)), serial(size, dtype, name))


def case_bitwise_reduce(rank, size):
    if gloo():
        return
    for dtype in SIGNED + UNSIGNED:
        for name in ("BAND", "BOR", "BXOR"):
            same(all_reduced(rank, dtype, getattr(ReduceOp, name)), serial(size, dtype, name))


def case_bool_reduce(rank, size):
    if gloo():
        return
    folds = {"SUM": "BOR", "MAX": "BOR", "PRODUCT": "BAND", "MIN": "BAND"}
    for name in ("SUM", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR"):
        expected = serial(size, torch.bool, folds.get(name, name))
        same(all_reduced(rank, torch.bool, getattr(ReduceOp, name)), expected)


def case_complex_reduce(rank, size):
    for dtype in COMPLEX:
        same(all_reduced(rank, dtype, ReduceOp.SUM), serial(size, dtype, "SUM"))


def case_average(rank, size):
    if gloo():
        return
    for dtype in FLOATS + COMPLEX:
        tensor = contribution(rank, dtype) * size  # so that the average is a whole number
        dist.all_reduce(tensor, ReduceOp.AVG)
        same(tensor, serial(size, dtype, "SUM"))
    # Whole numbers round towards zero, as NCCL's do.
    for dtype in SIGNED:
        tensor = -contribution(rank, dtype)
        dist.all_reduce(tensor, ReduceOp.AVG)
        expected = torch.div(-serial(size, dtype, "SUM"), size, rounding_mode="trunc")
        same(tensor, expected)
    for dtype in UNSIGNED:
        expected = serial(size, dtype, "SUM").to(torch.int64) // size
        same(all_reduced(rank, dtype, ReduceOp.AVG), expected.to(dtype))


def case_premultiplied_sum(rank, size):
    if gloo():
        return
    for dtype in FLOATS:
        same(
            all_reduced(rank, dtype, dist._make_nccl_premul_sum(2.0)),
            2 * serial(size, dtype, "SUM"),
        )


def case_every_reducing_collective_supports_every_operation(rank, size):
    if gloo():
        return
    for dtype in (torch.int32, torch.float32, torch.bfloat16):
        for name in ("SUM", "PRODUCT", "MIN", "MAX"):
            op, expected = getattr(ReduceOp, name), serial(size, dtype, name)
            tensor = contribution(rank, dtype)
            dist.reduce(tensor, 0, op)
            same(tensor, expected if rank == 0 else contribution(rank, dtype))
            output = torch.zeros(6, dtype=dtype)
            dist.reduce_scatter_tensor(output, contribution(rank, dtype).repeat(size), op)
            same(output, expected)
            output = torch.zeros(6, dtype=dtype)
            dist.reduce_scatter(output, [contribution(rank, dtype)] * size, op)
            same(output, expected)
    tensor = contribution(rank, torch.float32) * size
    dist.reduce(tensor, 0, ReduceOp.AVG)
    if rank == 0:
        same(tensor, serial(size, torch.float32, "SUM"))
    output = torch.zeros(6)
    source = contribution(rank, torch.float32).repeat(size) * size
    dist.reduce_scatter_tensor(output, source, ReduceOp.AVG)
    same(output, serial(size, torch.float32, "SUM"))


def case_half_precision_sum_rounds_once(rank, size):
    """Half types add up in float32: 1 + small + small is not lost step by step."""
    if gloo():
        return
    for dtype in (torch.float16, torch.bfloat16):
        tiny = torch.finfo(dtype).eps / 2
        tensor = torch.tensor([1.0 if rank == 0 else tiny], dtype=dtype)
        dist.all_reduce(tensor)
        same(tensor, torch.tensor([1.0 + tiny * (size - 1)]).to(dtype))


def case_every_dtype_is_transferred(rank, size):
    if gloo():
        return
    for dtype in ALL:
        mine = contribution(rank, dtype)
        everyone = [contribution(r, dtype) for r in range(size)]

        def equal(actual, expected):
            same(actual.view(torch.uint8), expected.view(torch.uint8))

        tensor = mine.clone()
        dist.broadcast(tensor, size - 1)
        equal(tensor, everyone[-1])
        outputs = [torch.zeros_like(mine) for _ in range(size)]
        dist.all_gather(outputs, mine)
        for output, expected in zip(outputs, everyone, strict=True):
            equal(output, expected)
        output = torch.zeros(6 * size, dtype=torch.uint8).to(dtype)
        dist.all_gather_into_tensor(output, mine)
        equal(output, torch.cat([part.view(torch.uint8) for part in everyone]).view(dtype))
        outputs = [torch.zeros_like(mine) for _ in range(size)] if rank == 0 else None
        dist.gather(mine, outputs, 0)
        if rank == 0:
            equal(outputs[-1], everyone[-1])
        tensor = torch.zeros_like(mine)
        dist.scatter(tensor, everyone if rank == 0 else None, 0)
        equal(tensor, mine)
        output = torch.zeros_like(mine.view(torch.uint8).repeat(size)).view(dtype)
        dist.all_to_all_single(output, mine.view(torch.uint8).repeat(size).view(dtype))
        equal(output, torch.cat([part.view(torch.uint8) for part in everyone]).view(dtype))
        if size > 1:
            work = dist.isend(mine, (rank + 1) % size)
            tensor = torch.zeros_like(mine)
            dist.recv(tensor, (rank - 1) % size)
            work.wait()
            equal(tensor, everyone[(rank - 1) % size])


def case_unsupported_reductions_raise_on_every_rank(rank, size):
    """On every rank alike, at once, and the group works afterwards."""
    if gloo():
        return
    refused = [
        *((dtype, name) for dtype in FLOATS for name in ("BAND", "BOR", "BXOR")),
        *((dtype, name) for dtype in COMPLEX for name in ("MIN", "MAX", "BAND", "BXOR")),
        (torch.bool, "AVG"),
    ]
    for dtype, name in refused:
        tensor = contribution(rank, dtype)
        try:
            dist.all_reduce(tensor, getattr(ReduceOp, name))
        except (TypeError, ValueError) as error:
            assert name in str(error) or "complex" in str(error)
        else:
            raise AssertionError(f"{name} of {dtype} was not refused")
        same(tensor, contribution(rank, dtype))
    same(all_reduced(rank, torch.float32, ReduceOp.SUM), serial(size, torch.float32, "SUM"))
