"""make: what it lists, and what it says when something that it needs is missing."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType

import pytest

from tests.lab_server import copy_checkout, copy_venv, free_port, scratch

MAKE = shutil.which("make") or "make"
# pip with no configuration of the machine: nothing but what a test gives.
PLAIN_PIP = {
    "PIP_CONFIG_FILE": os.devnull,
    "PIP_FIND_LINKS": "",
    "PIP_EXTRA_INDEX_URL": "",
    "PIP_RETRIES": "0",
}


@pytest.fixture
def checkout() -> Iterator[Path]:
    """Give a copy of the checkout, without .venv, at a path with a space."""
    with scratch() as folder:
        copy = folder / "a course"
        copy.mkdir()
        copy_checkout(copy)
        yield copy


def without_make(variables: Mapping[str, str]) -> dict[str, str]:
    """Return ``variables`` without those by which a make tells another that it called it.

    The tests themselves run under ``make test``; a learner's make does not.
    """
    of_make = ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "ARGS", "PYTHON")
    return {name: value for name, value in variables.items() if name not in of_make}


def make(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [MAKE, *arguments],
        cwd=folder,
        env=without_make(os.environ) | variables,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )


def test_make_alone_lists_every_target_in_a_line(root: Path) -> None:
    answer = make(root)
    assert answer.returncode == 0, answer.stderr
    listed = re.findall(r"^make (\S+) +\S.*$", answer.stdout, re.MULTILINE)
    assert len(listed) == len(answer.stdout.splitlines())
    phony = re.search(r"^\.PHONY: (.*)$", (root / "Makefile").read_text(), re.MULTILINE)
    assert phony is not None
    assert sorted(listed) == sorted(phony[1].split())
    assert {"lab", "test", "notebooks", "bench", "clean"} <= set(listed)


def test_paths_in_make_quick_exist(root: Path) -> None:
    text = (root / "Makefile").read_text().replace("\\\n", " ")
    (chosen,) = re.findall(r"^QUICK = (.*) -k ", text, re.MULTILINE)
    assert len(chosen.split()) > 10
    assert [name for name in chosen.split() if not (root / name).exists()] == []


def programs(folder: Path, **scripts: str) -> str:
    """Return a PATH that holds a shell and the given scripts, and nothing else."""
    folder.mkdir()
    (folder / "sh").symlink_to("/bin/sh")
    for name, text in scripts.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    return str(folder)


def test_setup_without_python_says_so(checkout: Path, tmp_path: Path) -> None:
    answer = make(checkout, "setup", PATH=programs(tmp_path / "bin"))
    assert answer.returncode != 0
    assert "needs Python 3.11 to 3.14" in answer.stderr
    assert "No Python was found" in answer.stderr
    assert "apt install python3" in answer.stderr


def test_setup_with_an_old_python_names_it(checkout: Path, tmp_path: Path) -> None:
    # Answers as Python 3.9 does: it prints its version and is not a supported one.
    old = 'case "$2" in *print*) echo 3.9.18 ;; *) exit 1 ;; esac'
    answer = make(checkout, "setup", PATH=programs(tmp_path / "bin", python3=old))
    assert answer.returncode != 0
    assert "python3 is 3.9.18" in answer.stderr
    assert "PYTHON=/path/to/python3.12" in answer.stderr


def test_setup_looks_for_uv_python_last(checkout: Path, tmp_path: Path) -> None:
    # It prints its version as Python 3.14 does, and says that it was taken.
    new = 'case "$2" in *print*) echo 3.14.2 ;; *exit*) ;; *) echo "taken: $1" ;; esac'
    kept = Path(programs(tmp_path / "kept by uv", python=new)) / "python"
    uv = f"[ \"$1 $2\" = 'python find' ] && echo '{kept}'"
    answer = make(checkout, "setup", PATH=programs(tmp_path / "bin", uv=uv))
    assert (answer.returncode, answer.stdout) == (0, "taken: tools/install.py\n"), answer.stderr


def test_setup_without_venv_says_what_to_install(checkout: Path, tmp_path: Path) -> None:
    # A Debian without python3-venv has no module ensurepip: neither does a Python told so here.
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['ensurepip'] = None\n")
    answer = make(checkout, "setup", PYTHON=sys.executable, PYTHONPATH=str(tmp_path))
    assert answer.returncode != 0
    assert "lacks its module ensurepip" in answer.stderr
    assert "apt install python3-venv" in answer.stderr
    assert not (checkout / ".venv").exists()


@pytest.mark.timeout(600)
def test_setup_without_package_index_resumes_later(checkout: Path) -> None:
    nowhere = f"http://127.0.0.1:{free_port()}/simple"
    answer = make(checkout, "setup", PYTHON=sys.executable, PIP_INDEX_URL=nowhere, **PLAIN_PIP)
    assert answer.returncode != 0
    assert "the package index did not answer" in answer.stderr
    assert "Check the network" in answer.stderr
    assert not (checkout / ".venv" / "installed-by-make.txt").exists()


@pytest.mark.timeout(900)  # pip looks at every package
def test_setup_repairs_moved_checkout_and_partial_install(checkout: Path) -> None:
    copy_venv(checkout)
    packages = next(checkout.glob(".venv/lib/python*/site-packages"))
    shutil.rmtree(packages / "iniconfig")
    next(packages.glob("iniconfig-*.dist-info/RECORD")).unlink()
    (checkout / ".venv" / "installed-by-make.txt").unlink(missing_ok=True)

    answer = make(checkout, "setup")
    assert answer.returncode == 0, answer.stdout + answer.stderr
    program = "import course_lib, iniconfig; print(course_lib.__file__)"
    python = checkout / ".venv" / "bin" / "python"
    said = subprocess.run(
        [python, "-c", program], cwd=checkout.parent, capture_output=True, text=True, check=False
    )
    assert said.stdout.strip() == str(checkout / "course_lib" / "__init__.py"), said.stderr

    again = make(checkout, "setup")
    assert (again.returncode, again.stdout, again.stderr) == (0, "", "")


@pytest.fixture
def install(root: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return tools/install.py as a module."""
    monkeypatch.syspath_prepend(root / "tools")  # it imports its neighbour within.py
    specification = importlib.util.spec_from_file_location("install", root / "tools/install.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_full_disk_is_reported_before_any_download(
    install: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    install.check_space()
    monkeypatch.setattr(install, "NEEDED_BYTES", shutil.disk_usage(install.ROOT).total * 2)
    with pytest.raises(install.SetUpError, match=r"only .* GB are free .*\n  Free some"):
        install.check_space()


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        ("OSError: [Errno 28] No space left on device", "is full"),
        ("ERROR: No matching distribution found for torch==2.13.0", "no build for this machine"),
        ("PermissionError: [Errno 13] Permission denied: '.venv'", "cannot be written to"),
        ("something new", "the lines below say why.\n  Last lines:\n    something new"),
    ],
)
def test_causes_of_failures_are_explained(install: ModuleType, said: str, cause: str) -> None:
    assert cause in install.explain(said)


def test_clean_keeps_the_learners_work(checkout: Path) -> None:
    kept = ["workspace/00_start_here.ipynb", "data/downloads/MNIST/raw/file"]
    removed = [".venv/bin/python", ".runtime/ipython/x", "course_lib/__pycache__/a.pyc"]
    for name in kept + removed:
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        (checkout / name).write_text("")
    answer = make(checkout, "clean")
    assert answer.returncode == 0, answer.stderr
    assert all((checkout / name).exists() for name in kept)
    assert not any((checkout / name).exists() for name in removed)
    assert (checkout / "course_lib" / "__init__.py").exists()
