"""A mistakes.md is read as it is written by hand, and explained where it is malformed."""

from __future__ import annotations

import pickle
import time
from fractions import Fraction
from pathlib import Path

import pytest

from course_lib.teaching import mistakes
from course_lib.teaching.catalogue import find
from course_lib.teaching.exercise import WrongAnswer, as_mistake
from course_lib.teaching.mistakes import MistakesError, explain, read

PAGE = """\
# Mistakes in lesson 99

A note to teachers.

## Any exercise

### returns-nothing

rank {rank} returns nothing

## 99.mean

### only-the-sum

{found:.1f} is the sum:
divide it by `{{comm.size}}`

```python
def mean(comm, value):
    # no heading
    return comm.allreduce(value)
```

#### in a loop

````python
def mean(comm, value):
    '''
    ```
    '''
````

#### of two

{found} is the sum of two

### returns-nothing

```python
def mean(comm, value):
    print(value)
```

### Right answers

#### by reduce

How a teacher does it.

```python
def mean(comm, value):
    return 1
```

### Equivalent changes

All ranks have one value,
so the largest is the mean.

```diff
-    return 1
+    return 1.0

-barrier()
```
"""


def write(tmp_path: Path, text: str = PAGE, name: str = "mistakes.md") -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def test_page_is_parsed(tmp_path: Path) -> None:
    found = read(write(tmp_path))
    assert {key: text.template for key, text in found.texts.items()} == {
        (mistakes.ANY, "returns-nothing"): "rank {rank} returns nothing",
        ("99.mean", "only-the-sum"): "{found:.1f} is the sum: divide it by `{{comm.size}}`",
        ("99.mean", "only-the-sum: of two"): "{found} is the sum of two",
    }
    assert found.texts["99.mean", "only-the-sum"].line == 15
    assert found.texts["99.mean", "only-the-sum"].fields == {"found"}
    assert list(found.wrong) == list(found.right) == ["99.mean"]
    answers = found.wrong["99.mean"]
    assert list(answers) == ["only-the-sum", "only-the-sum: in a loop", "returns-nothing"]
    assert answers["only-the-sum"].endswith(
        "\n    # no heading\n    return comm.allreduce(value)\n"
    )
    assert answers["only-the-sum: in a loop"].count("```") == 1
    assert list(found.right["99.mean"]) == ["by reduce"]
    assert found.equivalent == {
        "99.mean": {
            (
                ("return 1",),
                ("return 1.0",),
            ): "All ranks have one value, so the largest is the mean.",
            (("barrier()",), ()): "All ranks have one value, so the largest is the mean.",
        }
    }


def test_changed_page_is_read_again(tmp_path: Path) -> None:
    path = write(tmp_path)
    assert read(path) is read(path)
    path.write_text(PAGE.replace("is the sum of two", "is two"), encoding="utf-8")
    assert read(path).texts["99.mean", "only-the-sum: of two"].template == "{found} is two"


@pytest.mark.parametrize(
    ("old", "new", "line", "expected"),
    [
        ("## 99.mean", "## 99", 11, 'expected an exercise, as in "## 00.my_share", not "## 99"'),
        ("## Any exercise\n", "\n", 7, 'expected an exercise ("## ...") before "### returns-'),
        ("### only-the-sum", "### Only the sum", 13, "expected a mistake, in small letters"),
        (
            "### only-the-sum\n",
            "\n",
            18,
            'expected code below a mistake of an exercise ("### ...")',
        ),
        ("### only-the-sum\n", "#### in a loop\n", 13, 'expected a mistake ("### ...") before'),
        ("#### of two", "##### of two", 33, "expected a heading with two, three or four #"),
        ("#### of two", "#### in a loop", 33, '"in a loop" appears twice: first in line 24'),
        ("#### in a loop\n", "\n", 26, 'expected "#### ..." before another answer'),
        ("#### in a loop\n", "Look:\n", 24, "expected the text above the code"),
        ("#### by reduce\n", "\n", 44, 'expected "#### ..." before the answer: its style'),
        ("````\n\n", "```\n\n", 26, "the code that begins here never ends: expected ````"),
        ("```python\ndef", "```\ndef", 18, 'expected "```python", not "```"'),
        ("```diff", "```python", 60, 'expected "```diff", not "```python"'),
        ("+    return 1.0", "    return 1.0", 62, 'expected a line with "-" or "+" before it'),
        ("-barrier()", "-    return 1\n+    return 1.0", 65, "this change appears twice"),
        ("All ranks have one value,\nso the largest is the mean.\n", "", 58, "expected above"),
        ("-barrier()\n```", "-barrier()\n```\n\nAnd more.", 67, "changes below their reason"),
        ("{found:.1f}", "{}", 15, "expected a field such as {rank} or {seconds:.3g}, not {}"),
        ("{found:.1f}", "{found[0]}", 15, "not {found[0]}"),
        ("{found:.1f}", "{found.x}", 15, "not {found.x}"),
        ("{found:.1f}", "{found!r}", 15, "expected a field such as {rank}"),
        ("{found:.1f}", "{found:{rank}}", 15, "expected a field such as {rank}"),
        ("{found:.1f}", "{found", 15, "write a literal brace twice, {{ or }}"),
    ],
)
def test_malformed_page_error_gives_file_line_and_expectation(
    tmp_path: Path, old: str, new: str, line: int, expected: str
) -> None:
    assert old in PAGE
    path = write(tmp_path, PAGE.replace(old, new, 1))
    with pytest.raises(MistakesError) as error:
        read(path)
    assert f"mistakes.md, line {line}: " in str(error.value)
    assert expected in str(error.value)


