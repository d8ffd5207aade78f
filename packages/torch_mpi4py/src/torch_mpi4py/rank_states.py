"""From what was seen of every rank to what each was doing.

Everything here is plain data and functions of it. Who has looked at the ranks, and on which host,
does not matter: see :mod:`.observing` for those of this machine. Nothing knows of MPI.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .event_board import Event
from .main_thread import is_stuck

__all__ = [
    "FREED",
    "LEFT_IN_VAIN",
    "MOST_PAST",
    "Observation",
    "RankState",
    "at",
    "classify",
    "describe",
    "list_ranks",
    "name_ranks",
    "what_and_where",
]

# What a rank raises that somebody freed, and what one raises as well that waited for a dead rank.
FREED = ("DeadlineError", "RevokedError", "KeyboardInterrupt")
LEFT_IN_VAIN = (*FREED, "RankFailedError")
MOST_PAST = 1000  # operations of one cell that are looked at, of each rank


@dataclass(frozen=True)
class Observation:
    """What was seen of one rank at one moment; ``dataclasses.asdict`` makes JSON of it.

    Attributes:
        rank: which one.
        visible: whether anything of it could be seen.
        alive: whether its process lived.
        notebook: whether it runs cells, so that it does not end by itself.
        cell: number of its latest cell; 0 where cells are not counted.
        running: whether its cell, or program, was running.
        outcome: how its latest cell, or the program, ended: "" if well, or the error.
        seconds: since when its cell or program has begun; None if none has.
        silent: seconds since its last sign of life.
        computed: seconds for which its main thread has run on a core since then.
        asleep: whether its main thread waits for something in the system.
        site: the line of the program in which its main thread was.
        operations: calls of communication that were open, the one it waits in last; their ends
            are this moment, and their ranks those of today's world.
        past: those of the cell that were over, oldest first.
    """

    rank: int
    visible: bool = True
    alive: bool = True
    notebook: bool = False
    cell: int = 0
    running: bool = True
    outcome: str = ""
    seconds: float | None = None
    silent: float = 0.0
    computed: float = 0.0
    asleep: bool = False
    site: str = ""
    operations: tuple[Event, ...] = ()
    past: tuple[Event, ...] = ()

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Observation:
        """Make one again of what ``dataclasses.asdict`` has made of it, also by way of JSON."""
        events = {name: map(Event._make, fields[name]) for name in ("operations", "past")}
        calls = {
            name: tuple(event._replace(ranks=tuple(event.ranks)) for event in found)
            for name, found in events.items()
        }
        return cls(**{**fields, **calls})


@dataclass(frozen=True)
class RankState:
    """What one rank was doing.

    Attributes:
        rank: which one.
        state: "finished", "raised", "waiting", "computing", "stuck" (in C code, where no signal
            reaches it), "dead" or "idle".
        operations: open operations, the one it waits in last.
        past: operations of this cell that are over, oldest first.
        error: ``"ValueError: wrong"`` of a rank that raised.
        site: where it computes or is stuck, e.g. ``"cell 5, line 2"``.
    """

    rank: int
    state: str
    operations: tuple[Event, ...] = ()
    past: tuple[Event, ...] = ()
    error: str = ""
    site: str = ""

    @property
    def waits_in(self) -> Event | None:
        """The operation that keeps it, if it waits."""
        waits = [op for op in self.operations if op.waiting and self.state == "waiting"]
        return waits[-1] if waits else None

    @property
    def unattended(self) -> list[Event]:
        """Events it has started and waits for nowhere."""
        return [op for op in self.operations if not op.waiting]


def classify(seen: Iterable[Observation]) -> list[RankState]:
    """Return what every rank was doing."""
    seen = list(seen)
    latest = max((one.cell for one in seen), default=0)
    return [_state_of(one, latest) for one in seen]


def _state_of(one: Observation, latest_cell: int) -> RankState:
    calls = (one.operations, one.past)
    if not one.alive and (one.running or one.notebook):
        return RankState(one.rank, "dead", *calls)
    if not one.visible:
        return RankState(one.rank, "on another host, or its board cannot be read")
    if one.notebook and not one.running and (one.seconds is None or one.cell != latest_cell):
        return RankState(one.rank, "idle")
    if not one.running:
        return _state_after_the_end(one)
    if any(op.waiting for op in one.operations):
        return RankState(one.rank, "waiting", *calls)
    stuck = is_stuck(one.silent, one.computed, one.asleep)
    return RankState(one.rank, "stuck" if stuck else "computing", *calls, site=one.site)


def _state_after_the_end(one: Observation) -> RankState:
    calls = (one.operations, one.past)
    if not one.outcome:
        state = "finished" if one.notebook or one.past else "idle"
        return RankState(one.rank, state, *calls)
    if one.notebook and one.outcome.startswith(LEFT_IN_VAIN):
        freed = [op for op in one.past if op.outcome.startswith(LEFT_IN_VAIN) and op.waiting]
        if freed:  # what it did was to wait, until it was freed
            return RankState(one.rank, "waiting", (*one.operations, freed[-1]), one.past)
    return RankState(one.rank, "raised", *calls, error=one.outcome)


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
    """What there is to say of a rank beside its state, and the line in which it was."""
    waits = [op for op in state.operations if op.waiting]
    if waits and state.state in ("waiting", "dead"):
        return f"{'in ' * (state.state == 'dead')}{waits[-1].text()}", waits[-1].site
    if state.state == "stuck":
        return "in C code, where no signal reaches it", state.site
    return state.error, state.site


def name_ranks(ranks: Iterable[int]) -> str:
    """``rank 2``, ``ranks 0 and 1``, ``ranks 0, 1 and 3``."""
    numbers = [str(rank) for rank in sorted(ranks)]
    if len(numbers) == 1:
        return f"rank {numbers[0]}"
    return f"ranks {', '.join(numbers[:-1])} and {numbers[-1]}"


def list_ranks(ranks: Iterable[int]) -> str:
    """``rank 2``, ``ranks 0, 1, 3``: for lists that may be long."""
    numbers = [str(rank) for rank in sorted(ranks)]
    return f"rank{'s' if len(numbers) > 1 else ''} {', '.join(numbers)}"


def at(site: str) -> str:
    """`` [cell 5, line 2]``, or nothing where the site is unknown."""
    return f" [{site}]" if site else ""
