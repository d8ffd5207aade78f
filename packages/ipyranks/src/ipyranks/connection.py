"""A notebook's connection to the keeper and the engines, with ipyparallel's client of them.

The cluster itself lives in processes of its own (:mod:`.keeper`).
"""

from __future__ import annotations

import contextlib
import re
import signal
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import ipyparallel as ipp
from ipyparallel import error
from ipyparallel.client.client import unpack_message
from torch_mpi4py.board.hang_report import HangReport
from torch_mpi4py.board.rank_states import name_ranks

from . import rank_functions as on_rank
from .boards import Boards, BoardsHere
from .errors import MEMORY_ADVICE, WHY_DEAD, ClusterError
from .notebook_client import NotebookClient
from .output import change_output
from .rank_table import Rank, RankTable

_POLL_S = 0.02
_ALL_KNOWN_WITHIN_S = 120.0  # within a second, unless many people start at once
_ANNOUNCED_WITHIN_S = 2.0  # and twice as long at each further attempt
_DEATH_NOTED_WITHIN_S = 15.0
_NAMES_WITHIN_S = 5.0  # of ranks that run no cell; at once, unless the machine is busy

# Pickle's words for a class of the sender's that is nowhere here.
_CLASS = re.compile(r"Can't get (?:local )?(?:attribute|object) '([^']+)'")


class Client(ipp.Client):
    """ipyparallel's client, with an error for what its own would wait for, or end with KeyError:
    a result that cannot be made here, and an engine that has left the cluster. It also takes in
    changes of a rank's output, which its own leaves out.

    Attributes:
        explain: called if a request names an engine that the controller no longer has; raises an
            error with what is known of the cluster.
    """

    explain: Callable[[], None]

    @unpack_message
    def _dispatch_iopub(self, msg: dict) -> None:
        """Take a piece of output, or a change of earlier ones."""
        asked = msg["parent_header"].get("msg_id")
        if asked in self.metadata:
            change_output(self.metadata[asked], msg["header"]["msg_type"], msg["content"])
        ipp.Client._dispatch_iopub.__wrapped__(self, msg)

    def _build_targets(self, targets: Any) -> Any:
        try:
            return super()._build_targets(targets)
        except (KeyError, error.NoEnginesRegistered) as gone:
            self.explain()
            raise ClusterError(
                f"this view includes a rank that has left the cluster ({gone}); use cluster.view "
                "for the ranks that are left, or cluster.restart() for fresh ones"
            ) from None

    def _handle_apply_reply(self, msg: dict) -> None:
        """Take a result; one that cannot be made here is an error of its rank."""
        try:
            super()._handle_apply_reply(msg)
        except Exception as why:  # of the code that makes it, so of any kind
            why_not = f"this value can't be brought to the notebook: {_explain(why)}"
            content = {
                "ename": "ClusterError",
                "evalue": why_not,
                "traceback": [f"ClusterError: {why_not}"],
                "engine_info": {"engine_uuid": msg["metadata"]["engine"], "method": "apply"},
            }
            asked = msg["parent_header"]["msg_id"]
            self.results[asked] = self._unwrap_exception(content)
            self._futures[asked].set_result(self.results[asked])


def _explain(why: Exception) -> str:
    """Why a value of a rank's cannot be made in the notebook, and what to do."""
    if found := _CLASS.search(str(why)):
        return (
            f"{found[1]} is only defined on the ranks; run the cell that defines it with "
            "%%px --local, which also runs it in the notebook"
        )
    return f"{type(why).__name__}: {why}. Bring numbers, strings or tensors instead"


