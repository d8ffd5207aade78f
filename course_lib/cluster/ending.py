"""An engine that ends unasked dies by a signal, for only then the others are told.

Open MPI tells of a death by a signal, not of a process that ends with a status other than 0: the
others would wait for it for ever, and no shrink could leave it out. And ``exit()`` is no way to
end a cell: it would take the rank's variables along.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from IPython.core.autocall import IPyAutocall

__all__ = ["NoExit", "as_a_death", "explain_exits"]

_INSTEAD = (
    "would not end the cell but this rank, and its variables would be lost. To end a cell early, "
    "raise an error; in a cell without %%px, cluster.stop() ends all ranks and cluster.restart() "
    "starts fresh ones."
)


@contextmanager
def as_a_death(told_to_stop: Callable[[], bool]) -> Iterator[None]:
    """Make every end of this process but a signal's one by SIGKILL; not of what it forks.

    Args:
        told_to_stop: whether the cluster stops; then the end is as usual.
    """
    engine, usual = os.getpid(), os._exit

    def die(status: int) -> None:
        if os.getpid() == engine:
            try:
                for stream in (sys.stdout, sys.stderr):
                    stream.flush()
            finally:
                os.kill(engine, signal.SIGKILL)
        usual(status)

    os._exit = die
    try:
        yield
    except BaseException:
        traceback.print_exc()
        die(1)
    if not told_to_stop():
        die(0)


class NoExit(IPyAutocall):
    """What ``exit`` and ``quit`` mean on a rank: IPython's would end it without a word."""

    rewrite = False

    def __call__(self, *_: object) -> None:
        raise RuntimeError(f"exit() {_INSTEAD}")


def explain_exits(shell) -> None:
    """Give ``exit`` and ``quit`` in cells their meaning on a rank."""
    names = {"exit": NoExit(), "quit": NoExit()}
    shell.user_ns.update(names)
    shell.user_ns_hidden.update(names)
    # IPython says so after sys.exit(), which it does not obey.
    warnings.filterwarnings("ignore", message="To exit: use 'exit', 'quit'")
