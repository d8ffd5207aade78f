"""Runs a check on a learner's function; whatever the function does, there is a result.

:func:`run` calls the check and turns everything that can happen into a :class:`CheckResult`: plain
data, so that it travels from the ranks to the notebook.
"""

from __future__ import annotations

import functools
import importlib
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .exercise import WrongAnswer
from .judges.failures import was_kept_waiting

if TYPE_CHECKING:
    from torch_mpi4py import GuardedComm

# On the ranks, no single wait of a check may take longer than this.
WAIT_SECONDS = 20.0


class OutOfTimeError(BaseException):
    """The check's deadline passed. No Exception, so that the learner's code cannot catch it."""


@dataclass
class CheckResult:
    """What one rank, or the notebook, found out.

    Attributes:
        kind: "right", "wrong", "not attempted", "undefined" (there is no such function), "raised"
            (the learner's function did), "freed" (only because another rank had given up),
            "out of time", or "broken" (the check itself failed).
        text: for the learner; of a broken check the traceback.
        mistake: the mistake's name.
        line: where the learner's function raised, as ``line 3: `x = 1 / 0```; empty if it did not.
        reset: whether communication must be made anew.
    """

    kind: str
    text: str = ""
    mistake: str = ""
    line: str = ""
    reset: bool = False


def run(module: str, checker: str, function: Callable | None) -> CheckResult:
    """Check ``function`` by ``module.checker``."""
    if function is None:
        return CheckResult("undefined")
    check = getattr(importlib.import_module(module), checker)
    tried = _Tried(function)
    try:
        return CheckResult("right", check(tried) or "")
    except NotImplementedError:
        return CheckResult("not attempted")
    except WrongAnswer as wrong:
        return CheckResult("wrong", wrong.explanation, wrong.name, tried.line)
    except OutOfTimeError:
        return CheckResult("out of time")
    except Exception as error:
        if was_kept_waiting(error):
            return CheckResult("freed", str(error), line=tried.line, reset=True)
        if tried.raised(error):
            return CheckResult(
                "raised", f"{type(error).__name__}: {error}", "it-raises", tried.line
            )
        return CheckResult("broken", traceback.format_exc())


class _Tried:
    """The learner's function, which remembers where it last raised."""

    def __init__(self, function: Callable):
        functools.update_wrapper(self, function)
        self.function = function
        self.error: BaseException | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return self.function(*args, **kwargs)
        except Exception as error:
            self.error = error
            raise

    def raised(self, error: BaseException) -> bool:
        """Tell whether ``error``, or the one behind it, came out of the learner's function."""
        return self.error is not None and self.error in (error, error.__cause__)

    @property
    def line(self) -> str:
        """The line of the learner's code that raised; the deepest one that is theirs."""
        if self.error is None:
            return ""
        code = getattr(self.function, "__code__", None)
        frames = traceback.extract_tb(self.error.__traceback__)
        own = [f for f in frames if code is not None and f.filename == code.co_filename]
        return f"line {own[-1].lineno}: `{own[-1].line}`" if own else ""


def run_on_rank(module: str, checker: str, name: str) -> CheckResult:
    """Check this rank's function ``name``. Runs on a rank; every rank must run it."""
    from IPython import get_ipython
    from torch_mpi4py import world

    comm = world()
    before, comm.timeout = comm.timeout, WAIT_SECONDS
    try:
        verdict = run(module, checker, get_ipython().user_ns.get(name))
    except KeyboardInterrupt:  # sent by the notebook when the deadline had passed
        verdict = CheckResult("out of time", reset=True)
    finally:
        comm.timeout = before
    verdict.reset |= _is_spoiled(comm)
    return verdict


def _is_spoiled(comm: GuardedComm) -> bool:
    """Whether the learner's function left this rank's communication unfit for further use."""
    import torch.distributed as dist
    from torch_mpi4py import MPI, has_ulfm

    if has_ulfm() and comm.Is_revoked():
        return True
    if dist.is_initialized() and getattr(dist.group.WORLD, "failure", None) is not None:
        return True
    try:
        return bool(comm.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG))
    except MPI.Exception:  # a rank has died
        return True
