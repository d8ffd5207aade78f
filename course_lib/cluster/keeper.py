"""The process behind a cluster: it starts controller and engines, watches them, and ends them.

``python -m course_lib.cluster.keeper CONFIG`` runs in a session of its own, so neither a
restart nor the death of the notebook's kernel takes it along. It listens on a Unix socket:

- the owner (a kernel) holds a connection; when that breaks and nobody adopts the cluster
  within the grace time, everything is stopped and every trace removed;
- engines and controller hold one each (:mod:`.keeper_client`); they end when the keeper does.

Messages are JSON, one per line. Standard library only until the socket is open, so that
nothing can go wrong before somebody listens.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any

from torch_mpi4py import launch

from .runtime_dir import RuntimeDir, kill, python, started, tail

log = logging.getLogger("keeper")

_WATCH_INTERVAL_S = 0.1
_LOOK_AT_ENGINES_EVERY_S = 0.5
_TERM_PATIENCE_S = 2.0  # from SIGTERM to SIGKILL
_KILL_PATIENCE_S = 5.0  # from SIGKILL to giving up
_TELL_FOR_S = 2.0  # once all ranks have ended: who has died, to whoever waits for their cell


@dataclass
class KnownEngine:
    """What is known of an engine.

    Attributes:
        pid: its process.
        started: when that process started; another may have the same number later.
        stage: how far its own start has got.
        description: what it says of itself once it is registered.
        lives: whether it has not ended.
    """

    pid: int
    started: float | None
    stage: str = "started"
    description: dict[str, Any] | None = None
    lives: bool = True


class Keeper:
    """Owns one cluster.

    Args:
        directory: its runtime directory.
        n: number of ranks.
        owner_fd: the inherited socket of the process that started us.
        owner_pid: that process.
        grace: seconds to wait for another owner once the connection is gone.
        timeout: seconds until a start counts as failed.
    """

    def __init__(
        self, directory: str, n: int, owner_fd: int, owner_pid: int, grace: float, timeout: float
    ):
        self.directory = RuntimeDir(directory)
        self.n = n
        self.grace = grace
        self.timeout = timeout
        self.state = "starting"
        self.error = ""
        self.engines: dict[int, KnownEngine] = {}  # those that have come, by number
        self.members = list(range(n))  # engine of each rank; the dead leave it by a shrink
        self._controller: subprocess.Popen
        self._mpiexec: subprocess.Popen
        self._looked_at_engines = 0.0
        self._ranks_over: float | None = None  # since when there is nobody left to run cells
        self._owner_socket = socket.socket(fileno=owner_fd)
        self._owner_pid: int | None = owner_pid
        self._owner_writer: asyncio.StreamWriter | None = None
        self._orphaned_at: float | None = None
        self._stop = asyncio.Event()
        self._politely = True
        self._connections: set[asyncio.Task] = set()

    async def run(self) -> None:
        """Start the cluster, keep it, and stop it."""
        self.directory.hold()
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(signum, self._stop.set)
        server = await asyncio.start_unix_server(self._connected, self.directory.socket)
        self.directory.socket.chmod(0o600)
        reader, writer = await asyncio.open_unix_connection(sock=self._owner_socket)
        self._owner_writer = writer
        self._connections.add(asyncio.create_task(self._connected(reader, writer)))
        began = time.monotonic()
        try:
            self._start()
            while not self._stop.is_set():
                self._watch(began)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stop.wait(), _WATCH_INTERVAL_S)
        finally:
            server.close()
            await self._teardown()

    def _start(self) -> None:
        folder = str(self.directory.path)
        try:
            # If the keeper is killed its ranks end, and mpiexec with them.
            engines = launch.mpiexec(self.n, *python("-m", "course_lib.cluster.engine", folder))
            self._mpiexec = self._run("mpiexec", engines, engine_environment(self.directory))
            controller = python("-m", "course_lib.cluster.controller", folder)
            self._controller = self._run("controller", controller)
        except Exception as error:
            log.exception("could not start")
            self._fail(f"{type(error).__name__}: {error}")
        # For `unregister`: now, while the ranks import torch, so that a death is told at once.
        import ipyparallel.util  # noqa: F401

    def _run(
        self, name: str, command: list[str], variables: dict[str, str] | None = None
    ) -> subprocess.Popen:
        """Start a program; its output stays in a log, so that errors can quote it."""
        with open(self.directory.logs / f"{name}.log", "ab") as output:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=variables,
                start_new_session=True,
            )

    def _watch(self, began: float) -> None:
        """Look at everything that may have ended."""
        now = time.monotonic()
        if self._owner_pid is not None and started(self._owner_pid) is None:
            self._orphan()
        grace = 0 if self.state == "starting" else self.grace  # nobody has used it yet
        if self._orphaned_at is not None and now - self._orphaned_at >= grace:
            log.info("nobody adopted the cluster within %s s", grace)
            self._stop.set()
        if self.state == "starting" and now - began > self.timeout:
            self._fail(f"not ready after {self.timeout:g} s ({self._progress()})")
        if self.state == "failed":
            return
        if now - self._looked_at_engines >= _LOOK_AT_ENGINES_EVERY_S:
            self._looked_at_engines = now
            self._look_at_engines()
        ready = self.state == "ready"
        if self._controller.poll() is not None:
            # Once it has come up its log is full of what went well.
            lines = "" if ready else tail(self.directory.logs / "controller.log")
            self._fail("the controller ended", lines)
        elif self._mpiexec.poll() is not None:
            self._ranks_have_ended("mpiexec ended", now)
        elif ready and not any(engine.lives for engine in self.engines.values()):
            self._ranks_have_ended("all ranks have ended", now)

    def _ranks_have_ended(self, how: str, now: float) -> None:
        """Give the notebook time to hear of the deaths of all ranks before the cluster ends."""
        if self._ranks_over is None:
            self._ranks_over = now
        if self.state == "starting" or now - self._ranks_over >= _TELL_FOR_S:
            self._fail(how)

    def _look_at_engines(self) -> None:
        """Find those whose connection is held by somebody else, like a child forked in C."""
        for number, engine in self.engines.items():
            if engine.lives and started(engine.pid) != engine.started:
                self._engine_ended(number)

    def _fail(self, reason: str, lines: str | None = None) -> None:
        lines = self._engine_lines() if lines is None else lines
        self.error = reason + (f"\nlast log lines:\n{lines}" if lines else "")
        self.state = "failed"
        log.error("%s", self.error)
        self._stop.set()

    def _missing(self) -> dict[int, str]:
        """The engines that are not registered yet, and how far each has got."""
        stages = dict.fromkeys(range(self.n), "not started")
        stages |= {number: engine.stage for number, engine in self.engines.items()}
        return {number: stage for number, stage in stages.items() if stage != "registered"}

    def _progress(self) -> str:
        missing = self._missing()
        far = ", ".join(sorted(set(missing.values())))
        return f"waiting for ranks {list(missing)}, which got as far as: {far}"

    def _engine_lines(self) -> str:
        """The last lines of the rank that is to blame, or else of mpiexec."""
        dead = [number for number, engine in self.engines.items() if not engine.lives]
        for rank in [*dead, *self._missing()]:
            lines = tail(self.directory.rank_log(rank))
            if lines:
                return f"(rank {rank})\n{lines}"
        return tail(self.directory.logs / "mpiexec.log")

    # ---- connections -------------------------------------------------------------------

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = None
        try:
            while line := await reader.readline():
                message = json.loads(line)
                operation = message.pop("op")
                if operation == "engine":
                    number = message["number"]
                    self._engine_says(**message)
                else:
                    self._obey(operation, message, writer)
        except ConnectionError:
            pass  # the other side was killed: the same as closing
        finally:
            if number is not None:
                self._engine_ended(number)
            if writer is self._owner_writer:
                self._orphan()
            writer.close()

    def _engine_says(
        self, number: int, pid: int, stage: str, description: dict[str, Any] | None
    ) -> None:
        if number not in self.engines:
            self.engines[number] = KnownEngine(pid, started(pid))
        self.engines[number].stage = stage
        self.engines[number].description = description
        if self.state == "starting" and not self._missing():
            self.state = "ready"

    def _obey(self, operation: str, message: dict, writer: asyncio.StreamWriter) -> None:
        if operation == "own":
            log.info("owned by process %s", message["pid"])
            self._owner_writer, self._owner_pid = writer, message["pid"]
            self._orphaned_at = None
        elif operation == "signal":
            for engine in map(self.engines.get, message["engines"]):
                if engine is not None and engine.lives:
                    kill(engine.pid, message["signum"])
        elif operation == "shrunk":
            self.members = message["members"]
        elif operation == "stop":  # which is answered when nothing is left
            self._politely &= message["politely"]
            self._stop.set()
            return
        self._reply(writer, message["id"], **self._status())

    def _status(self) -> dict:
        members = [self.engines.get(number) for number in self.members]
        return {
            "state": self.state,
            "error": self.error,
            "progress": self._progress(),
            "dead": [rank for rank, one in enumerate(members) if one is not None and not one.lives],
            "pid": os.getpid(),
            "members": self.members,
            "descriptions": [one and one.description for one in members],
        }

    @staticmethod
    def _reply(writer: asyncio.StreamWriter, number: int | None, **content: Any) -> None:
        writer.write(json.dumps({"id": number, **content}).encode() + b"\n")

    def _orphan(self) -> None:
        log.info("the owner is gone")
        self._owner_writer = self._owner_pid = None
        self._orphaned_at = time.monotonic()

    def _engine_ended(self, number: int) -> None:
        engine = self.engines[number]
        if self._stop.is_set() or not engine.lives:
            return
        log.warning("rank %s (process %s) has ended", number, engine.pid)
        engine.lives = False
        if self.state == "starting":
            self._fail(f"rank {number} ended while starting (it had {engine.stage})")
        else:
            unregister(self.directory, number)

    # ---- the end -----------------------------------------------------------------------

    async def _teardown(self) -> None:
        if self.state != "failed":
            self.state = "stopping"
        with contextlib.suppress(FileNotFoundError):
            self.directory.socket.unlink()
        everything: list[int] = []
        for signum, patience in (
            (signal.SIGTERM, _TERM_PATIENCE_S if self._politely else 0.0),
            (signal.SIGKILL, _KILL_PATIENCE_S),
        ):
            everything = list({*everything, *self.directory.processes()})
            for pid in everything:
                kill(pid, signum)
            deadline = time.monotonic() + patience
            while everything and time.monotonic() < deadline:
                await asyncio.sleep(0.02)
                everything = [pid for pid in everything if started(pid) is not None]
        if everything:
            log.error("processes %s cannot be killed", everything)
        self.directory.remove()
        if self._owner_writer is not None:
            self._reply(self._owner_writer, None, stopped=True, error=self.error)
            with contextlib.suppress(ConnectionError):
                await self._owner_writer.drain()


def engine_environment(directory: RuntimeDir) -> dict[str, str]:
    """The variables mpiexec and the engines run under."""
    variables = launch.environment()
    if directory.shared_memory is not None:
        directory.shared_memory.mkdir(mode=0o700)
        variables["OMPI_MCA_btl_sm_backing_directory"] = str(directory.shared_memory)
        variables["OMPI_MCA_osc_sm_backing_directory"] = str(directory.shared_memory)
    # The session files of mpiexec go where the keeper deletes them, too.
    variables["COURSE_TMPDIR"] = os.environ.get("TMPDIR", "")
    variables["TMPDIR"] = str(directory.temporary)
    # Each rank keeps its log of events there, where the notebook can read it at any time.
    variables["TORCH_MPI4PY_EVENTS_DIR"] = str(directory.events)
    return variables


def unregister(directory: RuntimeDir, rank: int) -> None:
    """Tell the controller that an engine has ended, so that nobody waits for its results.

    This is what ipyparallel's nanny processes do, one beside each engine; the keeper does it
    for all of them.
    """
    import zmq
    from ipyparallel import util
    from jupyter_client.session import Session

    info = json.loads(directory.engine_file.read_text())
    session = Session(
        key=info["key"].encode(),
        signature_scheme=info["signature_scheme"],
        packer=info["pack"],
        unpacker=info["unpack"],
    )
    registration: zmq.Socket = zmq.Context.instance().socket(zmq.DEALER)
    registration.LINGER = 3000  # ms
    util.connect(registration, f"{info['interface']}:{info['registration']}")
    session.send(registration, "unregistration_request", content={"id": rank})
    registration.close()


def main() -> None:
    """Run a keeper configured by the JSON object in the first argument."""
    logging.basicConfig(format="%(asctime)s %(name)s: %(message)s", level=logging.INFO)
    asyncio.run(Keeper(**json.loads(sys.argv[1])).run())


if __name__ == "__main__":
    main()
