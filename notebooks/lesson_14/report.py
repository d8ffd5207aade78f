"""Writes the one-page report of a project, as HTML and as PDF.

Both files have the same text and the same three panels, drawn by matplotlib. Nothing is ever
overwritten: each report gets the next free number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from textwrap import fill
from typing import Any

import matplotlib
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.figure import Figure as Canvas
from rank_by_rank.lesson_14.figures import draw_accuracy, draw_timeline, draw_traffic
from rank_by_rank.lesson_14.journal import Entry, Journal
from rank_by_rank.lesson_14.judge_own_prediction import guesses, reading
from rank_by_rank.lesson_14.tasks import TASKS, Measured, Plan, Task

from course_lib.teaching.figures.curves import draw
from course_lib.teaching.figures.figure import Figure
from course_lib.teaching.figures.palette import ALARM, INK, PAPER, SOFT_INK
from course_lib.teaching.timelines.lanes import Lane, RankEvents, lanes_of

__all__ = ["Report", "Result", "rubric", "write_report"]


@dataclass(frozen=True)
class Result:
    """The measurements of a task: one rank ``alone``, and every rank of the plan's run."""

    task: Task
    alone: Measured
    runs: Sequence[Measured]

    @classmethod
    def of(
        cls, task: str, plan: Plan, alone: Measured | None, runs: Sequence[Measured | None]
    ) -> Result:
        """Return the result of ``plan`` for the task with that letter.

        Raises:
            ValueError: if the baseline or the plan has not run, or these are runs of something
                else, so that no report is written about an earlier plan.
        """
        if not isinstance(plan, Plan):
            raise ValueError(f"there is no plan, but {plan!r}: run the cell that makes it")
        again = "run the training cell again"
        if alone is None or not runs or None in runs:
            raise ValueError(f"there is no run of this plan, because training failed: {again}")
        found = [alone, *(run for run in runs if run is not None)]
        for run in found:
            if run.task != task:
                raise ValueError(f"this is a run of task {run.task}, not {task}: {again}")
        if alone.ranks != 1 or alone.plan.batch != TASKS[task].batch:
            raise ValueError(f"the baseline is one rank with batch {TASKS[task].batch}: {again}")
        for run in found[1:]:
            if run.plan != plan:
                raise ValueError(
                    f"this is a run of {run.plan.in_words()}, not of {plan.in_words()}: {again}"
                )
        return cls(TASKS[task], alone, found[1:])

    @property
    def together(self) -> Measured:
        """Rank 0's measurements of the plan's run."""
        return self.runs[0]

    @property
    def speed_up(self) -> float | None:
        """How many times as fast the plan reached the target; None if either side never did."""
        one, many = self.alone.seconds, self.together.seconds
        return one / many if one and many else None

    @property
    def parts(self) -> tuple[float, float] | None:
        """The two factors of the speed-up: the ratio of the steps, and of the seconds per step."""
        one, many = self.alone, self.together
        if not (one.steps and many.steps):
            return None
        return one.steps / many.steps, one.step_seconds / many.step_seconds

    def reading(self, predicted: float) -> str:
        """Return which usual mistake a prediction resembles."""
        run, one, many = self.together, self.alone.steps, self.together.steps
        if not (one and many and self.speed_up):
            return "the target was not reached"
        found = guesses(self.task, run.plan, run.ranks, (one, many), run.tensors)
        return reading(predicted, self.speed_up, found)

    @property
    def lanes(self) -> list[Lane]:
        """What each rank did in a few steps."""
        return lanes_of(RankEvents(*run.shown) for run in self.runs if run.shown is not None)


@dataclass(frozen=True)
class Report:
    """A finished report: its text, its pictures, and the files it was written to."""

    title: str
    rows: list[tuple[str, str]]
    warnings: list[str]
    pictures: list[tuple[str, Figure]]
    html: Path
    pdf: Path

    def __repr__(self) -> str:
        lines = [self.title, *(f"{name}: {words}" for name, words in self.rows), *self.warnings]
        return "\n".join([*lines, self._files()])

    def _repr_html_(self) -> str:
        return f"{self.fragment()}<p>{escape(self._files())}</p>"

    def _files(self) -> str:
        return f"Written: {self.html.name} and {self.pdf.name}."

    def fragment(self) -> str:
        """Return the report as a piece of HTML."""
        rows = "".join(
            f'<tr><th scope="row" style="text-align: left; vertical-align: top">{escape(name)}'
            f'</th><td style="text-align: left">{escape(words)}</td></tr>'
            for name, words in self.rows
        )
        warnings = "".join(
            # With a paper of its own: the notebook may be a dark page.
            f'<p style="color: {ALARM}; background: {PAPER}; border-left: 4px solid {ALARM}; '
            f'padding: 0.3em 0.6em"><strong>{escape(one)}</strong></p>'
            for one in self.warnings
        )
        pictures = "".join(
            f"<p><strong>{escape(name)}</strong></p>{figure._repr_mimebundle_()['text/html']}"
            for name, figure in self.pictures
        )
        title = f"<p><strong>{escape(self.title)}</strong></p>"
        return f"{title}{warnings}<table>{rows}</table>{pictures}"


