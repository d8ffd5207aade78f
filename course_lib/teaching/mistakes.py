"""Reads ``mistakes.md``: the mistakes a check may find, the messages, answers to try.

Each lesson has such a file in its room; :mod:`.judges` has one for the mistakes that the judges of
several lessons find. It is written by hand::

    ## 00.my_share                          an exercise, or "Any exercise" of the lesson
    ### drops-the-rest                      a mistake, as in WrongAnswer("drops-the-rest", rest=2)
    Nobody gets the last {rest} samples.    what the learner is told; {rest} comes from the judge
    ```python                               an answer that makes the mistake; the tests run it
    #### by one                             another answer, or another text for this mistake
    ### Right answers                       answers in unusual styles, each below a #### heading
    ### Equivalent changes                  why a change of a right answer leaves it right
    ```diff                                 such changes: what goes, what comes

With ``COURSE_LANGUAGE=fr`` a text is taken from ``mistakes.fr.md`` where that file has it.
"""

from __future__ import annotations

import functools
import importlib
import os
import re
import string
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

from .exercise import Exercise, WrongAnswer
from .judges.trials import in_short, plain

ANY, RIGHT, EQUIVALENT = "Any exercise", "Right answers", "Equivalent changes"
SHARED = Path(__file__).parent / "judges" / "mistakes.md"

_LONGEST_FIELD = 2000  # characters of a result, say, in a message
_HEADING = re.compile(r"(#+) +(.+?) *$")
_FENCE = re.compile(r"(```+) *(.*?) *$")
_EXERCISE = re.compile(r"\d\d[a-z]?\.\w+")
_LANGUAGE = re.compile(r"\w+(-\w+)*")
_MISTAKE = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


class MistakesError(ValueError):
    """A ``mistakes.md`` is malformed, or lacks what a judge names; it says where, and why."""

    def __init__(self, path: Path, line: int, problem: str):
        super().__init__(f"{'/'.join(path.parts[-3:])}, line {line}: {problem}")


class Text(NamedTuple):
    """The message about a mistake, with ``{fields}`` for what the judge found, and its line."""

    template: str
    line: int

    @property
    def fields(self) -> set[str]:
        return {name for _, name, _, _ in string.Formatter().parse(self.template) if name}


Change = tuple[tuple[str, ...], tuple[str, ...]]  # lines that go, lines that come


@dataclass
class Mistakes:
    """The content of one file.

    Attributes:
        texts: (exercise or :data:`ANY`, mistake) -> the message.
        wrong: exercise -> mistake -> an answer that makes it. A further answer has a name such as
            ``"drops-the-rest: by one"``, and so may a text.
        right: exercise -> style -> a right answer.
        equivalent: exercise -> lines that go and lines that come -> why an answer is right with
            the one as with the other. ``make mutants`` makes such changes.
    """

    path: Path
    texts: dict[tuple[str, str], Text] = field(default_factory=dict)
    wrong: dict[str, dict[str, str]] = field(default_factory=dict)
    right: dict[str, dict[str, str]] = field(default_factory=dict)
    equivalent: dict[str, dict[Change, str]] = field(default_factory=dict)


def explain(wrong: WrongAnswer, exercise: Exercise | None = None) -> str:
    """Return the message to the learner: the exercise's, the lesson's, or that of all lessons.

    Raises:
        MistakesError: if there is no text, or a field that the judge has not given, or not so.
    """
    path, text = _find(wrong.name, exercise)
    missing = sorted(text.fields - set(wrong.fields))
    if missing:
        problem = f"the judge of {wrong.name} does not give {{{missing[0]}}}; it gives "
        raise MistakesError(path, text.line, problem + (", ".join(wrong.fields) or "nothing"))
    fields = {name: _filled_in(value, exercise) for name, value in wrong.fields.items()}
    try:
        told = text.template.format(**fields)
    except (ValueError, TypeError) as error:  # {rank:.3g} for a text, say
        raise MistakesError(path, text.line, f"{error}; the judge gives {fields}") from None
    told = "; ".join([told, *(explain(other, exercise) for other in wrong.further)])
    if wrong.reason is None:
        return told
    reason = explain(wrong.reason, exercise)
    raised = wrong.reason.mistake == "it-raises"  # an exception of the learner's comes first
    return f"{reason} ({told})" if raised else f"{told} ({reason})"


