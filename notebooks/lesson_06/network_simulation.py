"""All-reduces on a modelled network whose links are shared, in simulated time.

A network is a tree of levels: ranks sit in nodes, nodes on switches. Each rank has a port; each
group of a level has one uplink that all its ranks share. Ports and uplinks are full duplex, so
each is two links, one out and one in. A message crosses the uplinks of those groups that hold only
one of the two ranks:

- it starts when both sides are ready (a rendezvous), and pays the latency of the outermost level
  that it crosses once, whatever other traffic there is;
- then its bytes flow at the lowest rate that any link on its way allows. Each link shares its
  bandwidth equally among the messages that cross it at that moment. Bandwidth that one of them
  cannot use, because it is held up elsewhere, goes unused; real networks do somewhat better.

The formulas of :mod:`course_lib.teaching.cost` give the time of the longest path and ignore shared
links. Here the *same schedules* that run on real ranks (:mod:`course_lib.parallel.all_reduces`) run
as processes of a discrete-event simulation, whose queue of events is simpy's. Without contention
for links, both agree within rounding for every number of ranks (if p divides the elements;
otherwise chunks differ by one). Where ranks share a network card, the simulation shows what the
formulas miss.

A rank does one step after another. A step ends when its outgoing message has left and its incoming
message has arrived; reducing takes gamma per byte. Ranks compute nothing else and have no noise.

The ring has 2(p-1) p messages, 33 million for 4,096 ranks. But after the first few steps, each step
lasts as long as the one before. So beyond ``RING_IN_FULL`` ranks, only the first steps of each half
are simulated. If the last two of these lasted equally long, the rest are assumed to last as long,
and ``Simulated.extrapolated`` is set; otherwise the ring is refused. A test compares both ways.

Seconds, bytes and bytes/s.
"""

from __future__ import annotations

import contextlib
import gc
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import simpy

from course_lib.parallel.all_reduces import ALGORITHMS as SCHEDULES
from course_lib.parallel.all_reduces.schedules import Step, naive_schedule, part
from course_lib.teaching.cost import Link, cost, count

from .extrapolation import Hierarchy

__all__ = [
    "RING_IN_FULL",
    "Level",
    "Network",
    "Simulated",
    "Traffic",
    "simulate",
    "simulated_table",
]

_AFTER_ALL_OTHERS = 2  # priority: simpy's own events of the same moment have 0 and 1
RING_IN_FULL = 128
_FIRST_STEPS = 8  # of each half of a ring that is not simulated in full
_SAME = 1e-9  # relative: times that differ by less are rounding
Steps = Iterator[tuple[int, Step]]


# ---- the network --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Level:
    """Groups of ranks that share an uplink to the rest.

    Attributes:
        ranks: in one group, in the order of their places.
        uplink: latency of a message that leaves the group, and bandwidth of all its ranks together.
    """

    ranks: int
    uplink: Link


@dataclass(frozen=True)
class Network:
    """A network: its links, and which ranks share them.

    Attributes:
        ranks: p.
        port: the link of one rank; its ``reduce_rate`` is the rank's.
        levels: from the inside out; each group consists of whole groups of the level before.
        scattered: neighbouring ranks sit in different groups (dealt out like cards) instead of
            filling one group after the other.
    """

    ranks: int
    port: Link
    levels: tuple[Level, ...] = ()
    scattered: bool = False

    def __post_init__(self) -> None:
        count("ranks", self.ranks)
        inner = 1
        for level in self.levels:
            if count("ranks of a group", level.ranks) % inner:
                raise ValueError(f"a group of {level.ranks} ranks cannot consist of {inner}s")
            inner = level.ranks
        if self.scattered and (not self.levels or self.ranks % self.levels[0].ranks):
            raise ValueError("scattered ranks need a level, and whole groups on it")

    @classmethod
    def nodes(cls, cluster: Hierarchy, scattered: bool = False) -> Network:
        """Return nodes whose ranks share a network card; the fabric between them is ideal."""
        level = Level(cluster.ranks_per_node, cluster.between)
        return cls(cluster.ranks, cluster.inside, (level,), scattered)

    def place(self, rank: int) -> int:
        """Return where a rank sits; ranks of one group have places in a row."""
        if not self.scattered:
            return rank
        groups = self.ranks // self.levels[0].ranks
        return rank % groups * self.levels[0].ranks + rank // groups

    def way(self, source: int, dest: int) -> tuple[float, list[tuple]]:
        """Return latency and links from one rank to another.

        A link is named (level, group, "out" or "in"); level 0 are the ranks' own ports.
        """
        first, last = self.place(source), self.place(dest)
        latency, links = self.port.latency, [(0, first, "out"), (0, last, "in")]
        for number, level in enumerate(self.levels, start=1):
            here, there = first // level.ranks, last // level.ranks
            if here != there:
                latency = level.uplink.latency
                links += [(number, here, "out"), (number, there, "in")]
        return latency, links

    def bandwidth(self, link: tuple) -> float:
        """Return bytes/s of a link, named as in :meth:`way`."""
        return self.levels[link[0] - 1].uplink.bandwidth if link[0] else self.port.bandwidth


