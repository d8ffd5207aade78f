"""Bucketed gradient sync, with and without overlap, on one to three real ranks."""

from __future__ import annotations

import pytest

from tests import ranks

MODULE = "tests.lessons.lesson_06.cases.bucketed_sync"
PARAMETERS = [
    pytest.param("openmpi", n, case, id=f"{n}-{case.removeprefix(f'{MODULE}.')}")
    for n in (1, 2, 3)
    for case in ranks.cases_of(MODULE, n)
]


@pytest.mark.timeout(300)  # the first case of a launch waits for all of them
@pytest.mark.parametrize(("mpi", "n", "case"), PARAMETERS)
def test_case(battery, mpi, n, case):
    battery(mpi, n, case)
