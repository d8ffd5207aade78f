"""An ipyparallel engine that is rank r of an MPI job, ready for lessons.

``python -m course_lib.cluster.engine DIRECTORY`` under mpiexec: ties itself to its parents,
imports torch while the controller starts, registers under its rank, and offers the names
``rank``, ``world_size``, ``comm``, ``device``, ``torch``, ``dist`` and ``np``.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import time
from datetime import timedelta
from pathlib import Path

from . import recovery
from .ending import as_a_death, explain_exits
from .forked import end_with_the_cell, look_after_children
from .lifeline import Lifeline
from .pulse import Pulse
from .runtime import RuntimeDir
from .tether import tie_to_parent

_RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")
_CONNECTION_FILE_PATIENCE_S = 60.0


def rank_from_environment() -> int:
    """The rank the MPI launcher gave us, before MPI itself is started."""
    for name in _RANK_VARIABLES:
        if name in os.environ:
            return int(os.environ[name])
    raise RuntimeError(f"not started by an MPI launcher: none of {_RANK_VARIABLES} is set")


def main() -> None:
    """Run one engine."""
    stopping = []
    with as_a_death(lambda: bool(stopping)):
        _run(stopping)


def _run(stopping: list) -> None:
    directory = RuntimeDir(sys.argv[1])
    rank = rank_from_environment()
    _write_to(directory.rank_log(rank))
    _restore_temporary_directory()
    tie_to_parent(signal.SIGKILL)
    lifeline = Lifeline(str(directory.socket), "engine", rank)

    import torch
    from torch_mpi4py import MPI  # noqa: F401  (initialised its way, before ipyparallel would)

    _advise()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    lifeline.tell(stage="imported torch")
    app = _engine_class().instance()
    app.lifeline = lifeline
    app.stopping = stopping
    app.initialize(
        [
            f"--profile-dir={directory.profile}",
            f"--file={directory.engine_file}",
            "--mpi",
            "--IPEngine.init_mpi=",
            "--IPEngine.enable_nanny=False",
            "--IPEngine.timeout=60",
            "--HistoryManager.enabled=False",
            f"--IPEngine.wait_for_url_file={_CONNECTION_FILE_PATIENCE_S}",
        ]
    )
    app.start()


def _advise() -> None:
    """Have the backend's errors name what a notebook has for a failure."""
    from torch_mpi4py import advice

    advice.START_AGAIN = (
        "Make a new group on every rank: dist.destroy_process_group(), then "
        "dist.init_process_group(...); in a notebook, cluster.reset_communication() does both."
    )
    advice.GO_ON = (
        "The others can go on without it: torch_mpi4py.shrink() on each of them; in a notebook, "
        "cluster.shrink(), or cluster.restart() for fresh ranks."
    )
    advice.RESTART = "Start again, in a notebook with cluster.restart()."


def _engine_class():
    import torch_mpi4py
    from ipyparallel.engine.app import IPEngine

    class Engine(IPEngine):
        name = "ipengine"
        lifeline: Lifeline
        stopping: list

        def _signal_stop(self, *args):
            self.stopping.append(args)
            super()._signal_stop(*args)

        def load_connection_file(self):
            # The controller writes the file in place: wait until it is whole.
            deadline = time.monotonic() + 5
            while True:
                try:
                    return super().load_connection_file()
                except json.JSONDecodeError:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.02)

        async def complete_registration(self, *args):
            await super().complete_registration(*args)
            shell = self.kernel.shell
            names = namespace()
            shell.user_ns.update(names)
            shell.user_ns_hidden.update(names)
            explain_exits(shell)
            events = Path(os.environ["TORCH_MPI4PY_EVENTS_DIR"])
            # A large send of another rank can only be ended with the help of this one.
            progress = torch_mpi4py.MPI.COMM_SELF.Iprobe
            pulse = Pulse(events, rank_from_environment(), recovery.flags, progress)
            end_with_the_cell(self.kernel)  # within what the pulse shows
            pulse.follow(self.kernel)
            _number_like_the_notebook(self.kernel)
            _abort_nothing(self.kernel)
            self.kernel.control_handlers["signal_request"] = _signal_request
            look_after_children(self.lifeline.let_go, self._signal_stop)
            self.lifeline.tell(stage="registered")

    return Engine


