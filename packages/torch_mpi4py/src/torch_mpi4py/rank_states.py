"""What a rank was doing, as plain data and as one line of text.

Nothing here knows of MPI, so a notebook's kernel may use it as well as the ranks themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from .event_board import Event

__all__ = [
    "ANY",
    "COLLECTIVES",
    "FREED",
    "LEFT_IN_VAIN",
    "WHOLE_GROUPS",
    "Operation",
    "RankState",
    "at",
    "describe",
    "name_ranks",
    "operation_of",
]

COLLECTIVES = (
    *("all_reduce", "allreduce", "broadcast", "bcast", "reduce", "all_gather", "allgather"),
    *("gather", "scatter", "reduce_scatter", "all_to_all", "all_to_all_single", "alltoall"),
    *("barrier", "scan", "exscan", "allgatherv", "gatherv", "scatterv", "alltoallv"),
    *("alltoallw", "reduce_scatter_block"),
    # All of them take part in making a group, too.
    *("init_process_group", "new_group", "dup", "split", "split_type", "create", "create_group"),
)
# Both spellings name one collective.
_SAME = {"allreduce": "all_reduce", "bcast": "broadcast", "allgather": "all_gather"}
ANY = -1
# What a rank raises that somebody freed, and what one raises as well that waited for a dead rank.
FREED = ("DeadlineError", "RevokedError", "KeyboardInterrupt")
LEFT_IN_VAIN = (*FREED, "RankFailedError")
# Names of groups that hold every rank.
WHOLE_GROUPS = ("", "world", "default")


@dataclass(frozen=True)
class Operation:
    """One communication call of a rank, under way or over.

    Attributes:
        kind: the call, e.g. ``"recv"``, ``"Sendrecv: recv"`` or ``"all_reduce"``.
        group: the name of its group.
        peer: the other rank, as a rank of the world; -1 for any or none.
        root: root of the collective, as a rank of the world; -1 for none.
        tag: tag of the message; -1 for any or none.
        shape: of the tensor, as text, e.g. ``"(3,)"``; empty where unknown.
        dtype: of the tensor; empty where unknown.
        site: where the caller's code calls it, e.g. ``"cell 5, line 2"``.
        seconds: for how long it has been under way.
        waiting: whether the rank waits for it; an ``irecv`` may be open with nobody waiting.
        outcome: empty while open, ``"ok"``, or the class name of the error.
        members: the ranks of its group; empty where unknown (then: everybody).
    """

    kind: str
    group: str = "world"
    peer: int = ANY
    root: int = ANY
    tag: int = ANY
    shape: str = ""
    dtype: str = ""
    site: str = ""
    seconds: float = 0.0
    waiting: bool = True
    outcome: str = ""
    members: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """The kind, equal for calls that match each other."""
        plain = self.kind.lower()
        if plain.startswith("i") and plain[1:] in COLLECTIVES:
            plain = plain[1:]
        return _SAME.get(plain, plain)

    @property
    def is_collective(self) -> bool:
        return self.name in COLLECTIVES

    @property
    def is_send(self) -> bool:
        return "send" in self.kind.lower() and not self.is_receive

    @property
    def is_receive(self) -> bool:
        return self.kind.lower().endswith(("recv", "probe"))

    def text(self) -> str:
        """``recv from rank 0, tag 0, (3,) float32``."""
        words = self.kind
        if self.is_send:
            words += f" to rank {self.peer}"
        elif self.is_receive:
            words += " from any rank" if self.peer == ANY else f" from rank {self.peer}"
        elif self.peer != ANY:
            words += f" with rank {self.peer}"
        parts = [words]
        if self.root != ANY:
            parts.append(f"root {self.root}")
        if self.tag != ANY and not self.is_collective:
            parts.append(f"tag {self.tag}")
        tensor = " ".join(part for part in (self.shape, self.dtype) if part)
        if tensor:
            parts.append(tensor)
        if self.group not in WHOLE_GROUPS:
            parts.append(f"in {self.group}")
        return ", ".join(parts)


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
    operations: tuple[Operation, ...] = ()
    past: tuple[Operation, ...] = ()
    error: str = ""
    site: str = ""

    @property
    def waits_in(self) -> Operation | None:
        """The operation that keeps it, if it waits."""
        if self.state != "waiting":
            return None
        return next((op for op in reversed(self.operations) if op.waiting), None)

    @property
    def unattended(self) -> list[Operation]:
        """Operations it has started and waits for nowhere."""
        return [op for op in self.operations if not op.waiting]


def describe(state: RankState, seconds: bool = True) -> str:
    """What one rank was doing, in one line: ``waiting in recv from rank 0 [cell 5, line 2]``."""
    if state.state == "raised":
        return f"raised {state.error}"
    operation = state.waits_in
    if operation is not None:
        since = f", for {operation.seconds:.1f} s" if seconds else ""
        return f"waiting in {operation.text()}{at(operation.site)}{since}"
    if state.state == "waiting":
        return f"waiting{at(state.site)}"
    if state.state == "computing":
        return f"computing{at(state.site)}"
    if state.state == "stuck":
        return f"stuck in C code, where no signal reaches it{at(state.site)}"
    if state.state == "dead" and state.operations:
        return f"dead, in {state.operations[-1].text()}{at(state.operations[-1].site)}"
    return state.state


def name_ranks(ranks: Iterable[int]) -> str:
    """``rank 2``, ``ranks 0 and 1``, ``ranks 0, 1 and 3``."""
    numbers = [str(rank) for rank in sorted(ranks)]
    if len(numbers) == 1:
        return f"rank {numbers[0]}"
    return f"ranks {', '.join(numbers[:-1])} and {numbers[-1]}"


def at(site: str) -> str:
    """`` [cell 5, line 2]``, or nothing where the site is unknown."""
    return f" [{site}]" if site else ""


def operation_of(event: Event, now: float, numbers: Mapping[int, int] | None = None) -> Operation:
    """Return an entry of the event log with its ranks as ranks of the world.

    Args:
        event: the entry.
        now: seconds of ``time.perf_counter()``, the end of what has not ended.
        numbers: what the ranks are called since some have died, by their first numbers.
    """
    ranks = event.ranks if numbers is None else tuple(numbers.get(r, r) for r in event.ranks)

    def in_world(rank: int) -> int:
        return ranks[rank] if 0 <= rank < len(ranks) else ANY

    return Operation(
        kind=event.kind,
        group=event.group,
        peer=in_world(event.peer),
        root=in_world(event.root),
        tag=event.tag,
        shape=event.shape,
        dtype=event.dtype,
        site=event.site,
        seconds=(event.end or now) - event.start,
        waiting=bool(event.waiting),
        outcome=event.outcome,
        members=ranks,
    )
