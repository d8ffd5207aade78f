"""Strategies, device and stop-watch, on real ranks."""

from __future__ import annotations

import pytest

from tests import ranks

PARAMETERS = [
    pytest.param("openmpi", 4, case, id=case.partition(":")[2])
    for case in ranks.cases_of("tests.lessons.lesson_14.cases.training")
]


@pytest.mark.timeout(200)  # the first case waits for all of them
@pytest.mark.parametrize(("mpi", "n", "case"), PARAMETERS)
def test_case(battery, mpi, n, case):
    battery(mpi, n, case)
