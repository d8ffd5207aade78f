"""The keeper's connection to the agent of another host, and the handling of a lost host.

It goes through ssh, which encrypts and authenticates it, or in a job through Slurm's srun.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import time
from collections.abc import Callable
from functools import partial
from typing import IO, Any

from .agent import GREETING
from .exchange import LIMIT, Channel, encoded
from .hosts import HostError, to_try
from .runtime_dir import CLUSTER_VARIABLE, RuntimeDir, python, tail

log = logging.getLogger("host")

LEASE_S = 3.5
"""An agent that has heard nothing for this time ends its ranks."""
_LOST_AFTER_S = 4.5  # without an answer; by then the lease is over
_BEAT_EVERY_S = 0.5
_HELLO_WITHIN_S = 60.0
_ANSWER_WITHIN_S = 5.0
_STOPPED_WITHIN_S = 10.0  # the agent gives its processes 7 s
_SWEPT_WITHIN_S = 15.0
_COMMAND_NOT_FOUND = 127


class HostLink:
    """An agent on another host.

    Args:
        host: its name.
        reach: returns the command that runs a given command on a given host.
        directory: the cluster's.
        news: called for each unsolicited message with its operation, the host, and the rest by
            name.
        lost: called once, with the host and the reason, if the agent ends unasked or falls silent.
    """

    def __init__(
        self,
        host: str,
        reach: Callable[[str, list[str]], list[str]],
        directory: RuntimeDir,
        news: Callable[..., None],
        lost: Callable[[str, str], None],
    ) -> None:
        self.host = host
        self.is_lost = False
        self._reach = reach
        self._directory = directory
        self._news = news
        self._tell_lost = lost
        self.processes: list[int] = []  # of ours, here, that reach the host
        self._process: asyncio.subprocess.Process
        self._channel: Channel
        self._offset, self._shortest = 0.0, float("inf")
        self._is_open = False
        self._stopping = False
        self._tasks: list[asyncio.Task] = []

    async def open(self) -> dict[str, Any]:
        """Start the agent; return its description of its host.

        Raises:
            HostError: if there is no agent within 60 s, or it cannot work there.
        """
        self._process = await self._run("-m", "ipyranks.agent")
        settings = {"directory": str(self._directory.path), "lease_s": LEASE_S}
        self._process.stdin.write(encoded(**settings))  # type: ignore[union-attr]
        try:
            said = await asyncio.wait_for(self._greeting(), _HELLO_WITHIN_S)
        except TimeoutError:
            raise HostError(self._why("did not answer", f"within {_HELLO_WITHIN_S:g} s")) from None
        if said["problem"]:
            raise HostError(
                f"{self.host}: {said['problem']}. Name each host only once; each needs "
                f"its own {self._directory.path.parent}. If hosts share that folder, name another "
                "one in IPYRANKS_RUNTIME_DIR"
            )
        self._is_open = True
        self._channel = Channel(self._process.stdout, self._process.stdin)  # type: ignore[arg-type]
        self._tasks = [asyncio.create_task(self._listen()), asyncio.create_task(self._beat())]
        return said

    async def _run(self, *arguments: str) -> asyncio.subprocess.Process:
        variables = {CLUSTER_VARIABLE: str(self._directory.path)}
        variables |= {
            n: os.environ[n] for n in ("PYTHONPATH", "IPYRANKS_RUNTIME_DIR") if n in os.environ
        }
        settings = [f"{name}={value}" for name, value in variables.items()]
        command = self._reach(self.host, ["env", *settings, *python(*arguments)])
        with self._open_log() as output:
            try:
                process = await asyncio.create_subprocess_exec(
                    *command,
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=output,
                    limit=LIMIT,
                    start_new_session=True,
                )
            except FileNotFoundError as error:
                raise HostError(
                    f"{self.host} can't be reached: there is no program {command[0]!r} on this "
                    "host's PATH; install it"
                ) from error
        self.processes.append(process.pid)
        return process

    def _open_log(self) -> IO[bytes]:
        return open(self._directory.logs / f"agent-{self.host}.log", "ab")

    async def _greeting(self) -> dict[str, Any]:
        while line := await self._process.stdout.readline():  # type: ignore[union-attr]
            before, greeting, said = line.decode(errors="replace").partition(GREETING)
            if greeting:
                return json.loads(said)
            log.info("%s says %r", self.host, before)
        status = await self._process.wait()
        if status == _COMMAND_NOT_FOUND:
            what = f"has no {python()[0]}"
            raise HostError(
                self._why(what, "the checkout and its .venv must have the same path on every host")
            )
        by_hand = to_try(self._reach(self.host, ["true"]))
        raise HostError(self._why("cannot be used", f"this command must succeed:  {by_hand}"))

    def _why(self, what: str, advice: str) -> str:
        lines = tail(self._directory.logs / f"agent-{self.host}.log", 5)
        return f"{self.host} {what}: {advice}" + (f"\n{lines}" if lines else "")

    # ---- while it lives ------------------------------------------------------------------

    def tell(self, operation: str, /, **content: Any) -> None:
        """Tell the agent something."""
        self._channel.tell(operation, **content)

    async def ask(self, question: str, **arguments: Any) -> Any:
        """The state of its ranks (:meth:`.BoardsHere.look`); None if no answer comes."""
        if self.is_lost or self._stopping:
            return None
        answer = self._channel.ask("look", question=question, offset=self._offset, **arguments)
        try:
            return await asyncio.wait_for(answer, _ANSWER_WITHIN_S)
        except TimeoutError:
            return None

    async def _listen(self) -> None:
        await self._channel.listen(self._hear)
        self._lose("its agent has ended")

    def _hear(self, operation: str, _: object, **content: Any) -> None:
        if operation == "alone":
            self._lose(f"its agent has ended the ranks ({content['why']})")
        elif operation != "gone":
            self._news(operation, self.host, **content)

    async def _beat(self) -> None:
        """Keep the lease, measure the agent's clock, and check that it lives."""
        while self._process.returncode is None:
            asked = partial(self._note_time, time.perf_counter())
            self._channel.ask("beat").add_done_callback(asked)
            await asyncio.sleep(_BEAT_EVERY_S)
            if self._is_silent():
                self._lose(f"it has not answered for {_LOST_AFTER_S:g} s")
                return  # an agent that lives is to notice that its lease is over

    def _is_silent(self) -> bool:
        return time.monotonic() - self._channel.heard_at > _LOST_AFTER_S

    def _note_time(self, sent: float, told: asyncio.Future) -> None:
        now = time.perf_counter()
        # The quickest answer has the most certain time.
        if told.result() is not None and now - sent < self._shortest:
            self._shortest = now - sent
            self._offset = (sent + now) / 2 - told.result()

    def _lose(self, why: str) -> None:
        if self.is_lost or self._stopping:
            return
        self.is_lost = True
        self._channel.abandon()
        self._tell_lost(self.host, why)

    # ---- the end -------------------------------------------------------------------------

    async def close(self, politely: bool) -> None:
        """Have all processes of the cluster on the host ended, and every trace removed."""
        if not hasattr(self, "_process"):
            return
        self._stopping = True
        if not self._is_open:  # it has created nothing there, and ends with its connection
            if self._process.returncode is None:
                self._process.kill()
            return
        self.tell("stop", politely=politely)
        gone = False
        if not self.is_lost:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), _STOPPED_WITHIN_S)
                gone = self._process.returncode == 0
        for task in self._tasks:
            task.cancel()
        cut_off = False
        if self._process.returncode is None:
            cut_off = self._is_silent()
            self._process.kill()
        if (
            not gone and not cut_off
        ):  # otherwise its lease ends, and the ranks on it end by themselves
            await self.sweep()

    async def sweep(self) -> None:
        """End what is left on the host through a second connection, if it can be reached."""
        sweeper = await self._run("-m", "ipyranks.agent", "--sweep", str(self._directory.path))
        try:
            await asyncio.wait_for(sweeper.wait(), _SWEPT_WITHIN_S)
        except TimeoutError:
            log.error("%s cannot be reached: what is left there ends by itself", self.host)
            sweeper.kill()