def write_report(journal: Journal, result: Result, learned: str = "", author: str = "") -> Report:
    """Enter the run into the journal, and write its report into the journal's folder.

    Args:
        journal: the journal with the prediction.
        result: the measurements.
        learned: where the prediction was off, and why: a sentence or two of your own.
        author: your name.
    """
    task, plan = result.task, result.together.plan
    began = result.together.began
    predicted = journal.counting_prediction(task.name, plan, began)
    run = journal.ran(task.name, plan, {"speed_up": result.speed_up, "began": began})
    rows = _rows(result, predicted, learned)
    warnings = []
    if predicted is None:
        warnings.append("No prediction was written down before the first run of this plan.")
    late = journal.late_predictions(task.name, plan)
    if late:
        numbers = ", ".join(f"{one.content['speed_up']:g}" for one in late)
        warnings.append(f"Predicted after a run had been seen, so it does not count: {numbers}.")
    broken = journal.broken_from()
    if broken is not None:
        warnings.append(f"Line {broken} of the journal was changed by hand, or taken out.")
    author = f", {author}" if author else ""
    title = f"Task {task.name}: {task.network} on {result.together.data}{author}"
    rows.append(("journal", f"entry {run.number}, {run.time}"))
    html, pdf = _free_names(journal.folder)
    panels = _panels(result)
    pictures = [(name, draw(_alone(plot), alt, height)) for name, plot, alt, height in panels]
    report = Report(title, rows, warnings, pictures, html, pdf)
    html.write_text(_page(report), encoding="utf-8")
    _write_pdf(report, panels, pdf)
    return report


def _rows(result: Result, predicted: Entry | None, learned: str) -> list[tuple[str, str]]:
    task, together = result.task, result.together
    rows = [
        ("task", f"{task.in_words(together.data)}; target {together.target:.0%}"),
        ("one rank", f"batch {result.alone.plan.batch}, rate {result.alone.plan.rate:g}"),
        ("plan", f"{together.ranks} ranks, {together.plan.in_words()}"),
        ("predicted", predicted.in_words() if predicted else "nothing"),
    ]
    if predicted and predicted.content["why"]:
        rows.append(("because", str(predicted.content["why"])))
    rows.append(("measured", _measured(result)))
    rows.append(("seeds", _seeds(result)))
    if not any(run.calls or run.messages for run in result.runs):
        rows.append(("what it is", _by_itself(result)))
    if result.parts:
        fewer, faster = result.parts
        made_of = f"{fewer:.2f} times fewer steps, each {faster:.2f} times as fast"
        if predicted and result.speed_up:
            off = predicted.content["speed_up"] / result.speed_up - 1
            made_of += f"; the prediction was off by {off:+.0%}"
        rows.append(("made of", made_of))
    if predicted and result.speed_up:
        rows.append(("reading", result.reading(predicted.content["speed_up"])))
    rows.append(("traffic", _traffic(result)))
    rows.append(("in words", learned or "(nothing written yet)"))
    return rows


def _by_itself(result: Result) -> str:
    others = result.together.ranks - 1
    return (
        "one rank by itself. No rank sent anything, so the model that was tested is rank 0's "
        f"alone, and the work of the other {others} is lost. If the speed-up differs from 1, the "
        "causes are batch, rate and the luck of the samples"
    )


def _traffic(result: Result) -> str:
    handed = sum(run.handed_over for run in result.runs) / 2**20
    sent = sum(run.sent for run in result.runs) / 2**20
    messages = sum(run.messages for run in result.runs)
    kinds = []
    if result.together.calls:
        calls = f"{result.together.calls:,} collectives"
        kinds.append(f"{calls}, to which all ranks together handed {handed:.2f} MiB")
    if messages:
        kinds.append(f"{messages:,} messages of all ranks, {sent:.2f} MiB")
    return "; ".join(kinds) or "none"


def _measured(result: Result) -> str:
    for run, name in ((result.alone, "one rank"), (result.together, "the plan")):
        if run.steps is None:
            last = run.looks[-1]
            return f"{name} did not reach the target: {last.accuracy:.1%} in {last.seconds:.1f} s"
    assert result.speed_up
    return (
        f"{result.speed_up:.2f} times as fast: {_time(result.together)} instead of "
        f"{_time(result.alone)}"
    )


def _time(run: Measured) -> str:
    return f"{run.seconds:.2f} s ({run.steps} steps of {1e3 * run.step_seconds:.0f} ms)"


