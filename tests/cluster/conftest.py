"""Real kernels and real clusters, and a count of what they leave behind.

Every cluster of these tests lives under a runtime directory of its own, whose path is on the
command line of each of its processes: that is how leftovers are found.
"""

from __future__ import annotations

import contextlib
import os
import queue
import re
import shutil
import tempfile
import time
from pathlib import Path

import psutil
import pytest
from ipyranks import runtime_dir
from ipyranks.runtime_dir import RuntimeDir
from jupyter_client import KernelManager

from .hangs import CLOCK, PREPARE, Gate, assert_trains

START_WITHIN_S = 100  # longer than a start may take before it says that it has failed
# Until a restarted kernel comes back for its cluster: 3 s, but on a busy machine.
GRACE_S = 60
SHUT_DOWN_WITHIN_S = 30
ENGINE = "ipyranks.engine"
ANSI = re.compile(r"\x1b\[[0-9;]*m")


def wait_until(condition, within: float, what: str, still=None):
    """Poll ``condition`` until it is true, and return its value; fail after ``within`` s.

    ``still()`` is asked for what stands in the way when the time is up.
    """
    deadline = time.monotonic() + within
    while not (value := condition()):
        if time.monotonic() > deadline:
            obstacle = "" if still is None else f", still: {still()}"
            raise AssertionError(f"not within {within} s: {what}{obstacle}")
        time.sleep(0.05)
    return value


def logs() -> str:
    """The ends of the logs of all clusters of these tests."""
    logs = sorted(runtime_dir.base().glob("*/log/*.log"))
    return "\n".join(f"--- {log}\n{runtime_dir.tail(log)}" for log in logs)


def _only(found: list):
    return found[0] if len(found) == 1 else None


class Traces:
    """What clusters under one runtime directory have left: processes, directories, segments."""

    def __init__(self, base: Path):
        self.base = base

    def _commands(self) -> dict[psutil.Process, list[str]]:
        """The living processes of our clusters and their command lines."""
        found = {}
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):  # it ends while we look, or is not ours
                command = process.cmdline()
                living = process.status() != psutil.STATUS_ZOMBIE
                if living and any(str(self.base) in word for word in command):
                    found[process] = command
        return found

    def processes(self, part: str = "") -> list[psutil.Process]:
        """The living processes of our clusters whose command line contains ``part``."""
        return [process for process, words in self._commands().items() if part in " ".join(words)]

    def the(self, part: str) -> psutil.Process:
        """The only process with ``part``; a child between fork and exec still looks like it."""
        found = lambda: self.processes(part)  # noqa: E731
        return wait_until(lambda: _only(found()), 30, f"a single {part}", still=found)

    def _ranks_and_mpiexec(self) -> tuple[list[psutil.Process], list[psutil.Process]]:
        found = {p: words for p, words in self._commands().items() if ENGINE in " ".join(words)}
        mpiexec = [process for process, words in found.items() if "-n" in words]
        return [process for process in found if process not in mpiexec], mpiexec

    def engines(self) -> list[psutil.Process]:
        return self._ranks_and_mpiexec()[0]

    def mpiexec(self) -> psutil.Process:
        return wait_until(lambda: _only(self._ranks_and_mpiexec()[1]), 30, "a single mpiexec")

    def directories(self) -> list[Path]:
        return list(self.base.glob("rank-by-rank-*/*"))

    def segments(self) -> list[Path]:
        """The shared memory of our clusters, not that of a test which runs at the same time."""
        any_name = RuntimeDir(self.base / f"rank-by-rank-{os.getuid()}" / "*").shared_memory
        return list(any_name.parent.glob(any_name.name)) if any_name is not None else []

    def left(self) -> list:
        """Everything that is left; empty when the clusters are gone without a trace."""
        return [*self.processes(), *self.directories(), *self.segments()]

    def gone_within(self, seconds: float) -> None:
        wait_until(lambda: not self.left(), seconds, "nothing left", still=self.left)


@pytest.fixture(scope="module")
def traces():
    """Point this module's clusters at a directory of their own; afterwards nothing is left."""
    base = Path(tempfile.mkdtemp(prefix="rbr", dir="/tmp"))
    before = os.environ.get("IPYRANKS_RUNTIME_DIR")
    os.environ["IPYRANKS_RUNTIME_DIR"] = str(base)
    found = Traces(base)
    assert found.segments() == []
    try:
        yield found
        found.gone_within(60)
    finally:
        for process in found.processes():
            with contextlib.suppress(psutil.NoSuchProcess):  # it has ended by itself
                process.kill()
        if before is None:
            del os.environ["IPYRANKS_RUNTIME_DIR"]
        else:
            os.environ["IPYRANKS_RUNTIME_DIR"] = before
        shutil.rmtree(base, ignore_errors=True)


class Output(list):
    """The outputs of one cell, as nbformat has them."""

    def text(self, stream: str = "stdout") -> str:
        return "".join(o["text"] for o in self if o["output_type"] == stream)

    @property
    def error(self) -> dict | None:
        return next((o for o in self if o["output_type"] == "error"), None)

    @property
    def traceback(self) -> str:
        return ANSI.sub("", "\n".join(self.error["traceback"]))

    @property
    def displayed(self) -> list[dict]:
        return [o["data"] for o in self if o["output_type"] in ("display_data", "execute_result")]


