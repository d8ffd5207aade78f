"""The one idea: a notebook holds a :class:`Cluster`, and ``start_cluster`` is how it gets one.

The cluster itself lives in processes of its own (:mod:`.keeper`); this is the handle to it:
started, found again after a kernel restart, asked, and stopped from here.
"""

from __future__ import annotations

import atexit
import operator
import os
import signal
import time

import ipyparallel as ipp
import psutil
from IPython import get_ipython

from . import engine
from .errors import ClusterError, StartError
from .link import KeeperLink
from .runtime import started, sweep_stale
from .table import Rank, table

__all__ = ["Cluster", "current_cluster", "start_cluster"]

_POLL_S = 0.02
_CONNECT_WITHIN_S = 10.0
_BUSY_AFTER_S = 1.0  # an adopted rank that is silent for so long runs a cell of the old kernel
_FREE_WITHIN_S = 5.0
_MEMORY_PER_RANK = 160 << 20  # bytes; Python with torch loaded, shared pages not counted

_current: Cluster | None = None


class Cluster:
    """A running cluster of MPI engines, one per rank; made by :func:`start_cluster`.

    ``len(cluster)`` is the number of ranks. As a context manager it stops itself at the end.

    Attributes:
        n: number of ranks.
        ids: ``[0, ..., n - 1]``; an engine's id is its MPI rank.
        ranks: a :class:`~course_lib.cluster.table.Rank` for each rank.
        client: the ``ipyparallel.Client``.
        view: a blocking ``DirectView`` on all ranks, in rank order.
    """

    def __init__(self, link: KeeperLink, n: int, settings: dict):
        self.n = n
        self._link = link
        self._settings = settings
        self.client: ipp.Client | None = None
        self.view: ipp.DirectView | None = None
        self.ranks: list[Rank] = []

    # ---- what it is --------------------------------------------------------------------

    def __len__(self) -> int:
        return self.n

    def __repr__(self) -> str:
        ended = self._link.why_it_ended()
        state = "stopped" if ended else f"on {self.ranks[0].mpi}" if self.ranks else "starting"
        return f"<Cluster of {_count(self.n)}, {state}>"

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *exception) -> None:
        self.stop()

    @property
    def ids(self) -> list[int]:
        """The engine ids, which are the ranks."""
        return list(range(self.n))

    @property
    def is_running(self) -> bool:
        """Whether the cluster and all of its ranks live."""
        try:
            return not self.status()["dead"]
        except ClusterError:
            return False

    def table(self) -> str:
        """Rank, device, threads, MPI library, process id and host of every rank, as text."""
        return table(self.ranks)

    def status(self) -> dict:
        """What the keeper says: ``state``, ``dead`` (list of ranks), ``progress``, ``pid``.

        Raises:
            ClusterError: if the cluster has ended; the message says why.
        """
        return self._link.ask("status")

    def require_running(self) -> None:
        """Raise :class:`ClusterError` with a reason and a remedy unless every rank lives."""
        dead = self.status()["dead"]
        if dead:
            one = f"rank {dead[0]} has" if len(dead) == 1 else f"ranks {sorted(dead)} have"
            raise ClusterError(f"{one} ended; cluster.restart() starts fresh ranks")

    # ---- what it can do ----------------------------------------------------------------

    def stop(self) -> None:
        """Stop all ranks and remove every trace of the cluster. Twice does no harm."""
        if self.client is not None:
            self.client.close(linger=0)
        self._link.stop()

    def restart(self) -> Cluster:
        """Stop all ranks and start fresh ones, with the same settings; variables are lost."""
        self.stop()
        began = time.monotonic()
        self._link = _start(self._settings)
        _finish_start(self)
        seconds = time.monotonic() - began
        print(f"{_count(self.n, 'fresh ')} in {seconds:.1f} s; all variables on them are lost")
        print(self.table())
        return self

    def interrupt(self, ranks: list[int] | None = None) -> None:
        """Interrupt what the ranks (all by default) are running, as the stop button does."""
        self.signal(signal.SIGINT, ranks)

    def signal(self, signum: int, ranks: list[int] | None = None) -> None:
        """Send a signal to the processes of some ranks (all by default)."""
        self._link.ask("signal", signum=int(signum), ranks=self.ids if ranks is None else ranks)

    def init_process_group(self, timeout_s: float = 30.0) -> None:
        """Initialise ``torch.distributed`` on all ranks; does nothing where it is already.

        Args:
            timeout_s: deadline in seconds for every operation of the group.
        """
        self.require_running()
        self.view.apply_sync(engine.init_process_group, timeout_s)

    def reset_communication(self, timeout_s: float = 30.0) -> None:
        """Make ``comm`` and the default process group anew on every rank; variables are kept.

        For use after a failure: messages that were under way are dropped, so that ranks which
        disagree on what comes next are in step again. The process group is made again only if
        there was one.

        Args:
            timeout_s: deadline in seconds for every operation from now on.

        Raises:
            ClusterError: if a rank has ended or is still running a cell.
        """
        self.require_running()
        if self.client.outstanding:
            raise ClusterError("a cell is still running; interrupt it before the reset")
        self.view.apply_sync(engine.reset_communication, timeout_s)

    # ---- making the connection ---------------------------------------------------------

    def _connect(self) -> None:
        """Connect a client and check that engine ids are ranks."""
        directory = self._link.directory
        self.client = ipp.Client(
            str(directory.client_file), profile_dir=str(directory.profile), timeout=30
        )
        self.client.wait_for_engines(self.n, timeout=_CONNECT_WITHIN_S, interactive=False)
        self.view = self.client.direct_view(self.ids)
        self.view.block = True
        asked = self.view.apply_async(engine.describe)
        if not asked.wait(_BUSY_AFTER_S):
            self.interrupt()
            if not asked.wait(_FREE_WITHIN_S):
                raise ClusterError(
                    "some ranks are still busy with a cell of the previous kernel and cannot be "
                    "interrupted; start_cluster(replace=True) starts fresh ranks"
                )
        answers = asked.get()
        for expected, answer in enumerate(answers):
            if answer["rank"] != expected or answer.pop("world_size") != self.n:
                raise ClusterError(f"engine {expected} is rank {answer['rank']}: please report")
        self.ranks = [Rank(**answer) for answer in answers]

    def _activate(self) -> None:
        shell = get_ipython()
        if shell is not None:
            from .magics import activate

            activate(shell, self)


