"""Links are shared, so a message is as fast as the fullest link on its way lets it.

A network is a tree of levels: ranks sit in nodes, nodes on switches. Each rank has a port; each
group of a level has one uplink that all its ranks share. Ports and uplinks are full duplex, so
each is two links, one out and one in. A message crosses the uplinks of those groups that hold only
one of the two ranks:

- it starts when both sides are ready (a rendezvous), and takes the latency of the outermost level
  that it crosses, once, whatever other traffic there is;
- then its bytes flow at the lowest rate that a link on its way grants it, and each link shares its
  bandwidth equally among the messages that cross it at that moment. What one of them cannot use,
  because it is held up elsewhere, no other picks up; real networks do somewhat better.

The queue of events is simpy's. Seconds, bytes and bytes/s.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import simpy

from course_lib.teaching.cost.checked import count, positive
from course_lib.teaching.cost.link import Link

from .hierarchy import Hierarchy

__all__ = ["Level", "Network", "Traffic"]

_AFTER_ALL_OTHERS = 2  # priority: simpy's own events of the same moment have 0 and 1


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
    """Who shares what.

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

    @classmethod
    def fat_tree(
        cls, ranks: int, port: Link, ranks_per_switch: int, oversubscription: float = 1.0
    ) -> Network:
        """Return ranks on switches whose uplinks carry less than all their ports together.

        Args:
            ranks_per_switch: ports of a leaf switch towards ranks.
            oversubscription: bandwidth of those ports over that of the switch's uplinks, which
                count as one: messages are spread over them ideally. 1 is a full fat tree.
        """
        ports = count("ranks_per_switch", ranks_per_switch) * port.bandwidth
        bandwidth = ports / positive("oversubscription", oversubscription)
        return cls(ranks, port, (Level(ranks_per_switch, Link(port.latency, bandwidth)),))

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
        """Say that one side is ready for a message; returns the event of its arrival.

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
        """Share these links out anew once everything of this moment has happened."""
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
