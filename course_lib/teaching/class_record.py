"""Records a learner's progress for a teacher, if ``COURSE_CLASS`` names a folder for that.

Without the variable nothing is written. With it a line in the notebook announces this once, and
each kernel has one file in the folder, ``NAME.RANDOM.jsonl``, to which only that kernel appends a
line for

- an exercise that was solved or tried, with the name of the mistake;
- a hint or a solution that was asked for;
- a cell that takes longer than some seconds, for how long, and whether all its ranks wait; then
  its end.

No code, output or value is written. With one writer per file and one line per write, a shared
folder over NFS keeps lines whole. A thread writes, and sleeps in between, so a full or unreachable
disk delays no check. ``rank-by-rank class`` reads these files.
"""

from __future__ import annotations

import atexit
import contextlib
import getpass
import json
import os
import queue
import secrets
import sys
import threading
import time
import unicodedata
from pathlib import Path
from typing import Any

FOLDER, NAME = "COURSE_CLASS", "COURSE_CLASS_NAME"
"""The variables: the folder, and the learner's name there."""
KINDS = ("here", "solved", "tried", "hint", "solution", "running", "done")
"""The kinds of lines."""

_PULSE_S = 5.0
_AT_THE_END_S = 2.0
_SAYS = (
    "Your teacher can see how you get on ({folder}): which exercises you try and solve, and when; "
    "the hints you ask for, the names of your mistakes, and cells that run for long. Your code is "
    'never shown. To stop this for this notebook: import os; del os.environ["{variable}"]'
)


def plain(name: str) -> str:
    """Return a learner's name as a short line that can be part of a file's name."""
    kept = (c if unicodedata.category(c)[0] in "LMN" or c in " .@+-" else "_" for c in name)
    return "".join(kept).strip(" .")[:60] or "_"


def pause(seconds: float) -> float:
    """Return when the next sign of life is due from a cell that has run this long."""
    return max(_PULSE_S, seconds / 5)  # so a night has fifty


def begin() -> None:
    """Have this kernel report its cells if the teacher asks for it; otherwise do nothing."""
    global _teller
    if _teller is None and os.environ.get(FOLDER) and not _is_engine():
        print(_SAYS.format(folder=os.environ[FOLDER], variable=FOLDER))
        _teller = _Teller()
        _teller.start()


def note(kind: str, exercise: str, mistake: str = "") -> None:
    """Record what a learner did with an exercise, if records are kept; see :data:`KINDS`."""
    if _teller is not None:
        _teller.tell(kind, exercise=exercise, mistake=mistake)


def checks(exercise: str) -> None:
    """Record which exercise the cell is checking from now on."""
    if _teller is not None:
        _teller.exercise = exercise


class _Teller(threading.Thread):
    """Writes records, and signs of life while a cell runs long.

    Attributes:
        exercise: the one that the running cell checks; empty if it checks none.
    """

    def __init__(self) -> None:
        super().__init__(name="class record", daemon=True)
        name = os.environ.get(NAME) or os.environ.get("JUPYTERHUB_USER") or _account()
        self.exercise = ""
        self._file = f"{plain(name)}.{secrets.token_hex(8)}.jsonl"
        # A line, when a cell began, None where it ends, and {} where the process does.
        self._asked: queue.SimpleQueue[dict[str, Any] | float | None] = queue.SimpleQueue()
        self._ended = threading.Event()
        self._pid = os.getpid()  # a forked child has no such thread
        self._trouble = ""
        self._waited: dict[int, int | None] = {}
        self._listen()
        self.tell("here")

    def _listen(self) -> None:
        atexit.register(self._end)
        if shell := _shell():
            shell.events.register("pre_run_cell", lambda *_: self._put(time.monotonic()))
            shell.events.register("post_run_cell", lambda *_: self._put(None))

    def tell(self, kind: str, **what: Any) -> None:
        self._put(_line(kind, **what))
        if self._trouble:
            print(f"(your teacher's page does not show this: {self._trouble})")
            self._trouble = ""

    def _put(self, what: dict[str, Any] | float | None) -> None:
        if os.getpid() == self._pid:
            self._asked.put(what)

    def _end(self) -> None:
        if os.getpid() == self._pid:
            self._asked.put({})
            self._ended.wait(_AT_THE_END_S)

    def run(self) -> None:
        """Write until the process ends; sleep while there is nothing to write."""
        began: float | None = None
        wait: float | None = None
        said = failed = False
        while True:
            line: dict[str, Any] = {}
            try:
                asked = self._asked.get(timeout=wait)
            except queue.Empty:
                assert began is not None
                lasts = time.monotonic() - began
                what = {"for": round(lasts, 1), "exercise": self.exercise, "hangs": self._hangs()}
                line, said, wait = _line("running", **what), True, pause(lasts)
            else:
                if asked == {}:
                    break
                if isinstance(asked, dict):
                    line = asked
                else:
                    line = _line("done") if said else {}
                    began, wait = asked, None if asked is None else _PULSE_S
                    said, self._waited = False, {}
            try:
                self._write(line)
                failed = False
            except (OSError, RuntimeError) as error:  # RuntimeError: there is no home directory
                self._trouble = self._trouble if failed else f"{error}"
                failed = True
        self._ended.set()

    def _write(self, line: dict[str, Any]) -> None:
        folder = os.environ.get(FOLDER)
        if not line or not folder:
            return
        place = Path(folder).expanduser()
        if folder.startswith("~"):  # the learner's own; one that is shared, the teacher has made
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
        # Closed each time: over NFS others see the line then.
        file = os.open(place / self._file, flags, 0o644)
        try:
            if os.fstat(file).st_size == 0:
                with contextlib.suppress(OSError):  # not every disk knows of permissions
                    os.fchmod(file, 0o644)  # the teacher reads it, whatever the umask
            # An empty line before it parts it from one that a full disk has cut off.
            os.write(file, f"\n{json.dumps(line)}\n".encode())
        finally:
            os.close(file)

    def _hangs(self) -> bool:
        """Return whether each running rank waits in the same call as the last time."""
        before, self._waited = self._waited, _waits()
        waits = self._waited
        return bool(waits) and waits == before and None not in waits.values()


_teller: _Teller | None = None


def _account() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # in a container accounts may have no name
        return f"account {os.getuid()}"


def _line(kind: str, **what: Any) -> dict[str, Any]:
    return {"t": round(time.time(), 1), "is": kind, **what}


def _waits() -> dict[int, int | None]:
    """Return the communication call in which each rank that runs the cell waits."""
    if "ipyranks" not in sys.modules:
        return {}
    from ipyranks import Cluster

    cluster = Cluster.current
    if cluster is None:
        return {}
    try:
        views = cluster.boards.snapshot(cluster.who.engines_of(range(cluster.n)))
    except Exception:  # it ends, or starts again, while it is looked at
        return {}
    return {engine: view.wait for engine, view in views.items() if view.running}


def _shell() -> Any:
    from IPython import get_ipython

    return get_ipython()


def _is_engine() -> bool:
    """Return whether this is a rank: it runs what the notebook sends, and has no learner."""
    kernel = getattr(_shell(), "kernel", None)
    return type(kernel).__module__.startswith("ipyparallel")
