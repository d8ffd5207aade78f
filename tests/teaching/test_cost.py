"""The formulas against a replay of each algorithm's messages on the clocks of all ranks."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest

from course_lib.teaching.cost import (
    ALGORITHMS,
    Link,
    bytes_per_second,
    cost,
)

# Powers of two: sums and products are exact, so that times compare with a tiny tolerance only.
LINK = Link(latency=8.0, bandwidth=0.5, reduce_rate=4.0)
SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 17)


def test_cost_imports_neither_torch_nor_mpi():
    code = (
        "import sys, course_lib.teaching.cost\n"
        "sys.exit(bool({'torch', 'mpi4py', 'matplotlib'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=200).returncode == 0


# A round is a list of (source, dest, bytes, whether the receiver reduces); messages of one round
# run at the same time, a rank starts a round when its own last one is over.


def naive(p, n):
    yield from ([(r, 0, n, True)] for r in range(1, p))
    yield from ([(0, r, n, False)] for r in range(1, p))


def tree(p, n):
    distances = [2**k for k in range((p - 1).bit_length())]
    for d in distances:
        yield [(r, r - d, n, True) for r in range(d, p, 2 * d)]
    for d in reversed(distances):
        yield [(r - d, r, n, False) for r in range(d, p, 2 * d)]


def ring(p, n):
    for step in range(2 * (p - 1)):
        yield [(r, (r + 1) % p, n / p, step < p - 1) for r in range(p)]


def folded(p, n, inner):
    m = 2 ** (p.bit_length() - 1)
    yield [(r, r - m, n, True) for r in range(m, p)]
    yield from inner(m, n)
    yield [(r - m, r, n, False) for r in range(m, p)]


def doubling(m, n):
    for d in (2**k for k in range(m.bit_length() - 1)):
        yield [(r, r ^ d, n, True) for r in range(m)]


def halving_and_doubling(m, n):
    distances = [2**k for k in range(m.bit_length() - 1)]
    for k, d in enumerate(reversed(distances), start=1):
        yield [(r, r ^ d, n / 2**k, True) for r in range(m)]
    for k, d in zip(range(len(distances), 0, -1), distances, strict=True):
        yield [(r, r ^ d, n / 2**k, False) for r in range(m)]


SCHEDULES = {
    "naive": naive,
    "tree": tree,
    "ring": ring,
    "recursive doubling": lambda p, n: folded(p, n, doubling),
    "Rabenseifner": lambda p, n: folded(p, n, halving_and_doubling),
}


def replay(rounds, p, link):
    clocks, messages, total = [0.0] * p, 0, 0.0
    for messages_now in rounds:
        after = list(clocks)
        for source, dest, size, reduces in messages_now:
            end = max(clocks[source], clocks[dest]) + link.seconds(size)
            after[source] = max(after[source], end)
            after[dest] = max(after[dest], end + size * link.gamma * reduces)
            messages, total = messages + 1, total + size
        clocks = after
    return max(clocks), messages, total


def test_every_algorithm_is_replayed():
    assert set(SCHEDULES) == set(ALGORITHMS)


@pytest.mark.parametrize("p", SIZES)
@pytest.mark.parametrize("name", SCHEDULES)
def test_time_messages_and_bytes_equal_a_replay(name, p):
    n = 5040.0 * 4
    seconds, messages, total = replay(SCHEDULES[name](p, n), p, LINK)
    price = cost(name, p, n)
    assert price.seconds(LINK) == pytest.approx(seconds, rel=1e-12)
    assert price.messages_total == messages
    assert price.bytes_total == pytest.approx(total, rel=1e-12)


def test_ring_of_four_equals_hand_calculation():
    # Six steps of a quarter of 400 bytes; three of them reduce.
    price = cost("ring", 4, 400)
    assert (price.steps, price.bytes_sent, price.bytes_reduced) == (6, 600, 300)
    assert price.seconds(LINK) == 6 * 8 + 600 / 0.5 + 300 / 4


@pytest.mark.parametrize("name", ALGORITHMS)
def test_cost_is_zero_on_one_rank_and_never_falls(name):
    assert cost(name, 1, 1000).seconds(LINK) == 0
    powers = [cost(name, 2**k, 1000).seconds(LINK) for k in range(12)]
    assert powers == sorted(powers)


@pytest.mark.parametrize("k", range(1, 12))
def test_ring_and_rabenseifner_send_the_same_bytes(k):
    ring_, other = (cost(name, 2**k, 1e6) for name in ("ring", "Rabenseifner"))
    assert ring_.bytes_sent == other.bytes_sent
    assert ring_.bytes_reduced == other.bytes_reduced
    assert ring_.bytes_total == other.bytes_total
    assert ring_.bytes_sent < 2e6


def test_no_algorithm_sends_less_than_the_lower_bound():
    # Patarasuk and Yuan 2009: no all-reduce can send less than 2(p-1)/p n a rank.
    for name in ALGORITHMS:
        for p in (2, 3, 8, 13):
            if name == "recursive doubling" and p == 2:
                continue  # Exchanges whole buffers once: n, which is the bound.
            assert cost(name, p, 1.0).bytes_sent >= 2 * (p - 1) / p - 1e-12, (name, p)


def test_error_names_a_bad_argument():
    with pytest.raises(ValueError, match="algorithm must be one of naive"):
        cost("star", 4, 1)
    for ranks in (0, -1, 2.5, math.nan, math.inf):
        with pytest.raises(ValueError, match="ranks must be"):
            cost("ring", ranks, 1)
    for size in (-1, math.nan, math.inf):
        with pytest.raises(ValueError, match="size_bytes"):
            cost("ring", 4, size)
    for wrong in ((-1e-6, 1e9), (1e-6, 0), (1e-6, -1), (math.nan, 1)):
        with pytest.raises(ValueError, match="must be a finite number"):
            Link(*wrong)


def test_link_equals_hand_calculation():
    link = Link(2e-6, bytes_per_second(8))
    assert link.bandwidth == 1e9
    assert link.seconds(1000) == pytest.approx(3e-6)
    assert link.shared_by(4).seconds(1000) == pytest.approx(6e-6)
    assert Link(1.0, math.inf).seconds(1000) == 1.0
