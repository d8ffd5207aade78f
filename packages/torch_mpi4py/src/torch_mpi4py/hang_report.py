"""One rank looks at all boards before a group is given up, and all tell the same.

Whoever gives up first reads what every rank is doing, and writes it into its own board before
the others are freed. Their errors end with that same report.
"""

from __future__ import annotations

import os
import threading
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from .base_comm import base
from .diagnosis import diagnose
from .event_board import Board, Verdict
from .events import GroupName, log
from .main_thread import is_stuck
from .peer_boards import board_of, one_at_a_time
from .rank_states import RankState, describe, name_ranks, operation_of
from .runtime import MPI

__all__ = ["find", "reach", "report", "states", "tells_of_a_death"]

_SECOND_LOOK_SECONDS = 0.3
_PAST = 200  # operations that have ended, of each rank
_MOST_LINES = 16
_thread_lock = threading.Lock()


def reach(comm: MPI.Comm, since: float | None = None, dead: Sequence[int] = ()) -> str:
    """Return the report on a group that is about to be given up; take it if nobody has yet.

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
            if known is None or not set(dead) <= _dead_in(known.text, group):
                known = log.board.set_verdict(group.name, report())
        return known.text
    except Exception:  # the ranks must be freed whatever happens here
        return f"There is no report on the ranks:\n{traceback.format_exc()}"


def find(comm: MPI.Comm) -> str:
    """Return the report that came with the end of ``comm``, "" if there is none."""
    if comm == MPI.COMM_NULL:
        return ""
    group = log.group_of(comm)
    known = _latest(group, group.born)
    return "" if known is None else known.text


def tells_of_a_death(comm: MPI.Comm) -> bool:
    """Return whether that report has a rank of ``comm`` among the dead."""
    text = find(comm)
    return bool(text) and bool(_dead_in(text, log.group_of(comm)))


def _dead_in(text: str, group: GroupName) -> set[int]:
    """Return the ranks of a group that are dead by a report."""
    now_called = _numbers()
    members = enumerate(group.ranks)
    return {rank for rank, first in members if f"  rank {now_called.get(first)}: dead" in text}


def ending(text: str) -> str:
    """Return a report as the end of an error's message."""
    return f"\n{text}" if text else ""


def _latest(group: GroupName, since: float) -> Verdict | None:
    boards = filter(None, map(board_of, group.ranks))
    verdicts = [verdict for board in boards if (verdict := board.verdict) is not None]
    fitting = [v for v in verdicts if v.group == group.name and v.time >= since]
    return max(fitting, default=None)


def report() -> str:
    """Return what every rank is doing, a line for each, and what is wrong as far as it shows."""
    found = states()
    lines = [_line(state) for state in found]
    if len(lines) > _MOST_LINES:
        lines = _summary(found)
    return "\n".join(["What every rank was doing:", *lines, diagnose(found)])


def states() -> list[RankState]:
    """Return what every rank is doing; ranks on other machines cannot be seen."""
    found = _look()
    if any(state.state == "stuck" for state in found):  # or all have just been stopped for a while
        time.sleep(_SECOND_LOOK_SECONDS)
        found = _look()
    return found


def _look() -> list[RankState]:
    now, numbers = time.perf_counter(), _numbers()
    return [_state(rank, board_of(first), now, numbers) for first, rank in numbers.items()]


def _numbers() -> dict[int, int]:
    """What the ranks are called, by what they were called before some died and were left out."""
    living, everyone = base().Get_group(), MPI.COMM_WORLD.Get_group()
    first = MPI.Group.Translate_ranks(living, None, everyone)
    for group in (living, everyone):
        group.Free()
    return {before: now for now, before in enumerate(first)}


def _state(rank: int, board: Board | None, now: float, numbers: dict[int, int]) -> RankState:
    if board is None:
        return RankState(rank, "on another host, or its board cannot be read")
    latest = board.latest()
    events = board.events(latest.number - _PAST if latest is not None else 0)
    events = [e for e in events if e.kind != "section" and numbers.keys() >= set(e.ranks)]
    past = tuple(operation_of(e, now, numbers) for e in events if e.end is not None)
    still_open = [e for e in board.open_operations() if e.kind != "section"]
    # What the rank waits for comes last.
    operations = tuple(
        operation_of(e, now, numbers) for e in sorted(still_open, key=lambda e: bool(e.waiting))
    )
    position = board.position
    if position is not None and position.cell and _is_dead(board.pid):
        return RankState(rank, "dead", operations, past)  # a notebook's rank does not end
    if position is not None and position.outcome:
        return RankState(rank, "raised", operations, past, error=position.outcome)
    if position is not None and not position.running:
        return RankState(rank, "finished" if position.cell or past else "idle", operations, past)
    if _is_dead(board.pid):
        return RankState(rank, "dead", operations, past)
    if any(operation.waiting for operation in operations):
        return RankState(rank, "waiting", operations, past)
    if position is None:
        return RankState(rank, "computing", operations, past)
    stuck = is_stuck(now - position.time, board.pid, position.cpu)
    return RankState(rank, "stuck" if stuck else "computing", operations, past, site=position.site)


def _is_dead(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        status = Path(f"/proc/{pid}/stat").read_text()
    except ProcessLookupError:  # from reading as well, if its parent has just collected it
        return True
    except PermissionError:
        return False
    except FileNotFoundError:  # collected just now, or a system without such files
        return Path("/proc/self/stat").exists()
    return status.rpartition(")")[2].split()[0] in "ZX"


def _line(state: RankState) -> str:
    unattended = "".join(f"; not waited for: {op.text()}" for op in state.unattended[:3])
    return f"  rank {state.rank}: {describe(state)}{unattended}"


def _summary(found: list[RankState]) -> list[str]:
    alike: dict[str, list[int]] = {}
    for state in found:
        alike.setdefault(describe(state, seconds=False), []).append(state.rank)
    lines = [f"  {_some_ranks(ranks)}: {text}" for text, ranks in alike.items()]
    rest = len(lines) - _MOST_LINES
    return lines if rest <= 0 else [*lines[:_MOST_LINES], f"  ... and {rest} more lines"]


def _some_ranks(ranks: list[int]) -> str:
    if len(ranks) <= 8:
        return name_ranks(ranks)
    return f"{len(ranks)} ranks ({', '.join(map(str, ranks[:6]))}, ..., {ranks[-1]})"
