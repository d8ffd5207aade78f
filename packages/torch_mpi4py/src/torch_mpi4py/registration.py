"""Makes backend ``"mpi4py"`` and rendezvous ``mpi://`` known to torch, without starting MPI.

PyTorch calls :func:`autoload` itself at the end of ``import torch``, since the package names it
as an entry point of the group ``torch.backends``. Any function that takes a backend's name then
works unchanged. The implementation is imported when the first group is made.

Every program that imports torch pays for this module, used or not: it imports nothing that torch
has not imported already.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import sys
import warnings
from collections.abc import Iterator
from datetime import timedelta
from importlib.metadata import entry_points
from typing import Any

_AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"
_registered = False


def autoload() -> None:
    """Register inside ``import torch``, which must not fail because of this package."""
    try:
        register()
    except Exception as error:
        with contextlib.suppress(Warning):  # where warnings are errors
            warnings.warn(
                f"torch_mpi4py could not register itself with this PyTorch ({error!r}); programs "
                "that do not use it are not affected",
                stacklevel=2,
            )


def register() -> None:
    """Register backend and rendezvous; a second call does nothing."""
    global _registered
    from torch import distributed as dist

    if _registered or not dist.is_available():
        return
    dist.Backend.register_backend(
        "mpi4py", _create_group, extended_api=True, devices=["cpu", "cuda"]
    )
    dist.register_rendezvous_handler("mpi", _rendezvous)
    c10d: Any = sys.modules["torch.distributed.distributed_c10d"]
    # PyTorch 2.15 attaches its flight recorder to all groups but those of these backends. It needs
    # a group made in C++, and mpi4py has its own record.
    self_recording: set[str] = getattr(c10d, "_FR_SELF_RECORDING_BACKENDS", set())
    self_recording.add("mpi4py")
    _leave_out_torchcomms(c10d)
    _set_timeouts_of_ours(c10d)
    _registered = True


def _leave_out_torchcomms(c10d: Any) -> None:
    """Advise the user if PyTorch asks the package torchcomms for every backend.

    It does with a variable set, until 2.13; later versions ask for torchcomms' own backends only.
    """
    new_comm = getattr(c10d, "new_comm", None)
    if new_comm is None or hasattr(c10d, "_torchcomms_handles_backend"):
        return

    def new_comm_unless_ours(backend: str, *arguments: Any, **options: Any) -> Any:
        if backend == "mpi4py":
            raise RuntimeError(
                "TORCH_DISTRIBUTED_USE_TORCHCOMMS=1 (or torch.distributed.config.use_torchcomms) "
                "makes this PyTorch ask the package torchcomms for every backend, and torchcomms "
                "does not have mpi4py: unset the variable, or update PyTorch to 2.14"
            )
        return new_comm(backend, *arguments, **options)

    c10d.new_comm = new_comm_unless_ours


def _set_timeouts_of_ours(c10d: Any) -> None:
    """Have PyTorch's function for a group's timeout accept more than gloo's and NCCL's."""
    set_timeout = c10d._set_pg_timeout

    @functools.wraps(set_timeout)
    def set_timeout_of_any(timeout: timedelta, group: Any = None) -> None:
        chosen = c10d._get_default_group() if group is None else group
        if getattr(type(chosen), "backend", "") == "mpi4py":
            chosen.set_timeout(timeout)
        else:
            set_timeout(timeout, group)

    c10d._set_pg_timeout = set_timeout_of_any


@atexit.register
def _leave() -> None:
    """Leave MPI at the end of this process, if it is in MPI by then.

    What was given to ``atexit`` first is called last: so all functions that a program gives to it
    after ``import torch`` may still communicate, even if MPI starts later.
    """
    at_exit: Any = sys.modules.get("torch_mpi4py.exits.at_exit")  # imported when MPI starts
    if at_exit is not None:
        at_exit.leave()


def ensure_registered() -> None:
    """Register now, unless torch will do so when it is imported."""
    if "torch" in sys.modules:
        autoload()
    elif os.environ.get(_AUTOLOAD, "1") != "1" or not _is_entry_point():
        import torch  # noqa: F401

        register()


def _is_entry_point() -> bool:
    """Whether this package is installed, rather than merely found on PYTHONPATH."""
    return bool(entry_points(group="torch.backends", name="torch_mpi4py"))


def _create_group(options: Any, backend_options: Any) -> Any:
    from .api import create_group

    return create_group(options, backend_options)


def _rendezvous(url: str, *arguments: Any, **options: Any) -> Iterator[tuple]:
    from .api import rendezvous

    return rendezvous(url, *arguments, **options)
