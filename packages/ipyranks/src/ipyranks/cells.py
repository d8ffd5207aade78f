"""Runs a cell on the ranks to its end, and frees them if it does not end.

A :class:`Cell` waits until all ranks have ended it, its limit has passed, ranks wait for one that
raised an error, or the stop button is pressed.
"""

from __future__ import annotations

import functools
import re
import secrets
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ipyparallel import error
from IPython import get_ipython
from torch_mpi4py.board.hang_report import HangReport

from .boards import Views
from .breakpoints import attended
from .errors import DIED, RankFailure
from .limits import Limit, ShortWaits, Watch
from .output import CellOutput
from .prompt import BreakpointPrompt, can_ask
from .rank_functions import run_as_cell
from .recovery import free, unfinished
from .stop_button import StopButton

if TYPE_CHECKING:
    from .cluster import Cluster


_LOOK_AT_CORES_EVERY_S = 1.0
_UNWATCHED_S = 0.02  # a cell that has nothing to do takes less
_LIVE_AFTER_S = 0.3
_LOOK_EVERY_S = 0.25
_ASK_EVERY_S = 0.5  # to ask the keeper whether the cluster still lives
_LOOK_AT_WAITS_EVERY_S = 0.01
_OUTPUT_WITHIN_S = 8.0  # immediate, unless the machine stalls for moments
_STILL_MOVES = (
    "All ranks were still exchanging messages, so none of them is stuck. Either a loop in the cell "
    "never ends, or the cell needs more time."
)
# IPython's name for the source of a cell, in the message of a SyntaxError.
_CODE_FILE = re.compile(r"\(\d+\.py, line (\d+)\)$")


def cell_number() -> int:
    """The number of the notebook's running cell; 0 if cells are not counted."""
    shell = get_ipython()
    # IPython counts on before it runs a cell; the one that runs is its history's last.
    return 0 if shell is None else len(shell.history_manager.input_hist_parsed) - 1


def new_run(is_awaited: bool = True) -> str:
    """A unique text for a run of a cell, which tells its ranks from late ones.

    Args:
        is_awaited: whether the notebook waits for its end, and so could answer breakpoints.
    """
    run = secrets.token_hex(8)
    return attended(run) if is_awaited and can_ask() else run


