'''What a learner sees and calls beside the lesson's own code.

In notebooks::

    from course_lib.teaching import check, compare, figures, hint, solution

Writing a lesson
----------------
A lesson is written once, in ``notebooks/lesson_NN/NN_name.py``, a jupytext percent script.
``make notebooks`` executes it to ``notebooks/NN_name.ipynb`` (``ARGS="--only 01"``, ``--all``,
``--check``); ``make lab`` makes the learner's copy in ``workspace/`` from that, solutions
blanked and outputs cleared. Commit source and notebook together; a test compares them.
``python -m course_lib.teaching.lint`` says in a second which rule for sources is broken.

- Magics are written as comments, ``# %%px``, and a cell magic stands in its cell's first line.
- Outputs are compared at each ``make test``. A cell that shows times, process ids or anything
  else that differs from run to run has the tag ``nbval-ignore-output``, and an ``assert`` for
  what must be true. A cell that is meant to fail has the tag ``raises-exception``, and has to.
- Nothing on stderr, no widget, no path of your machine, no picture without alternative text.

An exercise is a function to fill in, a check, and the offer of help::

    # %% tags=["exercise"] exercise="01.ring_pass"
    # %%px
    def ring_pass(comm, token):
        """What it is given and what it returns: the learner sees this."""
        ### BEGIN SOLUTION
        ...
        ### END SOLUTION


    # %% tags=["check"]
    check("01.ring_pass")

    # %% [markdown]
    # Stuck? `hint("01.ring_pass")`, `solution("01.ring_pass")`.

No later cell may need the learner's function. Its check stands in
``notebooks/lesson_01/exercises.py``, and :mod:`.exercise` says how to write one; mistakes that
several lessons recognise are in :mod:`.judges`. Judge the method, not only the answer:
:mod:`.message_log` and :mod:`.collective_log` write down what is sent on all ranks. In
``notebooks/lesson_01/wrong_answers.py`` stand at least three wrong answers, by the name of
the mistake that the check has to recognise.
'''

from importlib import import_module

__all__ = ["check", "compare", "figures", "hint", "solution", "timeline"]

_HOMES = {
    "check": "checking",
    "compare": "comparison",
    "hint": "help",
    "solution": "help",
    "timeline": "timelines",
}


def __getattr__(name: str):
    # Imported on first use: the workspace is made by this package too, and must be quick.
    if name == "figures":
        return import_module(f"{__name__}.figures")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
