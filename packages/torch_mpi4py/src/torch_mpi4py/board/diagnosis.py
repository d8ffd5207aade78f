"""Derives one sentence that names the bug from what every rank was doing.

It is a pure function of :mod:`.rank_states`. Each bug has its own function; the most certain ones
are tried first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from .event_board import ANY, OTHER_GROUP, WHOLE_GROUPS, Event
from .rank_states import RankState, at, name_ranks


def diagnose(states: Iterable[RankState]) -> str:
    """Return what is wrong in one or two sentences, or that the cause is unknown."""
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
        _not_begun,
        _busy,
        _different_groups,
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
Waits = Mapping[int, Event]


def _death(world: World, waits: Waits) -> str:
    dead = _in_state(world, "dead")
    if not dead:
        return ""
    others = f"; {name_ranks(waits)} waited in {_common_text(waits)}" if waits else ""
    return f"{_subject(dead, 'has', 'have')} died{others}."


def _error(world: World, waits: Waits) -> str:
    raised = _in_state(world, "raised")
    if not raised or not waits:
        return ""
    kind = world[raised[0]].outcome.partition(":")[0]
    return (
        f"{_subject(raised, 'raised')} an error ({kind}), so {name_ranks(waits)} never got "
        f"out of {_common_text(waits)}."
    )


def _tag_mismatch(world: World, waits: Waits) -> str:
    for rank, op in waits.items():
        peer = op.world_peer
        if not op.needs_send or peer not in world or op.tag == ANY:
            continue
        for sent in _sends_to(world[peer], rank, op.group):
            if sent.tag not in (op.tag, ANY) and not _received(world[rank], sent):
                return (
                    f"The tags do not match: rank {peer} sends to rank {rank} with tag "
                    f"{sent.tag}{at(sent.site)}, but rank {rank} receives with tag "
                    f"{op.tag}{at(op.site)}. Give both the same tag."
                )
    return ""


def _different_kinds(world: World, waits: Waits) -> str:
    """One rank is in a collective, and its partner waits for a message from it."""
    for rank, op in waits.items():
        other = None if op.collective else waits.get(op.world_peer)
        if other is not None and other.collective:
            return (
                f"{_waits_in(rank, op)}, but rank {op.world_peer} is in {_where(other)}: the two "
                "wait for different things."
            )
    return ""


def _cycle(world: World, waits: Waits) -> str:
    circle = _find_circle({r: op.world_peer for r, op in waits.items() if not op.collective})
    if not circle:
        return ""
    ops = [waits[rank] for rank in circle]
    if len(circle) == 1:
        (rank,), (op,) = circle, ops
        return (
            f"Rank {rank} waits for itself in {_where(op)}: it cannot do the other half "
            f"at the same time. Correct the {'source' if op.needs_send else 'destination'}, or use "
            "isend or irecv."
        )
    sites = dict.fromkeys(op.site for op in ops if op.site)
    ranks, where = name_ranks(circle), at("; ".join(sites))
    both, none = ("both", "neither") if len(circle) == 2 else ("all", "none of them")
    if all(op.needs_send for op in ops):
        return (
            f"Deadlock: {ranks} {both} receive first{where}, so {none} gets to its send. Let one "
            "of them send first, or use isend, sendrecv or batch_isend_irecv."
        )
    if all(op.sends for op in ops):
        return (
            f"Deadlock: {ranks} {both} send first{where}. The message is too large to "
            "be buffered, so each send waits for a receive that comes after it. Let one of them "
            "receive first, or use isend, sendrecv or batch_isend_irecv."
        )
    return (
        f"Deadlock: {ranks} wait for each other in a circle{where}. "
        "Change the order of the calls on one of them."
    )


def _lost_to_an_irecv(world: World, waits: Waits) -> str:
    for rank, op in waits.items():
        for earlier in world[rank].unattended if op.needs_send else ():
            if earlier.needs_send and _may_match(earlier, op):
                return (
                    f"{_waits_in(rank, op)}, but its earlier {_where(earlier)}, which is "
                    "never waited for, comes first and takes the message. Wait for every irecv you "
                    "start."
                )
    return ""


def _different_collectives(world: World, waits: Waits) -> str:
    for group, calls in _collectives_by_group(waits).items():
        rank, op = next(iter(calls.items()))
        position = len(_collectives_of(world[rank], group))
        kinds: dict[str, list[int]] = {}
        sites: dict[str, str] = {}
        for other in filter(world.get, op.ranks):
            # Its position now, or the calls that it made there.
            past = _collectives_of(world[other], group)[position:]
            called = calls.get(other, past[0] if past else None)
            if called is not None:
                kinds.setdefault(called.name, []).append(other)
                sites.setdefault(called.name, called.site)
        if len(kinds) > 1:
            parts = [f"{name_ranks(r)} called {name}{at(sites[name])}" for name, r in kinds.items()]
            return (
                f"Different collectives on different ranks{_of(group)}: {', '.join(parts)}. "
                "All ranks must make the same calls in the same order."
            )
    return ""


def _skipped_collective(world: World, waits: Waits) -> str:
    for group, calls in _collectives_by_group(waits).items():
        op = next(iter(calls.values()))
        over = [rank for rank in op.ranks if rank not in calls and _is_over(world, rank)]
        if over:
            return (
                f"{_subject(over, 'finished')} without the {op.kind} in which "
                f"{_who_wait(calls)}{at(op.site)}{_of(group)}. Every rank of the group must call "
                f"{op.kind}; look for a call inside an if, or after an early return or break."
            )
    return ""


def _missing_partner(world: World, waits: Waits) -> str:
    for rank, op in waits.items():
        peer = op.world_peer
        partners = _partners(world, rank, op)
        quiet = [r in waits or _is_over(world, r) for r in partners if r in world]
        if op.collective or not quiet or not all(quiet):
            continue
        if len(waits) > 1 and not _is_over(world, peer):
            continue
        if op.needs_send:
            who = "no rank has sent" if peer == ANY else f"rank {peer} has not sent"
            return (
                f"{_waits_in(rank, op)}, but {who} such a message{_ended(peer, world)}. "
                "A receive needs a send."
            )
        return (
            f"{_waits_in(rank, op)}, but rank {peer} never receives it{_ended(peer, world)}. "
            "A send too large to be buffered waits for its receive."
        )
    return ""


def _not_begun(world: World, waits: Waits) -> str:
    """A rank that is needed runs nothing yet, so its part in the cell is unknown."""
    for rank, op in waits.items():
        if op.collective:
            alike = _collectives_by_group(waits)[op.group]
            needed = [other for other in op.ranks if other not in alike]
        else:
            alike, needed = {rank: op}, _partners(world, rank, op)
        idle = [other for other in needed if other in world and world[other].state == "idle"]
        if idle:
            it = "it was" if len(idle) == 1 else "they were"
            return (
                f"{_subject(idle, 'is idle: it has', 'are idle: they have')} not begun the cell in "
                f"which {_who_wait(alike)} in {_where(op)}. Either {it} not asked to run the cell, "
                "or the machine has been too busy to start it."
            )
    return ""


def _partners(world: World, rank: int, op: Event) -> list[int]:
    """The ranks of which one may do the other half of a message."""
    return [op.world_peer] if op.world_peer != ANY else [r for r in world if r != rank]


def _busy(world: World, waits: Waits) -> str:
    others = f"; {_who_wait(waits)} in {_common_text(waits)}" if waits else ""
    if standing := _in_state(world, "at a breakpoint"):
        sites = "; ".join(dict.fromkeys(world[rank].site for rank in standing))
        return f"{_subject(standing, 'is', 'are')} at a breakpoint{at(sites)}{others}."
    if stuck := _in_state(world, "stuck"):
        return (
            f"{_subject(stuck, 'is', 'are')} stuck in C code{at(world[stuck[0]].site)}, where no "
            f"signal reaches it{others}.{_overdue(world)}"
        )
    if catching := _in_state(world, "catching"):
        return (
            f"{_subject(catching, 'catches', 'catch')} every interrupt and "
            f"{'goes' if len(catching) == 1 else 'go'} on{at(world[catching[0]].site)}{others}. "
            "Around that line, write `except Exception:` instead of `except:` or `except "
            "BaseException:`, so that an interrupt ends the cell."
        )
    if ignoring := _in_state(world, "ignoring"):
        return (
            f"{_subject(ignoring, 'has', 'have')} replaced the handler of SIGINT, so an interrupt "
            f"does not end the cell{at(world[ignoring[0]].site)}{others}. Leave "
            "`signal.signal(signal.SIGINT, ...)` out of the cell."
        )
    if computing := _in_state(world, "computing"):
        why = _overdue(world) or " Either a loop there never ends, or it needs more time."
        return (
            f"{_subject(computing, 'is', 'are')} still "
            f"computing{at(world[computing[0]].site)}{others}.{why}"
        )
    return ""


def _different_groups(world: World, waits: Waits) -> str:
    """Ranks that wait for each other are in collectives of different groups."""
    groups = _collectives_by_group(waits)
    for group, calls in groups.items():
        op = next(iter(calls.values()))
        for other in op.ranks:
            elsewhere = waits.get(other)
            if elsewhere is None or not elsewhere.collective or elsewhere.group == group:
                continue
            theirs = groups[elsewhere.group]
            return (
                f"{_who_wait(calls).capitalize()} in {_where(op)}, but {_who_wait(theirs)} in "
                f"{_where(elsewhere)}. Ranks that share several groups must call their "
                "collectives in the same order."
            )
    return ""


def _overdue(world: World) -> str:
    """Which collective of PyTorch's own groups does not end: empty, or a space and a sentence."""
    calls = {
        rank: op
        for rank, state in world.items()
        for op in state.unattended
        if OTHER_GROUP in op.group
    }
    if not calls:
        return ""
    ranks = next(iter(calls.values())).ranks
    kinds: dict[str, list[int]] = {}
    for rank, op in calls.items():
        if op.ranks == ranks:
            kinds.setdefault(op.text(), []).append(rank)
    parts = [f"{_subject(r, 'is', 'are')} in {text}" for text, r in kinds.items()]
    if missing := [rank for rank in ranks if rank not in calls]:
        parts.append(f"{_subject(missing, 'is', 'are')} not")
    return f" {'. '.join(parts)}. A rank cannot be freed from such a group."


