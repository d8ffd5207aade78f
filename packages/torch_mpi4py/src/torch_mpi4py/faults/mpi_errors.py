"""Translates MPI's errors into those of this package.

A rank that another one has freed learns why: whether a rank has died, and what all were doing.
"""

from __future__ import annotations

from ..board.rank_states import rank_list
from ..core import advice
from ..core.errors import CommunicationError, RankFailedError, RevokedError
from ..core.runtime import MPI
from ..log import shared_report
from .deaths import await_failed_ranks, has_ulfm, is_revoked

_FREE_SOME = (
    "This happens when a rank has used up its communicators: 65,535 with Open MPI, 2,048 with "
    "MPICH. Free those you make (comm.Free(), dist.destroy_process_group(group)). "
)
_MAKE_COMMUNICATORS = {
    *("Dup", "Split", "Split_type", "Create", "Create_group", "new communicator", "new_group"),
    *("init_process_group", "first collective in a callback"),
}
_REVOKED = {MPI.ERR_REVOKED} if hasattr(MPI, "ERR_REVOKED") else set()
_FAILED = {
    getattr(MPI, name)
    for name in ("ERR_PROC_FAILED", "ERR_PROC_FAILED_PENDING")
    if hasattr(MPI, name)
}


def translate(error: MPI.Exception, what: str, comm: MPI.Comm) -> CommunicationError:
    """Return our error for an MPI error met while doing ``what`` on ``comm``."""
    code = error.Get_error_class()
    if code in _FAILED:
        return rank_failed(what, await_failed_ranks(comm), comm)
    if code in _REVOKED or is_revoked(comm):
        return freed(what, comm)
    # Open MPI's barrier reports a revoked communicator or a death like this, and Idup() a death.
    is_vague = code in (MPI.ERR_OTHER, MPI.ERR_INTERN)
    if has_ulfm() and is_vague and (await_failed_ranks(comm) or is_revoked(comm)):
        return freed(what, comm)
    if code == MPI.ERR_TRUNCATE:
        return CommunicationError(
            f"{what}: the message is longer than the receive buffer. "
            "Give the receiver a tensor of the sender's shape and dtype."
        )
    why = error.Get_error_string()
    if what in _MAKE_COMMUNICATORS:
        why = f"{why}. {_FREE_SOME}{advice.RESTART}"
    return CommunicationError(f"{what}: {why}")


def freed(what: str, comm: MPI.Comm) -> RevokedError | RankFailedError:
    """Return the error of a rank whose communicator another rank revoked during ``what``.

    If that is because of a death, the error names the dead, as on the rank that noticed first.
    """
    told = shared_report.find(comm)
    dead = await_failed_ranks(comm, certain=told is not None and bool(told.dead))
    if dead:
        return rank_failed(what, dead, comm)
    told = shared_report.find(comm)  # it may have come meanwhile
    return RevokedError(
        f"{what}: this rank was freed because another rank gave up or failed. "
        f"{advice.START_AGAIN}{shared_report.ending('' if told is None else told.text)}"
    )


def rank_failed(what: str, dead: list[int], comm: MPI.Comm) -> RankFailedError:
    """Return the error of a rank that can't go on with ``what`` because ``dead`` have died."""
    who = rank_list(dead) if dead else "a rank"
    report = shared_report.reach(comm, dead=dead)
    return RankFailedError(f"{what}: {who} died. {advice.GO_ON}{shared_report.ending(report)}")
