"""A mode says who may start, and what becomes of a gradient that arrives.

The server asks a mode's rules two questions: may this worker have the parameters now, and
which gradients go into an update now? All modes differ in the answers only, and the rules
know nothing of messages.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from ..arguments import whole

__all__ = ["Asynchronous", "BoundedStaleness", "Mode", "Rules", "Synchronous"]

LATE = "late: the round had its gradients already"


class Rules(Protocol):
    """A mode at work in one run."""

    def may_start(self, worker: int) -> bool:
        """Return whether ``worker``, which has asked, gets the parameters now."""

    def deliver(self, worker: int, computed_at: int, version: int) -> str:
        """Note a gradient; return why it is dropped, or nothing if it is kept."""

    def due(self) -> list[int]:
        """Return the workers whose gradients make an update now, by rank, and forget them."""

    def leave(self, worker: int) -> None:
        """Note that ``worker`` takes no further part."""


@dataclass(frozen=True)
class Synchronous:
    """Wait for gradients of one version, use their mean, and only then go on.

    Attributes:
        wait_for: how many gradients make an update; all workers' if None. With R of R + b, the
            b last ones of each round are backup workers, whose late gradients are dropped.

    Source: Chen, Pan, Monga, Bengio, Jozefowicz, "Revisiting Distributed Synchronous SGD",
    2016, arXiv:1604.00981.
    """

    wait_for: int | None = None

    def __post_init__(self) -> None:
        if self.wait_for is not None:
            whole("Synchronous: wait_for", self.wait_for, least=1)

    def __str__(self) -> str:
        return "synchronous" + (f", first {self.wait_for}" if self.wait_for else "")

    def rules(self, workers: Iterable[int]) -> Rules:
        """Return this mode at work for these workers."""
        workers = set(workers)
        if self.wait_for is not None and self.wait_for > len(workers):
            raise ValueError(
                f"Synchronous: wait_for is {self.wait_for}, but there are {len(workers)} workers"
            )
        return _SynchronousRules(workers, self.wait_for)


class _SynchronousRules:
    def __init__(self, workers: set[int], wait_for: int | None) -> None:
        self._active = workers
        self._wait_for = wait_for
        self._delivered: set[int] = set()

    def may_start(self, worker: int) -> bool:
        return worker not in self._delivered

    def deliver(self, worker: int, computed_at: int, version: int) -> str:
        if computed_at < version:
            return LATE
        self._delivered.add(worker)
        return ""

    def due(self) -> list[int]:
        # Whoever has left cannot be waited for, but what it delivered counts.
        everyone = len(self._active | self._delivered)
        needed = everyone if self._wait_for is None else min(self._wait_for, everyone)
        if not self._delivered or len(self._delivered) < needed:
            return []
        round_, self._delivered = sorted(self._delivered), set()
        return round_

    def leave(self, worker: int) -> None:
        self._active.discard(worker)


@dataclass(frozen=True)
class Asynchronous:
    """Use every gradient at once, whatever has happened to the parameters since."""

    def __str__(self) -> str:
        return "asynchronous"

    def rules(self, workers: Iterable[int]) -> Rules:
        """Return this mode at work for these workers."""
        return _AsynchronousRules()


class _AsynchronousRules:
    def __init__(self) -> None:
        self._delivered: list[int] = []

    def may_start(self, worker: int) -> bool:
        return True

    def deliver(self, worker: int, computed_at: int, version: int) -> str:
        self._delivered.append(worker)
        return ""

    def due(self) -> list[int]:
        now, self._delivered = self._delivered, []
        return now

    def leave(self, worker: int) -> None:
        pass


@dataclass(frozen=True)
class BoundedStaleness:
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

    def rules(self, workers: Iterable[int]) -> Rules:
        """Return this mode at work for these workers."""
        return _BoundedRules(workers, self.bound)


class _BoundedRules(_AsynchronousRules):
    def __init__(self, workers: Iterable[int], bound: int) -> None:
        super().__init__()
        self._clocks = dict.fromkeys(workers, 0)
        self._bound = bound

    def may_start(self, worker: int) -> bool:
        return self._clocks[worker] - min(self._clocks.values()) <= self._bound

    def deliver(self, worker: int, computed_at: int, version: int) -> str:
        self._clocks[worker] += 1
        return super().deliver(worker, computed_at, version)

    def leave(self, worker: int) -> None:
        self._clocks.pop(worker, None)


Mode = Synchronous | Asynchronous | BoundedStaleness
