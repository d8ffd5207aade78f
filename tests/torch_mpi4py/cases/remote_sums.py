"""Short all-reduces of ranks without shared slots travel with the messages by which they meet."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch_mpi4py import DeadlineError, MismatchError, RevokedError, emulated_link
from torch_mpi4py.core import gpus
from torch_mpi4py.meeting import remote_sums
from torch_mpi4py.meeting.remote_arrivals import RemoteArrivals
from torch_mpi4py.meeting.remote_sums import RemoteSums

from tests.ranks import case
from tests.torch_mpi4py.cases.meeting import no_free_slot
from tests.torch_mpi4py.cases.shared_sums import (
    counted,
    require_every_dtype_and_operation,
    require_overflow_is_infinite,
    require_single_numbers_rounded_as_their_dtype,
)
from tests.torch_mpi4py.helpers import equal, group_of_all, raises, still_works

MOST = remote_sums.MOST_NUMBERS
GROUP_SECONDS = 1.0
SLACK = 8.0  # seconds, of a busy machine


@contextlib.contextmanager
def group_without_slots(seconds: float = 60.0) -> Iterator[dist.ProcessGroup]:
    """Make a group whose ranks meet as those of several hosts do, and have summed up once."""
    with no_free_slot(here=dist.get_rank() == 0), group_of_all(seconds) as group:
        still_works(group)
        yield group


def in_pairs(parts: list[torch.Tensor], combine: Callable[..., torch.Tensor]) -> torch.Tensor:
    """Combine neighbours, then neighbouring results, and so on."""
    while len(parts) > 1:
        parts = [combine(*pair) for pair in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


@case(sizes=(2, 4))
def case_every_dtype_and_operation_is_combined_in_pairs(rank: int, size: int) -> None:
    with group_without_slots() as group:
        require_every_dtype_and_operation((1, 5, MOST // 2), in_pairs, RemoteSums, group)
        require_overflow_is_infinite((1, 3, MOST), group)
        require_single_numbers_rounded_as_their_dtype(in_pairs, group)
        nothing = torch.ones(0)
        dist.all_reduce(nothing, group=group)
        still_works(group)


@case(sizes=(2, 4))
def case_all_ranks_get_the_same_bits_of_not_a_number_without_slots(rank: int, size: int) -> None:
    with group_without_slots() as group:
        for count in (1, 5, MOST):
            ours = torch.full((count,), 0x7FC00001 + rank, dtype=torch.int32).view(torch.float32)
            dist.all_reduce(ours, group=group)
            bits = ours.view(torch.int32)
            first = bits.clone()
            dist.broadcast(first, 0, group=group)
            equal(bits, first)


@case(sizes=(2, 4))
def case_other_forms_of_all_reduce_are_combined_in_pairs(rank: int, size: int) -> None:
    with group_without_slots() as group:
        for count in (1, MOST):
            half = torch.full((count,), rank + 1.0, dtype=torch.bfloat16)
            strided = torch.full((count, 2), rank + 1.0)[:, 1]
            average = torch.full((count,), float(rank))
            late, slow = torch.ones(count), torch.ones(count)
            with counted(RemoteSums) as calls:
                dist.all_reduce(half, group=group)
                dist.all_reduce(strided, group=group)
                dist.all_reduce(average, dist.ReduceOp.AVG, group=group)
                work = dist.all_reduce(late, group=group, async_op=True)
                work.wait()
                with emulated_link(latency=1e-4, bandwidth=1e9):
                    dist.all_reduce(slow, group=group)
            assert len(calls) == 5, calls
            total = size * (size + 1) / 2
            equal(half, [total] * count)
            equal(strided, [total] * count)
            equal(average, [(size - 1) / 2] * count)
            equal(late, [float(size)] * count)
            equal(slow, [float(size)] * count)


@case(sizes=(2, 3, 4))
def case_long_sums_and_three_ranks_leave_it_to_mpi(rank: int, size: int) -> None:
    with group_without_slots() as group, counted(RemoteSums) as calls:
        for count in (5, MOST, MOST + 1, 10 * MOST):
            ours = torch.full((count,), rank + 1.0)
            dist.all_reduce(ours, group=group)
            equal(ours, [size * (size + 1) / 2] * count)
        assert calls == ([] if size == 3 else [5, MOST]), calls


@case(sizes=(2, 4))
def case_ranks_whose_mpi_takes_gpu_memory_leave_short_sums_to_it(rank: int, size: int) -> None:
    with (
        mock.patch.object(gpus, "takes_cuda", return_value=rank == size - 1),
        group_without_slots() as group,
        counted(RemoteSums) as calls,
    ):
        still_works(group)
        assert group._channels[0]._sums is None
        assert not calls


@case(sizes=(2, 3, 4))
def case_mismatched_sums_without_slots_are_detected(rank: int, size: int) -> None:
    is_last = rank == size - 1
    with group_without_slots() as group:
        for mine, theirs in ((5, 4), (4, 5), (3, MOST), (MOST, 3), (MOST, 2 * MOST), (0, 1)):
            with raises(MismatchError, f"rank {size - 1}: all_reduce(SUM) of {theirs} "):
                dist.all_reduce(torch.ones(theirs if is_last else mine), group=group)
            still_works(group)
        for count in (1, MOST):
            with raises(MismatchError, "broadcast", "all_reduce"):
                if is_last:
                    dist.broadcast(torch.ones(count), 0, group=group)
                else:
                    dist.all_reduce(torch.ones(count), group=group)
            still_works(group)


@case(sizes=(2, 4))
def case_rank_that_misses_a_sum_without_slots_frees_the_others(rank: int, size: int) -> None:
    """What they have sent it may be enough for the rank that comes later."""
    freed = DeadlineError, RevokedError
    with group_without_slots(GROUP_SECONDS) as group:
        if rank == 0:
            time.sleep(GROUP_SECONDS + 1)
            with contextlib.suppress(*freed):
                dist.all_reduce(torch.ones(1), group=group)
        else:
            with raises(freed, within=GROUP_SECONDS + SLACK):
                dist.all_reduce(torch.ones(1), group=group)
        with raises(freed, within=GROUP_SECONDS + SLACK):
            dist.all_reduce(torch.ones(1), group=group)
    still_works()


@case(sizes=(2, 4), mpi="openmpi")
def case_complete_sum_of_a_revoked_group_raises(rank: int, size: int) -> None:
    usual = RemoteArrivals.meet_with

    def revoked_meanwhile(self: RemoteArrivals, *call: Any) -> Any:
        total = usual(self, *call)
        self._comm.Revoke()
        return total

    with (
        group_without_slots() as group,
        mock.patch.object(RemoteArrivals, "meet_with", revoked_meanwhile),
        raises(RevokedError, within=SLACK),
    ):
        dist.all_reduce(torch.ones(1), group=group)
    still_works()


@case(sizes=(2, 4))
def case_sums_of_one_group_without_slots_are_in_order(rank: int, size: int) -> None:
    """A rank may be a round ahead of its partner, which has not read what it sent before."""
    generator = torch.Generator().manual_seed(rank)
    naps = torch.randint(4, (200,), generator=generator)
    with group_without_slots() as group:
        for number, nap in enumerate(naps.tolist()):
            time.sleep(nap * 1e-4)
            ours = torch.full((1 + 37 * (number % 9),), float(number + rank))
            dist.all_reduce(ours, group=group)
            equal(ours, [float(size * number + size * (size - 1) / 2)] * len(ours))
