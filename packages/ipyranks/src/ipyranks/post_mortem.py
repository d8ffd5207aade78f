"""Looks into the latest error of a rank, on that rank: IPython's pdb, a line of commands at a time.

The notebook sends each line (:mod:`.prompt`). Between two lines the rank is as idle as after any
cell, so nothing has to be freed when the notebook leaves or ends.
"""

from __future__ import annotations

import io
import sys
from types import TracebackType

from .rank_pdb import RankPdb
from .tracebacks import CELL_FILE

_open: PostMortem | None = None


class PostMortem(RankPdb):
    """Pdb on the traceback of an error.

    Args:
        traceback: of the error, from its first call in a cell on.
    """

    def __init__(self, traceback: TracebackType) -> None:
        # A command that would read more lines, like `interact`, finds that there are none.
        super().__init__(io.StringIO())
        self.reset()
        self.setup(None, traceback)

    def answer(self, line: str) -> tuple[str, bool]:
        """Carry out a line of commands; return pdb's output, and whether one of them leaves."""
        self.cmdqueue = [line]
        leaves = False
        while self.cmdqueue and not leaves:
            leaves = bool(self.onecmd(self.precmd(self.cmdqueue.pop(0))))
        return self.taken(), leaves

    def place(self) -> str:
        """The current call of the prompt, with the lines around it."""
        self.print_stack_entry(self.stack[self.curindex])
        return self.taken()


def begin() -> tuple[str, str] | None:
    """Open a prompt on the latest error that a cell has raised on this rank.

    Returns:
        The error, in a line, and the call that raised it; None if there is no error to look into.
    """
    global _open
    error = getattr(sys, "last_value", None)
    traceback = None if error is None else error.__traceback__
    while traceback is not None and not _is_of_a_cell(traceback):
        traceback = traceback.tb_next
    if traceback is None:
        return None
    _open = PostMortem(traceback)
    message = str(error).strip().partition("\n")[0]
    return ": ".join(filter(None, (type(error).__name__, message))), _open.place()


def _is_of_a_cell(traceback: TracebackType) -> bool:
    return CELL_FILE.search(traceback.tb_frame.f_code.co_filename) is not None


def answer(line: str) -> tuple[str, bool]:
    """Carry out a line of commands of the open prompt; see :meth:`PostMortem.answer`."""
    if _open is None:
        return "", True
    return _open.answer(line)


def completions(text: str, line: str, begin: int, end: int) -> list[str]:
    """The completions of a word; see :meth:`PostMortem.completions`."""
    return [] if _open is None else _open.completions(text, line, begin, end)


def leave() -> None:
    """Release the error, and all that its frames hold."""
    global _open
    _open = None
