"""Tests of several ranks run real MPI processes, many cases to one start.

A case is a function ``case_name(rank, size)`` in a module; it runs on every rank inside a
fresh process group and raises if something is wrong. A :class:`Battery` runs many of them in
one ``mpiexec`` and keeps what every rank said about every case. By hand::

    python -m tests.ranks -n 2 tests.torch_mpi4py.cases.collectives -k gather
    python -m tests.ranks -n 2 --backend gloo --mpi mpich tests.torch_mpi4py.cases.collectives
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import psutil
from torch_mpi4py import launch

__all__ = ["OPEN_MPI", "Battery", "Library", "Outcome", "Run", "case", "cases_of", "run", "wheel"]

ROOT = Path(__file__).resolve().parent.parent
MPICH = "mpich==5.0.2"
RUN_ID = "RANKS_RUN_ID"
ON_GPUS = "RANKS_ON_GPUS"  # a variable that has the ranks make their tensors on GPUs
# Far longer than anything takes: a rank may be stopped for seconds, and a first use imports much.
CASE_SECONDS = 60.0
GROUP_SECONDS = 30.0
START_SECONDS = 60.0
MAX_STARTS = 4


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


@dataclass(frozen=True)
class Run:
    """What one ``mpiexec`` did.

    Attributes:
        returncode: its exit status, None if it had to be killed at the limit.
        output: everything all ranks wrote, both streams together.
        seconds: how long it took.
        left_behind: processes it had started that were still there when it was gone.
    """

    returncode: int | None
    output: str
    seconds: float
    left_behind: list[str]


def run(
    n: int,
    *argv: str | os.PathLike[str],
    limit: float,
    library: Library = OPEN_MPI,
    variables: Mapping[str, str] | None = None,
    ulfm: bool = True,
    leave_within: float = 15,
) -> Run:
    """Run ``python *argv`` on ``n`` ranks and wait at most ``limit`` seconds.

    Ranks keep Python's buffers, so that a line is written at once: the pieces that an unbuffered
    ``print`` writes are mixed with those of other ranks. Who is killed has to flush before.

    Args:
        variables: more for the ranks' environment.
        ulfm: whether the MPI is fault tolerant, where it can be.
        leave_within: seconds that ranks may outlive mpiexec.
    """
    identity = uuid.uuid4().hex
    environment = launch.environment() | {RUN_ID: identity}
    environment |= dict(library.variables) | dict(variables or {})
    paths = [str(ROOT), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    with mock.patch.dict(os.environ, library.variables):
        command = launch.mpiexec(n, sys.executable, *argv, ulfm=ulfm)
    start = time.monotonic()
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=ROOT,
            start_new_session=True,
        )
        try:
            returncode = process.wait(limit)
        except subprocess.TimeoutExpired:
            returncode = None
        finally:
            seconds = time.monotonic() - start
            left_behind = _end(process, identity, leave_within)
        output.seek(0)
        return Run(returncode, output.read(), seconds, left_behind)


def ranks_of(identity: str) -> list[psutil.Process]:
    """Return the living processes of the run with this :data:`RUN_ID`."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            alive = process.status() != psutil.STATUS_ZOMBIE
            if alive and process.environ().get(RUN_ID) == identity:
                found.append(process)
    return found


