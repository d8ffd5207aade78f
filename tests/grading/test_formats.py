"""Files are as the programs read them for which they are written.

Gradescope's rules are those of https://gradescope-autograders.readthedocs.io/en/latest/specs/.
Moodle and Canvas are read as their importers do: assignfeedback_offline's ``importgradeslib.php``
and Canvas's ``lib/gradebook_importer.rb``.
"""

from __future__ import annotations

import csv
import json
import re
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree

import pytest

from course_lib.grading import formats
from course_lib.grading.formats import Report
from course_lib.grading.outcomes import KINDS, Graded, Outcome
from course_lib.grading.page import page
from course_lib.grading.rubric import Rubric
from course_lib.grading.submissions import Learner

HOSTILE = '=1+1 "<script>alert(1)</script>", \x1b\x00 ☃ & more\nlines'
NAMES = ["ada", "Lovelace, Ada", '=HYPERLINK("x")']


@pytest.fixture
def report() -> Report:
    learners = [Learner(NAMES[0]), Learner(NAMES[1], "4711"), Learner(NAMES[2])]
    kinds = [*KINDS, *list(KINDS)[:4]]
    graded = {}
    for number, learner in enumerate(learners):
        ends = [kinds[(number + i) % len(kinds)] for i in range(len(KINDS))]
        outcomes = [
            Outcome(f"01.e{i}", kind, "some-mistake" if kind == "wrong" else "", HOSTILE, "", 1.5)
            for i, kind in enumerate(ends)
        ]
        graded[learner.name] = [Graded(learner.name, "01", "a.ipynb", outcomes)]
        graded[learner.name].append(Graded(learner.name, "02", "", [Outcome("02.x", "right")]))
    return Report(["01", "02"], learners, graded, Rubric())


def test_gradescope_results_follow_its_schema(report: Report) -> None:
    for learner in report.learners:
        results = json.loads(formats.gradescope(report, learner))
        _gradescope_takes(results)
        assert results["score"] == sum(test["score"] for test in results["tests"]) == 25
        assert sum(test["max_score"] for test in results["tests"]) == 130
        assert "☃" in results["tests"][0]["output"]


def _gradescope_takes(results: dict[str, Any]) -> None:
    visibilities = {"hidden", "after_due_date", "after_published", "visible"}
    known = {
        "score": (int, float),
        "execution_time": int,
        "output": str,
        "output_format": str,
        "test_output_format": str,
        "test_name_format": str,
        "visibility": str,
        "stdout_visibility": str,
        "extra_data": dict,
        "tests": list,
        "leaderboard": list,
    }
    of_test = {
        "score": (int, float),
        "max_score": (int, float),
        "status": str,
        "name": str,
        "name_format": str,
        "number": str,
        "output": str,
        "output_format": str,
        "tags": list,
        "visibility": str,
        "extra_data": dict,
    }
    for level, allowed in ((results, known), *((test, of_test) for test in results["tests"])):
        assert level.keys() <= allowed.keys()
        assert all(isinstance(value, allowed[name]) for name, value in level.items())
        assert level.get("visibility", "visible") in visibilities
        assert level.get("output_format", "text") in {"text", "html", "simple_format", "md", "ansi"}
    for test in results["tests"]:
        assert test["status"] in ("passed", "failed")
        assert all(isinstance(tag, str) for tag in test["tags"])


def test_half_a_surrogate_pair_can_be_written(report: Report) -> None:
    learner = report.learners[0]
    outcomes = [Outcome("01.e", "raised", "", "ValueError: \ud800", "\udcff")]
    report.learners = [learner]
    report.graded[learner.name] = [Graded(learner.name, "01", "a.ipynb", outcomes)]
    moodle, told = formats.moodle(report), formats.gradescope(report, learner)
    for text in (told, moodle, formats.canvas(report), formats.junit(report), page(report)):
        text.encode()
    assert json.loads(told)["tests"][0]["output"] == "01.e: ValueError: \\ud800\n\\udcff"