def _unattended(world: World, waits: Waits) -> str:
    for rank, state in world.items():
        for op in state.unattended:
            return (
                f"Rank {rank} has started {_where(op)} and never waits for it. "
                "Call wait() on every handle."
            )
    return ""


# ---- parts -------------------------------------------------------------------------------


def _in_state(world: World, state: str) -> list[int]:
    return [rank for rank, one in world.items() if one.state == state]


def _is_over(world: World, rank: int) -> bool:
    return rank in world and world[rank].state == "finished"


def _sends_to(state: RankState, rank: int, group: str) -> list[Event]:
    """Sends to ``rank`` that are open or were buffered, the latest first."""
    sends = [op for op in (*state.past, *state.operations) if op.sends and op.group == group]
    return [op for op in reversed(sends) if op.world_peer == rank]


def _received(state: RankState, sent: Event) -> bool:
    return any(op.needs_send and op.tag == sent.tag and op.outcome == "ok" for op in state.past)


def _may_match(earlier: Event, later: Event) -> bool:
    pairs = ((earlier.world_peer, later.world_peer), (earlier.tag, later.tag))
    alike = all(one == other or ANY in (one, other) for one, other in pairs)
    return alike and earlier.group == later.group


def _find_circle(waits_for: Mapping[int, int]) -> list[int]:
    for start in waits_for:
        path = [start]
        while path[-1] in waits_for:
            following = waits_for[path[-1]]
            if following in path:
                return path[path.index(following) :]
            path.append(following)
    return []


