"""What goes wrong ends in one clear error, in time, on 1 to 4 ranks."""

from __future__ import annotations

import pytest

from tests import ranks

WRONG_CALLS = ("mismatches", "bad_input", "staging")
# Freeing a rank that is stuck needs fault tolerance, which only Open MPI has.
MISSING_RANKS = ("deadlines", "missing")
LAUNCHES = {
    ("openmpi", 1): WRONG_CALLS,
    ("openmpi", 2): WRONG_CALLS + MISSING_RANKS,
    ("openmpi", 3): WRONG_CALLS + MISSING_RANKS,
    ("openmpi", 4): WRONG_CALLS,
    ("mpich", 2): WRONG_CALLS,
}
PARAMETERS = [
    ranks.parameter(
        mpi, n, case, id=f"{mpi}-{n}-{case.removeprefix('tests.torch_mpi4py.failures.')}"
    )
    for (mpi, n), modules in LAUNCHES.items()
    for module in modules
    for case in ranks.cases_of(f"tests.torch_mpi4py.failures.{module}", n, mpi)
]


@pytest.mark.timeout(600)  # the first one waits for a start of ranks and their imports
@pytest.mark.parametrize(("mpi", "n", "case"), PARAMETERS)
def test_case(mpi, n, case, rank, size):
    ranks.run_case(case, rank, size)
