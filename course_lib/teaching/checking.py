"""Checks an answer to an exercise: right, not yet and why, or not attempted yet."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from numbers import Real
from types import FrameType
from typing import TYPE_CHECKING, Any

from torch_mpi4py.board.rank_states import rank_list

from . import class_record, mistakes, record, run_check
from .catalogue import find
from .exercise import Exercise, WrongAnswer
from .run_check import CheckResult, OutOfTimeError

if TYPE_CHECKING:
    from ipyranks import Cluster
    from ipyranks.cells import Cell

_LAST_LINES = 8  # of each rank's output
_LAST_CHARACTERS = 20_000
_SAYS_SO_AFTER_S = 1.5
_STOPS_AGAIN_AFTER_S = 0.5  # a function that has caught the exception that was to end it

_checked = ""  # the exercise whose check is running


class CheckError(RuntimeError):
    """The check could not be made; the message gives the remedy."""

    def _render_traceback_(self) -> list[str]:
        return [f"{type(self).__name__}: {self}"]


def check(id: str, function: Callable | None = None, *, deadline: float | None = None) -> None:
    """Try your answer to exercise ``id`` and print the result.

    In the notebook, one long call in C code, such as ``sum(range(10**11))``, outlasts the deadline
    and the stop button, because Python can do nothing until it returns: restart the kernel.

    Args:
        id: the exercise, e.g. ``"01.ring_pass"``.
        function: for an exercise in the notebook, your function, if not the one of that name.
        deadline: seconds that it may take; by default the exercise's own.

    Raises:
        UnknownExerciseError: if there is no such exercise.
        CheckError: if the exercise runs on the ranks, and no cluster is running or it is too
            small; if this is a rank; if ``deadline`` is no number of seconds above 0.
    """
    global _checked
    exercise = find(id)
    if _is_rank():
        raise CheckError(
            f"{exercise.id} is checked from the notebook, not on a rank: run check in a cell "
            "without %%px"
        )
    if deadline is not None:
        exercise = exercise._replace(deadline=_seconds(deadline))
    if _checked:
        raise CheckError(
            f"the check of {_checked} is running, and your function has called check again: put "
            "check in a cell of its own"
        )
    _checked = exercise.id
    class_record.checks(exercise.id)
    try:
        _check(exercise, function, sys._getframe(1).f_globals.get(exercise.function))
    finally:
        _checked = ""
        class_record.checks("")


def _seconds(deadline: Any) -> float:
    is_number = isinstance(deadline, Real) and not isinstance(deadline, bool)
    if not is_number or not 0 < deadline <= threading.TIMEOUT_MAX:
        raise CheckError(f"deadline={deadline!r}: give seconds above 0, such as deadline=60")
    return float(deadline)


def _is_rank() -> bool:
    """Whether this process runs the cells of a rank, not of the notebook."""
    engine = sys.modules.get("ipyparallel.engine.app")  # a notebook does not import it
    return engine is not None and engine.IPEngine.initialized()


def _check(exercise: Exercise, function: Callable | None, here: Any) -> None:
    with _says_that_it_runs(exercise):
        verdict, printed, lost = judged(exercise, here if function is None else function)
    mistake = verdict.mistake if verdict.wrong is None else verdict.wrong.name
    record.note(exercise.id, verdict.kind, mistake)
    print(sentence(exercise, verdict))
    if verdict.kind != "right":
        if printed:
            print(encodable(f"Your function printed:\n{printed}").rstrip())
        if function is None:
            print(_misplaced(exercise, here), end="")
    print(lost, end="")


def judged(exercise: Exercise, function: Callable | None) -> tuple[CheckResult, str, str]:
    """Return the verdict, the last output, and what has to be renewed; print nothing.

    Args:
        function: for an exercise in the notebook; on the ranks each takes its own.

    Raises:
        CheckError: if the ranks are still stuck in the function, or there are too few.
        ClusterError: if a rank has died, or the cluster has ended.
    """
    if exercise.where == "engines":
        return _on_the_ranks(exercise)
    return *_in_the_notebook(exercise, function), ""


def sentence(exercise: Exercise, verdict: CheckResult) -> str:
    """Return the message to the learner."""
    if verdict.kind == "broken":
        raise CheckError(encodable(f"the check of {exercise.id} {verdict.text}"))
    if verdict.kind == "impossible":
        raise CheckError(f"{exercise.id} cannot be checked: {verdict.text}")
    if verdict.kind == "right":
        return f"{exercise.id}: right. {verdict.text}".rstrip()
    if verdict.kind == "undefined":
        name = f"`{exercise.function}`"
        what = f"{name} {verdict.text}" if verdict.text else f"There is no function {name}"
        return f"{exercise.id}: not attempted yet. {what}: run the cell that defines it."
    if verdict.kind == "not attempted":
        return f"{exercise.id}: not attempted yet."
    text = verdict.text if verdict.wrong is None else _explained(exercise, verdict.wrong)
    if verdict.line:
        what = "It was in" if verdict.kind == "out of time" else "It happened in"
        text = f"{text.rstrip('.')}. {what} {verdict.line}"
    return encodable(f"{exercise.id}: not yet: {text} ({verdict.mistake})")


def encodable(text: str) -> str:
    """Write halves of surrogate pairs as ``\\ud800``: they can be neither sent nor written."""
    return text.encode("utf-8", "backslashreplace").decode()


def _explained(exercise: Exercise, wrong: WrongAnswer) -> str:
    try:
        return mistakes.explain(wrong, exercise)
    except mistakes.MistakesError as error:
        raise CheckError(f"{exercise.id}: not yet ({wrong.mistake}). {error}") from None


@contextlib.contextmanager
def _says_that_it_runs(exercise: Exercise) -> Iterator[None]:
    """If a person is watching, show a temporary line that a check takes longer."""
    if os.environ.get("IPP_NONINTERACTIVE", "0") not in ("", "0"):
        yield
        return
    text = f"{exercise.id}: checking; your function is stopped after {exercise.deadline:g} s"
    stream, shown = sys.stdout, threading.Event()

    def show() -> None:
        shown.set()
        print(text, end="", file=stream, flush=True)

    timer = threading.Timer(_SAYS_SO_AFTER_S, show)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        if shown.is_set():
            print(f"\r{' ' * len(text)}\r", end="", file=stream, flush=True)


def _misplaced(exercise: Exercise, here: object) -> str:
    """A line on a function that was defined where the exercise is not checked; usually empty."""
    from ipyranks import ClusterError, current_cluster

    name, on_ranks = f"`{exercise.function}`", exercise.where == "engines"
    if on_ranks and run_check.is_learners(here):
        return (
            f"There is a {name} in the notebook, but this exercise is checked on the ranks: make "
            "`%%px` the first line of its cell, and run the cell again.\n"
        )
    cluster = None if on_ranks else current_cluster()
    with contextlib.suppress(ClusterError):  # it may end while it is asked
        names = cluster.users_names() if cluster else {}
        if any(exercise.function in known for known in names.values() if known):
            return (
                f"There is a {name} on the ranks, but this exercise is checked in the notebook: "
                "remove `%%px` from the first line of its cell, and run the cell again.\n"
            )
    return ""


# ---- in the notebook --------------------------------------------------------------------------


def _in_the_notebook(exercise: Exercise, function: Callable | None) -> tuple[CheckResult, str]:
    """Return the verdict, and the last lines that the learner's function printed."""
    from ipyranks.stop_button import interruption

    printed = _LastPrinted()
    try:
        # The limit ends first: the alarm that rings once more must not keep the others from it.
        redirected, limited = contextlib.redirect_stdout(printed), time_limit(exercise.deadline)
        with _without_exit(), redirected, limited:
            verdict = run_check.run(exercise.module, exercise.checker, function)
    except OutOfTimeError:  # between two steps of ours
        verdict = CheckResult("out of time")
    except KeyboardInterrupt:
        record.note(exercise.id, "out of time", "does-not-finish")
        raise interruption(f"the check of {exercise.id} was interrupted") from None
    if verdict.kind == "out of time":
        verdict = _too_long(exercise, [], verdict.line)
    elif verdict.kind == "raised":
        verdict.text = f"your function raised {verdict.text}"
    return verdict, "".join(printed.getvalue().splitlines(keepends=True)[-_LAST_LINES:])