def _seeds(result: Result) -> str:
    """Return the steps of each seed, which show how much two runs of the same kind differ."""
    one, many = (
        ", ".join("never" if steps is None else str(steps) for steps in run.seeds)
        for run in (result.alone, result.together)
    )
    return f"steps of one rank {one}; of the plan {many}; the medians count"


Panel = tuple[str, Callable[[Any], None], str, float]


def _panels(result: Result) -> list[Panel]:
    """Return, for each panel, its name, drawing function, alternative text and height in inches."""
    alone, together, plan = result.alone, result.together, result.together.plan
    return [
        (
            "Accuracy against time, with the first seed",
            lambda axes: draw_accuracy(axes, alone, together),
            "Test accuracy over training time with the first seed, of one rank and of "
            f"{together.ranks} ranks with {plan.strategy}; the target is a dashed line, dotted "
            "lines show when it is reached.",
            3.0,
        ),
        (
            "Timeline of a few steps",
            lambda axes: draw_timeline(axes, result.lanes),
            f"Timeline of {together.ranks} ranks with {plan.strategy}: when each is at work, at "
            "work while data move, and waiting.",
            2.4,
        ),
        (
            "Traffic until the target",
            lambda axes: draw_traffic(axes, result.runs),
            "A bar for each rank: MiB handed over to collectives and sent in messages.",
            2.4,
        ),
    ]


def _alone(plot: Callable[[Any], None]) -> Callable[[Canvas], None]:
    return lambda canvas: plot(canvas.subplots())


def _free_names(folder: Path) -> tuple[Path, Path]:
    """Return two unused names, and make the files at once so that no other report takes them."""
    number = 1
    while True:
        paths = tuple(folder / f"report-{number}.{kind}" for kind in ("html", "pdf"))
        try:
            if not paths[1].exists():
                paths[0].touch(exist_ok=False)
                return paths[0], paths[1]
        except FileExistsError:
            pass
        number += 1


def rubric() -> str:
    """Return the marking scheme for a report, in Markdown."""
    return Path(__file__).with_name("rubric.md").read_text(encoding="utf-8")


# ---- files ---------------------------------------------------------------------------------------


def _page(report: Report) -> str:
    style = (
        f"body {{ font: 15px/1.4 sans-serif; color: {INK}; max-width: 46em; margin: 1em auto; "
        "padding: 0 1em } th { padding-right: 1em; white-space: nowrap } "
        "td, th { padding-bottom: 0.25em } img { max-width: 100% } "
        "@page { size: A4; margin: 12mm } "
        "@media print { body { font-size: 11px; margin: 0 } img { width: 125mm } "
        "p { margin: 2px 0 } }"
    )
    body = report.fragment().replace(
        f"<p><strong>{escape(report.title)}</strong></p>", f"<h1>{escape(report.title)}</h1>", 1
    )
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width"><title>{escape(report.title)}</title>'
        f"<style>{style}</style></head><body><main>{body}</main></body></html>\n"
    )


def _write_pdf(report: Report, panels: list[Panel], path: Path) -> None:
    """Draw the same on one A4 page."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update({"pdf.fonttype": 42, "font.size": 9, "text.color": INK})
        canvas = Canvas(figsize=(8.27, 11.69), facecolor=PAPER)
        FigureCanvasPdf(canvas)
        canvas.text(0.08, 0.955, report.title, fontsize=15, fontweight="bold", va="top")
        y = 0.92
        for warning in report.warnings:
            y = _paragraph(canvas, y, "", warning, ALARM)
        for name, words in report.rows:
            y = _paragraph(canvas, y, name, words, INK)
        bottom, gap = 0.055, 0.075
        height = (y - 0.02 - bottom - gap * len(panels)) / sum(one[3] for one in panels)
        for name, plot, _, share in panels:
            y -= 0.032
            canvas.text(0.08, y + 0.008, name, fontweight="bold", fontsize=10)
            y -= height * share
            axes = canvas.add_axes((0.13, y, 0.79, height * share))
            plot(axes)
            y -= gap - 0.032
        canvas.text(0.08, 0.025, "Rank by Rank, lesson 14", fontsize=8, color=SOFT_INK)
        metadata = {"Title": report.title, "CreationDate": None}
        canvas.savefig(path, format="pdf", metadata=metadata)


def _paragraph(canvas: Canvas, y: float, name: str, words: str, colour: str) -> float:
    """Write a line or several at height ``y``; return the height of what comes next."""
    text = fill(words, 92)
    canvas.text(0.08, y, name, fontweight="bold", va="top")
    canvas.text(0.19 if name else 0.08, y, text, color=colour, va="top", linespacing=1.25)
    return y - 0.0142 * (text.count("\n") + 1) - 0.004
