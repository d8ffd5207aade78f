"""Recognises what goes wrong with calls of ``torch.distributed``: the wrong group, too many calls.

Two ways to see the calls: the log of an :class:`~course_lib.teaching.message_log.Observation`, and
:func:`watched_all_reduces`, which also knows when somebody waits for the result.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

from ..exercise import WrongAnswer
from ..message_log import LoggedCall, Observation
from .failures import judge_failures


def judge_collectives(seen: Observation) -> None:
    """Raise whatever kept the ranks from a result, or from exchanging anything for it."""
    judge_failures(seen.errors)
    calls = [event for log in seen.logs for event in log]
    if not calls:
        raise WrongAnswer(
            "no-communication", "no call of `dist` was seen: the ranks did not exchange anything"
        )
    need_group(calls)


def need_group(calls: list[LoggedCall]) -> None:
    """Raise if one of the calls was not on the group that the function was given."""
    for event in calls:
        if not event.on_group:
            raise WrongAnswer(
                "forgets-the-group",
                f"`dist.{event.call}` is called without `group=group`, so it works on the whole "
                "world, whatever group the caller meant",
            )


def need_one_all_reduce(calls: list[LoggedCall], otherwise: str) -> None:
    """Raise unless the calls of one rank, with a right result, are a single all-reduce.

    ``otherwise``: what any other collective does, as in "moves all numbers".
    """
    if len(calls) != 1:
        names = ", ".join(event.call for event in calls)
        raise WrongAnswer(
            "too-many-collectives",
            f"the result is right, but it took {len(calls)} calls ({names}); one all-reduce does",
        )
    if calls[0].call != "all_reduce":
        raise WrongAnswer(
            "gathers-everything",
            f"the result is right, but `dist.{calls[0].call}` {otherwise}",
        )


# ---- an all-reduce under way ------------------------------------------------------------------


@dataclass
class AllReduce:
    """One call of ``dist.all_reduce``.

    Attributes:
        nbytes: bytes of its tensor.
        on_group: whether it was on the group watched for.
        sent, waited, waited_last: the phase in which it was called, and in which somebody first
            and last waited for its end; None: nobody has.
        told: whether somebody may know of its end without waiting: by its future, or by having
            asked whether it has ended.
    """

    nbytes: int
    on_group: bool
    sent: object
    waited: object = None
    waited_last: object = None
    told: bool = False


@contextmanager
def watched_all_reduces(
    group: dist.ProcessGroup, phase: Callable[[], object]
) -> Iterator[list[AllReduce]]:
    """Yield a list that fills with this rank's all-reduces; ``phase`` tells what goes on.

    On exit all of them have ended, so that the group can be given back.
    """
    original = dist.all_reduce
    signature = inspect.signature(original)
    calls: list[AllReduce] = []
    works: list[dist.Work] = []

    def all_reduce(*args: Any, **kwargs: Any) -> dist.Work | None:
        given = signature.bind(*args, **kwargs).arguments
        call = AllReduce(given["tensor"].nbytes, given.get("group") is group, phase())
        calls.append(call)
        work = original(*args, **kwargs)
        if work is None:
            call.waited = phase()
            return None
        works.append(work)
        return _WatchedWork(work, call, phase)

    dist.all_reduce = all_reduce
    try:
        yield calls
    finally:
        dist.all_reduce = original
    for work in works:
        work.wait()


class _WatchedWork:
    """A collective under way that notes whether somebody waits for it."""

    def __init__(self, work: dist.Work, call: AllReduce, phase: Callable[[], object]) -> None:
        self._work, self._call, self._phase = work, call, phase

    def wait(self, *args: Any) -> Any:
        if self._call.waited is None:
            self._call.waited = self._phase()
        self._call.waited_last = self._phase()
        return self._work.wait(*args)

    def get_future(self) -> Any:
        """Return its future, which notes who waits for it; it is not seen to whom it is told."""
        self._call.told = True
        future = self._work.get_future()
        wait, asker = future.wait, threading.get_ident()

        def noted() -> Any:
            if threading.get_ident() == asker:  # callbacks wait on a thread of their own
                self._call.waited = self._call.waited or self._phase()
            return wait()

        future.wait = noted
        return future

    def is_completed(self) -> bool:
        ended = self._work.is_completed()
        self._call.told |= ended
        return ended

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)
