"""One detached process owns the cluster, and ends it when nobody wants it.

``python -m course_lib.cluster.keeper CONFIG`` runs in a session of its own, so neither a
restart nor the death of the notebook's kernel takes it along. It starts controller and
engines through ipyparallel's ``Cluster``, and listens on a Unix socket:

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
import sys
import time

from .runtime_dir import RuntimeDir, kill, started, tail

log = logging.getLogger("keeper")

_WATCH_INTERVAL_S = 0.1
_LOOK_AT_ENGINES_EVERY_S = 0.5
_TERM_PATIENCE_S = 2.0  # from SIGTERM to SIGKILL
_KILL_PATIENCE_S = 5.0  # from SIGKILL to giving up
_TELL_FOR_S = 2.0  # once all ranks have ended: who has died, to whoever waits for their cell


class Keeper:
    """Owns one cluster.

    Args:
        directory: its runtime directory.
        n: number of ranks.
        owner: the inherited socket of the process that started us.
        owner_pid: that process.
        grace: seconds to wait for another owner once the connection is gone.
        timeout: seconds until a start counts as failed.
    """

    def __init__(
        self,
        directory: RuntimeDir,
        n: int,
        owner: socket.socket,
        owner_pid: int,
        grace: float,
        timeout: float,
    ):
        self.directory = directory
        self.n = n
        self.grace = grace
        self.timeout = timeout
        self.state = "starting"
        self.error = ""
        self.stages: dict[int, str] = {}  # rank -> how far its start got
        self.engines: dict[int, int] = {}  # rank -> pid of the living
        self._born: dict[int, float | None] = {}  # rank -> when that process started
        self._looked_at_engines = 0.0
        self._ranks_over: float | None = None  # since when there is nobody left to run cells
        self.dead: list[int] = []
        self.members = list(range(n))  # engine of each rank; the dead leave it by a shrink
        self.cluster = None
        self._owner_socket = owner
        self._owner_pid: int | None = owner_pid
        self._owner_writer: asyncio.StreamWriter | None = None
        self._orphaned_at: float | None = None
        self._stop = asyncio.Event()
        self._politely = True
        self._waiting_for_stop: list[tuple[asyncio.StreamWriter, int]] = []
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
        self._connections.add(asyncio.create_task(self._connected(reader, writer, owns=True)))
        began = time.monotonic()
        try:
            await self._start()
            while not self._stop.is_set():
                self._watch(began)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stop.wait(), _WATCH_INTERVAL_S)
        finally:
            server.close()
            await self._teardown()

    async def _start(self) -> None:
        from ipyparallel import Cluster

        from .launchers import ControllerLauncher, EngineSetLauncher

        if self.directory.shared_memory is not None:
            self.directory.shared_memory.mkdir(mode=0o700)
        self.cluster = Cluster(
            engines=EngineSetLauncher,
            controller=ControllerLauncher,
            profile_dir=str(self.directory.profile),
            cluster_id="",
            cluster_file="",
            load_profile=False,
            shutdown_atexit=False,
            send_engines_connection_env=False,  # engines import torch while the controller starts
            delay=0,
            log=log,
        )
        try:
            await self.cluster.start_engines(self.n)
            await self.cluster.start_controller()
        except Exception as error:
            log.exception("could not start")
            self._fail(f"{type(error).__name__}: {error}")
        self._note_processes()

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
        if self.state in ("starting", "ready"):
            if self.cluster.controller.state == "after":
                # Once it has come up its log is full of what went well.
                came_up = self.state == "ready"
                lines = "" if came_up else tail(self.directory.logs / "controller.log")
                self._fail("the controller ended", lines)
            elif self.cluster.engine_set.state == "after" and self._have_told(now):
                self._fail("mpiexec ended", self._engine_lines())
        if now - self._looked_at_engines >= _LOOK_AT_ENGINES_EVERY_S:
            self._looked_at_engines = now
            self._look_at_engines()
        if self.state == "ready" and not self.engines and self._have_told(now):
            self._fail("all ranks have ended", self._engine_lines())

    def _have_told(self, now: float) -> bool:
        """Whether the notebook has had time to hear of the deaths of all ranks."""
        if self._ranks_over is None:
            self._ranks_over = now
        return self.state == "starting" or now - self._ranks_over >= _TELL_FOR_S

    def _look_at_engines(self) -> None:
        """Find those whose connection is held by somebody else, like a child forked in C."""
        for rank, pid in list(self.engines.items()):
            if started(pid) != self._born[rank]:
                self._engine_ended(rank)

    def _fail(self, reason: str, lines: str | None = None) -> None:
        lines = self._engine_lines() if lines is None else lines
        self.error = reason + (f"\nlast log lines:\n{lines}" if lines else "")
        self.state = "failed"
        log.error("%s", self.error)
        self._stop.set()

    def _progress(self) -> str:
        waiting = [rank for rank in range(self.n) if self.stages.get(rank) != "registered"]
        stages = {self.stages.get(rank, "not started") for rank in waiting}
        return f"waiting for ranks {waiting}, which got as far as: {', '.join(sorted(stages))}"

    def _engine_lines(self) -> str:
        """The last lines of the rank that is to blame, or else of mpiexec."""
        suspects = [*self.dead, *(r for r in range(self.n) if self.stages.get(r) != "registered")]
        for rank in suspects:
            lines = tail(self.directory.rank_log(rank))
            if lines:
                return f"(rank {rank})\n{lines}"
        return tail(self.directory.logs / "mpiexec.log")

    # ---- connections -------------------------------------------------------------------

    async def _connected(self, reader, writer, owns: bool = False) -> None:
        rank = None
        try:
            while line := await reader.readline():
                message = json.loads(line)
                operation = message.get("op")
                if operation == "engine":
                    rank = message["rank"]
                    self.engines[rank] = message["pid"]
                    self._born[rank] = started(message["pid"])
                    self.stages[rank] = "started"
                    self._note_processes()
                elif "stage" in message:
                    self._reached(rank, message["stage"])
                elif operation == "own":
                    owns = True
                    self._adopt(writer, message["pid"])
                    self._reply(writer, message, **self._status())
                elif operation is not None:
                    self._obey(operation, message, writer)
        except ConnectionError:
            pass  # the other side was killed: the same as closing
        finally:
            if rank is not None:
                self._engine_ended(rank)
            if owns and writer is self._owner_writer:
                self._orphan()
            writer.close()

    def _obey(self, operation: str, message: dict, writer) -> None:
        if operation == "status":
            self._reply(writer, message, **self._status())
        elif operation == "signal":
            for engine in message["engines"]:
                if engine in self.engines:
                    kill(self.engines[engine], message["signum"])
            self._reply(writer, message)
        elif operation == "shrunk":
            self.members = message["members"]
            self._reply(writer, message, **self._status())
        elif operation == "release":
            self.grace = message["grace"]
        elif operation == "stop":
            self._waiting_for_stop.append((writer, message["id"]))
            self._politely = message.get("politely", self._politely)
            self._stop.set()

    def _status(self) -> dict:
        return {
            "members": self.members,
            "state": self.state,
            "error": self.error,
            "progress": self._progress(),
            "dead": [rank for rank, engine in enumerate(self.members) if engine in self.dead],
            "pid": os.getpid(),
        }

    @staticmethod
    def _reply(writer, message: dict, **content) -> None:
        writer.write(json.dumps({"id": message["id"], **content}).encode() + b"\n")

    def _adopt(self, writer, pid: int) -> None:
        log.info("owned by process %s", pid)
        self._owner_writer, self._owner_pid = writer, pid
        self._orphaned_at = None

    def _orphan(self) -> None:
        log.info("the owner is gone")
        self._owner_writer = self._owner_pid = None
        self._orphaned_at = time.monotonic()

    def _reached(self, rank: int, stage: str) -> None:
        self.stages[rank] = stage
        everybody = list(self.stages.values())
        if self.state == "starting" and everybody.count("registered") == self.n:
            self.state = "ready"

    def _engine_ended(self, rank: int) -> None:
        if self._stop.is_set() or rank not in self.engines:
            return
        log.warning("rank %s (process %s) has ended", rank, self.engines.pop(rank))
        self.dead.append(rank)
        if self.state == "starting":
            self._fail(f"rank {rank} ended while starting (it had {self.stages[rank]})")
        else:
            unregister(self.directory, rank)

    # ---- the end -----------------------------------------------------------------------

    def _note_processes(self) -> None:
        self.directory.note_processes(self._processes())

    def _processes(self) -> list[int]:
        pids = list(self.engines.values())
        if self.cluster is not None:
            launchers = [self.cluster.engine_set, self.cluster.controller]
            pids += [item.pid for item in launchers if item is not None and item.pid > 0]
        return pids

    async def _teardown(self) -> None:
        if self.state != "failed":
            self.state = "stopping"
        with contextlib.suppress(FileNotFoundError):
            self.directory.socket.unlink()
        everything = with_descendants(self._processes())
        for signum, patience in (
            (signal.SIGTERM, _TERM_PATIENCE_S if self._politely else 0.0),
            (signal.SIGKILL, _KILL_PATIENCE_S),
        ):
            everything = list({*everything, *self.directory.strays()})
            for pid in everything:
                kill(pid, signum)
            deadline = time.monotonic() + patience
            while everything and time.monotonic() < deadline:
                await asyncio.sleep(0.02)
                everything = [pid for pid in everything if started(pid) is not None]
        if everything:
            log.error("processes %s cannot be killed", everything)
        report = {"stopped": True, "state": self.state, "error": self.error}
        self.directory.remove()
        for writer, number in self._waiting_for_stop:
            self._reply(writer, {"id": number}, **report)
        if self._owner_writer is not None:
            self._reply(self._owner_writer, {"id": None}, **report)
            with contextlib.suppress(ConnectionError):
                await self._owner_writer.drain()


def with_descendants(pids: list[int]) -> list[int]:
    """The living among ``pids``, and their children, and theirs."""
    import psutil

    found = {}
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            found[pid] = None
            found.update((child.pid, None) for child in process.children(recursive=True))
    return list(found)


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
    registration = zmq.Context.instance().socket(zmq.DEALER)
    registration.LINGER = 3000  # ms
    util.connect(registration, f"{info['interface']}:{info['registration']}")
    session.send(registration, "unregistration_request", content={"id": rank})
    registration.close()


def main() -> None:
    """Run a keeper configured by the JSON object in the first argument."""
    logging.basicConfig(format="%(asctime)s %(name)s: %(message)s", level=logging.INFO)
    config = json.loads(sys.argv[1])
    keeper = Keeper(
        directory=RuntimeDir(config["directory"]),
        n=config["n"],
        owner=socket.socket(fileno=config["owner_fd"]),
        owner_pid=config["owner_pid"],
        grace=config["grace"],
        timeout=config["timeout"],
    )
    asyncio.run(keeper.run())


if __name__ == "__main__":
    main()
