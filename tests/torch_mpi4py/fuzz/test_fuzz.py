"""The same random programs in every run, those that found a defect once, and planted defects."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from tests.torch_mpi4py.fuzz.compare import Jobs, differences
from tests.torch_mpi4py.fuzz.failures import failing_programs
from tests.torch_mpi4py.fuzz.jobs import Job
from tests.torch_mpi4py.fuzz.kept import FAILING, KEPT
from tests.torch_mpi4py.fuzz.program import Collective, Program, Slot
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
def test_random_programs_match_the_model_and_gloo(jobs: Jobs) -> None:
    assert search(programs(), on_jobs(jobs), EXAMPLES) >= EXAMPLES


@pytest.mark.timeout(900)
def test_random_programs_with_a_failing_rank_end() -> None:
    tried = search(failing_programs(), in_a_job_of_its_own, FAILING_EXAMPLES)
    assert tried >= FAILING_EXAMPLES


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", KEPT)
def test_kept_program_passes(jobs: Jobs, name: str) -> None:
    finding = jobs.check(KEPT[name])
    assert finding is None, described(KEPT[name], finding)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", FAILING)
def test_kept_program_with_a_failing_rank_passes(name: str) -> None:
    finding = in_a_job_of_its_own(FAILING[name], None)
    assert finding is None, described(FAILING[name], finding)


@pytest.mark.timeout(900)
def test_planted_defect_is_found_and_shrunk() -> None:
    """More of them: ``make fuzz ARGS=--planted``."""
    planted = Jobs(("order_of_strided_outputs",))
    try:
        with pytest.raises(FoundError) as found:
            search(programs((2,)), on_jobs(planted, ("mpi4py",)), PLANTED_EXAMPLES)
    finally:
        planted.stop()
    assert len(found.value.program.steps) <= 2  # the gather, and maybe a wait for it
    assert "values of Collective all_gather" in found.value.finding.signature


class StalledJob(Job):
    """Gloo's ranks, of which one is stopped right after each of the first starts."""

    stalls = 0

    def start(self) -> None:
        super().start()
        if self.stalls:
            self.stalls -= 1
            os.kill(self.pids[1], signal.SIGSTOP)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("stalls", "signature"), [(1, None), (2, "gloo: hung")])
def test_gloo_is_rerun_when_only_gloo_stalled(stalls: int, signature: str | None) -> None:
    sum_of_two = Program(2, (Slot(),), ((0, 1),), (Collective("all_reduce"),))
    jobs = Jobs(seconds=10)
    stalled = StalledJob("gloo", 2)
    stalled.stalls = stalls
    jobs.jobs["gloo", 2] = stalled
    try:
        finding = jobs.check(sum_of_two)
    finally:
        jobs.stop()
    assert (finding and finding.signature) == signature, finding
    assert jobs.stalled_once == (1 if stalls == 1 else 0)
    assert stalled.stalls == 0


TIMED_OUT = "RuntimeError: Application timeout caused pair closure"
CLOSED = "RuntimeError: [pair.cc:553] Connection closed by peer [127.0.0.1]:2765."


@pytest.mark.parametrize(
    ("backend", "errors", "stalled"),
    [
        ("gloo", (TIMED_OUT, CLOSED), True),
        ("gloo", ("", "RuntimeError: Operation timed out!"), True),
        ("gloo", (CLOSED, ""), False),
        ("gloo", (TIMED_OUT, "ValueError: invalid tensor size"), False),
        ("mpi4py", (TIMED_OUT, CLOSED), False),
    ],
)
def test_gloo_counts_as_stalled_with_only_timeout_errors(
    backend: str, errors: tuple[str, str], stalled: bool
) -> None:
    program = Program(2, (Slot(),), ((0, 1),), (Collective("all_reduce"),))
    answers = [{"seen": {}, "error": error} for error in errors]
    finding = differences(backend, program, answers, [{}, {}])
    assert finding is not None
    assert finding.stalled == stalled
