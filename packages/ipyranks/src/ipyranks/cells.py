"""Runs a cell on the ranks to its end, and gets them out of one that does not end.

A :class:`Cell` waits until all ranks have ended it, its limit has passed, ranks wait in vain for
one that raised an error, or the stop button is pressed.
"""

from __future__ import annotations

import math
import re
import secrets
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ipyparallel import error
from IPython import get_ipython
from torch_mpi4py.board.hang_report import HangReport

from .cores import WAITS_ARE_TOLD, OwnTime, waited
from .errors import DIED, ClusterError, RankFailure
from .output import CellOutput
from .rank_functions import run_as_cell
from .rank_table import Rank
from .recovery import free, unfinished, unfinished_engines
from .stop_button import StopButton

if TYPE_CHECKING:
    from .cluster import Cluster

DEFAULT_LIMIT_S = 60.0

# Ranks that wait for a core for a larger share of the time have it from others than each other.
_CROWDED = 0.8
_LOOK_AT_CORES_EVERY_S = 1.0
_AT_MOST_TIMES = 10  # the limit, in a crowd
_LIVE_AFTER_S = 0.3
_LOOK_EVERY_S = 0.25
_ASK_EVERY_S = 0.5  # the keeper, whether the cluster still lives
_IN_VAIN_AFTER_S = 0.5  # nothing has moved for so long, and a rank that is needed has failed
_DEATH_HEARD_WITHIN_S = 3.0  # of which MPI tells the ranks, in 0.2 s on a quiet machine
_MOVES_WITHIN_S = 0.5
_OUTPUT_WITHIN_S = 8.0  # at once, but for a machine that stalls for moments
_BEGUN_WITHIN_S = 5.0  # by all ranks; some milliseconds on a quiet machine
_STILL_MOVES = (
    "All ranks were still exchanging messages, so none waits in vain. Either a loop there never "
    "ends, or it needs more time."
)
# IPython's name for the source of a cell, in the message of a SyntaxError.
_CODE_FILE = re.compile(r"\(\d+\.py, line (\d+)\)$")


@dataclass(frozen=True)
class Limit:
    """How long a cell may take.

    Attributes:
        seconds: so long; infinite for no limit.
        without_progress: count from the latest sign of progress (something printed, a call of
            communication ended) instead of from the start.
    """

    seconds: float
    without_progress: bool = False

    @classmethod
    def of(cls, value: Any) -> Limit:
        """Read ``5``, ``"5"``, ``"60+"`` (60 s without progress), ``None`` (no limit).

        Raises:
            ClusterError: if it is none of these.
        """
        if isinstance(value, Limit):
            return value
        if value is None or str(value).lower() in ("none", "inf"):
            return cls(math.inf)
        text = str(value)
        try:
            seconds = float(text.removesuffix("+"))
        except ValueError:
            seconds = math.nan
        if not seconds > 0:
            raise ClusterError(
                f"limit {text}: give seconds, like 5; or 60+, for 60 s without progress; or none"
            )
        return cls(seconds, text.endswith("+"))

    def __str__(self) -> str:
        if math.isinf(self.seconds):
            return "none"
        return f"{self.seconds:g} s" + (" without progress" if self.without_progress else "")


def cell_number() -> int:
    """The number of the notebook's cell that is running; 0 where nobody counts."""
    shell = get_ipython()
    # IPython counts on before it runs a cell; the one that runs is its history's last.
    return 0 if shell is None else len(shell.history_manager.input_hist_parsed) - 1


def new_run() -> str:
    """A text that no other run of a cell has, by which its ranks are told from late ones."""
    return secrets.token_hex(8)