@contextlib.contextmanager
def _without_exit() -> Iterator[None]:
    """Have IPython's ``exit()`` raise: it would return, and end the kernel after the cell."""
    from IPython import get_ipython

    def refuse() -> None:
        raise RuntimeError(
            "exit() would end the notebook's kernel, not your function, and lose all variables: to "
            "end a function early, return or raise an error"
        )

    shell: Any = get_ipython()
    if shell is None:
        yield
        return
    shell.ask_exit = refuse
    try:
        yield
    finally:
        del shell.ask_exit  # the class has the usual one


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise OutOfTimeError in the code inside when ``seconds`` have passed.

    Only the main thread can be interrupted, which is where a notebook's cells run.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    rung, traced = False, sys.gettrace()

    def ring(signum: int, frame: FrameType | None) -> None:
        nonlocal rung
        if rung:  # and was caught, by a bare except
            _raise_in_each_line(frame)
        rung = True
        raise OutOfTimeError

    handler = signal.signal(signal.SIGALRM, ring)
    timer = signal.setitimer(signal.ITIMER_REAL, seconds, _STOPS_AGAIN_AFTER_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.settrace(traced)
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, *timer)  # code that set an alarm still wants it


def _raise_in_each_line(frame: FrameType | None) -> None:
    """Raise OutOfTimeError in the line that comes next, of ``frame`` or of one around it.

    Python stops tracing when a trace function raises. That is enough: the line after the
    interrupted one is that of the handler, and an exception there leaves the ``try``.
    """

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        if event == "line":
            raise OutOfTimeError
        return trace

    ours = (run_check.__name__, __name__)
    while frame is not None and frame.f_globals.get("__name__") not in ours:
        frame.f_trace = trace
        frame = frame.f_back
    sys.settrace(lambda frame, event, arg: None)


