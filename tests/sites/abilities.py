"""What an MPI lets the backend do, tried on two ranks, each part in one line: ``NAME: OUTCOME``.

A program for :mod:`tests.sites.test_mpis`. The last part is the death of rank 1.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist
import torch_mpi4py
from torch_mpi4py import CommunicationError
from torch_mpi4py.faults import deadlines

TIME_OUT = 1.5  # s, of the calls that nobody answers
LONG = timedelta(seconds=60)  # of all others
MEETING = 40  # s for ranks to meet outside MPI
GOES_ON, RESTART = "report, goes on", "report, restart"


def say(name: str, outcome: str) -> None:
    print(f"{name}: {outcome}", flush=True)


def meet(place: str) -> None:
    """Wait for both ranks, outside MPI."""
    store = dist.distributed_c10d._get_default_store()
    store.set(f"{place}/{dist.get_rank()}", "")
    store.wait([f"{place}/{rank}" for rank in (0, 1)], timedelta(seconds=MEETING))


def sums(group: dist.ProcessGroup | None = None) -> None:
    """Raise unless a sum over the group is right."""
    total = torch.full((3,), dist.get_rank() + 1.0)
    dist.all_reduce(total, group=group)
    assert total.tolist() == [3.0] * 3, total


def alone(name: str, call: Callable[[dist.ProcessGroup], object], error: type) -> None:
    """Have rank 0 wait in ``call`` for rank 1, which stays away; then both go on in a new group."""
    group = dist.new_group(timeout=LONG)
    sums(group)
    if dist.get_rank() == 0:
        group.set_timeout(LONG if error is KeyboardInterrupt else timedelta(seconds=TIME_OUT))
        try:
            call(group)
        except error as raised:
            report = str(raised)
            if error is not KeyboardInterrupt:
                assert "What every rank was doing:" in report, report
                assert "rank 0: waiting in " in report, report
        else:
            raise AssertionError(f"{name} did not end in {error}")
    meet(name)
    dist.destroy_process_group(group)
    again = dist.new_group(timeout=LONG)
    sums(again)
    dist.destroy_process_group(again)
    if dist.get_rank() == 0:
        say(name, GOES_ON)


def interrupted(call: Callable[[], object]) -> None:
    """Send this process a SIGINT, as Ctrl-C does, once ``call`` waits."""

    def strike() -> None:
        until = time.monotonic() + MEETING
        while not any(deadlines.under_way()) and time.monotonic() < until:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=strike)
    thread.start()
    try:
        call()
    finally:
        thread.join()


def inside_mpi() -> None:
    """Rank 0 waits in MPI, not in memory that ranks share; ``comm`` is made again if it can be."""
    comm = torch_mpi4py.world()
    comm.timeout = TIME_OUT
    if dist.get_rank() == 0:
        try:
            comm.Sendrecv_replace(np.zeros(3), 1, source=1)
        except CommunicationError as error:
            assert "What every rank was doing:" in str(error), error
        else:
            raise AssertionError("a message has come from nowhere")
    meet("inside MPI")
    outcome = RESTART
    try:
        renewed = torch_mpi4py.renew_world()
        renewed.timeout = TIME_OUT * 10
        if renewed.allreduce(1) == 2:
            outcome = GOES_ON
    except CommunicationError as error:
        say("refused", str(error).partition("\n")[0])
    if dist.get_rank() == 0:
        say("a hang inside MPI", outcome)
    meet("after MPI")


def death() -> None:
    """Rank 1 dies, and rank 0 goes on alone if it can."""
    meet("before the death")
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        dist.all_reduce(torch.ones(3))
    except torch_mpi4py.RankFailedError:
        left = torch_mpi4py.shrink()
        assert (left.dead, left.world_size) == ([1], 1), left
        say("a death", "the others go on")


def main() -> None:
    dist.init_process_group("mpi4py", init_method="mpi://", timeout=LONG)
    if dist.get_rank() == 0:
        say("library", torch_mpi4py.library())
    alone(
        "a hang in a collective",
        lambda group: dist.all_reduce(torch.ones(3), group=group),
        CommunicationError,
    )
    alone(
        "a hang in a message",
        lambda group: dist.recv(torch.ones(3), src=1, group=group),
        CommunicationError,
    )
    alone(
        "Ctrl-C",
        lambda group: interrupted(lambda: dist.all_reduce(torch.ones(3), group=group)),
        KeyboardInterrupt,
    )
    inside_mpi()
    death()


if __name__ == "__main__":
    main()
