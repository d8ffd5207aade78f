"""Every way communication can fail has one exception that says what to do."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

import torch
from torch.distributed import DistBackendError

from . import advice, hang_report
from .deaths import await_failed_ranks
from .runtime import MPI

__all__ = [
    "ClosedGroupError",
    "CommunicationError",
    "DeadlineError",
    "MismatchError",
    "RankFailedError",
    "RevokedError",
    "freed",
    "translate",
]

_FREE_SOME = (
    "It is like this when a rank has used up its communicators: 65,535 with Open MPI, 2,048 with "
    "MPICH. Free those you make (comm.Free(), dist.destroy_process_group(group)). "
)
_MAKE_COMMUNICATORS = {
    *("Dup", "Split", "Split_type", "Create", "Create_group", "new communicator", "new_group"),
    *("init_process_group", "communicator for callbacks"),
}


class CommunicationError(DistBackendError):
    """Base of all errors that the backend raises about communication."""

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows: the caller's own lines, not what went on inside of them."""
        from IPython import get_ipython

        ending = _up_to_the_caller(self.__traceback__)
        return get_ipython().InteractiveTB.structured_traceback(type(self), self, ending)


_LIBRARIES = tuple(str(Path(file).resolve().parent) for file in (torch.__file__, __file__))


def _up_to_the_caller(tb: TracebackType | None) -> TracebackType | None:
    """Return ``tb`` without its last frames, as far as they are PyTorch's and ours."""
    entries = []
    while tb is not None:
        entries.append(tb)
        tb = tb.tb_next
    while len(entries) > 1 and entries[-1].tb_frame.f_code.co_filename.startswith(_LIBRARIES):
        entries.pop()
    ending = None
    for entry in reversed(entries):
        ending = TracebackType(ending, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return ending


class DeadlineError(CommunicationError):
    """An operation did not finish within its deadline; the group's ranks were freed."""


class RevokedError(CommunicationError):
    """Another rank gave up or failed, so the communicator was revoked and this rank freed."""


class MismatchError(CommunicationError):
    """The ranks called different collectives, or the same one with different arguments.

    Raised on every rank before any data moves; the group stays usable.
    """


class RankFailedError(CommunicationError):
    """A rank of the group died."""


class ClosedGroupError(CommunicationError):
    """The process group was destroyed before this call."""


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
        return _rank_failed(what, await_failed_ranks(comm), comm)
    if code in _REVOKED:
        return freed(what, comm)
    if _REVOKED and comm != MPI.COMM_NULL and comm.Is_revoked():
        return freed(what, comm)
    # Open MPI's barrier reports a revoked communicator, and a death, as MPI_ERR_OTHER.
    if _REVOKED and code == MPI.ERR_OTHER and (await_failed_ranks(comm) or comm.Is_revoked()):
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
    dead = await_failed_ranks(comm, certain=hang_report.tells_of_a_death(comm))
    if dead:
        return _rank_failed(what, dead, comm)
    return RevokedError(
        f"{what}: this rank was freed because another rank gave up or failed. {advice.START_AGAIN}"
        f"{hang_report.ending(hang_report.find(comm))}"
    )


def _rank_failed(what: str, dead: list[int], comm: MPI.Comm) -> RankFailedError:
    who = f"rank{'s' if len(dead) > 1 else ''} {', '.join(map(str, dead))}" if dead else "a rank"
    report = hang_report.reach(comm, dead=dead)
    return RankFailedError(f"{what}: {who} died. {advice.GO_ON}{hang_report.ending(report)}")
