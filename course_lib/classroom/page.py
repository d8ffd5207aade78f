"""Makes the page that shows a teacher who is stuck: learners by exercises, stuck ones first."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape

from course_lib.html_page import document, row_title, symbol, table, wide
from course_lib.teaching import mistakes
from course_lib.teaching.catalogue import find
from course_lib.teaching.class_record import FOLDER

from .reading import Learner, Work

_LEGEND = [
    (
        "‖",
        "hangs",
        "a cell is running, and every rank in it is waiting for something that has not come",
    ),
    ("▶", "runs", "a cell has been running for more than 5 s; a check is in its exercise's column"),
    ("~", "tried", "checked, not right yet; the latest mistake and any help asked for are below"),
    ("✓", "solved", "the check has found it right, in this or an earlier attempt"),
    ("?", "help only", "the learner has asked for a hint or the solution, but not run the check"),
]
# The course has no separate text for these.
_GENERAL = {
    "it-raises": "the function raised an exception",
    "does-not-finish": "the function did not finish in time",
    "it-hangs": "ranks waited for others that never came",
}


def page(
    learners: Sequence[Learner], ids: Sequence[str], every: float, names: Mapping[str, str]
) -> str:
    """Return the page.

    Args:
        learners: the class.
        ids: the exercises that have a column.
        every: seconds after which it is made again; 0 for never.
        names: the name shown for each learner, by name.
    """
    parts = [
        f"<p>{_summary(learners, ids, every)}</p>",
        _grid(sorted(learners, key=_first), ids, names),
        _exercises(learners, ids),
        _legend(),
    ]
    return document("Who is stuck?", parts, every)


def _first(learner: Learner) -> tuple:
    hangs = learner.running is not None and learner.running.hangs
    return not hangs, -learner.stuck, learner.solved, learner.name


def _summary(learners: Sequence[Learner], ids: Sequence[str], every: float) -> str:
    solved = sum(work.solved for one in learners for id, work in one.work.items() if id in ids)
    hang = sum(one.running is not None and one.running.hangs for one in learners)
    if not learners:
        return f"No learner has begun yet, or none has {FOLDER} set. {_made(every)}"
    people = "1 learner" if len(learners) == 1 else f"{len(learners)} learners"
    return (
        f"{people}, {solved} of {len(learners) * len(ids)} exercises solved, "
        f"<strong>{hang} hang{'s' * (hang == 1)} now</strong>. "
        f"{_made(every)}"
    )


def _made(every: float) -> str:
    again = f"; renewed every {every:g} s" if every else ""
    return f"Made at {time.strftime('%Y-%m-%d %H:%M:%S')}{again}."


def _grid(learners: Sequence[Learner], ids: Sequence[str], names: Mapping[str, str]) -> str:
    rows = [
        row_title(names[one.name])
        + _now(one)
        + "".join(_cell(one, id) for id in ids)
        + f"<td>{time.strftime('%H:%M', time.localtime(one.seen)) if one.seen else 'never'}</td>"
        for one in learners
    ]
    head = ("learner", "now", *ids, "last seen")
    return wide("Class", table("Learners by exercises; those who are stuck come first", head, rows))


def _now(learner: Learner) -> str:
    running = learner.running
    if running is None:
        return "<td></td>"
    colour, sign, what = ("zero", "‖", "hangs") if running.hangs else ("part", "▶", "runs")
    where = running.exercise or "a cell"
    return (
        f'<td class="{colour}">{symbol(sign)} {what} for {running.seconds:.0f} s '
        f"<small>{escape(where)}</small></td>"
    )


def _cell(learner: Learner, id: str) -> str:
    work, running = learner.work.get(id, Work()), learner.running
    asked = [f"{work.hints} hint{'s' * (work.hints > 1)}"] if work.hints else []
    asked += ["solution"] if work.solution else []
    tries = "1 try" if work.tries == 1 else f"{work.tries} tries"
    if running is not None and running.exercise == id:
        colour, sign, what = ("zero", "‖", "hangs") if running.hangs else ("part", "▶", "runs")
        asked = [tries, *asked] if work.tries else asked
    elif work.solved:
        colour, sign, what = "full", "✓", "solved"
        asked = [tries, *asked]
    elif work.tries:
        colour, sign, what = "part", "~", tries
        asked = [work.mistake.partition(":")[0], *asked] if work.mistake else asked
    elif asked:
        colour, sign, what = "part", "?", "no try"
    else:
        return "<td></td>"
    below = f" <small>{escape(', '.join(asked))}</small>" if asked else ""
    return f'<td class="{colour}">{symbol(sign)} {what}{below}</td>'


def _exercises(learners: Sequence[Learner], ids: Sequence[str]) -> str:
    rows = []
    for id in ids:
        works = [one.work[id] for one in learners if id in one.work]
        solved, tried = sum(work.solved for work in works), sum(work.tries > 0 for work in works)
        made = Counter(name for work in works for name in work.mistakes)
        name = max(sorted(made), key=made.__getitem__, default="")
        told = (mistakes.in_general(name, find(id)) if name else "") or _GENERAL.get(name, "")
        rows.append(
            f'{row_title(id)}<td class="number">{tried}</td><td class="number">{solved}</td>'
            f'<td>{escape(name)}</td><td class="number">{made[name] or ""}</td>'
            f"<td>{escape(told)}</td>"
        )
    head = ("exercise", "tried by", "solved by", "most common mistake", "made by", "message")
    return wide("Exercises", table("Exercises, each with its most common mistake", head, rows))


def _legend() -> str:
    rows = [
        f'<th scope="row">{symbol(sign)} {word}</th><td>{meaning}</td>'
        for sign, word, meaning in _LEGEND
    ]
    return table("Signs", ("sign", "meaning"), rows)
