"""The process behind a cluster: it starts, watches and ends the controller and the engines.

``python -m ipyranks.keeper CONFIG`` runs in a session of its own, so neither a
restart nor the death of the notebook's kernel takes it along. It listens on a Unix socket:

- the owner (a kernel) holds a connection; when that breaks and no kernel adopts the cluster within
  the grace time, everything is stopped and every trace removed;
- engines and controller hold one each; they end when the keeper does.

On other hosts agents represent the ranks (:mod:`.host_link`). :mod:`.exchange` defines how all of
them communicate.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch_mpi4py import launch
from torch_mpi4py.core.versions import differences

from .cores import StartClock, waits
from .exchange import Channel
from .host_link import HostLink
from .hosts import (
    HostError,
    address_towards,
    by_ssh,
    common_network,
    filled,
    interfaces,
    is_here,
    known_address,
    versions,
)
from .launching import engine_environment, over_hosts
from .ranks_here import RanksHere
from .registration import unregister
from .runtime_dir import RuntimeDir, family, living, python, tail
from .slurm import Allocation, allocate, is_inside, outside

log = logging.getLogger("keeper")

_WATCH_EVERY_S = 0.5
_LOOK_AT_CLOCK_EVERY_S = 1.0
_LOOPBACK = "127.0.0.1"
_LOOK_FOR_FILE_EVERY_S = 0.05
# The stages of an engine's start, and the words for a rank that has passed them.
_STAGES = {
    "not started": "",
    "started": "have started",
    "imported torch": "have torch",
    "started MPI": "have MPI",
    "registered": "are registered",
}
_TELL_FOR_S = 2.0  # once all ranks have ended: which have died, to kernels that wait for their cell


@dataclass
class KnownEngine:
    """The keeper's knowledge of an engine.

    Attributes:
        pid: its process.
        host: the host whose agent represents it; empty if it is this one.
        stage: how far its own start has got.
        description: its description of itself once it is registered.
        lives: whether it has not ended.
        last_words: the last lines of its log, if it has ended on another host.
    """

    pid: int
    host: str
    stage: str = "started"
    description: dict[str, Any] | None = None
    lives: bool = True
    last_words: str = ""


class Keeper:
    """Owns one cluster.

    Args:
        directory: its runtime directory.
        n: number of ranks.
        owner_fd: the inherited socket of the process that started us.
        owner_pid: that process.
        grace: seconds to wait for another owner once the connection is gone.
        within: seconds until a start counts as failed: of its own time, and in any case.
        hosts: how many ranks run on each host; None if all run here.
        slurm: how to ask Slurm for hosts, None without Slurm; empty in its own job.
    """

    def __init__(
        self,
        directory: str,
        n: int,
        owner_fd: int,
        owner_pid: int,
        grace: float,
        within: tuple[float, float],
        hosts: dict[str, int] | None,
        slurm: dict[str, Any] | None,
    ):
        self.directory = RuntimeDir(directory)
        self.n = n
        self.hosts = hosts
        self._where = {"hosts": hosts, "slurm": slurm}  # as requested
        self.ranks = RanksHere(self.directory, self._engine_says, self._engine_ended)
        self.links: dict[str, HostLink] = {}
        self._lost_hosts: list[str] = []
        self._slurm = slurm
        self._allocation: Allocation | None = None
        self._queue = ""  # why the job still waits
        self.grace = grace
        self._within = within
        self._clock = StartClock(time.monotonic(), *within)
        self._looked_at_clock = 0.0
        self.state = "starting"
        self.error = ""
        self.engines: dict[int, KnownEngine] = {}  # those that have come, by number
        self.members = list(range(n))  # engine of each rank; the dead leave it by a shrink
        self._controller: subprocess.Popen | None = None
        self._mpiexec: subprocess.Popen | None = None
        self._ranks_over: float | None = None  # since when no rank is left to run cells
        self._owner_socket = socket.socket(fileno=owner_fd)
        self._owner_pid: int | None = owner_pid
        self._owner: Channel | None = None
        self._orphaned_at: float | None = None
        self._stop = asyncio.Event()
        self._politely = True

    async def run(self) -> None:
        """Start the cluster, keep it, and stop it."""
        self.directory.hold()
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(signum, self._stop.set)
        server = await asyncio.start_unix_server(self._connected, self.directory.socket)
        self.directory.socket.chmod(0o600)
        self._owner = Channel(*await asyncio.open_unix_connection(sock=self._owner_socket))
        serving = asyncio.create_task(self._serve(self._owner))
        try:
            starting = asyncio.create_task(self._start())
            while not self._stop.is_set():
                self._watch()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stop.wait(), _WATCH_EVERY_S)
        finally:
            server.close()
            starting.cancel()
            await asyncio.wait([starting])
            await self._teardown()
            serving.cancel()

    async def _start(self) -> None:
        folder = str(self.directory.path)
        try:
            if self._slurm is not None:
                await self._allocate(self._slurm)
            address, network = _LOOPBACK, None
            if self.hosts is not None:
                address, network = await self._reach(self.hosts)
            # If the keeper is killed its ranks end, and mpiexec with them.
            engines = launch.mpiexec(self.n, *python("-m", "ipyranks.engine", folder))
            variables = engine_environment(self.directory)
            if self.hosts is not None:
                engines, variables = over_hosts(
                    engines, variables, self.hosts, self.directory, network
                )
            if self._allocation is None:
                variables = outside(variables)  # of a job that has other hosts than these
            else:
                variables |= self._allocation.variables
            self._mpiexec = self._run("mpiexec", engines, variables)
            controller = python("-m", "ipyranks.controller", folder, address, str(self.n))
            self._controller = self._run("controller", controller)
            # `unregister` needs it. Importing it now, while the ranks import torch, saves time when
            # a rank dies. A thread does it, because the notebook's requests can't wait.
            await asyncio.to_thread(importlib.import_module, "ipyparallel.util")
            if self.links:
                await self._pass_connection_on()
        except HostError as error:
            self._fail(str(error), "")
        except Exception as error:
            log.exception("could not start")
            self._fail(f"{type(error).__name__}: {error}")

    async def _allocate(self, settings: dict[str, Any]) -> None:
        """Get hosts from Slurm: those of the job we run in, or of a new one.

        Raises:
            HostError: if there are none.
        """
        if is_inside():
            self._allocation = await asyncio.to_thread(Allocation.of_variables, os.environ)
        else:
            self.state = "queued"

            def tell(line: str) -> None:
                self._queue = line

            self._allocation = await allocate(self.n, settings, tell)
            self.state, self._clock = "starting", StartClock(time.monotonic(), *self._within)
        slots = self._allocation.hosts
        if (tasks := sum(slots.values())) < self.n:
            raise HostError(
                f"Slurm's job {self._allocation.job} has {tasks} task{'s' * (tasks > 1)}, too few "
                f"for {self.n} ranks: ask for --ntasks={self.n}, or run all ranks in the job's "
                "part of this node: export IPYRANKS_CLUSTER=local"
            )
        self.hosts = filled(slots, self.n)

    async def _reach(self, hosts: dict[str, int]) -> tuple[str, str | None]:
        """Have an agent on every other host.

        Returns:
            The address at which they all see this one, and the network it is in; None instead of
            the network if not all of them are in it.

        Raises:
            HostError: if a host cannot be used, or they see this one at different addresses.
        """
        by_slurm = self._allocation is not None
        reach = by_ssh if self._allocation is None else self._allocation.on_host
        others = [host for host in hosts if not is_here(host)]
        if not others:
            return _LOOPBACK, None
        self.links = {
            host: HostLink(host, reach, self.directory, self._news, self._host_lost)
            for host in others
        }
        said = await asyncio.gather(*(link.open() for link in self.links.values()))
        ours, here, addresses = versions(), interfaces(), {}
        asked = os.environ.get("IPYRANKS_ADDRESS", "")
        for host, hello in zip(others, said, strict=True):
            if differs := differences(ours, hello["versions"]):
                raise HostError(
                    f"{host} has {', '.join(differs)}: every host needs the same versions as this "
                    "one; install them there (in the course, with make setup)"
                )
            # srun passes on our variables: this is the connection of a user who came here by ssh.
            connection = "" if by_slurm else hello["connection"]
            if not asked:
                addresses[host] = address_towards(host, connection, here)
        if len(set(addresses.values())) > 1:
            seen = ", ".join(f"{host} at {address}" for host, address in addresses.items())
            raise HostError(
                f"the hosts see this one at different addresses ({seen}): set IPYRANKS_ADDRESS to "
                "one that all of them can reach"
            )
        address = (
            addresses[others[0]]
            if not asked
            else known_address(asked, f"IPYRANKS_ADDRESS says that this host is at {asked}", here)
        )
        theirs = [hello["interfaces"] for hello in said]
        return address, common_network(address, here, theirs)

    async def _pass_connection_on(self) -> None:
        """Give the agents what their engines need to find the controller, once it is there."""
        path, text = self.directory.engine_file, ""
        while not self._stop.is_set():
            with contextlib.suppress(OSError, json.JSONDecodeError):
                text = path.read_text()
                json.loads(text)  # the controller writes it in place
                break
            await asyncio.sleep(_LOOK_FOR_FILE_EVERY_S)
        for link in self.links.values():
            link.tell("file", path=str(path), text=text)

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

    def _watch(self) -> None:
        """Look at everything that may have ended."""
        now = time.monotonic()
        if self._owner_pid is not None and living(self._owner_pid) is None:
            self._orphan()
        # Before it is ready, nothing has used it.
        grace = 0 if self.state in ("queued", "starting") else self.grace
        if self._orphaned_at is not None and now - self._orphaned_at >= grace:
            log.info("no notebook took over the cluster within %s s", grace)
            self._stop.set()
        if self.state == "starting":
            self._watch_the_clock(now)
        if self.state == "failed":
            return
        self.ranks.look_after()
        ready = self.state == "ready"
        if self._controller is None or self._mpiexec is None:
            return  # the other hosts are still being reached
        if self._controller.poll() is not None:
            # Once it has come up, its log is full of successes.
            lines = "" if ready else tail(self.directory.logs / "controller.log")
            self._fail("the controller ended", lines)
        elif self._mpiexec.poll() is not None:
            self._ranks_have_ended("mpiexec ended", now)
        elif ready and not any(engine.lives for engine in self.engines.values()):
            self._ranks_have_ended("all ranks have ended", now)

    def _watch_the_clock(self, now: float) -> None:
        """End a start that has taken too long."""
        clock = self._clock
        if now - self._looked_at_clock >= _LOOK_AT_CLOCK_EVERY_S:
            self._looked_at_clock = now
            clock.look(now, waits(family(os.getpid())))
        if clock.is_over(now):
            seconds = now - clock.began
            waited = seconds - clock.at(now)
            busy = f"; for {waited:.0f} s of that, no core was free" if waited > seconds / 2 else ""
            self._fail(f"not ready after {seconds:.0f} s ({self._progress()}{busy})")

    def _ranks_have_ended(self, how: str, now: float) -> None:
        """Give the notebook time to learn of the deaths of all ranks before the cluster ends."""
        if self._ranks_over is None:
            self._ranks_over = now
        if self.state == "starting" or now - self._ranks_over >= _TELL_FOR_S:
            self._fail(how)

    def _fail(self, reason: str, lines: str | None = None) -> None:
        lines = self._engine_lines() if lines is None else lines
        self.error = reason + (f"\nlast log lines:\n{lines}" if lines else "")
        self.state = "failed"
        log.error("%s", self.error)
        self._stop.set()

    def _missing(self) -> dict[int, str]:
        """The engines that are not registered yet, with the stage of each."""
        stages = dict.fromkeys(range(self.n), "not started")
        stages |= {number: engine.stage for number, engine in self.engines.items()}
        return {number: stage for number, stage in stages.items() if stage != "registered"}

    def _progress(self) -> str:
        if self.state == "queued":
            return self._queue
        missing = self._missing()
        far = ", ".join(sorted(set(missing.values())))
        return f"waiting for ranks {list(missing)}, which have got as far as: {far}"

    def _step(self) -> str:
        """How far the start has got, for a waiting kernel: ``2 of 4 ranks have torch``."""
        stages, order = [*self._missing().values()], list(_STAGES)
        behind = min(map(order.index, stages), default=len(order) - 2)
        done = self.n - sum(order.index(stage) <= behind for stage in stages)
        step = f"{done} of {self.n} ranks {_STAGES[order[behind + 1]]}"
        return f"waiting for a core: {step}" if self._clock.crowded else step

    def _engine_lines(self) -> str:
        """The last lines of the rank that is to blame, or else of mpiexec."""
        dead = [number for number, engine in self.engines.items() if not engine.lives]
        for rank in [*dead, *self._missing()]:
            known = self.engines.get(rank)
            lines = (known and known.last_words) or tail(self.directory.rank_log(rank))
            if lines:
                return f"(rank {rank})\n{lines}"
        return tail(self.directory.logs / "mpiexec.log")

    # ---- connections -------------------------------------------------------------------

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._serve(Channel(reader, writer))

    async def _serve(self, channel: Channel) -> None:
        try:
            await self.ranks.serve(channel, partial(self._obey, channel))
        finally:
            if channel is self._owner:
                self._orphan()

    def _engine_says(
        self,
        number: int,
        pid: int,
        stage: str,
        description: dict[str, Any] | None,
        host: str = "",
    ) -> None:
        if number not in self.engines:
            self.engines[number] = KnownEngine(pid, host)
        self.engines[number].stage = stage
        self.engines[number].description = description
        self._clock.step()
        if self.state == "starting" and not self._missing():
            self.state = "ready"
            passed, own = time.monotonic() - self._clock.began, self._clock.seconds
            log.info("ready after %.1f s, of which %.1f s of its own", passed, own)

    def _obey(
        self, channel: Channel, operation: str, reply: Callable[[Any], None], **content: Any
    ) -> None:
        if operation == "look":
            reply(self.links[content.pop("host")].ask(**content))
            return
        if operation == "stop":  # which is answered when nothing is left
            self._politely &= content["politely"]
            self._stop.set()
            return
        if operation == "own":
            log.info("owned by process %s", content["pid"])
            self._owner, self._owner_pid = channel, content["pid"]
            self._orphaned_at = None
        elif operation == "signal":
            self.ranks.signal(**content)
            for link in self.links.values():
                link.tell("signal", **content)
        elif operation == "shrunk":
            self.members = content["members"]
        if not self._lost_hosts:  # else the last words, which come at once, are the answer
            reply(self._status())

    def _status(self) -> dict:
        members = [self.engines.get(number) for number in self.members]
        return {
            "state": self.state,
            "error": self.error,
            "progress": self._progress(),
            "step": self._step(),
            "dead": [rank for rank, one in enumerate(members) if one is not None and not one.lives],
            "pid": os.getpid(),
            "members": self.members,
            "where": self._where,
            "descriptions": [one and one.description for one in members],
            "elsewhere": {number: one.host for number, one in self.engines.items() if one.host},
        }

    def _news(self, operation: str, host: str, **content: Any) -> None:
        """Handle an agent's unsolicited message."""
        if operation == "engine":
            self._engine_says(host=host, **content)
        elif operation == "ended":
            self.engines[content["number"]].last_words = content["lines"]
            self._engine_ended(content["number"])

    def _host_lost(self, host: str, why: str) -> None:
        """End the cluster: MPI can't go on without a host, and may not even notice that it is gone.

        A call that waits for one of its ranks can't always be freed, so all ranks are killed at
        once.
        """
        self._lost_hosts.append(host)
        if self.state == "failed":
            return
        self._politely = False
        during = " while the ranks were starting" if self.state == "starting" else ""
        self._fail(f"{host} was lost{during}: {why}", "")

    def _orphan(self) -> None:
        log.info("the owner is gone")
        self._owner = self._owner_pid = None
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

    def _needed_to_the_end(self) -> list[int]:
        """The processes that reach other hosts, which have to be left in order."""
        found = [pid for link in self.links.values() for pid in link.processes]
        if self._allocation is not None and self._allocation.process is not None:
            found.append(self._allocation.process.pid)
        return found

    async def _teardown(self) -> None:
        if self.state != "failed":
            self.state = "stopping"
        with contextlib.suppress(FileNotFoundError):
            self.directory.socket.unlink()
        await asyncio.gather(
            self.ranks.end_processes(self._politely, self._needed_to_the_end),
            *(link.close(self._politely) for link in self.links.values()),
        )
        if self._allocation is not None:
            if self.state == "failed" and (why := await self._allocation.why_it_ended()):
                self.error = why
                self._lost_hosts = []  # they are well, and may be had again
            await self._allocation.end()
        self.directory.remove()
        if self._owner is not None:
            self._owner.tell("stopped", error=self.error, lost_hosts=self._lost_hosts)
            with contextlib.suppress(ConnectionError):
                await self._owner.drain()


def main() -> None:
    """Run a keeper configured by the JSON object in the first argument."""
    logging.basicConfig(format="%(asctime)s %(name)s: %(message)s", level=logging.INFO)
    asyncio.run(Keeper(**json.loads(sys.argv[1])).run())


if __name__ == "__main__":
    main()
