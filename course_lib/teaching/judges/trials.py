"""Tries a learner's function in several cases: results, arguments left alone, the same once more.

The part that all judges of formulas share, so that each only lists its cases and the right results.
It needs neither ranks nor torch.
"""

from __future__ import annotations

import copy
import inspect
import itertools
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from fractions import Fraction
from numbers import Number
from pathlib import PurePath
from typing import Any

from ..exercise import WrongAnswer, as_mistake

_LONGEST = 200  # characters of a value that is shown
_MOST_ITEMS = 1_000_000  # of what a generator yields


class Trials:
    """A learner's function, called once in each case, with arguments of its own.

    Attributes:
        given: its result in each case, in Python's own numbers and lists.
    """

    def __init__(self, function: Callable, cases: Sequence[tuple]) -> None:
        self._function, self._cases = function, cases
        self._changed: tuple[tuple, str] | None = None
        self.given = [self._called(case) for case in cases]

    def _called(self, case: tuple) -> Any:
        given = copy.deepcopy(case)
        result = plain(returned(self._function, *given))
        for number, (before, after) in enumerate(zip(case, given, strict=True)):
            if self._changed is None and not callable(before) and before != after:
                self._changed = case, argument_name(self._function, number)
        return result

    def judge_manners(self, same: Callable[[Any, Any], bool]) -> None:
        """Raise if the function changes an argument, or returns something else the next time.

        To be called when the results are right: a wrong one is told first.
        """
        if self._changed is not None:
            case, name = self._changed
            raise WrongAnswer("changes-its-input: an argument", case=written(case), argument=name)
        # In the other order: one that counts calls, or keeps what it has made, is found out.
        for case, first in reversed(list(zip(self._cases, self.given, strict=True))):
            again = self._called(case)
            if not same(again, first):
                raise WrongAnswer(
                    "remembers-earlier-calls",
                    case=written(case),
                    given=shown(again),
                    wanted=shown(first),
                )


@contextmanager
def second_call() -> Iterator[None]:
    """Blame failures inside the block on an earlier call, which was right."""
    with as_mistake("remembers-earlier-calls: a second call"):
        yield


def argument_name(function: Callable, number: int) -> str:
    """Return the function's own name for its argument of that number, counted from 0."""
    names = list(inspect.signature(function).parameters)
    return names[number] if number < len(names) else f"argument {number + 1}"


def is_text(value: object) -> bool:
    """Tell whether it is a text, which Python would turn into a number if it looks like one."""
    return isinstance(value, (str, bytes, bytearray))


def plain(value: Any) -> Any:
    """Return arrays, tensors and their numbers as Python's own, even inside lists.

    A number too large for a float is infinite.
    """
    if isinstance(value, (tuple, list)):
        return type(value)(map(plain, value)) if type(value) in (tuple, list) else [*value]
    largest = sys.float_info.max
    if isinstance(value, int | Fraction) and not -largest <= value <= largest:
        return math.inf if value > 0 else -math.inf
    return value.tolist() if hasattr(value, "tolist") else value


def returned(function: Callable, *arguments: Any) -> Any:
    """Call a learner's function; list what it yields, and mark its exceptions as its own.

    A list that never ends would fill the memory before the deadline: it has a million items.
    """
    result = function(*arguments)
    if not isinstance(result, Iterator):
        return result
    items = itertools.islice(result, _MOST_ITEMS)
    return getattr(function, "call", lambda listed, items: listed(items))(list, items)


def written(case: tuple) -> str:
    """Return arguments as they appear between the brackets of a call."""
    return ", ".join("a function" if callable(value) else in_short(_exact(value)) for value in case)


def named(function: Callable, arguments: tuple) -> str:
    """Return those arguments of a call that mean something to a reader, with their names."""
    return ", ".join(
        f"{argument_name(function, number)}={in_short(_exact(value))}"
        for number, value in enumerate(arguments)
        if is_data(value)
    )


def shown(value: object) -> str:
    """Return a result as shown to a learner: floats rounded, a long one cut to its two ends."""
    return in_short(_rounded(value))


def in_short(text: str, longest: int = _LONGEST) -> str:
    """Return a text, a long one cut to its two ends."""
    if len(text) <= longest:
        return text
    return f"{text[: longest - 40]} ... {text[-30:]}"


def _rounded(value: object) -> str:
    return _with_floats(value, "{:.6g}".format)


def _exact(value: object) -> str:
    def short(number: float) -> str:
        return f"{number:g}" if float(f"{number:g}") == number else repr(number)  # 3e+09

    return _with_floats(value, short)


def _with_floats(value: object, form: Callable[[float], str]) -> str:
    if type(value) in (tuple, list):
        parts = [_with_floats(item, form) for item in value]  # type: ignore[attr-defined]
        if isinstance(value, list):
            return f"[{', '.join(parts)}]"
        return f"({parts[0]},)" if len(parts) == 1 else f"({', '.join(parts)})"
    return form(value) if isinstance(value, float) else repr(value)


def is_data(value: object) -> bool:
    """Tell whether a value means something to a reader when it is shown."""
    if isinstance(value, Mapping):
        return all(map(is_data, value)) and all(map(is_data, value.values()))
    if isinstance(value, (tuple, list, Set)):
        return all(map(is_data, value))
    return value is None or isinstance(value, (str, bytes, Number, range, PurePath))
