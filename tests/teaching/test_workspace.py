"""A learner's work survives everything: newer lessons, interruptions, and broken files."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from course_lib.places import ISSUED
from course_lib.teaching import lessons as files_of_lessons
from course_lib.teaching import workspace
from course_lib.teaching.solution_marks import STUB
from course_lib.teaching.workspace import for_learners, make_workspace

NAME = "07_lesson.ipynb"
NEWER = "07_lesson.newer.ipynb"


def lesson(text: str = "first version") -> dict:
    """Return an executed lesson of three cells."""
    function = "def f():\n    ### BEGIN SOLUTION\n    return 42\n    ### END SOLUTION"
    outputs = [{"output_type": "stream", "name": "stdout", "text": ["7: right.\n"]}]
    code = {"cell_type": "code", "execution_count": 1, "outputs": outputs}
    return {
        "cells": [
            {"cell_type": "markdown", "id": "a", "metadata": {}, "source": [text]},
            {**code, "id": "b", "metadata": {"exercise": "07.f"}, "source": function},
            {**code, "id": "c", "metadata": {"tags": ["check"]}, "source": ['check("07.f")']},
        ],
        "metadata": {"kernelspec": {"name": "python3"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }


class Course:
    """A folder of lessons and a workspace."""

    def __init__(self, folder: Path):
        self.lessons, self.workspace = folder / "notebooks", folder / "work space"
        self.lessons.mkdir()
        self.publish(lesson())

    def publish(self, notebook: dict) -> None:
        (self.lessons / NAME).write_text(json.dumps(notebook))

    def update(self) -> list[str]:
        return make_workspace(self.lessons, self.workspace)

    def copies(self) -> list[str]:
        return sorted(path.name for path in self.workspace.glob("*.ipynb"))

    def read(self, name: str = NAME) -> str:
        return (self.workspace / name).read_text()

    def work(self, name: str = NAME, answer: str = "return 41") -> str:
        """Do what a learner does, and return the file's text."""
        path = self.workspace / name
        path.write_text(path.read_text().replace(json.dumps(STUB)[1:-1], answer))
        return path.read_text()


@pytest.fixture
def course(tmp_path: Path) -> Course:
    return Course(tmp_path)


def test_a_learner_gets_neither_solutions_nor_outputs(course) -> None:
    assert course.update() == [f"{NAME}: new"]
    text = course.read()
    notebook = json.loads(text)
    assert "42" not in text
    assert "SOLUTION" not in text
    assert "right" not in text
    assert STUB in notebook["cells"][1]["source"]
    assert [c.get("execution_count") for c in notebook["cells"]] == [None] * 3
    assert [c["id"] for c in notebook["cells"]] == ["a", "b", "c"]
    assert course.update() == []
    assert course.read() == text


def test_an_untouched_copy_follows_the_course(course) -> None:
    course.update()
    course.publish(lesson("second version"))
    assert course.update() == [f"{NAME}: brought up to date"]
    assert "second version" in course.read()
    assert course.copies() == [NAME]


def test_saved_but_unedited_copy_counts_as_untouched(course) -> None:
    course.update()
    notebook = json.loads(course.read())
    notebook["metadata"]["language_info"] = {"version": "3.13.0"}
    (course.workspace / NAME).write_text(json.dumps(notebook))
    course.publish(lesson("second version"))
    assert course.update() == [f"{NAME}: brought up to date"]


def test_work_is_kept_and_newer_lesson_saved_beside_it(course) -> None:
    course.update()
    mine = course.work()
    assert course.update() == []
    for version in ("second", "third"):  # nobody touched the one laid beside
        course.publish(lesson(version))
        said = f"{NAME} has your work in it, so it is kept; the newer version is {NEWER}"
        assert course.update() == [said]
        assert version in course.read(NEWER)
        assert course.update() == []
    mine_too = course.work(NEWER, "return 40")
    course.publish(lesson("fourth"))
    assert course.update()[0].endswith("the newer version is 07_lesson.newer-2.ipynb")
    assert set(course.copies()) == {NAME, NEWER, "07_lesson.newer-2.ipynb"}
    assert (course.read(), course.read(NEWER)) == (mine, mine_too)
    assert "fourth" in course.read("07_lesson.newer-2.ipynb")
    assert course.update() == []


def test_outputs_count_as_work(course) -> None:
    course.update()
    notebook = json.loads(course.read())
    notebook["cells"][2]["outputs"] = [{"output_type": "stream", "text": "my run"}]
    (course.workspace / NAME).write_text(json.dumps(notebook))
    course.publish(lesson("second"))
    course.update()
    assert "my run" in course.read()
    assert set(course.copies()) == {NAME, NEWER}


@pytest.mark.parametrize("content", ["", "no notebook", "[]", '{"cells": 3}', "\udcff"])
def test_file_that_is_not_a_notebook_is_kept(course, content: str) -> None:
    course.update()
    data = content.encode(errors="surrogateescape")
    (course.workspace / NAME).write_bytes(data)
    course.publish(lesson("second"))
    assert "is kept" in course.update()[0]
    assert (course.workspace / NAME).read_bytes() == data


def test_a_deleted_copy_comes_back(course) -> None:
    course.update()
    (course.workspace / NAME).unlink()
    assert course.update() == [f"{NAME}: new"]


@pytest.mark.parametrize("note", [None, "", "[1]", '{"07_les'], ids=str)
def test_nothing_is_overwritten_without_the_issued_record(course, note: str | None) -> None:
    course.update()
    untouched = course.read()
    path = course.workspace / ISSUED
    path.unlink() if note is None else path.write_text(note)
    assert course.update() == [], "an untouched copy of this version is recognised all the same"
    path.unlink()
    course.publish(lesson("second"))
    assert "is kept" in course.update()[0]
    assert course.read() == untouched


