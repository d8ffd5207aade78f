"""Runs a program on this backend and then on gloo, in the same processes, and compares."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

# From three ranks on gloo adds in another order. Programs use float64 where they can.
TOLERANCE = 1e-10
TIMEOUT = timedelta(seconds=60)


def shared_folder() -> str:
    """Return a folder that all ranks know; rank 0 makes it."""
    name = [tempfile.mkdtemp(prefix="beside-gloo") if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(name, src=0)
    return name[0]


def shared_store(rank: int, size: int) -> dist.TCPStore:
    """Return a store that rank 0 serves."""
    port = [0]
    if rank == 0:
        store = dist.TCPStore("127.0.0.1", 0, size, is_master=True, wait_for_workers=False)
        port = [store.port]
    dist.broadcast_object_list(port, src=0)
    return store if rank == 0 else dist.TCPStore("127.0.0.1", port[0], size)


def same_as_gloo(
    program: Callable[[Path], Any], rank: int, size: int, tolerance: float = TOLERANCE
) -> Any:
    """Run ``program`` with each backend's default group, require the same results, return them.

    The results must be equal bit for bit on up to two ranks, since a sum of two numbers does not
    depend on their order; on more they may differ by ``tolerance``, relative and absolute.

    Args:
        program: gets a folder that all ranks share, empty at the start of each backend's run, and
            returns what :func:`torch.testing.assert_close` compares: tensors, numbers, sequences
            and dictionaries of them.
        tolerance: used on more than two ranks.
    """
    dist.init_process_group("mpi4py", init_method="mpi://", timeout=TIMEOUT)
    folder = Path(shared_folder())
    try:
        # No file: its destructor waits for minutes where the folder has been removed.
        store = shared_store(rank, size)
        found = program(make_folder(folder / "mpi4py"))
        dist.destroy_process_group()

        options = {"rank": rank, "world_size": size, "timeout": TIMEOUT}
        dist.init_process_group("gloo", store=store, **options)
        expected = program(make_folder(folder / "gloo"))
        dist.barrier()
        dist.destroy_process_group()
    finally:
        if rank == 0:
            shutil.rmtree(folder, ignore_errors=True)  # after a failure others may write there
    allowed = 0.0 if size <= 2 else tolerance
    torch.testing.assert_close(found, expected, rtol=allowed, atol=allowed)
    return found


def make_folder(path: Path) -> Path:
    """Make a folder that other ranks may be making too."""
    path.mkdir(exist_ok=True)
    return path


def values_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return copies of all parameters and buffers; sharded ones are put together."""
    state = {}
    for name, value in model.state_dict().items():
        whole = value.full_tensor() if hasattr(value, "full_tensor") else value
        state[name] = whole.detach().clone()
    return state
