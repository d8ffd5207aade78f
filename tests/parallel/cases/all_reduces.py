"""What five schedules give over real sends is what dist.all_reduce gives."""

from __future__ import annotations

import contextlib
from collections import Counter
from unittest import mock

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

from course_lib.parallel.all_reduces import ALGORITHMS, all_reduce_ring
from tests.parallel.all_reduce_formulas import count
from tests.parallel.cases.toys import error_on_all_ranks, from_all_ranks
from tests.ranks import case

LENGTHS = (0, 1, 2, 3, 5, 8, 1001)
BITS = (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR)
WHOLE = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
NARROW = (torch.float16, torch.bfloat16)
FLOATS = (torch.float32, torch.float64)


def numbers(rank: int, numel: int, dtype: torch.dtype) -> torch.Tensor:
    """Return random bits for integers, numbers of size 1 for others; each rank has its own."""
    generator = torch.Generator().manual_seed(1000 * rank + numel)
    if dtype == torch.bool:
        return torch.rand(numel, generator=generator) < 0.7
    if dtype.is_floating_point or dtype.is_complex:
        wide = torch.complex128 if dtype.is_complex else torch.float64
        return torch.randn(numel, generator=generator, dtype=wide).to(dtype)
    pieces = torch.randint(256, (numel * dtype.itemsize,), generator=generator, dtype=torch.uint8)
    return pieces.view(dtype)


def bits(tensor: torch.Tensor) -> bytes:
    """Return the memory of ``tensor``, in which NaN equals NaN and 0 differs from -0."""
    return tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def require_one_result(tensor: torch.Tensor) -> None:
    """Raise on all ranks unless all have the same bits."""
    results = from_all_ranks(bits(tensor))
    assert len(set(results)) == 1, "the ranks have different results"


def case_integers_equal_library_result(rank, size):
    for dtype in (*WHOLE, torch.bool):
        operations = [ReduceOp.SUM, ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.MAX, *BITS]
        if dtype in WHOLE:
            operations.append(ReduceOp.AVG)
        for op in operations:
            mine = numbers(rank, 37, dtype)
            if op in (ReduceOp.SUM, ReduceOp.AVG) and dtype.itemsize < 4:
                # Open MPI's vector units stop at the largest number where others wrap round.
                mine = (mine.to(torch.int64) % 16).to(dtype)
            expected = mine.clone()
            dist.all_reduce(expected, op)
            for name, algorithm in ALGORITHMS.items():
                result = mine.clone()
                assert algorithm.all_reduce(result, op) is result
                assert bits(result) == bits(expected), (name, dtype, op)


def case_integer_sums_wrap_as_in_torch(rank, size):
    for dtype in WHOLE:
        mine = numbers(rank, 37, dtype)
        signed = mine.view(getattr(torch, f"int{8 * dtype.itemsize}"))
        expected = sum(from_all_ranks(signed)).view(dtype)
        for algorithm in ALGORITHMS.values():
            result = mine.clone()
            algorithm.all_reduce(result)
            assert bits(result) == bits(expected), dtype


def case_complex_products(rank, size):
    for algorithm in ALGORITHMS.values():
        result = torch.full((7,), 1j if rank else 2 + 0j)
        algorithm.all_reduce(result, ReduceOp.PRODUCT)
        assert (result == 2 * 1j ** (size - 1)).all()


def case_every_length(rank, size):
    for numel in LENGTHS:
        mine = numbers(rank, numel, torch.int64)
        expected = mine.clone()
        dist.all_reduce(expected)
        for name, algorithm in ALGORITHMS.items():
            result = mine.clone()
            algorithm.all_reduce(result)
            assert torch.equal(result, expected), (name, numel)


