"""The one idea: an ipyparallel engine that is rank r of an MPI job, ready for lessons.

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

from .lifeline import Lifeline
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
    directory = RuntimeDir(sys.argv[1])
    rank = rank_from_environment()
    _write_to(directory.rank_log(rank))
    _restore_temporary_directory()
    tie_to_parent(signal.SIGKILL)
    lifeline = Lifeline(str(directory.socket), "engine", rank)

    import torch

    import course_lib.mpi  # noqa: F401  (initialises MPI its way, before ipyparallel would)

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    lifeline.tell(stage="imported torch")
    app = _engine_class().instance()
    app.lifeline = lifeline
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


def _engine_class():
    from ipyparallel.engine.app import IPEngine

    class Engine(IPEngine):
        name = "ipengine"
        lifeline: Lifeline

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
            _number_like_the_notebook(self.kernel)
            self.kernel.control_handlers["signal_request"] = _signal_request
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

    from course_lib import mpi

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

    from course_lib import mpi

    comm = mpi.world()
    return {
        "rank": comm.Get_rank(),
        "world_size": comm.Get_size(),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "device": str(_device(comm.Get_rank())),
        "threads": torch.get_num_threads(),
        "mpi": mpi.library(),
    }


def init_process_group(timeout_s: float) -> None:
    """Initialise the default process group over MPI. Runs on a rank."""
    import torch.distributed as dist

    import course_lib.mpi  # noqa: F401  (registers the backend)

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


def reset_communication(timeout_s: float) -> None:
    """Make ``comm`` and the default process group anew. Runs on a rank."""
    import torch.distributed as dist
    from IPython import get_ipython

    from course_lib import mpi

    had_group = dist.is_initialized()
    if had_group:
        dist.destroy_process_group()
    comm = mpi.renew_world()
    comm.timeout = timeout_s
    get_ipython().user_ns["comm"] = comm
    if had_group:
        init_process_group(timeout_s)


if __name__ == "__main__":
    # Functions of this module are also sent here by name: let there be one copy of it.
    from course_lib.cluster import engine

    engine.main()
