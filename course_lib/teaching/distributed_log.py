"""Write down every call to ``torch.distributed`` while a learner's function runs.

The calls go through to the real process group. What is written down is which function was called,
on which group, when, and with how many bytes of this rank's own, which is the budget of a
collective; of a message also with whom, its tag and its numbers. A check judges a method by it,
and :func:`notebooks.lesson_09.figures.sequence` draws it.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch_mpi4py import world
from torch_mpi4py.call_arguments import is_receive, is_send
from torch_mpi4py.guarded_comm import BLOCKING

from .exercise import Staged, WrongAnswer
from .message_log import PROBES, LoggedCall, Observation, attempt, tell_all

__all__ = [
    "OutsideTheGroupError",
    "observe_distributed",
    "observe_messages",
    "of_group_first",
    "recorded",
    "recorded_messages",
    "without_world_collectives",
]

# Which argument holds what this rank itself passes in: the first or the second. Its name is not
# the same in every release of PyTorch, and not every release has all of them.
_MESSAGES = ("send", "isend", "recv", "irecv")
_OWN_DATA_FIRST = (
    *("all_reduce", "broadcast", "reduce", "gather", "gather_object", "broadcast_object_list"),
    *_MESSAGES,
)
_OWN_DATA_SECOND = (
    *("all_gather", "all_gather_into_tensor", "all_gather_single", "all_gather_object"),
    *("reduce_scatter", "reduce_scatter_tensor", "reduce_scatter_single"),
    *("all_to_all", "all_to_all_single", "scatter", "scatter_object_list"),
)
_CONTENT_OF_AT_MOST = 64  # numbers: enough for a check, little to carry about


class OutsideTheGroupError(Staged):
    """A function that was to talk on a certain group used another one."""


@contextmanager
def recorded(group: dist.ProcessGroup, *, only: object = None) -> Iterator[list[LoggedCall]]:
    """Yield a list that fills with this rank's calls to ``torch.distributed``.

    Args:
        group: whether a call was on it stands in the calls' ``on_group``.
        only: a group; a message on another one is not sent, but raises OutsideTheGroupError.

    The time of a non-blocking call is that of the call, not that of its waiting.
    """
    with _recording((*_OWN_DATA_FIRST, *_OWN_DATA_SECOND), group, only, {}) as log:
        yield log


@contextmanager
def recorded_messages(
    labels: Mapping[int, str] | None = None, *, only: object = None
) -> Iterator[list[LoggedCall]]:
    """Yield a list that fills with this rank's sends and receives alone.

    Args:
        labels: from a tag to what such a message is called.
        only: as in :func:`recorded`.
    """
    with _recording(_MESSAGES, None, only, labels or {}) as log:
        yield log


@contextmanager
def _recording(
    names: tuple[str, ...],
    group: dist.ProcessGroup | None,
    only: object,
    labels: Mapping[int, str],
) -> Iterator[list[LoggedCall]]:
    recorder = _Recorder(group, only, labels)
    originals = {name: getattr(dist, name) for name in names if hasattr(dist, name)}
    recorders = {name: recorder.of(name, original) for name, original in originals.items()}
    recorders["P2POp"] = _OperationOfBatch
    recorders["batch_isend_irecv"] = recorder.of_batch(dist.batch_isend_irecv)
    with contextlib.ExitStack() as stack:
        for name, replacement in recorders.items():
            stack.callback(setattr, dist, name, getattr(dist, name))
            setattr(dist, name, replacement)
        yield recorder.log


def observe_distributed(
    function: Callable, *args, ranks: list[int] | None = None, timeout: float = 6.0
) -> Observation | None:
    """Call ``function(*args, group)`` on each of ``ranks`` and tell all ranks what happened.

    Every rank of the world must call this. ``ranks``: those of the group, by default all. The
    group is made for this call, with a deadline of ``timeout`` seconds, so a hang ends there
    and harms no other group. What happened is told by rank in the group; ranks outside come last,
    with results and errors of None.
    """
    return _observe(function, args, ranks, timeout, only_group=False)


def observe_messages(function: Callable, *args, timeout: float = 6.0) -> Observation:
    """Call ``function(*args, group)`` on every rank and tell all ranks what happened.

    As :func:`observe_distributed`, but a message on another group raises OutsideTheGroupError.
    """
    return _observe(function, args, None, timeout, only_group=True)


def _observe(
    function: Callable, args: tuple, ranks: list[int] | None, timeout: float, only_group: bool
) -> Observation:
    group = dist.new_group(ranks, timeout=timedelta(seconds=timeout))
    result, error, log = None, None, []
    if ranks is None or dist.get_rank() in ranks:
        only = group if only_group else None
        with recorded(group, only=only) as log, without_world_collectives():
            result, error = attempt(function, *args, group)
        dist.destroy_process_group(group)
    seen = tell_all(world(), result, error, log)
    return Observation(*(of_group_first(c, ranks) for c in (seen.results, seen.errors, seen.logs)))


def of_group_first(column: list, ranks: list[int] | None) -> list:
    """Return what is told by rank of the world by rank in a group of ``ranks``, others last."""
    if ranks is None:
        return column
    return [column[r] for r in [*ranks, *(r for r in range(len(column)) if r not in ranks)]]


@contextmanager
def without_world_collectives() -> Iterator[None]:
    """Raise WrongAnswer where a function that is given a group asks all ranks by ``comm``.

    The check itself calls collectives of the world, and would be answered in place of a rank.
    """
    comm = world()
    collectives = [
        name for name in BLOCKING if not (is_send(name) or is_receive(name) or name in PROBES)
    ]

    def refuse(name: str, *args, **kwargs):
        raise WrongAnswer(
            "forgets-the-group",
            f"it calls `comm.{name}`, which asks all ranks of the world, whatever group the caller "
            "meant. Use `dist`, with `group=group`",
        )

    for name in collectives:
        setattr(comm, name, functools.partial(refuse, name))
    try:
        yield
    finally:
        for name in collectives:
            delattr(comm, name)


class _Recorder:
    """Writes calls down in ``log`` and passes them on."""

    def __init__(
        self, group: dist.ProcessGroup | None, only: object, labels: Mapping[int, str]
    ) -> None:
        self.log: list[LoggedCall] = []
        self._group, self._only, self._labels = group, only, labels

    def of(self, name: str, original: Callable) -> Callable:
        """Return the function ``name``, whose calls are written down."""
        signature = inspect.signature(original)
        own = list(signature.parameters)[name in _OWN_DATA_SECOND]
        kind = name.removeprefix("i") if name in _MESSAGES else "collective"

        @functools.wraps(original)
        def call(*args, **kwargs):
            given = signature.bind(*args, **kwargs).arguments
            event = self._begin(kind, name, given, given.get(own))
            answer = original(*args, **kwargs)
            event.finished, event.end = True, time.perf_counter()
            if name == "recv":
                event.peer, event.content = answer, _content(given["tensor"])
            elif isinstance(answer, dist.Work):
                _mark_waiting(answer, [event])
            return answer

        call.records = getattr(original, "records", original)
        return call

    def of_batch(self, original: Callable) -> Callable:
        """Return ``batch_isend_irecv``, each of whose messages is written down."""

        @functools.wraps(original)
        def call(p2p_op_list):
            events = []
            for one in p2p_op_list:
                if isinstance(one, _PlainOperation):  # else PyTorch will say what is wrong
                    kind = one.op.__name__.removeprefix("i")
                    given = {_END[kind]: one.peer, **vars(one)}
                    events.append(self._begin(kind, "batch_isend_irecv", given, one.tensor))
            works = original(p2p_op_list)
            for event in events:
                event.finished, event.end = True, time.perf_counter()
            for work, event in zip(works, events, strict=False):
                _mark_waiting(work, [event] if len(works) == len(events) else events)
            return works

        return call

    def _begin(self, kind: str, name: str, given: Mapping, own: object) -> LoggedCall:
        event = LoggedCall(kind, name, nbytes=_size(own), rank=dist.get_rank())
        group = self._group
        event.on_group = group is None or any(value is group for value in given.values())
        if kind in _END:
            if self._only is not None and given.get("group") is not self._only:
                raise OutsideTheGroupError(f"dist.{name} was not given `group=group`")
            _describe_message(event, given, self._labels)
        event.start = time.perf_counter()
        self.log.append(event)
        return event


_END = {"send": "dst", "recv": "src"}
_PlainOperation = dist.P2POp


class _OperationOfBatch(_PlainOperation):
    """A ``P2POp`` that takes ``isend`` and ``irecv`` also while they are written down."""

    def __new__(cls, op: Callable, *args, **kwargs) -> dist.P2POp:
        return super().__new__(cls, getattr(op, "records", op), *args, **kwargs)

    def __init__(self, op: Callable, *args, **kwargs) -> None:
        super().__init__(getattr(op, "records", op), *args, **kwargs)


def _describe_message(event: LoggedCall, given: Mapping, labels: Mapping[int, str]) -> None:
    end = _END[event.kind]
    event.peer, event.tag = given.get(end), given.get("tag", 0)
    if event.peer is None and given.get(f"group_{end}") is not None:
        members = given.get("group") or dist.group.WORLD
        event.peer = dist.get_global_rank(members, given[f"group_{end}"])
    event.label = labels.get(event.tag, f"tag {event.tag}" if labels else "")
    event.any_source = event.kind == "recv" and event.peer is None
    if event.kind == "send":
        event.content = _content(given["tensor"])


def _mark_waiting(work, events: list[LoggedCall]) -> None:
    def marked(method: Callable, *args, **kwargs):
        for event in events:
            event.waited = True
        return method(*args, **kwargs)

    for event in events:
        event.waited = False
    for name in ("wait", "get_future"):
        setattr(work, name, functools.partial(marked, getattr(work, name)))


def _size(data: object) -> int | None:
    """Bytes of a tensor or of a list of them; None where it is another object."""
    if isinstance(data, torch.Tensor):
        return data.numel() * data.element_size()
    if isinstance(data, (list, tuple)) and all(isinstance(item, torch.Tensor) for item in data):
        return sum(_size(item) for item in data)
    return None


def _content(tensor: torch.Tensor) -> list | None:
    return tensor.flatten().tolist() if tensor.numel() <= _CONTENT_OF_AT_MOST else None
