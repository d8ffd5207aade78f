"""A class made by script is graded once, interrupted in between; everything is read from that."""

from __future__ import annotations

import csv
import json
import os
import re
import secrets
import signal
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import psutil
import pytest

from course_lib.grading import one_notebook
from course_lib.grading.__main__ import main
from tests.grading.class_by_script import EXPECTED, make_class

pytestmark = [pytest.mark.clusters, pytest.mark.timeout(600)]

MARK = "TEST_OF_GRADING"
IDS = ["00.neighbours", "00.my_share", "00.global_accuracy"]


def arguments(folder: Path) -> list[str]:
    options = f"--lessons 00 --out {folder / 'results'} --jobs 2 --seconds 6"
    return [str(folder / "class"), *options.split()]


def left_behind(mark: str) -> list[psutil.Process]:
    """Return processes that this grading has started: another may run beside it."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark:
                found.append(process)
        except (psutil.Error, OSError):  # it has ended, or is not ours
            continue
    return found


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Grade the class, stopped after two of ten notebooks and started again."""
    folder = tmp_path_factory.mktemp("grading")
    make_class(folder / "class")
    command = [sys.executable, "-u", "-m", "course_lib.grading", *arguments(folder)]
    mark = secrets.token_hex(8)
    variables = {**os.environ, MARK: mark}
    first = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=variables
    )
    lines = []
    assert first.stdout is not None
    for line in first.stdout:
        lines.append(line)
        if len(lines) == 2:
            first.send_signal(signal.SIGTERM)
            break
    out, err = first.communicate(timeout=60)
    assert first.returncode == 130, out + err
    assert "run the same command again to continue from here" in err
    assert left_behind(mark) == []
    second = subprocess.run(
        command, capture_output=True, text=True, timeout=400, check=False, env=variables
    )
    assert second.returncode == 0, second.stdout + second.stderr
    assert left_behind(mark) == []
    return folder / "results"


def graded(results: Path, learner: str) -> dict[str, dict]:
    text = (results / "learners" / learner / "results.json").read_text()
    return {test["name"]: test for test in json.loads(text)["tests"]}


@pytest.mark.parametrize("learner", EXPECTED)
def test_each_learner_is_graded_as_expected(results: Path, learner: str) -> None:
    tests = graded(results, learner)
    xml = ElementTree.parse(results / "junit.xml")
    found = []
    for id in IDS:
        (case,) = xml.findall(f".//testcase[@classname='{learner}'][@name='{id}']")
        inner = case.find("*")
        if inner is None:
            found.append(("right", ""))
        elif inner.tag == "skipped":
            found.append(("not attempted", ""))
        else:
            mistake = [tag for tag in tests[id]["tags"] if tag != "lesson 00"]
            found.append((inner.get("type"), "".join(mistake)))
    assert found == EXPECTED[learner], json.dumps(tests, indent=1)


def test_points_follow_the_rubric(results: Path) -> None:
    rows = csv.DictReader((results / "grades_moodle.csv").read_text().splitlines())
    found = {row["Username"]: row["Grade"] for row in rows if row["Username"]}
    expected = {
        learner: sum({"right": 10, "wrong": 5}.get(kind, 0) for kind, _ in ends)
        for learner, ends in EXPECTED.items()
    }
    assert {name: float(found[name]) for name in expected} == expected


def test_feedback_quotes_the_check(results: Path) -> None:
    ben, dan = graded(results, "ben"), graded(results, "dan")
    assert re.match(r"00.my_share: not yet: .*\(drops-the-rest\)", ben["00.my_share"]["output"])
    assert "\n| 00.my_share: right." in graded(results, "eve")["00.my_share"]["output"]
    assert "The cell itself raised SystemExit: 0" in dan["00.my_share"]["output"]


def test_abnormal_endings_are_reported(results: Path) -> None:
    told = {
        ("cleo", "00.neighbours"): "ended with status 3",
        ("cleo", "00.my_share"): "did not finish within 6 s",
        ("cleo", "00.global_accuracy"): "it does not end on 4 ranks",
        ("dan", "00.neighbours"): "the notebook has no cell for the exercise",
        ("dan", "00.global_accuracy"): "rank 1",
        ("eve", "00.neighbours"): "a verdict that no check gave",
        ("fay", "00.my_share"): "00_start_here.ipynb is not a notebook",
        ("gus", "00.neighbours"): "more than any answer needs",
        ("hal", "00.neighbours"): "Taken from another cell",
        ("jon", "00.neighbours"): "nothing was handed in",
    }
    for (learner, id), text in told.items():
        assert text in graded(results, learner)[id]["output"], learner


def test_page_names_the_graded_copy(results: Path) -> None:
    page = (results / "index.html").read_text()
    assert "from 00_start_here.newer.ipynb" in page


def test_second_run_gives_equal_results_without_judging(
    results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def judge(*arguments: object) -> None:
        raise AssertionError("judged again")

    monkeypatch.setattr(one_notebook, "judge", judge)
    before = {path: path.read_bytes() for path in results.rglob("*") if path.is_file()}
    assert main(arguments(results.parent)) == 0
    after = {path: path.read_bytes() for path in results.rglob("*") if path.is_file()}
    assert after == before
    assert "10 of 10" in capsys.readouterr().out


def test_only_changed_answers_are_judged_again(
    results: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The results of all other notebooks are kept."""
    judged = []

    def judge(answers: list, *others: object) -> None:
        judged.append([answer.code for answer in answers if answer.code])
        raise one_notebook.StoppedError

    monkeypatch.setattr(one_notebook, "judge", judge)
    path = results.parent / "class" / "ben" / "00_start_here.ipynb"
    text = path.read_text()
    path.write_text(text.replace("rank - 1, rank + 1", "rank - 2, rank + 2"))
    try:
        assert main(arguments(results.parent)) == 130
    finally:
        path.write_text(text)
    assert len(judged) == 1
    assert "rank - 2, rank + 2" in judged[0][0]
