"""Takes worked solutions out of exercises' cells, by two marks around each of them.

The marks are nbgrader's own, ``### BEGIN SOLUTION`` and ``### END SOLUTION``, on lines of their
own. nbgrader's preprocessor is not used: it would bring a web server's and a database's packages
with it, takes longer to import than the whole workspace takes to make, needs cells marked as
graded, and leaves a stub without a word on what to do.
"""

from __future__ import annotations

BEGIN, END = "### BEGIN SOLUTION", "### END SOLUTION"
STUB = 'raise NotImplementedError("replace this line with your own")'


class MarkError(ValueError):
    """The marks of a solution do not come in pairs."""


def blanked(source: str) -> str:
    """Return ``source`` with each marked solution replaced by a line that raises when called.

    Raises:
        MarkError: if a mark is missing.
    """
    kept: list[str] = []
    inside = False
    for line in source.split("\n"):
        mark = line.strip()
        if mark in (BEGIN, END) and inside == (mark == BEGIN):
            raise MarkError(f"{mark} without its counterpart")
        if mark == BEGIN:
            inside = True
            kept.append(line[: len(line) - len(line.lstrip())] + STUB)
        elif mark == END:
            inside = False
        elif not inside:
            kept.append(line)
    if inside:
        raise MarkError(f"{BEGIN} without its counterpart")
    return "\n".join(kept)


def unmarked(source: str) -> str:
    """Return ``source`` with the solution in it and without the marks."""
    return "\n".join(line for line in source.split("\n") if line.strip() not in (BEGIN, END))
