"""Helps with an exercise in steps: three hints, each stronger, then the worked solution."""

from __future__ import annotations

from collections import Counter

from . import record
from .catalogue import find
from .solution_marks import unmarked

_given: Counter[str] = Counter()  # of this kernel


def hint(id: str) -> None:
    """Show the next of the three hints for exercise ``id``."""
    hints = find(id).hints
    number = _given[id]
    if number == len(hints):
        _show(f'There are no more hints for {id}. `solution("{id}")` shows a worked solution.')
        return
    _given[id] += 1
    record.asked(id, "hint")
    gap = "\n\n" if hints[number].startswith("```") else " "  # code starts on a line of its own
    _show(f"**Hint {number + 1} of {len(hints)}.**{gap}{hints[number]}")


def solution(id: str) -> None:
    """Show a worked solution of exercise ``id``."""
    from .lessons import exercise_cell

    find(id)
    record.asked(id, "solution")
    _show(f"**A solution to {id}.**\n\n```python\n{unmarked(exercise_cell(id))}\n```")


def _show(markdown: str) -> None:
    from IPython import get_ipython

    if get_ipython() is None:
        print(markdown)
        return
    from IPython.display import Markdown, display

    display(Markdown(markdown))
