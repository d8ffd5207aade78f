"""Proofreads every page: spelling, grammar and the project's own tics, offline.

Usage: ``python -m tools.proofreading [FILE ...]``. Without a file it reads all Markdown in the
repository (decks and mistakes too), the text of the lessons, and docstrings and comments of the
packages and ``course_lib``. It skips code, formulas, quotations in programs and lists of further
reading. Harper checks grammar and, except in programs, spelling (British). ``rules.toml`` names
Harper's rules and our own tics, ``vocabulary.txt`` has the words of the field.
"""

from __future__ import annotations

import argparse
import io
import re
import subprocess
import sys
import tokenize
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import harper

from course_lib.places import ROOT

HERE = Path(__file__).parent
RULES = tomllib.loads((HERE / "rules.toml").read_text(encoding="utf-8"))
TICS = [(re.compile(tic["find"], re.IGNORECASE), tic["say"]) for tic in RULES["tics"]]
RIGHT = re.compile("|".join(RULES["right"]))
WORDS = (HERE / "vocabulary.txt").read_text(encoding="utf-8").split()
_KNOWN = {word.lower() for word in WORDS}

# In the order in which they are removed. Line breaks stay, so lines keep their numbers.
_GONE = [
    re.compile(r"\A---\n.*?\n---$", re.DOTALL | re.MULTILINE),  # front matter
    re.compile(r"^ *(`{3,}).*?^ *\1`*$", re.DOTALL | re.MULTILINE),
    re.compile(
        r"^(?:#+ |\*\*)(?:References and )?Further reading.*",
        re.DOTALL | re.MULTILINE | re.IGNORECASE,
    ),
    re.compile(r"\$\$.*?\$\$", re.DOTALL),
    re.compile(r"(?<=\])\([^()\s]*\)"),  # where a link goes
    re.compile(r"<!--|-->|<[^>\n]*>|&\w+;"),  # what is between the two is text: speakers' notes
]
_CODE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)|(?<![\\$\w])\$[^$\n]+\$", re.DOTALL)
_CODE_NAME = re.compile(
    r"\b\w*(?:[a-z][A-Z]|[A-Z]{2}[a-z]{2}|[0-9_])\w*(?:'s)?"  # DataLoader, DTensor, float32
    r"|[\w.-]*/[\w./#:-]+|\b\w+\.(?:ai|cff|ipynb|js|json|md|org|py|pytorch|yml)\b"
    r"|\"\w+\""  # a word that is talked about
)
_FIELD = re.compile(r"\{[^{}\n]*\}")  # of a mistake's text: a judge fills it in
_LETTER = re.compile(r"\w(?:'s|[*]*\.)?")  # a variable, an initial
_ID = re.compile(r"^#{2,3} .*$", re.MULTILINE)  # of an exercise or a mistake

_LESSON = "notebooks/lesson_*/[0-9]*.py"
_PROGRAMS = ("packages/*/src/*.py", "course_lib/*.py")  # a star of git's also means folders
_MARKS = re.compile(r'^#+:?|^[rR]?"""|"""$')
_NOT_SENTENCES = re.compile(
    r"^ *(?:Args|Attributes|Raises|Returns|Yields):$"
    r"|# *(?:noqa|type: ignore|fmt:|ruff:).*$"
    r"|:\w+:(?=`)"  # a role of reStructuredText
    r'|"[^"\n]*(?:\n[^"\n]+)?"',  # a title, or the words of another program
    re.MULTILINE,
)


class Finding(NamedTuple):
    """A problem, its place, and suggestions."""

    file: str
    line: int
    text: str
    advice: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.text!r}: {self.advice}"


def files() -> list[Path]:
    """Return the files that are proofread: Markdown that git tracks, lessons and programs."""
    listed = ["git", "ls-files", "-z", "*.md", _LESSON, *_PROGRAMS]
    answer = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / name for name in sorted(answer.stdout.split("\0")) if name]


