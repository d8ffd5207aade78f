"""An ipyparallel engine that is rank r of an MPI job, ready for cells.

``python -m ipyranks.engine DIRECTORY`` under mpiexec: ties itself to its parents,
imports torch while the controller starts, registers under its rank, and offers the names
``rank``, ``world_size``, ``comm``, ``device``, ``torch``, ``dist`` and ``np``.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from . import awaiting, stack_dump
from .breakpoints import Breakpoints
from .engine_exit import (
    as_a_death,
    end_forked_child,
    end_with_parent,
    explain_exits,
    look_after_children,
)
from .exchange import KeeperClient
from .interrupts import Interrupts
from .rank_functions import describe, lost_flags, namespace, print_help, read_label, refuse_input
from .runtime_dir import RuntimeDir
from .tracebacks import shorten

# By these, MPI in a program that a cell starts would be this rank, and end it with that program.
# Settings stay, and so do the likes of OMPI_COMM_WORLD_RANK, which MPI itself does not read.
_IDENTITY = ("PMIX_", "PMI_", "OMPI_MCA_ess", "OMPI_MCA_orte_", "OMPI_MCA_pmix")
_SETTINGS = ("PMIX_MCA_",)
_RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")
# Longer than a start may take: the keeper ends it and reports why.
_PATIENCE_S = 3600


def rank_from_environment() -> int:
    """The rank the MPI launcher gave us, before MPI itself is started."""
    for name in _RANK_VARIABLES:
        if name in os.environ:
            return int(os.environ[name])
    raise RuntimeError(f"not started by an MPI launcher: none of {_RANK_VARIABLES} is set")


def main() -> None:
    """Run one engine."""
    stopping = threading.Event()
    with as_a_death(stopping.is_set):
        _run(stopping)


def _run(stopping: threading.Event) -> None:
    # Until this rank is registered, each collection would walk over the many objects that the
    # imports make and keep: a tenth of a start.
    gc.disable()
    directory = RuntimeDir(sys.argv[1])
    rank = rank_from_environment()
    _write_to(directory.rank_log(rank))
    _restore_temporary_directory()
    end_with_parent(os.getppid())
    keeper = KeeperClient(directory.socket)
    keeper.tell(rank, "started")

    import torch

    keeper.tell(rank, "imported torch")
    from torch_mpi4py import MPI  # noqa: F401  (initialised its way, before ipyparallel's)

    _advise()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    # torch.profiler reports each start and stop on stderr, which a cell shows as errors.
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")
    keeper.tell(rank, "started MPI")
    app = _engine_class().instance()
    app.keeper = keeper
    app.stopping = stopping
    # Removed now that the board is made: a program that a cell starts is not this rank, and would
    # replace this rank's board with its own.
    app.events = Path(os.environ.pop("TORCH_MPI4PY_EVENTS_DIR"))
    app.rank = rank
    _forget_the_launcher()
    app.initialize(
        [
            f"--profile-dir={directory.profile}",
            f"--file={directory.engine_file}",
            "--mpi",
            "--IPEngine.init_mpi=",
            "--IPEngine.enable_nanny=False",
            f"--IPEngine.timeout={_PATIENCE_S}",
            # A suspended controller is no reason to end; the keeper checks whether it lives.
            "--IPEngine.max_heartbeat_misses=0",
            "--HistoryManager.enabled=False",
            f"--IPEngine.wait_for_url_file={_PATIENCE_S}",
        ]
    )
    app.start()


def _forget_the_launcher() -> None:
    """Let MPI in the programs that cells start be theirs; this rank's has read the variables."""
    for name in list(os.environ):
        if name.startswith(_IDENTITY) and not name.startswith(_SETTINGS):
            del os.environ[name]


def _advise() -> None:
    """Have the backend's errors name the notebook's remedies for a failure."""
    from torch_mpi4py.core import advice

    advice.START_AGAIN = (
        "Make a new group on every rank: dist.destroy_process_group(), then "
        "dist.init_process_group(...); in a notebook, cluster.reset_communication() does both."
    )
    advice.GO_ON = (
        "The others can continue without it: call torch_mpi4py.shrink() on each of them. In a "
        "notebook, call cluster.shrink(), or cluster.restart() for fresh ranks."
    )
    advice.RESTART = "Start again; in a notebook, call cluster.restart()."