def _end(process: subprocess.Popen, identity: str, leave_within: float) -> list[str]:
    """Kill what is left of a run and return its command lines, none if it ended by itself."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    # Ranks end together with mpiexec, give or take a moment.
    deadline = time.monotonic() + leave_within
    while (remaining := ranks_of(identity)) and time.monotonic() < deadline:
        time.sleep(0.02)
    names = []
    for rank in remaining:
        with contextlib.suppress(psutil.Error):
            names.append(f"{rank.pid}: {' '.join(rank.cmdline())}")
            rank.kill()
    psutil.wait_procs(remaining, timeout=5)
    return names


# --- many cases in one start --------------------------------------------------------------


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


@dataclass
class Outcome:
    """What became of one case: ``passed``, ``failed``, ``hung`` or ``not run``, and why."""

    case: str
    status: str
    seconds: float = 0.0
    story: str = ""


class Battery:
    """Cases to run on ``n`` ranks of one MPI, in as few starts as hangs allow.

    Nothing runs until the first outcome is asked for. A case that hangs is named with the
    stacks of its ranks; the cases after it run in a new start, at most three times.
    """

    def __init__(
        self,
        n: int,
        cases: Sequence[str],
        library: Library = OPEN_MPI,
        backend: str = "mpi4py",
    ) -> None:
        self.n = n
        self.cases = list(cases)
        self.library = library
        self.backend = backend
        self._outcomes: dict[str, Outcome] | None = None

    def outcome(self, name: str) -> Outcome:
        """Return what became of one case; the first call runs them all."""
        return self.outcomes()[name]

    def outcomes(self) -> dict[str, Outcome]:
        """Return what became of every case, by name."""
        if self._outcomes is None:
            self._outcomes = {}
            left = self.cases
            for _ in range(MAX_STARTS):
                left = self._start(left) if left else []
            why = f"{MAX_STARTS} starts ended early because of the cases that hung or crashed"
            for name in left:
                self._outcomes[name] = Outcome(name, "not run", story=why)
        return self._outcomes

    def _start(self, cases: list[str]) -> list[str]:
        """Run ``cases`` in one start, note their outcomes, and return those it did not reach."""
        with tempfile.TemporaryDirectory(prefix="ranks") as name:
            folder = Path(name)
            plan = {"backend": self.backend, "cases": cases}
            (folder / "plan.json").write_text(json.dumps(plan))
            limit = START_SECONDS + sum(map(_seconds_of, cases))
            worker = ("-m", "tests.rank_worker", folder)
            ended = run(self.n, *worker, limit=limit, library=self.library)
            return self._collect(folder, cases, ended)

    def _collect(self, folder: Path, cases: list[str], ended: Run) -> list[str]:
        for index, name in enumerate(cases):
            outcome = self._read(folder, index, name, ended)
            self._outcomes[name] = outcome
            if outcome.status == "hung":
                return cases[index + 1 :]
        if ended.returncode != 0 or ended.left_behind:
            how = "had to be killed" if ended.returncode is None else f"gave {ended.returncode}"
            last = self._outcomes[cases[-1]]
            last.status = "failed"
            last.story += (
                f"\nmpiexec {how} after the last case; processes left: {ended.left_behind}"
                f"\n{ended.output[-4000:]}"
            )
        return []

    def _read(self, folder: Path, index: int, name: str, ended: Run) -> Outcome:
        reports, story = {}, []
        for rank in range(self.n):
            who = f"rank {rank} of {self.n} ({self.library.name})"
            report = folder / f"{index}.{rank}.json"
            stacks = folder / f"{index}.{rank}.begun"
            if report.exists():
                reports[rank] = json.loads(report.read_text())
                if reports[rank]["error"]:
                    story.append(f"--- {who} ---\n{reports[rank]['error']}")
            elif stacks.exists():
                story.append(f"--- {who} did not finish ---\n{stacks.read_text()}")
            else:
                story.append(f"--- {who} did not begin ---")
        seconds = max((report["seconds"] for report in reports.values()), default=0.0)
        if len(reports) < self.n:
            story.append(f"--- mpiexec: {ended.returncode}, output ---\n{ended.output[-6000:]}")
            return Outcome(name, "hung", seconds, "\n".join(story))
        return Outcome(name, "failed" if story else "passed", seconds, "\n".join(story))


def _seconds_of(name: str) -> float:
    module, _, function = name.partition(":")
    return getattr(getattr(importlib.import_module(module), function), "seconds", CASE_SECONDS)


# --- by hand ------------------------------------------------------------------------------


def main() -> int:
    """Run cases from the command line and print a line for each."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("modules", nargs="+")
    parser.add_argument("-n", type=int, default=2)
    parser.add_argument("-k", default="", help="only cases whose name contains this")
    parser.add_argument("--backend", default="mpi4py", choices=("mpi4py", "gloo"))
    parser.add_argument("--mpi", default="openmpi", choices=("openmpi", "mpich"))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        library = OPEN_MPI if arguments.mpi == "openmpi" else wheel(MPICH, Path(folder))
        chosen = [
            name
            for module in arguments.modules
            for name in cases_of(module, arguments.n, library.name)
            if arguments.k in name
        ]
        outcomes = Battery(arguments.n, chosen, library, arguments.backend).outcomes().values()
    for outcome in outcomes:
        print(f"{outcome.status:8} {outcome.seconds:6.2f} s  {outcome.case}")
    for outcome in outcomes:
        if outcome.status != "passed":
            print(f"\n===== {outcome.case}: {outcome.status}\n{outcome.story}")
    return int(any(outcome.status != "passed" for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
