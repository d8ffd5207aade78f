"""Submissions are found in each layout in which they are collected."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from course_lib.grading import submissions
from course_lib.grading.submissions import NoSubmissionsError
from course_lib.teaching import lessons

LESSON = "01_send_and_receive"


def found(folder: Path, *names: str) -> dict[str, tuple[str, dict[str, list[str]]]]:
    for name in names:
        path = folder / f"{name}.ipynb"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return {
        learner.name: (
            learner.number,
            {n: [path.stem for path in paths] for n, paths in learner.notebooks.items()},
        )
        for learner in submissions.find(folder, ["00", "01"])
    }


@pytest.mark.parametrize(
    ("name", "learner", "number"),
    [
        (f"ada/{LESSON}", "ada", ""),
        (f"ada/workspace/{LESSON}", "ada", ""),
        (f"ada/week 1/{LESSON}", "ada", ""),  # nbgrader: submitted/ada/week 1
        (f"Ada Lovelace_4711_assignsubmission_file_/{LESSON}", "Ada Lovelace", "4711"),  # Moodle
        (f"Ada Lovelace_4711_assignsubmission_file/{LESSON}", "Ada Lovelace", "4711"),
        (f"submission_4711/{LESSON}", "submission_4711", ""),  # Gradescope
        (f"lovelaceada_4711_99_{LESSON}", "lovelaceada", "4711"),  # Canvas
        (f"lovelaceada_LATE_4711_99_{LESSON}", "lovelaceada", "4711"),
        (f"ada_{LESSON}", "ada", ""),
    ],
)
def test_learner_is_read_from_the_file_name(
    tmp_path: Path, name: str, learner: str, number: str
) -> None:
    assert found(tmp_path, name) == {learner: (number, {"01": [Path(name).name]})}


def test_the_newest_copy_comes_first(tmp_path: Path) -> None:
    copies = [LESSON, f"{LESSON}.newer", f"{LESSON}.newer-2", f"{LESSON}-1", f"{LESSON} (2)"]
    (_, notebooks) = found(tmp_path, *(f"ada/{copy}" for copy in copies))["ada"]
    assert notebooks["01"] == [copies[2], copies[1], copies[4], copies[3], copies[0]]


def test_other_files_are_ignored(tmp_path: Path) -> None:
    names = [f"ada/.ipynb_checkpoints/{LESSON}", "ada/notes", f".git/{LESSON}", LESSON]
    names += ["ben/02_collectives", f"cleo/{LESSON}"]
    everybody = found(tmp_path, *names)
    assert everybody == {"ada": ("", {}), "ben": ("", {}), "cleo": ("", {"01": [LESSON]})}


def test_links_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "ada").mkdir()
    (tmp_path / "ada" / f"{LESSON}.ipynb").symlink_to("/etc/hostname")
    assert found(tmp_path, f"ben/{LESSON}")["ada"] == ("", {})


def test_learners_with_the_same_name_stay_separate(tmp_path: Path) -> None:
    names = [f"Ada L_{n}_assignsubmission_file_/{LESSON}" for n in (1, 2)]
    assert found(tmp_path, *names).keys() == {"Ada L 1", "Ada L 2"}


def test_learner_name_is_made_safe_for_files(tmp_path: Path) -> None:
    assert found(tmp_path, f"a:b*_{LESSON}", f".._{LESSON}").keys() == {"a_b_", "_"}


def test_learners_with_the_same_plain_name_stay_separate(tmp_path: Path) -> None:
    """Such as two names in another encoding than the file system's."""
    names = [os.fsdecode(b"M\xfcller"), os.fsdecode(b"M\xf6ller"), "M\nller"]
    one = ["M_ller", "M_ller (2)", "M_ller (3)"]
    assert found(tmp_path / "folders", *(f"{name}/{LESSON}" for name in names)).keys() == {*one}
    assert found(tmp_path / "files", *(f"{name}_{LESSON}" for name in names)).keys() == {*one}


def test_a_pipe_with_the_name_of_a_notebook_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "ada").mkdir()
    os.mkfifo(tmp_path / "ada" / f"{LESSON}.ipynb")
    assert found(tmp_path, f"ben/{LESSON}")["ada"] == ("", {})


def test_empty_folder_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(NoSubmissionsError, match=r"LEARNER_00_start_here\.ipynb"):
        found(tmp_path)


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("01", ["01"]),
        ("01-03", ["01", "02", "03"]),
        ("10-11", ["10", "10b", "10c", "11"]),
        ("13b,00,01-02", ["00", "01", "02", "13b"]),
    ],
)
def test_lesson_selection(text: str, numbers: list[str]) -> None:
    assert lessons.chosen(text) == numbers


@pytest.mark.parametrize("text", ["1", "03-01", "01-", "99", "", "01-02-03"])
def test_malformed_lesson_selection_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="give lessons like"):
        lessons.chosen(text)
