"""Gives a later cell the learner's own function, or the worked solution if there is none.

A lesson goes on with what a learner has written::

    my_order = yours_or_solution("10.order")

and also runs to its end for learners who skip the exercise, or whose function is not right yet.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from .catalogue import find
from .exercise import Exercise
from .run_check import is_learners, verdict_on
from .solution_marks import STUB, unmarked

_STUB_SAYS = STUB.partition('"')[2].rpartition('"')[0]


def yours_or_solution(id: str) -> Callable:
    """Return your function of exercise ``id``; the worked solution, if yours cannot be used.

    Yours is used if it is written and the check has not found it wrong. Otherwise a line says so.
    On the ranks all of them must call this; either all get their own, or all get the solution.

    Raises:
        UnknownExerciseError: if there is no such exercise.
        RuntimeError: if the exercise runs on the ranks, and this is the notebook.
    """
    exercise = find(id)
    names = sys._getframe(1).f_globals
    own: Any = names.get(exercise.function)
    reason, speaks = _why_not(exercise, own), True
    if exercise.where == "engines":
        if "comm" not in names:
            raise RuntimeError(f"{id} runs on the ranks: call yours_or_solution in a %%px cell")
        reason, speaks = _of_all_ranks(reason)
    if not reason:
        return own
    if speaks:
        print(f"{id}: {reason}, so the worked solution is used here.")
    return _solution(exercise, names)


def _why_not(exercise: Exercise, own: Any) -> str:
    """Return why the learner's function cannot be used; empty if it can."""
    code = getattr(own, "__code__", None)
    if not is_learners(own) or (code is not None and _STUB_SAYS in code.co_consts):
        return "you have not written it yet"
    if verdict_on(exercise.module, exercise.checker, own) not in ("", "right"):
        return "the check has not found yours right yet"
    return ""


def _of_all_ranks(reason: str) -> tuple[str, bool]:
    """Return the first reason that a rank has, and whether this rank prints it."""
    from torch_mpi4py import world

    comm = world()
    return next(filter(None, comm.allgather(reason)), ""), comm.rank == 0


def _solution(exercise: Exercise, names: dict[str, Any]) -> Callable:
    from .lessons import exercise_cell

    lines = unmarked(exercise_cell(exercise.id)).split("\n")
    code = "\n".join(line for line in lines if not line.startswith("%"))  # no magics
    room = dict(names)  # a copy: what the learner has defined stays
    exec(compile(code, f"<solution of {exercise.id}>", "exec"), room)
    return room[exercise.function]