def case_floats_match_library_and_agree_on_all_ranks(rank, size):
    """Terms have size 1; p - 1 <= 3 additions in any order round by p units in the last place.

    The narrow types are rounded from float32, which may turn a tie: 1 unit more of their own.
    """
    epsilons = {
        torch.complex64: torch.finfo(torch.float32).eps,
        torch.complex128: torch.finfo(torch.float64).eps,
    } | {dtype: torch.finfo(dtype).eps for dtype in (*NARROW, *FLOATS)}
    for dtype, epsilon in epsilons.items():
        operations = [ReduceOp.SUM, ReduceOp.AVG]
        if not dtype.is_complex:
            operations += [ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.MAX]
        for op in operations:
            mine = numbers(rank, 1001, dtype)
            expected = mine.clone()
            dist.all_reduce(expected, op)
            magnitudes = torch.stack(from_all_ranks(mine)).abs().to(torch.float64)
            product = op == ReduceOp.PRODUCT
            scale = magnitudes.prod(0) if product else magnitudes.sum(0)
            for name, algorithm in ALGORITHMS.items():
                result = mine.clone()
                algorithm.all_reduce(result, op)
                require_one_result(result)
                if op in (ReduceOp.MIN, ReduceOp.MAX):
                    assert torch.equal(result, expected), (name, dtype, op)
                    continue
                off = (result - expected).abs().to(torch.float64)
                assert (off <= 2 * size * epsilon * scale).all(), (name, dtype, op)


def case_eight_bit_floats_round_once(rank, size):
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        mine = torch.tensor([1.0, 0.25, -8.0, 3.0]).mul(rank + 1).to(dtype)
        expected = torch.stack(from_all_ranks(mine.float())).sum(0).to(dtype)
        for algorithm in ALGORITHMS.values():
            result = mine.clone()
            algorithm.all_reduce(result)
            assert bits(result) == bits(expected)


def case_zeros_and_nan_have_the_same_bits_everywhere(rank, size):
    """Which zero, which NaN: the one thing in which a + b and b + a may differ."""
    pattern = [0x7FC00000 + rank, 0xFFC00001 + rank, 0x7F800000, 0]
    mine = torch.tensor(pattern, dtype=torch.int64).to(torch.int32).view(torch.float32)
    mine[3] = -0.0 if rank % 2 else 0.0
    for op in (ReduceOp.SUM, ReduceOp.MIN, ReduceOp.MAX, ReduceOp.PRODUCT):
        for algorithm in ALGORITHMS.values():
            result = mine.repeat(9)
            algorithm.all_reduce(result, op)
            require_one_result(result)
            assert result[0].isnan()


def case_rabenseifner_adds_in_the_order_of_recursive_doubling(rank, size):
    results = []
    for name in ("recursive doubling", "rabenseifner"):
        result = numbers(rank, 1001, torch.float32)
        ALGORITHMS[name].all_reduce(result)
        results.append(bits(result))
    assert results[0] == results[1]


def case_strided_and_scalar_tensors(rank, size):
    for name, algorithm in ALGORITHMS.items():
        whole = torch.arange(24.0).view(4, 6) * (rank + 1)
        factor = size * (size + 1) // 2
        expected = torch.arange(24.0).view(4, 6) * (rank + 1)
        expected[:, ::2] = torch.arange(24.0).view(4, 6)[:, ::2] * factor
        algorithm.all_reduce(whole[:, ::2])
        assert torch.equal(whole, expected), name
        turned = (torch.arange(6.0).view(2, 3) * (rank + 1)).t()
        algorithm.all_reduce(turned)
        assert torch.equal(turned, torch.arange(6.0).view(2, 3).t() * factor), name
        middle = torch.ones(10, dtype=torch.int32)
        algorithm.all_reduce(middle[3:7])
        assert middle.tolist() == [1] * 3 + [size] * 4 + [1] * 3, name
        scalar = torch.tensor(rank)
        algorithm.all_reduce(scalar, ReduceOp.MAX)
        assert scalar == size - 1, name
        conjugate = torch.tensor([1 + 2j, 3 - 1j]).mul(rank + 1).conj()
        algorithm.all_reduce(conjugate)
        assert torch.equal(conjugate, torch.tensor([1 - 2j, 3 + 1j]) * factor), name
        leaf = torch.ones(3, requires_grad=True)
        algorithm.all_reduce(leaf)
        assert leaf.tolist() == [size] * 3, name


