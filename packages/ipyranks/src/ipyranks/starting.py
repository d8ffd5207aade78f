"""``start_cluster`` gives a notebook its cluster: a fresh one, or the one it had.

A cluster is found again after a restart of the kernel, and ended when it is no longer needed.
"""

from __future__ import annotations

import atexit
import operator
import os
import secrets
import time
from typing import Any

import psutil
from IPython import get_ipython

from .cluster import Cluster
from .errors import ClusterError
from .hosts import filled, read_hosts
from .notebook_client import NotebookClient
from .rank_table import count
from .runtime_dir import sweep_stale
from .slurm import is_inside, read_settings
from .stop_button import StopButton, stoppable

_USUAL_START_S = 60.0  # and so many more for each rank:
_USUAL_PER_RANK_S = 2.0
_LONGEST_START_S = 600.0
_THIS_PROGRAM = secrets.token_hex(8)  # process ids are reused
_MEMORY_PER_RANK = 160 << 20  # bytes; Python with torch loaded, shared pages not counted


def start_cluster(
    n: int = 4,
    *,
    replace: bool = False,
    hosts: str | os.PathLike[str] | None = None,
    slurm: Any = None,
    init_process_group: bool = False,
    timeout: float | None = None,
    grace: float = 10.0,
) -> Cluster:
    """Start ``n`` MPI engines, print a table of them, and make ``%%px`` run cells on them.

    If this notebook already has a cluster of ``n`` ranks, even from before a restart of its
    kernel, that one is used, with its variables. Every rank has the names ``rank``,
    ``world_size``, ``comm`` (an MPI communicator of all ranks), ``device``, ``torch``,
    ``dist`` (``torch.distributed``) and ``np``.

    The cluster ends with :meth:`Cluster.stop`, when the notebook is shut down, or ``grace``
    seconds after its kernel was restarted or died without coming back for it.

    If neither ``hosts`` nor ``slurm`` is given, ``IPYRANKS_CLUSTER`` may name one of them for
    all notebooks: ``hosts:node1:2,node2:2``, ``slurm``, ``slurm:partition=main,nodes=2``, or
    ``local`` for this machine. Otherwise a notebook in a Slurm job uses the nodes of that job,
    and any other notebook this machine.

    Args:
        n: number of ranks; more than there are cores is fine.
        replace: stop a cluster that is running and start a fresh one.
        hosts: where the ranks run, with how many on each at most, ``"node1:2,node2:2"`` or the
            path of a hostfile; filled in this order. Each is reached by ssh without a password
            and has this environment at the same path.
        slurm: ask Slurm for hosts, as a job that ends with the cluster: True, or
            ``"partition=main,nodes=2,time=30"``, or a dict that may also have ``gpus``,
            ``account``, and ``extra``, a list of further options for salloc. Waiting in the queue
            is shown, and can be stopped.
        init_process_group: also initialise ``torch.distributed`` on every rank.
        timeout: seconds after which a start has failed. By default a minute plus two seconds for
            each rank, not counting the time in which its processes wait for a core (if many
            people share a machine), but ten minutes at most. A slow start shows its progress.
        grace: seconds in which a restarted kernel can come back for its cluster.

    Raises:
        ValueError: if ``n`` is not a whole number from 1 to what this machine, or ``hosts``,
            can hold; or ``hosts`` names none.
        ClusterError: if a cluster is running that has another size, or is not where ``hosts`` or
            ``slurm`` ask for it, and ``replace`` is not set.
        StartError: if the cluster does not start; the message names the cause and quotes the
            last log lines.
    """
    if (shell := get_ipython()) is not None:  # at once: if this fails, ``%%px`` advises the user
        from .magics import activate

        activate(shell)
    slots, job = _where(hosts, slurm)
    n = _a_number(n) if job is not None else checked(n, slots)
    usual = _USUAL_START_S + _USUAL_PER_RANK_S * n
    within = [usual, max(_LONGEST_START_S, 5 * usual)] if timeout is None else [float(timeout)] * 2
    settings: dict[str, Any] = {"key": _key(), "n": n, "within": within, "grace": float(grace)}
    where = {"hosts": None if slots is None else filled(slots, n), "slurm": job}
    began = time.monotonic()
    running = _running_cluster(settings | where)
    if running is not None and replace:
        running.stop()
        running = None
    named = hosts is not None or slurm is not None
    if running is not None and (running.n != n or (named and running.placement != where)):
        place = f" {_place(running.placement)}" if running.n == n else ""
        raise ClusterError(
            f"a cluster of {count(running.n)} is running{place}, with its variables; "
            f"start_cluster({n}, {'..., ' * named}replace=True) replaces it; "
            f"start_cluster({running.n}) uses it"
        )
    cluster = _fresh_cluster(settings | where) if running is None else running
    message = f"{count(n)} ready in {time.monotonic() - began:.1f} s"
    if running is not None:
        message = f"{count(n)} found running; their variables are kept"
    if init_process_group and not cluster.recovery.stuck:
        cluster.init_process_group()
    print(message)
    print(cluster.table())
    return cluster


def current_cluster() -> Cluster | None:
    """The cluster of this notebook or program, or None if there is none."""
    cluster = Cluster.current
    return (
        cluster if cluster is not None and cluster.keeper.is_ours and cluster.is_running else None
    )


