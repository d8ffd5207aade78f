"""Runs a check on a learner's function; whatever the function does, there is a result.

:func:`run` calls the check and turns everything that can happen into a :class:`CheckResult`: plain
data, so that it travels from the ranks to the notebook.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .exercise import NEEDS_PROCESS_GROUP, WAIT_SECONDS, CheckImpossibleError, WrongAnswer
from .judges.failures import (
    NotAttempted,
    StandIn,
    in_full,
    is_own,
    text_of,
    was_kept_waiting,
)
from .judges.trials import named
from .turns import StuckError

if TYPE_CHECKING:
    from torch_mpi4py import GuardedComm

# PyTorch's message if there is no process group.
_NO_PROCESS_GROUP = "Default process group has not been initialized"
_NEVER_RAN = WrongAnswer("not-a-plain-function: yield")
_NOT_THE_LEARNERS = ("course_lib", "rank_by_rank", "torch", "torch_mpi4py")


class OutOfTimeError(BaseException):
    """The check's deadline passed. Not an Exception, so that the learner's code cannot catch it."""


@dataclass
class CheckResult:
    """The result of one rank, or of the notebook.

    Attributes:
        kind: "right", "wrong", "not attempted", "undefined" (there is no such function, or none of
            the learner's), "raised"
            (the learner's function did), "freed" (only because another rank had given up),
            "out of time", "impossible" (something is missing, such as ranks), or "broken" (the
            check itself failed, perhaps on a result that no one has thought of).
        text: for the learner; of a broken check the cause or the traceback; where the time is
            over, what was raised to end the function.
        mistake: the mistake's name.
        line: where the learner's function raised, or was when its time was over, as
            ``line 3: `x = 1 / 0```; empty if it did not.
        reset: whether communication must be renewed.
        wrong: the mistake that the check recognised; the notebook looks up its message.
    """

    kind: str
    text: str = ""
    mistake: str = ""
    line: str = ""
    reset: bool = False
    wrong: WrongAnswer | None = None


_last: dict[tuple[str, str], tuple[object, str]] = {}  # by check: its function, and the kind


def run(
    module: str,
    checker: str,
    function: Callable | None,
    out_of_time: tuple[type[BaseException], ...] = (OutOfTimeError,),
) -> CheckResult:
    """Check ``function`` by ``module.checker``; ``out_of_time`` is raised at the deadline.

    An exception of the function itself is the result, unless the check explains it by ``raise
    WrongAnswer(...) from error``.
    """
    _last[module, checker] = function, "out of time"  # until there is a result
    streams = sys.stdout, sys.stderr
    try:
        with _torch_as_usual():
            result = _result(module, checker, function, out_of_time)
    finally:  # a rank that has no stream left answers no more
        sys.stdout, sys.stderr = streams
    _last[module, checker] = function, result.kind
    return result


@contextlib.contextmanager
def _torch_as_usual() -> Iterator[None]:
    """Compute with gradients and in float32, whatever a cell or another answer has left set."""
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    dtype = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        with torch.enable_grad():
            yield
    finally:
        torch.set_default_dtype(dtype)


def verdict_on(module: str, checker: str, function: object) -> str:
    """Return the kind of the last result, if that check was of this very function; else nothing."""
    checked, kind = _last.get((module, checker), (None, ""))
    return kind if checked is function else ""


def _result(
    module: str,
    checker: str,
    function: Callable | None,
    out_of_time: tuple[type[BaseException], ...],
) -> CheckResult:
    if not callable(function):
        return CheckResult("undefined")
    if not is_learners(function):
        text = "is the library's now, because another cell has imported that name"
        return CheckResult("undefined", text)
    check = getattr(importlib.import_module(module), checker)
    tried = _Tried(function)
    try:
        _need_plain_function(function)
        return CheckResult("right", check(tried) or "")
    except CheckImpossibleError as missing:
        return CheckResult("impossible", str(missing))
    except WrongAnswer as wrong:
        if tried.error is not None and wrong.__cause__ is None:
            return tried.raised(tried.error)
        return _wrong(_NEVER_RAN if tried.never_ran else wrong, tried.line)
    except out_of_time as error:
        if tried.error is not None:
            return tried.raised(tried.error)
        # The text is for an answer that has raised it itself.
        return CheckResult("out of time", in_full(error), line=tried.line_of(error))
    except KeyboardInterrupt:
        raise  # the stop button
    except BaseException as error:
        if isinstance(error, NotAttempted) or tried.is_stub(error):
            return CheckResult("not attempted")
        if _NO_PROCESS_GROUP in text_of(error):
            return CheckResult("impossible", NEEDS_PROCESS_GROUP)
        if tried.error is not None:
            return tried.raised(tried.error)
        if was_kept_waiting(error):
            return CheckResult("freed", str(error), reset=True)
        if tried.last is not None and tried.last in (error, error.__cause__):
            return tried.raised(error)
        if tried.never_ran:
            return _wrong(_NEVER_RAN)
        if tried.line_of(error):  # a method of what it has returned
            return tried.raised(error)
        if tried.returned and not isinstance(error, AssertionError):
            return CheckResult("broken", _unfit(error))
        return CheckResult(
            "broken", f"itself failed; please report this:\n{traceback.format_exc()}"
        )


def _wrong(wrong: WrongAnswer, line: str = "") -> CheckResult:
    return CheckResult("wrong", str(wrong), wrong.mistake, line, wrong=wrong)


def _unfit(error: BaseException) -> str:
    """Say where a check could do nothing with a result: one that no one has thought of."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [f for f in frames if Path(f.filename).parent.name.startswith(("lesson_", "judges"))]
    frame = (ours or frames)[-1]
    where = f"in {Path(frame.filename).name}, line {frame.lineno}"
    return (
        f"cannot judge what your function returned: {in_full(error)} ({where}). Look at the kind "
        "of your result; if it is what the exercise asks for, please report this"
    )


def is_learners(function: object) -> bool:
    """Return whether it is a function, and not one of a library's, whole or in part."""
    while isinstance(function, functools.partial):
        function = function.func
    module = getattr(function, "__module__", "") or ""
    return callable(function) and module.partition(".")[0] not in _NOT_THE_LEARNERS


def _need_plain_function(function: Callable) -> None:
    """Raise unless a call runs its lines: a generator's run when a check takes its items."""
    if inspect.isclass(function):
        raise WrongAnswer("not-a-plain-function: a class")
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise WrongAnswer("not-a-plain-function: async")


class _Tried:
    """The learner's function, which remembers what it raised.

    Attributes:
        error: the first exception that is its own, and no consequence of another rank's.
        last: the last exception of any kind.
        returned: whether it has returned something.
        asked: the function's arguments when it raised ``error``; empty if they show little.
    """

    def __init__(self, function: Callable):
        functools.update_wrapper(self, function)
        self.function = function
        self.error: BaseException | None = None
        self.last: BaseException | None = None
        self.asked = self._asks = ""
        self.returned = False
        self._generator: Any = None  # of the last call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # Before the call, which may change them.
        self._asks = named(self.function, args)
        result = self.call(self.function, *args, **kwargs)
        self.returned = True
        self._generator = result if inspect.isgenerator(result) else None
        return result

    @property
    def never_ran(self) -> bool:
        """Whether it made a generator, and the check has not taken anything from it."""
        made = self._generator
        return made is not None and inspect.getgeneratorstate(made) == inspect.GEN_CREATED

    def call(self, function: Callable, *args: Any, **kwargs: Any) -> Any:
        """Call other code of the learner's: a function that theirs has returned, a hook."""
        try:
            return function(*args, **kwargs)
        except NotImplementedError as error:
            if self.is_stub(error):
                raise
            self.last = error  # PyTorch or MPI: there was an attempt
            self._note(error)
            raise StandIn(in_full(error)) from error
        except Exception as error:
            self.last = error
            if is_own(error):
                self._note(error)
            raise
        except (KeyboardInterrupt, OutOfTimeError, StuckError):  # it is ended
            raise
        except BaseException as error:  # by sys.exit(), say: it would end the check, and its cell
            self.last = error
            self._note(error)
            raise StandIn(in_full(error)) from error

    def is_stub(self, error: BaseException) -> bool:
        """Return whether it is raised by the line that a learner has to replace."""
        if not isinstance(error, NotImplementedError):
            return False
        return self._lines(error)[-1:] == traceback.extract_tb(error.__traceback__)[-1:]

    def _note(self, error: BaseException) -> None:
        if self.error is None:
            self.error, self.asked = error, self._asks

    def raised(self, error: BaseException) -> CheckResult:
        """Return the result of a function that raised ``error``."""
        if _NO_PROCESS_GROUP in text_of(error):
            return CheckResult("impossible", NEEDS_PROCESS_GROUP)
        text = in_full(error)
        if error is self.error and self.asked:
            text += f", called with {self.asked}"
        return CheckResult("raised", text, "it-raises", self.line_of(error))

    @property
    def line(self) -> str:
        """Where the first exception of its own was raised; empty if there was none."""
        return "" if self.error is None else self.line_of(self.error)

    def line_of(self, error: BaseException) -> str:
        """Return the learner's line in which ``error`` was raised; empty if it was in none."""
        own = self._lines(error)  # the deepest line that is the learner's
        if not own:
            return ""
        return f"line {own[-1].lineno}" + (f": `{own[-1].line}`" if own[-1].line else "")

    def _lines(self, error: BaseException) -> list[traceback.FrameSummary]:
        code = getattr(self.function, "__code__", None)
        frames = traceback.extract_tb(error.__traceback__)
        return [f for f in frames if code is not None and f.filename == code.co_filename]


def run_on_rank(module: str, checker: str, name: str) -> CheckResult:
    """Check this rank's function ``name``. Runs on a rank; every rank must run it."""
    from IPython import get_ipython
    from torch_mpi4py import world

    comm = world()
    before, comm.timeout = comm.timeout, WAIT_SECONDS
    function = get_ipython().user_ns.get(name)
    try:
        verdict = _missing_on_some(comm, function)
        if verdict is None:
            # The notebook interrupts its ranks when the deadline has passed.
            verdict = run(module, checker, function, (KeyboardInterrupt,))
    except KeyboardInterrupt as error:  # between two steps of ours
        verdict = CheckResult("out of time", in_full(error))
    finally:
        comm.timeout = before
    verdict.reset |= verdict.kind == "out of time" or _is_spoiled(comm)
    return verdict


def _missing_on_some(comm: GuardedComm, function: object) -> CheckResult | None:
    """Return a result if only some ranks have the function: they would wait for the others."""
    from torch_mpi4py.board.rank_states import rank_list

    try:
        have = comm.allgather(callable(function))
    except Exception as error:
        if not was_kept_waiting(error):
            raise
        return CheckResult("freed", str(error), reset=True)
    if all(have) or not any(have):
        return None
    there = rank_list([rank for rank, has in enumerate(have) if has])
    missing = rank_list([rank for rank, has in enumerate(have) if not has])
    return CheckResult("undefined", f"is only on {there}, not on {missing}")


def _is_spoiled(comm: GuardedComm) -> bool:
    """Whether the learner's function left this rank's communication unfit for further use."""
    import torch.distributed as dist
    from torch_mpi4py import MPI

    if comm.has_failed:
        return True
    if dist.is_initialized() and getattr(dist.group.WORLD, "failure", None) is not None:
        return True
    try:
        return bool(comm.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG))
    except MPI.Exception:  # a rank has died
        return True
