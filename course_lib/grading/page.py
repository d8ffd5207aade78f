"""Makes the teacher's page: exercises by learners, the commonest mistakes, all that was said."""

from __future__ import annotations

from collections import defaultdict
from html import escape

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
_STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1a1a1a; --line: #b8b8b8; --soft: #f2f2f2;
  --right: #d8f0dc; --partly: #fdf0c4; --none: #f9dcd9; --link: #0b4f9e; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #16181c; --ink: #e8e8e8; --line: #555; --soft: #23262b;
    --right: #1d4427; --partly: #4d4210; --none: #55231e; --link: #8ebcf5; } }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 75rem; margin: 2rem auto; padding: 0 1rem;
  background: var(--paper); color: var(--ink); }
a { color: var(--link); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; margin: 1rem 0; }
caption { text-align: left; font-weight: 600; padding: .3rem 0; }
th, td { border: 1px solid var(--line); padding: .25rem .5rem; text-align: left;
  vertical-align: top; }
thead th { background: var(--soft); }
tbody th { background: var(--paper); position: sticky; left: 0; font-weight: 600; }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
.full { background: var(--right); } .part { background: var(--partly); }
.zero { background: var(--none); }
small { display: block; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; font: inherit; margin: 0; }
details { border-top: 1px solid var(--line); padding: .4rem 0; }
summary { cursor: pointer; font-weight: 600; }
"""


def page(report: Report) -> str:
    """Return the page, which needs no other file."""
    lessons = ", ".join(report.lessons)
    title = f"Grades: lesson{'s' * (len(report.lessons) > 1)} {lessons}"
    parts = [
        f"<h1>{escape(title)}</h1>",
        f"<p>{_summary(report)}</p>",
        _grid(report),
        _legend(report),
        _mistakes(report),
        "<h2>What each learner is told</h2>",
        *(_details(report, number, learner) for number, learner in enumerate(report.learners)),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(parts)
        + "\n</main>\n</body>\n</html>\n"
    )


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
    head = "".join(f'<th scope="col">{escape(id)}</th>' for id in ids)
    rows, rights = "", [0] * len(ids)
    for number, learner in enumerate(report.learners):
        total, most = report.total_of(learner)
        found = _outcomes(report, learner)
        cells = "".join(_cell(report, outcome) for outcome in found)
        rights = [n + (o.kind == "right") for n, o in zip(rights, found, strict=True)]
        seconds = sum(outcome.seconds for outcome in found)
        rows += (
            f'<tr><th scope="row"><a href="#learner-{number}">{escape(learner.name)}</a></th>'
            f'<td class="number">{total:g} of {most:g}</td>{cells}'
            f'<td class="number">{seconds:.0f}</td></tr>\n'
        )
    shares = "".join(f'<td class="number">{n} of {len(report.learners)}</td>' for n in rights)
    return (
        '<div class="wide" role="region" aria-label="Grades" tabindex="0">\n<table>\n'
        "<caption>Points, and how each answer ended</caption>\n"
        f'<thead><tr><th scope="col">learner</th><th scope="col">points</th>{head}'
        '<th scope="col">seconds</th></tr></thead>\n'
        f'<tbody>\n{rows}<tr><th scope="row">right</th><td></td>{shares}<td></td></tr>\n'
        "</tbody>\n</table>\n</div>"
    )


def _cell(report: Report, outcome: Outcome) -> str:
    score, most = report.rubric.score(outcome), report.rubric.most(outcome.id)
    colour = "full" if score >= most else "part" if score > 0 else "zero"
    if outcome.kind not in _SIGNS and not score:
        colour = "empty"  # nothing was judged
    sign = _SIGNS.get(outcome.kind, "–")
    what = outcome.mistake or outcome.kind
    hidden = f'<span aria-hidden="true">{sign}</span>'
    return f'<td class="{colour}">{hidden} {score:g} <small>{escape(what)}</small></td>'


def _legend(report: Report) -> str:
    used = {o.kind for learner in report.learners for o in _outcomes(report, learner)}
    rows = "".join(
        f'<tr><th scope="row"><span aria-hidden="true">{_SIGNS.get(kind, "–")}</span> {kind}</th>'
        f"<td>{meaning}</td></tr>"
        for kind, meaning in KINDS.items()
        if kind in used
    )
    return (
        "<table><caption>How an answer can end</caption><thead><tr>"
        '<th scope="col">end</th><th scope="col">meaning</th></tr></thead>'
        f"<tbody>{rows}</tbody></table>"
    )


def _mistakes(report: Report) -> str:
    made: dict[tuple[str, str], list[tuple[Learner, str]]] = defaultdict(list)
    for learner in report.learners:
        for outcome in _outcomes(report, learner):
            if outcome.mistake:
                made[outcome.id, outcome.mistake].append((learner, feedback(outcome)))
    rows = "".join(
        f'<tr><td class="number">{len(who)}</td><th scope="row">{escape(mistake)}</th>'
        f"<td>{escape(id)}</td><td><pre>{escape(who[0][1])}</pre></td>"
        f"<td>{escape(', '.join(learner.name for learner, _ in who))}</td></tr>\n"
        for (id, mistake), who in sorted(made.items(), key=lambda item: (-len(item[1]), item[0]))
    )
    return (
        '<h2>Mistakes, the commonest first</h2>\n<div class="wide" role="region" '
        'aria-label="Mistakes" tabindex="0">\n<table>\n<caption>Each with what the first of its '
        'learners is told</caption>\n<thead><tr><th scope="col">learners</th>'
        '<th scope="col">mistake</th><th scope="col">exercise</th><th scope="col">text</th>'
        f'<th scope="col">who</th></tr></thead>\n<tbody>\n{rows}</tbody>\n</table>\n</div>'
    )


def _details(report: Report, number: int, learner: Learner) -> str:
    total, most = report.total_of(learner)
    items = ""
    for graded in report.graded[learner.name]:
        source = f"from {graded.notebook}" if graded.notebook else "no notebook was taken"
        told = "".join(f"<li><pre>{escape(feedback(outcome))}</pre></li>\n" for outcome in graded)
        items += f"<p>Lesson {escape(graded.lesson)}, {escape(source)}:</p>\n<ul>\n{told}</ul>\n"
    summary = f"{escape(learner.name)}: {total:g} of {most:g}"
    return f'<details id="learner-{number}"><summary>{summary}</summary>\n{items}</details>'
