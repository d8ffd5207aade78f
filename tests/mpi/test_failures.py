"""What goes wrong ends in one clear error, in time, on 1 to 4 ranks."""

from __future__ import annotations

import pytest

from tests.mpi.launches import Case, Suite

WRONG_CALLS = Suite(("mismatches", "bad_input", "staging"))
ALL_SIZES = [("openmpi", 1), ("openmpi", 2), ("openmpi", 3), ("openmpi", 4), ("mpich", 2)]
# Freeing a rank that is stuck needs fault tolerance, which only Open MPI has.
MISSING_RANKS = Suite(("deadlines",))
SOME_SIZES = [("openmpi", 2), ("openmpi", 3)]


def name(value: object) -> str:
    return value.name.removeprefix("case_") if isinstance(value, Case) else str(value)


@pytest.mark.parametrize(("mpi", "size", "case"), WRONG_CALLS.parameters(ALL_SIZES), ids=name)
def test_wrong_call(mpi: str, size: int, case: Case) -> None:
    WRONG_CALLS.check(mpi, size, case)


@pytest.mark.parametrize(("mpi", "size", "case"), MISSING_RANKS.parameters(SOME_SIZES), ids=name)
def test_missing_rank(mpi: str, size: int, case: Case) -> None:
    MISSING_RANKS.check(mpi, size, case)
