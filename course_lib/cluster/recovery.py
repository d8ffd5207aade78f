"""After a failed cell the ranks get new communication, and keep their variables.

The functions of the first part run on a rank, :func:`recover` in the notebook.
"""

from __future__ import annotations

import gc
from dataclasses import dataclass

from . import pulse

__all__ = ["Condition", "condition", "flags", "recover", "renew"]

WORLD_LOST = 1
DEFAULT_GROUP_LOST = 2
SUB_GROUP_LOST = 4
NEEDS_RESTART = 8  # a thread stays in MPI for good, where the MPI cannot free it


@dataclass(frozen=True)
class Condition:
    """What a rank says of its communication.

    Attributes:
        flags: as the constants of this module say.
        mpi: the MPI library.
        lost: names of sub-groups and communicators that no longer work.
        stale: names of other things that use the world or the default group.
        group_timeout_s: of its default process group, None without one.
    """

    flags: int
    mpi: str
    lost: tuple[str, ...]
    stale: tuple[str, ...]
    group_timeout_s: float | None


# ---- on a rank ---------------------------------------------------------------------------

# Sub-groups and communicators whose loss was told, by id; kept, so that no id is used twice.
_told: dict[int, object] = {}


def flags() -> int:
    """What has been lost, as flags; a few microseconds, so after every cell."""
    import torch.distributed as dist
    from torch_mpi4py import deadlines, process_group, world
    from torch_mpi4py.group_creation import is_out_of_step
    from torch_mpi4py.guarded_comm import is_half_made

    if not deadlines.has_ulfm():
        failed = any(group.failure is not None for group in list(process_group.live_groups))
        return NEEDS_RESTART if failed or deadlines.is_stuck() else 0
    found = 0
    if world().Is_revoked() or is_half_made():  # then the ranks are out of step
        found |= WORLD_LOST
    if dist.is_initialized() and is_out_of_step():
        found |= DEFAULT_GROUP_LOST
    default = dist.group.WORLD if dist.is_initialized() else None
    for group in list(process_group.live_groups):
        if id(group) not in _told and _has_failed(group):
            found |= DEFAULT_GROUP_LOST if group is default else SUB_GROUP_LOST
    return found


def _has_failed(group) -> bool:
    """Whether a process group or communicator is lost."""
    from torch_mpi4py import deadlines

    if getattr(group, "failure", None) is not None:
        return True
    comm = getattr(group, "comm", group)
    return deadlines.has_ulfm() and comm.Is_revoked()


def _is_news(group) -> bool:
    """Whether it is lost, and nobody has been told."""
    if id(group) in _told or not _has_failed(group):
        return False
    _told[id(group)] = group
    return True


def condition() -> Condition:
    """What has been lost, with the names in which a learner holds it."""
    import torch.distributed as dist
    from IPython import get_ipython
    from torch_mpi4py import GuardedComm, library, process_group, world

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
            if used not in process_group.live_groups or id(used) in _told:
                continue  # nothing of ours, or lost before
            if used is not default and _is_news(used):
                lost.append(name)
            else:
                stale.append(name)
    names_of_lost, names_of_stale = tuple(dict.fromkeys(lost)), tuple(dict.fromkeys(stale))
    return Condition(flags(), library(), names_of_lost, names_of_stale, group_timeout())


def group_timeout() -> float | None:
    """The deadline of the default process group in seconds; None without one."""
    import torch.distributed as dist

    return dist.group.WORLD.timeout.total_seconds() if dist.is_initialized() else None


def note_told(names: list[str]) -> None:
    """Remember that the learner knows of these losses, also where they show only later."""
    import torch.distributed as dist
    from IPython import get_ipython

    default = dist.group.WORLD if dist.is_initialized() else None
    for name in names:
        value = get_ipython().user_ns.get(name)
        for item in value[:64] if isinstance(value, list | tuple) else [value]:
            told = _group_of(item) or item  # of DistributedDataParallel the group inside
            if told is not default:
                _told[id(told)] = told


def _group_of(value):
    """The process group that e.g. DistributedDataParallel holds."""
    import torch

    if not isinstance(value, torch.nn.Module):
        return None
    return getattr(value, "process_group", None)


def renew(timeout_s: float | None, group: float | bool) -> None:
    """Make ``comm`` and the default process group anew; all ranks together.

    Args:
        timeout_s: deadline of every operation from now on; None keeps what they had.
        group: whether there shall be a default process group, on all ranks, also on those that
            have destroyed theirs; a number is its deadline where ``timeout_s`` gives none.
    """
    import torch.distributed as dist
    import torch_mpi4py as mpi
    from IPython import get_ipython
    from torch_mpi4py import process_group

    from .engine import init_process_group

    before = mpi.world()
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
    if pulse.mine is not None:
        pulse.mine.note_renewal()
    if group:
        init_process_group(group if timeout_s is None else timeout_s)


# ---- in the notebook ---------------------------------------------------------------------


def recover(view, always: bool = False) -> tuple[str, bool]:
    """Renew what was lost on the ranks of ``view``, which are all idle.

    Args:
        always: also if no rank has noticed a loss, because messages are under way to nobody.

    Returns:
        What was done, and whether nothing can be done but start fresh ranks.
    """
    found: list[Condition] = view.apply_sync(condition)
    union = 0
    for one in found:
        union |= one.flags
    lost = sorted({name for one in found for name in one.lost})
    if union & NEEDS_RESTART:
        return (
            f"{found[0].mpi} cannot free a rank that is stuck inside of it, so communication "
            "cannot be renewed: cluster.restart() starts fresh ranks. Their variables are lost "
            "then; until then you can still read them: cluster.view['name']."
        ), True
    if always or union & (WORLD_LOST | DEFAULT_GROUP_LOST):
        timeouts = [one.group_timeout_s for one in found if one.group_timeout_s is not None]
        view.apply_sync(renew, None, max(timeouts, default=False))
        gone = sorted({*lost, *(name for one in found for name in one.stale)})
        also = f" Make these again, they used the old ones: {', '.join(gone)}." if gone else ""
        return (
            "Communication is renewed: comm and the default process group are new, "
            f"and all variables are kept.{also}"
        ), False
    if lost:
        view.apply_sync(note_told, lost)
        return (
            f"Lost: {', '.join(lost)}; make {'it' if len(lost) == 1 else 'them'} again. All other "
            "communication is as usable as before, and all variables are kept."
        ), False
    return "", False
