"""The same random programs in every run, those that found a defect once, and planted defects."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.torch_mpi4py.fuzz.compare import Jobs
from tests.torch_mpi4py.fuzz.failures import failing_programs
from tests.torch_mpi4py.fuzz.kept import FAILING, KEPT
from tests.torch_mpi4py.fuzz.search import (
    FoundError,
    described,
    in_a_job_of_its_own,
    on_jobs,
    search,
)
from tests.torch_mpi4py.fuzz.strategy import programs

# Together about a minute on two quiet cores.
EXAMPLES = 100
FAILING_EXAMPLES = 4
PLANTED_EXAMPLES = 200


@pytest.fixture(scope="module")
def jobs() -> Iterator[Jobs]:
    """Return jobs of ranks that the tests here share."""
    shared = Jobs()
    yield shared
    shared.stop()


@pytest.mark.timeout(900)
def test_random_programs_give_what_the_model_and_gloo_give(jobs: Jobs) -> None:
    assert search(programs(), on_jobs(jobs), EXAMPLES) >= EXAMPLES


@pytest.mark.timeout(900)
def test_all_ranks_end_whatever_befalls_one_and_the_others_go_on() -> None:
    tried = search(failing_programs(), in_a_job_of_its_own, FAILING_EXAMPLES)
    assert tried >= FAILING_EXAMPLES


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", KEPT)
def test_a_kept_program_goes_well(jobs: Jobs, name: str) -> None:
    finding = jobs.check(KEPT[name])
    assert finding is None, described(KEPT[name], finding)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", FAILING)
def test_a_kept_program_with_a_failure_goes_well(name: str) -> None:
    finding = in_a_job_of_its_own(FAILING[name], None)
    assert finding is None, described(FAILING[name], finding)


@pytest.mark.timeout(900)
def test_a_planted_defect_is_found_and_shrunk() -> None:
    """More of them: ``make fuzz ARGS=--planted``."""
    planted = Jobs(("order_of_strided_outputs",))
    try:
        with pytest.raises(FoundError) as found:
            search(programs((2,)), on_jobs(planted, ("mpi4py",)), PLANTED_EXAMPLES)
    finally:
        planted.stop()
    assert len(found.value.program.steps) <= 2  # the gather, and maybe a wait for it
    assert "values of Collective all_gather" in found.value.finding.signature
