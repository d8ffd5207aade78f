"""Writes grades as other programs read them: Gradescope, Moodle, Canvas, GitHub and GitLab."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import dataclass
from xml.etree import ElementTree

from course_lib.teaching.checking import encodable

from .outcomes import KINDS, Graded, Outcome
from .rubric import Rubric
from .submissions import Learner

_NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass
class Report:
    """All outcomes of a grading.

    Attributes:
        lessons: their numbers, in order.
        graded: learner's name -> one for each lesson.
    """

    lessons: list[str]
    learners: list[Learner]
    graded: dict[str, list[Graded]]
    rubric: Rubric

    def total(self, graded: Graded) -> float:
        return round(sum(map(self.rubric.score, graded)), 2)

    def most(self, graded: Graded) -> float:
        return round(sum(self.rubric.most(outcome.id) for outcome in graded), 2)

    def total_of(self, learner: Learner) -> tuple[float, float]:
        """Return a learner's points in all lessons, and the most that there are."""
        lessons = self.graded[learner.name]
        return round(sum(map(self.total, lessons)), 2), round(sum(map(self.most, lessons)), 2)


def feedback(outcome: Outcome) -> str:
    """Return a learner's feedback on an answer: the check's sentence, or the problem."""
    text = outcome.text or f"{outcome.id}: {outcome.kind}: {KINDS[outcome.kind]}."
    if not text.startswith(outcome.id):
        text = f"{outcome.id}: {text}"
    return encodable(f"{text}\n{outcome.note}".strip())


def gradescope(report: Report, learner: Learner) -> str:
    """Return a ``results.json`` as Gradescope's autograders write it.

    Source: https://gradescope-autograders.readthedocs.io/en/latest/specs/.
    """
    tests = [
        {
            "name": outcome.id,
            "score": report.rubric.score(outcome),
            "max_score": report.rubric.most(outcome.id),
            "status": "passed" if outcome.kind == "right" else "failed",
            "output": feedback(outcome),
            "output_format": "text",
            "tags": [tag for tag in (f"lesson {graded.lesson}", outcome.mistake) if tag],
            "visibility": "visible",
        }
        for graded in report.graded[learner.name]
        for outcome in graded
    ]
    seconds = sum(graded.seconds for graded in report.graded[learner.name])
    results = {
        "score": report.total_of(learner)[0],
        "execution_time": round(seconds),
        "output": "Rank by Rank",
        "visibility": "visible",
        "stdout_visibility": "hidden",
        "tests": tests,
    }
    return json.dumps(results, indent=1, ensure_ascii=False) + "\n"


def moodle(report: Report) -> str:
    """Return the grades as Moodle reads them, in two ways.

    An assignment's "Upload grading worksheet" (assignfeedback_offline) looks for the columns
    Identifier, Grade, Last modified (grade) and Feedback comments; the import of the gradebook
    lets the teacher say which column is which.
    """
    last = ["Grade", "Maximum grade", "Last modified (grade)", "Feedback comments"]
    lessons = [f"Lesson {number}" for number in report.lessons]
    rows = [["Identifier", "Full name", "Username", *lessons, *last]]
    for learner in report.learners:
        graded = report.graded[learner.name]
        identifier = f"Participant {learner.number}" if learner.number else ""
        total, most = report.total_of(learner)
        told = "\n".join(feedback(outcome) for lesson in graded for outcome in lesson)
        points = [f"{report.total(lesson):g}" for lesson in graded]
        rows.append([identifier, learner.name, learner.name, *points])
        rows[-1] += [f"{total:g}", f"{most:g}", "-", told]
    return _csv(rows)


def canvas(report: Report) -> str:
    """Return the grades as Canvas's gradebook imports them: an assignment for each lesson.

    Canvas finds a learner by the ID, which is in the names of the files that it exports, or else
    by the login.
    """
    names = ["Student", "ID", "SIS User ID", "SIS Login ID", "Section"]
    most = [f"{report.most(graded):g}" for graded in report.graded[report.learners[0].name]]
    rows = [
        [*names, *(f"Lesson {number}" for number in report.lessons)],
        ["    Points Possible", "", "", "", "", *most],
    ]
    for learner in report.learners:
        points = [f"{report.total(graded):g}" for graded in report.graded[learner.name]]
        login = "" if learner.number else learner.name
        rows.append([learner.name, learner.number, "", login, "", *points])
    return _csv(rows)


def junit(report: Report) -> str:
    """Return JUnit's XML: a suite for each learner and lesson, a case for each exercise."""
    root = ElementTree.Element("testsuites", name="Rank by Rank")
    for learner in report.learners:
        for graded in report.graded[learner.name]:
            kinds = [outcome.kind for outcome in graded]
            errors, skipped = kinds.count("not judged"), kinds.count("not attempted")
            suite = ElementTree.SubElement(
                root,
                "testsuite",
                name=_xml(f"{learner.name}, lesson {graded.lesson}"),
                tests=f"{len(kinds)}",
                failures=f"{len(kinds) - kinds.count('right') - errors - skipped}",
                errors=f"{errors}",
                skipped=f"{skipped}",
                time=f"{graded.seconds:.1f}",
            )
            for outcome in graded:
                _case(suite, learner, outcome)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _case(suite: ElementTree.Element, learner: Learner, outcome: Outcome) -> None:
    case = ElementTree.SubElement(
        suite,
        "testcase",
        classname=_xml(learner.name),
        name=outcome.id,
        time=f"{outcome.seconds:.1f}",
    )
    element = {"right": "", "not attempted": "skipped", "not judged": "error"}
    if name := element.get(outcome.kind, "failure"):
        what = outcome.mistake or outcome.kind
        inner = ElementTree.SubElement(case, name, message=_xml(what))
        if name != "skipped":
            inner.set("type", outcome.kind)
            inner.text = _xml(feedback(outcome))


def _xml(text: str) -> str:
    return _NOT_IN_XML.sub("\N{REPLACEMENT CHARACTER}", text)


def _csv(rows: list[list[str]]) -> str:
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\r\n")
    for row in rows:
        # A spreadsheet would treat it as a formula.
        writer.writerow(f"'{cell}" if re.match(r"[=+@\t\r]|-.", cell) else cell for cell in row)
    return stream.getvalue()