class _LastPrinted(io.StringIO):
    """Keeps the end of the text printed into it: a loop may print without an end."""

    def write(self, text: str, /) -> int:
        if self.tell() > _LAST_CHARACTERS:
            kept = self.getvalue()[-_LAST_CHARACTERS // 2 :]
            self.seek(0)
            self.truncate()
            super().write(kept)
        return super().write(text[-_LAST_CHARACTERS:]) and len(text)

    def close(self) -> None:
        """Do nothing: a function that closes ``sys.stdout`` shall still be judged."""


# ---- on the ranks -----------------------------------------------------------------------------


def _on_the_ranks(exercise: Exercise) -> tuple[CheckResult, str, str]:
    """Return the ranks' joint result, the output, and what has to be renewed.

    Raises:
        CheckError: if there are too few ranks.
        ClusterError: if a rank has died, or the cluster has ended, with the remedy.
    """
    from ipyranks import Cluster
    from ipyranks.cells import Cell
    from ipyranks.limits import Limit
    from ipyranks.stop_button import StopButton, interruption

    cluster = Cluster.current  # also one with a dead rank
    if cluster is None or not cluster.keeper.is_ours:
        raise CheckError(
            f"{exercise.id} runs on the ranks, and there is no cluster: run the cell with "
            "start_cluster(), then the one with your function"
        )
    if cluster.n < exercise.ranks:
        raise CheckError(_too_few_ranks(exercise, cluster))
    with StopButton() as button:
        names = (exercise.module, exercise.checker, exercise.function)
        cell = Cell.of_function(cluster, Limit(exercise.deadline), run_check.run_on_rank, *names)
        cell.run(button)
        verdicts = _verdicts(exercise, cluster, cell)
        interrupted = f"the check of {exercise.id} was interrupted on all ranks"
        if cell.stuck or cell.end == "interrupted":
            record.note(
                exercise.id, "out of time", "does-not-finish"
            )  # tried, though there will be no verdict
        if cell.stuck:
            too_long = _too_long(exercise, cell.late).text
            advice = cluster.recovery.after_failure(cell.report, cell.stuck, cell.result)
            raise CheckError(f"{interrupted if cell.end == 'interrupted' else too_long}. {advice}")
        with contextlib.redirect_stdout(io.StringIO()) as lost:
            cluster.recovery.renew(out_of_step=any(verdict.reset for verdict in verdicts))
        if cell.end == "interrupted":
            message = f"{interrupted}; their variables are kept"
            raise interruption(message, lost.getvalue().splitlines())
    verdict = together(verdicts)
    if verdict.kind == "right" and cluster.n < exercise.sure_on:
        verdict.text += _not_sure(exercise, cluster)
    return verdict, cell.output.text("stdout", _LAST_LINES), lost.getvalue()


def _too_few_ranks(exercise: Exercise, cluster: Cluster) -> str:
    """What to do if an answer could be right without a message."""
    return (
        f"{exercise.id} cannot be checked: it needs at least {exercise.ranks} ranks, and the "
        f"cluster has only {cluster.n}; start more with {_way_to(exercise.ranks, cluster)}, then "
        "run the cell with your function again"
    )


def _not_sure(exercise: Exercise, cluster: Cluster) -> str:
    return (
        f" Some mistakes, such as a message in the wrong direction, do not show on {cluster.n} "
        f"ranks: to be sure, start more with {_way_to(exercise.sure_on, cluster)}, and check it "
        "there too."
    )


def _way_to(ranks: int, cluster: Cluster) -> str:
    """The call that starts at least so many."""
    again = cluster.recovery.settings["n"]  # more than ``cluster.n`` if it was shrunk
    return "cluster.restart()" if again >= ranks else "start_cluster(4, replace=True)"


def _verdicts(exercise: Exercise, cluster: Cluster, cell: Cell) -> list[CheckResult]:
    """Return each rank's verdict, however a late one reacted to the interrupt.

    Raises:
        RemoteCellError: if a rank has died, say.
    """
    from ipyranks import RemoteCellError

    failures, _ = cell.outcome()
    failures = [failure for failure in failures if failure.rank not in cell.late]
    if failures:
        raise RemoteCellError(failures, report=cell.report or cluster.report())
    answers: dict[int, Any] = cell.answers()
    waiting = cell.report.waiting if cell.report else []
    # A rank that waits does so for one that computes, if there is one.
    culprits = [rank for rank in cell.late if rank not in waiting] or cell.late
    lines = [answers[rank].line for rank in culprits if rank in answers]
    late = _too_long(exercise, cell.late, next(filter(None, lines), ""))
    for rank, answer in answers.items():
        if answer.kind == "out of time" and rank not in cell.late:  # nobody has interrupted it
            answer.kind, answer.mistake = "raised", "it-raises"
    return [
        late if rank in cell.late and answer.kind != "raised" else answer
        for rank, answer in answers.items()
    ]


def together(verdicts: list[CheckResult]) -> CheckResult:
    """Return the one verdict of all ranks: the first in the order of causes."""
    missing = ("undefined", "not attempted", "impossible")
    for kind in (*missing, "raised", "broken", "wrong", "out of time", "freed"):
        for rank, verdict in enumerate(verdicts):
            if verdict.kind == kind:
                return _of_rank(rank, verdict, verdicts)
    return verdicts[0]


def _of_rank(rank: int, verdict: CheckResult, verdicts: list[CheckResult]) -> CheckResult:
    if verdict.kind == "raised":
        verdict.text = f"on rank {rank} your function raised {verdict.text}"
    elif verdict.kind == "freed":
        stuck = [r for r, other in enumerate(verdicts) if other.kind == "freed"]
        verdict.text = f"your function did not finish on {rank_list(stuck)}: {verdict.text}"
        verdict.mistake = "it-hangs"
    elif verdict.kind == "wrong" and not verdict.line:
        # The judges give every rank the same verdict, but only one rank knows the line.
        verdict.line = next((other.line for other in verdicts if other.line), "")
    return verdict


def _too_long(exercise: Exercise, late: list[int], line: str = "") -> CheckResult:
    where = f" on {rank_list(late)}" if late else ""
    text = f"your function did not finish within {exercise.deadline:g} s{where}"
    return CheckResult("out of time", text, "does-not-finish", line, reset=True)
