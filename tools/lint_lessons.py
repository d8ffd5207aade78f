"""The rules for a lesson's text that a program can check.

``python -m tools.lint_lessons`` reads the sources of all lessons and runs nothing.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from course_lib.teaching import lessons
from course_lib.teaching.catalogue import all_exercises
from course_lib.teaching.solution_marks import BEGIN, MarkError, blanked

MOST_LINES = 20  # of a code cell, a solution not counted; about 15 are meant
MOST_EXERCISES, FEWEST_EXERCISES = 6, 3
TAGS = {"exercise", "check", "nbval-ignore-output", "raises-exception"}
OPENING = {
    "the one idea": r"\*\*the one idea",
    "what the learner will be able to do": r"you will be able to",
    "the prerequisites": r"prerequisites",
    "running time and study time": r"\*\*time.*\bruns? in\b.*\bs\b.*\bminutes\b",
}
_CELL_MAGIC = re.compile(r"^\s*(?:# ?)?%%\w")
_NOT_BLOCKING = re.compile(r"^%%px\b.*(?:\s-a\b|--noblock)")
_MARKDOWN_IMAGE = re.compile(r"!\[(.*?)\]\((.*?)\)")
_IMG = re.compile(r"<img\b[^>]*>", re.IGNORECASE)
_SVG = re.compile(r"<svg\b.*?</svg>", re.IGNORECASE | re.DOTALL)
_ALT = re.compile(r"""\balt=(?:"\s*[^"\s]|'\s*[^'\s])""", re.IGNORECASE)
_LABEL = re.compile(r"<title>\s*[^<\s]|\baria-label=", re.IGNORECASE)


class Problem(NamedTuple):
    """A problem: its cell (from 1; 0 for the whole lesson), and whether it may stay."""

    lesson: str
    cell: int
    text: str
    warning: bool = False

    def __str__(self) -> str:
        where = f", cell {self.cell}" if self.cell else ""
        return f"{self.lesson}{where}: {'(warning) ' if self.warning else ''}{self.text}"


def lint(path: Path) -> list[Problem]:
    """Return all problems of one lesson's source."""
    cells = lessons.read_source(path).cells
    number = lessons.number(path)
    found: list[Problem] = []

    def complain(cell: int, text: str, warning: bool = False) -> None:
        found.append(Problem(path.name, cell, text, warning))

    for index, cell in enumerate(cells):
        if cell.cell_type == "code":
            for text in code_problems(cell):
                complain(index + 1, text)
            if _length(cell.source) > MOST_LINES:
                complain(index + 1, f"{_length(cell.source)} lines; about 15 can be taken in", True)
        for picture in pictures_without_words_in_text(cell.source):
            complain(index + 1, f"a picture without alternative text: {picture}")
        if "exercise" in cell.metadata:
            for text in _exercise_problems(cells, index, number):
                complain(index + 1, text)
    for text in _lesson_problems(cells, number):
        complain(0, text)
    return found


def code_problems(cell: Any) -> list[str]:
    """Return problems that would stop a code cell from running, or hide its failure."""
    lines = cell.source.split("\n")
    found = []
    if any(_CELL_MAGIC.match(line) for line in lines[1:]) or lines[0].startswith(("# %%", " ")):
        found.append(
            "a cell magic such as %%px works in the first line only: below a comment or an empty "
            "line the cell never runs, and says nothing"
        )
    if _NOT_BLOCKING.match(lines[0]):
        found.append("%%px without waiting: an error on a rank would never be seen")
    if "NBVAL_" in cell.source:
        found.append("use cell tags instead of NBVAL_ comments, which the learner would see")
    strange = set(cell.metadata.get("tags", ())) - TAGS
    if strange:
        found.append(f"unknown tag {', '.join(sorted(strange))}; known are {', '.join(TAGS)}")
    return found


def _length(source: str) -> int:
    try:
        return len(blanked(source).split("\n"))
    except MarkError:
        return 0  # reported elsewhere