def _number_like_the_notebook(kernel) -> None:
    """Give each cell the number it has in the notebook, so that tracebacks name the right one."""
    execute = kernel.do_execute

    async def do_execute(*args, **kwargs):
        label = kernel.get_parent("shell")["metadata"].get("label")
        if label and str(label).isdigit():
            kernel.shell.execution_count = int(label)
        return await execute(*args, **kwargs)

    kernel.do_execute = do_execute


def _abort_nothing(kernel) -> None:
    """Run a cell that comes right after one that failed.

    By default a kernel aborts what arrives until it is done with the failed cell. A notebook
    sends its next cell as soon as it knows of the failure, so on a busy machine that cell would
    end as TaskAborted.
    """
    execute = kernel.shell_handlers["execute_request"]

    def execute_request(stream, ident, parent):
        parent["content"]["stop_on_error"] = False
        return execute(stream, ident, parent)

    kernel.shell_handlers["execute_request"] = execute_request


async def _signal_request(stream, ident, parent):
    """What ipyparallel's nanny process does for ``Client.send_signal``, without the process."""
    from ipykernel.kernelbase import Kernel

    signum = parent["content"]["sig"]
    os.kill(os.getpid(), getattr(signal, signum) if isinstance(signum, str) else signum)
    Kernel.instance().session.send(stream, "signal_reply", {"status": "ok"}, parent, ident=ident)


def namespace() -> dict:
    """The names every rank offers to cells."""
    import numpy as np
    import torch
    import torch.distributed as dist
    import torch_mpi4py as mpi

    comm = mpi.world()
    return {
        "rank": comm.Get_rank(),
        "world_size": comm.Get_size(),
        "comm": comm,
        "device": _device(comm.Get_rank()),
        "torch": torch,
        "dist": dist,
        "np": np,
    }


def _device(rank: int):
    import torch

    if not torch.cuda.is_available():
        return torch.device("cpu")
    local_rank = int(os.environ.get("OMPI_COMM_WORLD_LOCAL_RANK", rank))
    return torch.device("cuda", local_rank % torch.cuda.device_count())


def describe() -> dict:
    """One row of the rank table. Runs on a rank."""
    import torch
    import torch_mpi4py as mpi

    comm = mpi.world()
    return {
        "rank": comm.Get_rank(),
        "world_size": comm.Get_size(),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "device": str(_device(comm.Get_rank())),
        "threads": torch.get_num_threads(),
        "mpi": mpi.library(),
        "survives_deaths": mpi.has_ulfm(),
    }


def init_process_group(timeout_s: float) -> None:
    """Initialise the default process group over MPI. Runs on a rank."""
    import torch.distributed as dist

    if not dist.is_initialized():
        dist.init_process_group(
            "mpi4py", init_method="mpi://", timeout=timedelta(seconds=timeout_s)
        )


def _write_to(path) -> None:
    """Send everything this process prints by itself to its own log file."""
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for stream in (1, 2):
        os.dup2(log, stream)
    os.close(log)


def _restore_temporary_directory() -> None:
    # mpiexec was given a private one so that its session files go with the cluster;
    # a learner's temporary files belong where the learner expects them.
    with contextlib.suppress(KeyError):
        del os.environ["TMPDIR"]
    original = os.environ.pop("COURSE_TMPDIR", None)
    if original:
        os.environ["TMPDIR"] = original


def shrink(timeout_s: float) -> dict:
    """Go on with the ranks that live. Runs on each of them."""
    import torch_mpi4py as mpi
    from IPython import get_ipython

    shrunk = mpi.shrink(timeout_s)
    # The device stays: that is where this rank's tensors are.
    get_ipython().user_ns.update(rank=shrunk.rank, world_size=shrunk.world_size, comm=mpi.world())
    return describe()


def learners_names() -> list[str]:
    """The variables a learner has made on this rank, sorted. Runs on a rank."""
    from types import ModuleType

    from IPython import get_ipython

    shell = get_ipython()
    return sorted(
        name
        for name, value in shell.user_ns.items()
        if not (
            name.startswith("_") or name in shell.user_ns_hidden or isinstance(value, ModuleType)
        )
    )


if __name__ == "__main__":
    # Functions of this module are also sent here by name: let there be one copy of it.
    from course_lib.cluster import engine

    engine.main()
