"""The runner of the battery tells passed, failed and hung apart, by rank."""

from __future__ import annotations

import time

from tests import ranks

BROKEN = "tests.torch_mpi4py.cases.broken"


def test_each_case_has_its_own_outcome_and_a_hang_is_named():
    outcomes = ranks.Battery(2, ranks.cases_of(BROKEN)).outcomes()
    statuses = {name.partition(":")[2]: outcome.status for name, outcome in outcomes.items()}
    assert statuses == {
        "case_passes": "passed",
        "case_fails_on_rank_1": "failed",
        "case_hangs_on_rank_1": "hung",
        "case_after_the_hang": "passed",
    }
    failed = outcomes[f"{BROKEN}:case_fails_on_rank_1"].story
    assert "wrong on rank one" in failed
    assert "rank 1 of 2" in failed
    hung = outcomes[f"{BROKEN}:case_hangs_on_rank_1"].story
    assert "rank 1 of 2 (openmpi) did not finish" in hung
    assert "case_hangs_on_rank_1" in hung  # the stack of the stuck rank


def test_a_run_past_its_limit_is_killed_with_its_ranks():
    start = time.monotonic()
    ended = ranks.run(
        2, "-c", "import threading; threading.Event().wait()", limit=3, leave_within=2
    )
    assert ended.returncode is None
    assert time.monotonic() - start < 60  # it would not end by itself
