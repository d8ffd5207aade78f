"""What checks stand on, on real ranks: the log of distributed calls, smaller groups."""

from __future__ import annotations

import pytest

from tests import ranks

PARAMETERS = [
    pytest.param("openmpi", 3, case, id=case.partition(":")[2])
    for module in ("distributed_log", "rank_groups")
    for case in ranks.cases_of(f"tests.teaching.cases.{module}")
]


@pytest.mark.timeout(200)  # the first case waits for all of them
@pytest.mark.parametrize(("mpi", "n", "case"), PARAMETERS)
def test_case(battery, mpi, n, case):
    battery(mpi, n, case)
