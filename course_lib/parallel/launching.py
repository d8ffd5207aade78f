"""Makes the process group for a program that runs under mpiexec, torchrun, or by itself.

The environment shows which launcher was used, which determines backend and device:

========= ============ =======================================================
launcher  backend      device
========= ============ =======================================================
mpiexec   nccl         a GPU, if every rank on every host has one of its own
mpiexec   mpi4py       otherwise: a GPU if there are any (ranks may share one), else the CPU
torchrun  nccl         a GPU, if every rank on every host has one of its own
torchrun  gloo         otherwise: the CPU
(none)    gloo         the CPU, or the first GPU; one rank
========= ============ =======================================================

``COURSE_BACKEND=mpi4py`` (or ``gloo``, under torchrun) excludes NCCL. MPI is started only under
mpiexec: torchrun's ranks are not an MPI job.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

# Import it while there is no group: its functions keep the default group that exists at their
# import as a default argument (_end_gloo_at_exit). Making an optimizer would import it.
import torch.distributed.nn.functional
from torch_mpi4py.core import gpus

_MPIEXEC = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")  # Open MPI, any PMIx, MPICH and Intel


@dataclass(frozen=True)
class Place:
    """The place of this process among the ranks.

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
def process_group(seconds: float = 60.0, any_source: bool = False) -> Iterator[Place]:
    """Make the default process group for a ``with`` block, and destroy it after.

    One compute thread per rank, unless ``OMP_NUM_THREADS`` says otherwise. After an exception
    the group is left as it is, so this rank does not wait for the others. Under mpiexec they are
    freed, except from NCCL, where they wait until their time is over; torchrun ends them.

    Args:
        seconds: how long a rank waits for another one in any operation.
        any_source: whether some rank receives from any source, which NCCL cannot do.
    """
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)
    timeout = timedelta(seconds=seconds)
    by = launcher()
    make = {"mpiexec": _by_mpiexec, "torchrun": _by_torchrun, "none": _alone}[by]
    local_rank, device = make(timeout, any_source)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    rank, world_size = dist.get_rank(), dist.get_world_size()
    yield Place(rank, world_size, local_rank, device, dist.get_backend(), by)
    dist.destroy_process_group()


def chooses_nccl(identities: Sequence[str], nccl: bool, wanted: str = "") -> bool:
    """Return whether the ranks' group is to be NCCL's: the same on all ranks.

    Args:
        identities: of every rank, the GPU it uses, from ``torch_mpi4py.core.gpus.identity``.
        nccl: whether PyTorch has NCCL.
        wanted: the value of ``COURSE_BACKEND``, empty if it is not set.
    """
    return nccl and wanted in ("", "nccl") and gpus.own_gpu_each(identities)


def _decide(identities: Sequence[str], any_source: bool) -> bool:
    nccl = dist.is_nccl_available() and not any_source
    return chooses_nccl(identities, nccl, os.environ.get("COURSE_BACKEND", ""))


def _by_mpiexec(timeout: timedelta, any_source: bool) -> tuple[int, torch.device]:
    from torch_mpi4py import world

    comm = world()
    comm.timeout = timeout.total_seconds()
    local_rank = gpus.local_rank(comm.rank, comm.allgather(socket.gethostname()))
    device = torch.device(gpus.device_name(local_rank, torch.cuda.device_count()))
    if _decide(comm.allgather(gpus.identity(str(device))), any_source):
        dist.init_process_group("nccl", init_method="mpi://", timeout=timeout, device_id=device)
    else:
        dist.init_process_group("mpi4py", init_method="mpi://", timeout=timeout)
    return local_rank, device


def _by_torchrun(timeout: timedelta, any_source: bool) -> tuple[int, torch.device]:
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    meeting = _meeting(timeout)
    device = torch.device(gpus.device_name(local_rank, torch.cuda.device_count()))
    if _decide(_told_to_all(meeting, gpus.identity(str(device))), any_source):
        dist.init_process_group("nccl", timeout=timeout, device_id=device, **meeting)
        return local_rank, device
    dist.init_process_group("gloo", timeout=timeout, **meeting)
    _end_gloo_at_exit()
    return local_rank, torch.device("cpu")


def _told_to_all(meeting: dict[str, Any], value: str) -> list[str]:
    """Return every rank's value, in order of ranks, exchanged through the store."""
    store, ranks = meeting["store"], range(meeting["world_size"])
    store.set(f"GPU of rank {meeting['rank']}", value)
    return [text.decode() for text in store.multi_get([f"GPU of rank {r}" for r in ranks])]


def _meeting(timeout: timedelta) -> dict[str, Any]:
    """How torchrun's ranks find each other: their store, and this one's number among how many.

    The agent's store still has the addresses of ranks that died before a restart, and PyTorch 2.13
    looks them up under the same names (pytorch issue 135712). On one machine all ranks agree on the
    number of restarts, and use different names after each; on several, set
    TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 where torchrun is started.
    """
    store, rank, world_size = next(dist.rendezvous("env://", timeout=timeout))
    life = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    if life == "0" or os.environ.get("LOCAL_WORLD_SIZE") != os.environ["WORLD_SIZE"]:
        life = "0"  # on several machines no rank knows it for all
    return {
        "store": dist.PrefixStore(f"life {life}", store),
        "rank": rank,
        "world_size": world_size,
    }


def _alone(timeout: timedelta, any_source: bool) -> tuple[int, torch.device]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1, timeout=timeout)
    _end_gloo_at_exit()
    return 0, torch.device(gpus.device_name(0, torch.cuda.device_count()))


def _end_gloo_at_exit() -> None:
    """Have gloo's threads joined when it is safe: the program has ended, and Python has not.

    Dropping the last reference to a gloo group joins its threads, and such a thread needs the
    interpreter's lock (the GIL) to release the tensors of its last operation. Too early, when DDP's
    reducer is deleted, the caller holds the lock and both wait indefinitely. Too late, when Python
    has begun to end, a thread that asks for the lock aborts the process (PyTorch 2.13). The
    backend's own Python object releases the lock before it joins, so it is dropped last. Either
    failure happened once in hundreds of runs, and in every third if the threads were ``SCHED_IDLE``
    and both cores busy.
    """
    assert dist.group.WORLD is not None
    last = [dist.group.WORLD._get_backend(torch.device("cpu"))]
    atexit.register(last.clear)


def on_terminal() -> bool:
    """Return whether a person sees what rank 0 writes: its launcher's output is a terminal.

    Under mpiexec a rank's own standard output reveals nothing: Open MPI puts a terminal of its own
    there, other MPIs a pipe. So that of mpiexec itself is checked, if the system shows it.
    """
    if launcher() != "mpiexec":
        return os.isatty(1)
    try:
        path = Path(f"/proc/{os.getppid()}/fd/1")
        return str(path.readlink()).startswith(("/dev/pts/", "/dev/tty", "/dev/console"))
    except OSError:
        return False
