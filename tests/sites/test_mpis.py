"""Each MPI of the backend's README: a good part of the battery, and what its table says of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import ranks
from tests.sites.conftest import library_of
from tests.sites.mpis import MPIS

MODULES = (
    *("cases.collectives", "cases.point_to_point", "cases.groups", "cases.data_parallel"),
    "failures.mismatches",
)
BY_MAKE_TEST = ("openmpi", "mpich")  # tests/torch_mpi4py runs these, and far more, under both
PARAMETERS = [
    ranks.parameter(mpi, 2, case, id=f"{mpi}-{case.removeprefix('tests.torch_mpi4py.')}")
    for mpi in MPIS
    if mpi not in BY_MAKE_TEST
    for module in MODULES
    for case in ranks.cases_of(f"tests.torch_mpi4py.{module}", 2, mpi)
]
COLUMNS = ("a hang in a collective", "a hang in a message", "a hang inside MPI", "Ctrl-C")
BEGINS = "<!-- from tests/sites: what each MPI can do -->\n"
ENDS = "<!-- to here -->"
HEAD = ("MPI", "installed", *COLUMNS, "death of a rank")


@pytest.mark.timeout(1500)  # the first one waits for an installation, and a start of ranks
@pytest.mark.parametrize(("mpi", "n", "case"), PARAMETERS)
def test_case(mpi: str, n: int, case: str, rank: int, size: int) -> None:
    ranks.run_case(case, rank, size)


def table(root: Path) -> list[list[str]]:
    """Return the cells of the README's table."""
    text = (root / "packages" / "torch_mpi4py" / "README.md").read_text()
    lines = text.partition(BEGINS)[2].partition(ENDS)[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_table_has_a_row_for_each_mpi(root: Path) -> None:
    head, _, *rows = table(root)
    assert head == list(HEAD)
    assert [row[1] for row in rows] == [mpi.installed for mpi in MPIS.values()]


@pytest.mark.timeout(1500)
@pytest.mark.parametrize("mpi", MPIS)
def test_table_states_the_abilities_of_each_mpi(
    pytestconfig: pytest.Config, root: Path, mpi: str
) -> None:
    library = library_of(pytestconfig, mpi)
    ended = ranks.run(2, "-m", "tests.sites.abilities", limit=150, library=library)
    said = dict(line.split(": ", 1) for line in ended.output.splitlines() if ": " in line)
    assert ended.returncode is not None, ended.output  # it ended by itself
    assert not ended.left_behind, ended.output
    died = said.get("a death", "all end")
    assert died == "the others go on" or ended.returncode != 0, ended.output
    name = said.get("library", "none")
    measured = [name, MPIS[mpi].installed, *(said.get(one, "fails") for one in COLUMNS), died]
    assert f"| {' | '.join(measured)} |" in [f"| {' | '.join(row)} |" for row in table(root)], (
        ended.output
    )
