"""Shares one report on all ranks, with which all errors end when ranks give up a group.

The rank that gives up first looks at the boards of all ranks, and writes the report into its own
before the others are freed. What the report says is the work of :mod:`.hang_report`.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Sequence

from ..board.event_board import Verdict
from ..board.hang_report import HangReport
from ..board.observing import observe
from ..core.base_comm import base, numbers_in
from ..core.runtime import MPI
from .events import GroupName, log
from .peer_boards import board_of, one_at_a_time

_SECOND_LOOK_SECONDS = 0.3
_PAST = 200  # operations that have ended, of each rank
_thread_lock = threading.Lock()


def reach(comm: MPI.Comm, since: float | None = None, dead: Sequence[int] = ()) -> str:
    """Return the report on a group that is about to be given up; make it if no rank has yet.

    Args:
        comm: the group's communicator.
        since: seconds of ``time.perf_counter()``; an earlier report is about something else.
            By default, when the communicator was made.
        dead: ranks of ``comm`` that have died; an earlier report has to say so of all of them.
    """
    try:
        group = log.group_of(comm)
        with _thread_lock, one_at_a_time():
            known = _latest(group, group.born if since is None else since)
            if known is None or not {group.ranks[rank] for rank in dead} <= set(known.dead):
                found = look()
                states = zip(_numbers(), found.ranks, strict=True)
                gone = {first for first, state in states if state.state == "dead"}
                known = log.set_verdict(group.name, found.text(), list(gone & set(group.ranks)))
        return known.text
    except Exception:  # the ranks must be freed whatever happens here
        return f"There is no report on the ranks:\n{traceback.format_exc()}"


def find(comm: MPI.Comm) -> Verdict | None:
    """Return the report that came with the end of ``comm``, None if there is none."""
    if comm == MPI.COMM_NULL:
        return None
    group = log.group_of(comm)
    return _latest(group, group.born)


def ending(text: str) -> str:
    """Return a report as the end of an error's message."""
    return f"\n{text}" if text else ""


def _latest(group: GroupName, since: float) -> Verdict | None:
    boards = filter(None, map(board_of, group.ranks))
    verdicts = [verdict for board in boards if (verdict := board.verdict) is not None]
    fitting = [v for v in verdicts if v.group == group.name and v.time >= since]
    return max(fitting, default=None)


def look() -> HangReport:
    """Return what every rank is doing; ranks on other machines cannot be seen."""
    found = _look_once()
    if any(state.state == "stuck" for state in found.ranks):  # or all were stopped for a while
        time.sleep(_SECOND_LOOK_SECONDS)
        found = _look_once()
    return found


def _look_once() -> HangReport:
    numbers = _numbers()
    return HangReport.of(
        observe(rank, board_of(first), numbers, most_past=_PAST) for first, rank in numbers.items()
    )


def _numbers() -> dict[int, int]:
    """The ranks' numbers now, by their numbers before some died and were left out."""
    first = numbers_in(MPI.COMM_WORLD, base().Get_group())
    return {before: now for now, before in enumerate(first)}
