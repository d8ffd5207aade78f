"""Functions that the notebook calls on the ranks: their names, losses, and renewal.

They are sent by name. They import torch and MPI themselves, because the notebook imports this
module.
"""

from __future__ import annotations

import gc
import os
import re
import socket
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from types import ModuleType
from typing import TYPE_CHECKING, Any

from IPython import get_ipython
from IPython.core.error import StdinNotImplementedError

if TYPE_CHECKING:
    import torch

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_NO_INPUT = (
    "a rank has no keyboard. Call input() in a cell without %%px, and send what was typed to the "
    'ranks: cluster.view["answer"] = input()'
)

# ---- who it is ------------------------------------------------------------------------------


def namespace(seconds: float) -> dict[str, Any]:
    """The names every rank offers to cells.

    Args:
        seconds: how long to wait for the other ranks, which may still have no core.
    """
    import numpy as np
    import torch
    import torch.distributed as dist
    import torch_mpi4py as mpi

    comm = mpi.renew_world(seconds)
    return {
        "rank": comm.Get_rank(),
        "world_size": comm.Get_size(),
        "comm": comm,
        "device": _device(comm),
        "torch": torch,
        "dist": dist,
        "np": np,
    }


def _device(comm: Any) -> torch.device:
    """Where this rank computes; all ranks ask together, those without a GPU too."""
    import torch
    from torch_mpi4py.core import gpus

    local_rank = gpus.local_rank(comm.rank, comm.allgather(socket.gethostname()))
    return torch.device(gpus.device_name(local_rank, torch.cuda.device_count()))


def describe(device: torch.device) -> dict[str, Any]:
    """The fields of this rank's :class:`~ipyranks.rank_table.Rank`, except its numbers."""
    import torch
    import torch.distributed as dist
    import torch_mpi4py as mpi
    from torch_mpi4py.core import gpus

    on_gpu = device.type == "cuda"
    return {
        "device": str(device),
        "gpu": gpus.identity(str(device)),
        "takes_cuda": on_gpu and gpus.takes_cuda(),
        "nccl": on_gpu and dist.is_nccl_available(),
        "threads": torch.get_num_threads(),
        "mpi": mpi.library(),
        "survives_deaths": mpi.has_ulfm(),
        "pid": os.getpid(),
        "host": socket.gethostname(),
    }


def users_names() -> list[str]:
    """The variables the user has made on this rank, sorted."""
    shell = get_ipython()
    return sorted(
        name
        for name, value in shell.user_ns.items()
        if not (
            name.startswith("_") or name in shell.user_ns_hidden or isinstance(value, ModuleType)
        )
    )


def complete(token: str) -> list[str]:
    """The completions of ``token`` on a rank."""
    completer = get_ipython().Completer
    if "." in token:
        return list(dict.fromkeys(completer.attr_matches(token)))
    return list(dict.fromkeys(completer.global_matches(token)))


def print_help(shell: Any) -> None:
    """Have ``comm.recv?`` print what it finds: a rank has no pager to show it in."""

    def show(self: Any, found: Any, *_: Any, **__: Any) -> None:
        text = found["text/plain"] if isinstance(found, dict) else found
        print(_COLOURS.sub("", text))

    shell.set_hook("show_in_pager", show)


def refuse_input(kernel: Any) -> None:
    """Have ``input()`` and ``getpass()`` say where to call them: no prompt asks for a rank."""

    def refuse(*_: Any, **__: Any) -> None:
        raise StdinNotImplementedError(_NO_INPUT)

    kernel.raw_input = kernel.getpass = refuse


def make_label(number: int, run: str) -> str:
    """The label with which a notebook sends a cell to the ranks: its number and its run."""
    return f"{number}:{run}"


def read_label(label: object) -> tuple[int | None, str]:
    """The number and run in a label of :func:`make_label`; None and "" for any other label."""
    number, _, run = str(label).partition(":")
    return (int(number), run) if number.isdigit() else (None, "")