class Kernel:
    """A real IPython kernel that runs cells and collects their output.

    Args:
        watched: as if a person watched; otherwise as when a notebook is executed unattended.
    """

    counts = True  # cells, as a notebook does

    def __init__(self, watched: bool = False):
        environment = os.environ | {"IPP_NONINTERACTIVE": "0" if watched else "1"}
        # Sockets in a folder instead of ports: a restarted kernel takes the same ones again, and
        # a port may be somebody else's by then. Their paths have to be short.
        self._folder = tempfile.TemporaryDirectory(prefix="kernel-")
        connection_file = os.path.join(self._folder.name, "kernel.json")
        self.manager = KernelManager(transport="ipc", connection_file=connection_file)
        # Half of it passes before the kernel is ended by a signal, and then says no farewell.
        self.manager.shutdown_wait_time = 2 * SHUT_DOWN_WITHIN_S
        self.is_late = os.path.join(self._folder.name, "late")  # see :data:`.hangs.CLOCK`
        self.manager.start_kernel(env=environment)
        self._connect()

    def _connect(self) -> None:
        self.client = self.manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)

    @property
    def pid(self) -> int:
        return self.manager.provisioner.process.pid

    def begin(self, code: str) -> str:
        """Start a cell; return its message id."""
        return self.client.execute(code, store_history=self.counts)

    def finish(self, message_id: str, within: float = 60, shown=None) -> Output:
        """Collect the output of a cell until it ends.

        ``shown`` is called with each plain text that the cell displays, or changes.
        """
        outputs, displays = Output(), {}
        deadline = time.monotonic() + within
        while True:
            message = self.client.get_iopub_msg(timeout=max(deadline - time.monotonic(), 0.01))
            if message["parent_header"].get("msg_id") != message_id:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "status" and content["execution_state"] == "idle":
                return outputs
            if kind == "stream":
                outputs.append({"output_type": content["name"], "text": content["text"]})
            elif kind == "update_display_data":
                name = content["transient"]["display_id"]
                if name in displays:  # else it is an earlier cell's
                    displays[name].append(content["data"])
                if shown is not None:
                    shown(content["data"]["text/plain"])
            elif kind in ("display_data", "execute_result"):
                output = {"output_type": kind, "data": content["data"], "updates": []}
                displays[content.get("transient", {}).get("display_id")] = output["updates"]
                outputs.append(output)
                if shown is not None:
                    shown(content["data"]["text/plain"])
            elif kind == "error":
                outputs.append({"output_type": kind, **content})

    def run(self, code: str, within: float = 60) -> Output:
        """Run a cell to its end."""
        return self.finish(self.begin(code), within)

    def must(self, code: str, within: float = 60) -> Output:
        """Run a cell that has to succeed."""
        outputs = self.run(code, within)
        assert outputs.error is None, outputs.traceback
        return outputs

    def start_cluster(self, n: int, arguments: str = "", grace: float | None = GRACE_S) -> str:
        """Start a cluster, or find it again; without ``grace`` it has the usual one."""
        given = [str(n), *([] if grace is None else [f"grace={grace}"]), arguments]
        call = f"start_cluster({', '.join(filter(None, given))})"
        code = f"from ipyranks import start_cluster; cluster = {call}"
        try:
            return self.must(code, START_WITHIN_S).text()
        except queue.Empty:
            raise AssertionError(f"{call} still runs after {START_WITHIN_S} s\n{logs()}") from None

    def _kill(self) -> None:
        """Kill it at once: the manager interrupts it first, and that may be what it acts on."""
        if self.manager.has_kernel:
            self.manager.provisioner.process.kill()

    def restart(self, now: bool = False) -> None:
        self.client.stop_channels()
        if now:
            self._kill()
        self.manager.restart_kernel(now=now)
        self._connect()

    def interrupt(self) -> None:
        self.manager.interrupt_kernel()

    def shut_down(self, now: bool = False) -> None:
        self.client.stop_channels()
        if now:
            self._kill()
        if self.manager.has_kernel:
            self.manager.shutdown_kernel(now=now)
        self._folder.cleanup()


@pytest.fixture
def new_kernel(traces):
    """A function that starts a kernel, which is shut down after the test."""
    kernels = []

    def start(watched: bool = False) -> Kernel:
        kernels.append(Kernel(watched))
        return kernels[-1]

    yield start
    for kernel in kernels:
        kernel.shut_down()


@pytest.fixture(scope="module")
def kernel(traces):
    """One kernel with a cluster of four, for a whole module."""
    shared = Kernel()
    shared.banner = shared.start_cluster(4)
    yield shared
    shared.shut_down()


@pytest.fixture(scope="module")
def hangs(kernel, traces):
    """The kernel with a cluster of four that can train, and a place to look at its ranks."""
    (directory,) = traces.directories()
    kernel.events = directory / "events"
    kernel.must("cluster.init_process_group()")
    kernel.must("%%px" + PREPARE)
    kernel.must(CLOCK.format(path=kernel.is_late))
    assert_trains(kernel)
    return kernel


@pytest.fixture
def gate(tmp_path):
    made = Gate(tmp_path / "gate")
    yield made
    made.open()


@pytest.fixture(name="wait_until")
def _wait_until():
    return wait_until
