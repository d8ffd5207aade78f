"""While a learner's function runs, every call to ``torch.distributed`` is counted.

The calls go through to the real process group. What is written down is which function was
called, on which group, and with how many bytes of this rank's own: the budget of a collective.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch_mpi4py import world

from .message_log import Event, Observation, portable

__all__ = ["observe_distributed", "recorded"]

# The position of the argument that holds what this rank itself passes in. PyTorch 2.13 has new
# names for some; not every release has them all.
_OWN_DATA = {
    "all_reduce": 0,
    "broadcast": 0,
    "reduce": 0,
    "send": 0,
    "isend": 0,
    "recv": 0,
    "irecv": 0,
    "all_gather": 1,
    "all_gather_into_tensor": 1,
    "all_gather_single": 1,
    "gather": 0,
    "scatter": 1,
    "reduce_scatter": 1,
    "reduce_scatter_tensor": 1,
    "reduce_scatter_single": 1,
    "all_to_all": 1,
    "all_to_all_single": 1,
    "all_gather_object": 1,
    "gather_object": 0,
    "broadcast_object_list": 0,
    "scatter_object_list": 1,
    "batch_isend_irecv": 0,
}
_POINT_TO_POINT = {"send", "isend", "recv", "irecv", "batch_isend_irecv"}


@contextmanager
def recorded(group: dist.ProcessGroup) -> Iterator[list[Event]]:
    """Yield a list that fills with an :class:`Event` per call to ``torch.distributed``.

    An event's ``content`` says whether the call was on ``group``.
    """
    log: list[Event] = []
    originals = {name: getattr(dist, name) for name in _OWN_DATA if hasattr(dist, name)}
    for name, original in originals.items():
        setattr(dist, name, _recorder(name, original, log, group))
    try:
        yield log
    finally:
        for name, original in originals.items():
            setattr(dist, name, original)


def observe_distributed(
    function: Callable, *args, ranks: list[int] | None = None, timeout: float = 6.0
) -> Observation | None:
    """Call ``function(*args, group)`` on each of ``ranks`` and tell all ranks what happened.

    Every rank of the world must call this. ``ranks``: those of the group, by default all. The
    group is made for this call, with a deadline of ``timeout`` seconds, so a hang ends there
    and harms no other group. Ranks outside the group get results and errors of None.
    """
    group = dist.new_group(ranks, timeout=timedelta(seconds=timeout))
    result, error, log = None, None, []
    if ranks is None or dist.get_rank() in ranks:
        with recorded(group) as log:
            try:
                result = function(*args, group)
            except Exception as raised:  # told to every rank below, and judged by the caller
                error = raised
        dist.destroy_process_group(group)
    everyone = world().allgather((portable(result), portable(error), log))
    results, errors, logs = (list(column) for column in zip(*everyone, strict=True))
    return Observation(results, errors, logs)


def _recorder(name: str, original: Callable, log: list[Event], group: dist.ProcessGroup):
    signature = inspect.signature(original)
    own = list(signature.parameters)[_OWN_DATA[name]]
    kind = "send" if name in _POINT_TO_POINT else "collective"

    @functools.wraps(original)
    def call(*args, **kwargs):
        given = signature.bind(*args, **kwargs).arguments
        on_group = any(value is group for value in given.values())
        event = Event(kind, name, nbytes=_size(given.get(own)), content=on_group)
        log.append(event)
        answer = original(*args, **kwargs)
        event.finished = True
        return answer

    return call


def _size(data: object) -> int | None:
    """Bytes of a tensor or of a list of them; None where it is another object."""
    if isinstance(data, torch.Tensor):
        return data.numel() * data.element_size()
    if isinstance(data, (list, tuple)) and all(isinstance(item, torch.Tensor) for item in data):
        return sum(_size(item) for item in data)
    return None
