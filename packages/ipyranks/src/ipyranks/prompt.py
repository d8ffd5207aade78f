"""The prompt of ``%pxdebug``: commands are typed in the notebook, and carried out on a rank.

``cmd.Cmd`` reads them, which asks the front end by way of the kernel's ``input()``; in a terminal
it has Tab complete. The rank's part is :mod:`.post_mortem`.
"""

from __future__ import annotations

import cmd
import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from IPython.core.error import StdinNotImplementedError

from . import post_mortem
from .errors import ClusterError
from .stop_button import interruption

if TYPE_CHECKING:
    from .cluster import Cluster

_COMPLETE_WITHIN_S = 0.5


class PostMortemPrompt(cmd.Cmd):
    """Asks for pdb's commands on the latest error of a rank.

    Args:
        cluster: where the rank is.
        rank: which one.
        call: called with a function and its arguments, has the rank call it, and returns what that
            returns; raises what became of it otherwise.
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
                f"rank {self._rank} runs a cell: cluster.where(stacks=True) shows where it is, "
                "cluster.interrupt() ends it"
            )
        found = self._call(post_mortem.begin)
        if found is None:
            raise ClusterError(
                f"there is nothing to look into on rank {self._rank}: no line of its cells has "
                "raised an error, or its latest error is one of syntax"
            )
        title, place = found
        try:
            self.cmdloop(f"rank {self._rank} raised {title}\n{place}")
        except StdinNotImplementedError:
            raise ClusterError(
                "%pxdebug asks for commands, but what executes this notebook gives no input: open "
                "it in JupyterLab or Jupyter Notebook, or print what you want to know in a %%px "
                "cell"
            ) from None
        except KeyboardInterrupt as interrupt:
            if hasattr(interrupt, "_render_traceback_"):
                raise
            raise interruption("the prompt has ended; the ranks are as they were") from None
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
