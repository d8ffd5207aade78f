"""Price each library collective by one named algorithm on equal links.

For p ranks, a latency of alpha seconds and beta seconds a byte; every rank sends one message and
receives one at a time. n is what one rank hands over, m the largest part for or of one rank:

================== ======================================== =============================
collective         algorithm                                seconds
================== ======================================== =============================
barrier            dissemination                            ceil(lg p) alpha
broadcast, reduce  binomial tree, whole messages            ceil(lg p) (alpha + n beta)
all_reduce, scan   the cheaper of recursive doubling (with  floor(lg p) (alpha + n beta), and
                   folding, if p is no power of two)        2 (alpha + n beta) more if folded
                   and ring (all_reduce only)               2 (p-1) (alpha + n/p beta)
all_gather         ring                                     (p-1) (alpha + m beta)
reduce_scatter     ring                                     (p-1) (alpha + m beta)
gather, scatter    binomial tree                            ceil(lg p) alpha + (p-1) m beta
all_to_all         pairwise exchange                        (p-1) (alpha + m beta)
================== ======================================== =============================

Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication Operations in MPICH",
IJHPCA 19(1), 2005, describe them all but the dissemination barrier (Hensgen, Finkel and Manber,
"Two algorithms for barrier synchronization", 1988). The time for adding up is not emulated: the
processor really spends it.
"""

from __future__ import annotations

COLLECTIVES = (
    "barrier",
    "broadcast",
    "reduce",
    "all_reduce",
    "scan",
    "all_gather",
    "reduce_scatter",
    "gather",
    "scatter",
    "all_to_all",
)


def collective_seconds(
    name: str, ranks: int, size_bytes: float, alpha: float, beta: float
) -> float:
    """Return what collective ``name`` takes on ``ranks`` ranks (see the table above).

    Args:
        name: one of ``COLLECTIVES``.
        ranks: p.
        size_bytes: n for broadcast, reduce, all_reduce and scan, otherwise m.
        alpha: seconds a message.
        beta: seconds a byte.
    """
    if name not in COLLECTIVES:
        raise ValueError(f"collective must be one of {', '.join(COLLECTIVES)}, not {name!r}")
    if ranks == 1:
        return 0.0
    up, down = (ranks - 1).bit_length(), ranks.bit_length() - 1
    message = alpha + size_bytes * beta
    if name == "barrier":
        return up * alpha
    if name in ("broadcast", "reduce"):
        return up * message
    if name in ("all_reduce", "scan"):
        doubling = (down + (2 if ranks != 2**down else 0)) * message
        ring = 2 * (ranks - 1) * (alpha + size_bytes / ranks * beta)
        return doubling if name == "scan" else min(doubling, ring)
    if name in ("gather", "scatter"):
        return up * alpha + (ranks - 1) * size_bytes * beta
    return (ranks - 1) * message
