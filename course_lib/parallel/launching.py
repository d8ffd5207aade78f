"""Makes the process group for a program that runs under mpiexec, torchrun, or by itself.

The environment tells which launcher it was, and that determines backend and device:

========= ============ =======================================================
launcher  backend      device
========= ============ =======================================================
mpiexec   mpi4py       a GPU if there are any (ranks may share one), else the CPU
torchrun  nccl         a GPU of its own, if there is one for each local rank
torchrun  gloo         the CPU otherwise
(none)    gloo         the CPU, or the first GPU; one rank
========= ============ =======================================================

Only under mpiexec is ``torch_mpi4py`` imported: torchrun's ranks are no MPI job.
"""

from __future__ import annotations

import atexit
import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

# Now, while there is no group: its functions keep the default group of the moment of its import
# as their default argument, for ever (_end_gloo_at_exit). Making an optimizer would import it.
import torch.distributed.nn.functional

_MPIEXEC = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")  # Open MPI, any PMIx, MPICH and Intel


@dataclass(frozen=True)
class Place:
    """Where this process stands among the ranks.

    Attributes:
        rank: 0 to ``world_size`` - 1.
        world_size: number of ranks.
        local_rank: number among the ranks on this machine.
        device: where this rank computes.
        backend: name of the default process group's backend.
        launcher: "mpiexec", "torchrun" or "none".
    """

    rank: int
    world_size: int
    local_rank: int
    device: torch.device
    backend: str
    launcher: str


def launcher() -> str:
    """Return what started this process: "torchrun", "mpiexec", or "none"."""
    if {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys():
        return "torchrun"
    if any(name in os.environ for name in _MPIEXEC):
        return "mpiexec"
    return "none"


@contextlib.contextmanager
def process_group(seconds: float = 60.0) -> Iterator[Place]:
    """Make the default process group for a ``with`` block, and destroy it after.

    One compute thread per rank, unless ``OMP_NUM_THREADS`` says otherwise. After an exception
    the group is left as it is, so that this rank waits for nobody: under mpiexec the other ranks
    are freed, torchrun ends them.

    Args:
        seconds: how long a rank waits for another one in any operation.
    """
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)
    timeout = timedelta(seconds=seconds)
    by = launcher()
    make = {"mpiexec": _by_mpiexec, "torchrun": _by_torchrun, "none": _alone}[by]
    local_rank, device = make(timeout)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    rank, world_size = dist.get_rank(), dist.get_world_size()
    yield Place(rank, world_size, local_rank, device, dist.get_backend(), by)
    dist.destroy_process_group()


def _by_mpiexec(timeout: timedelta) -> tuple[int, torch.device]:
    from torch_mpi4py import MPI

    dist.init_process_group("mpi4py", init_method="mpi://", timeout=timeout)
    neighbours = MPI.COMM_WORLD.Split_type(MPI.COMM_TYPE_SHARED)
    local_rank = neighbours.Get_rank()
    neighbours.Free()
    gpus = torch.cuda.device_count()
    return local_rank, torch.device("cuda", local_rank % gpus) if gpus else torch.device("cpu")


def _by_torchrun(timeout: timedelta) -> tuple[int, torch.device]:
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    enough = torch.cuda.device_count() >= int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if enough and dist.is_nccl_available():
        device = torch.device("cuda", local_rank)
        dist.init_process_group("nccl", timeout=timeout, device_id=device, **_fresh_store(timeout))
        return local_rank, device
    dist.init_process_group("gloo", timeout=timeout, **_fresh_store(timeout))
    _end_gloo_at_exit()
    return local_rank, torch.device("cpu")


def _fresh_store(timeout: timedelta) -> dict[str, Any]:
    """How ranks that torchrun has started again find each other, and not those who died.

    The agent's store still has the addresses of the life before, and PyTorch 2.13 looks them up
    under the same names (pytorch issue 135712). On one machine all ranks agree on the number of
    their life; on several set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 where torchrun is started.
    """
    life = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    if life == "0" or os.environ.get("LOCAL_WORLD_SIZE") != os.environ["WORLD_SIZE"]:
        return {}
    store, rank, world_size = next(dist.rendezvous("env://", timeout=timeout))
    return {
        "store": dist.PrefixStore(f"life {life}", store),
        "rank": rank,
        "world_size": world_size,
    }


def _alone(timeout: timedelta) -> tuple[int, torch.device]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1, timeout=timeout)
    _end_gloo_at_exit()
    return 0, torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


def _end_gloo_at_exit() -> None:
    """Have gloo's threads joined where it is safe, when the program has ended and Python has not.

    Whoever lets the last reference to a gloo group go joins its threads, and such a thread needs
    the interpreter's lock (the GIL) to let go of the tensors of its last operation. Too early,
    when DDP's reducer is deleted, the caller holds the lock and both wait for ever; too late, when
    Python has begun to end, a thread that asks for the lock aborts the process (PyTorch 2.13).
    The backend's own Python object gives the lock away before it joins, so it goes last.
    """
    assert dist.group.WORLD is not None
    last = [dist.group.WORLD._get_backend(torch.device("cpu"))]
    atexit.register(last.clear)


def on_terminal() -> bool:
    """Return whether a person sees what rank 0 writes: its launcher's output is a terminal.

    Under mpiexec a rank's own standard output tells nothing: Open MPI puts a terminal of its own
    there, other MPIs a pipe. So that of mpiexec itself is looked at, where the system shows it.
    """
    if launcher() != "mpiexec":
        return os.isatty(1)
    try:
        path = Path(f"/proc/{os.getppid()}/fd/1")
        return str(path.readlink()).startswith(("/dev/pts/", "/dev/tty", "/dev/console"))
    except OSError:
        return False
