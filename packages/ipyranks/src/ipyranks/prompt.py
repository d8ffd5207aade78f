"""Prompts of pdb: commands are typed in the notebook, and carried out on a rank.

``%pxdebug`` looks into an error that is over (:mod:`.post_mortem`), ``breakpoint()`` stops ranks
in a cell that runs (:mod:`.breakpoints`). ``cmd.Cmd`` reads the lines, which asks the front end
through the kernel's ``input()``; in a terminal Tab completes.
"""

from __future__ import annotations

import cmd
import contextlib
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from IPython import get_ipython
from IPython.core.error import StdinNotImplementedError
from torch_mpi4py.board import standstill
from torch_mpi4py.board.rank_states import describe, name_ranks

from . import post_mortem
from .boards import Views, same_waits, wait_for_others
from .breakpoints import KEY, REQUEST
from .errors import ClusterError
from .stop_button import interruption

if TYPE_CHECKING:
    from .cluster import Cluster

_COMPLETE_WITHIN_S = 0.5
_LOOK_EVERY_S = 0.02
_STOPS_WITHIN_S = 3.0  # the other ranks may stop as well, or this one come back from its line
_WAITS_AFTER_S = 0.3  # in one call of communication: it does not come back by itself
_HELP = """\
rank 2    go to rank 2, if it is at a breakpoint
ranks     show where all ranks are
all n     give a command, here `n`, to all ranks that are at a breakpoint
q         leave, which ends the cell on all ranks
c         continue this rank; n, s, r: to the next line, into a call, to its return
"""


def can_ask() -> bool:
    """Whether a user can answer a prompt in the notebook's running cell."""
    if threading.current_thread() is not threading.main_thread():
        return False
    kernel = getattr(get_ipython(), "kernel", None)
    if kernel is not None:
        return kernel._allow_stdin
    return sys.stdin is not None and sys.stdin.isatty()


class PostMortemPrompt(cmd.Cmd):
    """Asks for pdb's commands on the latest error of a rank.

    Args:
        cluster: where the rank is.
        rank: which one.
        call: called with a function and its arguments; has the rank call it, and returns the result
            or raises its error.
    """

    def __init__(self, cluster: Cluster, rank: int, call: Callable[..., Any]) -> None:
        super().__init__()
        self.prompt = f"rank {rank}> "
        self._cluster, self._rank = cluster, rank
        self._call = call
        self._engine = cluster.client[cluster.who.engine_of(rank)]

    def run(self) -> None:
        """Show where the rank raised its error, and carry out commands until one of them leaves.

        Raises:
            ClusterError: if the rank runs a cell, or has raised nothing, or the front end has no
                prompt.
            KeyboardInterrupt: if the stop button is pressed; it ends the prompt, too.
        """
        if self._cluster.busy([self._rank]):
            raise ClusterError(
                f"rank {self._rank} is running a cell: cluster.where(stacks=True) shows where, "
                "cluster.interrupt() ends it"
            )
        found = self._call(post_mortem.begin)
        if found is None:
            raise ClusterError(
                f"rank {self._rank} has no error to look into: none of its cells has raised one, "
                "or its latest error is a syntax error"
            )
        title, place = found
        try:
            self.cmdloop(f"rank {self._rank} raised {title}\n{place}")
        except StdinNotImplementedError:
            raise ClusterError(
                "%pxdebug cannot ask for commands: the program that executes this notebook gives "
                "no input. Open it in JupyterLab or Jupyter Notebook, or print what you want to "
                "know in a %%px cell"
            ) from None
        except KeyboardInterrupt as interrupt:
            if hasattr(interrupt, "_render_traceback_"):
                raise
            raise interruption("the prompt was closed; the ranks are unchanged") from None
        finally:
            with contextlib.suppress(ClusterError):  # it has died
                self._engine.apply_async(post_mortem.leave)

    def onecmd(self, line: str) -> bool:
        """Have the rank carry out a line; return whether that was the last."""
        said, leaves = self._call(post_mortem.answer, line)
        self.stdout.write(said)
        return leaves

    def completenames(self, text: str, *line: Any) -> list[str]:
        """Return how a word may go on; nothing if the rank doesn't answer at once."""
        asked = self._engine.apply_async(post_mortem.completions, text, *line)
        return asked.get() if asked.wait(_COMPLETE_WITHIN_S) and asked.successful() else []

    completedefault = completenames