def _engine_class() -> Any:
    import torch_mpi4py
    from ipyparallel.engine.app import IPEngine
    from torch_mpi4py.board import call_site
    from torch_mpi4py.faults import deadlines
    from torch_mpi4py.log import heartbeat

    class Engine(IPEngine):
        name = "ipengine"
        keeper: KeeperClient
        stopping: threading.Event
        events: Path
        rank: int

        def _signal_stop(self, *args: Any) -> None:
            self.stopping.set()
            super()._signal_stop(*args)

        def load_connection_file(self) -> None:
            # The controller writes the file in place: wait until it is whole.
            deadline = time.monotonic() + 5
            while True:
                try:
                    return super().load_connection_file()
                except json.JSONDecodeError:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.02)

        async def complete_registration(self, *args: Any) -> None:
            await super().complete_registration(*args)
            shell, rank = self.kernel.shell, self.rank
            names = namespace(_PATIENCE_S)
            if not rank == names["rank"] == self.id:
                raise RuntimeError(
                    f"engine {self.id} is rank {rank} by its variables, {names['rank']} by MPI"
                )
            shell.user_ns.update(names)
            shell.user_ns_hidden.update(names)
            explain_exits(shell)
            print_help(shell)
            refuse_input(self.kernel)
            awaiting.own_loop(shell)
            stack_dump.answer(self.events, rank, shell)
            shorten(shell.InteractiveTB)
            # A large send of another rank can only end with the help of this one.
            heartbeat.at_each_beat.append(torch_mpi4py.MPI.COMM_SELF.Iprobe)
            call_site.add_library(str(Path(__file__).parent))
            heartbeat.runs_cells()
            deadlines.watch()  # whose thread is the heart
            _run_cells(self.kernel, Breakpoints(self.kernel, self.events))
            _abort_nothing(self.kernel)
            Interrupts(self.kernel)
            look_after_children(self.keeper.let_go, self._signal_stop)
            gc.freeze()  # what has been imported stays, and a walk over it takes 0.2 s
            gc.enable()
            self.keeper.tell(rank, "registered", describe(names["device"]))

    return Engine


def _run_cells(kernel: Any, breakpoints: Breakpoints) -> None:
    """Wrap every cell: number it, and show that it runs and how it ends."""
    from torch_mpi4py.log import heartbeat

    execute, engine = kernel.do_execute, os.getpid()

    async def do_execute(*args: Any, **kwargs: Any) -> dict:
        number, run = read_label(kernel.get_parent("shell")["metadata"].get("label"))
        if number is not None:  # the one it has in the notebook, for tracebacks
            kernel.shell.execution_count = number
        heartbeat.begin_cell(kernel.shell.execution_count, run)
        reply = {"status": "error", "ename": "KeyboardInterrupt", "evalue": ""}
        try:
            reply = await execute(*args, **kwargs)
            if reply.get("ename") == "NoneType":  # the error of showing the cell's last value
                reply |= {"ename": type(sys.last_value).__name__, "evalue": str(sys.last_value)}
            return reply
        except BaseException as error:  # without a reply, the notebook would lose this rank
            reply = _error_reply(kernel, error)
            return reply
        finally:
            breakpoints.end_cell()
            end_forked_child(engine, reply)
            failed = reply["status"] == "error"
            outcome = f"{reply.get('ename')}: {reply.get('evalue')}" if failed else ""
            heartbeat.end_cell(outcome, lost_flags())

    kernel.do_execute = do_execute


def _error_reply(kernel: Any, error: BaseException) -> dict:
    """The reply to a cell that ended by an error outside of the cell's own code."""
    kernel.shell.showtraceback()
    return {
        "status": "error",
        "ename": type(error).__name__,
        "evalue": str(error),
        "traceback": kernel.shell._last_traceback or [],
        "engine_info": kernel.get_engine_info(method="execute"),
        "execution_count": kernel.shell.execution_count - 1,
        "user_expressions": {},
        "payload": [],
    }


def _abort_nothing(kernel: Any) -> None:
    """Run a cell that comes right after one that failed.

    By default a kernel aborts what arrives until it is done with the failed cell. A notebook
    sends its next cell as soon as it knows of the failure, so on a busy machine that cell would
    end as TaskAborted.
    """
    execute = kernel.shell_handlers["execute_request"]

    def execute_request(stream: Any, ident: Any, parent: dict) -> Any:
        parent["content"]["stop_on_error"] = False
        return execute(stream, ident, parent)

    kernel.shell_handlers["execute_request"] = execute_request


def _write_to(path: Path) -> None:
    """Send everything this process prints by itself to its own log file."""
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for stream in (1, 2):
        os.dup2(log, stream)
    os.close(log)


def _restore_temporary_directory() -> None:
    # mpiexec was given a private one so that its session files go with the cluster;
    # a user's temporary files belong where the user expects them.
    del os.environ["TMPDIR"]
    if original := os.environ.pop("IPYRANKS_TMPDIR"):
        os.environ["TMPDIR"] = original


if __name__ == "__main__":
    main()