@contextlib.contextmanager
def counting(group, rank: int):
    """Count what the process group is really asked to send and receive."""
    counter = Counter()
    send, receive = group.send, group.recv

    def counted_send(tensors, dest, tag=0):
        counter["messages sent"] += 1
        counter["bytes sent"] += sum(tensor.nbytes for tensor in tensors)
        return send(tensors, dest, tag)

    def counted_receive(tensors, source, tag=0):
        counter["messages received"] += 1
        counter["bytes received"] += sum(tensor.nbytes for tensor in tensors)
        return receive(tensors, source, tag)

    no_collective = mock.Mock(side_effect=AssertionError("a collective of the library"))
    with (
        mock.patch.object(group, "send", counted_send),
        mock.patch.object(group, "recv", counted_receive),
        mock.patch.object(group, "allreduce", no_collective),
    ):
        yield counter


def case_measured_messages_and_bytes_match_the_formulas(rank, size):
    group = dist.group.WORLD
    for name, algorithm in ALGORITHMS.items():
        for numel in LENGTHS:
            for dtype, on_the_wire in ((torch.float64, 8), (torch.int16, 2), (torch.bfloat16, 4)):
                tensor = torch.ones(numel, dtype=dtype)
                with counting(group, rank) as counter:
                    algorithm.all_reduce(tensor)
                counts = count(algorithm.schedule(rank, size, numel))
                assert counter["messages sent"] == counts.messages_sent, (name, numel)
                assert counter["messages received"] == counts.messages_received, (name, numel)
                assert counter["bytes sent"] == counts.elements_sent * on_the_wire
                assert counter["bytes received"] == counts.elements_received * on_the_wire


@case(sizes=(3, 4))
def case_subgroup_in_another_rank_order(rank, size):
    """Ranks of the group are not those of the world, and others stay out of it."""
    members = [size - 1, 0]
    group = dist.new_group(members, sort_ranks=False)
    for algorithm in ALGORITHMS.values():
        tensor = torch.full((5,), rank + 1)
        if rank in members:
            algorithm.all_reduce(tensor, group=group)
            assert tensor.tolist() == [size + 1] * 5
        else:
            error = ""
            try:
                algorithm.all_reduce(tensor, group=group)
            except ValueError as refused:
                error = str(refused)
            assert "not in this group" in error


def case_long_messages_do_not_wait_for_each_other(rank, size):
    """Above MPI's eager limit a blocking send waits for its receiver: 4 MB, all at once."""
    for algorithm in ALGORITHMS.values():
        tensor = torch.full((1_000_003,), rank + 1, dtype=torch.int32)
        algorithm.all_reduce(tensor)
        assert (tensor == size * (size + 1) // 2).all()
    several = [torch.full((3,), rank * 10 + turn) for turn in range(20)]
    for tensor in several:
        all_reduce_ring(tensor)  # messages of one call are never taken for the next one's
    tens = 10 * size * (size - 1) // 2
    assert [tensor[2].item() for tensor in several] == [tens + turn * size for turn in range(20)]


def case_unsupported_arguments_raise(rank, size):
    for algorithm in ALGORITHMS.values():
        for tensor, op in (
            (torch.ones(2), ReduceOp.BAND),
            (torch.ones(2, dtype=torch.complex64), ReduceOp.MAX),
            (torch.ones(2, dtype=torch.bool), ReduceOp.AVG),
            (torch.ones(2, dtype=torch.uint16), ReduceOp.SUM),
            (torch.ones(2).to_sparse(), ReduceOp.SUM),
            (torch.ones(2), ReduceOp.PREMUL_SUM),
            (torch.ones(2), "sum"),
            ([1.0, 2.0], ReduceOp.SUM),
        ):
            error_on_all_ranks(TypeError, algorithm.all_reduce, tensor, op)
