"""The one idea: ``%%px`` with its name and options, and the manners of a lesson.

Output in rank order, one rank's error first, a failed rank fails the cell, and the stop
button reaches the ranks. See :mod:`.output` for what is shown and :mod:`.errors` for what is
raised.
"""

from __future__ import annotations

import re
import signal

from ipyparallel import error
from ipyparallel.client.magics import NO_LAST_RESULT, ParallelMagics
from IPython.core.error import UsageError
from IPython.core.magic import no_var_expand

from .completion import complete_on_engines
from .errors import ClusterError, RankFailure, RemoteCellError
from .output import CellOutput, live_interval

_LIVE_AFTER_S = 0.3
_LOOK_EVERY_S = 0.5  # at whether the cluster still lives
_FREE_WITHIN_S = 5.0
_OUTPUT_WITHIN_S = 2.0
# IPython's name for the source of a cell, in the message of a SyntaxError.
_CODE_FILE = re.compile(r"\(\d+\.py, line (\d+)\)$")


class CourseMagics(ParallelMagics):
    """ipyparallel's magics, bound to a :class:`~course_lib.cluster.Cluster`."""

    def __init__(self, shell, cluster):
        self.cluster = cluster
        super().__init__(shell, cluster.view)

    def parallel_execute(
        self,
        cell,
        block=None,
        groupby="type",
        save_name=None,
        stream_output=None,
        progress_after=None,
        signal_on_interrupt=None,
    ):
        """Run a cell on the targets; what ``%px`` and ``%%px`` have in common."""
        block = self.view.block if block is None else block
        stream_output = self.stream_output if stream_output is None else stream_output
        progress_after = self.progress_after_seconds if progress_after is None else progress_after
        self.cluster.require_running()
        result = self.view.execute(
            cell, silent=False, block=False, label=str(self.shell.execution_count)
        )
        result._fname = "%px"
        self.last_result = result
        if save_name:
            self.shell.user_ns[save_name] = result
        if not block:
            return result
        output = self._output_of(result)
        try:
            self._wait(result, output, stream_output, progress_after)
        except KeyboardInterrupt:
            self._interrupt(result, signal_on_interrupt or self.signal_on_interrupt)
            output.show(groupby)
            raise _interrupted(_unfinished(result)) from None
        self._finish(result, output, groupby)

    def cell_px(self, line="", cell=None):
        # A traceback then has the line numbers of the notebook's cell. A cell magic has to
        # stay in the first line, though.
        if not cell.lstrip().startswith("%%"):
            cell = f"# %%px {line}".rstrip() + "\n" + cell
        if "--local" not in line.split():
            return super().cell_px(line, cell)
        return self._px_local(line, cell)

    cell_px.__doc__ = ParallelMagics.cell_px.__doc__
    # The decorators of ipyparallel hang the options on the function.
    cell_px.parser = ParallelMagics.cell_px.parser
    cell_px.argcmd_name = "cell_px"

    @no_var_expand
    def px(self, line=""):
        return self.parallel_execute(line)

    px.__doc__ = ParallelMagics.px.__doc__

    def result(self, line=""):
        if self.last_result is None:
            raise UsageError(NO_LAST_RESULT)
        args = ParallelMagics.result.parser.parse_argstring(line)
        if args.save_name:
            self.shell.user_ns[args.save_name] = self.last_result
            return
        output = self._output_of(self.last_result)
        self._wait(self.last_result, output, False, -1)
        self._finish(self.last_result, output, args.groupby)

    result.__doc__ = ParallelMagics.result.__doc__
    result.parser = ParallelMagics.result.parser

    # ---- parts -------------------------------------------------------------------------

    def _px_local(self, line: str, cell: str):
        """Run on the ranks and here at the same time; a failure here fails the cell too."""
        args = ParallelMagics.cell_px.parser.parse_argstring(line)
        remote_line = " ".join(word for word in line.split() if word != "--local")
        pending = super().cell_px(f"{remote_line} --noblock", cell)
        here = self.shell.run_cell(cell)
        if args.block is False or (args.block is None and not self.view.block):
            return pending
        output = self._output_of(pending)
        self._wait(pending, output, False, -1)
        self._finish(pending, output, args.groupby)
        here.raise_error()

    def _output_of(self, result) -> CellOutput:
        return CellOutput(result, result._targets, self.cluster.n)

    def _wait(self, result, output: CellOutput, live: bool, progress_after: float) -> None:
        """Wait for all ranks, showing what they do; notice when the cluster ends."""
        if result.wait(_LIVE_AFTER_S):
            return
        waited = _LIVE_AFTER_S
        interval = live_interval() if live else _LOOK_EVERY_S
        while not result.wait(interval):
            waited += interval
            if live:
                output.show_live(progress=0 <= progress_after <= waited)
            self.cluster.status()

    def _finish(self, result, output: CellOutput, groupby: str) -> None:
        """Show the output; raise if any rank failed."""
        result.wait_for_output(_OUTPUT_WITHIN_S)
        output.show(groupby)
        failures, finished = outcome(result)
        if failures:
            raise RemoteCellError(failures, finished)

    def _interrupt(self, result, signum) -> None:
        """Pass the stop button on to the ranks, and give them a moment to stop."""
        if isinstance(signum, str):
            signum = int(signum) if signum.isdigit() else signal.Signals[signum]
        if signum:
            self.cluster.signal(signum, _unfinished(result))
            result.wait(_FREE_WITHIN_S)
        if result.ready():
            result.wait_for_output(_OUTPUT_WITHIN_S)

    def _eval_target_str(self, ts):
        return parse_targets(ts, self.cluster.n)