def test_moodle_grading_worksheet(report: Report) -> None:
    columns, *rows = csv.reader(formats.moodle(report).splitlines(keepends=True))
    places = [columns.index(name) for name in ("Identifier", "Grade", "Last modified (grade)")]
    found = {}
    for row in rows:
        assert len(row) == len(columns)
        identifier, grade, modified = (row[place] for place in places)
        assert modified == "-"  # as in Moodle's own, where there is no grade yet
        if identifier:
            found[identifier[len("Participant ") :]] = float(grade)
    assert found == {"4711": 25}
    told = rows[0][columns.index("Feedback comments")]
    assert told.count("01.e") == len(KINDS)


def test_canvas_gradebook(report: Report) -> None:
    text = formats.canvas(report)
    assert {line.count(",") - line.count(", ") for line in text.splitlines()[:2]} == {6}
    header, points, *rows = csv.reader(text.splitlines(keepends=True))
    assert "Student" in header[0]
    assert "ID" in header[1]
    assert re.search(r"SIS\s+User\s+ID", header[2])
    assert re.search(r"SIS\s+Login\s+ID", header[3])
    assert "Section" in header[4]
    assert "Points Possible" in points[0]
    assert dict(zip(header[5:], points[5:], strict=True)) == {"Lesson 01": "120", "Lesson 02": "10"}
    found = {row[1] or row[3]: row[5:] for row in rows}
    assert found == {"ada": ["15", "10"], "4711": ["15", "10"], f"'{NAMES[2]}": ["15", "10"]}


def test_junit_counts_match_its_contents(report: Report) -> None:
    root = ElementTree.fromstring(formats.junit(report))
    assert root.tag == "testsuites"
    suites = root.findall("testsuite")
    assert len(suites) == 6
    for suite in suites:
        cases = suite.findall("testcase")
        assert {case.tag for case in suite} == {"testcase"}
        assert int(suite.get("tests", "")) == len(cases)
        for tag in ("failure", "error", "skipped"):
            inside = [case for case in cases if case.find(tag) is not None]
            count = suite.get({"failure": "failures", "error": "errors"}.get(tag, tag))
            assert count == str(len(inside))
        assert all(len(case) <= 1 for case in cases)
        assert all(case.get("classname") and case.get("name") for case in cases)
        assert all(float(case.get("time", "")) >= 0 for case in cases)
    failures = [case.get("message") for case in suites[0].iter("failure")]
    assert failures[0] == "some-mistake"
    assert suites[0].findtext(".//failure", "").startswith("01.e1: =1+1")


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_page_is_valid_accessible_and_self_contained(report: Report) -> None:
    text = page(report)
    reader = _Reader()
    reader.feed(text)
    assert reader.open == []
    names = [tag for tag, _ in reader.tags]
    assert names.count("caption") == names.count("table") == 3
    assert {attributes.get("scope") for tag, attributes in reader.tags if tag == "th"} == {
        "col",
        "row",
    }
    assert "script" not in names
    assert not any("src" in attributes for _, attributes in reader.tags)
    links = {a["href"] for tag, a in reader.tags if tag == "a"}
    assert links == {f"#{a['id']}" for _, a in reader.tags if "id" in a}
    assert "prefers-color-scheme: dark" in text
    assert "3 could not be judged" in text


def test_most_common_mistake_comes_first(report: Report) -> None:
    others = [Outcome("01.y", "wrong", "rare"), Outcome("01.z", "wrong", "frequent", "told")]
    for learner, outcomes in zip(report.learners, (others, others[1:], others[1:]), strict=True):
        report.graded[learner.name] = [Graded(learner.name, "01", "", outcomes)]
    # The grid needs as many answers of each.
    for name in NAMES[1:]:
        report.graded[name][0].outcomes.insert(0, Outcome("01.y", "right"))
    table = page(report).partition("<h2>Mistakes")[2]
    assert table.index("frequent") < table.index("rare")
    assert '<td class="number">3</td><th scope="row">frequent</th>' in table
