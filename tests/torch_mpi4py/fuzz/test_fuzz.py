"""The same random programs in every run, those that found a defect once, and planted defects."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.torch_mpi4py.fuzz.compare import Jobs
from tests.torch_mpi4py.fuzz.kept import KEPT
from tests.torch_mpi4py.fuzz.search import FoundError, described, search

EXAMPLES = 250  # about a minute on two quiet cores


@pytest.fixture(scope="module")
def jobs() -> Iterator[Jobs]:
    """Return jobs of ranks that the tests here share."""
    shared = Jobs()
    yield shared
    shared.stop()


@pytest.mark.timeout(900)
def test_random_programs_give_what_the_model_and_gloo_give(jobs: Jobs) -> None:
    assert search(jobs, EXAMPLES) >= EXAMPLES


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", KEPT)
def test_a_kept_program_goes_well(jobs: Jobs, name: str) -> None:
    finding = jobs.check(KEPT[name])
    assert finding is None, described(KEPT[name], finding)


@pytest.mark.timeout(600)
def test_a_planted_defect_is_found_and_shrunk() -> None:
    """More of them: ``python -m tests.torch_mpi4py.fuzz --planted``."""
    planted = Jobs(("order_of_strided_outputs",))
    try:
        with pytest.raises(FoundError) as found:
            search(planted, EXAMPLES, sizes=(2,), backends=("mpi4py",))
    finally:
        planted.stop()
    assert len(found.value.program.steps) <= 3
    assert "values of Collective all_gather" in found.value.finding.signature
