"""Records every message of a rank: its peer, tag, times and contents.

It extends :mod:`course_lib.teaching.distributed_log`, which records only that there was a message.
:func:`rank_by_rank.lesson_09.figures.sequence` draws the recorded messages.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch.distributed as dist

from course_lib.teaching.distributed_log import (
    MESSAGES,
    Recorder,
    content_of,
    observe_distributed,
    recording,
)
from course_lib.teaching.exercise import CALL_SECONDS, Staged
from course_lib.teaching.message_log import LoggedCall, Observation

__all__ = ["Message", "OutsideTheGroupError", "observe_messages", "recorded_messages"]

_END = {"send": "dst", "recv": "src"}


class OutsideTheGroupError(Staged):
    """A function used another group than the one that it was given."""


@dataclass
class Message(LoggedCall):
    """A recorded call; ``content`` has the numbers of a short tensor.

    Attributes:
        rank: who called.
        label: the name of the message in figures.
        start: when the call began, in seconds of the chosen clock.
        end: when it returned; None if it never did. A non-blocking call ends when the call
            returns, not when the message is complete.
    """

    rank: int = 0
    label: str = ""
    start: float = 0.0
    end: float | None = None


@contextmanager
def recorded_messages(
    labels: Mapping[int, str] | None = None, *, only: object = None, ahead: float = 0.0
) -> Iterator[list[Message]]:
    """Yield a list that fills with this rank's sends and receives alone.

    Args:
        labels: maps a tag to the name of its messages.
        only: a group; a message on another one is not sent, but raises OutsideTheGroupError.
        ahead: by how many seconds this rank's ``time.perf_counter()`` is ahead of the clock in
            which times are wanted, such as rank 0's (:mod:`torch_mpi4py.tools.clocks`).
    """
    recorder = _MessageRecorder(None, only, labels or {}, ahead)
    recorder.names = MESSAGES
    with recording(recorder) as log:
        yield log


def observe_messages(function: Callable, *args, timeout: float = CALL_SECONDS) -> Observation:
    """Call ``function(*args, group)`` on every rank and tell all ranks what happened.

    Like ``observe_distributed``, but a message on another group raises OutsideTheGroupError.
    """
    return observe_distributed(
        function, *args, timeout=timeout, recorder=lambda group: _MessageRecorder(group, group)
    )


class _MessageRecorder(Recorder):
    entry = Message
    names = (*Recorder.names, "barrier")

    def __init__(
        self,
        group: dist.ProcessGroup | None,
        only: object,
        labels: Mapping[int, str] | None = None,
        ahead: float = 0.0,
    ) -> None:
        super().__init__(group)
        self._only, self._labels, self._ahead = only, labels or {}, ahead

    def _now(self) -> float:
        return time.perf_counter() - self._ahead

    def begin(self, kind: str, name: str, given: Mapping, own: object) -> Message:
        refused = kind in _END and self._only is not None
        if refused and given.get("group") is not self._only:
            raise OutsideTheGroupError(f"dist.{name} was not given `group=group`")
        event = super().begin(kind, name, given, own)
        event.rank, event.start = dist.get_rank(), self._now()
        if kind in _END:
            self._describe(event, given)
        return event

    def _describe(self, event: Message, given: Mapping) -> None:
        end = _END[event.kind]
        event.peer, event.tag = given.get(end), given.get("tag", 0)
        if event.peer is None and given.get(f"group_{end}") is not None:
            members = given.get("group") or dist.group.WORLD
            event.peer = dist.get_global_rank(members, given[f"group_{end}"])
        event.label = self._labels.get(event.tag, f"tag {event.tag}" if self._labels else "")
        event.any_source = event.kind == "recv" and event.peer is None
        if event.kind == "send":
            event.content = content_of(given["tensor"])

    def end(self, event: Message, given: Mapping, answer: object) -> None:
        super().end(event, given, answer)
        event.end = self._now()
        if event.call == "recv":
            event.peer, event.content = answer, content_of(given["tensor"])
