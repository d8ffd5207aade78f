"""``%%px`` with its name and options, with limits, and errors that name the cause.

Output in rank order, one rank's error first, a failed rank fails the cell, the stop button reaches
the ranks, and no cell hangs: see :mod:`.output` for the display, :mod:`.limits` for ``--limit``,
:mod:`.errors` for the exceptions, and :mod:`.recovery` for the recovery.
"""

from __future__ import annotations

import functools
import re
import signal
import tokenize
from argparse import Namespace
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from ipyparallel.client.magics import NO_LAST_RESULT, ParallelMagics, exec_args, output_args
from IPython.core.error import UsageError
from IPython.core.inputtransformer2 import make_tokens_by_line
from IPython.core.magic import no_var_expand
from IPython.core.magic_arguments import argument, magic_arguments
from torch_mpi4py.board.rank_states import FREED, name_ranks

from .cells import Cell, cell_number, new_run
from .cluster import Cluster
from .completion import complete_on_ranks
from .errors import ClusterError, HangError, RemoteCellError
from .limits import Limit
from .prompt import PostMortemPrompt
from .rank_functions import make_label
from .stop_button import StopButton, interruption

_CELL_MAGIC = re.compile(r"(%%\w+).*")
_STARVED = 0.6  # of the limit; ranks that share cores only with each other wait less
# The options of ``%px``, which begin its line; whatever follows is code.
_OPTIONS_OF_A_LINE = re.compile(
    r"(?:\s*--(?:(?:limit|targets)(?:=|\s+)\S+|local|noblock)(?=\s|$))*\s*"
)


