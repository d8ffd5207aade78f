"""Marks a function as the check of an exercise, which judges a learner's function.

A check is written in ``notebooks/lesson_NN/exercises.py``::

    @exercise("01.ring_pass", function="ring_pass", where="engines", hints=[weak, more, most])
    def check_ring_pass(ring_pass) -> str:
        ...  # call ring_pass; raise WrongAnswer("ring-not-closed", last=3)
        return "The token went once round."  # said after "right."

The message about a mistake is in ``mistakes.md`` beside it (:mod:`.mistakes`).

With ``where="engines"`` it runs on every rank with that rank's function, with
``where="notebook"`` once, in the notebook's kernel. Such a check must not import
:mod:`torch_mpi4py` or torch before it is called: a kernel is not a rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from numbers import Number
from typing import Any, Literal, NamedTuple

DEADLINE_SECONDS = 40.0
WAIT_SECONDS = 30.0
"""How long a rank waits at most for the others in a check: they may still run the function."""
CALL_SECONDS = 15.0
"""How long a call in a learner's function may take if nothing shows that it will never end.

Other ranks may come late for good reasons: a process imports torch's compiler, 1.5 s on a core,
when it creates its first optimizer, and in a crowd that takes many seconds more on some ranks.
"""

Where = Literal["engines", "notebook"]


class WrongAnswer(Exception):
    """A learner's function makes a mistake that the check recognises.

    The learner's message is in the lesson's ``mistakes.md``, below the mistake's name. With
    ``from error``, it explains an exception of the learner's function; without, that exception is
    shown in its place.

    Attributes:
        name: the mistake's name, e.g. ``"ring-not-closed"``; where a mistake has several texts,
            with what is different, as in ``"given-twice: to one rank"``.
        fields: numbers and texts for the fields of the message. Other values are kept as text,
            so that all can be sent from rank to rank; another WrongAnswer is explained.
        reason: a mistake that shows this one, explained in brackets.
        further: mistakes made together with this one, explained after it.
    """

    def __init__(self, name: str, /, **fields: Any):
        super().__init__(name)
        self.name = name
        self.fields = {key: _as_it_is_told(value) for key, value in fields.items()}
        self.reason: WrongAnswer | None = None
        self.further: list[WrongAnswer] = []

    @property
    def mistake(self) -> str:
        """The mistake's name, without what is different in this text."""
        return self.name.partition(":")[0]

    def __str__(self) -> str:
        fields = ", ".join(f"{key}={value!r}" for key, value in self.fields.items())
        return f"{self.name}({fields})"


def _as_it_is_told(value: Any) -> Any:
    return value if isinstance(value, (str, Number, WrongAnswer)) else f"{value}"


NEEDS_PROCESS_GROUP = (
    "there is no process group: run the lesson's first cell with dist.init_process_group, then "
    "this one"
)


class CheckImpossibleError(RuntimeError):
    """Something that a check needs is missing, such as ranks; the message says what to run."""


class Staged(Exception):
    """Raised by a check inside a learner's function, to see how the function reacts."""


def staged(error: BaseException | None) -> bool:
    """Return whether a check has raised this error, or its cause (``raise ... from``)."""
    while error is not None and not isinstance(error, Staged):
        error = error.__cause__
    return error is not None


@contextmanager
def as_mistake(name: str, /, **fields: Any) -> Iterator[None]:
    """Treat any failure inside the block as this one mistake: everything before it was right.

    The failure is explained in brackets, except an exception of the learner's, which comes first.
    """
    try:
        yield
    except WrongAnswer as error:
        wrong = WrongAnswer(name, **fields)
        wrong.reason = error
        raise wrong from error.__cause__


class Exercise(NamedTuple):
    """The description of an exercise, available without running anything.

    ``deadline``: seconds that the whole check may take. ``ranks``: how many its check needs at
    least, if it runs on them. ``sure_on``: on how many a right verdict is certain.
    """

    id: str
    function: str
    where: Where
    hints: tuple[str, ...]
    deadline: float
    module: str
    checker: str
    ranks: int
    sure_on: int


def exercise(
    id: str,
    *,
    function: str,
    where: Where,
    hints: list[str],
    deadline: float = DEADLINE_SECONDS,
    ranks: int = 2,
    sure_on: int = 3,
) -> Callable[[Callable], Callable]:
    """Mark a function as the check of exercise ``id``; see the module's text.

    On one rank, an answer that sends nothing would be right: set ``ranks=1`` only if the function
    does not communicate. On two, left is right, and the root or the last: a learner with fewer
    than ``sure_on`` ranks is told so. Set it lower if the check finds all mistakes there too, for
    instance because it rehearses other numbers of ranks.

    Raises:
        ValueError: if ``where`` is unknown or there are not three hints.
    """
    if where not in ("engines", "notebook"):
        raise ValueError(f"{id}: where must be 'engines' or 'notebook', not {where!r}")
    if len(hints) != 3:
        raise ValueError(f"{id}: an exercise has three hints, not {len(hints)}")

    def mark(check: Callable) -> Callable:
        names = (check.__module__, check.__name__)
        check.exercise = Exercise(  # type: ignore[attr-defined]
            id, function, where, tuple(hints), deadline, *names, ranks, sure_on
        )
        return check

    return mark
