"""How a run of the parameter server goes: its mode, its learning rates, and when it ends.

- A *mode* says who may start the next gradient, and what becomes of a gradient that arrives:
  :class:`Synchronous`, :class:`Asynchronous` or :class:`BoundedStaleness`.
- A *rate rule* gives the learning rate of one update: :func:`constant`, :func:`over_staleness`
  or any other function of the optimizer's rate, the number of updates so far and the staleness.
- :class:`Stop` says when the run is over.

Nothing here knows about messages.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from numbers import Real
from typing import Any

from ..arguments import function, seconds, whole

LATE = "late: the round already had its gradients"


class Mode:
    """Base class of the modes; by default no worker waits and no gradient is dropped.

    Attributes:
        drops_late: whether a gradient is dropped if an update was made while it was computed.
    """

    drops_late = False

    def may_start(self, worker: int, progress: Progress) -> bool:
        """Return whether ``worker``, which has asked, gets the parameters now."""
        return True

    def needed(self, workers: int) -> int:
        """Return how many gradients make an update, if so many workers take part."""
        return 1


@dataclass(frozen=True)
class Asynchronous(Mode):
    """Apply every gradient at once, whatever has happened to the parameters since."""

    def __str__(self) -> str:
        return "asynchronous"


@dataclass(frozen=True)
class Synchronous(Mode):
    """Wait for gradients of one version, apply their mean, and only then go on.

    Attributes:
        wait_for: how many gradients make an update; all workers' if None. With R of R + b, the
            last b of each round are backup workers, whose late gradients are dropped.

    Source: Chen, Pan, Monga, Bengio, Jozefowicz, "Revisiting Distributed Synchronous SGD",
    2016, arXiv:1604.00981.
    """

    wait_for: int | None = None
    drops_late = True

    def __post_init__(self) -> None:
        if self.wait_for is not None:
            whole("Synchronous: wait_for", self.wait_for, least=1)

    def __str__(self) -> str:
        return "synchronous" + (f", first {self.wait_for}" if self.wait_for else "")

    def may_start(self, worker: int, progress: Progress) -> bool:
        return worker not in progress.delivered

    def needed(self, workers: int) -> int:
        return self.wait_for or workers


@dataclass(frozen=True)
class BoundedStaleness(Mode):
    """Asynchronous, but a worker more than ``bound`` steps ahead of the slowest waits.

    While one worker computes, each other one can make at most 2 * bound + 1 updates, so the
    staleness never exceeds (workers - 1) * (2 * bound + 1).

    Attributes:
        bound: steps, at least 0.

    Source: Ho, Cipar, Cui, Lee, Kim, Gibbons, Gibson, Ganger, Xing, "More Effective Distributed
    ML via a Stale Synchronous Parallel Parameter Server", NIPS 2013.
    """

    bound: int

    def __post_init__(self) -> None:
        whole("BoundedStaleness: bound", self.bound, least=0)

    def __str__(self) -> str:
        return f"bounded staleness {self.bound}"

    def may_start(self, worker: int, progress: Progress) -> bool:
        slowest = min(progress.steps[active] for active in progress.active)
        return progress.steps[worker] - slowest <= self.bound


class Progress:
    """The workers of a run, and those whose gradients have come for the next update.

    Attributes:
        active: the workers that take part.
        steps: worker -> how many of its gradients have come.
        delivered: the workers whose gradients have come since the last update.

    Raises:
        ValueError: if there are too few workers for the mode.
    """

    def __init__(self, mode: Mode, workers: Iterable[int]) -> None:
        self._mode = mode
        self.active = set(workers)
        self.steps = dict.fromkeys(self.active, 0)
        self.delivered: list[int] = []
        needed, there = mode.needed(len(self.active)), len(self.active)
        if needed > there:
            raise ValueError(f"mode {mode} needs {needed} workers, but there are {there}")

    def may_start(self, worker: int) -> bool:
        """Return whether ``worker``, which has asked, gets the parameters now."""
        return self._mode.may_start(worker, self)

    def deliver(self, worker: int, computed_at: int, version: int) -> str:
        """Note a gradient; return why it is dropped, or an empty string if it is kept."""
        if self._mode.drops_late and computed_at < version:
            return LATE
        self.steps[worker] += 1
        self.delivered.append(worker)
        return ""

    def due(self) -> list[int]:
        """Return the workers whose gradients make an update now, by rank, and forget them."""
        # A worker that has left is not waited for, but its delivered gradient counts.
        everyone = len(self.active.union(self.delivered))
        if len(self.delivered) < min(self._mode.needed(everyone), everyone):
            return []
        due, self.delivered = sorted(self.delivered), []
        return due

    def leave(self, worker: int) -> None:
        """Note that ``worker`` takes no further part."""
        self.active.discard(worker)


RateRule = Callable[[float, int, int], float]


def constant(rate: float, step: int, staleness: int) -> float:
    """Return ``rate`` itself."""
    return rate


def over_staleness(rate: float, step: int, staleness: int) -> float:
    """Return ``rate`` divided by the staleness, and undivided for a fresh gradient.

    Source: Zhang, Gupta, Lian, Liu, "Staleness-aware Async-SGD for Distributed Deep Learning",
    2015 (IJCAI 2016), section 2.4.
    """
    return rate / max(1, staleness)


def rates_by(rule: RateRule, rates: Iterable[float], step: int, staleness: int) -> list[float]:
    """Return the result of ``rule`` for each of the optimizer's ``rates``.

    Raises:
        TypeError: if it returns something other than a number.
        ValueError: if it returns a number that is no learning rate, which would ruin the weights.
    """
    found: list[float] = []
    for rate in rates:
        given = rule(rate, step, staleness)
        call = f"the rate rule gave {given!r} for rate {rate}, step {step}, staleness {staleness}"
        if not isinstance(given, Real):
            raise TypeError(f"{call}: a number is needed")
        if not 0 <= given < math.inf:
            raise ValueError(f"{call}: a rate is at least 0, and finite")
        found.append(float(given))
    return found


@dataclass(frozen=True)
class Stop:
    """When the server tells its workers to stop: at the first of these conditions.

    Without any of them it goes on until every worker has used up its batches.

    Attributes:
        steps: after this many updates.
        seconds: with the first update after this many seconds.
        when: after an update for which ``when(server)`` is true.

    Raises:
        TypeError: if ``steps`` is no whole number, ``seconds`` no number or ``when`` no function.
        ValueError: if ``steps`` is less than 1, or ``seconds`` negative or not finite.
    """

    steps: int | None = None
    seconds: float | None = None
    when: Callable[[Any], bool] | None = None

    def __post_init__(self) -> None:
        if self.steps is not None:
            whole("Stop: steps", self.steps, least=1)
        if self.seconds is not None:
            seconds("Stop: seconds", self.seconds)
        if self.when is not None:
            function("Stop: when", self.when, "lambda server: server.version == 7")

    def after_update(self, server: Any, updates: int, seconds: float) -> bool:
        """Return whether the run ends with this update."""
        if self.steps is not None and updates >= self.steps:
            return True
        if self.seconds is not None and seconds >= self.seconds:
            return True
        return self.when is not None and bool(self.when(server))