@dataclass(eq=False)
class _Flow:
    """A message whose bytes are under way."""

    links: list[tuple]
    left: float
    arrived: simpy.Event
    rate: float = 0.0
    since: float = 0.0
    plan: int = 0  # which of the announced ends is still true


@dataclass
class Traffic:
    """Messages on a network, in simulated time.

    Attributes:
        messages: that have arrived, by level of the outermost link that they crossed.
        bytes: of those messages.
        most_at_once: messages that shared one link at the same moment, at most, by level.
    """

    env: simpy.Environment
    network: Network
    messages: Counter = field(default_factory=Counter)
    bytes: Counter = field(default_factory=Counter)
    most_at_once: Counter = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._waiting: dict[tuple, simpy.Event] = {}
        self._on: dict[tuple, dict[_Flow, None]] = {}  # a set that keeps its order
        self._changed: dict[tuple, None] = {}

    def post(self, name: tuple, source: int, dest: int, size: float) -> simpy.Event:
        """Announce that one side is ready for a message; return the event of its arrival.

        Args:
            name: the same on both sides and for no other message under way.
        """
        arrived = self._waiting.pop(name, None)
        if arrived is None:
            arrived = self._waiting[name] = self.env.event()
            return arrived
        latency, links = self.network.way(source, dest)
        flow = _Flow(links, size, arrived)
        self.env.timeout(latency).callbacks.append(lambda _: self._enter(flow))
        outermost = links[-1][0]
        self.messages[outermost] += 1
        self.bytes[outermost] += size
        return arrived

    def never_met(self) -> list[tuple]:
        """Return the names of messages for which only one side was ever ready."""
        return list(self._waiting)

    def _enter(self, flow: _Flow) -> None:
        flow.since = self.env.now
        for link in flow.links:
            crowd = self._on.setdefault(link, {})
            crowd[flow] = None
            self.most_at_once[link[0]] = max(self.most_at_once[link[0]], len(crowd))
        self._touch(flow.links)

    def _leave(self, flow: _Flow, plan: int) -> None:
        if plan != flow.plan:
            return  # its rate has changed since this end was announced
        for link in flow.links:
            del self._on[link][flow]
        self._touch(flow.links)
        flow.arrived.succeed()

    def _touch(self, links: Iterable[tuple]) -> None:
        """Recompute the shares of these links after all other events of this moment."""
        if not self._changed:
            event = self.env.event()
            event._ok, event._value = True, None
            event.callbacks.append(lambda _: self._share())
            self.env.schedule(event, priority=_AFTER_ALL_OTHERS)
        self._changed.update(dict.fromkeys(links))

    def _share(self) -> None:
        changed, self._changed = self._changed, {}
        flows = {flow: None for link in changed for flow in self._on[link]}
        now = self.env.now
        for flow in flows:
            rate = min(self.network.bandwidth(link) / len(self._on[link]) for link in flow.links)
            if rate == flow.rate:
                continue
            flow.left = max(0.0, flow.left - flow.rate * (now - flow.since))
            flow.rate, flow.since = rate, now
            flow.plan += 1
            end = self.env.timeout(flow.left / rate)
            end.callbacks.append(lambda _, flow=flow, plan=flow.plan: self._leave(flow, plan))


