"""The notebook's end of the connection to the keeper, which keeps a cluster alive.

As long as a :class:`NotebookClient` is open, the keeper knows that the cluster has an owner.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

from .errors import ClusterError, StartError
from .exchange import BlockingChannel
from .runtime_dir import CLUSTER_VARIABLE, RuntimeDir, kill, no_room, python, tail
from .stop_button import StopButton

_POLL_S = 0.02
_ANSWER_WITHIN_S = 15.0  # immediate, unless the machine has many busy ranks
_ANSWER_AT_START_WITHIN_S = 60.0  # if many start at once, the keeper waits for a core, too
_TELL_AFTER_S = 15.0  # how far a start has got; most are over by then


class NotebookClient:
    """Asks the keeper, one question at a time.

    Args:
        connection: a socket connected to the keeper.
        directory: the cluster's runtime directory.
        process: the keeper, if we started it.

    Attributes:
        lost_hosts: the hosts whose loss has ended the cluster.
    """

    def __init__(self, connection: socket.socket, directory: RuntimeDir, process: Any = None):
        self.directory = directory
        self.process: subprocess.Popen | None = process
        self._channel = BlockingChannel(connection)
        self._lock = threading.RLock()
        self._number = 0
        self._end: str | None = None  # why it has ended; empty if on request
        self.lost_hosts: list[str] = []
        self._owner_pid = os.getpid()

    @classmethod
    def start(
        cls,
        button: StopButton,
        key: str,
        n: int,
        grace: float,
        within: tuple[float, float],
        hosts: dict[str, int] | None = None,
        slurm: dict[str, Any] | None = None,
    ) -> NotebookClient:
        """Start a cluster and wait until all ranks are registered; leave nothing otherwise.

        ``button`` ends the wait, and may not interrupt anything else.

        Raises:
            KeyboardInterrupt: if it was pressed.
            StartError: if it does not start; the message says why.
        """
        directory = RuntimeDir.create(key)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        config = {
            "directory": str(directory.path),
            "n": n,
            "owner_fd": theirs.fileno(),
            "owner_pid": os.getpid(),
            "grace": grace,
            "within": within,
            "hosts": hosts,
            "slurm": slurm,
        }
        environment = os.environ.copy()
        importable = [environment.get("PYTHONPATH"), str(Path(__file__).parents[2])]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, importable))
        # Neither the user's IPython settings nor a read-only home directory matters there.
        environment["IPYTHONDIR"] = str(directory.path / "ipython")
        environment[CLUSTER_VARIABLE] = str(directory.path)
        with theirs, open(directory.keeper_log, "ab") as log:
            process = subprocess.Popen(
                python("-m", "ipyranks.keeper", json.dumps(config)),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[theirs.fileno()],
                env=environment,
                start_new_session=True,
            )
        client = cls(ours, directory, process)
        try:
            with button.listening():
                client.await_ready(within[1])
        except BaseException:
            client.stop()
            raise
        return client

    @classmethod
    def adopt(cls, key: str) -> NotebookClient | None:
        """Become the owner of a running cluster; None if there is none."""
        for directory in RuntimeDir.find(key):
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                connection.connect(str(directory.socket))
                client = cls(connection, directory)
                client.ask("own", pid=os.getpid())
            except (OSError, ClusterError):
                connection.close()  # just ending, or swept later
                continue
            return client
        return None

    def await_ready(self, timeout: float) -> None:
        """Return once all ranks are registered.

        Raises:
            StartError: if they are not within ``timeout`` seconds; the message says why.
        """
        began = told_at = time.monotonic()
        deadline = began + timeout + 15  # the keeper has the same limit, and a reason
        told = ""
        while True:
            try:
                status = self.ask("status", _ANSWER_AT_START_WITHIN_S)
            except ClusterError as error:
                reason = self.why_it_ended() or error
                raise StartError(f"the cluster did not start: {reason}") from None
            now = time.monotonic()
            if status["state"] == "ready":
                return
            if status["state"] == "queued":
                if status["progress"] != told:
                    told = status["progress"]
                    print(told, flush=True)
                began = told_at = now
                deadline = now + timeout + 15
            elif status["state"] != "starting":
                raise StartError(f"the cluster did not start: {status['error']}{no_room()}")
            elif now - told_at >= _TELL_AFTER_S and status["step"] != told:
                told, told_at = status["step"], now
                print(f"{now - began:.0f} s: {told}", flush=True)
            if now > deadline:
                raise StartError(f"the cluster did not start: {status['progress']}")
            time.sleep(_POLL_S)

    def ask(self, operation: str, within: float = _ANSWER_WITHIN_S, **content: Any) -> Any:
        """Send a request and return the answer.

        Raises:
            ClusterError: if the cluster has stopped (the message says why) or does not answer
                within ``within`` seconds.
        """
        with self._lock:
            self._send(operation, **content)
            deadline = time.monotonic() + within
            while self._end is None:
                try:
                    message = self._channel.receive(deadline) or self._last_words()
                except TimeoutError:
                    raise ClusterError(
                        f"the cluster's keeper did not answer {operation!r} in time; "
                        "start_cluster(replace=True) starts a fresh cluster"
                    ) from None
                if message.get("op") == "stopped":
                    self._end, self.lost_hosts = message["error"], message["lost_hosts"]
                elif message["id"] == self._number:
                    return message["answer"]
        if operation == "stop":
            return None
        advice = "start_cluster() starts a fresh one"
        if self.lost_hosts:
            advice = "All variables are lost; cluster.restart() starts fresh ranks on other hosts."
        raise ClusterError(f"the cluster has ended: {self.why_it_ended()}\n{advice}")

    def _send(self, operation: str, **content: Any) -> None:
        self._number += 1
        # A keeper that is gone cannot be told, but its last message can still be read.
        with contextlib.suppress(OSError):
            self._channel.send(op=operation, id=self._number, **content)

    def _last_words(self) -> dict[str, Any]:
        """The substitute for the last message of a keeper that ended without one."""
        lines = tail(self.directory.keeper_log)
        words = f"\nlast log lines:\n{lines}" if lines else ""
        error = f"its keeper was killed or failed{words}"
        return {"op": "stopped", "error": error, "lost_hosts": []}

    def why_it_ended(self) -> str | None:
        """Why the cluster has stopped; None if it has not, as far as is known."""
        return None if self._end is None else self._end or "it was stopped"

    @property
    def was_stopped(self) -> bool:
        """Whether the cluster has ended on request."""
        return self._end == ""

    def begin_stop(self, politely: bool) -> None:
        """Have every process of the cluster ended, without waiting for it; :meth:`stop` does.

        Args:
            politely: they get 2 s after SIGTERM.
        """
        with self._lock:
            if self._end is None:
                self._send("stop", politely=politely)

    def stop(self, within: float = 15.0) -> None:
        """Stop the cluster and wait until nothing of it is left.

        Raises:
            ClusterError: if it still runs after ``within`` seconds.
        """
        with self._lock:
            if self._end is None:
                self.ask("stop", within, politely=True)
            self.close()
            if self.process is not None:
                try:
                    self.process.wait(within)
                except subprocess.TimeoutExpired:
                    kill(self.process.pid, signal.SIGKILL)
                    self.process.wait()
            ours_has_ended = self.process is not None
            if self.directory.path.exists() and (ours_has_ended or not self.directory.is_held()):
                self.directory.sweep()

    def close(self) -> None:
        """Give up the connection; the grace time of the cluster begins."""
        self._channel.close()
        if self._end is None:
            self._end = "this notebook has disconnected from it"

    @property
    def is_ours(self) -> bool:
        """False in a forked child, which must leave its parent's cluster alone."""
        return self._owner_pid == os.getpid()