def _filled_in(value: Any, exercise: Exercise | None) -> Any:
    if isinstance(value, WrongAnswer):
        return explain(value, exercise)
    value = plain(value)
    if isinstance(value, Fraction):  # Python 3.11 cannot format it
        return float(value)
    return in_short(value, _LONGEST_FIELD) if isinstance(value, str) else value


def in_general(name: str, exercise: Exercise) -> str:
    """Return the message about a mistake with the fields' names, unfilled; or nothing."""
    try:
        _, text = _find(name, exercise)
    except MistakesError:
        return ""
    parts = string.Formatter().parse(text.template)
    return "".join(before + (f"‹{field}›" if field else "") for before, field, _, _ in parts)


def _find(name: str, exercise: Exercise | None) -> tuple[Path, Text]:
    """Return the text for a mistake and its file, in the learner's language if it is there."""
    places = [(SHARED, ANY)]
    if exercise is not None:
        own = path_of(exercise)
        places = [(own, exercise.id), (own, ANY), *places]
    for key in dict.fromkeys([name, name.partition(":")[0]]):
        for path, section in places:
            text = read(path).texts.get((section, key)) if path.exists() else None
            if text is not None:
                translated = translation(path)
                told = translated.texts.get((section, key)) if translated else None
                return (translated.path, told) if translated and told else (path, text)
    raise MistakesError(places[0][0], 1, f"no text for {name!r}: expected a heading ### {name}")


def path_of(exercise: Exercise) -> Path:
    """Return the path of the mistakes of the exercise's lesson."""
    module = importlib.import_module(exercise.module)
    return Path(str(module.__file__)).with_name("mistakes.md")


def translation(path: Path) -> Mistakes | None:
    """Return the same file in the learner's language, if there is one.

    Raises:
        MistakesError: if it has a mistake, or a text a field, that the English file has not.
    """
    language = os.environ.get("COURSE_LANGUAGE", "")
    other = path.with_suffix(f".{language}.md")
    if not _LANGUAGE.fullmatch(language) or not other.exists():
        return None
    english, translated = read(path).texts, read(other)
    for key, text in translated.texts.items():
        if key not in english:
            raise MistakesError(other, text.line, f"{path.name} has no text for {' '.join(key)}")
        for name in sorted(text.fields - english[key].fields):
            problem = f"{{{name}}} is not in the text of {path.name}, line {english[key].line}"
            raise MistakesError(other, text.line, problem)
    return translated


def read(path: Path) -> Mistakes:
    """Return the content of ``path``; it is read again when it has changed.

    Raises:
        MistakesError: if it is malformed.
    """
    return _read(path, path.stat().st_mtime_ns)


@functools.lru_cache(maxsize=64)
def _read(path: Path, changed: int) -> Mistakes:
    return _Reader(path).read()


