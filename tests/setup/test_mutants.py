"""`make mutants`: what it changes, and that it names what a weak judge lets through."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tools.mutants.__main__ import sample
from tools.mutants.changes import Mutant, difference, mutants

STEP = '''\
def step(values, group):
    """Return the mean of all ranks' values."""
    total, works = values.clone(), []
    if len(values) == 0:
        return 0.0
    works.append(dist.all_reduce(total, group=group, async_op=True))
    for work in works:
        work.wait()
    total /= dist.get_world_size(group)
    return total.mean().item()
'''


def made(code: str = STEP, function: str = "step") -> list[Mutant]:
    return mutants("99.step", {"the solution": code}, function)


@pytest.mark.parametrize(
    ("kind", "old", "new"),
    [
        ("copy left out", "total, works = (values.clone(), [])", "total, works = (values, [])"),
        ("comparison turned", "if len(values) == 0:", "if len(values) != 0:"),
        ("constant by one", "if len(values) == 0:", "if len(values) == 1:"),
        ("branch left out", "if len(values) == 0:", "if False:"),
        ("wait left out", "work.wait()", ""),
        ("sum for mean", "return total.mean().item()", "return total.sum().item()"),
        ("string for a number", "return total.mean().item()", "return str(total.mean().item())"),
        (
            "world size as a number",
            "total /= dist.get_world_size(group)",
            "total /= 4",
        ),
        (
            "group left out",
            "total /= dist.get_world_size(group)",
            "total /= dist.get_world_size()",
        ),
        (
            "group left out",
            "works.append(dist.all_reduce(total, group=group, async_op=True))",
            "works.append(dist.all_reduce(total, async_op=True))",
        ),
        (
            "copy put in",
            "works.append(dist.all_reduce(total, group=group, async_op=True))",
            "works.append(dist.all_reduce(total.clone(), group=group, async_op=True))",
        ),
        (
            "early return on one rank",
            "return total.mean().item()",
            "if dist.get_rank(group) == 1:\nreturn\nreturn total.mean().item()",
        ),
        (
            "arguments changed in place",
            "def step(values, group):",
            "@changes_its_arguments\ndef step(values, group):",
        ),
    ],
)
def test_answer_is_changed_as_a_learner_might(kind: str, old: str, new: str) -> None:
    change = tuple(old.splitlines()), tuple(new.splitlines())
    kinds = [mutant.kind for mutant in made() if mutant.change == change]
    assert kinds == [kind]


def test_value_is_kept_between_calls() -> None:
    code = "def count(items):\n    found = []\n    found.extend(items)\n    return len(found)\n"
    (mutant,) = [one for one in made(code, "count") if one.kind == "state kept in a global"]
    space: dict = {}
    exec(mutant.code, space)
    assert [space["count"]("ab"), space["count"]("cd")] == [2, 4]


def test_similar_neighbouring_lines_are_swapped() -> None:
    code = "def step(optimizer):\n    optimizer.step()\n    optimizer.zero_grad()\n    print(1)\n"
    swapped = [one.change for one in made(code) if one.kind == "lines swapped"]
    lines = "optimizer.step()", "optimizer.zero_grad()"
    assert swapped == [(lines, lines[::-1])]


def test_each_mutant_differs_in_one_place() -> None:
    found = made()
    assert len(found) > 20
    assert len({mutant.change for mutant in found}) == len(found)
    for mutant in found:
        ast.parse(mutant.code)
        assert mutant.old != mutant.new


def test_unlikely_changes_are_not_made() -> None:
    code = '''\
import math

def half(number: int = 2) -> float:
    """Return 3."""
    if number < 0:
        raise ValueError(f"{number + 4}")
    return number / 5
