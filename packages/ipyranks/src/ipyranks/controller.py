"""ipyparallel's controller as a single process, which ends with the keeper.

Its schedulers and its heart monitor run as threads, which starts faster than nine processes
and cannot leave one behind. If the keeper is killed, this process sweeps up and ends.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import sys
import threading
from typing import Any

from ipyparallel.controller import heartmonitor
from ipyparallel.controller.app import IPController

from .exchange import KeeperClient
from .runtime_dir import RuntimeDir

# An engine counts as registered after its first heartbeat, which ipyparallel sends every 3 s.
# Beating faster saves seconds at the start.
_BEAT_MS = 200

# Below the ranges from which Linux and macOS assign ports on request, so that no other program gets
# a port between our choosing it and ipyparallel's binding it.
_PORTS = range(10_240, 32_768)
LOOPBACK = "127.0.0.1"


class _HeartMonitor(heartmonitor.HeartMonitor):
    """Beats until all engines have answered: no one needs to know more of their hearts.

    Five beats a second take a hundredth of a core from a cluster of four, and forty idle clusters
    may be on one server.
    """

    engines: int

    def beat(self) -> None:
        super().beat()
        if len(self.hearts) >= self.engines:
            self.caller.stop()


class _HeartMonitorThread(threading.Thread):
    """Runs the heart monitor; answers to the part of the Process interface that is used."""

    def terminate(self) -> None:
        """Nothing to do: a daemon thread ends with its process."""


class Controller(IPController):
    """ipyparallel's controller, with threads only."""

    name = "ipcontroller"

    def next_port(self, pool_name: str = "common") -> int:
        return free_port(self.ip)

    def init_hub(self) -> None:
        super().init_hub()
        arguments = self.heartmonitor_process._kwargs
        self.heartmonitor_process: Any = _HeartMonitorThread(
            target=heartmonitor.start_heartmonitor,
            kwargs=arguments,
            name="heartmonitor",
            daemon=True,
        )
        # An engine may wait for a core longer than the hub waits for its first beat; the keeper
        # decides whether a start has failed.
        self.hub._purge_stalled_registration = lambda heart: None
        # The keeper also decides which engines live: one whose heart stops, after 10 beats by
        # default, may only be suspended (a machine that sleeps, a paused container), and continue
        # with all of its variables.
        self.hub.handle_stopped_heart = lambda heart: None


_given_out: set[int] = set()


def free_port(address: str = LOOPBACK) -> int:
    """An unused port of an address of ours; never the same twice."""
    for port in random.SystemRandom().sample(_PORTS, k=1000):
        with socket.socket() as trial:
            try:
                trial.bind((address, port))
            except OSError:
                continue  # in use
        if port not in _given_out:
            _given_out.add(port)
            return port
    raise RuntimeError(f"no free port between {_PORTS.start} and {_PORTS.stop}")


def main() -> None:
    """Run the controller of the cluster in the directory named by the first argument.

    It listens on the address named by the second, encrypted where that is not loopback. The third
    is the number of engines.
    """
    directory, address = RuntimeDir(sys.argv[1]), sys.argv[2]
    _HeartMonitor.engines = int(sys.argv[3])
    heartmonitor.HeartMonitor = _HeartMonitor  # which is made where no argument leads to

    def sweep_and_end() -> None:
        directory.sweep()
        os.kill(os.getpid(), signal.SIGKILL)

    KeeperClient(directory.socket, when_cut=sweep_and_end)
    Controller.launch_instance(
        [
            f"--profile-dir={directory.profile}",
            f"--ip={address}",
            f"--location={address}",
            f"--IPController.enable_curve={address != LOOPBACK}",
            "--IPController.use_threads=True",
            "--nodb",  # results go to the notebook; keeping them here as well only costs memory
            f"--HeartMonitor.period={_BEAT_MS}",
            "--log-level=INFO",
        ]
    )


if __name__ == "__main__":
    main()
