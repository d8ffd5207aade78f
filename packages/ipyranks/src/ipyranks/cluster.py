"""The :class:`Cluster` of a notebook, which gets one from :mod:`.starting`."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

from . import rank_functions as on_rank
from .connection import Connection
from .errors import ClusterError
from .limits import DEFAULT_LIMIT_S, Limit
from .notebook_client import NotebookClient
from .rank_table import count
from .recovery import Recovery
from .shared_folder import make_shared_folder
from .stop_button import StopButton
from .whereabouts import Whereabouts


class Cluster(Connection):
    """A running cluster of MPI engines, one per rank; made by :func:`.start_cluster`.

    ``len(cluster)`` is the number of ranks. As a context manager it stops itself at the end.

    Attributes:
        n: number of ranks.
        ids: the ranks, ``[0, ..., n - 1]``.
        engine_ids: ipyparallel's number of each rank's engine: equal to the rank until a rank dies
            and :meth:`shrink` gives the others new numbers.
        ranks: a :class:`~ipyranks.rank_table.Rank` for each rank.
        client: the ``ipyparallel.Client``.
        view: a blocking ``DirectView`` on all ranks, in rank order.
        recovery: the :class:`~ipyranks.recovery.Recovery` from failures.
    """

    current: Cluster | None = None
    """The cluster on which this notebook's cells run."""

    def __init__(self, keeper: NotebookClient, settings: dict[str, Any]):
        super().__init__(keeper)
        self.recovery = Recovery(self, settings)
        self._limit = Limit(DEFAULT_LIMIT_S)

    def __len__(self) -> int:
        return self.n

    def __repr__(self) -> str:
        ended = self.keeper.why_it_ended()
        return f"<Cluster of {count(self.n)}, {'stopped' if ended else f'on {self.mpi}'}>"

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    @property
    def is_running(self) -> bool:
        """Whether the cluster and all of its ranks live."""
        try:
            return not self.status()["dead"]
        except ClusterError:
            return False

    @property
    def placement(self) -> dict[str, Any]:
        """The ``hosts`` and ``slurm`` it was started with, both None for this machine."""
        return {name: self.recovery.settings[name] for name in ("hosts", "slurm")}

    def table(self) -> str:
        """Rank, device, threads, MPI library, process id and host of every rank, as text."""
        return str(self.who)

    def where(self, stacks: bool = False) -> Whereabouts:
        """Return what each rank is doing now, or was doing in the last cell, and in which line.

        It stops nothing and needs no help from the ranks: it answers while they run a cell (``%%px
        --noblock``, or another thread of the notebook), while they hang in one, and while they run
        none. The notebook shows the result as the table of a hang report.

        Args:
            stacks: also ask each rank that runs a cell for the Python stack of its main thread.
                A rank that does not answer because it has no core gets up to 2 s.

        Raises:
            ClusterError: if the cluster has ended.
        """
        report, engines = self.report(), self.who.engines
        busy = [state.rank for state in report.ranks if stacks and state.running and state.alive]
        return Whereabouts(report, {rank: self.boards.stack(engines[rank]) for rank in busy})

    def after_a_death(self) -> str:
        """The options after a rank has died."""
        if not self.survives_deaths:
            return f"{self.mpi} ends all ranks when one dies; cluster.restart() starts fresh ones."
        if len(self.status()["dead"]) == self.n:
            return "No rank is left; cluster.restart() starts fresh ones."
        return (
            "cluster.shrink() continues with the other ranks and their variables; "
            "cluster.restart() starts fresh ones."
        )

    def stop(self) -> None:
        """Stop all ranks and remove every trace of the cluster. Calling it twice does no harm."""
        self.disconnect()
        self.keeper.stop()

    def interrupt(self, ranks: list[int] | None = None) -> None:
        """Interrupt what the ranks (all by default) are running, as the stop button does."""
        self.signal(signal.SIGINT, ranks)

    def shared_folder(self) -> Path:
        """Return a new folder that this notebook and all ranks see, until its kernel ends.

        With ranks on other hosts, it is in ``IPYRANKS_SHARED``, or beside the notebook.

        Raises:
            ClusterError: if some host does not see it.
        """
        self.require_running()
        self.recovery.require_free()
        return make_shared_folder(self.ranks, self.view, bool(self.boards.elsewhere))

    def init_process_group(self, timeout_s: float = 30.0) -> None:
        """Initialise ``torch.distributed`` on all ranks; does nothing if it already is.

        Args:
            timeout_s: deadline in seconds for every operation of the group.
        """
        self.require_running()
        self.recovery.require_free()
        self.view_on_all().apply_sync(on_rank.init_process_group, timeout_s)

    def reset_communication(self, timeout_s: float = 30.0) -> None:
        """Make a new ``comm`` and default process group on every rank; variables are kept.

        For use after a failure: messages that were under way are dropped, so that ranks which
        disagree on what comes next are in step again. The process group is made again only if
        there was one.

        Args:
            timeout_s: deadline in seconds for every operation from now on.

        Raises:
            ClusterError: if a rank has ended or is still running a cell.
        """
        self.require_running()
        self.recovery.require_idle("the reset")
        self.view_on_all().apply_sync(on_rank.renew, timeout_s)

    @property
    def limit(self) -> Limit:
        """How long a ``%%px`` cell may take: 60 s. Set it to seconds, ``"60+"`` or ``None``.

        ``"60+"`` is 60 s without progress: something printed, or a call of communication
        ended. ``None`` is no limit. ``%%px --limit 5`` sets it for one cell.

        If a busy machine makes a rank begin late, the limit counts from then, but from 5 s after
        the cell was sent at the latest. If other programs leave computing ranks less than a fifth
        of a core, their time without a core does not count, up to ten times the limit.
        """
        return self._limit

    @limit.setter
    def limit(self, value: Any) -> None:
        self._limit = Limit.of(value)

    def open(self, button: StopButton, found: bool = False) -> None:
        """Connect to the ranks, and have this notebook's cells run on them.

        Args:
            button: the stop button that interrupts this.
            found: see :meth:`.Recovery.open`.
        """
        self.recovery.open(button, found)
        Cluster.current = self

    def restart(self) -> Cluster:
        """End all ranks at once and start fresh ones, with the same settings.

        It prints which variables are lost. After the loss of a host, the ranks start on the
        other hosts only, as many as each had.

        Raises:
            ClusterError: if all hosts are lost.
        """
        self.recovery.restart()
        Cluster.current = self
        return self

    def shrink(self, timeout_s: float = 30.0) -> Cluster:
        """Continue with the ranks that are left after one has died; their variables are kept.

        They get new numbers, in the same order: ``rank``, ``world_size`` and ``comm`` on each
        of them, ``len(cluster)``, and the ranks that ``%%px --targets`` means. If there was a
        default process group, there is a new one. Does nothing if every rank lives.

        Args:
            timeout_s: seconds within which all survivors must join.

        Raises:
            ClusterError: if a survivor is still running a cell, does not join, or dies, or if the
                cluster has ended.
            KeyboardInterrupt: if the stop button is pressed; call it again to continue.
        """
        self.recovery.shrink(timeout_s)
        return self
