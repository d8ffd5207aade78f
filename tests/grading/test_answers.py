"""The right cells are taken out of a notebook, with what they need and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from course_lib.grading import answers
from course_lib.grading.answers import Answer, UnreadableError
from tests.grading.class_by_script import answered, cell_of, code_cell, hand_in, handed_out, right

SHARE = "00.my_share"
WRITTEN = right(SHARE)[SHARE]


def read(folder: Path, notebook: dict[str, Any] | str) -> dict[str, Answer]:
    hand_in(folder, notebook)
    path = folder / "00_start_here.ipynb"
    return {answer.id: answer for answer in answers.read(path, "00")}


def test_unchanged_lesson_is_not_attempted(tmp_path: Path) -> None:
    assert {a.kind for a in read(tmp_path, handed_out("00")).values()} == {"not attempted"}


def test_trailing_spaces_are_not_an_answer(tmp_path: Path) -> None:
    notebook = handed_out("00")
    cell = cell_of(notebook, SHARE)
    cell["source"] = "\n" + "".join(cell["source"]).replace("\n", "  \n") + "\n\n"
    assert read(tmp_path, notebook)[SHARE].kind == "not attempted"


def test_last_changed_cell_of_an_exercise_counts(tmp_path: Path) -> None:
    notebook = answered("00", {SHARE: WRITTEN})
    issued = cell_of(handed_out("00"), SHARE)
    notebook["cells"] += [cell_of(notebook, SHARE) | {"source": "my_share = list"}, issued]
    assert read(tmp_path, notebook)[SHARE].code == "my_share = list"


def test_cell_without_id_is_found_by_its_function(tmp_path: Path) -> None:
    notebook = answered("00", {SHARE: WRITTEN})
    cell_of(notebook, SHARE)["metadata"] = {}
    answer = read(tmp_path, notebook)[SHARE]
    assert (answer.code.strip(), answer.kind) == (WRITTEN.strip(), "")
    assert "another cell" in answer.note


@pytest.mark.parametrize("code", ["", "\n  \n"])
def test_an_emptied_cell_counts_as_deleted(tmp_path: Path, code: str) -> None:
    assert read(tmp_path, answered("00", {SHARE: code}))[SHARE].kind == "cell deleted"


def test_px_line_is_removed_and_its_absence_noted(tmp_path: Path) -> None:
    id = "00.global_accuracy"
    code = right(id)[id]
    with_it = read(tmp_path, answered("00", {id: code}))[id]
    without = read(tmp_path, answered("00", {id: code.removeprefix("%%px\n")}))[id]
    assert with_it.code == without.code
    assert with_it.note == ""
    assert "judged on the ranks" in without.note


def test_needed_definitions_are_collected_in_order(tmp_path: Path) -> None:
    notebook = answered("00", {SHARE: "def my_share(a, b, c):\n    return first(a)\n"})
    notebook["cells"] += [
        code_cell("def first(x):\n    return second(x) + LIMIT"),
        code_cell("import os.path as p, json\nLIMIT = 3 * 4\nrun_me = print('no')\nopen('x', 'w')"),
        code_cell("%%px\ndef second(x):\n    return 'that of the ranks'"),
        code_cell("def second(x):\n    return p.join(x)"),
        code_cell("def second(x):\n    return p.split(x)"),
        code_cell("this does not parse"),
        code_cell("%matplotlib inline\ndef unused():\n    pass"),
    ]
    support = read(tmp_path, notebook)[SHARE].support
    assert support.splitlines() == [
        *("LIMIT = 3 * 4", "", "import os.path as p, json", ""),
        *("def second(x):", "    return p.split(x)", ""),
        *("def first(x):", "    return second(x) + LIMIT"),
    ]


def test_a_definition_of_the_lesson_need_not_be_in_the_notebook(tmp_path: Path) -> None:
    (path,) = (p for p in answers.lessons.sources() if answers.lessons.number(p) == "01")
    notebook = answered("01", {"01.ring_pass": "%%px\nring_pass = partial(MPI.COMM_SELF)"})
    notebook["cells"] = [cell for cell in notebook["cells"] if "exercise" in cell["metadata"]]
    hand_in(tmp_path, notebook, path.stem)
    answer = answers.read(tmp_path / f"{path.stem}.ipynb", "01")[0]
    assert answer.support == "from mpi4py import MPI\n\nfrom functools import partial"


def test_names_given_to_every_rank_are_not_replaced(tmp_path: Path) -> None:
    id = "00.global_accuracy"
    notebook = answered("00", {id: "%%px\ndef global_accuracy(c, r, t):\n    return rank\n"})
    notebook["cells"].append(code_cell("%%px\nrank = 5"))
    assert read(tmp_path, notebook)[id].support == ""


def test_answer_cannot_use_the_teachers_other_solutions(tmp_path: Path) -> None:
    notebook = answered("00", {SHARE: "def my_share(a, b, c):\n    return neighbours(a, b)\n"})
    notebook["cells"].remove(cell_of(notebook, "00.neighbours"))
    assert read(tmp_path, notebook)[SHARE].support == ""


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "{}", '{"cells": 3}', '{"worksheets": []}', "[" * 100_000, "\udcff", "\x00"],
    ids=["empty", "cut", "a list", "no cells", "a number", "format 3", "deep", "bytes", "zero"],
)
def test_file_that_is_not_a_notebook_is_unreadable(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.ipynb").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(UnreadableError, match=r"x\.ipynb is not a notebook"):
        answers.read(tmp_path / "x.ipynb", "00")


def test_a_byte_order_mark_is_skipped(tmp_path: Path) -> None:
    """PowerShell writes one in front of a file."""
    assert read(tmp_path, "\ufeff" + json.dumps({"cells": []}))[SHARE].kind == "cell deleted"


def test_a_huge_file_is_unreadable(tmp_path: Path) -> None:
    with (tmp_path / "x.ipynb").open("wb") as file:
        file.truncate(answers.LARGEST_BYTES + 1)  # takes no room on the disk
    with pytest.raises(UnreadableError, match="100 MiB"):
        answers.read(tmp_path / "x.ipynb", "00")


def test_damaged_cells_are_ignored(tmp_path: Path) -> None:
    notebook = answered("00", {SHARE: WRITTEN})
    notebook["cells"] += [3, {}, {"cell_type": "code", "source": [1], "metadata": 4}, None]
    assert read(tmp_path, json.dumps(notebook))[SHARE].code.strip() == WRITTEN.strip()


def test_the_newest_copy_with_an_answer_counts(tmp_path: Path) -> None:
    hand_in(tmp_path, answered("00", {SHARE: "old = 1"}), "old")
    hand_in(tmp_path, answered("00", {SHARE: "newer = 1"}), "newer")
    hand_in(tmp_path, handed_out("00"), "newest")
    hand_in(tmp_path, "{", "broken")
    copies = [tmp_path / f"{name}.ipynb" for name in ("broken", "newest", "newer", "old")]
    path, taken = answers.choose(copies, "00")
    assert (path.stem, taken[1].code) == ("newer", "newer = 1")