class BreakpointPrompt(cmd.Cmd):
    """Asks for pdb's commands on the ranks of a cell that are stopped at breakpoints.

    Args:
        cluster: where they are.
        result: the ``AsyncResult`` of the cell.
        ranks: where it runs, as the children of ``result``.
    """

    def __init__(self, cluster: Cluster, result: Any, ranks: list[int]) -> None:
        super().__init__()
        self._cluster, self._result = cluster, result
        self._children = dict(zip(ranks, result._children, strict=True))
        self._rank = -1
        self._answered: dict[int, int] = {}  # the latest stop of each rank that got a line
        self._shown: dict[int, int] = {}
        self._asked = -1  # the rank whose prompt was shown last
        self._told_of_all = False
        self._someone_died = False

    def standing(self) -> list[int]:
        """The ranks that are stopped at a breakpoint, ascending."""
        return [rank for rank in self._children if self._stands(rank)]

    def _stop(self, rank: int) -> tuple[int, str, str]:
        return self._children[rank].output.metadata["data"].get(KEY, (0, "", ""))

    def _stands(self, rank: int) -> bool:
        is_new = self._stop(rank)[0] > self._answered.get(rank, 0)
        return is_new and not self._children[rank].done()

    def run(self) -> bool:
        """Ask for commands until no rank is stopped any more; return whether a rank died meanwhile.

        Raises:
            KeyboardInterrupt: if the stop button is pressed, or the user leaves.
        """
        try:
            with self._looking_after_the_others():
                self._settle(list(self._children))
                if self._turn_to_a_rank():
                    self.cmdloop()
        except KeyboardInterrupt:
            if not self._someone_died:
                raise
        return self._someone_died

    def onecmd(self, line: str) -> bool:
        """Obey a line; return whether no rank is stopped any more."""
        words = line.split()
        if words and words[0] in ("q", "quit", "exit", "EOF"):
            raise KeyboardInterrupt
        if words == ["ranks"]:
            self._tell_of_all()
        elif re.fullmatch(r"rank\s+\d+", line):
            self._go_to(int(words[1]))
        elif re.match(r"all\s+[a-z]", line):
            self._send(line.removeprefix("all").lstrip(), self.standing(), show=True)
        else:
            if words in (["h"], ["help"]):
                self.stdout.write(_HELP)
            self._send(line, [self._rank])
        return not self._turn_to_a_rank()

    def _turn_to_a_rank(self) -> bool:
        """Show new output of the rank whose turn it is; return whether there is any."""
        standing = self.standing()
        if not standing or self._someone_died:
            return False
        if not self._told_of_all:
            self._tell_of_all()
        if self._rank not in standing:
            self._rank = standing[0]
        number, said, place = self._stop(self._rank)
        if self._shown.get(self._rank) != number:
            self._shown[self._rank] = number
            self.stdout.write(said)
        elif self._rank != self._asked:
            self.stdout.write(place)
        self._asked = self._rank
        self.prompt = f"rank {self._rank}> "
        return True

    def _go_to(self, rank: int) -> None:
        if self._stands(rank):
            self._rank = rank
        else:
            self.stdout.write(f"{name_ranks(self.standing()).capitalize()} can be asked\n")

    def _send(self, line: str, ranks: list[int], show: bool = False) -> None:
        """Have ranks carry out a line, and report the fate of those that do not come back."""
        for rank in ranks:
            self._answered[rank] = self._stop(rank)[0]
        self._request(ranks, line=line)
        self._settle(ranks)
        standing = self.standing()
        if not standing:
            return
        states = self._cluster.report().ranks
        for rank in ranks:
            if rank not in standing:
                self.stdout.write(f"rank {rank}: {describe(states[rank])}\n")
            elif show:
                self._shown[rank], said, _ = self._stop(rank)
                self.stdout.writelines(f"rank {rank} | {one}\n" for one in said.splitlines())

    def _request(self, ranks: list[int], **content: Any) -> Any:
        engines = self._cluster.who.engines_of(ranks)
        client = self._cluster.client
        return client._send_control_request(engines, REQUEST, content, block=False)

    def completenames(self, *asked: Any) -> list[str]:
        """Return how a word may go on; nothing if the rank doesn't answer at once."""
        answered = threading.Event()
        reply = self._request([self._rank], complete=asked)
        reply.add_done_callback(lambda _: answered.set())
        return reply.result()[0]["content"]["words"] if answered.wait(_COMPLETE_WITHIN_S) else []

    completedefault = completenames

    def _settle(self, ranks: list[int]) -> None:
        """Return once ``ranks`` have stopped, ended, or wait for others; or after a while."""
        since = time.monotonic()
        deadline = since + _STOPS_WITHIN_S
        first: Views = {}
        while (now := time.monotonic()) < deadline:
            moving = [r for r in ranks if not (self._stands(r) or self._children[r].done())]
            views = self._cluster.boards.snapshot(self._cluster.who.engines_of(moving))
            if not same_waits(first, views):
                first, since = views, now
            if not moving or (now - since > _WAITS_AFTER_S and wait_for_others(first, views)):
                return
            self._result.wait(_LOOK_EVERY_S)

    def _tell_of_all(self) -> None:
        self._told_of_all = True
        self.stdout.write(f"{self._cluster.report().table()}\n\n")

    @contextlib.contextmanager
    def _looking_after_the_others(self) -> Iterator[None]:
        """In the block, suspend deadlines on all hosts, and end the prompt when a rank dies."""
        over = threading.Event()
        main = threading.main_thread().ident or 0

        def look() -> None:
            while not over.is_set():
                try:
                    died = bool(self._cluster.status()["dead"])
                    self._cluster.boards.renew_standstill()
                except (ClusterError, OSError):  # it has ended: the main thread finds out why
                    died = True
                if died:
                    self._someone_died = True
                    signal.pthread_kill(main, signal.SIGINT)  # which also ends input()
                    return
                over.wait(standstill.RENEW_EVERY_S)

        thread = threading.Thread(target=look, name="breakpoint prompt", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
