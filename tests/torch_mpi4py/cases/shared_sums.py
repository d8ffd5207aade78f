"""All-reduces of one host's ranks go through shared memory, in the order of ranks."""

from __future__ import annotations

import contextlib
import functools
import gc
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch_mpi4py import DeadlineError, MismatchError, RevokedError, emulated_link
from torch_mpi4py.core import time_slice
from torch_mpi4py.faults import deadlines
from torch_mpi4py.group.work import CollectiveWork
from torch_mpi4py.meeting import shared_sums
from torch_mpi4py.meeting.shared_sums import SharedSums
from torch_mpi4py.meeting.sums import Sums

from tests.ranks import case
from tests.torch_mpi4py.helpers import equal, group_of_all, raises, still_works

# Below and above the sizes at which float32 are left to NumPy, are divided, and go in chunks.
COUNTS = (0, 1, 7, 4096, 4097, 40_001, 131_072, 131_073, 262_144, 262_145, 900_003)
CHUNK = shared_sums._SLOT_BYTES_IN_SHARES // 4  # the longest
GROUP_SECONDS = 3.0
FREED = (DeadlineError, RevokedError)
Fold = Callable[[list[torch.Tensor], Callable[..., torch.Tensor]], torch.Tensor]


def channel_of(group: dist.ProcessGroup | None = None) -> Any:
    return (group or dist.group.WORLD)._channels[0]