def _where(
    hosts: str | os.PathLike[str] | None, slurm: Any
) -> tuple[dict[str, int] | None, dict[str, Any] | None]:
    """The hosts, or how to ask Slurm for them; None and None for this machine."""
    if hosts is not None and slurm is not None:
        raise ValueError("give hosts or slurm, not both")
    if hosts is not None:
        return read_hosts(hosts), None
    if slurm is not None:
        return None, None if slurm is False else read_settings(slurm)
    return _of_the_workshop(os.environ.get("IPYRANKS_CLUSTER", ""))


def _of_the_workshop(said: str) -> tuple[dict[str, int] | None, dict[str, Any] | None]:
    """The same as :func:`_where` for the value of ``IPYRANKS_CLUSTER``."""
    kind, _, what = said.partition(":")
    try:
        if kind == "hosts":
            return read_hosts(what), None
        if kind == "slurm":
            return None, read_settings(what)
    except ValueError as error:
        raise ValueError(f"IPYRANKS_CLUSTER={said}: {error}") from None
    if said not in ("", "local"):
        raise ValueError(
            f"IPYRANKS_CLUSTER={said}: set it to local, hosts:node1:2,node2:2, slurm, or "
            "slurm:partition=main,nodes=2"
        )
    return None, {} if not said and is_inside() else None


def _a_number(n: Any) -> int:
    if isinstance(n, bool) or not hasattr(n, "__index__") or operator.index(n) < 1:
        raise ValueError(f"n must be a whole number of ranks, at least 1, not {n!r}")
    return operator.index(n)


def checked(n: Any, hosts: dict[str, int] | None = None) -> int:
    """Return ``n`` as an int, or raise ValueError saying what is wrong with it."""
    if isinstance(n, bool) or not hasattr(n, "__index__"):
        raise ValueError(f"n must be a whole number of ranks, not {n!r}")
    most = most_ranks() if hosts is None else sum(hosts.values())
    where = "on this machine" if hosts is None else f"on {', '.join(hosts)}"
    if not 1 <= n <= most:
        raise ValueError(f"n must be from 1 to {most} ranks {where}, not {n}")
    return operator.index(n)


def most_ranks() -> int:
    """How many ranks this machine can hold, by its memory and, generously, its cores."""
    by_memory = psutil.virtual_memory().total // _MEMORY_PER_RANK
    return max(4, min(by_memory, 32 * (os.cpu_count() or 1)))


def _running_cluster(settings: dict) -> Cluster | None:
    """The living cluster of this kernel, from this life of it or the one before a restart."""
    with stoppable("start_cluster was interrupted; the ranks keep their variables") as button:
        return _found_cluster(settings, button)


def _found_cluster(settings: dict, button: StopButton) -> Cluster | None:
    cluster = Cluster.current
    if cluster is not None and cluster.keeper.is_ours:
        try:
            cluster.require_running()
            return cluster
        except ClusterError as error:
            _say_why_not(cluster.keeper, error)
            cluster.stop()
    keeper = NotebookClient.adopt(settings["key"])
    if keeper is None:
        return None
    try:
        keeper.await_ready(settings["within"][1])
        cluster = Cluster(keeper, settings | keeper.ask("status")["where"])
        cluster.require_running()
    except ClusterError as error:
        _say_why_not(keeper, error)
        keeper.stop()
        return None
    cluster.open(button, found=True)
    cluster.recovery.renew()
    return cluster


def _place(where: dict[str, Any]) -> str:
    """Return where a cluster runs, as part of a sentence."""
    if where["slurm"] is not None:
        return "in a Slurm job"
    return "on this machine" if where["hosts"] is None else f"on {', '.join(where['hosts'])}"


def _say_why_not(keeper: NotebookClient, error: ClusterError) -> None:
    """Explain why a cluster cannot be reused."""
    if not keeper.was_stopped:
        reason = str(error).partition(";")[0].partition("\n")[0]
        print(f"The earlier cluster was not reused: {reason}. All variables on its ranks are lost.")


def _fresh_cluster(settings: dict) -> Cluster:
    sweep_stale()
    with stoppable("the start was interrupted; nothing is left of the cluster") as button:
        cluster = Cluster(NotebookClient.start(button, **settings), settings)
        cluster.open(button)
    return cluster


def _key() -> str:
    """The identity of this notebook: a kernel keeps its connection file across restarts."""
    from ipykernel.kernelapp import IPKernelApp

    # Asked of the kernel, as IPython in a terminal counts as an instance of its application, too.
    app = getattr(getattr(get_ipython(), "kernel", None), "parent", None)
    if isinstance(app, IPKernelApp):
        return f"kernel {app.abs_connection_file}"
    return f"process {os.getpid()} {_THIS_PROGRAM}"


@atexit.register
def _at_exit() -> None:
    """End the cluster with its program, unless this is a kernel that is being restarted."""
    cluster = Cluster.current
    if cluster is None or not cluster.keeper.is_ours or cluster.keeper.why_it_ended():
        return
    kernel = getattr(get_ipython(), "kernel", None)
    if kernel is None:
        cluster.stop()
        return
    # ipykernel's answer to a shutdown request shows whether it is for a restart.
    farewell = getattr(kernel, "_shutdown_message", None) or {}
    if farewell.get("content", {}).get("restart") is False:
        cluster.keeper.begin_stop(politely=True)
