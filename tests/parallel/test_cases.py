"""What ranks do together, on one to four real ranks: every case is a test of its own."""

from __future__ import annotations

import pytest

from tests import ranks

SIZES = {
    "tests.parallel.cases.initial_weights": (1, 2, 3, 4),
    "tests.parallel.cases.gradient_sync": (1, 2, 3, 4),
    "tests.parallel.cases.invariants": (1, 2, 3, 4),
    "tests.parallel.cases.batch_norm": (1, 2, 3, 4),
    "tests.lessons.lesson_12.cases.survivors": (1, 2, 3, 4),
    "tests.parallel.cases.all_reduces": (1, 2, 3, 4),
    "tests.parallel.cases.bucketed_sync": (1, 2, 3),
    "tests.parallel.cases.parameter_server": (2, 3, 4),
}
PARAMETERS = [
    ranks.parameter("openmpi", n, case, id=f"{n}-{case.rpartition('.cases.')[2]}")
    for n in (1, 2, 3, 4)
    for module, sizes in SIZES.items()
    if n in sizes
    for case in ranks.cases_of(module, n)
]


@pytest.mark.timeout(600)  # the first one waits for a start of ranks and their imports
@pytest.mark.parametrize(("mpi", "n", "case"), PARAMETERS)
def test_case(mpi, n, case, rank, size):
    ranks.run_case(case, rank, size)
