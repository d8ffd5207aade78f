"""Judges and mistakes.md fit together: each mistake has a text, and each text what it needs."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from course_lib.teaching import mistakes
from course_lib.teaching.catalogue import all_exercises
from course_lib.teaching.lessons import NOTEBOOKS

ROOMS = sorted(path.parent for path in NOTEBOOKS.glob("lesson_*/exercises.py"))
TEACHING = mistakes.SHARED.parents[1]
SHARED_TEXTS = {name: text for (_, name), text in mistakes.read(mistakes.SHARED).texts.items()}


class Call(NamedTuple):
    """A mistake that a judge names.

    Attributes:
        where: file and line.
        owner: the function or table that names it.
        fields: None where they are not written out.
        told: how many further positional arguments it has: texts.
    """

    where: str
    owner: str
    name: str
    fields: set[str] | None
    told: int


def judges(folder: Path) -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted(folder.rglob("*.py")):
        if not path.name[0].isdigit():  # not the lesson itself
            yield path, ast.parse(path.read_text(encoding="utf-8"))


def calls(folder: Path) -> list[Call]:
    """Return where judges in ``folder`` name a mistake."""
    found = []
    for path, tree in judges(folder):
        for owner, node in owned(tree):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
                continue
            if node.func.id not in ("WrongAnswer", "as_mistake") or not node.args:
                continue
            if isinstance(node.args[0], ast.Constant):
                keywords = {keyword.arg for keyword in node.keywords}
                where = f"{path.parent.name}/{path.name}:{node.lineno}"
                fields = None if None in keywords else keywords
                found.append(Call(where, owner, node.args[0].value, fields, len(node.args) - 1))
    return found


def owned(tree: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    """Yield each node below the module's statements, with the name that its statement defines."""
    for statement in tree.body:
        if isinstance(statement, ast.FunctionDef | ast.ClassDef):
            name = statement.name
        elif isinstance(statement, ast.Assign | ast.AnnAssign):
            target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
            name = getattr(target, "id", "")
        else:
            continue
        yield from ((name, node) for node in ast.walk(statement))


def reached(room: Path) -> dict[str, set[str]]:
    """Return the functions and tables of the room that each exercise's check comes to, by name."""
    mentions: dict[str, set[str]] = defaultdict(set)
    for _, tree in judges(room):
        for owner, node in owned(tree):
            if isinstance(node, ast.Name | ast.Attribute):
                mentions[owner].add(node.id if isinstance(node, ast.Name) else node.attr)
    found = {}
    for id, exercise in all_exercises().items():
        if exercise.module.split(".")[-2] != room.name:
            continue
        names, waiting = set(), [exercise.checker]
        while waiting:
            name = waiting.pop()
            if name in mentions and name not in names:
                names.add(name)
                waiting += mentions[name]
        found[id] = names
    return found


def words(folder: Path) -> Counter[str]:
    """Count the strings in the judges of ``folder``: mistakes in tables are among them."""
    return Counter(
        node.value
        for _, tree in judges(folder)
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def base(name: str) -> str:
    return name.partition(":")[0]


def text_for(name: str, id: str, room: Path) -> mistakes.Text | None:
    """Return what is told of a mistake in the exercise."""
    own = mistakes.read(room / "mistakes.md").texts
    for key in (name, base(name)):
        for text in (own.get((id, key)), own.get((mistakes.ANY, key)), SHARED_TEXTS.get(key)):
            if text is not None:
                return text
    return None


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.name)
def test_each_named_mistake_has_a_text_with_its_fields(room: Path) -> None:
    wrong = []
    for id, names in reached(room).items():
        for call in calls(room):
            if call.owner not in names:
                continue
            text = text_for(call.name, id, room)
            if text is None:
                wrong.append(f"{call.where}: mistakes.md has no text for {call.name!r} of {id}")
            elif call.fields is not None and not text.fields <= call.fields:
                missing = ", ".join(sorted(text.fields - call.fields))
                wrong.append(f"{call.where}: {call.name!r} of {id} needs {missing}, see {text}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.name)
def test_each_judge_is_used_by_a_check(room: Path) -> None:
    """Otherwise the test above would miss it."""
    names = set().union(*reached(room).values())
    assert [call.where for call in calls(room) if call.owner not in names] == []


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.name)
def test_each_text_is_used_by_a_judge_with_its_fields(room: Path) -> None:
    named, known = calls(room), words(room) + words(TEACHING)
    problems = []
    for (_, name), text in mistakes.read(room / "mistakes.md").texts.items():
        where = f"{room.name}/mistakes.md:{text.line}"
        fields = [call.fields for call in named if call.name == name]
        if name not in known:
            problems.append(f"{where}: no judge names {name!r}")
        elif known[name] == len(fields) and not any(  # it is in no table
            given is None or text.fields <= given for given in fields
        ):
            problems.append(f"{where}: no judge of {name!r} gives all of {sorted(text.fields)}")
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.name)
def test_each_mistake_in_the_answers_has_a_text(room: Path) -> None:
    """It may be in a table, where the test of the judges misses it."""
    found = mistakes.read(room / "mistakes.md")
    missing = []
    for id, answers in found.wrong.items():
        sections = {base(name) for section, name in found.texts if section in (id, mistakes.ANY)}
        known = sections | set(map(base, SHARED_TEXTS)) | {"it-raises", "does-not-finish"}
        missing += [f"{id}: ### {name}" for name in answers if base(name) not in known]
    assert not missing, "\n".join(missing)


def test_each_shared_text_is_used_by_a_judge_with_its_fields() -> None:
    named = {call.name: call for call in calls(TEACHING)}
    for name, text in SHARED_TEXTS.items():
        assert name in named, f"judges/mistakes.md:{text.line}: no judge names {name!r}"
        fields = named[name].fields
        assert fields is None or text.fields <= fields, named[name]


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.name)
def test_texts_are_only_in_mistakes_md(room: Path) -> None:
    assert [call.where for call in calls(room) if call.told] == []
    own = {name for _, name in mistakes.read(room / "mistakes.md").texts}
    assert own & SHARED_TEXTS.keys() == set(), "a text is in two places"


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.name)
def test_mistakes_page_names_only_its_lessons_exercises(room: Path) -> None:
    found = mistakes.read(room / "mistakes.md")
    named = {id for id, _ in found.texts} | set(found.wrong) | set(found.right)
    lesson = room.name.removeprefix("lesson_")
    ids = {id for id in all_exercises() if id.startswith(f"{lesson}.")}
    assert named - {mistakes.ANY} <= ids


def translations() -> list[Path]:
    return [
        *NOTEBOOKS.glob("lesson_*/mistakes.*.md"),
        *mistakes.SHARED.parent.glob("mistakes.*.md"),
    ]


def test_translations_match_their_pages(monkeypatch) -> None:
    for path in translations():
        monkeypatch.setenv("COURSE_LANGUAGE", path.suffixes[0].removeprefix("."))
        assert mistakes.translation(path.with_name("mistakes.md")) is not None
