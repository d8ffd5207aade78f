"""Works out what each rank was doing from what was seen of all of them.

Everything here is plain data and functions of it, independent of MPI and of how, or on which host,
the ranks were observed: see :mod:`.observing` for those of this machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from .event_board import Event
from .main_thread import keeps_the_lock

# The errors of a rank that another one freed, and of one that waited for a dead rank as well.
FREED = ("DeadlineError", "RevokedError", "KeyboardInterrupt")
ENDED_WAITS = (*FREED, "RankFailedError")
MOST_PAST = 1000  # operations of one cell that are looked at, of each rank


@dataclass(frozen=True)
class RankState:
    """What was seen of one rank at one moment; ``dataclasses.asdict`` makes JSON of it.

    Attributes:
        rank: which one.
        state: "finished", "raised", "waiting", "computing", "at a breakpoint", "stuck" (in C
            code, where no signal reaches it), "catching" (every interrupt, and going on),
            "ignoring" (them: it has replaced the handler), "dead" or "idle" (it runs no cell, and
            has not begun the latest); empty until :func:`classify` has compared all ranks.
        operations: calls of communication that were open, the one it waits in last; their ends
            are this moment, and their ranks those of today's world.
        past: those of the cell that were over, oldest first.
        outcome: how its latest cell, or the program, ended: "" if well, or the error.
        site: the line of the program in which its main thread was, e.g. ``"cell 5, line 2"``.
        visible: whether anything of it could be seen.
        alive: whether its process lived.
        notebook: whether it runs cells, so that it does not end by itself.
        cell: number of its latest cell; 0 where cells are not counted.
        run: which run of a cell that is: see :class:`~torch_mpi4py.board.event_board.Position`.
        running: whether its cell, or program, was running.
        seconds: since when its cell or program has begun; None if none has.
        silent: seconds since its last sign of life.
        computed: seconds for which its main thread has run on a core since then.
        asleep: whether its main thread waits for something in the system.
        at_breakpoint: whether it is stopped at a breakpoint.
    """

    rank: int
    state: str = ""
    operations: tuple[Event, ...] = ()
    past: tuple[Event, ...] = ()
    outcome: str = ""
    site: str = ""
    visible: bool = True
    alive: bool = True
    notebook: bool = False
    cell: int = 0
    run: str = ""
    running: bool = True
    seconds: float | None = None
    silent: float = 0.0
    computed: float = 0.0
    asleep: bool = False
    at_breakpoint: bool = False

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> RankState:
        """Rebuild one from the result of ``dataclasses.asdict``, even if it went through JSON."""
        calls = {}
        for name in ("operations", "past"):
            events = map(Event._make, fields[name])
            calls[name] = tuple(event._replace(ranks=tuple(event.ranks)) for event in events)
        return cls(**{**fields, **calls})

    @property
    def waits_in(self) -> Event | None:
        """The operation that it waits for, if any."""
        waits = [op for op in self.operations if op.waiting and self.state == "waiting"]
        return waits[-1] if waits else None

    @property
    def unattended(self) -> list[Event]:
        """Operations that it has started and is not waiting for."""
        return [op for op in self.operations if not op.waiting]


def classify(seen: Iterable[RankState]) -> list[RankState]:
    """Return what every rank was doing."""
    seen = list(seen)
    # Not the highest number: a notebook that was started again counts from one.
    begun = [one for one in seen if one.seconds is not None]
    latest = min(begun, key=lambda one: one.seconds or 0.0, default=None)
    return [_classified(one, latest) for one in seen]


def _classified(one: RankState, latest: RankState | None) -> RankState:
    if not one.alive and (one.running or one.notebook):
        return replace(one, state="dead")
    if not one.visible:
        return replace(one, state="on another host, or its board cannot be read")
    if one.notebook and not one.running and not _has_begun(one, latest):
        return replace(one, state="idle", operations=(), past=())
    if not one.running:
        return _after_the_end(one)
    if one.at_breakpoint:
        return replace(one, state="at a breakpoint")
    if any(op.waiting for op in one.operations):
        return replace(one, state="waiting")
    stuck = keeps_the_lock(one.silent, one.computed, one.asleep)
    return replace(one, state="stuck" if stuck else "computing")


def _has_begun(one: RankState, latest: RankState | None) -> bool:
    """Whether a rank's latest cell is the ``latest`` of all: engines get it one by one."""
    if one.seconds is None or latest is None:
        return False
    return (one.run, one.cell) == (latest.run, latest.cell)


def _after_the_end(one: RankState) -> RankState:
    if not one.outcome:
        return replace(one, state="finished")
    if one.notebook and one.outcome.startswith(ENDED_WAITS):
        freed = [op for op in one.past if op.outcome.startswith(ENDED_WAITS) and op.waiting]
        if freed:  # it was waiting until it was freed
            return replace(one, state="waiting", operations=(*one.operations, freed[-1]))
    return replace(one, state="raised")


def describe(state: RankState, seconds: bool = True) -> str:
    """What one rank was doing, in one line: ``waiting in recv from rank 0 [cell 5, line 2]``."""
    what, site = what_and_where(state)
    operation = state.waits_in
    if operation is not None:
        since = f", for {operation.seconds:.1f} s" if seconds else ""
        return f"waiting in {what}{at(site)}{since}"
    comma = "," if what and state.state == "dead" else ""
    return f"{state.state}{comma} {what}".rstrip() + at(site)


def what_and_where(state: RankState) -> tuple[str, str]:
    """Further details of a rank besides its state, and the line that it was in."""
    waits = [op for op in state.operations if op.waiting]
    if waits and state.state in ("waiting", "dead"):
        return f"{'in ' * (state.state == 'dead')}{waits[-1].text()}", waits[-1].site
    if state.state == "stuck":
        return "in C code, where no signal reaches it", state.site
    if state.state == "catching":
        return "every interrupt, and going on", state.site
    if state.state == "ignoring":
        return "interrupts: it has replaced the handler of SIGINT", state.site
    if state.state in ("computing", "at a breakpoint"):
        return "", state.site
    return (state.outcome if state.state == "raised" else ""), ""


def name_ranks(ranks: Iterable[int]) -> str:
    """``rank 2``, ``ranks 0 and 1``, ``ranks 0, 1 and 3``."""
    numbers = [str(rank) for rank in sorted(ranks)]
    if len(numbers) == 1:
        return f"rank {numbers[0]}"
    return f"ranks {', '.join(numbers[:-1])} and {numbers[-1]}"


def rank_list(ranks: Iterable[int]) -> str:
    """``rank 2``, ``ranks 0, 1, 3``: for lists that may be long."""
    numbers = [str(rank) for rank in sorted(ranks)]
    return f"rank{'s' if len(numbers) > 1 else ''} {', '.join(numbers)}"


def at(site: str) -> str:
    """`` [cell 5, line 2]``, or nothing where the site is unknown."""
    return f" [{site}]" if site else ""
