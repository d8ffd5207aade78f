"""Recognises why there is no result: not attempted, an exception, calls that do not fit, a hang.

Every judge checks this first. ``errors`` has each rank's exception, None if it raised nothing. The
cause is named and not its consequence: one rank's exception before the others' wait for it. Errors
are identified by name, so that a notebook's kernel, which is not a rank, needs no MPI here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..exercise import WrongAnswer, staged
from .trials import in_short

_LONGEST = 1000  # characters of an error's text

Errors = Sequence[BaseException | None]


class NotAttempted(NotImplementedError):
    """The function is still the stub, on this rank or on another one."""


class StandIn(RuntimeError):
    """An exception of the learner's that the check could not handle; its text is ``in_full``."""


def was_kept_waiting(error: BaseException | None) -> bool:
    """Return whether ``error`` only says that others did not come."""
    return type(error).__name__ in ("DeadlineError", "RevokedError", "StuckError")


def is_own(error: BaseException) -> bool:
    """Return whether a learner's function raised ``error`` by itself.

    It did not if it was kept waiting, is still the stub, or a check caused the error.
    """
    by_the_check = isinstance(error, (WrongAnswer, NotImplementedError)) or staged(error)
    return (
        not by_the_check and not was_kept_waiting(error) and type(error).__name__ != "MismatchError"
    )


def own_error(errors: Errors) -> tuple[int, BaseException] | None:
    """Return the first rank that failed by itself, and its error."""
    for rank, error in enumerate(errors):
        if error is not None and not was_kept_waiting(error):
            return rank, error
    return None


def not_attempted(errors: Errors) -> None:
    """Raise NotAttempted if a rank's function is still the stub."""
    for error in errors:
        if isinstance(error, NotImplementedError):
            raise NotAttempted from error


def judge_errors(errors: Errors, who: str = "rank {}") -> None:
    """Raise a rank's own error; ``who`` is the text that names rank {}."""
    not_attempted(errors)
    for error in errors:
        if isinstance(error, WrongAnswer):
            raise error
        if type(error).__name__ == "MismatchError":
            calls = [line.strip() for line in str(error).splitlines() if " rank " in line]
            raise WrongAnswer("ranks-disagree", calls="; ".join(calls))
    failed = own_error(errors)
    if failed is not None:
        rank, error = failed
        raise WrongAnswer(
            "it-raises: on a rank", who=who.format(rank), error=in_one_line(error)
        ) from error


def text_of(value: object, form: Callable[[Any], str] = str) -> str:
    """Return the text of an error or a result; if its own code fails, what that raised."""
    try:
        return form(value)
    except Exception as error:
        return f"(its text cannot be shown: that raised {type(error).__name__})"


def in_full(error: BaseException) -> str:
    """Return the error's kind and its text, if it has one; of a very long one both ends."""
    text = in_short(text_of(error).strip(), _LONGEST)
    if isinstance(error, StandIn):
        return text
    return f"{type(error).__name__}: {text}".removesuffix(": ")


def in_one_line(error: BaseException) -> str:
    """Return the error's kind and the first line of its text."""
    return in_full(error).splitlines()[0]


def need_training_mode(training: bool) -> None:
    """Raise unless the model is in training mode, as it was before the learner's function."""
    if not training:
        raise WrongAnswer("leaves-eval-mode")
