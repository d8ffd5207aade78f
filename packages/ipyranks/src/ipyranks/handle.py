"""The :class:`Cluster` of a notebook: runs cells, reports, recovers from failures, and stops.

The cluster itself lives in processes of its own (:mod:`.keeper`). A notebook gets one from
:mod:`.starting`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

import ipyparallel as ipp
from IPython import get_ipython
from torch_mpi4py.board.hang_report import HangReport
from torch_mpi4py.board.rank_states import name_ranks, rank_list

from . import rank_functions as on_rank
from . import stack_dump
from .cells import DEFAULT_LIMIT_S, Limit, free, unfinished
from .client import Client
from .errors import DIED, MEMORY_ADVICE, WHY_DEAD, ClusterError
from .host_boards import HostBoards
from .notebook_client import NotebookClient
from .rank_table import Rank, RankTable, count
from .shared_folder import make_shared_folder
from .stop_button import StopButton, interruption

_POLL_S = 0.02
_ASK_EVERY_S = 0.5  # the keeper, whether the cluster still lives
_CONNECT_WITHIN_S = 20.0
_ALL_KNOWN_WITHIN_S = 120.0  # within a second, but where many people start at once
_ANNOUNCED_WITHIN_S = 2.0  # and twice as long at each further attempt
_OLD_CELL_MAY_END_S = 0.2  # when a cluster is found again
_DEATH_NOTED_WITHIN_S = 15.0
_SETTLED_WITHIN_S = 1.0  # a patient thread begins what is queued within 9 ms on a quiet machine
_LOOK_AGAIN_S = 0.01
_MORE_THAN_THE_RANKS_S = 10.0  # who end a shrink by themselves when their time is over
_BUSY_AFTER_S = 5.0  # a busy machine may be late to say that what a dead rank ran is over
_NAMES_WITHIN_S = 5.0  # of ranks that run no cell; at once, but for a busy machine
_NAMES_SHOWN = 8


class Cluster:
    """A running cluster of MPI engines, one per rank; made by :func:`.start_cluster`.

    ``len(cluster)`` is the number of ranks. As a context manager it stops itself at the end.

    Attributes:
        n: number of ranks.
        ids: the ranks, ``[0, ..., n - 1]``.
        engine_ids: ipyparallel's number of each rank's engine: the same, until a rank dies and
            :meth:`shrink` numbers the others anew.
        ranks: a :class:`~ipyranks.rank_table.Rank` for each rank.
        keeper: the connection to the process that owns the cluster.
        who: the :class:`~ipyranks.rank_table.RankTable` that has all of these.
        client: the ``ipyparallel.Client``.
        boards: the :class:`~ipyranks.host_boards.HostBoards` of the ranks, by engine.
        view: a blocking ``DirectView`` on all ranks, in rank order.
    """

    current: Cluster | None = None
    """The cluster that this notebook's cells run on."""

    client: Any = None
    view: ipp.DirectView

    def __init__(self, keeper: NotebookClient, settings: dict[str, Any]):
        self._settings = settings
        self._limit = Limit(DEFAULT_LIMIT_S)
        self._begin_with(keeper)

    def _begin_with(self, keeper: NotebookClient) -> None:
        """Take over a cluster that is ready, and forget everything about the one before."""
        status = keeper.ask("status")
        self.keeper = keeper
        self.who = RankTable(status["members"], status["descriptions"])
        elsewhere = {int(engine): host for engine, host in status["elsewhere"].items()}
        self.boards = HostBoards(keeper.directory.events, elsewhere, self._ask_host)
        self._killed: set[int] = set()  # engines that were killed on request
        self._stuck: tuple[int, ...] = ()  # engines that could not be freed
        self._unanswered: dict[int, str] = {}  # by engine of these, what asked for its cell
        self._owes_recovery = False
        self._needs_restart = False
        self._under_way = None  # an interrupted shrink, as long as ranks may be in it

    # ---- what it is --------------------------------------------------------------------

    @property
    def n(self) -> int:
        """The number of ranks."""
        return len(self.who.engines)

    def __len__(self) -> int:
        return self.n

    def __repr__(self) -> str:
        ended = self.keeper.why_it_ended()
        return f"<Cluster of {count(self.n)}, {'stopped' if ended else f'on {self._mpi}'}>"

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

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
    def _mpi(self) -> str:
        return self.ranks[0].mpi

    @property
    def _survives_deaths(self) -> bool:
        return self.ranks[0].survives_deaths

    @property
    def is_running(self) -> bool:
        """Whether the cluster and all of its ranks live."""
        try:
            return not self.status()["dead"]
        except ClusterError:
            return False

    @property
    def where(self) -> dict[str, Any]:
        """The ``hosts`` and ``slurm`` it was started with, both None for this machine."""
        return {name: self._settings[name] for name in ("hosts", "slurm")}

    def table(self) -> str:
        """Rank, device, threads, MPI library, process id and host of every rank, as text."""
        return str(self.who)

    def status(self) -> dict:
        """What the keeper says: ``state``, ``dead`` (list of ranks), ``progress``, ``pid``.

        Raises:
            ClusterError: if the cluster has ended; the message says why.
        """
        return self.keeper.ask("status")

    def require_running(self) -> None:
        """Raise :class:`ClusterError`, with reason and remedy, unless every rank is alive."""
        status = self.status()
        if dead := status["dead"]:
            have = "has" if len(dead) == 1 else "have"
            others = "cluster.shrink() goes on with the others and their variables, "
            unasked = [rank for rank in dead if self.who.engine_of(rank) not in self._killed]
            why = f"\n\n{WHY_DEAD} {MEMORY_ADVICE}"
            raise ClusterError(
                f"{name_ranks(dead)} {have} ended; "
                f"{others if self._survives_deaths and len(dead) < self.n else ''}"
                f"cluster.restart() starts fresh ranks\n\n{self.report().table()}"
                f"{why if unasked else ''}"
            )

    def after_a_death(self) -> str:
        """What can be done once a rank has died."""
        if self._survives_deaths:
            return (
                "cluster.shrink() goes on with the other ranks and their variables, "
                "cluster.restart() starts fresh ones."
            )
        return f"{self._mpi} ends all ranks when one dies; cluster.restart() starts fresh ones."

    # ---- start and end -----------------------------------------------------------------

    def stop(self) -> None:
        """Stop all ranks and remove every trace of the cluster. Calling it twice does no harm."""
        self._disconnect()
        self.keeper.stop()

    def _disconnect(self) -> None:
        if self.client is not None:
            self.client.close(linger=0)

    def restart(self) -> Cluster:
        """End all ranks at once and start fresh ones, with the same settings.

        Prints which variables are lost by that. After the loss of a host, the ranks start on the
        other hosts only, as many as each had.

        Raises:
            ClusterError: if all hosts are lost.
        """
        began = time.monotonic()
        lost = self._losses()
        self._leave_out(self.keeper.lost_hosts)
        before = self.keeper
        before.begin_stop(politely=False)
        self._disconnect()
        try:
            self._begin_with(NotebookClient.start(**self._settings))
        finally:
            before.stop()
        self.open()
        seconds = time.monotonic() - began
        print(f"{count(self.n, 'fresh ')} in {seconds:.1f} s; {lost}")
        print(self.table())
        return self

    def _leave_out(self, lost: list[str]) -> None:
        """Have the next start use the other hosts, where the notebook has chosen them."""
        hosts = self._settings["hosts"]
        if not lost or hosts is None:  # Slurm chooses its hosts itself
            return
        left = {host: ranks for host, ranks in hosts.items() if host not in lost}
        if not left:
            raise ClusterError(
                f"{' and '.join(lost)} had all ranks: start_cluster(n, hosts=...) names other hosts"
            )
        self._settings = self._settings | {"hosts": left, "n": sum(left.values())}
        print(
            f"Without {' and '.join(lost)}; start_cluster(..., replace=True) uses all hosts again."
        )

    def _losses(self) -> str:
        """A sentence on what is lost with the ranks: ``all variables on them are lost: x, y``."""
        try:
            names = self.users_names()
        except ClusterError:  # it has ended, and nobody can be asked
            names = {}
        known = sorted({name for some in names.values() for name in some or ()})
        more = f" and {len(known) - _NAMES_SHOWN} more" if len(known) > _NAMES_SHOWN else ""
        parts = [", ".join(known[:_NAMES_SHOWN]) + more] if known else []
        silent = [rank for rank, some in names.items() if some is None]
        if silent:
            parts.append(f"whatever was on {rank_list(silent)}, which no longer answered")
        return "all variables on them are lost" + (f": {'; '.join(parts)}" if parts else "")

    def users_names(self) -> dict[int, list[str] | None]:
        """The user's names on each rank; None where nobody answers."""
        dead = self.status()["dead"]
        idle = [rank for rank in self.ids if rank not in {*dead, *self._busy(self.ids)}]
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

    def interrupt(self, ranks: list[int] | None = None) -> None:
        """Interrupt what the ranks (all by default) are running, as the stop button does."""
        self.signal(signal.SIGINT, ranks)

    def signal(self, signum: int, ranks: list[int] | None = None) -> None:
        """Send a signal to the processes of some ranks (all by default).

        Raises:
            ValueError: if there is no such rank, or no such signal.
        """
        if signum not in signal.valid_signals():
            raise ValueError(f"{signum!r} is no signal here; signal.SIGTERM, for one, is")
        engines = self.who.engines_of(self.ids if ranks is None else ranks)
        self.keeper.ask("signal", signum=int(signum), engines=engines)

    def kill(self, rank: int) -> None:
        """End the process of a rank at once (``kill -9``), whatever it is doing.

        For a rank that is stuck in code which cannot be interrupted, and to see what a death
        does. The others live on where the MPI can do that; see :meth:`shrink`.
        """
        self._killed.add(self.who.engine_of(rank))
        self.signal(signal.SIGKILL, [rank])
        deadline = time.monotonic() + _DEATH_NOTED_WITHIN_S
        with contextlib.suppress(ClusterError):  # the cluster may end with its rank
            while rank not in self.status()["dead"] and time.monotonic() < deadline:
                time.sleep(_POLL_S)

    def shared_folder(self) -> Path:
        """Return a new folder that this notebook and all ranks see, until its kernel ends.

        With ranks on other hosts it lies in ``IPYRANKS_SHARED``, or where the notebook is.

        Raises:
            ClusterError: if some host does not see it.
        """
        self.require_running()
        self.require_free()
        return make_shared_folder(self.ranks, self.view, bool(self.boards.elsewhere))

    def init_process_group(self, timeout_s: float = 30.0) -> None:
        """Initialise ``torch.distributed`` on all ranks; does nothing where it is already.

        Args:
            timeout_s: deadline in seconds for every operation of the group.
        """
        self.require_running()
        self.require_free()
        self._view_on_all().apply_sync(on_rank.init_process_group, timeout_s)

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
        self._view_on_all().apply_sync(on_rank.renew, timeout_s)

    def _require_idle(self, what: str) -> None:
        # What a dead rank was running ends when the controller has said so.
        if self.client.outstanding and not self.client.wait(timeout=_BUSY_AFTER_S):
            raise ClusterError(f"a cell is still running; interrupt it before {what}")

    # ---- cells that hang or fail ---------------------------------------------------------

    @property
    def limit(self) -> Limit:
        """How long a ``%%px`` cell may take: 60 s. Set it to seconds, ``"60+"`` or ``None``.

        ``"60+"`` is 60 s without progress: something printed, or a call of communication
        ended. ``None`` is no limit. ``%%px --limit 5`` sets it for one cell.

        Where a busy machine lets a rank begin late, it counts from then, but from at most 5 s
        after the cell was sent. Where other programs leave ranks that compute less than a fifth of
        a core, what they wait for one does not count, up to ten times the limit.
        """
        return self._limit

    @limit.setter
    def limit(self, value: Any) -> None:
        self._limit = Limit.of(value)

    def report(self) -> HangReport:
        """What every rank is doing now, or was doing in the last cell; possible at any time."""
        dead = self.status()["dead"]
        numbers = {engine: rank for rank, engine in enumerate(self.who.engines)}
        return HangReport.of(
            self.boards.state(
                rank,
                engine,
                numbers,
                alive=rank not in dead,
                ask_site=partial(self._ask_site, rank, engine),
            )
            for engine, rank in numbers.items()
        )

    def _ask_site(self, rank: int, engine: int) -> str:
        send = partial(self.signal, stack_dump.SIGNAL, [rank])
        return stack_dump.ask(self.boards.directory, engine, send)

    def _ask_host(self, host: str, question: str, **arguments: Any) -> Any:
        """What the agent of another host answers; None if no answer comes."""
        answer = self.keeper.ask("look", host=host, question=question, **arguments)
        return answer["answer"]

    def report_after_the_cell(self) -> HangReport:
        """The report once what all ranks have called, but nobody waits for, has ended."""
        until = time.monotonic() + _SETTLED_WITHIN_S
        while (found := self.report()).is_settling and time.monotonic() < until:
            time.sleep(_LOOK_AGAIN_S)
        return found

    def after_failure(self, report: HangReport, stuck: list[int], result: Any) -> str:
        """Renew communication after a failed cell, now or once the ranks are free.

        Args:
            report: what every rank was doing.
            stuck: the ranks that could not be freed.
            result: the cell's ``AsyncResult``.

        Returns:
            What state the ranks are in now.
        """
        if stuck:
            return self.note_stuck(stuck, result)
        self.mend(report.is_out_of_step)
        if self._needs_restart:
            return (
                "All ranks have left the cell, but they cannot communicate any more: "
                "cluster.restart() starts fresh ones."
            )
        return "All ranks are free again."

    @property
    def stuck(self) -> list[int]:
        """The ranks that could not be freed and have not come back since."""
        ranks = self.who.ranks_of(self._stuck)
        asked = {rank: self._unanswered.get(self.who.engine_of(rank)) for rank in ranks}
        not_begun = [rank for rank in ranks if asked[rank] in self.client.outstanding]
        return sorted({*self._busy(ranks), *not_begun})

    def _busy(self, ranks: list[int]) -> list[int]:
        """Which of the ranks are running a cell."""
        return [rank for rank in ranks if self.boards.is_busy(self.who.engine_of(rank))]

    def note_stuck(self, ranks: list[int], result: Any = None) -> str:
        """Remember ranks that could not be freed; return what can be done about them.

        Args:
            ranks: these ranks.
            result: the ``AsyncResult`` of the cell that they have not ended, if there is one.
        """
        self._stuck = tuple(self.who.engines_of(ranks))
        asked = [] if result is None else zip(result._targets, result.msg_ids, strict=True)
        self._unanswered = {engine: message for engine, message in asked if engine in self._stuck}
        return self._about_stuck(ranks)

    def _about_stuck(self, ranks: list[int]) -> str:
        one = len(ranks) == 1
        who = f"Rank {ranks[0]} does" if one else f"Ranks {', '.join(map(str, ranks))} do"
        back = f"{'it comes' if one else 'they come'} back by {'itself' if one else 'themselves'}"
        cannot = f"{who} not react to signals and could not be freed."
        if len(ranks) == self.n:
            return (
                f"{cannot} Wait until {back}, with all variables, or cluster.restart() for fresh "
                "ranks."
            )
        kills = ", ".join(f"cluster.kill({rank})" for rank in ranks)
        return (
            f"{cannot} All other ranks are free again. Wait until {back}, or "
            f"{kills} and cluster.shrink() to go on with the others and their variables, or "
            "cluster.restart() for fresh ranks."
        )

    def require_free(self) -> None:
        """Raise unless every rank that was stuck has come back; then recover, if need be.

        Raises:
            ClusterError: if a rank is still stuck; the message says what to do.
        """
        self._stuck = tuple(engine for engine in self._stuck if engine in self.who.engines)
        if not self._stuck and not self._owes_recovery:
            return
        # What they were asked while they were stuck.
        if self.client.outstanding and not self._busy(self.who.ranks_of(self._stuck)):
            self.client.wait(timeout=_BUSY_AFTER_S)
        if self.stuck:
            told = self._about_stuck(self.stuck)
            raise ClusterError(told.replace(" All other ranks are free again.", ""))
        self.mend(out_of_step=bool(self._stuck))
        self._stuck = ()

    def mend(self, out_of_step: bool = False) -> None:
        """Renew communication if it was lost, as soon as all ranks are idle, and say so.

        Args:
            out_of_step: renew it in any case.
        """
        shown = filter(None, map(self.boards.position, self.who.engines))
        if not out_of_step and not self._owes_recovery and not any(one.lost for one in shown):
            return
        if self.status()["dead"]:
            return  # shrink and restart make everything anew
        if self._busy(self.ids) or self.client.outstanding:
            self._owes_recovery = True
            return
        if self._owes_recovery:
            out_of_step |= self.report().is_out_of_step
        self._owes_recovery = True  # should this be ended half-way
        try:
            said = self._recover(out_of_step)
        except ipp.RemoteError as failure:  # it must not take the place of what is to be told
            said = (
                f"Communication could not be renewed ({failure.ename}: {failure.evalue}): "
                "cluster.restart() starts fresh ranks."
            )
            self._needs_restart = True
        self._owes_recovery = False
        if said:
            print(said)

    def _view_on_all(self) -> ipp.DirectView:
        """A view on all ranks, whatever ``%pxconfig --targets`` has made of the notebook's."""
        return self.client.direct_view(self.who.engines)

    def _recover(self, always: bool) -> str:
        """Renew what was lost on the ranks, which are all idle.

        Args:
            always: also if no rank has noticed a loss, because messages are under way to nobody.

        Returns:
            What was done.
        """
        found: list[on_rank.Condition] = self._view_on_all().apply_sync(on_rank.condition)
        union = 0
        for one in found:
            union |= one.flags
        lost = sorted({name for one in found for name in one.lost})
        self._needs_restart = bool(union & on_rank.NEEDS_RESTART)
        if self._needs_restart:
            return (
                f"{self._mpi} cannot free a rank that is stuck inside of it, so communication "
                "cannot be renewed: cluster.restart() starts fresh ranks. Their variables are "
                "lost then; until then you can still read them: cluster.view['name']."
            )
        if always or union & (on_rank.WORLD_LOST | on_rank.DEFAULT_GROUP_LOST):
            self._view_on_all().apply_sync(on_rank.renew, None)
            gone = sorted({*lost, *(name for one in found for name in one.stale)})
            also = f" Make these again, they used the old ones: {', '.join(gone)}." if gone else ""
            return (
                "Communication is renewed: comm and the default process group are new, "
                f"and all variables are kept.{also}"
            )
        if lost:
            self._view_on_all().apply_sync(on_rank.note_told, lost)
            return (
                f"Lost: {', '.join(lost)}; make {'it' if len(lost) == 1 else 'them'} again. All "
                "other communication is as usable as before, and all variables are kept."
            )
        return ""

    # ---- after a death -------------------------------------------------------------------

    def shrink(self, timeout_s: float = 30.0) -> Cluster:
        """Go on with the ranks that are left after one has died; their variables are kept.

        They are numbered anew, in the same order: ``rank``, ``world_size`` and ``comm`` on each
        of them, ``len(cluster)``, and the ranks that ``%%px --targets`` means. If there was a
        default process group, there is a new one. Does nothing if every rank lives.

        Args:
            timeout_s: seconds within which all survivors must have come.

        Raises:
            ClusterError: if a survivor is still running a cell, does not come, or dies, or the
                cluster has ended.
            KeyboardInterrupt: if the stop button is pressed; call it again to go on.
        """
        with StopButton() as button:
            try:
                with button.listening():
                    dead = self._dead_to_leave_out(timeout_s)
                if not dead:
                    print(f"{count(self.n)} live: there is nothing to shrink")
                    return self
                survivors = [rank for rank in self.ids if rank not in dead]
                members = self.who.engines_of(survivors)
                asked = self.client.direct_view(members).apply_async(on_rank.shrink, timeout_s)
                self._under_way = asked
                with button.listening():
                    self._await(asked, survivors, timeout_s)
            except KeyboardInterrupt:
                raise interruption(
                    "the shrink was interrupted; nothing is lost, and the next cluster.shrink() "
                    "goes on with it"
                ) from None
            self._under_way = None
            _require_success(asked, survivors)
            status = self.keeper.ask("shrunk", members=members)
            self.who = RankTable(members, status["descriptions"])
            self._stuck, self._owes_recovery = (), False  # all who answer are free, and renewed
            self._activate()
            go_on = f"{count(self.n)} {'goes' if self.n == 1 else 'go'} on"
            print(f"{rank_list(dead)} died; {go_on}, numbered anew, with their variables:")
            renumbered = enumerate(survivors)
            print("\n".join(f"rank {now}  was rank {before}" for now, before in renumbered))
        return self

    def _dead_to_leave_out(self, timeout_s: float) -> list[int]:
        dead = self.status()["dead"]
        if len(dead) == self.n:
            raise ClusterError("all ranks have ended; cluster.restart() starts fresh ones")
        if dead and not self._survives_deaths:
            raise ClusterError(
                f"{rank_list(dead)} died, and {self._mpi} cannot go on with the others; "
                "cluster.restart() starts fresh ranks"
            )
        if dead and self._under_way is not None:
            self._await(self._under_way, [rank for rank in self.ids if rank not in dead], timeout_s)
            self._under_way = None
            dead = self.status()["dead"]
        if dead:
            self._require_idle("it shrinks")
        return dead

    def _await(self, asked: Any, survivors: list[int], timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s + _MORE_THAN_THE_RANKS_S
        while not asked.wait(_ASK_EVERY_S):
            self.status()
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"not all of {rank_list(survivors)} came within {timeout_s:g} s; "
                    "cluster.report() says what they do, cluster.kill(RANK) ends one, and then "
                    "cluster.shrink() goes on"
                )

    # ---- making the connection ---------------------------------------------------------

    def open(self, found: bool = False) -> None:
        """Connect to a cluster that is ready, and make it the current one.

        Args:
            found: it has variables; when interrupted, leave it to be found again.
        """
        try:
            self.client = self._client_of_all()
            self._activate()
            if found:
                self._free_from_old_cell()
        except BaseException as error:
            self._disconnect()
            if not found or not isinstance(error, KeyboardInterrupt):
                self.keeper.stop()
            self.keeper.close()
            raise
        Cluster.current = self

    def _free_from_old_cell(self) -> None:
        """Interrupt what a kernel before this one has left on the ranks; say who does not stop."""
        asked = self.view.apply_async(os.getpid)
        if asked.wait(_OLD_CELL_MAY_END_S):
            return
        silent = self.ids
        if self._busy(self.ids):
            self._owes_recovery = True
            silent = free(self, asked, self.ids)
        deadline = time.monotonic() + _CONNECT_WITHIN_S  # others may be slow, on a busy machine
        while time.monotonic() < deadline:
            stuck = self._busy(silent)
            if set(unfinished(asked, self.ids)) <= set(stuck):
                if stuck:
                    print(self.note_stuck(stuck))
                return
            asked.wait(_POLL_S)
        raise ClusterError("not all ranks answer; start_cluster(replace=True) starts fresh ones")

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
                self.status()  # who has ended is not waited for
                if time.monotonic() > deadline:
                    raise ClusterError(f"not all engines have registered: {error}") from None

    def _activate(self) -> None:
        """Make a view on all ranks, and run this notebook's ``%%px`` cells on it."""
        self.view = self.client.direct_view(self.who.engines)
        self.view.block = True
        shell = get_ipython()
        if shell is not None:
            from .magics import activate

            activate(shell, self)


def _require_success(asked: Any, survivors: list[int]) -> None:
    """Raise ClusterError unless all survivors have done their part of a shrink."""
    failed = [
        (rank, child.result())
        for rank, child in zip(survivors, asked._children, strict=True)
        if isinstance(child.result(), Exception)
    ]
    died = [rank for rank, failure in failed if getattr(failure, "ename", "") == DIED]
    if died:
        raise ClusterError(f"{rank_list(died)} died meanwhile; call cluster.shrink() again")
    if failed:
        rank, failure = failed[0]
        raise ClusterError(
            f"the shrink failed; rank {rank} says {failure}. Call cluster.shrink() once more; "
            "if it fails again, only cluster.restart() helps"
        )
