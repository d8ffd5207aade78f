"""Emulated links, traffic, clocks and timelines: the price of communication, on real ranks."""

from __future__ import annotations

import pytest

from tests import ranks

PARAMETERS = [
    ranks.parameter("openmpi", n, case, id=f"{n}-{case.removeprefix('tests.torch_mpi4py.cases.')}")
    for n, modules in {
        2: ("emulated_link",),
        3: ("traffic",),
        4: ("emulated_link", "traffic"),
    }.items()
    for module in modules
    for case in ranks.cases_of(f"tests.torch_mpi4py.cases.{module}", n)
]


@pytest.mark.timeout(600)  # the first one waits for a start of ranks and their imports
@pytest.mark.parametrize(("mpi", "n", "case"), PARAMETERS)
def test_case(mpi, n, case, rank, size):
    ranks.run_case(case, rank, size)
