"""A lesson in an environment that has Jupyter and our two wheels, and no checkout: as in Colab."""

from __future__ import annotations

import shutil
import subprocess
import venv
from pathlib import Path

import nbformat
import pytest

from tests.setup.test_wheels import OFFLINE, lend, needed_by, outside, pip, wheels

__all__ = ["wheels"]  # a fixture

pytestmark = [pytest.mark.hub, pytest.mark.timeout(600)]

# What the kernel says at the end: where the course came from, and that its sources are there.
LAST_CELLS = [
    "import course_lib, notebooks, torch_mpi4py\n"
    "print(course_lib.__file__, notebooks.__path__[0], torch_mpi4py.__file__, sep='\\n')",
    'solution("00.my_share")',
]


@pytest.fixture(scope="module")
def alone(wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a Python whose environment has both wheels and what they need."""
    prefix = tmp_path_factory.mktemp("alone") / "venv"
    venv.create(prefix, symlinks=True)
    (packages,) = prefix.glob("lib/python*/site-packages")
    ours = {"torch-mpi4py", "rank-by-rank"}
    for name in set().union(*map(needed_by, wheels.values())) - ours:
        lend(name, prefix, packages)
    python = prefix / "bin" / "python"
    pip("--python", python, "install", *OFFLINE, *wheels.values())
    return python


def test_lesson_00_runs_outside_of_the_checkout(root: Path, alone: Path, tmp_path: Path) -> None:
    path = tmp_path / "lesson.ipynb"
    shutil.copy(root / "notebooks" / "00_start_here.ipynb", path)
    notebook = nbformat.read(path, as_version=4)
    notebook.cells += [nbformat.v4.new_code_cell(source) for source in LAST_CELLS]
    nbformat.write(notebook, path)
    answer = subprocess.run(
        [alone, "-c", "from nbclient.cli import main; main()", "--inplace", path],
        cwd=tmp_path,
        env=outside({"HOME": str(tmp_path)}),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr[-5000:]
    where, solution = nbformat.read(path, as_version=4).cells[-2:]
    places = where.outputs[0]["text"].split()
    assert len(places) == 3
    assert all(place.startswith(str(alone.parents[1])) for place in places), places
    assert "range(rank, samples, world_size)" in str(solution.outputs)
