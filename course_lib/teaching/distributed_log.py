"""Records every call to ``torch.distributed`` while a learner's function runs.

The calls go through to the real process group. The log has the function, the group, the bytes of
this rank's own data (the budget of a collective), and whether, and in which phase of a training
step, the program waited for the call. A check judges a method by it.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from typing import Any, NoReturn
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch_mpi4py import world
from torch_mpi4py.comm.call_arguments import is_receive, is_send
from torch_mpi4py.comm.guarded_comm import BLOCKING

from .deadlock import ended_early
from .exercise import CALL_SECONDS, NEEDS_PROCESS_GROUP, CheckImpossibleError, WrongAnswer
from .message_log import PROBES, LoggedCall, Observation, attempt, tell_all

MESSAGES = ("send", "isend", "recv", "irecv")
_CONTENT_OF_AT_MOST = 64  # numbers: enough for a check, little to carry about
# Which argument holds this rank's own data: the first or the second. Its name is not the same in
# every release of PyTorch, and not every release has all of them.
_OWN_DATA_FIRST = (
    *("all_reduce", "broadcast", "reduce", "gather", "gather_object", "broadcast_object_list"),
    *MESSAGES,
)
_OWN_DATA_SECOND = (
    *("all_gather", "all_gather_into_tensor", "all_gather_single", "all_gather_object"),
    *("reduce_scatter", "reduce_scatter_tensor", "reduce_scatter_single"),
    *("all_to_all", "all_to_all_single", "scatter", "scatter_object_list"),
)


@contextmanager
def recorded(
    group: dist.ProcessGroup,
    phase: Callable[[], object] = lambda: None,
    names: tuple[str, ...] = (),
) -> Iterator[list[LoggedCall]]:
    """Yield a list that fills with this rank's calls to ``torch.distributed``.

    On exit its collectives have ended, so that the group can be given back.

    Args:
        group: each call's ``on_group`` says whether it was on this group.
        phase: returns the present phase, which the calls' ``sent`` and ``waits`` record.
        names: the functions whose calls are recorded; by default all.
    """
    recorder = Recorder(group, phase)
    recorder.names = names or recorder.names
    with recording(recorder) as log:
        yield log
    for work in recorder.collectives:
        work.wait()


@contextmanager
def recording(recorder: Recorder) -> Iterator[list[Any]]:
    """Yield the log of a recorder, which gets this rank's calls."""
    names = [name for name in recorder.names if hasattr(dist, name)]
    replacements: dict[str, Any] = {name: recorder.of(name, getattr(dist, name)) for name in names}
    replacements["P2POp"] = _OperationOfBatch
    replacements["batch_isend_irecv"] = recorder.of_batch(dist.batch_isend_irecv)
    with patch.multiple(dist, **replacements):
        yield recorder.log


def observe_distributed(
    function: Callable,
    *args: Any,
    ranks: list[int] | None = None,
    timeout: float = CALL_SECONDS,
    recorder: Callable[[dist.ProcessGroup], Recorder] | None = None,
) -> Observation:
    """Call ``function(*args, group)`` on each of ``ranks``; return what happened, on all ranks.

    Every rank of the world must call this. ``ranks``: those of the group, by default all. The
    group is made for this call, with a deadline of ``timeout`` seconds, so a hang ends there
    and harms no other group. ``recorder`` makes what writes the calls down. What happened is told
    by rank in the group; ranks outside come last, with results and errors of None.
    """
    if not dist.is_initialized():
        raise CheckImpossibleError(NEEDS_PROCESS_GROUP)
    group: Any = dist.new_group(ranks, timeout=timedelta(seconds=timeout))
    result, error, log = None, None, []
    if ranks is None or dist.get_rank() in ranks:
        with (
            recording((recorder or Recorder)(group)) as log,
            without_world_collectives(),
            ended_early(dist.get_process_group_ranks(group)),
        ):
            result, error = attempt(function, *args, group)
        dist.destroy_process_group(group)
    seen = tell_all(world(), result, error, log)
    return Observation(
        *(reorder_to_group_ranks(c, ranks) for c in (seen.results, seen.errors, seen.logs))
    )


def reorder_to_group_ranks(column: list, ranks: list[int] | None) -> list:
    """Return what is told by rank of the world by rank in a group of ``ranks``, others last."""
    if ranks is None:
        return column
    return [column[r] for r in [*ranks, *(r for r in range(len(column)) if r not in ranks)]]


def without_world_collectives() -> AbstractContextManager[Any]:
    """Raise WrongAnswer if a function that is given a group calls all ranks through ``comm``.

    The check itself calls collectives of the world, and would be answered in place of a rank.
    """

    def refuse(name: str, *args: Any, **kwargs: Any) -> NoReturn:
        raise WrongAnswer("forgets-the-group: by comm", call=name)

    refusals: dict[str, Any] = {
        name: functools.partial(refuse, name)
        for name in BLOCKING
        if not (is_send(name) or is_receive(name) or name in PROBES)
    }
    return patch.multiple(world(), **refusals)


