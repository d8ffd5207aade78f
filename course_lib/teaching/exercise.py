"""Marks a function as the check of an exercise, which judges a learner's function.

A check is written in ``notebooks/lesson_NN/exercises.py``::

    @exercise("01.ring_pass", function="ring_pass", where="engines", hints=[weak, more, most])
    def check_ring_pass(ring_pass) -> str:
        ...  # call ring_pass; raise WrongAnswer("ring-not-closed", "rank 3 never sends ...")
        return "The token went once round."  # said after "right."

With ``where="engines"`` it runs on every rank with that rank's function, with
``where="notebook"`` once, in the notebook's kernel. Such a check must not import
:mod:`torch_mpi4py` or torch before it is called: a kernel is no rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal, NamedTuple

DEADLINE_SECONDS = 40.0

Where = Literal["engines", "notebook"]


class WrongAnswer(Exception):
    """A learner's function makes a mistake that the check recognises.

    With ``from error`` it explains an exception of the learner's function; without, that exception
    is shown in its place.

    Attributes:
        name: the mistake's name, e.g. ``"ring-not-closed"``.
        explanation: what is wrong, for the learner; also the text of the exception.
    """

    def __init__(self, name: str, explanation: str):
        super().__init__(name, explanation)  # both, so that it can be pickled
        self.name, self.explanation = name, explanation

    def __str__(self) -> str:
        return self.explanation


class Staged(Exception):
    """What a check itself raises inside a learner's function, to see what becomes of it."""


@contextmanager
def as_mistake(name: str, explanation: str) -> Iterator[None]:
    """Whatever goes wrong inside is this one mistake: what went before was right.

    An exception of the learner's is shown before the explanation.
    """
    try:
        yield
    except WrongAnswer as error:
        raises = error.name == "it-raises"
        first, then = (error, explanation) if raises else (explanation, error)
        raise WrongAnswer(name, f"{first} ({then})") from error.__cause__


class Exercise(NamedTuple):
    """What is known of an exercise without running anything.

    ``deadline``: seconds that the whole check may take.
    """

    id: str
    function: str
    where: Where
    hints: tuple[str, ...]
    deadline: float
    module: str
    checker: str


def exercise(
    id: str,
    *,
    function: str,
    where: Where,
    hints: list[str],
    deadline: float = DEADLINE_SECONDS,
) -> Callable[[Callable], Callable]:
    """Mark a function as the check of exercise ``id``; see the module's text.

    Raises:
        ValueError: if ``where`` is unknown or there are not three hints.
    """
    if where not in ("engines", "notebook"):
        raise ValueError(f"{id}: where must be 'engines' or 'notebook', not {where!r}")
    if len(hints) != 3:
        raise ValueError(f"{id}: an exercise has three hints, not {len(hints)}")

    def mark(check: Callable) -> Callable:
        check.exercise = Exercise(  # type: ignore[attr-defined]
            id, function, where, tuple(hints), deadline, check.__module__, check.__name__
        )
        return check

    return mark
