"""Writes down when all-reduces are sent and waited for: in which phase of a training step."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist


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
