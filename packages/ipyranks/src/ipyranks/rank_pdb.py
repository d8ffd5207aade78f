"""IPython's pdb on a rank, with strings in place of a terminal: for errors and breakpoints."""

from __future__ import annotations

import io
import re
import rlcompleter
from typing import Any

from IPython.core.debugger import Pdb

from .tracebacks import CELL_FILE

_CELL_PATH = re.compile(r"/[^\s\x1b]*" + CELL_FILE.pattern.removesuffix("$"))


class RankPdb(Pdb):
    """Pdb whose output is collected for the notebook.

    Args:
        lines: where its lines come from, by ``readline()``.
    """

    def __init__(self, lines: Any) -> None:
        self._said = io.StringIO()
        super().__init__(stdin=lines, stdout=self._said, nosigint=True, readrc=False)
        self.prompt = ""

    def completions(self, text: str, line: str, begin: int, end: int) -> list[str]:
        """The words that ``text``, which is ``line[begin:end]``, may become."""
        commands = [] if line[:begin].strip() else self.completenames(text, line, begin, end)
        frame = self.stack[self.curindex][0]
        names = rlcompleter.Completer({**frame.f_globals, **self._curframe_locals})
        found = names.attr_matches(text) if "." in text else names.global_matches(text)
        return [*commands, *found]

    def taken(self) -> str:
        """Its output since the last call, with cells named as in the notebook."""
        said = self._said.getvalue()
        self._said.seek(0)
        self._said.truncate()
        return _CELL_PATH.sub(self._cell_name, said.rstrip("\n") + "\n") if said else ""

    def _cell_name(self, path: re.Match) -> str:
        _, known_as = self.shell.compile.format_code_name(path[0]) or ("", path[0])
        return re.sub(r"In\[(\d+)\]", r"cell \1", known_as)
