"""Gives each rehearsed rank globals of its own, as real ranks have, which are processes."""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType
from typing import Any

import numpy as np

__all__ = ["OnRanks"]

_KEPT = (np.ndarray, list, dict, set, bytearray)


class OnRanks:
    """A function with a copy of its globals for each rank, which lasts from call to call."""

    def __init__(self, function: Callable) -> None:
        self._function = function
        self._of_rank: dict[int, Callable] = {}

    def __getitem__(self, rank: int) -> Callable:
        if rank not in self._of_rank:
            self._of_rank[rank] = _with_own_globals(self._function)
        return self._of_rank[rank]


def _with_own_globals(function: Any) -> Callable:
    """Return the function with copies of the containers and functions that it finds in globals."""
    inner = inspect.unwrap(function)
    if not isinstance(inner, FunctionType):
        return function
    shared = inner.__globals__
    own = dict(shared)
    moved = own[inner.__name__] = _moved(inner, own)
    for name in _names_used(inner.__code__, shared):
        value = shared[name]
        if value is inner:
            own[name] = moved
        elif _is_beside(value, shared):
            own[name] = _moved(value, own)
        elif isinstance(value, _KEPT):
            own[name] = _copied(value)
    # A check's function notes what is raised (`run_check`).
    return functools.partial(function.call, moved) if hasattr(function, "call") else moved


def _moved(function: FunctionType, own: dict[str, Any]) -> FunctionType:
    defaults = _copied(function.__defaults__)
    moved = FunctionType(function.__code__, own, function.__name__, defaults, function.__closure__)
    moved.__kwdefaults__ = _copied(function.__kwdefaults__)
    moved.__dict__.update(_copied(function.__dict__))
    return moved


def _copied(value: Any) -> Any:
    with contextlib.suppress(Exception):  # what can't be copied, such as a communicator, is shared
        return copy.deepcopy(value)
    return value


def _is_beside(value: object, shared: dict[str, Any]) -> bool:
    return isinstance(value, FunctionType) and value.__globals__ is shared


def _names_used(code: CodeType, shared: dict[str, Any]) -> set[str]:
    """Return the globals that a function names, and those that its helpers name."""
    found: set[str] = set()
    codes = [code]
    while codes:
        for name in set(_names(codes.pop())) & shared.keys() - found:
            found.add(name)
            if _is_beside(shared[name], shared):
                codes.append(shared[name].__code__)
    return found


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
