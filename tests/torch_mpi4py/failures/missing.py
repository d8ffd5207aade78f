"""A monitored barrier names the ranks that do not come, and leaves the group usable."""

from __future__ import annotations

import os
import signal
import threading
import time
import warnings
from datetime import timedelta

import torch
import torch.distributed as dist
import torch_mpi4py
from torch_mpi4py import DeadlineError
from torch_mpi4py.group import missing_ranks

from tests.torch_mpi4py.helpers import raises, sizes, still_works

SECONDS = 2.0  # no rank that does come is so late, also on a busy machine


def come(wait_all_ranks: bool = False, seconds: float = SECONDS) -> None:
    torch_mpi4py.monitored_barrier(timeout=seconds, wait_all_ranks=wait_all_ranks)


def all_come() -> None:
    come(seconds=20)
    still_works()


def case_all_ranks_arrive(rank, size):
    for _ in range(20):
        come(seconds=20)
    dist.group.WORLD.monitored_barrier()
    dist.group.WORLD.monitored_barrier(timedelta(seconds=20), wait_all_ranks=True)
    all_come()


@sizes(2, 3, 4)
def case_one_rank_is_missing(rank, size):
    for missing in (0, size - 1):
        dist.barrier()
        if rank != missing:
            with raises(DeadlineError, " Timed out ", f"rank {missing} did not arrive", "2 s"):
                come()
        dist.barrier()
        all_come()


@sizes(3, 4)
def case_several_ranks_are_missing(rank, size):
    if rank == 0:
        with raises(DeadlineError, "rank 1 did not arrive", "wait_all_ranks"):
            come()
        names = ", ".join(map(str, range(1, size)))
        with raises(DeadlineError, f"ranks {names} did not arrive"):
            come(wait_all_ranks=True)
    dist.barrier()
    if rank == size - 1:
        names = ", ".join(map(str, range(size - 1)))
        with raises(DeadlineError, f"rank{'s' if size > 2 else ''} {names} did not arrive"):
            come(wait_all_ranks=True)
    dist.barrier()
    all_come()


@sizes(2, 4)
def case_zero_timeout_expires_at_once(rank, size):
    """A time-out of zero is over at once, as with gloo; it does not mean the group's own."""
    if rank == 0:
        with raises(DeadlineError, " Timed out ", "rank 1 did not arrive within 0 s", within=10):
            come(seconds=0)
    dist.barrier()
    all_come()


@sizes(3)
def case_one_rank_gives_up_before_the_last_arrives(rank, size):
    """A rank that has raised can no longer pass, so no rank may."""
    if rank == 2:
        dist.recv(torch.zeros(1), src=0)
        with raises(DeadlineError, " Timed out ", "rank 0 did not arrive within 0.3 s"):
            come(seconds=0.3)
    else:
        with raises(DeadlineError, f"rank 2 did not arrive within {SECONDS:g} s"):
            come(seconds=20 if rank == 0 else SECONDS)
        if rank == 0:
            dist.send(torch.zeros(1), dst=2)
    dist.barrier()
    all_come()


@sizes(3)
def case_one_rank_is_interrupted(rank, size):
    """The others do not wait for it, and it may come again."""
    store = dist.group.WORLD.get_group_store()
    seen = [store.add(f"monitored_barrier/{one}", 0) for one in range(size)]
    dist.barrier()

    def interrupt() -> None:
        deadline = time.monotonic() + 20
        while any(store.add(f"monitored_barrier/{one}", 0) == seen[one] for one in (0, 1)):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    if rank == 0:
        with raises(DeadlineError, "a rank was interrupted"):
            come(seconds=60)
    elif rank == 1:
        threading.Thread(target=interrupt).start()
        with raises(KeyboardInterrupt):
            come(seconds=60)
    dist.barrier()
    all_come()


class _Struck:
    """A store whose user is interrupted right behind the call that signs in."""

    def __init__(self, store: dist.Store) -> None:
        self._store = store

    def __getattr__(self, name):
        return getattr(self._store, name)

    def add(self, key, amount):
        value = self._store.add(key, amount)
        if amount:
            raise KeyboardInterrupt
        return value


@sizes(3)
def case_one_rank_is_interrupted_on_arrival(rank, size):
    group = dist.group.WORLD
    store = group.get_group_store()
    seen = store.add("monitored_barrier/0", 0)
    dist.barrier()
    if rank == 0:
        with raises(DeadlineError, "a rank was interrupted"):
            come(seconds=60)
    elif rank == 1:
        deadline = time.monotonic() + 20
        while store.add("monitored_barrier/0", 0) == seen:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        with raises(KeyboardInterrupt):
            missing_ranks.wait(group.comm, _Struck(store), 0, 60, False)
    dist.barrier()
    all_come()


@sizes(2, 3)
def case_rank_outside_the_group_does_nothing(rank, size):
    part = dist.new_group([0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of a call on a rank outside
        torch_mpi4py.monitored_barrier(part, 20)
    all_come()
