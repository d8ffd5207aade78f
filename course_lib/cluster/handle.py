"""What a notebook holds of a cluster, to ask it, mend it and stop it.

The cluster itself lives in processes of its own (:mod:`.keeper`). :mod:`.starting` is how a
notebook gets one.
"""

from __future__ import annotations

import contextlib
import signal
import time
from dataclasses import fields

import ipyparallel as ipp
from IPython import get_ipython
from torch_mpi4py import launch
from torch_mpi4py.rank_states import name_ranks

from . import engine, recovery
from .errors import MEMORY_ADVICE, WHY_DEAD, ClusterError
from .link import KeeperLink
from .losses import losses, names_on
from .mending import Mending
from .shrinking import Shrinking, count
from .table import Rank, table
from .watching import free, unfinished

__all__ = ["Cluster"]

_POLL_S = 0.02
_CONNECT_WITHIN_S = 20.0
_ANNOUNCED_WITHIN_S = 2.0
_OLD_CELL_MAY_END_S = 0.2  # when a cluster is found again
_DEATH_NOTED_WITHIN_S = 15.0
_UNKNOWN = "?"  # of a rank that cannot be asked


class Cluster(Shrinking, Mending):
    """A running cluster of MPI engines, one per rank; made by :func:`.start_cluster`.

    ``len(cluster)`` is the number of ranks. As a context manager it stops itself at the end.

    Attributes:
        n: number of ranks.
        ids: the ranks, ``[0, ..., n - 1]``.
        engine_ids: ipyparallel's number of each rank's engine: the same, until a rank dies and
            :meth:`shrink` numbers the others anew.
        ranks: a :class:`~course_lib.cluster.table.Rank` for each rank.
        client: the ``ipyparallel.Client``.
        view: a blocking ``DirectView`` on all ranks, in rank order.
    """

    def __init__(self, link: KeeperLink, n: int, settings: dict):
        self.engine_ids = list(range(n))
        self._link = link
        self._settings = settings
        self.client: ipp.Client | None = None
        self.view: ipp.DirectView | None = None
        self._survives_deaths = False
        self._killed: set[int] = set()  # engines that were killed on request
        self.ranks: list[Rank] = []

    # ---- what it is --------------------------------------------------------------------

    @property
    def n(self) -> int:
        """The number of ranks."""
        return len(self.engine_ids)

    def __len__(self) -> int:
        return self.n

    def __repr__(self) -> str:
        ended = self._link.why_it_ended()
        state = "stopped" if ended else f"on {self.ranks[0].mpi}" if self.ranks else "starting"
        return f"<Cluster of {count(self.n)}, {state}>"

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *exception) -> None:
        self.stop()

    @property
    def ids(self) -> list[int]:
        """The ranks, ascending."""
        return list(range(self.n))

    def rank_of(self, engine_id: int) -> int:
        """The rank of an engine by ipyparallel's number; the number itself of one left out."""
        if engine_id in self.engine_ids:
            return self.engine_ids.index(engine_id)
        return engine_id

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
            have = "has" if len(dead) == 1 else "have"
            others = "cluster.shrink() goes on with the others and their variables, "
            raise ClusterError(
                f"{name_ranks(dead)} {have} ended; "
                f"{others if self._survives_deaths and len(dead) < self.n else ''}"
                f"cluster.restart() starts fresh ranks{self._about_deaths(dead)}"
            )

    def _about_deaths(self, dead: list[int]) -> str:
        """What every rank is doing, and why some may have died unless :meth:`kill` did it."""
        unasked = [rank for rank in dead if self.engine_ids[rank] not in self._killed]
        why = f"\n\n{WHY_DEAD} {MEMORY_ADVICE}" if unasked else ""
        return f"\n\n{self.report().table()}{why}"

    def after_a_death(self) -> str:
        """What can be done once a rank has died."""
        if self._survives_deaths:
            return (
                "cluster.shrink() goes on with the other ranks and their variables, "
                "cluster.restart() starts fresh ones."
            )
        return (
            f"{self.ranks[0].mpi} ends all ranks when one dies; cluster.restart() starts fresh "
            "ones."
        )

    # ---- what it can do ----------------------------------------------------------------

    def stop(self) -> None:
        """Stop all ranks and remove every trace of the cluster. Twice does no harm."""
        if self.client is not None:
            self.client.close(linger=0)
        self._link.stop()

    def let_go(self) -> None:
        """Leave the cluster running, for whoever comes for it within its grace time."""
        if self.client is not None:
            self.client.close(linger=0)
        self._link.close()

    def restart(self) -> Cluster:
        """End all ranks at once and start fresh ones, with the same settings.

        Prints which variables are lost by that.
        """
        from . import starting

        began = time.monotonic()
        lost = self._losses()
        before = self._link
        before.begin_stop()
        if self.client is not None:
            self.client.close(linger=0)
        try:
            self._link = starting.start(self._settings)
        finally:
            before.stop()
        self._stuck, self._owes_recovery, self._needs_restart = (), False, False
        self._under_way, self._killed = None, set()
        starting.finish_start(self)
        seconds = time.monotonic() - began
        print(f"{count(self.n, 'fresh ')} in {seconds:.1f} s; {lost}")
        print(self.table())
        return self

    def _losses(self) -> str:
        try:
            return losses(names_on(self))
        except ClusterError:  # it has ended, and nobody can be asked
            return losses({})

    def interrupt(self, ranks: list[int] | None = None) -> None:
        """Interrupt what the ranks (all by default) are running, as the stop button does."""
        self.signal(signal.SIGINT, ranks)

    def signal(self, signum: int, ranks: list[int] | None = None) -> None:
        """Send a signal to the processes of some ranks (all by default)."""
        engines = [self.engine_ids[rank] for rank in (self.ids if ranks is None else ranks)]
        self._link.ask("signal", signum=int(signum), engines=engines)

    def kill(self, rank: int) -> None:
        """End the process of a rank at once (``kill -9``), whatever it is doing.

        For a rank that is stuck in code which cannot be interrupted, and to see what a death
        does. The others live on where the MPI can do that; see :meth:`shrink`.
        """
        if rank not in self.ids:
            raise ValueError(f"the ranks are 0 to {self.n - 1}, not {rank!r}")
        self._killed.add(self.engine_ids[rank])
        self.signal(signal.SIGKILL, [rank])
        deadline = time.monotonic() + _DEATH_NOTED_WITHIN_S
        with contextlib.suppress(ClusterError):  # the cluster may end with its rank
            while rank not in self.status()["dead"] and time.monotonic() < deadline:
                time.sleep(_POLL_S)

    def init_process_group(self, timeout_s: float = 30.0) -> None:
        """Initialise ``torch.distributed`` on all ranks; does nothing where it is already.

        Args:
            timeout_s: deadline in seconds for every operation of the group.
        """
        self.require_running()
        self.require_free()
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
        self._require_idle("the reset")
        known = self.view.apply_sync(recovery.group_timeout)
        self.view.apply_sync(recovery.renew, timeout_s, any(one is not None for one in known))

    # ---- making the connection ---------------------------------------------------------

    def _connect(self) -> None:
        """Connect a client and check that engine ids are ranks."""
        self.engine_ids = self._link.ask("status")["members"]
        self.client = self._client_of_all()
        self.view = self.client.direct_view(self.engine_ids)
        self.view.block = True
        asked = self.view.apply_async(engine.describe)
        stuck = [] if asked.wait(_OLD_CELL_MAY_END_S) else self._free_from_old_cell(asked)
        children = enumerate(asked._children)
        self._adopt({rank: child.result() for rank, child in children if rank not in stuck})
        if stuck:
            print(self.note_stuck(stuck))

    def _free_from_old_cell(self, asked) -> list[int]:
        """Interrupt a cell of the kernel before this one; return the ranks that do not stop."""
        silent = self.ids
        if self._busy(self.ids):
            self._owes_recovery = True
            silent = free(self, asked, self.ids)
        deadline = time.monotonic() + _CONNECT_WITHIN_S  # others may be slow, on a busy machine
        while time.monotonic() < deadline:
            stuck = self._busy(silent)
            if set(unfinished(asked, self.ids)) <= set(stuck):
                return stuck
            asked.wait(_POLL_S)
        raise ClusterError("not all ranks answer; start_cluster(replace=True) starts fresh ones")

    def _client_of_all(self) -> ipp.Client:
        """A client that knows the engines of all ranks.

        The controller announces an engine once, at its first heartbeat. A client that connects
        at that moment may miss it for good; the next one gets it with the list.
        """
        directory = self._link.directory
        deadline = time.monotonic() + _CONNECT_WITHIN_S
        while True:
            client = ipp.Client(
                str(directory.client_file), profile_dir=str(directory.profile), timeout=30
            )
            try:
                client.wait_for_engines(self.n, timeout=_ANNOUNCED_WITHIN_S, interactive=False)
                return client
            except TimeoutError as error:
                client.close(linger=0)
                if time.monotonic() > deadline:
                    raise ClusterError(f"not all engines have registered: {error}") from None

    def know_ranks(self) -> None:
        """Ask the ranks again who they are, if one could not be asked before; all are free."""
        if any(rank.pid == _UNKNOWN for rank in self.ranks):
            self._adopt(dict(enumerate(self.view.apply_sync(engine.describe))))

    def _adopt(self, answers: dict[int, dict]) -> None:
        """Take over what the ranks said of themselves, and a view on them."""
        for expected, answer in answers.items():
            if isinstance(answer, Exception):
                raise answer
            if answer["rank"] != expected or answer.pop("world_size") != self.n:
                raise ClusterError(f"engine {expected} is rank {answer['rank']}: please report")
        # Of ranks that all are stuck nobody can be asked; the launcher knows what they run on.
        able = [answer.pop("survives_deaths") for answer in answers.values()]
        self._survives_deaths = all(able) if able else launch.family() == "openmpi"
        unknown = dict.fromkeys((field.name for field in fields(Rank)), _UNKNOWN)
        for answer in answers.values():
            unknown |= {"mpi": answer["mpi"], "host": answer["host"]}
        self.ranks = [Rank(**answers.get(rank, unknown | {"rank": rank})) for rank in self.ids]
        self.view = self.client.direct_view(self.engine_ids)
        self.view.block = True

    def _activate(self) -> None:
        shell = get_ipython()
        if shell is not None:
            from .magics import activate

            activate(shell, self)
