"""Runs answers as a learner runs them, in a process of its own that may be lost.

A mutant may wait indefinitely, end its rank or never return from a library. Each has a deadline,
which the check itself keeps. If it does not, the process is ended from outside together with its
cluster, and the next mutant gets a new one.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import linecache
import multiprocessing
import os
import re
import signal
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from course_lib.teaching import catalogue
from course_lib.teaching.catalogue import find
from course_lib.teaching.checking import CheckError, check

from .changes import NOTHING_TO_CHANGE, RANKS

_MORE_THAN_THE_CHECK_S = 60.0  # to start a cluster, and to repair one
_ENDS_WITHIN_S = 15.0
_GRACE_S = 2.0  # after this time a cluster ends if its notebook has died

# How a trial ends.
RIGHT, BROKEN, LOST, VOID = "right", "broken", "lost", "void"


@dataclass(frozen=True)
class Outcome:
    """The outcome of an answer.

    Attributes:
        kind: :data:`RIGHT`; the name of the mistake; :data:`BROKEN`: the check itself failed;
            :data:`LOST`: its ranks or its process had to be ended; :data:`VOID`: no such mutant.
        said: the message to the learner.
    """

    kind: str
    said: str
    seconds: float


def told(id: str, code: str, cluster: Any, deadline: float | None = None) -> str:
    """Return the output of ``check`` when the learner's cell holds ``code``."""
    code = code.removeprefix("%%px\n")
    exercise = find(id)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        if exercise.where == "engines":
            cluster.view.execute(code, silent=True)
            check(id, deadline=deadline)
        else:
            cell: dict[str, Any] = {}
            lines = code.splitlines(keepends=True)
            linecache.cache["<cell>"] = len(code), None, lines, "<cell>"
            exec(compile(code, "<cell>", "exec"), cell)
            check(id, cell[exercise.function], deadline=deadline)
    return printed.getvalue().strip()


def kind_of(id: str, said: str) -> str:
    """Return the kind of outcome behind a message to the learner."""
    if said.startswith(f"{id}: right."):
        return RIGHT
    if NOTHING_TO_CHANGE in said:
        return VOID
    mistake = re.search(r"\(([a-z0-9-]+)\)$", said.splitlines()[0]) if said else None
    return mistake[1] if mistake else "not-attempted"


class Trials:
    """Tries answers one after another; a context manager."""

    def __init__(self, packages: list[str]):
        self._packages = packages
        self._process: Any = None
        self._connection: Any = None

    def __enter__(self) -> Trials:
        return self

    def __exit__(self, *reason: object) -> None:
        self.end()

    def run(self, id: str, code: str, deadline: float) -> Outcome:
        """Return the check's outcome for the cell ``code``, within about ``deadline`` seconds."""
        if self._process is None:
            self._start()
        began = time.monotonic()
        try:
            self._connection.send((id, code, deadline))
            if self._connection.poll(deadline + _MORE_THAN_THE_CHECK_S):
                return self._connection.recv()
            said = "it did not come back"
        except (EOFError, ConnectionError) as error:
            said = f"its process has ended: {type(error).__name__}"
        self.end()
        return Outcome(LOST, said, time.monotonic() - began)

    def _start(self) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._connection, theirs = spawn.Pipe()
        self._process = spawn.Process(target=_serve, args=(theirs, self._packages))
        self._process.start()
        theirs.close()

    def end(self) -> None:
        """End the process and its cluster; by force if it does not end by itself."""
        if self._process is None:
            return
        self._connection.close()
        self._process.join(_ENDS_WITHIN_S)
        if self._process.exitcode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.join(_ENDS_WITHIN_S)
        self._process.close()
        self._process = None


# ---- in the process ---------------------------------------------------------------------------


def _serve(connection: Connection, packages: list[str]) -> None:
    os.setsid()
    os.environ["IPP_NONINTERACTIVE"] = "1"
    catalogue.PACKAGES[:] = packages
    importlib.import_module("torch")  # it takes seconds, and is spoiled when a deadline ends it
    with _OwnCluster() as own:
        while True:
            try:
                id, code, deadline = connection.recv()
            except EOFError:  # no more
                return
            began = time.monotonic()
            kind, said = _tried(own, id, code, deadline)
            connection.send(Outcome(kind, said, time.monotonic() - began))


def _tried(own: _OwnCluster, id: str, code: str, deadline: float) -> tuple[str, str]:
    from ipyranks import ClusterError, RemoteCellError

    cluster = own.get() if find(id).where == "engines" else None
    try:
        said = told(id, code, cluster, deadline)
    except CheckError as error:
        own.end()
        failed = any(words in str(error) for words in ("itself failed", "cannot judge"))
        return (BROKEN if failed else LOST), str(error)
    except (ClusterError, RemoteCellError) as error:
        own.end()
        return LOST, str(error)
    except Exception as error:  # the cell, which defines the function
        return "it-raises", f"{type(error).__name__}: {error}"
    return kind_of(id, said), said


class _OwnCluster:
    """The cluster of this process, started when it is first used."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._cluster: Any = None

    def __enter__(self) -> _OwnCluster:
        return self

    def __exit__(self, *reason: object) -> None:
        self.end()

    def get(self) -> Any:
        from course_lib.cluster import start_cluster

        if self._cluster is None:
            with contextlib.redirect_stdout(io.StringIO()):
                cluster = start_cluster(
                    RANKS, init_process_group=True, replace=True, grace=_GRACE_S
                )
            self._cluster = self._stack.enter_context(cluster)
            cluster.view.execute("from mpi4py import MPI", silent=True)
        return self._cluster

    def end(self) -> None:
        self._cluster = None
        with contextlib.redirect_stdout(io.StringIO()):
            self._stack.close()
