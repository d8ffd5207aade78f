"""What lesson 06 predicts of slow networks holds on one whose bandwidth the system limits."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from torch_mpi4py import launch

from tests.hosts.test_programs import python
from tests.hosts.testbed import BedClient

WITHIN = 0.2


@pytest.mark.parametrize("mbit_per_s", [1000, 100])
def test_lesson_06_predicts_the_step(root: Path, bed: BedClient, mbit_per_s: int) -> None:
    program = ("--host", "h1:1,h2:1", sys.executable, "-m", "tests.hosts.slow_network")
    for host in ("h1", "h2"):
        bed.limit(host, mbit_per_s)
    try:
        found = python(root, *launch.mpiexec(2, *program))
    finally:
        for host in ("h1", "h2"):
            bed.limit(host, None)
    # Headers take 4 to 5% of what the limit counts.
    assert found["bandwidth"] == pytest.approx(mbit_per_s * 1e6 / 8, rel=WITHIN)
    for name in ("sync", "speed_up"):
        predicted, measured = found[name]
        assert measured == pytest.approx(predicted, rel=WITHIN), f"{name}: {found}"
