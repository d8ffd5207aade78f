"""Ranks that live for many programs: one job for each backend and number of ranks."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from multiprocessing.connection import Connection, Listener, wait
from pathlib import Path
from typing import Any

import psutil
from torch_mpi4py import launch

from tests.ranks import ROOT

START_SECONDS = 120.0
# A group gives up after 20 s, and frees the others; far more than a busy machine takes.
PROGRAM_SECONDS = 50.0
WORKER = "tests.torch_mpi4py.fuzz.worker"


class LostError(Exception):
    """Not all ranks came, or not all answered; its text has their stacks."""


class HungError(LostError):
    """Ranks did not answer in time."""


class Job:
    """The ranks of one backend, started when the first program comes."""

    def __init__(self, backend: str, size: int, arguments: tuple[str, ...] = ()) -> None:
        self.backend, self.size, self.arguments = backend, size, arguments
        self.process: subprocess.Popen | None = None
        self.connections: list[Connection] = []
        self.suspect = ""  # what an earlier program has died of on these ranks

    def start(self) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="fuzz")
        folder = Path(self.folder.name)
        address = str(folder / "socket")
        python = [sys.executable, "-m", WORKER, self.backend, address]
        environment = launch.environment()
        environment["PYTHONPATH"] = os.pathsep.join(
            filter(None, (str(ROOT), environment.get("PYTHONPATH", "")))
        )
        command = [*python, str(self.size)]
        if self.backend != "gloo":
            command = launch.mpiexec(self.size, *python, *self.arguments)
        self.output = (folder / "output").open("w+", errors="replace")
        with Listener(address, "AF_UNIX", backlog=self.size) as listener:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=self.output,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=ROOT,
                start_new_session=True,
            )
            listener._listener._socket.settimeout(START_SECONDS)  # type: ignore[attr-defined]
            ranks: dict[int, tuple[Connection, int]] = {}
            try:
                while len(ranks) < self.size:
                    connection = listener.accept()
                    rank, _, pid = connection.recv()
                    ranks[rank] = connection, pid
            except (OSError, EOFError) as error:
                self.stop()
                raise LostError(f"{self.backend}: not all ranks came: {error}") from error
        self.connections = [ranks[rank][0] for rank in range(self.size)]
        self.pids = [ranks[rank][1] for rank in range(self.size)]

    def send(self, code: str, after: list[dict]) -> None:
        """Give the ranks a program."""
        if self.process is None:
            self.start()
        self.begun = time.monotonic()
        for connection, mine in zip(self.connections, after, strict=True):
            connection.send((code, mine))

    def answers(self, seconds: float = PROGRAM_SECONDS) -> list[dict[str, Any]]:
        """Return what each rank saw.

        Raises:
            HungError: if a rank does not answer in time; the job has ended then.
            LostError: if a rank has ended; the job has ended then.
        """
        answers: dict[int, dict] = {}
        missing = dict(zip(self.connections, range(self.size), strict=True))
        lost, kind = "", LostError
        while missing and not lost:
            left = self.begun + seconds - time.monotonic()
            ready = wait(list(missing), max(left, 0))
            if not ready:
                lost = f"ranks {sorted(missing.values())} did not end in {seconds:g} s"
                kind = HungError
            for connection in ready:
                assert isinstance(connection, Connection)
                rank = missing.pop(connection)
                try:
                    answers[rank] = connection.recv()
                except (EOFError, OSError):
                    lost = f"rank {rank} ended"
        if lost:
            errors = "".join(
                f"\n--- rank {rank} ---\n{answer['error']}"
                for rank, answer in answers.items()
                if answer["error"]
            )
            stacks = self.stacks()
            self.stop()
            raise kind(f"{self.backend}: {lost}{errors}\n{stacks}\n{self.printed}")
        return [answers[rank] for rank in range(self.size)]

    def stacks(self) -> str:
        """Return where the threads of the ranks are."""
        for pid in self.pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGUSR1)
        time.sleep(1)
        found = []
        for rank in range(self.size):
            file = Path(self.folder.name) / f"stacks.{rank}"
            found.append(f"--- rank {rank} ---\n{file.read_text() if file.exists() else ''}")
        return "\n".join(found)

    def stop(self) -> None:
        """End the ranks."""
        if self.process is None:
            return
        for connection in self.connections:
            connection.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(0.5)
        try:
            children = psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            children = []
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        for child in children:
            with contextlib.suppress(psutil.Error):
                child.kill()
        psutil.wait_procs(children, timeout=5)
        self.output.seek(0)
        self.printed = self.output.read()[-6000:]
        self.output.close()
        self.folder.cleanup()
        self.process, self.connections, self.suspect = None, [], ""
