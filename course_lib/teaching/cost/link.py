"""A message of n bytes takes alpha + n * beta seconds.

alpha is the latency (seconds a message), beta the inverse bandwidth (seconds a byte), gamma the
time to reduce (seconds a byte of one operand). Source: Hockney, "The communication challenge for
MPP: Intel Paragon and Meiko CS-2", Parallel Computing 20(3), 1994; with gamma: Thakur,
Rabenseifner and Gropp, "Optimization of Collective Communication Operations in MPICH", IJHPCA
19(1), 2005, section 3.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from .checked import at_least, positive

__all__ = ["Link", "bytes_per_second"]


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

    @property
    def half_bandwidth_bytes(self) -> float:
        """Bytes whose message reaches half the bandwidth (Hockney's n_1/2 = alpha/beta)."""
        return math.inf if self.beta == 0 and self.alpha else self.alpha * self.bandwidth

    def seconds(self, size_bytes: float) -> float:
        """Return the seconds that one message of ``size_bytes`` takes."""
        return self.alpha + at_least("size_bytes", size_bytes) * self.beta

    def shared_by(self, flows: int) -> Link:
        """Return the link as one of ``flows`` messages sees it that pass through it at once.

        Each gets an equal part of the bandwidth; the latency stays.
        """
        return Link(self.latency, self.bandwidth / positive("flows", flows), self.reduce_rate)
