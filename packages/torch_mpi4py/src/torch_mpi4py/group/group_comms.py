"""Makes the communicators that process groups run on.

All ranks of a group call this together. If they are only some of the ranks, they meet at the store
first, so that a rank which never comes does not block the others inside MPI.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import torch.distributed as dist

from ..board.event_board import group_text
from ..comm.guarded_comm import duplicate_world, introduce, settle
from ..core.base_comm import base, tag_apart
from ..core.runtime import MPI
from ..faults import comm_reaper, deadlines
from ..faults.deaths import failed_ranks
from ..log import events
from .store_barrier import Meeting, meet


def whole_world(rank: int, size: int, seconds: float) -> MPI.Intracomm:
    """Return a communicator of all ranks that live, in which this one has number ``rank``.

    Raises:
        RuntimeError: if other than ``size`` ranks live.
        DeadlineError: if some do not come within ``seconds``.
    """
    if size != base().Get_size():
        raise RuntimeError(
            f"world_size is {size}, but MPI has {base().Get_size()} living ranks; start as many "
            f"as the group needs: mpiexec -n {size} python program.py"
        )
    with events.making("init_process_group", all_living()):
        comm = duplicate_world(seconds)
        introduce(comm, seconds)
        # Torch may number the ranks in another order than MPI (with env://, say).
        group = deadlines.call(comm, "init_process_group", seconds, comm.Split, 0, rank)
        settle(group, seconds)
    comm_reaper.retire(comm, 0)
    return group


def all_living() -> int:
    """Return the place of the name of all living ranks in the event log."""
    return events.log.string(group_text("world", events.log.group_of(base()).ranks))


def part_of(
    parent: MPI.Intracomm,
    members: Sequence[int],
    name: str,
    store: dist.Store | None,
    seconds: float,
    what: str,
) -> MPI.Intracomm:
    """Return a communicator of the ``members`` of ``parent``; each of them must call this.

    Args:
        name: the new group's, equal on all members; a number if no other group has had it.
        store: where the members meet, and no other rank.
        what: the call, by its name in torch.distributed.
    """
    with events.making(what, events.log.part_of(parent, members)):
        # Torch counts the groups that all ranks make; those that some make get names that recur.
        recurs = not name.isdecimal()
        meeting = meet(store, what, parent, len(members), seconds, what, members, recurs)
        comm = made_by_members(parent, members, name, seconds, what, meeting)
        if meeting is not None and meeting.place == 0:
            meeting.forget()  # all have left it
    return comm


def made_by_members(
    parent: MPI.Intracomm,
    members: Sequence[int],
    name: str,
    seconds: float,
    what: str,
    meeting: Meeting | None,
) -> MPI.Intracomm:
    """Return a communicator of the ``members`` of ``parent``, who have all met for this call.

    It is made from the base, which nobody revokes: where another rank revoked the parent of
    ``Create_group``, Open MPI 5.0.11 left some of the members in that call indefinitely, beyond
    their deadline, while others returned. But it makes no group from a communicator that has dead
    ranks. So if one of the members knows of a death, all of them take the parent.

    Args:
        name: what no two groups have that some ranks make at the same time.
    """
    broken = bool(failed_ranks(base()))
    if meeting is not None:
        broken = str(True) in meeting.exchange(str(broken))
    origin = parent if broken else base()
    everyone = parent.Get_group()
    group = everyone.Incl(list(members))
    operation = deadlines.Operation(parent, what, seconds)
    comm = deadlines.carry_out_apart(operation, origin.Create_group, group, _tag_of(name))
    group.Free()
    everyone.Free()
    settle(comm, seconds)
    return comm


def merged(store: dist.Store, size: int, seconds: float) -> MPI.Intracomm:
    """Return a communicator of the ``size`` ranks that come to ``store``, in order of arrival.

    Raises:
        DeadlineError: if fewer came within ``seconds``.
    """
    what = "merge_remote_group"
    rank = base().Get_rank()
    meeting = meet(store, what, base(), size, seconds, what)
    members = [rank] if meeting is None else list(map(int, meeting.exchange(str(rank))))
    # Without the watcher, which would revoke the base, from which all others are made, and that
    # would not even end this call. All ranks have just met here, and begin it now.
    group = base().Get_group().Incl(members)
    comm = deadlines.in_time(what, seconds, base().Create_group, group, _tag_of(what))
    settle(comm, seconds)
    return comm


def _tag_of(name: str) -> int:
    """Return a tag that is equal on all ranks, and none of the small ones that programs choose."""
    return tag_apart(1024 + zlib.crc32(name.encode()) % 15360)