def parse_targets(text: str, n: int) -> list[int]:
    """Return the ranks meant by the value of ``--targets``, ascending.

    Accepts ``all``, a rank (``2``, ``-1``), a list (``0,2`` or ``[0, 2]``), and a slice
    (``::2``).

    Raises:
        ClusterError: if it is none of these or names a rank that does not exist.
    """
    text = text.strip()
    ranks = list(range(n))
    try:
        if text == "all":
            return ranks
        if ":" in text:
            return ranks[slice(*(int(part) if part else None for part in text.split(":")))]
        parts = text.strip("[]()").split(",")
        return sorted({ranks[int(part)] for part in parts if part.strip()})
    except (ValueError, TypeError):
        raise ClusterError(f"--targets {text}: give ranks like 2, 0,2, 1: or all") from None
    except IndexError:
        raise ClusterError(f"--targets {text}: the ranks are 0 to {n - 1}") from None


def outcome(result) -> tuple[list[RankFailure], list[int]]:
    """Who failed and who finished, of a result that is ready."""
    failures, finished = [], []
    answers = result.get(return_exceptions=True)
    answers = [answers] if result._single_result else answers
    for rank, answer in zip(result._targets, answers, strict=True):
        if isinstance(answer, error.RemoteError):
            message = _CODE_FILE.sub(r"(line \1)", str(answer.evalue))
            failures.append(RankFailure(rank, answer.ename, message, answer.traceback))
        elif isinstance(answer, Exception):
            failures.append(RankFailure(rank, type(answer).__name__, str(answer)))
        else:
            finished.append(rank)
    return failures, finished


def _unfinished(result) -> list[int]:
    pairs = zip(result._targets, result._children, strict=True)
    return [rank for rank, child in pairs if not child.done()]


def _interrupted(stuck: list[int]) -> KeyboardInterrupt:
    message = "the cell was interrupted on all ranks"
    if stuck:
        message = (
            f"ranks {stuck} did not stop within {_FREE_WITHIN_S:g} s; "
            "cluster.restart() starts fresh ranks"
        )
    interrupt = KeyboardInterrupt(message)
    interrupt._render_traceback_ = lambda: [f"KeyboardInterrupt: {message}"]
    return interrupt


def activate(shell, cluster) -> None:
    """Make ``%px`` and ``%%px`` run on ``cluster``, and Tab complete names of its ranks."""
    shell.magics_manager.register(CourseMagics(shell, cluster))
    complete_on_engines(shell, cluster)