def _exercise_problems(cells: list, index: int, number: str) -> list[str]:
    cell = cells[index]
    id = cell.metadata["exercise"]
    known = all_exercises().get(id)
    if known is None or not id.startswith(f"{number}."):
        return [f"exercise {id} is not registered in notebooks/lesson_{number}/exercises.py"]
    found = []
    if "exercise" not in cell.metadata.get("tags", ()):
        found.append('an exercise has tags=["exercise"]')
    if cell.source.startswith("%%px") != (known.where == "engines"):
        found.append(f"{id} is registered for where={known.where!r}")
    found += _stub_problems(cell.source, known.function)
    if index + 1 >= len(cells) or cells[index + 1].source.strip() != f'check("{id}")':
        found.append(f'the next cell has to be check("{id}")')
    elif "check" not in cells[index + 1].metadata.get("tags", ()):
        found.append('the check cell has tags=["check"]')
    after = cells[index + 2].source if index + 2 < len(cells) else ""
    if f'hint("{id}")' not in after or f'solution("{id}")' not in after:
        found.append(f'the text after the check has to offer hint("{id}") and solution("{id}")')
    return found


def _stub_problems(source: str, function: str) -> list[str]:
    if BEGIN not in source:
        return [f"the solution has to stand between {BEGIN} and its counterpart"]
    try:
        code = blanked(source)
        tree = ast.parse(re.sub(r"\A%%px.*", "", code))
    except (MarkError, SyntaxError) as error:
        return [f"the exercise cannot be blanked: {error}"]
    defined = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    if function not in defined:
        return [f"the function has to be called {function}, as registered"]
    raised = [ast.unparse(node) for node in defined[function].body if isinstance(node, ast.Raise)]
    if not any("NotImplementedError" in text for text in raised):
        return [f"blanked, {function} has to raise NotImplementedError when it is called"]
    others = [node for node in tree.body if not isinstance(node, (ast.FunctionDef, ast.Import))]
    if any(not isinstance(node, ast.ImportFrom) for node in others):
        return ["an exercise's cell holds functions and imports only: the stub must be runnable"]
    return []


def _lesson_problems(cells: list, number: str) -> list[str]:
    first = cells[0].source if cells and cells[0].cell_type == "markdown" else ""
    text = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    found = []
    if not re.match(rf"# {number} \w", first):
        found.append(f"the first cell is a title of the form '# {number} Name'")
    for what, pattern in OPENING.items():
        if not re.search(pattern, first, re.IGNORECASE):
            found.append(f"the first cell has to say {what} (pattern {pattern})")
    recap = text.partition("\n## Recap")[2]
    if not re.search(r"^\|.*\|$", recap, re.MULTILINE):
        found.append("a '## Recap' with a table has to come at the end")
    if not re.search(r"^(?:#+ .*|\*\*)further reading", recap, re.IGNORECASE | re.MULTILINE):
        found.append("'Further reading' has to come after the recap")
    if "**Predict" not in text:
        found.append("the learner is never asked to **Predict**")
    given = Counter(cell.metadata["exercise"] for cell in cells if "exercise" in cell.metadata)
    if not FEWEST_EXERCISES <= len(given) <= MOST_EXERCISES:
        found.append(f"{len(given)} exercises; there have to be 3 to 6")
    found += [f"exercise {id} comes twice" for id, times in given.items() if times > 1]
    for id in all_exercises():
        if id.startswith(f"{number}.") and id not in given:
            found.append(f"exercise {id} is registered, but not in the lesson")
    return found


def pictures_without_words_in_text(text: str) -> Iterator[str]:
    """Yield the pictures of Markdown or HTML that have no alternative text."""
    for words, address in _MARKDOWN_IMAGE.findall(text):
        if not words.strip():
            yield f"![]({address[:40]})"
    for tag in _IMG.findall(text):
        if not _ALT.search(tag):
            yield tag[:60]
    for drawing in _SVG.findall(text):
        if not _LABEL.search(drawing):
            yield drawing[:60]


def pictures_without_words(output: Any) -> Iterator[str]:
    """Yield the pictures of one output of a notebook that have no alternative text."""
    for kind, content in output.get("data", {}).items():
        if kind in ("text/html", "text/markdown", "image/svg+xml"):
            yield from pictures_without_words_in_text(content)
        elif kind.startswith("image/"):
            described = output.get("metadata", {}).get(kind, {})
            if not described.get("alt", "").strip():
                yield kind


def main() -> int:
    """Print the problems of all lessons; return 1 if any of them is more than a warning."""
    found = [problem for path in lessons.sources() for problem in lint(path)]
    print("\n".join(map(str, found)) or "no problems")
    return int(any(not problem.warning for problem in found))


if __name__ == "__main__":
    sys.exit(main())
