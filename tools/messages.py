"""List the messages of the packages and the course library, to read them as a learner would.

Usage: ``python -m tools.messages [FILE ...]``. Each line is a file, a line number, how the text is
used (``raise ValueError``, ``warn``, ``print``, or ``text`` for one that a function returns or
stores), and the text. A field of an f-string is shown as ``{…}``. Left out are docstrings, texts
with fewer than three words unless they are raised, warned of or printed, and the names of mistakes:
their texts are in ``mistakes.md``.
"""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from course_lib.places import ROOT

FOLDERS = ("packages/torch_mpi4py/src", "packages/ipyranks/src", "course_lib")
# Between spaces: neither a path, an option, a pattern nor HTML.
_WORD = re.compile(r"(?<!\S)[(\"'`]*[A-Za-z][\w'`)\"]*[.,:;?]*(?!\S)")


class Message(NamedTuple):
    """One text, and where and how it is used."""

    file: str
    line: int
    use: str
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.use}: {self.text}"


def files() -> list[Path]:
    """Return the Python files whose messages users and learners read."""
    return sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))


def messages(name: str, source: str) -> list[Message]:
    """Return the messages of one file, by line."""
    tree = ast.parse(source)
    return sorted(set(_below(tree, name, "text", _docstrings(tree))))


def _below(node: ast.AST, name: str, use: str, skip: set[ast.AST]) -> Iterator[Message]:
    if node in skip:
        return
    use = _use(node) or use
    text = _literal(node)
    if text is None:
        for child in ast.iter_child_nodes(node):
            yield from _below(child, name, use, skip)
        return
    words = len(_WORD.findall(text.replace("{…}", " ")))
    if words >= (3 if use == "text" else 1) and use != "raise WrongAnswer":
        yield Message(name, getattr(node, "lineno", 0), use, " ".join(text.split()))
    for field in _fields(node):
        yield from _below(field, name, "text", skip)


def _use(node: ast.AST) -> str | None:
    if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
        return f"raise {ast.unparse(node.exc.func)}"
    if isinstance(node, ast.Call):
        function = ast.unparse(node.func)
        if function in {"print", "sys.stdout.write", "sys.stderr.write"}:
            return "print"
        if function == "warnings.warn":
            return "warn"
    return None


def _literal(node: ast.AST) -> str | None:
    """Return the text of a string, an f-string or a sum of them; None for anything else."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(
            str(part.value) if isinstance(part, ast.Constant) else "{…}" for part in node.values
        )
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        parts = [_literal(node.left), _literal(node.right)]
        if parts != [None, None]:
            return "".join("{…}" if part is None else part for part in parts)
    return None


def _fields(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the parts of a literal that its text shows as ``{…}``; they may hold further texts."""
    if isinstance(node, ast.JoinedStr):
        yield from (part.value for part in node.values if isinstance(part, ast.FormattedValue))
    if isinstance(node, ast.BinOp):
        for side in (node.left, node.right):
            if _literal(side) is None:
                yield side
            else:
                yield from _fields(side)


def _docstrings(tree: ast.Module) -> set[ast.AST]:
    """Return the strings that are statements of their own."""
    return {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }


def main() -> None:
    """Print the messages of the files named, or of all."""
    parser = argparse.ArgumentParser(prog="python -m tools.messages", description=__doc__)
    parser.add_argument("file", nargs="*", type=Path, help="what to read; without: everything")
    for path in parser.parse_args().file or files():
        name = path.resolve().relative_to(ROOT).as_posix()
        for message in messages(name, path.read_text(encoding="utf-8")):
            print(message)


if __name__ == "__main__":
    main()