def run_as_cell(number: int, run: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Return ``function(*arguments)``; meanwhile this rank shows that it runs a cell."""
    from torch_mpi4py.log import heartbeat

    outcome = "KeyboardInterrupt: "
    heartbeat.begin_cell(number, run)
    try:
        answer = function(*arguments)
        outcome = ""
        return answer
    except BaseException as error:  # sys.exit() and interrupts too
        outcome = f"{type(error).__name__}: {error}"
        raise
    finally:
        heartbeat.end_cell(outcome, lost_flags())


# ---- what it has lost ------------------------------------------------------------------------

WORLD_LOST = 1
DEFAULT_GROUP_LOST = 2
SUB_GROUP_LOST = 4
NEEDS_RESTART = 8  # a thread stays in MPI for good, where the MPI cannot free it


@dataclass(frozen=True)
class Condition:
    """A rank's report on its communication.

    Attributes:
        flags: as the constants of this module say.
        lost: names of sub-groups and communicators that no longer work.
        stale: names of other things that use the world or the default group.
    """

    flags: int
    lost: tuple[str, ...]
    stale: tuple[str, ...]


# Sub-groups and communicators whose loss was reported, by id; kept, so that no id is reused.
_told: dict[int, object] = {}


def lost_flags() -> int:
    """The losses, as flags; takes a few microseconds, so it runs after every cell."""
    import torch.distributed as dist
    from torch_mpi4py import world
    from torch_mpi4py.core import base_comm
    from torch_mpi4py.faults import deadlines
    from torch_mpi4py.group import process_group
    from torch_mpi4py.group.group_creation import is_out_of_step

    if not deadlines.has_ulfm() and deadlines.has_abandoned_a_thread():
        return NEEDS_RESTART
    found = 0
    if world().has_failed or base_comm.half_made:  # then the ranks are out of step
        found |= WORLD_LOST
    if dist.is_initialized() and is_out_of_step():
        found |= DEFAULT_GROUP_LOST
    default = dist.group.WORLD if dist.is_initialized() else None
    for group in list(process_group.live_groups):
        if id(group) not in _told and _has_failed(group):
            found |= DEFAULT_GROUP_LOST if group is default else SUB_GROUP_LOST
    return found


def _has_failed(group: Any) -> bool:
    """Whether a process group or communicator is lost."""
    from torch_mpi4py import GuardedComm
    from torch_mpi4py.faults import deaths

    if isinstance(group, GuardedComm):
        return group.has_failed
    return getattr(group, "failure", None) is not None or deaths.is_revoked(group.comm)


def _is_news(group: Any) -> bool:
    """Whether it is lost, and this has not been reported."""
    if id(group) in _told or not _has_failed(group):
        return False
    _told[id(group)] = group
    return True


def condition() -> Condition:
    """The losses, with the user's names for them."""
    import torch.distributed as dist
    from torch_mpi4py import GuardedComm, world
    from torch_mpi4py.group import process_group

    names = get_ipython().user_ns
    default = dist.group.WORLD if dist.is_initialized() else None
    lost, stale = [], []
    for name, value in list(names.items()):
        if name.startswith("_"):
            continue
        for item in value[:64] if isinstance(value, list | tuple) else [value]:
            if isinstance(item, GuardedComm):
                if item is not world() and name != "comm" and _is_news(item):
                    lost.append(name)
                continue
            used = item if isinstance(item, dist.ProcessGroup) else _group_of(item)
            ours = used in process_group.live_groups
            # PyTorch's own, like gloo's, end with the default group, too.
            if id(used) in _told or not (ours or used in dist.distributed_c10d._world.pg_map):
                continue  # no group, or lost before
            if ours and used is not default and _is_news(used):
                lost.append(name)
            else:
                stale.append(name)
    names_of_lost, names_of_stale = tuple(dict.fromkeys(lost)), tuple(dict.fromkeys(stale))
    return Condition(lost_flags(), names_of_lost, names_of_stale)


def note_told(names: list[str]) -> None:
    """Remember that the user knows of these losses, even if they only show later."""
    import torch.distributed as dist

    default = dist.group.WORLD if dist.is_initialized() else None
    for name in names:
        value = get_ipython().user_ns.get(name)
        for item in value[:64] if isinstance(value, list | tuple) else [value]:
            told = _group_of(item) or item  # of DistributedDataParallel the group inside
            if told is not default:
                _told[id(told)] = told


def _group_of(value: object) -> Any:
    """The process group that e.g. DistributedDataParallel holds."""
    import torch

    if not isinstance(value, torch.nn.Module):
        return None
    return getattr(value, "process_group", None)


# ---- a fresh start ---------------------------------------------------------------------------


def renew(timeout_s: float | None) -> None:
    """Make a new ``comm`` and default process group; all ranks together.

    If any rank has a default process group, all get one, also those that have destroyed theirs.

    Args:
        timeout_s: deadline of every operation from now on; None keeps what they had.
    """
    import torch.distributed as dist
    import torch_mpi4py as mpi
    from torch_mpi4py.group import process_group
    from torch_mpi4py.log import heartbeat

    before = mpi.world()
    of_group = dist.group.WORLD.timeout.total_seconds() if dist.is_initialized() else 0.0
    for lost in list(process_group.live_groups):
        if lost.is_busy:  # with what other ranks never call: to destroy it would wait for them
            lost.abort()
    if dist.is_initialized():
        dist.destroy_process_group()  # and with it every sub-group
        for key in [key for key, item in _told.items() if isinstance(item, dist.ProcessGroup)]:
            del _told[key]
        gc.collect()  # a failed group is held by its errors' tracebacks, and it holds sockets
    comm = mpi.renew_world()
    comm.timeout = before.timeout if timeout_s is None else timeout_s
    get_ipython().user_ns["comm"] = comm
    heartbeat.renewed()
    of_group = comm.allreduce(of_group, op=mpi.MPI.MAX)
    if of_group:
        init_process_group(of_group if timeout_s is None else timeout_s)


def init_process_group(timeout_s: float) -> None:
    """Initialise the default process group over MPI."""
    import torch.distributed as dist

    if not dist.is_initialized():
        dist.init_process_group(
            "mpi4py", init_method="mpi://", timeout=timedelta(seconds=timeout_s)
        )


def shrink(timeout_s: float) -> None:
    """Continue with the ranks that are left; each of them calls this."""
    import torch_mpi4py as mpi

    shrunk = mpi.shrink(timeout_s)
    # The device stays: that is where this rank's tensors are.
    get_ipython().user_ns.update(rank=shrunk.rank, world_size=shrunk.world_size, comm=mpi.world())
