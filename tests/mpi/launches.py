"""The one idea: ranks in tests are real processes, started once for a whole battery of cases.

A case is a function ``case_xxx(rank, size)`` in a module; every rank of one ``mpiexec`` runs
all cases of a suite in order and writes down how each ended, so each case is a pytest test of
its own while the ranks are started only once per (suite, number of ranks, MPI). A case that
hangs is named, with the stack of every thread of every rank; those after it are reported as
not run because of it.
"""

from __future__ import annotations

import ast
import functools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import psutil

from course_lib import launch

ROOT = Path(__file__).resolve().parents[2]
MPICH_VERSION = "5.0.2"
CASE_SECONDS = 45
SUITE_SECONDS = 170


@dataclass(frozen=True)
class Finished:
    """How a launch of ranks ended.

    Attributes:
        code: exit status of mpiexec, None if it ran past its limit and was killed.
        output: what all ranks wrote, stdout and stderr together.
        seconds: how long it ran.
    """

    code: int | None
    output: str
    seconds: float


def run(
    n: int,
    *argv: str | os.PathLike[str],
    limit: float = 60,
    mpi: str = "openmpi",
    ulfm: bool = True,
    variables: Mapping[str, str] | None = None,
    reap: bool = True,
) -> Finished:
    """Run ``python argv`` on ``n`` ranks for at most ``limit`` seconds.

    What is still running after that is ended; with ``reap`` also what a finished mpiexec
    left behind, which tests of just that switch off.
    """
    command, environment = command_line(n, *argv, mpi=mpi, ulfm=ulfm)
    environment.update(variables or {})
    started = time.monotonic()
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            code = None
            kill_tree(process)
        finally:
            if reap or process.poll() is None:
                kill_tree(process)
        seconds = time.monotonic() - started
        output.seek(0)
        return Finished(code, output.read(), seconds)


def command_line(
    n: int, *argv: str | os.PathLike[str], mpi: str = "openmpi", ulfm: bool = True
) -> tuple[list[str], dict[str, str]]:
    """Return the command and the environment that run ``python argv`` on ``n`` ranks."""
    python = Path(sys.executable) if mpi == "openmpi" else mpich_python()
    with mock.patch.dict(os.environ, {"COURSE_MPIEXEC": str(python.parent / "mpiexec")}):
        command = launch.mpiexec(n, python, *argv, ulfm=ulfm)
        environment = launch.environment()
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    environment["PYTHONFAULTHANDLER"] = "1"
    return command, environment


def kill_tree(process: subprocess.Popen) -> None:
    """End ``process`` and whatever it started."""
    try:
        family = psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        family = []
    if process.poll() is None:
        process.terminate()  # mpiexec ends its ranks and removes its files
        try:
            process.wait(3)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    for member in family:
        try:
            member.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(family, timeout=5)


@functools.cache
def mpich_python() -> Path:
    """Return the Python of a throw-away environment that has MPICH instead of Open MPI."""
    # Kept alive by the cache's owner below: removed when the tests end.
    folder = Path(_mpich_folder.name)
    quiet = {"check": True, "capture_output": True, "text": True, "timeout": 120}
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], **quiet)
    python = folder / "bin" / "python"
    # mpi4py has its files found by where they lie, so it is the one package not borrowed.
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps"]
    import mpi4py

    try:
        subprocess.run([*pip, f"mpich=={MPICH_VERSION}", f"mpi4py=={mpi4py.__version__}"], **quiet)
    except subprocess.CalledProcessError as error:
        raise RuntimeError(f"MPICH could not be installed for its tests:\n{error.stderr}") from None
    site = next((folder / "lib").glob("python*/site-packages"))
    borrowed = [path for path in sys.path if path.endswith("site-packages")]
    (site / "borrowed.pth").write_text("\n".join(borrowed) + "\n")
    return python


_mpich_folder = tempfile.TemporaryDirectory(prefix="course-mpich-", ignore_cleanup_errors=True)


@dataclass(frozen=True)
class Case:
    """One case of a suite: its name, and on which numbers of ranks it has a meaning."""

    module: str
    name: str
    sizes: tuple[int, ...]


