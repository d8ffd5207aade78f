"""Programs and cases on several ranks, which are real MPI processes.

A case is a function ``case_name(rank, size)`` in a module; it runs on every rank inside a
fresh process group and raises if something is wrong. A test file makes a test of each by
:func:`parameter` and :func:`run_case`. By hand::

    python -m tests.ranks -n 2 tests.torch_mpi4py.cases.collectives -k gather
    python -m tests.ranks -n 2 --backend gloo --mpi mpich tests.torch_mpi4py.cases.collectives
"""

from __future__ import annotations

import argparse
import functools
import gc
import importlib
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from torch_mpi4py.testing import program_run
from torch_mpi4py.testing.program_run import Run

__all__ = [
    "OPEN_MPI",
    "Library",
    "Run",
    "case",
    "cases_of",
    "parameter",
    "run",
    "run_case",
    "wheel",
]

ROOT = Path(__file__).resolve().parent.parent
MPICH = "mpich==5.0.2"
ON_GPUS = "RANKS_ON_GPUS"  # a variable that has the ranks make their tensors on GPUs
BY_HAND = "RANKS_BY_HAND"  # one that names the cases of tests/by_hand.py
# Far longer than anything takes: a rank may be stopped for seconds, and a first use imports much.
CASE_SECONDS = 60.0
GROUP_SECONDS = 30.0


# --- which MPI ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Library:
    """An MPI to run under: its name, and the variables that make it the one used."""

    name: str
    variables: Mapping[str, str] = field(default_factory=dict, hash=False)


OPEN_MPI = Library("openmpi")


def wheel(requirement: str, folder: Path) -> Library:
    """Install an MPI wheel, e.g. ``mpich==5.0.2``, into a throw-away folder and return it.

    The packages of this environment stay in use: mpi4py loads the MPI that
    ``MPI4PY_LIBMPI`` names, and ranks are started by that MPI's own ``mpiexec``.
    """
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run(
        [*pip, "--no-deps", "--ignore-installed", "--prefix", str(folder), requirement],
        check=True,
        timeout=240,
    )
    pattern = "libmpi.12.dylib" if sys.platform == "darwin" else "libmpi.so.12"
    (shared_library,) = folder.glob(f"lib/{pattern}")
    variables = {
        "TORCH_MPI4PY_MPIEXEC": str(folder / "bin" / "mpiexec"),
        "MPI4PY_LIBMPI": str(shared_library),
    }
    return Library(requirement.partition("=")[0], variables)


# --- one start of mpiexec -----------------------------------------------------------------


def run(
    n: int,
    *argv: str | os.PathLike[str],
    limit: float,
    library: Library = OPEN_MPI,
    variables: Mapping[str, str] | None = None,
    ulfm: bool = True,
    leave_within: float = 15,
) -> Run:
    """Run ``python *argv`` on ``n`` ranks, from the checkout, and wait at most ``limit`` seconds.

    Ranks keep Python's buffers, so that a line is written at once: the pieces that an unbuffered
    ``print`` writes are mixed with those of other ranks. Who is killed has to flush before.

    Args:
        variables: more for the ranks' environment.
        ulfm: whether the MPI is fault tolerant, where it can be.
        leave_within: seconds that ranks may outlive mpiexec.
    """
    added = dict(library.variables) | {"PYTHONUNBUFFERED": ""} | dict(variables or {})
    paths = [str(ROOT), added.get("PYTHONPATH", os.environ.get("PYTHONPATH", ""))]
    added["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    return program_run.run(
        n,
        sys.executable,
        *argv,
        limit=limit,
        variables=added,
        ulfm=ulfm,
        leave_within=leave_within,
        cwd=ROOT,
    )


# --- cases --------------------------------------------------------------------------------


def case(
    *,
    sizes: Iterable[int] = (),
    seconds: float = CASE_SECONDS,
    timeout: float = GROUP_SECONDS,
    mpi: str = "",
    group: bool = True,
):
    """Describe a case.

    Args:
        sizes: world sizes it makes sense for; all if none is given.
        seconds: how long it may take on any rank before it counts as hung.
        timeout: seconds that one operation of its process group may take.
        mpi: the only MPI it is for, empty for all.
        group: whether it finds a fresh default process group (or makes its own).
    """

    def mark(function):
        function.sizes = frozenset(sizes)
        function.seconds = seconds
        function.timeout = timeout
        function.mpi = mpi
        function.group = group
        return function

    return mark


def cases_of(module: str, n: int = 0, mpi: str = "") -> list[str]:
    """Return ``module:case_name`` of all cases in ``module`` that are for ``n`` ranks."""
    found = []
    for name, function in vars(importlib.import_module(module)).items():
        if not name.startswith("case_"):
            continue
        sizes = getattr(function, "sizes", ())
        only = getattr(function, "mpi", "")
        if (not n or not sizes or n in sizes) and (not mpi or not only or only == mpi):
            found.append(f"{module}:{name}")
    return found


def parameter(mpi: str, n: int, case: str, id: str, backend: str = "mpi4py") -> Any:
    """Return the parameters ``mpi, n, case`` of a test that runs a case by :func:`run_case`.

    Args:
        id: how the test is called.
        backend: of the case's process group.
    """
    function = _function(case)
    mark = pytest.mark.ranks(
        n,
        backend=backend if getattr(function, "group", True) else None,
        timeout=getattr(function, "seconds", CASE_SECONDS),
        group_timeout=getattr(function, "timeout", GROUP_SECONDS),
    )
    return pytest.param(mpi, n, case, id=id, marks=mark)


def run_case(case: str, rank: int, size: int) -> None:
    """Run a case on this rank."""
    import torch
    from torch_mpi4py.core import gpus

    _spare_imports()
    warnings.filterwarnings("error", module="torch_mpi4py")  # a user would read them
    torch.manual_seed(0)
    if ON_GPUS in os.environ:  # whatever a case makes then lies on a GPU, unless it says where
        torch.set_default_device(gpus.device_name(rank, torch.cuda.device_count()))
        # PyTorch 2.11 says so once, whoever adds up a sparse tensor of a GPU first.
        warnings.filterwarnings("ignore", "Sparse invariant checks are implicitly disabled")
    _function(case)(rank, size)


@functools.cache
def _spare_imports() -> None:
    """Have collections of garbage leave out what has been imported: it takes them 0.1 s."""
    gc.freeze()


def _function(case: str) -> Any:
    module, _, name = case.partition(":")
    return getattr(importlib.import_module(module), name)


# --- by hand ------------------------------------------------------------------------------


def main() -> None:
    """Run cases as tests of their own; what else is said goes to pytest."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("modules", nargs="+", help="or single cases, as module:case_name")
    parser.add_argument("-n", type=int, default=2)
    parser.add_argument("-k", default="", help="only cases whose name contains this")
    parser.add_argument("--backend", default="mpi4py", help="gloo, cpu:mpi4py,cuda:gloo, ...")
    parser.add_argument("--mpi", default="openmpi", choices=("openmpi", "mpich"))
    parser.add_argument("--folder", help="which all hosts see, where ranks are on several")
    asked, others = parser.parse_known_args()
    cases = [
        name
        for module in asked.modules
        for name in ([module] if ":" in module else cases_of(module, asked.n, asked.mpi))
        if asked.k in name
    ]
    os.environ[BY_HAND] = json.dumps(vars(asked) | {"cases": cases})
    config = ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT), "-p", "no:cacheprovider"]
    tests = str(ROOT / "tests" / "by_hand.py")
    os.execv(sys.executable, [sys.executable, "-m", "pytest", *config, "-v", *others, tests])


if __name__ == "__main__":
    main()
