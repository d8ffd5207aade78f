"""Unifies torch's several ways of passing options to a collective.

PyTorch's functions hand a group's methods an options object. Communication hooks and programs may
give the reduce operation, the root or the timeout alone, or nothing at all.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from datetime import timedelta
from typing import Any, SupportsIndex, TypeVar

import torch.distributed as dist

from ..core.buffers import NoValuesError

_Options = TypeVar("_Options")
# What the options may hold. A reduce operation has an index, too, so it comes first.
_FIELDS = (
    ("reduceOp", dist.ReduceOp, "a reduce operation"),
    ("timeout", timedelta, "a timeout"),
    ("rootRank", SupportsIndex, "a root"),
)


def options_of(kind: type[_Options], what: str, *given: Any) -> _Options:
    """Return torch's options object of the ``kind`` for what a call was given.

    Args:
        kind: the class of the options, e.g. ``AllreduceOptions``.
        what: the method, for error messages.
        given: an options object; or a reduce operation, a root (int) and a timeout (timedelta), in
            any order; None for an option that the caller left out.

    Raises:
        TypeError: for anything else, or if something else than the root is given, but no root.
    """
    named = [value for value in given if value is not None]
    if len(named) == 1 and (type(named[0]) is kind or _stands_for(kind, named[0])):
        return named[0]
    options = kind()
    fields = [_field_for(value, kind, what) for value in named]
    if len(set(fields)) < len(fields):
        raise TypeError(f"{what}: {' and '.join(map(repr, named))} are the same argument")
    if fields and "rootRank" not in fields and hasattr(kind, "rootRank"):
        raise TypeError(f"{what}: no root was given")
    for field, value in zip(fields, named, strict=True):
        setattr(options, field, operator.index(value) if field == "rootRank" else value)
    return options


def _stands_for(kind: type, given: Any) -> bool:
    """Whether ``given`` are options of another kind that hold all that ``kind`` needs."""
    fields = ("asyncOp", *(field for field, _, _ in _FIELDS if hasattr(kind, field)))
    return all(hasattr(given, field) for field in fields)


def _field_for(value: Any, kind: type, what: str) -> str:
    meant = next((field for field, type_, _ in _FIELDS if isinstance(value, type_)), None)
    if meant is not None and hasattr(kind, meant):
        return meant
    allowed = ", ".join(words for field, _, words in _FIELDS if hasattr(kind, field))
    given = f"{type(value).__name__} {value!r}"
    raise TypeError(f"{what} takes {kind.__name__}, or {allowed}, not {given}")


# Names that only newer versions of torch have, and those that all have.
_TORCH_NAMES = {
    "all_gather_single": "_allgather_base",
    "reduce_scatter_single": "_reduce_scatter_base",
    "all_to_all_single": "alltoall_base",
    "_allreduce": "allreduce",
}


def without_values(method: Callable) -> Callable:
    """Have a method take fake tensors, too, which have no values.

    Torch's own groups let a tracer record the call, and move no data.
    """
    name = _TORCH_NAMES.get(method.__name__, method.__name__)

    @functools.wraps(method)
    def call(group: Any, *given: Any, **named: Any) -> Any:
        try:
            return method(group, *given, **named)
        except NoValuesError:
            torchs = dist.ProcessGroup(group.rank(), group.size())
        return getattr(torchs, name)(*given, **named)

    return call


def in_every_form(kind: type, **tensors: str) -> Callable[[Callable], Callable]:
    """Have a method that takes tensors and options accept the arguments of all torch's overloads.

    The options may also be passed as their individual values, by name, or by position in any order.

    Args:
        kind: the class of the options, which are the method's last argument.
        tensors: torch's name of each argument before it, and its second name, "" if it has none.

    Raises (when called):
        TypeError: if a tensor is not given or given twice, or as :func:`options_of` says.
    """

    def decorate(method: Callable) -> Callable:
        what = method.__name__.lstrip("_")

        @without_values
        @functools.wraps(method)
        def call(group: Any, *given: Any, **named: Any) -> Any:
            if len(given) == len(tensors) + 1 and type(given[-1]) is kind and not named:
                return method(group, *given)  # as torch's own functions do
            rest = list(given)
            values = []
            for name, other in tensors.items():
                found = [rest.pop(0) if rest else None, named.pop(name, None)]
                found = [value for value in (*found, named.pop(other, None)) if value is not None]
                if len(found) > 1 or (other and not found):
                    names = f"{name} or {other}" if other else name
                    raise TypeError(f"{what}: {'both ' if found else 'no '}{names} given")
                values.append(found[0] if found else None)
            rest += [named.pop(name, None) for name in ("opts", "root", "op", "timeout")]
            if named:
                raise TypeError(f"{what} takes no argument named {', '.join(named)}")
            return method(group, *values, options_of(kind, what, *rest))

        return call

    return decorate
