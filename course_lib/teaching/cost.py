"""Predicts the cost of a message and of five all-reduces, by the alpha-beta-gamma model.

A message of n bytes takes alpha + n beta seconds: alpha is the latency (seconds a message), beta
the inverse bandwidth (seconds a byte), gamma the time to reduce (seconds a byte of one operand).
Source: Hockney, "The communication challenge for MPP: Intel Paragon and Meiko CS-2", Parallel
Computing 20(3), 1994; with gamma: T2005, section 3.

An all-reduce is priced by the steps, the bytes sent and the bytes reduced on its longest path, for
n bytes on each of p ranks (m is the largest power of two that is at most p):

================== ======================= ================ ================ ==================
algorithm          alpha (messages)        beta (bytes)     gamma (bytes)    where from
================== ======================= ================ ================ ==================
naive              2(p-1)                  2(p-1) n         (p-1) n          counted at the root
tree               2 ceil(lg p)            2 ceil(lg p) n   ceil(lg p) n     reduce + broadcast
recursive doubling lg m                    lg m n           lg m n           T2005, section 4
ring               2(p-1)                  2(p-1)/p n       (p-1)/p n        PY2009
Rabenseifner       2 lg m                  2(m-1)/m n       (m-1)/m n        T2005, section 4
================== ======================= ================ ================ ==================

T2005: Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication Operations in MPICH",
IJHPCA 19(1), 2005. PY2009: Patarasuk, Yuan, "Bandwidth optimal all-reduce algorithms for clusters
of workstations", JPDC 69(2), 2009. The tree is binomial, with whole messages and no pipeline.

Where p is no power of two, recursive doubling and Rabenseifner fold p - m ranks into others first
and tell them the result last: + 2 alpha + 2 n beta + n gamma. (Rabenseifner's own fold, ICCS 2004,
sends halves of the buffer and is cheaper for long ones; the whole buffer is what is priced here.)
Links are full duplex, a rank sends to one rank and receives from one at a time, links do not
contend, and n is taken as divisible: real chunks differ by at most one element.

Seconds and bytes everywhere. It needs neither torch nor MPI, so that a notebook's own process can
use it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass


def bytes_per_second(gigabits_per_second: float) -> float:
    """Return bytes/s for the Gbit/s that network cards are sold by (1 Gbit = 10**9 bit)."""
    return positive("gigabits_per_second", gigabits_per_second) * 1e9 / 8


@dataclass(frozen=True)
class Link:
    """A link between two ranks, full duplex.

    Attributes:
        latency: alpha, seconds a message.
        bandwidth: 1/beta, bytes/s; infinite is allowed.
        reduce_rate: 1/gamma, bytes/s of one operand; infinite neglects the reduction.
    """

    latency: float
    bandwidth: float
    reduce_rate: float = math.inf

    def __post_init__(self) -> None:
        at_least("latency (seconds)", self.latency)
        for name in ("bandwidth", "reduce_rate"):
            if getattr(self, name) != math.inf:
                positive(f"{name} (bytes/s)", getattr(self, name))

    @property
    def alpha(self) -> float:
        """Seconds a message."""
        return self.latency

    @property
    def beta(self) -> float:
        """Seconds a byte."""
        return 1.0 / self.bandwidth

    @property
    def gamma(self) -> float:
        """Seconds a byte reduced."""
        return 1.0 / self.reduce_rate

    def seconds(self, size_bytes: float) -> float:
        """Return the seconds that one message of ``size_bytes`` takes."""
        return self.alpha + at_least("size_bytes", size_bytes) * self.beta

    def shared_by(self, flows: int) -> Link:
        """Return the link as seen by one of ``flows`` simultaneous messages.

        Each gets an equal part of the bandwidth; the latency stays.
        """
        return Link(self.latency, self.bandwidth / positive("flows", flows), self.reduce_rate)


@dataclass(frozen=True)
class Cost:
    """The cost of one all-reduce.

    The first three lie on the longest path and give the time; a traffic meter counts the totals
    over all ranks.

    Attributes:
        steps: messages one after another.
        bytes_sent: bytes one after another.
        bytes_reduced: bytes of one operand, reduced one after another.
        messages_total: messages of all ranks together.
        bytes_total: bytes sent by all ranks together.
    """

    steps: int
    bytes_sent: float
    bytes_reduced: float
    messages_total: int
    bytes_total: float

    def seconds(self, link: Link) -> float:
        """Return the time in seconds when every pair of ranks has such a link."""
        sent = self.steps * link.alpha + self.bytes_sent * link.beta
        return sent + self.bytes_reduced * link.gamma


def _naive(p: int, n: float) -> Cost:
    return Cost(2 * (p - 1), 2 * (p - 1) * n, (p - 1) * n, 2 * (p - 1), 2 * (p - 1) * n)


def _tree(p: int, n: float) -> Cost:
    depth = (p - 1).bit_length()
    return Cost(2 * depth, 2 * depth * n, depth * n, 2 * (p - 1), 2 * (p - 1) * n)


def _ring(p: int, n: float) -> Cost:
    part = (p - 1) / p * n
    return Cost(2 * (p - 1), 2 * part, part, 2 * p * (p - 1), 2 * (p - 1) * n)


def _recursive_doubling(p: int, n: float) -> Cost:
    depth, extra = _fold(p)
    m = p - extra
    plain = Cost(depth, depth * n, depth * n, m * depth, m * depth * n)
    return _with_fold(plain, extra, n)


def _rabenseifner(p: int, n: float) -> Cost:
    depth, extra = _fold(p)
    m = p - extra
    part = (m - 1) / m * n
    plain = Cost(2 * depth, 2 * part, part, 2 * m * depth, 2 * (m - 1) * n)
    return _with_fold(plain, extra, n)


def _fold(p: int) -> tuple[int, int]:
    depth = p.bit_length() - 1
    return depth, p - 2**depth


def _with_fold(plain: Cost, extra: int, n: float) -> Cost:
    if not extra:
        return plain
    return Cost(
        plain.steps + 2,
        plain.bytes_sent + 2 * n,
        plain.bytes_reduced + n,
        plain.messages_total + 2 * extra,
        plain.bytes_total + 2 * extra * n,
    )


ALGORITHMS: dict[str, Callable[[int, float], Cost]] = {
    "naive": _naive,
    "tree": _tree,
    "recursive doubling": _recursive_doubling,
    "ring": _ring,
    "Rabenseifner": _rabenseifner,
}


def cost(algorithm: str, ranks: int, size_bytes: float) -> Cost:
    """Return the cost of an all-reduce.

    Args:
        algorithm: one of ``ALGORITHMS``.
        ranks: p, at least 1. One rank has nothing to do.
        size_bytes: n, bytes of the buffer on each rank.
    """
    if algorithm not in ALGORITHMS:
        raise ValueError(f"algorithm must be one of {', '.join(ALGORITHMS)}, not {algorithm!r}")
    return ALGORITHMS[algorithm](count("ranks", ranks), at_least("size_bytes", size_bytes))


# ---- valid numbers ------------------------------------------------------------------------------


def at_least(name: str, value: float, least: float = 0.0) -> float:
    """Return ``value`` if it is finite and at least ``least``, else raise ValueError."""
    if not (math.isfinite(value) and value >= least):
        raise ValueError(f"{name} must be a finite number of at least {least:g}, not {value!r}")
    return float(value)


def positive(name: str, value: float) -> float:
    """Return ``value`` if it is finite and above 0, else raise ValueError."""
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name} must be a finite number above 0, not {value!r}")
    return float(value)


def count(name: str, value: int, least: int = 1) -> int:
    """Return ``value`` if it is a whole number of at least ``least``, else raise ValueError."""
    if not math.isfinite(value) or value != int(value) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, not {value!r}")
    return int(value)
