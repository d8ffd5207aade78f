"""From what every rank was doing to one sentence that names the bug.

A pure function of :mod:`.rank_states`. Each bug has a function of its own; the most certain
ones are asked first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from .rank_states import (
    ANY,
    COLLECTIVES,
    WHOLE_GROUPS,
    Operation,
    RankState,
    at,
    describe,
    name_ranks,
)

__all__ = ["COLLECTIVES", "Operation", "RankState", "describe", "diagnose", "name_ranks"]


def diagnose(states: Iterable[RankState]) -> str:
    """Return what is wrong in one or two sentences; say so if it cannot be told."""
    world = {state.rank: state for state in states}
    waits = {rank: op for rank, state in world.items() if (op := state.waits_in) is not None}
    for find in (
        _death,
        _error,
        _tag_mismatch,
        _different_kinds,
        _cycle,
        _lost_to_an_irecv,
        _different_collectives,
        _skipped_collective,
        _missing_partner,
        _busy,
        _unattended,
    ):
        sentence = find(world, waits)
        if sentence:
            return sentence
    if waits:
        return f"{name_ranks(waits)} waited for a message that did not come."
    return "No rank was waiting for another."


# ---- one function for each bug, the most certain first ---------------------------------------

World = Mapping[int, RankState]
Waits = Mapping[int, Operation]


def _death(world: World, waits: Waits) -> str:
    dead = [rank for rank, state in world.items() if state.state == "dead"]
    if not dead:
        return ""
    others = f"; {name_ranks(waits)} waited in {_common_text(waits)}" if waits else ""
    return f"{_capital(name_ranks(dead))} {_has(dead)} died{others}."


def _error(world: World, waits: Waits) -> str:
    raised = [state for state in world.values() if state.state == "raised"]
    if not raised or not waits:
        return ""
    first = raised[0]
    what = _common_text(waits)
    return (
        f"{_capital(name_ranks(s.rank for s in raised))} raised an error "
        f"({first.error.partition(':')[0]}), so {name_ranks(waits)} waited in vain in {what}."
    )


def _tag_mismatch(world: World, waits: Waits) -> str:
    for rank, op in waits.items():
        if not op.is_receive or op.peer not in world or op.tag == ANY:
            continue
        for sent in _sends_to(world[op.peer], rank, op.group):
            if sent.tag != op.tag and sent.tag != ANY and not _received(world[rank], sent):
                return (
                    f"The tags do not match: rank {op.peer} sends to rank {rank} with tag "
                    f"{sent.tag}{at(sent.site)}, but rank {rank} receives with tag "
                    f"{op.tag}{at(op.site)}. Give both the same tag."
                )
    return ""


def _different_kinds(world: World, waits: Waits) -> str:
    """One rank is in a collective, and its partner waits for a message from it."""
    for rank, op in waits.items():
        if op.is_collective or op.peer not in waits:
            continue
        other = waits[op.peer]
        if other.is_collective:
            return (
                f"Rank {rank} waits in {op.text()}{at(op.site)}, but rank {op.peer} is in "
                f"{other.text()}{at(other.site)}: the two wait for different things."
            )
    return ""


def _cycle(world: World, waits: Waits) -> str:
    circle = _find_circle({r: op.peer for r, op in waits.items() if not op.is_collective})
    if not circle:
        return ""
    ops = [waits[rank] for rank in circle]
    if len(circle) == 1:
        (rank,), (op,) = circle, ops
        return (
            f"Rank {rank} waits for itself in {op.text()}{at(op.site)}: it cannot do the other "
            f"half of it meanwhile. Correct the {'source' if op.is_receive else 'destination'}, or "
            "use isend or irecv."
        )
    both = "both" if len(circle) == 2 else "all"
    where = _sites(ops)
    if all(op.is_receive for op in ops):
        return (
            f"Deadlock: {name_ranks(circle)} {both} receive first{where}, so nobody gets to its "
            "send. Let one of them send first, or use isend, sendrecv or batch_isend_irecv."
        )
    if all(op.is_send for op in ops):
        return (
            f"Deadlock: {name_ranks(circle)} {both} send first{where}. The message is too large to "
            "be buffered, so each send waits for a receive that comes after it. Let one of them "
            "receive first, or use isend, sendrecv or batch_isend_irecv."
        )
    return (
        f"Deadlock: {name_ranks(circle)} wait for each other in a circle{where}. "
        "Change the order of the calls on one of them."
    )


def _lost_to_an_irecv(world: World, waits: Waits) -> str:
    for rank, op in waits.items():
        if not op.is_receive:
            continue
        for earlier in world[rank].unattended:
            if earlier.is_receive and _may_match(earlier, op):
                return (
                    f"Rank {rank} waits in {op.text()}{at(op.site)}, but its earlier "
                    f"{earlier.text()}{at(earlier.site)}, which nobody waits for, comes first "
                    "and takes the message. Wait for every irecv you start."
                )
    return ""


def _different_collectives(world: World, waits: Waits) -> str:
    for group, calls in _collectives_by_group(waits).items():
        rank, op = next(iter(calls.items()))
        position = len(_collectives_of(world[rank], group))
        kinds: dict[str, list[int]] = {}
        sites: dict[str, str] = {}
        for other in op.members or tuple(world):
            # Where it stands now, or what it called when it was there.
            called = calls.get(other)
            if called is None and other in world:
                past = _collectives_of(world[other], group)
                called = past[position] if position < len(past) else None
            if called is not None:
                kinds.setdefault(called.name, []).append(other)
                sites.setdefault(called.name, called.site)
        if len(kinds) > 1:
            parts = [
                f"{name_ranks(ranks)} called {name}{at(sites[name])}"
                for name, ranks in kinds.items()
            ]
            return (
                f"Different collectives on different ranks{_of(group)}: {', '.join(parts)}. "
                "All ranks must make the same calls in the same order."
            )
    return ""


def _skipped_collective(world: World, waits: Waits) -> str:
    for group, calls in _collectives_by_group(waits).items():
        op = next(iter(calls.values()))
        members = op.members or tuple(world)
        missing = [r for r in members if r in world and r not in calls]
        over = [r for r in missing if world[r].state in ("finished", "idle")]
        if over:
            return (
                f"{_capital(name_ranks(over))} finished without the {op.kind} in which "
                f"{name_ranks(calls)} wait{_s(calls)}{at(op.site)}{_of(group)}. "
                f"Every rank of the group must call {op.kind}; look for one inside an if, or "
                "behind an early end."
            )
    return ""


def _missing_partner(world: World, waits: Waits) -> str:
    for rank, op in waits.items():
        if op.is_collective:
            continue
        partners = [op.peer] if op.peer != ANY else [r for r in world if r != rank]
        states = [world[r].state for r in partners if r in world]
        if not states or any(state not in ("finished", "idle", "waiting") for state in states):
            continue
        if len(waits) > 1 and not (op.peer in world and world[op.peer].state != "waiting"):
            continue
        if op.is_receive:
            who = "no rank has sent" if op.peer == ANY else f"rank {op.peer} has not sent"
            return (
                f"Rank {rank} waits in {op.text()}{at(op.site)}, but {who} such a message"
                f"{_ended(op, world)}. A receive needs a send."
            )
        if op.is_send:
            return (
                f"Rank {rank} waits in {op.text()}{at(op.site)}, but rank {op.peer} never receives"
                f" it{_ended(op, world)}. A send too large to be buffered waits for its receive."
            )
    return ""


def _busy(world: World, waits: Waits) -> str:
    stuck = [state for state in world.values() if state.state == "stuck"]
    computing = [state for state in world.values() if state.state == "computing"]
    others = f"; {name_ranks(waits)} wait{_s(waits)} in {_common_text(waits)}" if waits else ""
    if stuck:
        first = stuck[0]
        return (
            f"{_capital(name_ranks(s.rank for s in stuck))} {_is(stuck)} stuck in C code"
            f"{at(first.site)}, where no signal reaches it{others}."
        )
    if computing:
        first = computing[0]
        return (
            f"{_capital(name_ranks(s.rank for s in computing))} {_is(computing)} still computing"
            f"{at(first.site)}{others}. Either the loop there never ends, or it needs more time."
        )
    return ""


def _unattended(world: World, waits: Waits) -> str:
    for rank, state in world.items():
        for op in state.unattended:
            return (
                f"Rank {rank} has started {op.text()}{at(op.site)} and waits for it nowhere. "
                "Call wait() on every handle."
            )
    return ""


# ---- parts -------------------------------------------------------------------------------


def _sends_to(state: RankState, rank: int, group: str) -> list[Operation]:
    """Sends to ``rank`` that are open or were buffered, the latest first."""
    sends = [*state.past, *state.operations]
    return [op for op in reversed(sends) if op.is_send and op.peer == rank and op.group == group]


def _received(state: RankState, sent: Operation) -> bool:
    return any(op.is_receive and op.tag == sent.tag and op.outcome == "ok" for op in state.past)


def _may_match(earlier: Operation, later: Operation) -> bool:
    def alike(a: int, b: int) -> bool:
        return a == b or ANY in (a, b)

    return (
        earlier.group == later.group
        and alike(earlier.peer, later.peer)
        and alike(earlier.tag, later.tag)
    )


def _find_circle(waits_for: Mapping[int, int]) -> list[int]:
    for start in waits_for:
        path = [start]
        while path[-1] in waits_for:
            following = waits_for[path[-1]]
            if following in path:
                return path[path.index(following) :]
            path.append(following)
    return []


def _collectives_by_group(waits: Waits) -> dict[str, dict[int, Operation]]:
    groups: dict[str, dict[int, Operation]] = {}
    for rank, op in waits.items():
        if op.is_collective:
            groups.setdefault(op.group, {})[rank] = op
    return groups


def _collectives_of(state: RankState, group: str) -> list[Operation]:
    """Those of the cell that have ended well, in order."""
    return [
        op for op in state.past if op.is_collective and op.group == group and op.outcome == "ok"
    ]


def _common_text(waits: Waits) -> str:
    names = dict.fromkeys(op.name for op in waits.values())
    sites = {op.site for op in waits.values()}
    return " or ".join(names) + (at(next(iter(sites))) if len(sites) == 1 else "")


def _ended(op: Operation, world: World) -> str:
    if op.peer in world and world[op.peer].state in ("finished", "idle"):
        return " and has finished"
    other = world[op.peer].waits_in if op.peer in world else None
    return f" and waits itself in {other.text()}{at(other.site)}" if other else ""


def _sites(ops: Sequence[Operation]) -> str:
    sites = list(dict.fromkeys(op.site for op in ops if op.site))
    return f" [{'; '.join(sites)}]" if sites else ""


def _of(group: str) -> str:
    return "" if group in WHOLE_GROUPS else f" of {group}"


def _s(ranks: Sequence | Mapping) -> str:
    return "s" if len(ranks) == 1 else ""


def _is(ranks: Sequence) -> str:
    return "is" if len(ranks) == 1 else "are"


def _has(ranks: Sequence) -> str:
    return "has" if len(ranks) == 1 else "have"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