class Cell:
    """What some ranks run, from its start until they have left it.

    Args:
        cluster: where it runs.
        result: its ``AsyncResult``.
        limit: how long it may take.
        run: the text of :func:`new_run` with which it was sent.

    Attributes:
        ranks: where it runs, as the children of ``result``.
        output: what the ranks have printed and shown so far.
        end: why the waiting was over: ``"done"``, ``"limit"``, ``"in vain"`` or
            ``"interrupted"``.
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
        self._printed = 0
        self._printed_at = self._began
        self._waits: dict[int, int | None] = {}
        self._waits_since = self._began
        self._waited_before = self._waits_for_cores()
        self._own, self._looked_at_cores = OwnTime(self._began, _CROWDED), self._began
        self._look_at_cores(self._began)

    @classmethod
    def of_function(
        cls, cluster: Cluster, limit: Limit, function: Callable[..., Any], *arguments: Any
    ) -> Cell:
        """Have all ranks call a function, as if a cell did.

        Raises:
            ClusterError: if a rank has ended, or is stuck in an earlier cell.
        """
        cluster.require_running()
        cluster.recovery.require_free()
        run = new_run()
        result = cluster.view.apply_async(run_as_cell, cell_number(), run, function, *arguments)
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
            progress_after: show a bar after so many seconds; -1 for never.
            signum: what the ranks get when it is interrupted; 0 for nothing.

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
            self.moved_lately = time.perf_counter() - self._last_sign() < self._limit.seconds / 2
            self.late = unfinished(self.result, self.ranks)
            self.starved = self._starved()
            by = signum if self.end == "interrupted" else signal.SIGINT
            self.stuck = free(self._cluster, self.result, self.ranks, by) if by else self.late
            self.report = self.report.with_stuck(self.stuck)
            if still_moves:
                self.report = replace(self.report, diagnosis=_STILL_MOVES)
        self.result.wait_for_output(0 if self.stuck else _OUTPUT_WITHIN_S)

    def outcome(self) -> tuple[list[RankFailure], list[int]]:
        """Who failed and who finished, of the ranks that have ended the cell."""
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
        """What came back from the ranks that have ended it; of an error the exception."""
        pairs = zip(self.ranks, self.result._children, strict=True)
        return {rank: child.result() for rank, child in pairs if child.done()}

    # ---- waiting -----------------------------------------------------------------------

    def _wait(self, live: bool, progress_after: float) -> str:
        interval = 0.2 if live else _LOOK_EVERY_S
        asked = self._began
        pause = _LIVE_AFTER_S
        while True:
            left = self._over_at(pause) - time.perf_counter()
            if self.result.wait(min(pause, left) if left > 0 else pause):
                return "done"
            pause = interval
            now = time.perf_counter()
            self._note_printed(now)
            if live:
                waited = now - self._began
                self.output.show_live(progress=0 <= progress_after <= waited)
            if now - asked >= _ASK_EVERY_S:
                asked = now
                self._cluster.status()
            if self._in_vain(now):
                return "in vain"
            due = now >= self._over_at()
            if due or now - self._looked_at_cores >= _LOOK_AT_CORES_EVERY_S:
                self._look_at_cores(now)
            if due and now >= self._over_at():
                return "limit"

    def _over_at(self, within: float = 0.0) -> float:
        """When the limit will have passed; only a bound where that is not ``within`` so long."""
        soonest = self._began + self._limit.seconds
        if time.perf_counter() + within < soonest:
            return soonest
        since = self._last_sign() if self._limit.without_progress else self._began + self._excused()
        return max(since, self._begun_by_all()) + self._limit.seconds

    def _excused(self) -> float:
        """Seconds that do not count, as ranks that compute waited for a core in a crowd."""
        waited = self._looked_at_cores - self._began - self._own.seconds
        return min(waited, (_AT_MOST_TIMES - 1) * self._limit.seconds)

    def _begun_by_all(self) -> float:
        """When the last of the ranks that are in the cell began, from which the limit counts.

        On a busy machine an engine may get its cell late, and what it does there nobody could say.
        """
        at_most = self._began + _BEGUN_WITHIN_S
        begun = self._began
        for engine in unfinished_engines(self.result):
            position = self._cluster.boards.position(engine)
            if position is None or position.run != self._run:
                return at_most
            begun = max(begun, position.began)
        return min(begun, at_most)

    def _last_sign(self) -> float:
        """When something was last printed or a call of communication ended."""
        return max(self._printed_at, self._cluster.boards.last_movement(self.result._targets))

    def _still_moves(self) -> bool:
        """Whether each wait of now is soon over: then it does not matter who waits for whom."""
        boards, engines = self._cluster.boards, self.result._targets
        waits = {e: wait for e, wait in boards.waits(engines).items() if wait is not None}
        until = time.perf_counter() + _MOVES_WITHIN_S
        left = set(waits)
        while left and boards.last_movement(engines) > until - 2 * _MOVES_WITHIN_S:
            if time.perf_counter() > until or self.result.wait(0.01):
                return False
            left = {e for e in left if boards.waits([e])[e] == waits[e]}
        return bool(waits) and not left

    def _look_at_cores(self, now: float) -> None:
        """Count the time, but not what ranks that compute wait for a core in a crowd."""
        self._looked_at_cores = now
        here = [row.pid for row in self._rows_here()]
        self._own.look(now, here, [row.pid for row in self._computing()])

    def _rows_here(self) -> list[Rank]:
        """What is known of those ranks that run on this machine."""
        elsewhere = self._cluster.boards.elsewhere
        rows = self._cluster.ranks if WAITS_ARE_TOLD else []
        return [row for row in rows if row.rank in self.ranks and row.engine not in elsewhere]

    def _computing(self) -> list[Rank]:
        """The ranks here that have not ended the cell and do not wait for another."""
        late = unfinished(self.result, self.ranks)
        rows = [row for row in self._rows_here() if row.rank in late]
        waits = self._cluster.boards.waits([row.engine for row in rows])
        return [row for row in rows if waits[row.engine] is None]

    def _waits_for_cores(self) -> dict[int, float]:
        """For how long each rank here has waited for a core since its process began."""
        waits = {row.rank: waited(row.pid) for row in self._rows_here()}
        return {rank: seconds for rank, seconds in waits.items() if seconds is not None}

    def _starved(self) -> dict[int, float]:
        """How long each rank that computes has waited for a core since the cell began."""
        now, before = self._waits_for_cores(), self._waited_before
        ranks = [row.rank for row in self._computing()]
        return {r: now[r] - before[r] for r in ranks if r in now and r in before}

    def _note_printed(self, now: float) -> None:
        printed = self.output.printed()
        if printed != self._printed:
            self._printed, self._printed_at = printed, now

    def _in_vain(self, now: float) -> bool:
        """Whether a rank has failed and all that go on wait for something that does not come."""
        failed = [one for one in self.answers().values() if isinstance(one, BaseException)]
        going_on = unfinished_engines(self.result)
        if not failed or not going_on:
            return False
        waits = self._cluster.boards.waits(going_on)
        if waits != self._waits:
            self._waits, self._waits_since = waits, now
        died = any(getattr(answer, "ename", "") == DIED for answer in failed)
        patience = _DEATH_HEARD_WITHIN_S if died else _IN_VAIN_AFTER_S
        return None not in waits.values() and now - self._waits_since >= patience