class Recorder:
    """Records calls in ``log`` and passes them on.

    Attributes:
        names: the functions whose calls are recorded.
        entry: makes a call's entry in the log.
        collectives: those that were not waited for at once.
    """

    names: tuple[str, ...] = (*_OWN_DATA_FIRST, *_OWN_DATA_SECOND)
    entry: type[LoggedCall] = LoggedCall

    def __init__(
        self, group: dist.ProcessGroup | None, phase: Callable[[], object] = lambda: None
    ) -> None:
        self.log: list[Any] = []
        self.collectives: list[Any] = []
        self._group, self._phase = group, phase

    def begin(self, kind: str, name: str, given: Mapping[str, Any], own: object) -> Any:
        """Record a call with the arguments ``given``, of which ``own`` is this rank's data."""
        event = self.entry(kind, name, nbytes=_size(own))
        if kind == "collective" and isinstance(own, torch.Tensor):
            event.content = content_of(own)
        event.on_group = self._group is None or any(one is self._group for one in given.values())
        event.sent = self._phase()
        self.log.append(event)
        return event

    def end(self, event: Any, given: Mapping[str, Any], answer: Any) -> None:
        """Record that the call has returned ``answer``."""
        event.finished = True

    def of(self, name: str, original: Callable) -> Callable:
        """Return the function ``name``, whose calls are recorded."""
        signature = inspect.signature(original)
        own = list(signature.parameters)[name in _OWN_DATA_SECOND]
        kind = name.removeprefix("i") if name in MESSAGES else "collective"

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            given = signature.bind(*args, **kwargs).arguments
            event = self.begin(kind, name, given, given.get(own))
            answer = original(*args, **kwargs)
            self.end(event, given, answer)
            if not isinstance(answer, (dist.Work, _LoggedWork)):
                event.waits.append(self._phase())
                return answer
            if kind == "collective":
                self.collectives.append(answer)
            return _LoggedWork(answer, [event], self._phase)

        call.records = getattr(original, "records", original)  # type: ignore[attr-defined]
        return call

    def of_batch(self, original: Callable) -> Callable:
        """Return ``batch_isend_irecv``, each of whose messages is recorded."""

        @functools.wraps(original)
        def call(p2p_op_list: list) -> list:
            events = []
            for one in p2p_op_list:
                if isinstance(one, _PlainOperation):  # otherwise PyTorch reports the error
                    kind = one.op.__name__.removeprefix("i")
                    given = {"dst" if kind == "send" else "src": one.peer, **vars(one)}
                    event = self.begin(kind, "batch_isend_irecv", given, one.tensor)
                    events.append((event, given))
            works = original(p2p_op_list)
            for event, given in events:
                self.end(event, given, works)
            entries = [[event] for event, _ in events]
            if len(works) != len(entries):  # one for all
                entries = [[event for event, _ in events]] * len(works)
            return [
                _LoggedWork(work, own, self._phase)
                for work, own in zip(works, entries, strict=True)
            ]

        return call


_PlainOperation: Any = dist.P2POp


class _OperationOfBatch(_PlainOperation):
    """A ``P2POp`` that accepts ``isend`` and ``irecv`` even while they are recorded."""

    def __new__(cls, op: Callable, *args: Any, **kwargs: Any) -> Any:
        return super().__new__(cls, getattr(op, "records", op), *args, **kwargs)

    def __init__(self, op: Callable, *args: Any, **kwargs: Any) -> None:
        super().__init__(getattr(op, "records", op), *args, **kwargs)


class _LoggedWork:
    """An operation under way whose entries in the log show whether the program waits for it.

    A caller with its future, or one that has polled it, may know of its end without waiting.
    """

    def __init__(self, work: dist.Work, events: list[Any], phase: Callable[[], object]) -> None:
        self._work, self._events, self._phase = work, events, phase
        self._note(False)

    def wait(self, *args: Any, **kwargs: Any) -> Any:
        self._note_wait()
        self._finish(False)
        answer = self._work.wait(*args, **kwargs)
        self._finish(True)
        return answer

    def get_future(self) -> Any:
        self._note(True)
        future = self._work.get_future()
        wait, asker = future.wait, threading.get_ident()

        def noted() -> Any:
            if threading.get_ident() == asker:  # callbacks wait on a thread of their own
                self._note_wait()
            return wait()

        future.wait = noted
        return future

    def is_completed(self) -> bool:
        ended = self._work.is_completed()
        if ended:
            self._note(True)
        return ended

    def _note_wait(self) -> None:
        self._note(True)
        for event in self._events:
            event.waits.append(self._phase())

    def _note(self, waited: bool) -> None:
        for event in self._events:
            event.waited = waited

    def _finish(self, finished: bool) -> None:
        for event in self._events:
            event.finished = finished

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)


def _size(data: object) -> int | None:
    """Bytes of a tensor or of a list of them; None where it is another object."""
    if isinstance(data, torch.Tensor):
        return data.nbytes
    if isinstance(data, (list, tuple)) and all(isinstance(item, torch.Tensor) for item in data):
        return sum(item.nbytes for item in data)
    return None


def content_of(tensor: torch.Tensor) -> list | None:
    """The numbers of a tensor; None for a long one."""
    return tensor.flatten().tolist() if tensor.numel() <= _CONTENT_OF_AT_MOST else None
