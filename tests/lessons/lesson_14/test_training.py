"""Strategies, device and stop-watch, on real ranks."""

from __future__ import annotations

import pytest

from tests import ranks

PARAMETERS = [
    ranks.parameter("openmpi", 4, case, id=case.partition(":")[2])
    for case in ranks.cases_of("tests.lessons.lesson_14.cases.training")
]


@pytest.mark.timeout(600)  # the first one waits for a start of ranks and their imports
@pytest.mark.parametrize(("mpi", "n", "case"), PARAMETERS)
def test_case(mpi, n, case, rank, size):
    ranks.run_case(case, rank, size)