def start_cluster(
    n: int = 4,
    *,
    replace: bool = False,
    init_process_group: bool = False,
    timeout: float | None = None,
    grace: float = 10.0,
) -> Cluster:
    """Start ``n`` MPI engines, print who they are, and make ``%%px`` run cells on them.

    If this notebook already has a cluster of ``n`` ranks, also from before a restart of its
    kernel, that one is used, with its variables. Every rank offers the names ``rank``,
    ``world_size``, ``comm`` (an MPI communicator of all ranks), ``device``, ``torch``,
    ``dist`` (``torch.distributed``) and ``np``.

    The cluster ends with :meth:`Cluster.stop`, when the notebook is shut down, or ``grace``
    seconds after its kernel was restarted or died without coming back for it.

    Args:
        n: number of ranks; more than there are cores is fine.
        replace: stop a cluster that is running and start a fresh one.
        init_process_group: also initialise ``torch.distributed`` on every rank.
        timeout: seconds after which a start has failed; by default a minute plus two seconds
            for each rank.
        grace: seconds in which a restarted kernel can come back for its cluster.

    Raises:
        ValueError: if ``n`` is not a whole number from 1 to what this machine can hold.
        ClusterError: if a cluster of another size is running and ``replace`` is not set.
        StartError: if the cluster does not start; the message names the cause and quotes the
            last log lines.
    """
    n = checked(n)
    timeout = 60.0 + 2 * n if timeout is None else float(timeout)
    settings = {"n": n, "timeout": timeout, "grace": float(grace)}
    began = time.monotonic()
    running = _running_cluster(settings)
    if running is not None and replace:
        running.stop()
        running = None
    if running is not None and running.n != n:
        raise ClusterError(
            f"a cluster of {_count(running.n)} is running, with its variables; "
            f"start_cluster({n}, replace=True) replaces it, "
            f"start_cluster({running.n}) uses it"
        )
    if running is not None:
        cluster = running
        message = f"{_count(n)} found running; their variables are kept"
    else:
        cluster = _fresh_cluster(settings)
        message = f"{_count(n)} ready in {time.monotonic() - began:.1f} s"
    if init_process_group:
        cluster.init_process_group()
    print(message)
    print(cluster.table())
    return cluster


