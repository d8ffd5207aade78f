"""What communication will cost can be written down before it is measured.

====================== =========================================================================
:mod:`.link`           alpha, beta, gamma of a link
:mod:`.fit`            the three from measured points, with intervals
:mod:`.all_reduce`     steps, bytes and seconds of five algorithms, any number of ranks; crossovers
:mod:`.hierarchy`      nodes: inside and between
:mod:`.epoch`          T_epoch, when R ranks pay, strong and weak scaling
:mod:`.laws`           Amdahl, Gustafson, Karp-Flatt
:mod:`.overlap`        buckets that travel during backward
:mod:`.stragglers`     the slowest of R ranks
:mod:`.runs`           published runs: hardware, sources, assumptions
:mod:`.published`      their efficiencies reproduced, with the error
:mod:`.gains`          DDP's published overlap gains: implied and predicted, with the error
:mod:`.far`            10**4 and 10**5 ranks: what breaks first
:mod:`.network`        a modelled network whose links are shared, on simpy's clock
:mod:`.simulated`      the all-reduces' own schedules on it: where the formulas are wrong
====================== =========================================================================

Seconds, bytes and samples everywhere; NumPy is all it needs, so a notebook's own process can use
it. The last two need simpy and torch too, and are imported by their own names.
"""

from .all_reduce import ALGORITHMS, Cost, cheapest, cost, crossover_bytes
from .epoch import (
    Scaling,
    efficiency,
    epoch_seconds,
    fewest_ranks_that_pay,
    pays,
    speed_up,
    strong_scaling,
    weak_scaling,
)
from .far import FAILURES_PER_RANK_HOUR, Far, Job, extrapolate, extrapolated_table, limits
from .fit import Fit, fit_linear, fit_link
from .gains import GAINS, Gain, efficiency_bounds, gains_table, predicted_gain
from .hierarchy import Hierarchy
from .laws import amdahl, amdahl_limit, gustafson, serial_fraction
from .link import Link, bytes_per_second
from .overlap import Backward, Bucket, backward_with_buckets, best_bucket, largest_overlap_gain
from .published import (
    Reproduced,
    assumptions_table,
    exposed_fraction,
    implied_sync_over_backward,
    reproduce,
    reproduced_table,
)
from .runs import ASSUMPTIONS, RUNS, SOURCES, Assumption, Run
from .stragglers import (
    expected_slowest_exponential,
    expected_slowest_normal,
    expected_slowest_of,
    slowdown,
)

__all__ = [
    "ALGORITHMS",
    "ASSUMPTIONS",
    "FAILURES_PER_RANK_HOUR",
    "GAINS",
    "RUNS",
    "SOURCES",
    "Assumption",
    "Backward",
    "Bucket",
    "Cost",
    "Far",
    "Fit",
    "Gain",
    "Hierarchy",
    "Job",
    "Link",
    "Reproduced",
    "Run",
    "Scaling",
    "amdahl",
    "amdahl_limit",
    "assumptions_table",
    "backward_with_buckets",
    "best_bucket",
    "bytes_per_second",
    "cheapest",
    "cost",
    "crossover_bytes",
    "efficiency",
    "efficiency_bounds",
    "epoch_seconds",
    "expected_slowest_exponential",
    "expected_slowest_normal",
    "expected_slowest_of",
    "exposed_fraction",
    "extrapolate",
    "extrapolated_table",
    "fewest_ranks_that_pay",
    "fit_linear",
    "fit_link",
    "gains_table",
    "gustafson",
    "implied_sync_over_backward",
    "largest_overlap_gain",
    "limits",
    "pays",
    "predicted_gain",
    "reproduce",
    "reproduced_table",
    "serial_fraction",
    "slowdown",
    "speed_up",
    "strong_scaling",
    "weak_scaling",
]