'''
    new = "\n".join(line for mutant in made(code, "half") for line in mutant.new)
    assert "number / 6" in new
    assert "number < 1" in new
    assert not {"+ 5", "- 4", "number + 3", "4."} & set(new.splitlines())
    for mutant in made(code, "half"):
        assert "import math" in mutant.code
        assert "raise ValueError(f'{number + 4}')" in mutant.code


def test_change_is_identified_by_its_lines() -> None:
    lines = ["a", "    b", "c"]
    assert difference(lines, ["a", "    x", "c"]) == (("b",), ("x",))
    assert difference(lines, ["a", "    pass", "c"]) == (("b",), ())
    assert difference(lines, ["a", "    b", "    x", "c"]) == (("c",), ("x", "c"))
    assert difference(lines, ["c", "    b", "a"]) == (("a", "b", "c"), ("c", "b", "a"))


def test_sample_is_stable_if_another_line_changes() -> None:
    before = sample(made(), 12, seed=3)
    assert before == sample(made(), 12, seed=3)
    assert {one.change for one in before} != {one.change for one in sample(made(), 12, seed=4)}
    other = sample(made(STEP.replace("return 0.0", "return 0.5")), 12, seed=3)
    kept = {one.change for one in before} & {one.change for one in other}
    assert len(kept) > 8


# ---- the program, on exercises of our own -----------------------------------------------------

EXERCISES = """\
from course_lib.teaching.exercise import WrongAnswer, exercise

HINTS = ["weak", "more", "most"]


@exercise("99.share", function="share", where="notebook", hints=HINTS)
def check_share(share):
    for samples, ranks in CASES:
        found = share(samples, ranks)
        if found != samples / max(1, ranks):
            raise WrongAnswer("wrong-value", found=found)


CASES = ((12, 4), (6, 3), (5, 0), (0, 2))
"""
PAGE = """\
## 99.share

### wrong-value

{found} is wrong

### Right answers

#### by cases

```python
def share(samples, ranks):
    if ranks < 1:
        return samples
    return samples / ranks
```

### Equivalent changes

One rank has all of them, also by the division.

```diff
-if ranks < 1:
+if ranks < 2:

-if ranks < 1:
+if ranks <= 1:
```
"""


@pytest.fixture
def rooms(tmp_path: Path) -> Path:
    room = tmp_path / "rooms_of_mutants" / "lesson_99"
    room.mkdir(parents=True)
    (room / "exercises.py").write_text(EXERCISES)
    (room / "mistakes.md").write_text(PAGE)
    return room


def make_mutants(room: Path, root: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the program on the exercises of one room; no process of it is left afterwards."""
    variables = {"PYTHONPATH": str(room.parents[1]), "STARTED_BY": str(room)}
    command = [sys.executable, "-m", "tools.mutants", "--rooms", room.parent.name, *options]
    ended = subprocess.run(
        command, cwd=root, env=os.environ | variables, capture_output=True, text=True, timeout=200
    )
    assert living(str(room)) == []
    return ended


def living(mark: str) -> list[str]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("STARTED_BY") == mark:
                found.append(f"{process.pid} {process.cmdline()}")
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue  # it has ended, or it is none of ours
    return found


def row(printed: str, lesson: str = "99") -> dict[str, str]:
    lines = [line.split() for line in printed.splitlines()]
    names = next(words for words in lines if words[:1] == ["lesson"])
    numbers = next(words for words in lines if words[:1] == [lesson])
    return dict(zip(names, numbers, strict=False))


def test_mutant_that_survives_a_weakened_judge_is_listed(rooms: Path, root: Path) -> None:
    strict = make_mutants(rooms, root)
    assert strict.returncode == 0, strict.stdout + strict.stderr
    assert "survived (" not in strict.stdout
    counts = row(strict.stdout)
    assert (counts["equivalent"], counts["survived"]) == ("2", "0")
    assert int(counts["killed"]) > 5
    assert counts["tried"] == str(int(counts["killed"]) + 2)

    exercises = rooms / "exercises.py"
    exercises.write_text(EXERCISES.replace("(12, 4), (6, 3), (5, 0), (0, 2)", "(12, 4), (6, 3)"))
    weak = make_mutants(rooms, root)
    assert weak.returncode == 1, weak.stdout + weak.stderr
    assert named(weak.stdout) == {"if False:", "if ranks < 0:", "return str(samples)"}
    assert row(weak.stdout)["survived"] == "3"
    assert "99.share survived (by cases: branch left out)\n-if ranks < 1:\n+if F" in weak.stdout
    assert "more than 2% survived in 99" in weak.stdout


def named(printed: str) -> set[str]:
    """Return the new lines of all survivors."""
    return set(re.findall(r"survived \(.*\)\n-.*\n\+(.*)\n", printed))


def test_wrong_note_is_reported(rooms: Path, root: Path) -> None:
    (rooms / "mistakes.md").write_text(PAGE.replace("+if ranks < 2:", "+if ranks < 0:"))
    ended = make_mutants(rooms, root)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "99.share, by cases:\n-if ranks < 1:\n+if ranks < 0:\nis noted as eq" in ended.stdout
    assert named(ended.stdout) == {"if ranks < 2:"}


def test_crashing_check_is_reported(rooms: Path, root: Path) -> None:
    exercises = rooms / "exercises.py"
    exercises.write_text(EXERCISES.replace("if found !=", "if 1 / (found - 48) and found !="))
    ended = make_mutants(rooms, root)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "the check of 99.share failed:\n-return samples / ranks\n+return s" in ended.stdout


ENDLESS = """\
def share(samples, ranks):
    import os

    if samples < 0:
        os._exit(1)
    taken = 0
    while taken * ranks < samples and ranks:
        taken += 1
    return taken if ranks else samples
"""


def test_mutant_that_hangs_or_exits_counts_as_killed(rooms: Path, root: Path) -> None:
    page, _, rest = PAGE.partition("def share")
    (rooms / "mistakes.md").write_text(page + ENDLESS + "```" + rest.partition("```")[2])
    ended = make_mutants(rooms, root, "--all", "--at-once", "1", "--seconds", "0.5")
    assert "99.share, by" not in ended.stdout, ended.stdout + ended.stderr
    assert "(line left out)\n-taken += 1\n" in ended.stdout
    lost = re.findall(r"99.share lost .*\n-if samples < 0:\n\+(.*)\n", ended.stdout)
    assert {"if True:", "if samples >= 0:"} <= set(lost)
    endless = re.findall(r"99.share does-not-finish .*\n-.*\n(.*)\n", ended.stdout)
    assert len(endless) >= 2
    assert row(ended.stdout)["lost"] == str(ended.stdout.count("99.share lost "))
