"""Frees ranks from cells, and restores a cluster after failures, deaths and losses."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import ipyparallel as ipp
from torch_mpi4py.board.hang_report import HangReport
from torch_mpi4py.board.rank_states import rank_list

from . import rank_functions as on_rank
from .connection import Connection
from .errors import DIED, ClusterError
from .notebook_client import NotebookClient
from .rank_table import count
from .stop_button import StopButton, interruption, stoppable

_POLL_S = 0.02
_ASK_EVERY_S = 0.5  # to ask the keeper whether the cluster still lives
_ANSWER_WITHIN_S = 20.0  # when a cluster is found again, on a busy machine
_OLD_CELL_MAY_END_S = 0.2  # when a cluster is found again
_FREE_WITHIN_S = 6.0  # 0.7 s on a quiet machine
_STUCK_AFTER_S = 1.5
_SIGNAL_AGAIN_S = 0.1
_INSIST_AFTER_S = 3.0  # until then, a cell that catches the interrupt may end its own way
_SETTLED_WITHIN_S = 1.0  # a patient thread begins what is queued within 9 ms on a quiet machine
_LOOK_AGAIN_S = 0.01
_MORE_THAN_THE_RANKS_S = 10.0  # which end a shrink by themselves when their time is over
_BUSY_AFTER_S = 5.0  # a busy machine may be late to say that what a dead rank ran is over
_NAMES_SHOWN = 8


def unfinished(result: Any) -> list[int]:
    """The engines that have not ended the cell."""
    pairs = zip(result._targets, result._children, strict=True)
    return [engine for engine, child in pairs if not child.done()]


def free(cluster: Connection, result: Any, signum: int = signal.SIGINT) -> list[int]:
    """Get all ranks out of a cell; return those that can't be freed.

    The wait is shorter for a rank whose heartbeat has stopped, in C code that holds the
    interpreter's lock.
    """
    signalled: dict[int, float] = {}
    began = time.perf_counter()
    while time.perf_counter() < began + _FREE_WITHIN_S:
        # Before its cell begins, a rank does not notice a signal.
        views = cluster.boards.snapshot(unfinished(result))
        for engine, view in views.items():
            since = signalled.get(engine, 0.0)
            insists = time.perf_counter() > since + _INSIST_AFTER_S and view.interrupts > 0
            if view.running and (view.began > since or insists):
                signalled[engine] = time.perf_counter()
                cluster.signal(signum, [cluster.who.rank_of(engine)])
        waited = time.perf_counter() - began
        if waited > _STUCK_AFTER_S and all(view.keeps_the_lock for view in views.values()):
            break
        if result.wait(_SIGNAL_AGAIN_S):
            break
    return cluster.who.ranks_of(unfinished(result))


class Recovery:
    """Makes a cluster usable again: renews communication, shrinks it, starts fresh ranks.

    Args:
        cluster: the connection to it.
        settings: with which it was started.
    """

    def __init__(self, cluster: Connection, settings: dict[str, Any]) -> None:
        self._cluster = cluster
        self.settings = settings
        self._forget()

    def _forget(self) -> None:
        self._stuck: tuple[int, ...] = ()  # engines that could not be freed
        self._unanswered: dict[int, str] = {}  # by engine of these, the request for its cell
        self._owes_recovery = False
        self._needs_restart = False
        self._under_way = None  # an interrupted shrink, as long as ranks may be in it

    # ---- cells that hang or fail ---------------------------------------------------------

    def report_after_the_cell(self) -> HangReport:
        """The report, once the non-blocking calls that all ranks have made have ended."""
        until = time.monotonic() + _SETTLED_WITHIN_S
        while (found := self._cluster.report()).is_settling and time.monotonic() < until:
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
        self.renew(report.is_out_of_step)
        if self._needs_restart:
            return (
                "All ranks have left the cell, but they cannot communicate any more: "
                "cluster.restart() starts fresh ones."
            )
        return "All ranks are free again."

    @property
    def stuck(self) -> list[int]:
        """The ranks that could not be freed and have not come back since."""
        cluster = self._cluster
        ranks = cluster.who.ranks_of(self._stuck)
        asked = {rank: self._unanswered.get(cluster.who.engine_of(rank)) for rank in ranks}
        not_begun = [rank for rank in ranks if asked[rank] in cluster.client.outstanding]
        return sorted({*cluster.busy(ranks), *not_begun})

    def note_stuck(self, ranks: list[int], result: Any = None) -> str:
        """Remember ranks that could not be freed; return what to do about them.

        Args:
            ranks: these ranks.
            result: the ``AsyncResult`` of the cell that they have not ended, if there is one.
        """
        self._stuck = tuple(self._cluster.who.engines_of(ranks))
        asked = [] if result is None else zip(result._targets, result.msg_ids, strict=True)
        self._unanswered = {engine: message for engine, message in asked if engine in self._stuck}
        return self._about_stuck(ranks)

    def _about_stuck(self, ranks: list[int]) -> str:
        one = len(ranks) == 1
        who = f"Rank {ranks[0]} does" if one else f"Ranks {', '.join(map(str, ranks))} do"
        back = f"{'it comes' if one else 'they come'} back by {'itself' if one else 'themselves'}"
        cannot = f"{who} not end when interrupted and could not be freed."
        if len(ranks) == self._cluster.n:
            return (
                f"{cannot} Wait until {back}, with all variables, or call cluster.restart() for "
                "fresh ranks."
            )
        kills = ", ".join(f"cluster.kill({rank})" for rank in ranks)
        return (
            f"{cannot} All other ranks are free again. Wait until {back}, or call {kills} and "
            "cluster.shrink() to continue with the others and their variables, or "
            "cluster.restart() for fresh ranks."
        )

    def require_free(self) -> None:
        """Raise unless every rank that was stuck has come back; then recover, if need be.

        Raises:
            ClusterError: if a rank is still stuck; the message says what to do.
        """
        cluster = self._cluster
        self._stuck = tuple(engine for engine in self._stuck if engine in cluster.who.engines)
        if not self._stuck and not self._owes_recovery:
            return
        # Requests that were sent to them while they were stuck.
        if cluster.client.outstanding and not cluster.busy(cluster.who.ranks_of(self._stuck)):
            cluster.client.wait(timeout=_BUSY_AFTER_S)
        if self.stuck:
            told = self._about_stuck(self.stuck)
            raise ClusterError(told.replace(" All other ranks are free again.", ""))
        self.renew(out_of_step=bool(self._stuck))
        self._stuck = ()

    def require_idle(self, what: str) -> None:
        # The work of a dead rank ends when the controller has reported it.
        client = self._cluster.client
        if client.outstanding and not client.wait(timeout=_BUSY_AFTER_S):
            raise ClusterError(f"a cell is still running; interrupt it before {what}")

    def renew(self, out_of_step: bool = False) -> None:
        """Renew communication if it was lost, as soon as all ranks are idle, and say so.

        Args:
            out_of_step: renew it in any case.
        """
        cluster = self._cluster
        needs_it = out_of_step or self._owes_recovery
        if not needs_it and not cluster.boards.has_lost(cluster.who.engines):
            return
        if cluster.status()["dead"]:
            return  # shrink and restart renew everything
        if cluster.busy(cluster.ids) or cluster.client.outstanding:
            self._owes_recovery = True
            return
        if self._owes_recovery:
            out_of_step |= cluster.report().is_out_of_step
        self._owes_recovery = True  # in case this is interrupted half-way
        try:
            said = self._recover(out_of_step)
        except ipp.RemoteError as failure:  # it must not replace the error to report
            said = (
                f"Communication could not be renewed ({failure.ename}: {failure.evalue}): "
                "cluster.restart() starts fresh ranks."
            )
            self._needs_restart = True
        self._owes_recovery = False
        if said:
            print(said)

    def _recover(self, always: bool) -> str:
        """Renew what was lost on the ranks, which are all idle.

        Args:
            always: also if no rank has noticed a loss, because some messages have no receiver.

        Returns:
            What was done.
        """
        found: list[on_rank.Condition] = self._cluster.view_on_all().apply_sync(on_rank.condition)
        union = 0
        for one in found:
            union |= one.flags
        lost = sorted({name for one in found for name in one.lost})
        self._needs_restart = bool(union & on_rank.NEEDS_RESTART)
        if self._needs_restart:
            return (
                f"{self._cluster.mpi} cannot free a rank that is stuck inside it, so communication "
                "cannot be renewed: cluster.restart() starts fresh ranks. This loses all "
                "variables; until then, you can still read them with cluster.view['name']."
            )
        if always or union & (on_rank.WORLD_LOST | on_rank.DEFAULT_GROUP_LOST):
            self._cluster.view_on_all().apply_sync(on_rank.renew, None)
            gone = sorted({*lost, *(name for one in found for name in one.stale)})
            also = ""
            if gone:
                also = f" Make these again, because they used the old ones: {', '.join(gone)}."
            return (
                "Communication is renewed: comm and the default process group are new, "
                f"and all variables are kept.{also}"
            )
        if lost:
            self._cluster.view_on_all().apply_sync(on_rank.note_told, lost)
            return (
                f"Lost: {', '.join(lost)}; make {'it' if len(lost) == 1 else 'them'} again. All "
                "other communication still works, and all variables are kept."
            )
        return ""

    # ---- after a death -------------------------------------------------------------------

    def shrink(self, timeout_s: float) -> None:
        """Implement :meth:`.Cluster.shrink`."""
        cluster = self._cluster
        with StopButton() as button:
            try:
                with button.listening():
                    dead = self._dead_to_leave_out(timeout_s)
                if not dead:
                    print(f"{count(cluster.n)} alive: there is nothing to shrink")
                    return
                survivors = [rank for rank in cluster.ids if rank not in dead]
                members = cluster.who.engines_of(survivors)
                asked = cluster.client.direct_view(members).apply_async(on_rank.shrink, timeout_s)
                self._under_way = asked
                with button.listening():
                    self._await(asked, survivors, timeout_s)
            except KeyboardInterrupt:
                raise interruption(
                    "the shrink was interrupted; nothing is lost, and the next cluster.shrink() "
                    "continues it"
                ) from None
            self._under_way = None
            _require_success(asked, survivors)
            cluster.renumber(members)
            self._stuck, self._owes_recovery = (), False  # all that answer are free, and renewed
            n = cluster.n
            go_on = f"{count(n)} {'goes' if n == 1 else 'go'} on"
            print(f"{rank_list(dead)} died; {go_on}, with new numbers and their variables:")
            renumbered = enumerate(survivors)
            print("\n".join(f"rank {now}  was rank {before}" for now, before in renumbered))

    def _dead_to_leave_out(self, timeout_s: float) -> list[int]:
        cluster = self._cluster
        dead = cluster.status()["dead"]
        if len(dead) == cluster.n:
            raise ClusterError("all ranks have ended; cluster.restart() starts fresh ones")
        if dead and not cluster.survives_deaths:
            raise ClusterError(
                f"{rank_list(dead)} died, and {cluster.mpi} cannot continue with the others; "
                "cluster.restart() starts fresh ranks"
            )
        if dead and self._under_way is not None:
            living = [rank for rank in cluster.ids if rank not in dead]
            self._await(self._under_way, living, timeout_s)
            self._under_way = None
            dead = cluster.status()["dead"]
        if dead:
            self.require_idle("it shrinks")
        return dead

    def _await(self, asked: Any, survivors: list[int], timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s + _MORE_THAN_THE_RANKS_S
        while not asked.wait(_ASK_EVERY_S):
            self._cluster.status()
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"not all of {rank_list(survivors)} joined the shrink within {timeout_s:g} s; "
                    "cluster.where() shows what they are doing, cluster.kill(RANK) ends one; then "
                    "call cluster.shrink() again"
                )

    # ---- fresh ranks, and those of a kernel before -----------------------------------------

    def restart(self) -> None:
        """Implement :meth:`.Cluster.restart`."""
        cluster = self._cluster
        began = time.monotonic()
        kept = "the restart was interrupted; the ranks keep their variables"
        with stoppable(kept) as button, button.listening():
            lost = self._losses()
        with stoppable("the restart was interrupted; start_cluster() starts fresh ranks") as button:
            before = cluster.keeper
            self._leave_out(before.lost_hosts)
            before.begin_stop(politely=False)
            cluster.disconnect()
            try:
                cluster.hold(NotebookClient.start(button, **self.settings))
                self._forget()
            finally:
                before.stop()
            self.open(button)
        seconds = time.monotonic() - began
        print(f"{count(cluster.n, 'fresh ')} in {seconds:.1f} s; {lost}")
        print(cluster.who)

    def _leave_out(self, lost: list[str]) -> None:
        """Have the next start use the other hosts, where the notebook has chosen them."""
        hosts = self.settings["hosts"]
        if not lost or hosts is None:  # Slurm chooses its hosts itself
            return
        left = {host: ranks for host, ranks in hosts.items() if host not in lost}
        if not left:
            raise ClusterError(
                f"all ranks were on {' and '.join(lost)}: name other hosts with start_cluster(n, "
                "hosts=...)"
            )
        self.settings = self.settings | {"hosts": left, "n": sum(left.values())}
        print(
            f"Without {' and '.join(lost)}; start_cluster(..., replace=True) uses all hosts again."
        )

    def _losses(self) -> str:
        """A sentence on the losses with the ranks: ``all variables on them are lost: x, y``."""
        try:
            names = self._cluster.users_names()
        except ClusterError:  # it has ended, so no rank can be asked
            names = {}
        known = sorted({name for some in names.values() for name in some or ()})
        more = f" and {len(known) - _NAMES_SHOWN} more" if len(known) > _NAMES_SHOWN else ""
        parts = [", ".join(known[:_NAMES_SHOWN]) + more] if known else []
        silent = [rank for rank, some in names.items() if some is None]
        if silent:
            parts.append(f"everything on {rank_list(silent)}, which no longer answered")
        return "all variables on them are lost" + (f": {'; '.join(parts)}" if parts else "")

    def open(self, button: StopButton, found: bool = False) -> None:
        """Connect to the ranks of a cluster that is ready; stop it if that fails.

        Args:
            button: the :class:`~ipyranks.stop_button.StopButton` that interrupts this.
            found: it has variables; when interrupted, leave it to be found again.
        """
        import numpy  # noqa: F401 (an interrupted import could not be repeated in this process)

        cluster = self._cluster
        try:
            with button.listening():
                cluster.connect()
                if found:
                    self._free_from_old_cell()
        except BaseException as error:
            cluster.disconnect()
            if not found or not isinstance(error, KeyboardInterrupt):
                cluster.keeper.stop()
            cluster.keeper.close()
            raise

    def _free_from_old_cell(self) -> None:
        """Interrupt cells of an earlier kernel on the ranks; report ranks that do not stop."""
        cluster = self._cluster
        asked = cluster.view.apply_async(os.getpid)
        if asked.wait(_OLD_CELL_MAY_END_S):
            return
        silent = cluster.ids
        if cluster.busy(silent):
            self._owes_recovery = True
            silent = free(cluster, asked)
        deadline = time.monotonic() + _ANSWER_WITHIN_S  # others may be slow, on a busy machine
        while time.monotonic() < deadline:
            stuck = cluster.busy(silent)
            if set(cluster.who.ranks_of(unfinished(asked))) <= set(stuck):
                if stuck:
                    print(self.note_stuck(stuck))
                return
            asked.wait(_POLL_S)
        raise ClusterError("not all ranks answer; start_cluster(replace=True) starts fresh ones")


def _require_success(asked: Any, survivors: list[int]) -> None:
    """Raise ClusterError unless all survivors have done their part of a shrink."""
    failed = [
        (rank, child.result())
        for rank, child in zip(survivors, asked._children, strict=True)
        if isinstance(child.result(), Exception)
    ]
    died = [rank for rank, failure in failed if getattr(failure, "ename", "") == DIED]
    if died:
        raise ClusterError(f"{rank_list(died)} died during the shrink; call cluster.shrink() again")
    if failed:
        rank, failure = failed[0]
        raise ClusterError(
            f"the shrink failed; rank {rank} reports {failure}. Call cluster.shrink() once more; "
            "if it fails again, only cluster.restart() helps"
        )
