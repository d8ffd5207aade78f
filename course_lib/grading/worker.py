"""Judges answers in a process of its own, which the learner's code may take down with it.

:mod:`.one_notebook` starts it with a connection, sends a task and gets a message as each answer
begins and ends. Answers run as cells of a notebook do, in an IPython shell here or by ``%%px`` on
a cluster that this process starts for them, and are judged by the course's checks.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import sys
import threading
from multiprocessing.connection import Connection
from typing import Any

from course_lib.teaching import checking
from course_lib.teaching.catalogue import find
from course_lib.teaching.checking import CheckError
from course_lib.teaching.exercise import Exercise
from course_lib.teaching.judges.failures import text_of
from course_lib.teaching.run_check import OutOfTimeError

from .processes import bound_account, lower

RANKS = 4
_PID = os.getpid()
_GRACE_S = 2.0  # after this time a cluster ends if its process has died
_LARGEST_FILE = 2 << 30
_LONGEST_TEXT = 4000
_ENDS = {"it-hangs": "hangs", "it-raises": "raised", "does-not-finish": "out of time"}

Found = dict[str, Any]


def main() -> None:
    """Do the task that comes through the connection whose number is the argument."""
    connection = Connection(int(sys.argv[1]))
    os.set_inheritable(connection.fileno(), False)  # not for the processes that answers start
    task = json.loads(connection.recv_bytes())
    _end_with(connection)
    bound_account()
    lower(resource.RLIMIT_CORE, 0)
    lower(resource.RLIMIT_FSIZE, _LARGEST_FILE)
    with contextlib.ExitStack() as stack:
        room = _Room(task["seconds"], stack)
        for number, answer in enumerate(task["answers"]):
            _tell(connection, task["secret"], {"begins": number})
            if find(answer["id"]).where == "engines":
                room.start()
            _tell(connection, task["secret"], {"runs": number})
            found = room.judge(answer)
            _tell(connection, task["secret"], {"ends": number, **found})
            if found.get("lost"):
                break  # another process goes on


def _tell(connection: Connection, secret: str, message: Found) -> None:
    if os.getpid() != _PID:  # an answer has forked: the copy of this process goes on here, too
        os._exit(0)
    # The answers have the number of the connection; they would also need the secret.
    connection.send_bytes(json.dumps({"secret": secret, **message}).encode())


def _end_with(connection: Connection) -> None:
    """End this process, and its cluster soon after, when the grading ends."""

    def wait() -> None:
        with contextlib.suppress(EOFError, OSError):
            connection.recv_bytes()
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=wait, daemon=True).start()


class _Room:
    """Where answers run: a shell, and a cluster once an answer needs one."""

    def __init__(self, seconds: float | None, stack: contextlib.ExitStack) -> None:
        from IPython.core.interactiveshell import InteractiveShell
        from traitlets.config import Config

        settings = Config({"HistoryManager": {"enabled": False}})
        self._shell = InteractiveShell.instance(config=settings)
        self._seconds = seconds
        self._stack = stack
        self._cluster: Any = None

    def start(self) -> None:
        from course_lib.cluster import start_cluster

        if self._cluster is None:
            self._cluster = self._stack.enter_context(
                start_cluster(RANKS, init_process_group=True, grace=_GRACE_S)
            )

    def judge(self, answer: dict[str, str]) -> Found:
        """Return the outcome of an answer; ``lost`` means that this room is now unusable."""
        from ipyranks import ClusterError, RemoteCellError

        exercise = find(answer["id"])
        if self._seconds is not None:
            exercise = exercise._replace(deadline=self._seconds)
        raised = self._run(exercise, answer["support"])
        if raised is not None:
            return _raised("A definition that the cell needs", raised)
        raised = self._run(exercise, answer["code"])
        function = self._shell.user_ns.get(exercise.function)
        if isinstance(raised, ClusterError) and not self._cluster.is_running:
            return _lost("crashed", "it-crashes", raised)
        try:
            verdict, printed, _ = checking.judged(exercise, function)
        except CheckError as error:  # ranks are stuck
            return _lost("out of time", "does-not-finish", error)
        except (ClusterError, RemoteCellError) as error:
            return _lost("crashed", "it-crashes", error)
        kind = "hangs" if verdict.kind == "freed" else verdict.kind
        if kind == "wrong":  # a rehearsal in the check has seen it
            kind = _ENDS.get(verdict.mistake, kind)
        if kind == "undefined" and raised is not None:
            return _raised("The cell", raised)
        note = "" if raised is None else f"The cell itself raised {_short(raised)}."
        try:
            text = checking.sentence(exercise, verdict)
        except CheckError as error:  # the check itself has failed
            return {"kind": "not judged", "text": f"{error}"[-_LONGEST_TEXT:], "note": note}
        if kind != "right" and printed:
            lines = "\n| ".join(["Your function printed:", *printed.splitlines()])
            text += f"\n{lines}"  # marked, or it could look like a verdict
        mistake = "" if kind in ("right", "undefined", "not attempted") else verdict.mistake
        return {"kind": kind, "mistake": mistake, "text": text[:_LONGEST_TEXT], "note": note}

    def _run(self, exercise: Exercise, code: str) -> BaseException | None:
        """Run a cell where the exercise is checked; return the exception it raised."""
        if not code.strip():
            return None
        if exercise.where == "engines":
            code = f"%%px --limit {exercise.deadline:g}\n{code}"
            result = self._shell.run_cell(code)
        else:
            with checking.time_limit(exercise.deadline):
                result = self._shell.run_cell(code)
        return result.error_before_exec or result.error_in_exec


def _raised(what: str, error: BaseException) -> Found:
    if isinstance(error, OutOfTimeError) or type(error).__name__ == "HangError":
        text = f"{what} did not finish: {_short(error)}"
        return {"kind": "out of time", "mistake": "does-not-finish", "text": text}
    return {"kind": "raised", "mistake": "it-raises", "text": f"{what} raised {_short(error)}"}


def _lost(kind: str, mistake: str, error: Exception) -> Found:
    return {"kind": kind, "mistake": mistake, "text": _short(error), "lost": True}


def _short(error: BaseException) -> str:
    first = text_of(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {first}".removesuffix(": ")[:_LONGEST_TEXT]


if __name__ == "__main__":
    main()
