"""Which GPU a rank uses, and what can carry its tensors: NCCL, MPI itself, or host copies.

The functions here take plain data. Only :func:`takes_cuda` starts MPI, so a program of torchrun may
use the others.
"""

from __future__ import annotations

import ctypes
import functools
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

STAGE = "TORCH_MPI4PY_STAGE"
"""If 1, every CUDA tensor is copied to the host, even where MPI does not need that."""

_MPI_LIBRARIES = ("libmpi.so", "libmpich.so", "libmpi_cray", "libmpifort.so")


def local_rank(rank: int, hosts: Sequence[str]) -> int:
    """Return a rank's number among the ranks of its host, given the host of every rank."""
    return hosts[:rank].count(hosts[rank])


def device_name(local_rank: int, gpus: int) -> str:
    """Return the device of a rank: a GPU, shared in turn if there are too few, or ``cpu``.

    Args:
        local_rank: its number among the ranks of its host.
        gpus: how many GPUs it can see.
    """
    return f"cuda:{local_rank % gpus}" if gpus else "cpu"


def identity(device: str) -> str:
    """Return a text that two ranks share if, and only if, they share a GPU; empty for a CPU.

    It is host and bus address, as NCCL up to 2.29 compares them: numbers tell nothing where each
    rank is shown its own GPU only, and parts of one GPU (MIG) have several numbers.
    """
    import torch

    if not device.startswith("cuda"):
        return ""
    properties = torch.cuda.get_device_properties(device)
    known = [getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
    where = properties.uuid if None in known else ":".join(map(str, known))
    return f"{socket.gethostname()} {where}"


def own_gpu_each(identities: Sequence[str]) -> bool:
    """Return whether each rank has a GPU for itself, as NCCL demands by default."""
    return all(identities) and len(set(identities)) == len(identities)


def carriers(own_each: bool, nccl: bool, takes: bool) -> str:
    """Return how GPU tensors can be carried, in words for the table of ranks.

    Args:
        own_each: as :func:`own_gpu_each` says.
        nccl: whether PyTorch has NCCL.
        takes: as :func:`takes_cuda` says.
    """
    by_mpi = "MPI, directly" if takes else "MPI, staged"
    return f"{by_mpi}; or NCCL" if own_each and nccl else by_mpi


# ---- what MPI says ---------------------------------------------------------------------------


@functools.cache
def takes_cuda() -> bool:
    """Return whether MPI reads and writes the memory of GPUs itself (CUDA-aware), by its own word.

    It starts MPI.
    """
    from .runtime import MPI

    info = MPI.COMM_WORLD.Get_info()
    try:
        kinds = info.Get("mpi_memory_alloc_kinds") or ""
    finally:
        info.Free()
    return says_it_takes_cuda(os.environ, kinds, query_of_mpi())


def says_it_takes_cuda(
    environment: Mapping[str, str], kinds: str, query: Callable[[], int] | None
) -> bool:
    """Return whether MPI is CUDA-aware according to its answers.

    Args:
        environment: where :data:`STAGE` may switch it off.
        kinds: the value of ``mpi_memory_alloc_kinds``, empty if it has none.
        query: the library's ``MPIX_Query_cuda_support``, None if it has none.

    Source: Message Passing Interface Forum, *MPI: A Message-Passing Interface Standard*, version
    4.1, 2023, section 11.4.3, for the kinds; Open MPI's and MPICH's manuals for the query.
    """
    if environment.get(STAGE, "0") not in ("", "0"):
        return False
    if any(kind.strip().startswith("cuda") for kind in kinds.split(",")):
        return True
    return query is not None and query() == 1


def query_of_mpi() -> Callable[[], int] | None:
    """Return the function by which this process's MPI reports CUDA support; None without one."""
    library = loaded_library(_MPI_LIBRARIES)
    return getattr(library, "MPIX_Query_cuda_support", None)


def loaded_library(names: tuple[str, ...]) -> ctypes.CDLL | None:
    """Return this process's library whose file name begins with one of these, or None."""
    maps = Path("/proc/self/maps")
    for line in maps.read_text().splitlines() if maps.exists() else ():
        _, _, path = line.partition("/")  # it may hold spaces
        if os.path.basename(path).startswith(names) and os.path.isfile(f"/{path}"):
            return ctypes.CDLL(f"/{path}")
    return None