# ---- the all-reduces ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Simulated:
    """One all-reduce on a modelled network.

    Attributes:
        algorithm: as in :mod:`course_lib.teaching.cost`.
        ranks: p.
        size_bytes: n, on each rank.
        seconds: until the last rank had the result.
        formula_seconds: what the formula says, with every message on a link of its own.
        messages: by level: 0 inside the innermost groups, 1 across the uplinks of the first
            level, and so on. For a ring that is not simulated in full, only the simulated ones.
        most_at_once: messages that shared one link at the same moment, at most, by level; 0 are
            the ranks' own ports.
        extrapolated: whether it is a ring of which only some steps were simulated.
        scattered: whether neighbouring ranks sit in different groups.
    """

    algorithm: str
    ranks: int
    size_bytes: float
    seconds: float
    formula_seconds: float
    messages: dict[int, int]
    most_at_once: dict[int, int]
    extrapolated: bool = False
    scattered: bool = False

    @property
    def factor(self) -> float:
        """How many times longer than the formula says."""
        return self.seconds / self.formula_seconds if self.formula_seconds else 1.0


def simulate(
    algorithm: str,
    network: Network,
    size_bytes: int,
    element_bytes: int = 4,
    link: Link | None = None,
) -> Simulated:
    """Return what an all-reduce costs on a modelled network.

    Args:
        algorithm: one of ``cost.ALGORITHMS``.
        network: the model; all its ``ranks`` take part.
        size_bytes: n, bytes of the buffer on each rank.
        element_bytes: of one element; chunks are whole elements.
        link: the link that the formula assumes between every pair of ranks; by default, the latency
            and bandwidth of the outermost level's uplink or of the port, whichever is worse: those
            of a message that has its path to itself.

    Raises:
        ValueError: if an argument is out of range, or if a ring is too long to simulate in full and
            does not settle into equal steps.
    """
    if algorithm.lower() not in SCHEDULES:
        cost(algorithm, 1, 0)  # says which there are
    numel, rest = divmod(count("size_bytes", size_bytes, 0), count("element_bytes", element_bytes))
    if rest:
        raise ValueError(f"{size_bytes} bytes are no whole number of {element_bytes} byte elements")
    ranks = network.ranks
    shortened = algorithm == "ring" and ranks > RING_IN_FULL
    clock = _Clock(network, element_bytes)
    for rank in range(ranks):
        clock.start(rank, _steps(algorithm, rank, ranks, numel, shortened))
    seconds = clock.run()
    if shortened:
        seconds += (ranks - 1 - _FIRST_STEPS) * clock.steady_seconds(ranks - 1)
    formula = cost(algorithm, ranks, size_bytes).seconds(link or _alone(network))
    traffic = clock.traffic
    return Simulated(
        algorithm,
        ranks,
        float(size_bytes),
        seconds,
        formula,
        dict(traffic.messages),
        dict(traffic.most_at_once),
        shortened,
        network.scattered,
    )