class RankMagics(ParallelMagics):
    """ipyparallel's magics, on the current :class:`~ipyranks.Cluster`.

    They are registered once, so the settings of ``%pxconfig`` for streaming, progress and signals
    survive a shrink, a restart, and the cluster.
    """

    def __init__(self, shell: Any) -> None:
        self._last_run = ""  # the cell of ``last_result``
        self._last_view: Any = None
        super().__init__(shell, None)
        self.magics["line"]["pxdebug"] = self.debug

    @property
    def cluster(self) -> Cluster:
        """The cluster that cells run on."""
        if Cluster.current is None:
            raise ClusterError("there is no cluster: start_cluster(n=4) starts one")
        return Cluster.current

    # Has the ``block`` and ``targets`` of ``%pxconfig``; ipyparallel's ``__init__`` sets it.
    view = property(lambda self: self.cluster.view, lambda self, _: None)

    @magic_arguments()
    @exec_args
    @output_args
    @argument("--local", action="store_true", help="run the cell in the notebook as well")
    @argument(
        "--limit",
        help="end the cell after this many seconds (60 by default, ``cluster.limit``), with a "
        "report of what every rank was doing; ``60+`` counts only time without progress, ``none`` "
        "means no limit",
    )
    def cell_px(self, line: str = "", cell: str = "") -> Any:
        """Run the cell on all ranks."""
        args = self.cell_px.parser.parse_argstring(line)
        # A traceback then has the line numbers of the notebook's cell. A cell magic has to
        # stay in the first line, though.
        if not cell.lstrip().startswith("%%"):
            cell = f"# %%px {line}".rstrip() + "\n" + cell
        return self._run(cell, args)

    @no_var_expand
    def px(self, line: str = "") -> Any:
        """Run the line on all ranks.

        ``--limit``, ``--targets``, ``--local`` and ``--noblock`` are as for ``%%px``, and come
        before the code: ``%px --limit SECONDS CODE``.
        """
        given = _OPTIONS_OF_A_LINE.match(line)
        assert given is not None  # it also fits a line without options
        args = self.cell_px.parser.parse_argstring(given[0])
        return self._run(line[given.end() :], args)

    @magic_arguments()
    @output_args
    def result(self, line: str = "") -> None:
        """Wait for the last ``%%px --noblock``, and show the ranks' output."""
        if self.last_result is None or self._last_view is not self.view:
            raise UsageError(NO_LAST_RESULT)
        args = self.cell_px.parser.parse_argstring(line)
        if args.save_name:
            self.shell.user_ns[args.save_name] = self.last_result
            return
        with StopButton() as button:
            self._run_to_end(button, self._last_cell(args), args)

    def debug(self, line: str = "") -> None:
        """Look into the latest error of a rank: ``%pxdebug 2`` opens a prompt for pdb's commands.

        ``w`` shows the calls, ``u`` and ``d`` go to the one outside and inside, ``p x`` prints,
        ``h`` lists all commands, ``q`` leaves. Any other line is run as Python. No rank waits
        meanwhile.
        """
        n = self.cluster.n
        try:
            rank = range(n)[int(line)]
        except ValueError:
            raise ClusterError("give the rank to look into, like %pxdebug 2") from None
        except IndexError:
            raise ClusterError(f"%pxdebug {line.strip()}: the ranks are 0 to {n - 1}") from None
        PostMortemPrompt(self.cluster, rank, partial(self._call, rank)).run()

    def _call(self, rank: int, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return the result of a function on a rank, with the limit of a cell."""
        args = self.cell_px.parser.parse_argstring("")
        with StopButton() as button:
            cell = Cell.of_function(
                self.cluster, self._limit(args), function, *arguments, ranks=[rank]
            )
            self._run_to_end(button, cell, args)
        return cell.answers()[rank]

    def _run(self, cell: str, args: Namespace) -> Any:
        """Run a cell on the targets, with the options of ``%%px``."""
        block = self.view.block if args.block is None else args.block
        # The view itself keeps all ranks as its targets: renewals concern all of them.
        targets = self._eval_target_str(args.targets) if args.targets else None
        self._limit(args)  # raises if it is invalid
        self._signum(args)
        with StopButton() as button:
            self.cluster.require_running()
            self.cluster.recovery.require_free()
            self._last_run, self._last_view = new_run(is_awaited=block), self.view
            label = make_label(cell_number(), self._last_run)
            result = self.view.execute(
                cell, silent=False, block=False, label=label, targets=targets
            )
            result._fname = "%px"
            self.last_result = result
            if args.save_name:
                self.shell.user_ns[args.save_name] = result
            if block and not args.local:
                self._run_to_end(button, self._last_cell(args), args)
                return None
        here = self.shell.run_cell(cell) if args.local else None
        if not block:
            return result
        with StopButton() as button:
            self._run_to_end(button, self._last_cell(args), args)
        if here is not None:
            here.raise_error()  # a failure here fails the cell, too
        return None

    def _limit(self, args: Namespace) -> Limit:
        return Limit.of(args.limit or self.cluster.limit)

    def _signum(self, args: Namespace) -> int:
        return _signal_number(args.signal_on_interrupt or self.signal_on_interrupt)

    def _last_cell(self, args: Namespace) -> Cell:
        return Cell(self.cluster, self.last_result, self._limit(args), self._last_run)

    def _run_to_end(self, button: StopButton, cell: Cell, args: Namespace) -> None:
        """Wait for a cell and show its output; raise if it failed, hung or was interrupted."""
        cluster, limit = self.cluster, self._limit(args)
        live = self.stream_output if args.stream is None else args.stream
        progress_after = args.progress_after_seconds
        if progress_after is None:
            progress_after = self.progress_after_seconds
        cell.run(button, live, progress_after, self._signum(args))
        cell.output.show(args.groupby)
        failures, finished = cell.outcome()
        if cell.end == "interrupted":
            raise _interrupted(cell, cluster) from None
        if not failures and cell.end != "limit":
            cluster.recovery.renew()
            return
        report = cell.report or cluster.recovery.report_after_the_cell()
        advice = cluster.recovery.after_failure(report, cell.stuck, cell.result)
        if cell.end == "limit":
            reason = f"the cell did not finish within its limit of {limit}"
            more = _more_time(limit, cell.moved_lately, cell.starved)
            raise HangError(reason, report, failures, finished, cell.stuck, f"{advice}{more}")
        names = {failure.ename for failure in failures}
        if "DeadlineError" in names and names <= set(FREED) and report.waiting:
            reason = "the deadline of an operation in the cell passed"
            raise HangError(reason, report, failures, finished, cell.stuck, advice)
        raise RemoteCellError(failures, finished, report)

    def _eval_target_str(self, ts: str) -> list[int]:
        return self.cluster.who.engines_of(parse_targets(ts, self.cluster.n))


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


def _more_time(limit: Limit, moving: bool, starved: dict[int, float]) -> str:
    larger = max(10, 5 * round(limit.seconds))
    way = f"%%px --limit {larger}, or cluster.limit = {larger} for all cells"
    rank = max(starved, key=starved.__getitem__, default=None)
    if rank is not None and starved[rank] > _STARVED * limit.seconds:
        return (
            f" For {starved[rank]:.0f} s of that, rank {rank} was ready, but no core was free: "
            f"this machine is busy, so the cell may only need more time: {way}."
        )
    if moving:
        return (
            f" The cell was still making progress, so it may only need more time: {way}; "
            f"with --limit {limit.seconds:g}+ only time without progress counts."
        )
    return f" If the cell only needs more time: {way}."


def _interrupted(cell: Cell, cluster: Cluster) -> KeyboardInterrupt:
    assert cell.report is not None
    advice = cluster.recovery.after_failure(cell.report, cell.stuck, cell.result)
    message = "the cell was interrupted on all ranks"
    if cell.stuck:
        message = f"the cell was interrupted, but {name_ranks(cell.stuck)} did not stop"
    details = []
    if cell.report.waiting or cell.stuck:
        details = ["", *str(cell.report).splitlines(), "", advice]
    return interruption(message, details)


def _signal_number(given: Any) -> int:
    """The number of the signal in the value of ``--signal-on-interrupt``, 0 for none.

    Raises:
        ClusterError: if there is no such signal.
    """
    text = str(int(given) if isinstance(given, int) else given or 0)
    number = int(text) if text.isdigit() else signal.Signals.__members__.get(text)
    if number not in _accepted_signals():
        raise ClusterError(f"--signal-on-interrupt {text}: give a signal, like SIGTERM or 15")
    return int(number)


@functools.cache
def _accepted_signals() -> set[int]:
    """The numbers of the system's signals, and 0; Python takes 0.2 ms to list them."""
    return {0, *signal.valid_signals()}


def require_first_line(lines: list[str]) -> list[str]:
    """Return a cell's lines as they are.

    Raises:
        ClusterError: if a cell magic is where IPython would treat it as a line magic.
    """
    if lines and lines[0].startswith("%%"):
        _require_one_px(lines)
        return lines
    for found in _cell_magics(lines):
        raise ClusterError(
            f"`{found[1]}` has to be the first line of its cell, even above comments: "
            f"move the line `{found[0].rstrip()}` to the top"
        )
    return lines


# So IPython does not call it to see whether the input is complete.
require_first_line.has_side_effects = True  # type: ignore[attr-defined]


def _require_one_px(lines: list[str]) -> None:
    """Raise ClusterError if a cell that begins with ``%%px`` has a second ``%%px``.

    Below any other magic, even one below ``%%px``, there may be any text.
    """
    top, *code = lines
    if top.split()[0] != "%%px":
        return
    text = "".join(code).lstrip()
    if text.startswith("%%") and text.split()[0] != "%%px":
        return
    for found in _cell_magics(code):
        if found[1] == "%%px":
            raise ClusterError(
                f"this cell has begun with `{top.rstrip()}`: put the second "
                f"`{found[0].rstrip()}` and what follows it into a cell of their own"
            )


def _cell_magics(lines: list[str]) -> Iterator[re.Match[str]]:
    """Find the lines of code that begin with a cell magic: the whole line, and the magic."""
    for tokens in make_tokens_by_line(lines):  # text inside a string begins no such line
        first = next((t for t in tokens if t.type not in (tokenize.INDENT, tokenize.DEDENT)), None)
        found = first and _CELL_MAGIC.match(first.line[first.start[1] :])
        if found:
            yield found


def activate(shell: Any) -> None:
    """Make ``%px`` and ``%%px`` run on the cluster, and Tab complete names of its ranks."""
    magics = shell.magics_manager
    magics.register(magics.registry.get(RankMagics.__name__) or RankMagics(shell))
    if require_first_line not in shell.input_transformers_cleanup:
        shell.input_transformers_cleanup.append(require_first_line)
    if complete_on_ranks not in shell.Completer.custom_matchers:
        shell.Completer.custom_matchers.append(complete_on_ranks)