def _collectives_by_group(waits: Waits) -> dict[str, dict[int, Event]]:
    groups: dict[str, dict[int, Event]] = {}
    for rank, op in waits.items():
        if op.collective:
            groups.setdefault(op.group, {})[rank] = op
    return groups


def _collectives_of(state: RankState, group: str) -> list[Event]:
    """Those of the cell that have ended well, in order."""
    return [op for op in state.past if op.collective and op.group == group and op.outcome == "ok"]


# ---- words -------------------------------------------------------------------------------


def _subject(ranks: Sequence[int], singular: str, plural: str = "") -> str:
    """``Rank 2 has``, ``Ranks 0 and 1 have``; without a plural the verb has one form."""
    verb = singular if len(ranks) == 1 else plural or singular
    return f"{name_ranks(ranks).capitalize()} {verb}"


def _who_wait(ranks: Collection[int]) -> str:
    return f"{name_ranks(ranks)} wait{'s' if len(ranks) == 1 else ''}"


def _where(op: Event) -> str:
    return f"{op.text()}{at(op.site)}"


def _waits_in(rank: int, op: Event) -> str:
    return f"Rank {rank} waits in {_where(op)}"


def _common_text(waits: Waits) -> str:
    names = dict.fromkeys(op.name for op in waits.values())
    sites = {op.site for op in waits.values()}
    return " or ".join(names) + (at(next(iter(sites))) if len(sites) == 1 else "")


def _ended(rank: int, world: World) -> str:
    if _is_over(world, rank):
        return " and has finished"
    other = world[rank].waits_in if rank in world else None
    return f" and is itself waiting in {_where(other)}" if other else ""


def _of(group: str) -> str:
    return "" if group in WHOLE_GROUPS else f" of {group}"