def numbers_of(rank: int, count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return what a rank hands over, the same whoever asks."""
    generator = torch.Generator(torch.get_default_device()).manual_seed(1000 + rank)
    if dtype == torch.bool:
        return torch.randint(2, (count,), generator=generator).bool()
    if not (dtype.is_floating_point or dtype.is_complex):
        return torch.randint(5, (count,), generator=generator).to(dtype)
    return torch.randn(count, generator=generator, dtype=dtype)


def in_order(parts: list[torch.Tensor], combine: Callable[..., torch.Tensor]) -> torch.Tensor:
    return functools.reduce(combine, parts)


@case(sizes=(2, 3))
def case_overflowing_sum_is_infinite_without_a_warning(rank: int, size: int) -> None:
    require_overflow_is_infinite((1, 3, COUNTS[-1]))
    assert isinstance(channel_of()._sums, SharedSums)


@case(sizes=(2, 3, 4))
def case_sum_is_bitwise_equal_to_sum_in_rank_order(rank: int, size: int) -> None:
    for count in COUNTS:
        expected = in_order([numbers_of(r, count) for r in range(size)], torch.add)
        for _ in range(3):
            ours = numbers_of(rank, count)
            dist.all_reduce(ours)
            equal(ours, expected)
    assert isinstance(channel_of()._sums, SharedSums)


@case(sizes=(2, 3, 4))
def case_single_numbers_are_rounded_as_their_dtype(rank: int, size: int) -> None:
    require_single_numbers_rounded_as_their_dtype(in_order)


@case(sizes=(2, 3, 4))
def case_all_ranks_get_the_same_bits_of_not_a_number(rank: int, size: int) -> None:
    for count in (1, 5, 5000, COUNTS[-1]):
        ours = torch.full((count,), 0x7FC00001 + rank, dtype=torch.int32).view(torch.float32)
        dist.all_reduce(ours)
        assert bool(ours.isnan().all())
        bits = ours.view(torch.int32)
        first = bits.clone()
        dist.broadcast(first, 0)
        equal(bits, first)


@case(sizes=(2, 3))
def case_sum_of_large_integers_wraps_round(rank: int, size: int) -> None:
    for count in (1, 5, 5000):
        for dtype in (torch.int32, torch.int64):
            ours = torch.full((count,), torch.iinfo(dtype).max, dtype=dtype)
            dist.all_reduce(ours)
            expected = torch.full_like(ours, torch.iinfo(dtype).max) * size
            equal(ours, expected)


def require_overflow_is_infinite(
    counts: Iterable[int], group: dist.ProcessGroup | None = None
) -> None:
    """Raise unless sums beyond the range of their dtype are infinite, and nothing warns of it."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for count in counts:
            large = torch.full((count,), 3e38)
            dist.all_reduce(large, group=group)
            assert bool(large.isinf().all())
            large = torch.full((count,), 1.7e308, dtype=torch.float64)
            dist.all_reduce(large, group=group)
            assert bool(large.isinf().all())
            opposite = torch.full((count,), float("-inf" if dist.get_rank() else "inf"))
            dist.all_reduce(opposite, group=group)
            assert bool(opposite.isnan().all())


def require_single_numbers_rounded_as_their_dtype(
    fold: Fold, group: dist.ProcessGroup | None = None
) -> None:
    """Raise AssertionError unless all-reduces of one number have the bits of a serial ``fold``."""
    rank, size = dist.get_rank(), dist.get_world_size()
    generator = torch.Generator("cpu").manual_seed(7)
    for dtype, low, high in ((torch.float32, -150, 130), (torch.float64, -1075, 1025)):
        # Close exponents, so that much is rounded; some numbers are subnormal.
        exponents = torch.randint(low, high, (400, 1), generator=generator)
        exponents = exponents + torch.randint(-26, 1, (400, size), generator=generator)
        signed = 1 - 2 * torch.rand((400, size), generator=generator, dtype=dtype)
        for parts in torch.ldexp(signed, exponents).to(dtype):
            ours = parts[rank].clone()
            dist.all_reduce(ours, group=group)
            equal(ours, fold(list(parts), torch.add))


def require_every_dtype_and_operation(
    counts: Iterable[int],
    fold: Fold,
    kind: type[Sums],
    group: dist.ProcessGroup | None = None,
) -> None:
    """Raise AssertionError unless all-reduces of ``kind`` have the bits of a serial ``fold``."""
    rank, size = dist.get_rank(), dist.get_world_size()
    whole = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
    real = (torch.float32, torch.float64)
    function = {
        dist.ReduceOp.SUM: torch.add,
        dist.ReduceOp.PRODUCT: torch.mul,
        dist.ReduceOp.MIN: torch.minimum,
        dist.ReduceOp.MAX: torch.maximum,
        dist.ReduceOp.BAND: torch.bitwise_and,
        dist.ReduceOp.BOR: torch.bitwise_or,
        dist.ReduceOp.BXOR: torch.bitwise_xor,
    }
    table = [(dtype, op, function[op]) for dtype in whole for op in function]
    table += [(dtype, op, function[op]) for dtype in real for op in list(function)[:4]]
    table += [
        (torch.complex64, dist.ReduceOp.SUM, torch.add),
        (torch.complex128, dist.ReduceOp.SUM, torch.add),
        (torch.bool, dist.ReduceOp.SUM, torch.logical_or),
        (torch.bool, dist.ReduceOp.PRODUCT, torch.logical_and),
    ]
    for dtype, op, combine in table:
        for count in counts:
            parts = [numbers_of(r, count, dtype) for r in range(size)]
            ours = parts[rank].clone()
            with counted(kind) as calls:
                dist.all_reduce(ours, op, group=group)
            assert len(calls) == 1, (dtype, op, calls)
            equal(ours, fold(parts, combine))


@case(sizes=(2, 3, 4))
def case_every_dtype_and_operation_uses_shared_memory(rank: int, size: int) -> None:
    dist.all_reduce(torch.ones(1))  # the memory is there from here on
    require_every_dtype_and_operation((1, 5, 5000, 300_001), in_order, SharedSums)


@case(sizes=(2, 4))
def case_other_forms_of_all_reduce_use_shared_memory(rank: int, size: int) -> None:
    dist.all_reduce(torch.ones(1))
    for count in (1, 3, CHUNK + 5):
        half = torch.full((count,), rank + 1.0, dtype=torch.bfloat16)
        strided = torch.full((count, 2), rank + 1.0)[:, 1]
        coalesced = [torch.full((count,), rank + 1.0), torch.full((2,), 2.0 * rank)]
        average = torch.full((count,), float(rank))
        with counted(SharedSums) as calls:
            dist.all_reduce(half)
            dist.all_reduce(strided)
            dist.all_reduce_coalesced(coalesced)
            dist.all_reduce(average, dist.ReduceOp.AVG)
            work = dist.all_reduce(torch.ones(count), async_op=True)
            work.wait()
            with emulated_link(latency=1e-4, bandwidth=1e9):
                dist.all_reduce(torch.ones(count))
        assert len(calls) == 7, calls
        total = size * (size + 1) / 2
        equal(half, [total] * count)
        equal(strided, [total] * count)
        equal(coalesced[0], [total] * count)
        equal(coalesced[1], [float(size * (size - 1))] * 2)
        equal(average, [(size - 1) / 2] * count)


@contextlib.contextmanager
def counted(kind: type[Sums]) -> Iterator[list[int]]:
    """Yield a list that grows by the number of elements of each all-reduce of this kind."""
    calls: list[int] = []
    usual = kind.Allreduce

    def counting(self: Sums, in_place: Any, message: list, op: Any) -> None:
        calls.append(message[1])
        usual(self, in_place, message, op)

    with mock.patch.object(kind, "Allreduce", counting):
        yield calls


@case(sizes=(2, 3))
def case_ranks_without_shared_memory_sum_through_mpi(rank: int, size: int) -> None:
    at_the_last, no_hindrance = rank == size - 1, contextlib.nullcontext()
    hindrances = (
        mock.patch.object(shared_sums, "_create", return_value=(None, None)),
        mock.patch.object(shared_sums, "_map", return_value=None) if at_the_last else no_hindrance,
        mock.patch.object(shared_sums, "_MOST_OPEN", 0 if at_the_last else 32),
    )
    was_open = shared_sums._open
    for hindrance in hindrances:
        with hindrance, group_of_all() as group:
            for _ in range(2):
                ours = numbers_of(rank, 1000)
                dist.all_reduce(ours, group=group)
                torch.testing.assert_close(ours, sum(numbers_of(r, 1000) for r in range(size)))
            assert channel_of(group)._sums is None
        assert shared_sums._open == was_open
    with tempfile.NamedTemporaryFile() as another:
        another.truncate(4096)
        token = bytes(shared_sums._TOKEN_BYTES)
        assert shared_sums._map(another.name, token, 4096) is not None
        assert shared_sums._map(another.name, b"x" + token[1:], 4096) is None
        assert shared_sums._map(another.name, token, 8192) is None
    assert shared_sums._map("/proc/0/fd/0", token, 4096) is None


@case(sizes=(2,))
def case_group_memory_is_released(rank: int, size: int) -> None:
    dist.all_reduce(torch.ones(1))
    before = shared_sums._open
    for _ in range(shared_sums._MOST_OPEN + 5):
        with group_of_all() as group:
            still_works(group)
            assert isinstance(channel_of(group)._sums, SharedSums)
    gc.collect()
    assert shared_sums._open == before
    with open("/proc/self/maps") as maps:
        mapped = sum("torch_mpi4py sums" in line for line in maps)
    assert mapped <= before + 1, mapped


@case(sizes=(2,))
def case_abandoned_group_does_not_count_as_open(rank: int, size: int) -> None:
    """Its thread is stuck in MPI for good, not in a sum, and later groups need its place."""
    before = shared_sums._open
    with (
        mock.patch.object(deadlines, "leave_mpi_unfinalized"),  # no thread is really stuck
        group_of_all() as group,
    ):
        still_works(group)
        channel = channel_of(group)
        assert shared_sums._open == before + 1
        stuck = CollectiveWork()
        stuck.channel, stuck.comm, stuck.what = channel, channel.comm, "broadcast"
        stuck.seconds, stuck.report = GROUP_SECONDS, "given up by this case"
        stuck.prepare_to_wait()
        channel.abandon(stuck)
    deadlines.forget(channel)  # as nothing is stuck
    assert shared_sums._open == before


@case(sizes=(2, 4))
def case_sums_of_two_groups_on_two_threads_do_not_mix(rank: int, size: int) -> None:
    def sum_up(group: dist.ProcessGroup, value: float) -> None:
        try:
            for count in (1, 1000, CHUNK * 2 + 1) * 5:
                ours = torch.full((count,), value)
                dist.all_reduce(ours, group=group)
                equal(ours, [size * value] * count)
        except BaseException as error:
            errors.append(error)

    errors: list[BaseException] = []
    with group_of_all() as one, group_of_all() as other:
        threads = [
            threading.Thread(target=sum_up, args=(group, value))
            for group, value in ((one, 1.0), (other, 10.0))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
    assert not errors, errors


@case(sizes=(2, 3))
def case_mismatched_sums_are_detected(rank: int, size: int) -> None:
    dist.all_reduce(torch.ones(1))
    for count in (4, CHUNK + 4):
        with raises(MismatchError, str(count), str(count + 1), "still usable"):
            dist.all_reduce(torch.ones(count + (rank == 0)))
        with emulated_link(latency=1e-6), raises(MismatchError, str(count), str(count + 1)):
            dist.all_reduce(torch.ones(count + (rank == 0)))
        with raises(MismatchError, "broadcast", "all_reduce"):
            if rank == 0:
                dist.broadcast(torch.ones(count), src=0)
            else:
                dist.all_reduce(torch.ones(count))
        still_works()


@case(sizes=(2, 3), mpi="openmpi")  # with MPICH the thread that sleeps is given up, till the end
def case_rank_stopping_within_a_sum_frees_the_others(rank: int, size: int) -> None:
    usual = SharedSums._meet

    def late(self: SharedSums) -> None:
        if rank == 0 and shared.count == 1:
            time.sleep(GROUP_SECONDS + 1)
        shared.count += 1
        usual(self)

    shared = mock.Mock(count=0)
    with group_of_all(GROUP_SECONDS) as group:
        dist.all_reduce(torch.ones(1), group=group)
        with mock.patch.object(SharedSums, "_meet", late), raises(FREED, within=GROUP_SECONDS + 8):
            dist.all_reduce(torch.ones(3 * CHUNK), group=group)
    still_works()


@case(sizes=(2,))
def case_waiting_thread_has_short_slices(rank: int, size: int) -> None:
    slices: list[Any] = []
    usual = time_slice.shorten

    def shorten() -> None:
        usual()
        slices.append(time_slice._attributes())

    with mock.patch.object(time_slice, "shorten", shorten), group_of_all() as group:
        if rank == 0:
            time.sleep(0.1)
        dist.all_reduce(torch.ones(1), group=group)
    if rank > 0:
        assert slices, "it has not asked"
    for attributes in slices:
        # None: no such call here. A slice of 0: the kernel is older than 6.12.
        if attributes is not None and attributes[time_slice._SLICE]:
            assert attributes[time_slice._SLICE] == time_slice._SHORT_NANOSECONDS
            assert attributes[time_slice._POLICY] == time_slice._SCHED_OTHER
