"""A dozen failures one after another leave a cluster that trains, and nothing else.

The short form of :mod:`tests.cluster.soak`, which says what is counted.
"""

from __future__ import annotations

import pytest

from .soak import GROWTH, MEMORY, Soak, grown, table

pytestmark = pytest.mark.timeout(300)  # 34 s on two quiet cores

FIRST_LIFE = (
    *("limit", "error", "mismatch", "stop button", "kernel restart", "limit"),
    "dies in a collective",
)
SECOND_LIFE = ("stop button", "error", "syntax error", "limit", "stop button")


def test_a_dozen_failures_leave_nothing(traces):
    soak = Soak(traces, seed=13, warm_up=2)
    try:
        for kind in (*FIRST_LIFE, *SECOND_LIFE):
            soak.fail(kind)
        soak.end_life()
    finally:
        soak.kernel.shut_down()
    print(table(soak))
    assert soak.restarts == 1
    assert len(soak.lives) == 2
    for _, before, after in soak.lives:
        assert grown(before, after) == []
        assert after[MEMORY] < (1 + GROWTH) * before[MEMORY]
    traces.gone_within(60)