class _Clock:
    """All ranks, each a process, and when the last of them ended each step."""

    def __init__(self, network: Network, element_bytes: int) -> None:
        self.env = simpy.Environment()
        self.traffic = Traffic(self.env, network)
        self._element = element_bytes
        self._gamma = network.port.gamma
        self._ends: dict[int, float] = {}

    def start(self, rank: int, steps: Steps) -> None:
        self.env.process(self._rank(rank, steps))

    def run(self) -> float:
        """Return the seconds until all ranks are done."""
        with _uncollected():
            self.env.run()
        if self.traffic.never_met():
            raise RuntimeError(f"messages without a partner: {self.traffic.never_met()[:5]}")
        return self.env.now

    def _rank(self, rank: int, steps: Steps) -> Iterator[simpy.Event]:
        post, size = self.traffic.post, self._element
        for index, step in steps:
            out, into = step.send, step.receive
            under_way = []
            if out:
                name = (index, rank, out.peer)
                under_way.append(post(name, rank, out.peer, len(out) * size))
            if into:
                name = (index, into.peer, rank)
                under_way.append(post(name, into.peer, rank, len(into) * size))
            yield from under_way
            if into and step.combine and self._gamma:
                yield self.env.timeout(len(into) * size * self._gamma)
            self._ends[index] = self.env.now  # time only goes on: the last rank's

    def steady_seconds(self, second_half: int) -> float:
        """Return how long a step of the first and one of the second half last in the end."""
        both = 0.0
        for first in (0, second_half):
            a, b, c = (self._ends[first + _FIRST_STEPS - k] for k in (3, 2, 1))
            if not math.isclose(c - b, b - a, rel_tol=_SAME, abs_tol=_SAME * c):
                raise ValueError(
                    f"the ring's steps do not become equal within {_FIRST_STEPS}: {b - a:.6g} s, "
                    f"then {c - b:.6g} s; simulate at most {RING_IN_FULL} ranks"
                )
            both += c - b
        return both


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """Switch the garbage collector off: with so many live objects it takes most of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _steps(algorithm: str, rank: int, ranks: int, numel: int, shortened: bool) -> Steps:
    """Yield a rank's steps with their numbers, without those in which it has nothing to do.

    They equal the schedule's (a test compares them), but naive and ring would list millions.
    """
    if shortened:
        yield from _ring_in_part(rank, ranks, numel)
    elif algorithm == "naive" and rank:
        root = part(0, 0, numel)
        if root:
            yield rank - 1, Step(send=root)
            yield ranks - 2 + rank, Step(receive=root)
    else:
        schedule = naive_schedule if algorithm == "naive" else SCHEDULES[algorithm.lower()].schedule
        for index, step in enumerate(schedule(rank, ranks, numel)):
            if step.send or step.receive:
                yield index, step


def _ring_in_part(rank: int, ranks: int, numel: int) -> Steps:
    """Yield the first steps of both halves of ``ring_schedule``; all chunks are equal."""
    size, rest = divmod(numel, ranks)
    if rest or not size:
        raise ValueError(
            f"a ring of more than {RING_IN_FULL} ranks is simulated with equal chunks only: "
            f"{numel} elements are no multiple of {ranks}"
        )
    left, right = (rank - 1) % ranks, (rank + 1) % ranks
    for half in (0, 1):
        for turn in range(_FIRST_STEPS):
            out, into = (rank + half - turn) % ranks, (rank + half - 1 - turn) % ranks
            yield (
                half * (ranks - 1) + turn,
                Step(
                    part(right, out * size, (out + 1) * size),
                    part(left, into * size, (into + 1) * size),
                    combine=not half,
                ),
            )


def _alone(network: Network) -> Link:
    """Return the link of a message between the farthest ranks that meets no other message."""
    crossed = [network.port, *(lv.uplink for lv in network.levels if lv.ranks < network.ranks)]
    bandwidth = min(link.bandwidth for link in crossed)
    return Link(crossed[-1].latency, bandwidth, network.port.reduce_rate)


def simulated_table(runs: Sequence[Simulated]) -> str:
    """Return a Markdown table of the formula's time, the simulated time and their ratio."""
    head = (
        "| algorithm | ranks | bytes | formula (ms) | simulated (ms) | simulated / formula "
        "| messages sharing a link |\n| --- | --- | --- | --- | --- | --- | --- |"
    )
    rows = [
        f"| {run.algorithm}{' (steps repeated)' if run.extrapolated else ''}"
        f"{' (ranks scattered)' if run.scattered else ''} | {run.ranks:,} "
        f"| {run.size_bytes:,.0f} | {1e3 * run.formula_seconds:.3f} | {1e3 * run.seconds:.3f} "
        f"| {run.factor:.2f} | {max(run.most_at_once.values(), default=0)} |"
        for run in runs
    ]
    return "\n".join([head, *rows])
