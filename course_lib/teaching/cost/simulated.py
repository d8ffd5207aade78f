"""Let every rank carry out its steps on a modelled network, and look at the clock.

The formulas of :mod:`.all_reduce` price the longest path and know nothing of shared links. Here
the *same schedules* that run on real ranks (:mod:`course_lib.parallel.all_reduces`) run as
processes of a discrete-event simulation, on a :class:`~.network.Network`. Where links do not
contend, both agree to rounding, for every number of ranks (where p divides the elements; other
chunks differ by one). Where ranks share a network card, or a switch is oversubscribed, the
simulation shows what the formulas miss.

A rank does step after step; a step ends when what it sends has left and what it receives has come,
and reducing takes gamma a byte. Ranks compute nothing else and have no noise.

The ring has 2(p-1) p messages, 33 million for 4,096 ranks. But its steps are all alike: from some
step on each lasts as long as the one before. So beyond ``RING_IN_FULL`` ranks only the first
steps of each half are simulated and the last one's time is taken for the rest, if the last two
lasted equally long (else it is refused); ``Simulated.extrapolated`` says so. A test compares both.
"""

from __future__ import annotations

import contextlib
import gc
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import simpy

from course_lib.parallel.all_reduces import ALGORITHMS as SCHEDULES
from course_lib.parallel.all_reduces.schedules import Step, naive_schedule, part

from .all_reduce import cost
from .checked import count
from .link import Link
from .network import Network, Traffic

__all__ = ["RING_IN_FULL", "Simulated", "simulate", "simulated_table"]

RING_IN_FULL = 128
_FIRST_STEPS = 8  # of each half of a ring that is not simulated in full
_SAME = 1e-9  # relative: times that differ by less are rounding
Steps = Iterator[tuple[int, Step]]


@dataclass(frozen=True)
class Simulated:
    """One all-reduce on a modelled network.

    Attributes:
        algorithm: as in :mod:`.all_reduce`.
        ranks: p.
        size_bytes: n, on each rank.
        seconds: until the last rank had the result.
        formula_seconds: what the formula says, with every message on a link of its own.
        messages: by level: 0 inside the innermost groups, 1 across the uplinks of the first
            level, and so on. Of a ring that is not simulated in full, only those simulated.
        most_at_once: messages that shared one link at the same moment, at most, by level; 0 are
            the ranks' own ports.
        extrapolated: whether it is a ring of which only some steps were simulated.
    """

    algorithm: str
    ranks: int
    size_bytes: float
    seconds: float
    formula_seconds: float
    messages: dict[int, int]
    most_at_once: dict[int, int]
    extrapolated: bool = False

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
        network: who shares what; its ``ranks`` take part.
        size_bytes: n, bytes of the buffer on each rank.
        element_bytes: of one element; chunks are whole elements.
        link: what the formula takes for every pair of ranks; by default latency and bandwidth of
            the outermost level's uplink or of the port, the worse of both: what a message gets
            that has its way for itself.

    Raises:
        ValueError: if an argument makes no sense, or if a ring is too long to simulate in full and
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
    """Look for no cyclic garbage meanwhile: among so many live objects that is most of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _steps(algorithm: str, rank: int, ranks: int, numel: int, shortened: bool) -> Steps:
    """Yield a rank's steps with their numbers, without those in which it has nothing to do.

    The same as the schedule says (a test compares them), but naive and ring would list millions.
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
    """Return what a message between the farthest ranks gets that meets no other."""
    crossed = [network.port, *(lv.uplink for lv in network.levels if lv.ranks < network.ranks)]
    bandwidth = min(link.bandwidth for link in crossed)
    return Link(crossed[-1].latency, bandwidth, network.port.reduce_rate)


def simulated_table(runs: Sequence[Simulated]) -> str:
    """Return a Markdown table: what the formula says, what the simulation, and their ratio."""
    head = (
        "| algorithm | ranks | bytes | formula (ms) | simulated (ms) | simulated / formula "
        "| messages sharing a link |\n| --- | --- | --- | --- | --- | --- | --- |"
    )
    rows = [
        f"| {run.algorithm}{' (steps repeated)' if run.extrapolated else ''} | {run.ranks:,} "
        f"| {run.size_bytes:,.0f} | {1e3 * run.formula_seconds:.3f} | {1e3 * run.seconds:.3f} "
        f"| {run.factor:.2f} | {max(run.most_at_once.values(), default=0)} |"
        for run in runs
    ]
    return "\n".join([head, *rows])
