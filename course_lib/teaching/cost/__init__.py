"""What an all-reduce will cost, written down before it is measured.

:mod:`.link` has alpha, beta and gamma of a link, :mod:`.all_reduce` the steps, bytes and seconds of
five algorithms for any number of ranks. Seconds and bytes everywhere; it needs neither torch nor
MPI, so a notebook's own process can use it.
"""

from .all_reduce import ALGORITHMS, Cost, cheapest, cost, crossover_bytes
from .link import Link, bytes_per_second

__all__ = [
    "ALGORITHMS",
    "Cost",
    "Link",
    "bytes_per_second",
    "cheapest",
    "cost",
    "crossover_bytes",
]
