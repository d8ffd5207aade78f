"""Starts a program on ranks by mpiexec, within a time limit, and leaves no process behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from unittest import mock

import psutil

from .. import launch

__all__ = ["ProgramRun", "Run", "processes_of", "run"]

RUN_ID = "RANKS_RUN_ID"
_LEAVE_WITHIN_S = 15.0
_DIES_WITHIN_S = 5.0


@dataclass(frozen=True)
class Run:
    """The result of one ``mpiexec``.

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


class ProgramRun:
    """A program that runs on ``n`` ranks.

    Args:
        n: number of ranks.
        argv: the program and its arguments.
        output: where all of them write, both streams together.
        variables: more for the ranks' environment. They also choose the MPI.
        ulfm: whether the MPI is fault tolerant, where it can be.
        cwd: the folder in which ranks start.

    Raises:
        NoMPIError: if no MPI is installed.
    """

    def __init__(
        self,
        n: int,
        *argv: str | os.PathLike[str],
        output: IO[str],
        variables: Mapping[str, str] | None = None,
        ulfm: bool = True,
        cwd: Path | None = None,
    ) -> None:
        self.identity = uuid.uuid4().hex
        added = dict(variables or {})
        with mock.patch.dict(os.environ, added):
            command = launch.mpiexec(n, *argv, ulfm=ulfm)
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=launch.environment() | added | {RUN_ID: self.identity},
            cwd=cwd,
            start_new_session=True,
        )

    def kill(self) -> None:
        """Kill mpiexec and all processes of the run."""
        self._kill_launcher()
        _kill(processes_of(self.identity))

    def end(self, leave_within: float = _LEAVE_WITHIN_S) -> list[str]:
        """Kill what is left of the run; return its command lines, none if it ended by itself.

        Args:
            leave_within: seconds that ranks may outlive mpiexec.
        """
        self._kill_launcher()
        # Ranks end together with mpiexec, give or take a moment.
        deadline = time.monotonic() + leave_within
        while (remaining := processes_of(self.identity)) and time.monotonic() < deadline:
            time.sleep(0.02)
        return _kill(remaining)

    def _kill_launcher(self) -> None:
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def run(
    n: int,
    *argv: str | os.PathLike[str],
    limit: float,
    variables: Mapping[str, str] | None = None,
    ulfm: bool = True,
    leave_within: float = _LEAVE_WITHIN_S,
    cwd: Path | None = None,
) -> Run:
    """Run a program on ``n`` ranks and wait at most ``limit`` seconds.

    The arguments are those of :class:`ProgramRun` and of its ``end``.
    """
    start = time.monotonic()
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        program = ProgramRun(n, *argv, output=output, variables=variables, ulfm=ulfm, cwd=cwd)
        try:
            returncode: int | None = program.process.wait(limit)
        except subprocess.TimeoutExpired:
            returncode = None
        finally:
            seconds = time.monotonic() - start
            left_behind = program.end(leave_within)
        output.seek(0)
        return Run(returncode, output.read(), seconds, left_behind)


def processes_of(identity: str) -> list[psutil.Process]:
    """Return the living processes of the run with this identity."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            alive = process.status() != psutil.STATUS_ZOMBIE
            if alive and process.environ().get(RUN_ID) == identity:
                found.append(process)
    return found


def _kill(processes: list[psutil.Process]) -> list[str]:
    """Kill processes and return their command lines."""
    names = []
    for process in processes:
        with contextlib.suppress(psutil.Error):
            names.append(f"{process.pid}: {' '.join(process.cmdline())}")
            process.kill()
    psutil.wait_procs(processes, timeout=_DIES_WITHIN_S)
    return names