def current_cluster() -> Cluster | None:
    """The cluster of this notebook or program, or None if there is none."""
    if _current is None or not _current._link.is_ours or not _current.is_running:
        return None
    return _current


def checked(n) -> int:
    """Return ``n`` as an int, or raise ValueError saying what is wrong with it."""
    try:
        if isinstance(n, bool):
            raise TypeError
        n = operator.index(n)
    except TypeError:
        raise ValueError(f"n must be a whole number of ranks, not {n!r}") from None
    most = most_ranks()
    if not 1 <= n <= most:
        raise ValueError(f"n must be from 1 to {most} ranks on this machine, not {n}")
    return n


def most_ranks() -> int:
    """How many ranks this machine can hold: a matter of memory, within reason of its cores."""
    by_memory = psutil.virtual_memory().total // _MEMORY_PER_RANK
    return max(4, min(by_memory, 32 * (os.cpu_count() or 1)))


def _count(n: int, kind: str = "") -> str:
    return f"{n} {kind}rank" + ("s" if n != 1 else "")


def _running_cluster(settings: dict) -> Cluster | None:
    """The living cluster of this kernel, from this life of it or the one before a restart."""
    global _current
    if _current is not None and _current._link.is_ours:
        try:
            _current.require_running()
            return _current
        except ClusterError:
            _current.stop()  # what is left of it
        _current = None
    link = KeeperLink.adopt(_key())
    if link is None:
        return None
    cluster = Cluster(link, link.ask("status")["n"], settings)
    try:
        cluster.require_running()
        _await_ready(link, settings["timeout"])
    except ClusterError:
        cluster.stop()
        return None
    _finish_start(cluster)
    return cluster


def _fresh_cluster(settings: dict) -> Cluster:
    sweep_stale()
    cluster = Cluster(_start(settings), settings["n"], settings)
    _finish_start(cluster)
    return cluster


def _start(settings: dict) -> KeeperLink:
    """Start a keeper and wait until all ranks are registered; leave nothing behind otherwise."""
    link = KeeperLink.start_keeper(_key(), settings["n"], settings["grace"], settings["timeout"])
    try:
        _await_ready(link, settings["timeout"])
    except BaseException:
        link.stop()
        raise
    return link


def _await_ready(link: KeeperLink, timeout: float) -> None:
    deadline = time.monotonic() + timeout + 15  # the keeper has the same limit, and a reason
    while True:
        try:
            status = link.ask("status")
        except ClusterError as error:
            reason = link.why_it_ended() or error
            raise StartError(f"the cluster did not start: {reason}") from None
        if status["state"] == "ready":
            return
        if status["state"] != "starting":
            raise StartError(f"the cluster did not start: {status['error']}")
        if time.monotonic() > deadline:
            raise StartError(f"the cluster did not start: {status['progress']}")
        time.sleep(_POLL_S)


def _finish_start(cluster: Cluster) -> None:
    """Connect to a cluster that is ready, and make it the current one."""
    global _current
    try:
        cluster._connect()
        cluster._activate()
    except BaseException:
        cluster.stop()
        raise
    _current = cluster


def _key() -> str:
    """What identifies this notebook: a kernel keeps its connection file across restarts."""
    from ipykernel.kernelapp import IPKernelApp

    if IPKernelApp.initialized():
        return f"kernel {IPKernelApp.instance().abs_connection_file}"
    return f"process {os.getpid()} {started(os.getpid())}"


@atexit.register
def _at_exit() -> None:
    """End the cluster with its program, unless this is a kernel that is being restarted."""
    if _current is None or not _current._link.is_ours or _current._link.why_it_ended():
        return
    kernel = getattr(get_ipython(), "kernel", None)
    if kernel is None:
        _current.stop()
        return
    # What ipykernel answers to a request to shut down says whether it is for a restart.
    farewell = getattr(kernel, "_shutdown_message", None) or {}
    if farewell.get("content", {}).get("restart") is False:
        _current._link.tell("release", grace=0.0)