def test_other_files_are_left_alone(course) -> None:
    course.workspace.mkdir()
    (course.workspace / "my notes.ipynb").write_text("mine")
    (course.workspace / "data.csv").write_text("1")
    course.update()
    assert (course.workspace / "my notes.ipynb").read_text() == "mine"
    assert (course.workspace / "data.csv").read_text() == "1"


def test_next_run_recovers_from_an_interrupt_at_any_step(course, monkeypatch) -> None:
    """The process dies at each step on the disk in turn; work and lessons are never lost."""
    for lessons in ("second", "third"):
        for steps in range(8):
            folder = course.workspace.parent / f"try {lessons} {steps}"
            folder.mkdir()
            tried = Course(folder)
            tried.update()
            mine = tried.work() if lessons == "third" else None
            tried.publish(lesson(lessons))
            _die_after(steps, monkeypatch)
            with contextlib.suppress(KeyboardInterrupt):
                tried.update()
            monkeypatch.undo()
            tried.update()
            newest = NAME if mine is None else NEWER
            assert lessons in tried.read(newest)
            assert mine is None or tried.read() == mine
            assert tried.update() == []
            assert not list(tried.workspace.glob(f"*{files_of_lessons.PART}"))


def _die_after(steps: int, monkeypatch) -> None:
    left = [steps]

    def step(original):
        def count(*args, **kwargs):
            left[0] -= 1
            if left[0] < 0:
                raise KeyboardInterrupt
            return original(*args, **kwargs)

        return count

    monkeypatch.setattr(files_of_lessons.os, "fsync", step(files_of_lessons.os.fsync))
    monkeypatch.setattr(files_of_lessons.Path, "replace", step(files_of_lessons.Path.replace))
    monkeypatch.setattr(files_of_lessons.Path, "chmod", step(files_of_lessons.Path.chmod))


def test_a_killed_run_leaves_no_half_written_lesson(course) -> None:
    big = lesson("x" * 20_000_000)
    course.update()
    course.publish(big)
    code = (
        "import pathlib, sys; from course_lib.teaching.workspace import make_workspace\n"
        "print('go', flush=True); make_workspace(*map(pathlib.Path, sys.argv[1:]))"
    )
    command = [sys.executable, "-c", code, str(course.lessons), str(course.workspace)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"go\n"
    deadline = time.monotonic() + 100
    while not list(course.workspace.glob(f".*{files_of_lessons.PART}")) and process.poll() is None:
        assert time.monotonic() < deadline
    process.send_signal(signal.SIGKILL)
    process.wait(60)
    process.stdout.close()
    json.loads(course.read())  # the old one or the new one, in any case a whole one
    course.update()
    assert "xxxx" in course.read()
    assert not list(course.workspace.glob(f".*{files_of_lessons.PART}"))


def test_missing_lessons_raise(course) -> None:
    shutil.rmtree(course.lessons)
    course.lessons.mkdir()
    with pytest.raises(FileNotFoundError, match="run make notebooks"):
        course.update()


def test_workspace_imports_no_heavy_packages(root) -> None:
    code = (
        "import sys; import course_lib.teaching.workspace\n"
        "heavy = {'torch', 'mpi4py', 'nbformat', 'jupytext', 'IPython', 'matplotlib', 'numpy'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=200)


def test_every_lesson_can_be_issued(root) -> None:
    paths = sorted((root / "notebooks").glob("*.ipynb"))
    assert paths
    for path in paths:
        given = for_learners(json.loads(path.read_text()))
        stubs = [c for c in given["cells"] if "exercise" in c["metadata"]]
        assert all(STUB in c["source"] for c in stubs)
        assert len(stubs) >= 3
        assert not any(c.get("outputs") for c in given["cells"])


def test_each_jupyterhub_learner_has_a_separate_workspace(tmp_path: Path) -> None:
    """Learners share the checkout there, so a variable says where the workspace is."""
    code = "from course_lib.teaching import record, workspace\n"
    code += "workspace.main(); print(record._FOLDER)"
    theirs = tmp_path / "ada"
    theirs.mkdir()
    said = subprocess.run(
        [sys.executable, "-c", code],
        cwd=theirs,
        env=os.environ | {"COURSE_WORKSPACE": str(theirs)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=200,
    ).stdout
    assert (theirs / "00_start_here.ipynb").is_file()
    assert said.split()[-1] == str(theirs / ".progress")


def test_a_tutors_text_follows_the_course_until_it_is_changed(course, monkeypatch) -> None:
    course.update()
    text = course.workspace / "AGENTS.md"
    assert text.read_text() == workspace.TUTOR.read_text()
    assert (course.workspace / "CLAUDE.md").read_text() == "@AGENTS.md\n"
    newer = course.workspace.parent / "tutor.md"
    newer.write_text("Ask first.\n")
    monkeypatch.setattr(workspace, "TUTOR", newer)
    course.update()
    assert text.read_text() == "Ask first.\n"
    text.write_text("Ask first, in German.\n")
    newer.write_text("Ask first, and wait.\n")
    course.update()
    assert text.read_text() == "Ask first, in German.\n"


@pytest.mark.parametrize("what", ["a folder", "a link that leads nowhere"])
def test_folder_or_link_named_like_the_tutors_text_is_kept(course, what: str) -> None:
    course.workspace.mkdir()
    path = course.workspace / "AGENTS.md"
    path.mkdir() if what == "a folder" else path.symlink_to("missing")
    course.update()
    assert path.is_dir() if what == "a folder" else path.is_symlink()