def prose(path: Path) -> str:
    """Return a file's sentences. Everything else is blank, so each keeps its line."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        is_lesson = "# %% [markdown]" in text
        text = _markdown_of_lesson(text) if is_lesson else _comments_of_program(text)
    for pattern in _GONE:
        text = pattern.sub(_blank, text)
    text = _CODE_NAME.sub(_blank_code, _CODE.sub(_blank_code, text))
    if path.name.startswith("mistakes"):
        text = _FIELD.sub(_blank_code, _ID.sub(_blank, text))
    return RIGHT.sub(_blank, text)


def _markdown_of_lesson(source: str) -> str:
    lines, markdown = [], False
    for line in source.split("\n"):
        if line.startswith("# %%"):
            markdown = line.startswith("# %% [markdown]")
            line = ""
        lines.append(re.sub(r"^# ?", "", line) if markdown else "")
    return "\n".join(lines)


def _comments_of_program(source: str) -> str:
    """Return comments and docstrings where they are in the source; everything else is blank."""
    lines = source.split("\n")
    kept = [" " * len(line) for line in lines]
    is_first = True  # of its statement
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT or (token.type == tokenize.STRING and is_first):
            (first, begin), (last, end) = token.start, token.end
            for number in range(first - 1, last):
                left = begin if number == first - 1 else 0
                right = end if number == last - 1 else len(lines[number])
                kept[number] = (
                    kept[number][:left] + lines[number][left:right] + kept[number][right:]
                )
        if token.type not in {tokenize.NL, tokenize.COMMENT}:
            is_first = token.type in {tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    text = _NOT_SENTENCES.sub(_blank, "\n".join(kept))
    return "\n".join(_MARKS.sub(_blank, line.strip(" ")) for line in text.split("\n"))


def _blank(match: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", match[0])


def _blank_code(match: re.Match[str]) -> str:
    return "`" + re.sub(r"[^\n]", " ", match[0][1:-1]) + "`"


@cache
def linter() -> Any:
    """Return Harper with our rules and words. Making it takes a second or two."""
    made = harper.Linter(harper.Dialect.BRITISH)
    known = made.get_lint_config()
    unknown = set(RULES["harper"]) - set(known)
    if unknown:
        raise ValueError(f"this Harper has no rules {sorted(unknown)}: correct {HERE}/rules.toml")
    made.set_lint_config({name: name in RULES["harper"] for name in known})
    made.import_words([form for word in WORDS for form in (word, f"{word}'s")])
    return made


def proofread(name: str, text: str) -> Iterator[Finding]:
    """Yield the problems in the prose of a file, tics first."""
    is_program = name.endswith(".py") and not name.startswith("notebooks/")

    def line(place: int) -> int:
        return text.count("\n", 0, place) + 1

    for pattern, say in TICS:
        for match in pattern.finditer(text):
            yield Finding(name, line(match.start()), " ".join(match[0].split()), say)
    for rule, lints in linter().organized_lints(text).items():
        for lint in lints:
            if rule == "SpellCheck" and (is_program or _is_known(lint.problem_text)):
                continue  # a program's comments name its variables
            better = [one.replacement_text for one in lint.suggestions]
            advice = f"{lint.message} Perhaps {better}. [{rule}]" if better else lint.message
            yield Finding(name, line(lint.span.start), lint.problem_text, advice)


def _is_known(word: str) -> bool:
    return word.lower() in _KNOWN or _LETTER.fullmatch(word) is not None


def findings(paths: list[Path]) -> dict[str, list[Finding]]:
    """Return the problems in each file, by its path from the root of the repository."""
    names = {path.resolve().relative_to(ROOT).as_posix(): path for path in paths}
    return {name: sorted(proofread(name, prose(path))) for name, path in names.items()}


def main() -> int:
    """Print the problems; return 1 if there are any."""
    parser = argparse.ArgumentParser(prog="python -m tools.proofreading", description=__doc__)
    parser.add_argument("file", nargs="*", type=Path, help="what to proofread; without: everything")
    paths = parser.parse_args().file
    found = findings(paths or files())
    for finding in (one for each in found.values() for one in each):
        print(finding)
    total = sum(map(len, found.values()))
    print(f"{total} findings in {sum(map(bool, found.values()))} of {len(found)} files")
    return int(total > 0)


if __name__ == "__main__":
    sys.exit(main())
