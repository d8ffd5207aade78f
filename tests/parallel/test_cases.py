"""What ranks do together, on one to four real ranks: every case is a test of its own."""

from __future__ import annotations

import pytest

from tests import ranks

SIZES = {
    "initial_weights": (1, 2, 3, 4),
    "gradient_sync": (1, 2, 3, 4),
    "invariants": (1, 2, 3, 4),
    "batch_norm": (1, 2, 3, 4),
    "survivors": (1, 2, 3, 4),
    "all_reduces": (1, 2, 3, 4),
    "bucketed_sync": (1, 2, 3),
    "parameter_server": (2, 3, 4),
}
PARAMETERS = [
    pytest.param("openmpi", n, case, id=f"{n}-{case.removeprefix('tests.parallel.cases.')}")
    for n in (1, 2, 3, 4)
    for module, sizes in SIZES.items()
    if n in sizes
    for case in ranks.cases_of(f"tests.parallel.cases.{module}", n)
]


@pytest.mark.timeout(600)  # the first case of a launch waits for all of them
@pytest.mark.parametrize(("mpi", "n", "case"), PARAMETERS)
def test_case(battery, mpi, n, case):
    battery(mpi, n, case)
