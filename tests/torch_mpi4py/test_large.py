"""Tensors of more than 2**31 elements, under one MPI after the other.

Two ranks take up to 12 GB for them. When both MPIs' ranks had them at once, beside 18 other ranks,
24 GB did not leave enough for the page cache, and imports took minutes. So these cases have a file
of their own: one process runs it, and runs it first.
"""

from __future__ import annotations

import pytest

from tests import ranks

PARAMETERS = [
    ranks.parameter(mpi, 2, case, id=f"{mpi}-2-{case.rpartition(':')[2]}")
    for mpi in ("openmpi", "mpich")
    for case in ranks.cases_of("tests.torch_mpi4py.cases.large", 2, mpi)
]


@pytest.mark.timeout(600)  # the first one waits for a start of ranks and their imports
@pytest.mark.parametrize(("mpi", "n", "case"), PARAMETERS)
def test_case(mpi, n, case, rank, size):
    ranks.run_case(case, rank, size)
