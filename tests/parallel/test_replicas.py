"""Initial weights, gradient sync, invariants and batch norm on one to four real ranks."""

from __future__ import annotations

import pytest

from tests import ranks

MODULES = ("initial_weights", "gradient_sync", "invariants", "batch_norm", "survivors")
PARAMETERS = [
    pytest.param("openmpi", n, case, id=f"{n}-{case.removeprefix('tests.parallel.cases.')}")
    for n in (1, 2, 3, 4)
    for module in MODULES
    for case in ranks.cases_of(f"tests.parallel.cases.{module}", n)
]


@pytest.mark.timeout(300)  # the first case of a launch waits for all of them
@pytest.mark.parametrize(("mpi", "n", "case"), PARAMETERS)
def test_case(battery, mpi, n, case):
    battery(mpi, n, case)
