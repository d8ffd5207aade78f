"""Represents the ranks on a host other than the notebook's; the keeper has one on each.

The keeper starts it by ssh, and the connection's two ends are its standard input and output. So it
needs no port and no key of its own, and notices the end of the keeper. It makes the cluster's
runtime directory on its host, and removes it completely in the end.

It has a lease: if it has not heard from the keeper for that long, or their connection has ended, it
ends all of the cluster's processes on its host. The keeper gives up such a host a little later, and
ends the cluster, so two parts of a cluster never go on without each other.

They communicate as in :mod:`.exchange`, except for the first line each way: the settings, and the
agent's identity.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from .boards import BoardsHere
from .exchange import LIMIT, Channel
from .hosts import interfaces, versions
from .ranks_here import RanksHere
from .runtime_dir import RuntimeDir, sweep_stale, tail

log = logging.getLogger("agent")

GREETING = "rank-by-rank agent"
"""The prefix of the line that identifies the agent; a login script may print before it."""

_WATCH_EVERY_S = 0.5


class Agent:
    """Represents the ranks of this host.

    Args:
        directory: the cluster's runtime directory, the same path as on the keeper's host.
        lease_s: seconds without a word of the keeper after which the ranks are ended.
        keeper: the channel to it.
    """

    def __init__(self, directory: RuntimeDir, lease_s: float, keeper: Channel) -> None:
        self.directory = directory
        self.ranks = RanksHere(directory, partial(keeper.tell, "engine"), self._ended)
        self._boards = BoardsHere(directory.events, self.ranks.signal)
        self._lease_s = lease_s
        self._keeper = keeper
        self._stop = asyncio.Event()
        self._politely = False

    async def run(self) -> None:
        """Answer requests until the keeper stops the agent, or is gone."""
        server = await asyncio.start_unix_server(self._connected, self.directory.socket)
        self.directory.socket.chmod(0o600)
        listening = asyncio.create_task(self._listen())
        for signum in (signal.SIGTERM, signal.SIGHUP):  # as Slurm ends a job, with seconds to go
            asyncio.get_running_loop().add_signal_handler(signum, self._stop.set)
        while not self._stop.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), _WATCH_EVERY_S)
            if time.monotonic() - self._keeper.heard_at > self._lease_s:
                self._end_alone(f"the keeper has not answered for {self._lease_s} s")
            self.ranks.look_after()
        server.close()
        left = await self.ranks.end_processes(self._politely)
        self.directory.remove()
        self._keeper.tell("gone", left=left)
        listening.cancel()

    def _end_alone(self, why: str) -> None:
        """End the ranks and this agent: no results from now on would be used."""
        log.error("%s: the ranks end", why)
        self._keeper.tell("alone", why=why)  # so that no other cause of the deaths is reported
        self._stop.set()

    async def _listen(self) -> None:
        await self._keeper.listen(self._obey)
        if not self._stop.is_set():
            self._end_alone("the connection to the keeper has ended")

    def _obey(self, operation: str, reply: Callable[[Any], None], **content: Any) -> None:
        if operation == "beat":
            reply(time.perf_counter())
        elif operation == "look":
            # In a thread, because a rank in C code may take seconds to report its position.
            reply(asyncio.to_thread(self._boards.look, **content))
        elif operation == "signal":
            self.ranks.signal(**content)
        elif operation == "file":
            _write(Path(content["path"]), content["text"])
        elif operation == "stop":
            self._politely = content["politely"]
            self._stop.set()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self.ranks.serve(Channel(reader, writer))

    def _ended(self, number: int) -> None:
        if not self._stop.is_set():
            lines = tail(self.directory.rank_log(number))
            self._keeper.tell("ended", number=number, lines=lines)


def _write(path: Path, text: str) -> None:
    """Write a file for this user alone, whole at the moment it is there."""
    path.parent.mkdir(mode=0o700, exist_ok=True)
    young = path.with_suffix(".new")
    with open(os.open(young, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    young.rename(path)


async def _serve() -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=LIMIT)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    ours = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # any output here must not end up between the messages
    transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, ours)
    writer = asyncio.StreamWriter(transport, protocol, None, loop)
    settings = json.loads(await reader.readline())
    directory, problem = RuntimeDir(settings["directory"]), ""
    try:
        sweep_stale()
        directory.make()
        directory.hold()
    except OSError as error:
        problem = f"{type(error).__name__}: {error}"
    said = {
        "problem": problem,
        "versions": versions(),
        "connection": os.environ.get("SSH_CONNECTION", ""),
        "interfaces": [str(one) for one in interfaces()],
    }
    writer.write(f"{GREETING} {json.dumps(said)}\n".encode())
    if not problem:
        await Agent(directory, settings["lease_s"], Channel(reader, writer)).run()
    with contextlib.suppress(ConnectionError, TimeoutError):
        await asyncio.wait_for(writer.drain(), 1.0)
        writer.close()


def main() -> None:
    """Run an agent, or with ``--sweep DIRECTORY`` end what is left of a cluster on this host."""
    logging.basicConfig(format="%(asctime)s %(name)s: %(message)s", level=logging.INFO)
    if sys.argv[1:2] == ["--sweep"]:
        RuntimeDir(sys.argv[2]).sweep()
    else:
        asyncio.run(_serve())


if __name__ == "__main__":
    main()
