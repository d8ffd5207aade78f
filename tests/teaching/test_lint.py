"""Each rule for a lesson's source is broken once, and says so; a good lesson has no problem."""

from __future__ import annotations

import pytest

from tests.teaching.lessons_of_our_own import GOOD
from tools import lint_lessons as rules
from tools.lint_lessons import lint

pytestmark = pytest.mark.usefixtures("own_exercises")


@pytest.fixture
def complaints(tmp_path, monkeypatch):
    """A function that returns the problems of a source's text."""
    monkeypatch.setattr(rules, "FEWEST_EXERCISES", 2)

    def look(text: str) -> list[str]:
        path = tmp_path / "90_lesson.py"
        path.write_text(text)
        return [str(problem) for problem in lint(path)]

    return look


def test_a_good_lesson_has_no_problem(complaints) -> None:
    assert complaints(GOOD) == []


SECOND = GOOD[GOOD.index('# %% tags=["exercise"] exercise="90.total"') : GOOD.index("# ## Recap")]
PLAIN, EXERCISE = "print(2 + 2)", '# %% tags=["exercise"] exercise="90.double"'


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        (PLAIN, "# a comment\n# %%px\nprint(2)", "cell 4: a cell magic such as %%px works in the"),
        (PLAIN, "x = 1\n%%px\nprint(2)", "works in the first line only"),
        (PLAIN, "# %%px --noblock\nprint(2)", "cell 4: %%px without waiting"),
        (PLAIN, "# %%px -a\nprint(2)", "%%px without waiting"),
        (PLAIN, "# NBVAL_SKIP\nprint(2)", "use cell tags instead of NBVAL_"),
        (PLAIN, "print(2)\n" * 25, "cell 4: (warning) 25 lines"),
        ("# Stuck?", "# ![](picture.png) Stuck?", "picture without alternative text"),
        ('tags=["check"]', 'tags=["chekc"]', "unknown tag chekc"),
        ('tags=["check"]', "", 'the check cell has tags=["check"]'),
        ('tags=["exercise"] exercise="90.double"', 'exercise="90.double"', 'tags=["exercise"]'),
        (EXERCISE, EXERCISE.replace("double", "dbl"), "exercise 90.dbl is not registered"),
        (EXERCISE, EXERCISE.replace("90.double", "00.neighbours"), "00.neighbours is not regist"),
        ('check("90.double")', 'check("90.total")', 'the next cell has to be check("90.double")'),
        ('check("90.double")', 'pass\ncheck("90.double")', "the next cell has to be check"),
        ('`hint("90.double")`, ', "", "has to offer hint"),
        ('`, `solution("90.double")', "", "has to offer hint"),
        ("# %%px\ndef total", "def total", "90.total is registered for where='engines'"),
        ("def double", "# %%px\ndef double", "90.double is registered for where='notebook'"),
        ("def double", "def twice", "the function has to be called double"),
        ("    ### BEGIN SOLUTION\n    return 2", "    return 2", "has to stand between"),
        ("    ### END SOLUTION\n\n\n# %% tags", "# %% tags", "cannot be blanked"),
        (
            "    ### BEGIN SOLUTION\n    return 2 * x\n    ### END SOLUTION",
            "    return 2 * x\n### BEGIN SOLUTION\n### END SOLUTION",
            "has to raise NotImplementedError when it is called",
        ),
        ("### END SOLUTION", "### END SOLUTION\nprint(double(2))", "functions and imports only"),
        ("# # 90 A lesson", "# # A lesson", "a title of the form '# 90 Name'"),
        ("**The one idea.**", "", "has to say the one idea"),
        ("**You will be able to**", "", "has to say what the learner will be able to do"),
        ("**Prerequisites:**", "", "has to say the prerequisites"),
        ("runs in 1 s", "is quick", "has to say running time"),
        ("Allow 5 minutes", "Allow a day", "has to say running time"),
        ("## Recap", "## The end", "a '## Recap' with a table"),
        ("# | what | how |\n# |---|---|\n# | double | `2 * x` |", "# None.", "'## Recap' with a"),
        ("## Further reading", "## Sources", "'Further reading' has to come after the recap"),
        ("**Predict.** ", "", "never asked to **Predict**"),
        (SECOND, "# %% [markdown]\n", "exercise 90.total is registered, but not in the lesson"),
        (SECOND, "# %% [markdown]\n", "1 exercises; there have to be"),
        (EXERCISE, EXERCISE + "\npass\n\n" + EXERCISE, "exercise 90.double comes"),
    ],
)  # fmt: skip
def test_broken_rule_is_reported(complaints, old: str, new: str, complaint: str) -> None:
    assert GOOD.count(old) >= 1
    found = complaints(GOOD.replace(old, new, 1))
    assert any(complaint in text for text in found), found