def test_unclosed_code_block_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(MistakesError, match="never ends: expected ```"):
        read(write(tmp_path, PAGE[: PAGE.rindex("```")]))


# ---- what a learner is told ------------------------------------------------------------------


ONE = {"number": 1, "found": 1}


@pytest.fixture
def double(own_exercises):
    return find("90.double")


def test_lesson_text_is_filled_with_the_judges_fields(double) -> None:
    assert explain(WrongAnswer("squared", number=4, found=16), double) == (
        "4 became 16: that is its square"
    )


def test_variant_without_text_uses_the_mistakes_text(double) -> None:
    wrong = WrongAnswer("squared: by a power", number=3, found=9.0)
    assert explain(wrong, double) == "3 became 9.0: that is its square"
    assert wrong.mistake == "squared"


def test_shared_text_is_found_from_any_exercise(double) -> None:
    wrong = WrongAnswer("it-raises: on a rank", who="rank 3", error="KeyError: 1")
    assert explain(wrong, double) == explain(wrong) == "rank 3 raised KeyError: 1"


def test_missing_field_or_text_is_explained(double) -> None:
    with pytest.raises(MistakesError) as error:
        explain(WrongAnswer("squared", number=4), double)
    assert "lesson_90/mistakes.md, line 7: the judge of squared does not give {found}" in str(
        error.value
    )
    with pytest.raises(MistakesError, match="no text for 'cubed': expected a heading ### cubed"):
        explain(WrongAnswer("cubed"), double)


def test_format_that_rejects_a_field_is_explained(tmp_path, monkeypatch):
    monkeypatch.setattr(mistakes, "path_of", lambda exercise: write(tmp_path))
    mean = find("00.neighbours")._replace(id="99.mean")
    with pytest.raises(MistakesError, match=r"line 15: Unknown format code 'f'.*'found': 'three'"):
        explain(WrongAnswer("only-the-sum", found="three"), mean)


@pytest.mark.parametrize(
    ("found", "shown"),
    [(10**5000, "inf"), (-(10**400), "-inf"), (Fraction(1, 4), "0.25")],
    ids=["huge", "negative", "fraction"],
)
def test_odd_numbers_are_shown(double, found, shown) -> None:
    told = explain(WrongAnswer("squared", number=4, found=found), double)
    assert told.startswith(f"4 became {shown}:")


def test_nested_mistake_is_explained(double) -> None:
    inner = WrongAnswer("it-hangs: in messages", where="rank 0")
    outer = WrongAnswer("squared", number=inner, found=1)
    assert explain(outer, double) == f"{explain(inner)} became 1: that is its square"


def test_combined_mistakes_are_explained_in_order(double) -> None:
    wrong = WrongAnswer("squared", number=4, found=16)
    wrong.further = [WrongAnswer("ranks-disagree", calls="a"), WrongAnswer("squared: b", **ONE)]
    assert explain(wrong, double) == (
        "4 became 16: that is its square; the ranks' calls do not match: a; "
        "1 became 1: that is its square"
    )


def test_pickled_wrong_answer_keeps_fields_and_reason() -> None:
    class Odd:
        def __str__(self) -> str:
            return "odd"

    with pytest.raises(WrongAnswer) as caught, as_mistake("size-is-fixed: of a group", p=3, last=2):
        raise WrongAnswer("ranks-disagree", calls=Odd())
    copy = pickle.loads(pickle.dumps(caught.value))
    assert explain(copy) == explain(caught.value)
    assert explain(copy).endswith("(the ranks' calls do not match: odd)")


def test_explain_takes_less_than_half_a_millisecond(double) -> None:
    wrong = WrongAnswer("squared", number=4, found=16)
    explain(wrong, double)
    seconds = []
    for _ in range(20):
        began = time.perf_counter()
        explain(wrong, double)
        seconds.append(time.perf_counter() - began)
    assert min(seconds) < 0.5e-3


# ---- in another language ---------------------------------------------------------------------

GERMAN = """\
## 99.mean

### only-the-sum

{found:.0f} ist die Summe
"""


@pytest.fixture
def german(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.setattr(mistakes, "path_of", lambda exercise: tmp_path / "mistakes.md")
    write(tmp_path)
    monkeypatch.setenv("COURSE_LANGUAGE", "de")
    return write(tmp_path, GERMAN, "mistakes.de.md")


def test_translation_is_used_where_it_exists(german: Path, monkeypatch) -> None:
    mean = find("00.neighbours")._replace(id="99.mean")
    assert explain(WrongAnswer("only-the-sum", found=3), mean) == "3 ist die Summe"
    assert explain(WrongAnswer("only-the-sum: of two", found=3), mean) == "3 is the sum of two"
    assert explain(WrongAnswer("returns-nothing", rank=1), mean) == "rank 1 returns nothing"
    assert explain(WrongAnswer("ranks-disagree", calls="a"), mean).startswith("the ranks' calls")
    monkeypatch.setenv("COURSE_LANGUAGE", "fr")
    told = explain(WrongAnswer("only-the-sum", found=3), mean)
    assert told == "3.0 is the sum: divide it by `{comm.size}`"


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("{found:.0f}", "{fund}", "line 5: {fund} is not in the text of mistakes.md, line 15"),
        ("only-the-sum", "only-a-sum", "line 5: mistakes.md has no text for 99.mean only-a-sum"),
    ],
)
def test_translation_that_does_not_match_is_rejected(
    german: Path, old: str, new: str, expected: str
) -> None:
    german.write_text(GERMAN.replace(old, new), encoding="utf-8")
    with pytest.raises(MistakesError, match=r"mistakes\.de\.md") as error:
        mistakes.translation(german.with_name("mistakes.md"))
    assert expected in str(error.value)