class _Reader:
    """Goes through the lines of a file; the text below a heading is kept at the next one."""

    def __init__(self, path: Path) -> None:
        self.found = Mistakes(path)
        self.lines = path.read_text(encoding="utf-8").splitlines()
        self.number = 0  # of the line, from 1
        self.section = self.mistake = self.variant = ""
        self.heading = 0  # its line
        self.paragraphs: list[list[str]] = [[]]
        self.text_line = 0
        self.code: str | None = None
        self.seen: dict[tuple[str, str], int] = {}

    def read(self) -> Mistakes:
        while self.number < len(self.lines):
            line = self.lines[self.number]
            self.number += 1
            if heading := _HEADING.match(line):
                self.keep()
                self.enter(len(heading[1]), heading[2])
            elif fence := _FENCE.match(line):
                self.take_code(fence[1], fence[2])
            elif not line.strip():
                self.paragraphs.append([])
            else:
                self.take_text(line.strip())
        self.keep()
        return self.found

    def fail(self, problem: str, line: int | None = None) -> MistakesError:
        return MistakesError(self.found.path, line or self.number, problem)

    def enter(self, level: int, name: str) -> None:
        """Begin the text below a heading."""
        if level == 2:
            self.section, self.mistake, self.variant = name, "", ""
            if name != ANY and not _EXERCISE.fullmatch(name):
                raise self.fail(f'expected an exercise, as in "## 00.my_share", not "## {name}"')
        elif level == 3:
            self.mistake, self.variant = name, ""
            if not self.section:
                raise self.fail(f'expected an exercise ("## ...") before "### {name}"')
            if name not in (RIGHT, EQUIVALENT) and not _MISTAKE.fullmatch(name):
                raise self.fail(
                    f'expected a mistake, in small letters with hyphens, "{RIGHT}" or '
                    f'"{EQUIVALENT}", not "### {name}"'
                )
        elif level == 4:
            self.variant = name
            if not self.mistake:
                raise self.fail(f'expected a mistake ("### ...") before "#### {name}"')
        elif level > 4 or self.section:
            raise self.fail("expected a heading with two, three or four #")
        self.heading, key = self.number, (self.section, self.name)
        if self.mistake or level == 2:
            first = self.seen.setdefault(key, self.number)
            if first != self.number:
                raise self.fail(f'"{name}" appears twice: first in line {first}')

    @property
    def name(self) -> str:
        """The mistake's full name, or the right answer's."""
        return f"{self.mistake}: {self.variant}" if self.variant else self.mistake

    def take_code(self, fence: str, kind: str) -> None:
        began = self.number
        try:
            end = self.lines.index(fence, began)
        except ValueError:
            raise self.fail(f"the code that begins here never ends: expected {fence}") from None
        self.number = end + 1
        wanted = "diff" if self.mistake == EQUIVALENT else "python"
        if kind != wanted:
            raise self.fail(f'expected "{fence}{wanted}", not "{fence}{kind}"', began)
        if not self.mistake or self.section == ANY:
            raise self.fail('expected code below a mistake of an exercise ("### ...")', began)
        if kind == "diff":
            self.take_changes(began, self.lines[began:end])
            return
        if self.code is not None:
            raise self.fail('expected "#### ..." before another answer: how does it differ?', began)
        self.code = "".join(line + "\n" for line in self.lines[began:end])
        if not self.code.strip():
            raise self.fail("expected an answer here", began)

    def take_changes(self, began: int, lines: list[str]) -> None:
        """Keep changes, with an empty line after each, and the text above as their reason."""
        reason = "\n".join(" ".join(lines) for lines in self.paragraphs if lines)
        self.paragraphs = [[]]
        if not reason:
            raise self.fail(
                "expected above the changes the reason why an answer stays right", began
            )
        found = self.found.equivalent.setdefault(self.section, {})
        old: list[str] = []
        new: list[str] = []
        for number, line in enumerate([*lines, ""], began + 1):
            if line[:1] in ("-", "+"):
                (old if line[0] == "-" else new).append(line[1:].strip())
            elif line.strip():
                raise self.fail(f'expected a line with "-" or "+" before it, not "{line}"', number)
            elif old or new:
                change = tuple(old), tuple(new)
                if change in found:
                    raise self.fail("this change appears twice", number - 1)
                found[change] = reason
                old, new = [], []

    def take_text(self, line: str) -> None:
        if self.code is not None and self.mistake != RIGHT:
            raise self.fail("expected the text above the code")
        if not any(self.paragraphs):
            self.text_line = self.number
        self.paragraphs[-1].append(line)

    def keep(self) -> None:
        """Keep what is below the last heading."""
        template = "\n".join(" ".join(lines) for lines in self.paragraphs if lines)
        code, self.code, self.paragraphs = self.code, None, [[]]
        if self.mistake == RIGHT:
            if code is not None:
                if not self.variant:
                    raise self.fail(
                        'expected "#### ..." before the answer: its style', self.heading
                    )
                self.found.right.setdefault(self.section, {})[self.variant] = code
        elif self.mistake == EQUIVALENT:
            if template:
                raise self.fail(
                    'expected "```diff" and the changes below their reason', self.text_line
                )
        elif self.mistake:
            if template:
                self.check(template)
                self.found.texts[self.section, self.name] = Text(template, self.text_line)
            if code is not None:
                self.found.wrong.setdefault(self.section, {})[self.name] = code

    def check(self, template: str) -> None:
        """Refuse what `str.format` would, and all fields but plain names."""
        try:
            parts = list(string.Formatter().parse(template))
        except ValueError as error:
            problem = f"{error}: write a literal brace twice, {{{{ or }}}}"
            raise self.fail(problem, self.text_line) from None
        for _, name, form, conversion in parts:
            if name is not None and (not name.isidentifier() or conversion or "{" in (form or "")):
                problem = f"expected a field such as {{rank}} or {{seconds:.3g}}, not {{{name}}}"
                raise self.fail(problem, self.text_line)
