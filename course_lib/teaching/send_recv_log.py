"""Every ``dist.send`` and ``dist.recv`` of a rank is written down, with its times.

The calls go through to the real process group. A sequence diagram is drawn from the list
(:func:`course_lib.teaching.figures.sequence`), and a check judges a protocol by it.
"""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

__all__ = ["MessageEvent", "OutsideTheGroupError", "observe_messages", "recorded_messages"]

_CONTENT_OF_AT_MOST = 64  # numbers: enough for a check, little to carry about
_CALLS = ("send", "recv", "isend", "irecv")


@dataclass
class MessageEvent:
    """One call of one rank.

    Attributes:
        rank: who called.
        kind: "send" or "recv".
        peer: to whom it was sent, or who it came from; None: a receive that nobody answered.
        label: what the message is called in pictures.
        nbytes: bytes of the tensor.
        start: when the call began, in seconds of a clock that all processes of a machine share.
        end: when it returned; None if it never did.
        tag: the message's tag.
        any_source: whether a receive named no source.
        content: the numbers, of a tensor with at most 64 of them.
        waited: False for a non-blocking call whose end nobody has waited for.
        call: the function's name.
    """

    rank: int
    kind: str
    peer: int | None
    label: str
    nbytes: int
    start: float
    end: float | None = None
    tag: int = 0
    any_source: bool = False
    content: list | None = None
    waited: bool = True
    call: str = ""

    @property
    def finished(self) -> bool:
        """Whether the call has returned."""
        return self.end is not None


class OutsideTheGroupError(Exception):
    """A function that was to talk on a certain group used another one."""


@contextmanager
def recorded_messages(
    labels: Mapping[int, str] | None = None, *, only=None
) -> Iterator[list[MessageEvent]]:
    """Yield a list that fills with this rank's messages by ``torch.distributed``.

    Args:
        labels: from a tag to what such a message is called.
        only: a group; a message on another one is not sent, but raises OutsideTheGroupError.

    The time of a non-blocking call is that of the call, not that of its waiting.
    """
    import torch.distributed as dist

    log: list[MessageEvent] = []
    originals = {name: getattr(dist, name) for name in _CALLS}
    for name, original in originals.items():
        setattr(dist, name, _recorder(name, original, log, labels or {}, only))
    try:
        yield log
    finally:
        for name, original in originals.items():
            setattr(dist, name, original)


def observe_messages(function: Callable, *args, timeout: float = 6.0):
    """Call ``function(*args, group)`` on every rank; tell all ranks what happened.

    The group is made for this call, so a hang ends after ``timeout`` seconds and harms no other
    group. Returns a :class:`~course_lib.teaching.message_log.Observation`, whose logs hold
    :class:`MessageEvent` and, for calls that are no messages, the log's usual events.
    """
    import torch.distributed as dist
    from torch_mpi4py import world

    from .collective_log import recorded
    from .message_log import Observation, portable

    group = dist.new_group(timeout=timedelta(seconds=timeout))
    result = error = None
    with recorded(group) as calls, recorded_messages(only=group) as log:
        try:
            result = function(*args, group)
        except Exception as raised:  # told to every rank below, and judged by the caller
            error = raised
    dist.destroy_process_group(group)
    collectives = [event for event in calls if event.kind == "collective"]
    mine = (portable(result), portable(error), [*log, *collectives])
    columns = zip(*world().allgather(mine), strict=True)
    return Observation(*(list(column) for column in columns))


def _recorder(
    name: str, original: Callable, log: list[MessageEvent], labels: Mapping[int, str], only
):
    import torch.distributed as dist

    signature = inspect.signature(original)
    kind = name.removeprefix("i")
    end = "dst" if kind == "send" else "src"

    @functools.wraps(original)
    def call(*args, **kwargs):
        given = signature.bind(*args, **kwargs).arguments
        if only is not None and given.get("group") is not only:
            raise OutsideTheGroupError(f"dist.{name} was not given `group=group`")
        peer, tag, tensor = given.get(end), given.get("tag", 0), given["tensor"]
        if peer is None and given.get(f"group_{end}") is not None:
            peer = dist.get_global_rank(
                given.get("group") or dist.group.WORLD, given[f"group_{end}"]
            )
        event = MessageEvent(
            rank=dist.get_rank(),
            kind=kind,
            peer=peer,
            label=labels.get(tag, f"tag {tag}" if labels else ""),
            nbytes=tensor.numel() * tensor.element_size(),
            start=time.perf_counter(),
            tag=tag,
            any_source=kind == "recv" and peer is None,
            waited=kind == name,
            call=name,
        )
        if kind == "send":
            event.content = _content(tensor)
        log.append(event)
        answer = original(*args, **kwargs)
        event.end = time.perf_counter()
        if name == "recv":
            event.peer, event.content = answer, _content(tensor)
        elif name != "send":
            _mark_waiting(answer, event)
        return answer

    return call


def _mark_waiting(work, event: MessageEvent) -> None:
    wait = work.wait

    def marked(*args, **kwargs):
        event.waited = True
        return wait(*args, **kwargs)

    work.wait = marked


def _content(tensor) -> list | None:
    return tensor.flatten().tolist() if tensor.numel() <= _CONTENT_OF_AT_MOST else None
