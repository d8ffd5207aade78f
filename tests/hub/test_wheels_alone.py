"""Notebooks in environments that have Jupyter and our wheels, and no checkout: as in Colab."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import nbformat
import pytest

from course_lib.teaching.lessons import notebooks, number
from tests.setup.test_wheels import OFFLINE, lend, needed_by, outside, pip, wheels

__all__ = ["wheels"]  # a fixture

pytestmark = [pytest.mark.hub, pytest.mark.timeout(600)]

# What the kernel says at the end: where the course came from, and that its sources are there.
LAST_CELLS = [
    "import course_lib, rank_by_rank, torch_mpi4py\n"
    "print(course_lib.__file__, rank_by_rank.__path__[0], torch_mpi4py.__file__, sep='\\n')",
    'solution("00.my_share")',
]


# What of the course a notebook of ipyranks alone finds: nothing.
WHAT_IS_THERE = (
    "from importlib.util import find_spec\n"
    "print([name for name in ('course_lib', 'rank_by_rank') if find_spec(name)])"
)


def as_text(output: nbformat.NotebookNode) -> str:
    """Return what a person reads of an output."""
    if output.output_type == "error":
        return re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(output.traceback))
    return output.get("text") or output.get("data", {}).get("text/plain", "")


def python_with(wheels: list[Path], prefix: Path) -> Path:
    """Return a Python whose environment has these wheels and what they need."""
    venv.create(prefix, symlinks=True)
    (packages,) = prefix.glob("lib/python*/site-packages")
    ours = {"torch-mpi4py", "ipyranks", "rank-by-rank"}
    for name in set().union(*map(needed_by, wheels)) - ours:
        lend(name, prefix, packages)
    python = prefix / "bin" / "python"
    pip("--python", python, "install", *OFFLINE, *wheels)
    return python


def execute(python: Path, path: Path, *options: str) -> list[nbformat.NotebookNode]:
    """Run a notebook in its folder by a kernel of this Python, and return its cells."""
    spec = path.parent / "kernels" / "alone" / "kernel.json"
    spec.parent.mkdir(parents=True)
    kernel = [str(python), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    spec.write_text(json.dumps({"argv": kernel, "display_name": "alone", "language": "python"}))
    program = "from nbclient.cli import main; main()"
    answer = subprocess.run(
        [sys.executable, "-c", program, "--inplace", "--kernel_name=alone", *options, path],
        cwd=path.parent,
        env=outside({"HOME": str(path.parent), "JUPYTER_PATH": str(path.parent)}),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr[-5000:]
    return nbformat.read(path, as_version=4).cells


def test_lesson_00_runs_outside_the_checkout(
    root: Path, wheels: dict[str, Path], tmp_path: Path
) -> None:
    python = python_with([*wheels.values()], tmp_path / "venv")
    path = tmp_path / "lesson.ipynb"
    shutil.copy(root / "notebooks" / "00_start_here.ipynb", path)
    notebook = nbformat.read(path, as_version=4)
    notebook.cells += [nbformat.v4.new_code_cell(source) for source in LAST_CELLS]
    nbformat.write(notebook, path)
    where, solution = execute(python, path)[-2:]
    places = where.outputs[0]["text"].split()
    assert len(places) == 3
    assert all(place.startswith(str(python.parents[1])) for place in places), places
    assert "range(rank, samples, world_size)" in str(solution.outputs)


@pytest.fixture(scope="module")
def installed(
    wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path]:
    """Return a Python that has the wheels alone, and a folder that ``lab`` has prepared with it."""
    folder = tmp_path_factory.mktemp("installed")
    python = python_with([*wheels.values()], folder / "venv")
    said = subprocess.run(
        [python, "-m", "course_lib.command", "lab", "course", "--show-config-json"],
        cwd=folder,
        env=outside({"HOME": str(folder)}),
        stdout=subprocess.PIPE,
        text=True,
        timeout=120,
        check=True,
    ).stdout
    assert json.loads(said[said.index("\n{") :])["ServerApp"]["root_dir"] == str(folder / "course")
    return python, folder / "course"


def run_of(python: Path, lesson: str, folder: Path, **variables: str) -> str:
    """Return what ``rank-by-rank run`` says of a lesson, executed in ``folder``."""
    answer = subprocess.run(
        [python, "-m", "course_lib.command", "run", lesson],
        cwd=folder,
        env=outside({"HOME": str(folder)} | variables),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr[-5000:]
    return answer.stdout


def test_the_doctor_says_how_to_install_without_a_checkout(
    installed: tuple[Path, Path], tmp_path: Path
) -> None:
    python, course = installed
    metadata = tmp_path / "torch-2.9.1.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.9.1\n")
    said = subprocess.run(
        [python, "-m", "course_lib.command", "doctor", "--json"],
        cwd=course,
        env=outside({"HOME": str(course)}) | {"PYTHONPATH": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
        timeout=120,
        check=False,  # 1, as something fails
    ).stdout
    (torch,) = (found for found in json.loads(said) if "torch 2.9.1" in found["seen"])
    assert torch["status"] == "FAIL"
    assert "Install the course's wheels" in torch["fix"]
    assert "make " not in said


@pytest.mark.parametrize("lesson", [number(path) for path in notebooks()])
def test_lesson_runs_from_the_wheels(
    root: Path, installed: tuple[Path, Path], tmp_path: Path, lesson: str
) -> None:
    """All of it: its checks, programs and figures, in a learner's folder. CI runs some."""
    python, course = installed
    copy = tmp_path / "course"  # a lesson may leave files
    shutil.copytree(course, copy, symlinks=True)
    workspace = copy / "workspace"
    assert (workspace / next(root.glob(f"notebooks/{lesson}_*.ipynb")).name).is_file()
    said = run_of(python, lesson, workspace, COURSE_WORKSPACE=str(workspace))
    assert "executed in" in said


def test_the_notebook_of_ipyranks_runs_without_the_course(
    root: Path, wheels: dict[str, Path], tmp_path: Path
) -> None:
    """Its cells are in the README: ranks, a hang with its report, a death, the survivors."""
    python = python_with([wheels["torch_mpi4py"], wheels["ipyranks"]], tmp_path / "venv")
    readme = (root / "packages" / "ipyranks" / "README.md").read_text()
    notebook = nbformat.v4.new_notebook()
    sources = [*re.findall(r"```python\n(.*?)```", readme, re.DOTALL), WHAT_IS_THERE]
    notebook.cells = [nbformat.v4.new_code_cell(source.strip()) for source in sources]
    nbformat.write(notebook, tmp_path / "ranks.ipynb")
    cells = execute(python, tmp_path / "ranks.ipynb", "--allow-errors")
    said = {cell.source: "\n".join(map(as_text, cell.outputs)) for cell in cells}

    def told(beginning: str) -> str:
        (text,) = (text for source, text in said.items() if beginning in source)
        return text

    assert "4 ranks ready" in told("start_cluster(")
    assert "rank 3 | rank 3 of 4, and all together 6" in told("all together")
    hang = told("--limit 5")
    assert "HangError" in hang
    assert re.search(r"0 +waiting +recv from rank 1", hang), hang
    assert "All ranks are free again." in hang
    assert "the sum is 6" in told("the sum is")
    assert "rank 3 died" in told("SIGKILL")
    assert "rank 2  was rank 2" in told("shrink")
    assert "rank 2 | 3 ranks are left" in told("are left")
    assert told("find_spec").strip() == "[]"
