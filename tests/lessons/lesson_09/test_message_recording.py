"""Every message is written down, on real ranks."""

from __future__ import annotations

import pytest

from tests import ranks

PARAMETERS = [
    pytest.param("openmpi", 3, case, id=case.partition(":")[2])
    for case in ranks.cases_of("tests.lessons.lesson_09.cases.message_recording")
]


@pytest.mark.timeout(200)  # the first case waits for all of them
@pytest.mark.parametrize(("mpi", "n", "case"), PARAMETERS)
def test_case(battery, mpi, n, case):
    battery(mpi, n, case)