class Cell:
    """A cell on some ranks, from its start until they have left it.

    Args:
        cluster: where it runs.
        result: its ``AsyncResult``.
        limit: how long it may take.
        run: the text of :func:`new_run` with which it was sent.

    Attributes:
        ranks: where it runs, as the children of ``result``.
        output: the ranks' output so far.
        end: why the wait ended: ``"done"``, ``"limit"``, ``"hopeless"`` or ``"interrupted"``.
        result: its ``AsyncResult``.
        late: the ranks that had not ended it by themselves.
        stuck: those of them that could not be freed.
        report: what every rank was doing when the others were freed; None if it was done.
        moved_lately: whether ranks had shown progress in the second half of the limit.
        starved: seconds for which each rank that was still computing had waited for a core.
    """

    def __init__(self, cluster: Cluster, result: Any, limit: Limit, run: str) -> None:
        self.ranks: list[int] = [cluster.who.rank_of(engine) for engine in result._targets]
        self.output = CellOutput(result, self.ranks, cluster.n)
        self.result = result
        self.end = ""
        self.late: list[int] = []
        self.stuck: list[int] = []
        self.report: HangReport | None = None
        self.moved_lately = False
        self.starved: dict[int, float] = {}
        self._cluster = cluster
        self._limit = limit
        self._run = run
        self._began = time.perf_counter()
        self._prompt = BreakpointPrompt(cluster, result, self.ranks)

    @classmethod
    def of_function(
        cls,
        cluster: Cluster,
        limit: Limit,
        function: Callable[..., Any],
        *arguments: Any,
        ranks: list[int] | None = None,
    ) -> Cell:
        """Have some ranks (all by default) call a function, as if a cell did.

        Raises:
            ClusterError: if a rank has ended, or is stuck in an earlier cell.
        """
        cluster.require_running()
        cluster.recovery.require_free()
        run = new_run()
        view = cluster.view
        if ranks is not None:
            view = cluster.client.direct_view(cluster.who.engines_of(ranks))
        result = view.apply_async(run_as_cell, cell_number(), run, function, *arguments)
        return cls(cluster, result, limit, run)

    def run(
        self,
        button: StopButton,
        live: bool = False,
        progress_after: float = -1,
        signum: int = signal.SIGINT,
    ) -> None:
        """Wait until it is over, and free the ranks that have not ended it.

        Args:
            button: the :class:`~ipyranks.stop_button.StopButton` that interrupts it.
            live: show output as it comes.
            progress_after: show a bar after this many seconds; -1 for never.
            signum: the signal that interrupts the ranks; 0 for none.

        Raises:
            ClusterError: if the cluster ends.
        """
        try:
            with button.listening():
                self.end = self._wait(live, progress_after)
        except KeyboardInterrupt:
            self.end = "interrupted"
        if self.end != "done":
            still_moves = self.end == "limit" and self._still_moves()
            self.report = self._cluster.report()
            views, late = self._look(), unfinished(self.result)
            last_sign = self._watch.last_sign(views)
            self.moved_lately = time.perf_counter() - last_sign < self._limit.seconds / 2
            who = self._cluster.who
            starved = self._watch.starved(views, late)
            self.starved = {who.rank_of(engine): seconds for engine, seconds in starved.items()}
            self.late = who.ranks_of(late)
            by = signum if self.end == "interrupted" else signal.SIGINT
            self.stuck = free(self._cluster, self.result, by) if by else self.late
            views = self._cluster.boards.snapshot(who.engines_of(self.stuck))
            interrupts = {who.rank_of(engine): view.interrupts for engine, view in views.items()}
            self.report = self.report.with_stuck(interrupts)
            if still_moves:
                self.report = replace(self.report, diagnosis=_STILL_MOVES)
        self.result.wait_for_output(0 if self.stuck else _OUTPUT_WITHIN_S)

    def outcome(self) -> tuple[list[RankFailure], list[int]]:
        """The failures and successes among the ranks that have ended the cell."""
        failures, finished = [], []
        for rank, answer in self.answers().items():
            if getattr(answer, "ename", "") == DIED:
                failures.append(RankFailure.death(rank, self._cluster.after_a_death()))
            elif isinstance(answer, error.RemoteError):
                message = _CODE_FILE.sub(r"(line \1)", str(answer.evalue))
                failures.append(RankFailure(rank, answer.ename, message, answer.traceback))
            elif isinstance(answer, Exception):
                failures.append(RankFailure(rank, type(answer).__name__, str(answer)))
            else:
                finished.append(rank)
        return failures, finished

    def answers(self) -> dict[int, object]:
        """The results of the ranks that have ended it; for an error the exception."""
        pairs = zip(self.ranks, self.result._children, strict=True)
        return {rank: child.result() for rank, child in pairs if child.done()}

    # ---- waiting -----------------------------------------------------------------------

    @functools.cached_property
    def _watch(self) -> Watch:
        """The watch over its ranks; its first look takes 1 ms, which a short cell is spared."""
        return Watch(self._limit, self._run, self._began, self._look())

    def _wait(self, live: bool, progress_after: float) -> str:
        if self.result.wait(min(_UNWATCHED_S, self._limit.seconds)):
            return "done"
        interval = 0.2 if live else _LOOK_EVERY_S
        watch, asked, pause = self._watch, self._began, _LIVE_AFTER_S
        while True:
            left = self._over_at(pause) - time.perf_counter()
            if self.result.wait(min(pause, left) if left > 0 else pause):
                return "done"
            pause = interval
            if self._prompt.standing() and self._answer_breakpoints(live):
                return "hopeless"
            now = time.perf_counter()
            watch.note_printed(now, self.output.printed())
            if live:
                waited = now - watch.began
                self.output.show_live(progress=0 <= progress_after <= waited)
            if now - asked >= _ASK_EVERY_S:
                asked = now
                self._cluster.status()
            if self._is_hopeless(now):
                return "hopeless"
            due = now >= self._over_at()
            if due or now - watch.looked_at_cores >= _LOOK_AT_CORES_EVERY_S:
                watch.look_at_cores(now, self._look(), unfinished(self.result))
            if due and now >= self._over_at():
                return "limit"

    def _answer_breakpoints(self, live: bool) -> bool:
        """Prompt for ranks that are stopped at a breakpoint; return whether one has died."""
        began = time.perf_counter()
        if live:
            self.output.show_live(progress=False)
        someone_died = self._prompt.run()
        now = time.perf_counter()
        self._watch.leave_out(now - began, now)
        return someone_died

    def _look(self) -> Views:
        """The state of its ranks now."""
        return self._cluster.boards.snapshot(self.result._targets)

    def _over_at(self, within: float = 0.0) -> float:
        """When the limit will have passed; only a bound if that is not ``within`` this time."""
        soonest = self._watch.soonest
        if time.perf_counter() + within < soonest:
            return soonest
        return self._watch.over_at(self._look(), unfinished(self.result))

    def _still_moves(self) -> bool:
        """Whether each present wait is soon over: then it does not matter which rank it is for."""
        waits = ShortWaits(time.perf_counter())
        while (found := waits.are_over(time.perf_counter(), self._look())) is None:
            if self.result.wait(_LOOK_AT_WAITS_EVERY_S):
                return False
        return found

    def _is_hopeless(self, now: float) -> bool:
        """Whether a rank has failed and all others wait for something that never comes."""
        failed = [one for one in self.answers().values() if isinstance(one, BaseException)]
        late = unfinished(self.result)
        if not failed or not late:
            return False
        died = any(getattr(answer, "ename", "") == DIED for answer in failed)
        return self._watch.is_hopeless(now, self._look(), late, died)
