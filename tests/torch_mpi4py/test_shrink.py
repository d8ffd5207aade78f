"""After a death the others go on: groups, the world, training; and what an MPI cannot, it says."""

from __future__ import annotations

import pytest

from tests import ranks

pytestmark = pytest.mark.timeout(250)


@pytest.fixture(scope="module")
def last_one() -> ranks.Run:
    """Four ranks of which three die, one after the other."""
    return ranks.run(4, "-m", "tests.torch_mpi4py.dying", limit=200)


@pytest.mark.parametrize(
    ("part", "survivors"),
    [
        ("rank 0 died in a collective", 3),
        ("communication made anew", 3),
        ("a death in the middle of a backward", 2),
        ("a death while another waits", 1),
    ],
)
def test_survivors_go_on(last_one: ranks.Run, part: str, survivors: int) -> None:
    said = [f"rank {rank} of {survivors} passed: {part}" for rank in range(survivors)]
    assert sorted(said) == sorted(line for line in last_one.output.splitlines() if part in line), (
        last_one.output
    )


def test_last_survivor_keeps_its_exit_status(last_one: ranks.Run) -> None:
    assert "Traceback" not in last_one.output
    assert last_one.returncode == 7, last_one.output
    assert not last_one.left_behind


WITHOUT_FAULT_TOLERANCE = """
import torch_mpi4py as mpi
try:
    mpi.shrink()
except mpi.CommunicationError as error:
    print("refused:", error, flush=True)
"""


def test_shrink_without_fault_tolerance_raises_with_advice() -> None:
    done = ranks.run(1, "-c", WITHOUT_FAULT_TOLERANCE, limit=120, ulfm=False)
    assert done.returncode == 0, done.output
    assert "refused: shrink: this MPI has no fault tolerance" in done.output
    assert "Start the program again" in done.output
