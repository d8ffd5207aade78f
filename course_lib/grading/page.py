"""Makes the teacher's page: exercises by learners, the commonest mistakes, all feedback."""

from __future__ import annotations

from collections import defaultdict
from html import escape

from course_lib.html_page import document, row_title, symbol, table, wide

from .formats import Report, feedback
from .outcomes import KINDS, Outcome
from .submissions import Learner

_SIGNS = {
    "right": "✓",
    "wrong": "~",
    "raised": "!",
    "hangs": "⏸",
    "out of time": "⏱",
    "crashed": "✕",
    "not judged": "?",
}


def page(report: Report) -> str:
    """Return the page, which needs no other file."""
    lessons = ", ".join(report.lessons)
    title = f"Grades: lesson{'s' * (len(report.lessons) > 1)} {lessons}"
    parts = [
        f"<p>{_summary(report)}</p>",
        _grid(report),
        _legend(report),
        _mistakes(report),
        "<h2>What each learner is told</h2>",
        *(_details(report, number, learner) for number, learner in enumerate(report.learners)),
    ]
    return document(title, parts)


def _outcomes(report: Report, learner: Learner) -> list[Outcome]:
    return [outcome for graded in report.graded[learner.name] for outcome in graded]


def _summary(report: Report) -> str:
    everything = [o for learner in report.learners for o in _outcomes(report, learner)]
    right = sum(outcome.kind == "right" for outcome in everything)
    seconds = sum(outcome.seconds for outcome in everything)
    unclear = sum(outcome.kind == "not judged" for outcome in everything)
    text = (
        f"{len(report.learners)} learners, {right} of {len(everything)} answers right, "
        f"{seconds / 60:.1f} minutes of judging."
    )
    if unclear:
        text += f" <strong>{unclear} could not be judged: please look at them.</strong>"
    return text


def _grid(report: Report) -> str:
    ids = [outcome.id for outcome in _outcomes(report, report.learners[0])]
    rows, rights = [], [0] * len(ids)
    for number, learner in enumerate(report.learners):
        total, most = report.total_of(learner)
        found = _outcomes(report, learner)
        cells = "".join(_cell(report, outcome) for outcome in found)
        rights = [n + (o.kind == "right") for n, o in zip(rights, found, strict=True)]
        seconds = sum(outcome.seconds for outcome in found)
        rows.append(
            f'<th scope="row"><a href="#learner-{number}">{escape(learner.name)}</a></th>'
            f'<td class="number">{total:g} of {most:g}</td>{cells}'
            f'<td class="number">{seconds:.0f}</td>'
        )
    shares = "".join(f'<td class="number">{n} of {len(report.learners)}</td>' for n in rights)
    rows.append(f"{row_title('right')}<td></td>{shares}<td></td>")
    head = ("learner", "points", *ids, "seconds")
    return wide("Grades", table("Points, and how each answer ended", head, rows))


def _cell(report: Report, outcome: Outcome) -> str:
    score, most = report.rubric.score(outcome), report.rubric.most(outcome.id)
    colour = "full" if score >= most else "part" if score > 0 else "zero"
    if outcome.kind not in _SIGNS and not score:
        colour = "empty"  # nothing was judged
    sign = _SIGNS.get(outcome.kind, "–")
    what = outcome.mistake or outcome.kind
    return f'<td class="{colour}">{symbol(sign)} {score:g} <small>{escape(what)}</small></td>'


def _legend(report: Report) -> str:
    used = {o.kind for learner in report.learners for o in _outcomes(report, learner)}
    rows = [
        f'<th scope="row">{symbol(_SIGNS.get(kind, "–"))} {kind}</th><td>{meaning}</td>'
        for kind, meaning in KINDS.items()
        if kind in used
    ]
    return table("How an answer can end", ("end", "meaning"), rows)


def _mistakes(report: Report) -> str:
    made: dict[tuple[str, str], list[tuple[Learner, str]]] = defaultdict(list)
    for learner in report.learners:
        for outcome in _outcomes(report, learner):
            if outcome.mistake:
                made[outcome.id, outcome.mistake].append((learner, feedback(outcome)))
    rows = [
        f'<td class="number">{len(who)}</td>{row_title(mistake)}'
        f"<td>{escape(id)}</td><td><pre>{escape(who[0][1])}</pre></td>"
        f"<td>{escape(', '.join(learner.name for learner, _ in who))}</td>"
        for (id, mistake), who in sorted(made.items(), key=lambda item: (-len(item[1]), item[0]))
    ]
    caption = "Each with the message to the first learner who made it"
    head = ("learners", "mistake", "exercise", "message", "who made it")
    return (
        f"<h2>Mistakes, the most common first</h2>\n{wide('Mistakes', table(caption, head, rows))}"
    )


def _details(report: Report, number: int, learner: Learner) -> str:
    total, most = report.total_of(learner)
    items = ""
    for graded in report.graded[learner.name]:
        source = f"from {graded.notebook}" if graded.notebook else "no notebook was found"
        told = "".join(f"<li><pre>{escape(feedback(outcome))}</pre></li>\n" for outcome in graded)
        items += f"<p>Lesson {escape(graded.lesson)}, {escape(source)}:</p>\n<ul>\n{told}</ul>\n"
    summary = f"{escape(learner.name)}: {total:g} of {most:g}"
    return f'<details id="learner-{number}"><summary>{summary}</summary>\n{items}</details>'