def cases_in(module: str) -> list[Case]:
    """Return the cases of ``tests/mpi/failures/<module>.py`` without importing it."""
    path = ROOT / "tests" / "mpi" / "failures" / f"{module}.py"
    found = []
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("case_"):
            found.append(Case(module, node.name, _sizes(node)))
    return found


def _sizes(function: ast.FunctionDef) -> tuple[int, ...]:
    for decorator in function.decorator_list:
        if isinstance(decorator, ast.Call) and getattr(decorator.func, "id", "") == "sizes":
            return tuple(ast.literal_eval(argument) for argument in decorator.args)
    return (1, 2, 3, 4)


@dataclass
class Suite:
    """Modules of cases that run one after another in one launch.

    Attributes:
        modules: names of files in ``tests/mpi/failures``.
        case_seconds: time after which one case is called hung.
    """

    modules: tuple[str, ...]
    case_seconds: float = CASE_SECONDS

    def cases(self, size: int) -> list[Case]:
        """Return the cases that run on ``size`` ranks."""
        every = [case for module in self.modules for case in cases_in(module)]
        return [case for case in every if size in case.sizes]

    def parameters(self, launches: Iterable[tuple[str, int]]) -> list[tuple[str, int, Case]]:
        """Return (MPI, number of ranks, case) for pytest to parametrise over."""
        return [(mpi, size, case) for mpi, size in launches for case in self.cases(size)]

    def check(self, mpi: str, size: int, case: Case) -> None:
        """Raise AssertionError with every rank's traceback unless the case went well."""
        complaint = self._report(mpi, size).complaint(case)
        assert not complaint, complaint

    def _report(self, mpi: str, size: int) -> Report:
        return _launch(self.modules, self.case_seconds, mpi, size)


@functools.cache
def _launch(modules: tuple[str, ...], case_seconds: float, mpi: str, size: int) -> Report:
    with tempfile.TemporaryDirectory(prefix="course-ranks-") as folder:
        finished = run(
            size,
            "-m",
            "tests.mpi.rank_side",
            folder,
            str(case_seconds),
            *modules,
            limit=SUITE_SECONDS,
            mpi=mpi,
        )
        return Report.read(Path(folder), size, finished)


@dataclass
class Report:
    """What every rank wrote about every case."""

    finished: Finished
    started: list[list[str]]
    ended: list[dict[str, str]]
    stacks: list[str]

    @classmethod
    def read(cls, folder: Path, size: int, finished: Finished) -> Report:
        """Read the files that the ranks of one launch left in ``folder``."""
        report = cls(finished, [], [], [])
        for rank in range(size):
            lines = folder / f"rank-{rank}.jsonl"
            records = lines.read_text().splitlines() if lines.exists() else []
            parsed = [json.loads(record) for record in records]
            report.started.append([entry["case"] for entry in parsed if "error" not in entry])
            report.ended.append(
                {entry["case"]: entry["error"] for entry in parsed if "error" in entry}
            )
            stack = folder / f"rank-{rank}.stack"
            report.stacks.append(stack.read_text() if stack.exists() else "")
        return report

    def complaint(self, case: Case) -> str:
        """Return why ``case`` failed, with each rank's part, or nothing if it went well."""
        name = f"{case.module}.{case.name}"
        parts = []
        for rank, (started, ended) in enumerate(zip(self.started, self.ended, strict=True)):
            if name in ended:
                if ended[name]:
                    parts.append(f"--- rank {rank}\n{ended[name]}")
            elif name in started:
                parts.append(f"--- rank {rank} did not end this case\n{self.stacks[rank]}")
            else:
                last = started[-1] if started else "the first case"
                parts.append(f"--- rank {rank} did not run this case, because {last} ended it")
        if parts and not any(name in started for started in self.started):
            parts = [parts[0], self._how_it_ended()]
        elif parts and any(name not in ended for ended in self.ended):
            parts.append(self._how_it_ended())
        return "\n".join(parts)

    def _how_it_ended(self) -> str:
        how = "ran past its limit" if self.finished.code is None else f"ended {self.finished.code}"
        return (
            f"--- mpiexec {how} after {self.finished.seconds:.0f} s; output:\n"
            + self.finished.output[-4000:]
        )
