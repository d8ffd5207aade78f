"""Accelerate, Lightning and torchmetrics run as on gloo: ``make test-others`` installs them."""

from __future__ import annotations

import importlib.util

import pytest

from tests import ranks

CASES = "tests.torch_mpi4py.cases.other_libraries"
MISSING = [
    name
    for name in ("accelerate", "lightning", "torchmetrics")
    if importlib.util.find_spec(name) is None
]
PARAMETERS = [
    ranks.parameter(mpi, n, case, id=f"{mpi}-{n}-{case.partition(':')[2]}")
    for mpi, n in (("openmpi", 1), ("openmpi", 2), ("openmpi", 3), ("openmpi", 4), ("mpich", 2))
    for case in ranks.cases_of(CASES, n, mpi)
]


@pytest.mark.skipif(bool(MISSING), reason=f"{MISSING} are not installed: make test-others")
@pytest.mark.timeout(600)  # the first one waits for a start of ranks and their imports
@pytest.mark.parametrize(("mpi", "n", "case"), PARAMETERS)
def test_case(mpi, n, case, rank, size):
    ranks.run_case(case, rank, size)
