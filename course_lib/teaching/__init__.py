"""The functions that learners call beside the lesson's own code, and the tools behind lessons.

In notebooks::

    from course_lib.teaching import check, compare, figures, hint, progress, solution
    from course_lib.teaching import yours_or_solution

====================================== ==========================================================
:func:`check`, :func:`hint`,           an exercise is judged, and help is offered
:func:`solution`
:func:`yours_or_solution`              a later cell goes on with the learner's function
:func:`compare`                        a prediction beside what came out
:func:`progress`, :mod:`.record`       which exercises are solved, tried and skipped
:mod:`.figures`, :func:`timeline`      pictures, and one lane a rank from the event log
:mod:`.cost`                           what a message and an all-reduce will cost
:mod:`.exercise`, :mod:`.catalogue`    how a check is written, and found in a lesson's room
:mod:`.message_log`,                   what an answer sent, to whom and in which order
:mod:`.distributed_log`
:mod:`.turns`                          functions that wait for each other on one thread
:mod:`.lessons`                        where the lessons are; their texts
:mod:`.workspace`                      the learner's own copies
====================================== ==========================================================

Code for only one lesson is in its room, ``notebooks/lesson_NN``. ``docs/new_lesson.md`` shows how
to write one.
"""

from importlib import import_module
from typing import Any

__all__ = [
    "check",
    "compare",
    "figures",
    "hint",
    "progress",
    "solution",
    "timeline",
    "yours_or_solution",
]

_HOMES = {
    "check": "checking",
    "compare": "comparison",
    "hint": "help",
    "progress": "record",
    "solution": "help",
    "timeline": "timelines",
    "yours_or_solution": "own_function",
}


def __getattr__(name: str) -> Any:
    # Imported on first use: the workspace is made by this package too, and must be quick.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
