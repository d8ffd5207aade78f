"""The part of a printed program that lets one rank fail, and the others go on.

It follows the prelude in the same script.
"""

import faulthandler
import os
import signal
import sys
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist
import torch_mpi4py
from torch_mpi4py.log.events import log

SECONDS = 0.0  # the time-out of the groups
TIMEOUT = timedelta(seconds=SECONDS)
PATIENCE = 45.0  # seconds that ranks have for coming to a new group
HUNG_SECONDS = 60.0  # after which a rank that has not ended shows where it is
WAITED_SECONDS = 0.2  # until a rank that is to be interrupted surely waits for others

interrupting = []  # the thread that does it
over = threading.Event()  # the program, before a wait could be interrupted


class MissingError(Exception):
    """A rank leaves out the rest of the program."""


def start(seconds=None):
    """Make the default group."""
    seconds = SECONDS if seconds is None else seconds
    dist.init_process_group("mpi4py", init_method="mpi://", timeout=timedelta(seconds=seconds))


def see(key, *tensors):
    """Values are compared by programs without a failure."""


def befall(kind, mine, rank):
    """Do to ``rank`` what happens.

    It is interrupted while it waits for others, so these go on when that is done: one that is
    interrupted elsewhere leaves them to wait until it destroys its groups, as one does that is
    missing.
    """
    if mine != rank:
        if kind == "interrupted":
            dist.distributed_c10d._get_default_store().wait(["interrupted"])
    elif kind == "late":
        time.sleep(SECONDS + 2)
    elif kind == "missing":
        raise MissingError
    elif kind == "raises":
        raise ValueError("on purpose")
    elif kind == "exits":
        sys.exit(3)
    elif kind == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif kind == "interrupted":
        interrupting.append(threading.Thread(target=interrupt_a_wait))
        interrupting[0].start()


def interrupt_a_wait():
    """Interrupt this rank once it waits for others."""
    while not over.wait(0.02):
        now = time.perf_counter()
        if any(
            event.waiting and now - event.waited_from > WAITED_SECONDS
            for event in log.reader.open_operations()
        ):
            os.kill(os.getpid(), signal.SIGINT)
            break
    dist.distributed_c10d._get_default_store().set("interrupted", "")


def works(size):
    """Raise unless a sum over all ranks is right."""
    assert dist.get_world_size() == size
    value = torch.ones(2)
    dist.all_reduce(value)
    assert value.tolist() == [size] * 2, value


def main(program, kind, rank):
    """Run a program in which something happens to a rank, and go on with those who can."""
    start(PATIENCE)
    faulthandler.dump_traceback_later(HUNG_SECONDS, exit=True)
    mine, size = dist.get_rank(), dist.get_world_size()
    begin, outcome = time.monotonic(), "ended"
    try:
        if kind == "starts late":
            dist.destroy_process_group()
            if mine == rank:
                time.sleep(SECONDS + 2)
            start(SECONDS)
        dist.group.WORLD.set_timeout(TIMEOUT)
        program(mine)
    except (dist.DistError, MissingError, KeyboardInterrupt) as error:
        outcome = f"{type(error).__name__}: {str(error).splitlines()[:1]}"
    over.set()
    for thread in interrupting:
        thread.join()
    print(f"rank {mine}: {time.monotonic() - begin:.1f} s, {outcome}", flush=True)
    if kind == "killed":
        left = torch_mpi4py.shrink(PATIENCE)
        assert left.dead == [rank], left
        works(size - 1)
    elif kind in ("late", "missing", "interrupted"):
        if dist.is_initialized():
            dist.destroy_process_group()
        start(PATIENCE)
        works(size)
    if dist.is_initialized():
        dist.destroy_process_group()
    print(f"rank {mine} is well", flush=True)
