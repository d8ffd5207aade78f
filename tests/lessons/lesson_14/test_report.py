"""A report is one page with all it must have, for itself, and never written over another."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path

import pytest
from rank_by_rank.lesson_14.figures import accuracy_over_time, two_parts
from rank_by_rank.lesson_14.journal import Journal
from rank_by_rank.lesson_14.report import Result, rubric, write_report
from rank_by_rank.lesson_14.tasks import Look, Measured, Plan, moment
from torch_mpi4py.board.event_board import Event

PLAN = Plan("flattened", 16, 0.4)


def event(number: int, kind: str, start: float, end: float) -> Event:
    waited = start if kind == "all_reduce" else None
    return Event(
        number, kind, "world", -1, -1, -1, 400, "float32", "step", start, end, "cell 1, line 1",
        "ok", kind == "all_reduce", (0, 1), waited,
    )  # fmt: skip


def measured(
    plan: Plan,
    step: float,
    accuracies: Sequence[float],
    ranks=2,
    rank=0,
    task="A",
    calls=20,
    seeds=(),
) -> Measured:
    looks = [
        Look(10 * n, 160 * ranks * n, 10 * n * step, accuracy)
        for n, accuracy in enumerate(accuracies, 1)
    ]
    events = [
        event(2 * n + which, kind, begin, end)
        for n in range(3)
        for which, kind, begin, end in (
            (1, "section", n * step, (n + 1) * step),
            (2, "all_reduce", (n + 0.6) * step, (n + 0.9) * step),
        )
    ]
    shown = (rank, events, 0.0, 0.0)
    tensors = (32_768, 512, 5_120, 40)
    handed = 2**20 if calls else 0
    steps = next((look.steps for look in looks if look.accuracy >= 0.9), None)
    return Measured(
        task, plan, "digits", ranks, 0.9, looks, calls, handed, 0, 0, shown, "abc", tensors,
        moment(), seeds or (steps,),
    )  # fmt: skip


def one_rank(**changed) -> Measured:
    return measured(
        Plan("alone", 16, 0.2), 0.03, (0.3, 0.5, 0.7, 0.85, 0.93), ranks=1, calls=0, **changed
    )


def runs_of(plan: Plan, accuracies: Sequence[float] = (0.5, 0.95), **changed) -> list[Measured]:
    return [measured(plan, 0.05, accuracies, rank=r, **changed) for r in range(2)]


def result(accuracies: Sequence[float] = (0.5, 0.95)) -> Result:
    return Result.of("A", PLAN, one_rank(), runs_of(PLAN, accuracies))


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path)


def pages_of(path: Path) -> int:
    data = path.read_bytes()
    assert data.startswith(b"%PDF-")
    return len(re.findall(rb"/Type /Page\b", data))


class _Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list) -> None:
        self.tags.append((tag, dict(attributes)))


def test_speed_up_and_its_two_parts() -> None:
    assert result().speed_up == pytest.approx(1.5 / 1.0)
    fewer, faster = result().parts or (0, 0)
    assert (fewer, faster) == (pytest.approx(2.5), pytest.approx(0.6))
    assert result((0.5, 0.6)).speed_up is None
    assert result((0.5, 0.6)).parts is None


def test_the_median_of_all_seeds_counts(journal: Journal) -> None:
    runs = runs_of(PLAN, seeds=(20, 50, 30, None, 30))
    lucky = Result.of("A", PLAN, one_rank(seeds=(50, 40, 60)), runs)
    assert lucky.parts == (pytest.approx(50 / 30), pytest.approx(0.6))
    assert lucky.speed_up == pytest.approx(1.0)
    seeds = dict(write_report(journal, lucky).rows)["seeds"]
    assert seeds.startswith("steps of one rank 50, 40, 60; of the plan 20, 50, 30, never, 30;")
    unlucky = Result.of("A", PLAN, one_rank(), runs_of(PLAN, seeds=(20, None, None)))
    assert unlucky.speed_up is None
    assert "the plan did not reach" in dict(write_report(journal, unlucky).rows)["measured"]


def test_a_report_has_all_its_parts(journal: Journal) -> None:
    journal.predict("A", PLAN, 2.0, why="a guess <of mine>")
    report = write_report(journal, result(), learned="Too hopeful & late.", author="M. Muster")
    words = dict(report.rows)
    assert "2 times as fast" in words["predicted"]
    assert words["because"] == "a guess <of mine>"
    assert words["measured"].startswith("1.50 times as fast: 1.00 s (20 steps of 50 ms)")
    assert "2.50 times fewer steps, each 0.60 times as fast" in words["made of"]
    assert "+33%" in words["made of"]
    assert words["reading"].startswith(
        "agrees with the formula, which gives 2.08 with the measured steps;"
    )
    assert words["traffic"] == "20 collectives, to which all ranks together handed 2.00 MiB"
    assert report.warnings == []
    text = report.html.read_text()
    page = _Page(text)
    assert "a guess &lt;of mine&gt;" in text
    assert "Too hopeful &amp; late." in text
    images = [attributes for tag, attributes in page.tags if tag == "img"]
    assert len(images) == 3
    assert all(image["alt"] and image["src"].startswith("data:image/svg+xml") for image in images)
    links = [value for _, given in page.tags for name, value in given.items() if name == "href"]
    assert links == [], "it needs nothing but itself"
    assert [tag for tag, _ in page.tags if tag in ("h1", "html", "main")] == ["html", "main", "h1"]
    assert pages_of(report.pdf) == 1
    for _, figure in report.pictures:
        ElementTree.fromstring(figure.svg)
    assert str(journal.folder) not in text + repr(report) + report._repr_html_()


def test_existing_reports_are_not_overwritten(journal: Journal) -> None:
    (journal.folder / "report-2.pdf").write_text("somebody's")
    names = [write_report(journal, result()).html.name for _ in range(3)]
    assert names == ["report-1.html", "report-3.html", "report-4.html"]
    assert (journal.folder / "report-2.pdf").read_text() == "somebody's"
    assert [entry.kind for entry in journal.entries()] == ["run"] * 3


def test_report_warns_about_irregularities(journal: Journal) -> None:
    first = write_report(journal, result())
    assert first.warnings == ["No prediction was written down before the first run of this plan."]
    journal.predict("A", PLAN, 1.5)
    second = write_report(journal, result())
    assert dict(second.rows)["predicted"] == "nothing"
    assert second.warnings[1:] == [
        "Predicted after a run had been seen, so it does not count: 1.5."
    ]
    path = journal.folder / "journal.jsonl"
    path.write_text(path.read_text().replace('"speed_up": 1.5', '"speed_up": 1.4'))
    third = write_report(journal, result())
    assert "Line 1 of the journal was changed" in third.warnings[-1]
    assert "Line 1 of the journal was changed" in third.html.read_text()


def test_run_that_missed_its_target_is_reported(journal: Journal) -> None:
    journal.predict("A", PLAN, 2.0)
    report = write_report(journal, result((0.5, 0.6)))
    assert "the plan did not reach the target: 60.0% in 1.0 s" in dict(report.rows)["measured"]
    assert "made of" not in dict(report.rows)
    assert pages_of(report.pdf) == 1


def test_prediction_after_the_start_of_a_run_does_not_count(journal: Journal) -> None:
    seen = result()
    journal.predict("A", PLAN, 1.5)
    report = write_report(journal, seen)
    assert dict(report.rows)["predicted"] == "nothing"
    assert "Predicted after a run had been seen" in report.warnings[1]


OTHER = Plan("flattened", 8, 0.4)


@pytest.mark.parametrize(
    ("plan", "alone", "runs", "told"),
    [
        (OTHER, one_rank(), runs_of(PLAN), r"a run of flattened, batch 16.*not of.*batch 8"),
        (PLAN, one_rank(), [*runs_of(PLAN)[:1], *runs_of(OTHER)[1:]], "run of flattened, batch 8"),
        (PLAN, one_rank(), [None, None], "no run of this plan, because training failed"),
        (PLAN, None, runs_of(PLAN), "no run of this plan"),
        (PLAN, one_rank(), [], "no run of this plan"),
        (None, one_rank(), runs_of(PLAN), "there is no plan, but None: run the cell that makes it"),
        (PLAN, one_rank(task="C"), runs_of(PLAN), "a run of task C, not A"),
        (PLAN, one_rank(), runs_of(PLAN, task="B"), "a run of task B, not A"),
        (PLAN, runs_of(PLAN)[0], runs_of(PLAN), "the baseline is one rank with batch 16"),
    ],
)  # fmt: skip
def test_result_rejects_runs_of_another_plan(plan, alone, runs, told) -> None:
    with pytest.raises(ValueError, match=told):
        Result.of("A", plan, alone, runs)


def test_report_states_the_baseline_rate(journal: Journal) -> None:
    assert dict(write_report(journal, result()).rows)["one rank"] == "batch 16, rate 0.2"


def test_report_describes_ranks_without_messages(journal: Journal) -> None:
    plan = Plan("alone", 16, 0.4)
    silent = Result.of("A", plan, one_rank(), runs_of(plan, calls=0))
    words = dict(write_report(journal, silent).rows)
    assert words["what it is"].startswith("one rank by itself. No rank sent anything")
    assert "work of the other 1" in words["what it is"]
    assert words["traffic"] == "none"
    assert words["measured"].startswith("1.50 times as fast"), "and what came of it"
    assert "what it is" not in dict(write_report(journal, result()).rows)


def test_a_long_report_fits_its_page(journal: Journal) -> None:
    journal.predict("A", PLAN, 2.0, why="because " * 60)
    report = write_report(journal, result(), learned="word " * 120)
    assert pages_of(report.pdf) == 1


def figures() -> list:
    one = result()
    return [two_parts(), accuracy_over_time(one.alone, one.together)]


def test_figures_have_alt_text_and_are_deterministic() -> None:
    for figure, again in zip(figures(), figures(), strict=True):
        ElementTree.fromstring(figure.svg)
        assert len(figure.alt.split()) > 10
        assert figure.svg == again.svg


def test_the_rubric_has_twenty_points() -> None:
    assert (
        sum(int(points) for points in re.findall(r"^\| \*\*.+\*\* \((\d+)\)", rubric(), re.M)) == 20
    )
