"""The exceptions of the backend: one for each way in which communication can fail."""

from __future__ import annotations

import sys
from pathlib import Path
from types import TracebackType

import torch
from torch.distributed import DistBackendError


class CommunicationError(DistBackendError):
    """Base of all errors that the backend raises about communication."""

    def _render_traceback_(self) -> list[str]:
        """The traceback that a notebook shows: the caller's lines, without those of the backend."""
        get_ipython = sys.modules["IPython"].get_ipython

        ending = _up_to_the_caller(self.__traceback__)
        return get_ipython().InteractiveTB.structured_traceback(type(self), self, ending)


_LIBRARIES = (
    str(Path(torch.__file__).resolve().parent),
    str(Path(__file__).resolve().parents[1]),
)


def _up_to_the_caller(tb: TracebackType | None) -> TracebackType | None:
    """Return ``tb`` without its trailing frames of PyTorch and this package."""
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
    """An operation did not finish within its deadline; the group's ranks were freed.

    Also raised by a ``wait(timeout)`` that stops waiting earlier; then the operation goes on, and
    the group stays usable.

    As with PyTorch's own backends, it is a ``DistBackendError`` whose text says ``Timed out``,
    between two spaces, as PyTorch's own tests expect.
    """


class RevokedError(CommunicationError):
    """Another rank gave up or failed, so the communicator was revoked and this rank freed."""


class MismatchError(CommunicationError):
    """The ranks called different collectives, or the same one with different arguments.

    Raised on every rank before any data moves; the group stays usable.
    """


class DeliveryError(CommunicationError):
    """The operation succeeded on all ranks, but this one could not write its result.

    The other ranks have theirs, and the group stays usable.
    """


class RankFailedError(CommunicationError):
    """A rank of the group died."""


class ClosedGroupError(CommunicationError):
    """The process group was destroyed before this call."""
