"""A judge is asked on all ranks, and again on one rank fewer; what hangs ends soon."""

from __future__ import annotations

import time

import pytest
import torch
import torch.distributed as dist
from torch_mpi4py import world

from course_lib.teaching.distributed_log import observe_distributed
from course_lib.teaching.exercise import WrongAnswer
from course_lib.teaching.judges.rank_groups import with_fewer_ranks
from course_lib.teaching.message_log import observe
from course_lib.teaching.mistakes import explain


def case_every_rank_gets_the_error_of_a_smaller_group(rank, size):
    """This includes the rank that was left out: it would continue alone and wait indefinitely."""
    comm, sizes = world(), []

    def judge(comm):
        sizes.append(comm.size)
        if comm.size < size:
            raise WrongAnswer("forgets-the-comm: by dist", call="barrier")

    with pytest.raises(WrongAnswer) as wrong:
        with_fewer_ranks(comm, judge)
    assert sizes == ([size] if rank == 0 else [size, size - 1])
    assert wrong.value.mistake == "size-is-fixed"
    told = explain(wrong.value)
    assert told.endswith("whatever `comm` the caller meant)")
    numbered = f"ranks 1 to {size - 1}, where they are ranks 0 to {size - 2}, it is not"
    assert numbered in told, "the reason in brackets counts from 0"


def case_all_ranks_continue_if_the_answer_is_right(rank, size):
    """Any other exception reaches all ranks unchanged, too."""
    comm = world()
    with_fewer_ranks(comm, lambda comm: None)

    def fails(comm):
        if comm.size < size:
            raise RuntimeError("broken there")

    with pytest.raises(RuntimeError, match="broken there"):
        with_fewer_ranks(comm, fails)
    assert comm.allreduce(1) == size


def all_are_freed_early(function, size):
    """Raise AssertionError unless a function that hangs on all ranks ends before its deadline."""
    comm = world()
    began = time.perf_counter()
    seen = observe(function, comm, timeout=40.0)
    assert seen.hung
    assert sorted(seen.stuck()) == list(range(size))
    assert time.perf_counter() - began < 30, "at most 2.5 s on a quiet machine"
    assert comm.allreduce(1) == size


def case_a_deadlock_ends_before_its_deadline(rank, size):
    """All wait in a receive; the communicator of the check is lost, and no other."""

    def all_receive(comm):
        comm.recv(source=(comm.rank - 1) % comm.size)

    all_are_freed_early(all_receive, size)


def case_deadlock_of_sleeping_ranks_ends_before_its_deadline(rank, size):
    """Ranks in a barrier sleep until rank 0 comes, which waits for a message from one of them."""

    def only_some_come(comm):
        if comm.rank:
            comm.Barrier()
        else:
            comm.recv(source=1)

    all_are_freed_early(only_some_come, size)


def case_deadlock_of_some_ranks_of_a_group_ends(rank, size):
    """The ranks that have finished wait for the others in the check."""
    began = time.perf_counter()

    def only_some_call(group):
        if dist.get_rank(group) > 0:
            dist.all_reduce(torch.ones(1), group=group)

    seen = observe_distributed(only_some_call, ranks=[1, 2], timeout=40.0)
    assert seen.hung
    assert seen.errors[0] is None
    assert time.perf_counter() - began < 30, "at most 2.5 s on a quiet machine"


def case_ranks_that_wait_for_a_busy_rank_are_left_alone(rank, size):
    """It computes in Python, then it sleeps, each for longer than a deadlock may last."""

    def is_late(comm):
        if comm.rank == 0:
            began = time.perf_counter()
            while time.perf_counter() < began + 3.5:
                pass
            time.sleep(3.5)
        return comm.bcast("at last" if comm.rank == 0 else None)

    assert observe(is_late, world()).results == ["at last"] * size