class Connection:
    """A notebook's connection to a cluster.

    Args:
        keeper: the connection to the process that owns the cluster, which is ready.

    Attributes:
        keeper: the same.
        who: the :class:`~ipyranks.rank_table.RankTable` of its ranks.
        client: the ``ipyparallel.Client``.
        boards: the :class:`~ipyranks.boards.Boards` of the ranks, by engine.
        view: a blocking ``DirectView`` on all ranks, in rank order.
    """

    client: Any = None
    view: ipp.DirectView

    def __init__(self, keeper: NotebookClient) -> None:
        self.hold(keeper)

    def hold(self, keeper: NotebookClient) -> None:
        """Take over a cluster that is ready, and forget everything about the one before."""
        status = keeper.ask("status")
        self.keeper = keeper
        self.who = RankTable(status["members"], status["descriptions"])
        elsewhere = {int(engine): host for engine, host in status["elsewhere"].items()}
        here = BoardsHere(keeper.directory.events, self._signal)
        self.boards = Boards(here, elsewhere, partial(keeper.ask, "look"))
        self._killed: set[int] = set()  # engines that were killed on request

    # ---- who is there ------------------------------------------------------------------

    @property
    def n(self) -> int:
        """The number of ranks."""
        return len(self.who.engines)

    @property
    def ids(self) -> list[int]:
        """The ranks, ascending."""
        return self.who.ranks

    @property
    def engine_ids(self) -> list[int]:
        """The engine of each rank, by ipyparallel's number."""
        return self.who.engines

    @property
    def ranks(self) -> list[Rank]:
        """A row of the table for each rank."""
        return self.who.rows

    @property
    def mpi(self) -> str:
        """The name of the MPI library."""
        return self.ranks[0].mpi

    @property
    def survives_deaths(self) -> bool:
        """Whether ranks can go on after another has died."""
        return self.ranks[0].survives_deaths

    def status(self) -> dict:
        """The keeper's status: ``state``, ``dead`` (list of ranks), ``progress``, ``pid``.

        Raises:
            ClusterError: if the cluster has ended; the message says why.
        """
        return self.keeper.ask("status")

    def require_running(self) -> None:
        """Raise :class:`ClusterError`, with reason and remedy, unless every rank is alive."""
        status = self.status()
        if dead := status["dead"]:
            have = "has" if len(dead) == 1 else "have"
            others = "cluster.shrink() continues with the others and their variables; "
            unasked = [rank for rank in dead if self.who.engine_of(rank) not in self._killed]
            why = f"\n\n{WHY_DEAD} {MEMORY_ADVICE}"
            raise ClusterError(
                f"{name_ranks(dead)} {have} ended; "
                f"{others if self.survives_deaths and len(dead) < self.n else ''}"
                f"cluster.restart() starts fresh ranks\n\n{self.report().table()}"
                f"{why if unasked else ''}"
            )

    def users_names(self) -> dict[int, list[str] | None]:
        """The user's names on each rank; None for a rank that does not answer."""
        dead = self.status()["dead"]
        idle = [rank for rank in self.ids if rank not in {*dead, *self.busy(self.ids)}]
        names: dict[int, list[str] | None] = dict.fromkeys(self.ids)
        if not idle:
            return names
        view = self.client.direct_view(self.who.engines_of(idle))
        asked = view.apply_async(on_rank.users_names)
        asked.wait(_NAMES_WITHIN_S)
        for rank, child in zip(idle, asked._children, strict=True):
            # A rank that has died meanwhile answers with an error, as a result.
            if child.done() and isinstance(child.result(), list):
                names[rank] = child.result()
        return names

    def busy(self, ranks: list[int]) -> list[int]:
        """Which of the ranks are running a cell."""
        views = self.boards.snapshot(self.who.engines_of(ranks)).values()
        return [rank for rank, view in zip(ranks, views, strict=True) if view.running]

    def report(self) -> HangReport:
        """The activity of every rank now, or in the last cell; possible at any time."""
        dead, members = self.status()["dead"], self.who.engines
        return HangReport.of(
            self.boards.state(rank, engine, members, rank not in dead)
            for rank, engine in enumerate(members)
        )

    # ---- signals -----------------------------------------------------------------------

    def signal(self, signum: int, ranks: list[int] | None = None) -> None:
        """Send a signal to the processes of some ranks (all by default).

        Raises:
            ValueError: if there is no such rank, or no such signal.
        """
        if signum not in signal.valid_signals():
            raise ValueError(f"{signum!r} is not a signal on this system; try signal.SIGTERM")
        engines = self.who.engines_of(self.ids if ranks is None else ranks)
        self._signal(signum, engines)

    def _signal(self, signum: int, engines: list[int]) -> None:
        self.keeper.ask("signal", signum=int(signum), numbers=engines)

    def kill(self, rank: int) -> None:
        """End the process of a rank at once (``kill -9``), whatever it is doing.

        For a rank that is stuck in uninterruptible code, and to see the effect of a death. The
        others live on where the MPI can do that; see :meth:`shrink`.
        """
        self._killed.add(self.who.engine_of(rank))
        self.signal(signal.SIGKILL, [rank])
        deadline = time.monotonic() + _DEATH_NOTED_WITHIN_S
        with contextlib.suppress(ClusterError):  # the cluster may end with its rank
            while rank not in self.status()["dead"] and time.monotonic() < deadline:
                time.sleep(_POLL_S)

    # ---- the client --------------------------------------------------------------------

    def connect(self) -> None:
        """Connect to the engines of all ranks."""
        self.client = self._client_of_all()
        self._make_view()

    def disconnect(self) -> None:
        """Close the connection to the engines, if there is one."""
        if self.client is not None:
            self.client.close(linger=0)

    def renumber(self, members: list[int]) -> None:
        """Continue with some of the ranks, given by their engines; the others have died."""
        self.who = RankTable(members, self.keeper.ask("shrunk", members=members)["descriptions"])
        self._make_view()

    def _make_view(self) -> None:
        self.view = self.view_on_all()
        self.view.block = True

    def view_on_all(self) -> ipp.DirectView:
        """A view of all ranks, whatever ``%pxconfig --targets`` has set for the notebook's."""
        return self.client.direct_view(self.who.engines)

    def _client_of_all(self) -> ipp.Client:
        """A client that knows the engines of all ranks.

        The controller announces an engine once, at its first heartbeat. A client that connects
        at that moment may miss it for good; the next one gets it with the list.
        """
        directory = self.keeper.directory
        deadline, patience = time.monotonic() + _ALL_KNOWN_WITHIN_S, _ANNOUNCED_WITHIN_S
        while True:
            client = Client(
                str(directory.client_file),
                profile_dir=str(directory.profile),
                timeout=_ALL_KNOWN_WITHIN_S,
            )
            client.explain = self.require_running
            try:
                client.wait_for_engines(self.n, timeout=patience, interactive=False)
                return client
            except TimeoutError as error:
                client.close(linger=0)
                patience *= 2
                self.status()  # no wait for engines that have ended
                if time.monotonic() > deadline:
                    raise ClusterError(f"not all engines have registered: {error}") from None
