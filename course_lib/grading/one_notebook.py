"""Judges the answers of one notebook in processes of its own, and ends all of them.

A :mod:`.worker` judges one answer after another. If it dies, takes too long, or starts more
processes or uses more memory than any answer needs, that is the outcome of the running answer, and
another worker continues with the next one.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

from ipyranks.runtime_dir import sweep_stale

from course_lib.teaching.catalogue import find

from .answers import Answer
from .outcomes import KINDS, Outcome
from .processes import MARK, Family

MOST_PROCESSES = 150  # a cluster has 7
MOST_BYTES = 6 << 30  # resident, of all processes; a cluster has 1 to 2 GB
START_SECONDS = 600.0  # of a cluster, on a busy machine
_LOOK_EVERY_S = 0.5
_MORE_THAN_THE_CHECK_S = 60.0  # to free ranks and renew their communication
_ENDS_WITHIN_S = 15.0
_LONGEST_MESSAGE = 1 << 20
_FORGED = "Its process sent a verdict that no check gave."


class StoppedError(Exception):
    """The grading was interrupted."""


def judge(
    answers: list[Answer], seconds: float | None, stopping: threading.Event
) -> Iterator[Outcome]:
    """Yield the outcome of each answer.

    Args:
        seconds: how long a check may take; by default as long as its exercise allows.
        stopping: once it is set, everything ends.

    Raises:
        StoppedError: if ``stopping`` was set.
    """
    left = []
    for answer in answers:
        if answer.kind:
            yield Outcome(answer.id, answer.kind, note=answer.note)
        else:
            left.append(answer)
    while left:
        with _Worker(left, seconds, stopping) as worker:
            for outcome in worker.outcomes():
                yield outcome
                left.pop(0)


class _Worker:
    """A process that judges answers; a context manager that leaves nothing of it behind."""

    def __init__(self, answers: list[Answer], seconds: float | None, stopping: threading.Event):
        self._answers = answers.copy()
        self._seconds = seconds
        self._stopping = stopping
        self._family, self._secret = Family(), secrets.token_hex(16)

    def __enter__(self) -> _Worker:
        self._folder = tempfile.TemporaryDirectory(prefix="grade-", ignore_cleanup_errors=True)
        self._connection, theirs = Pipe()
        variables = {
            **os.environ,
            MARK: self._family.mark,
            "IPYRANKS_RUNTIME_DIR": tempfile.gettempdir(),
            "IPP_NONINTERACTIVE": "1",
            "COURSE_CLUSTER": "local",
            "COURSE_WORKSPACE": str(Path(self._folder.name) / "none"),  # no record of progress
            "IPYTHONDIR": self._folder.name,
            "TMPDIR": self._folder.name,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        }
        with theirs:
            number = theirs.fileno()
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", f"{__package__}.worker", f"{number}"],
                pass_fds=[number],
                cwd=self._folder.name,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        self._family.adopt(self._process.pid)
        return self

    def __exit__(self, *reason: object) -> None:
        # It stops its cluster by itself, unless it was lost.
        with contextlib.suppress(subprocess.TimeoutExpired):
            if reason[0] is None:
                self._process.wait(_ENDS_WITHIN_S)
        self._end()
        self._family.forget()
        sweep_stale()
        self._connection.close()
        self._folder.cleanup()

    def outcomes(self) -> Iterator[Outcome]:
        """Yield the outcomes of the answers, until one ends the worker."""
        task = {
            "secret": self._secret,
            "seconds": self._seconds,
            "answers": [asdict(answer) for answer in self._answers],
        }
        with contextlib.suppress(BrokenPipeError):
            self._connection.send_bytes(json.dumps(task).encode())
        for number, answer in enumerate(self._answers):
            began = time.monotonic()
            found = self._found(number, answer)
            taken = round(time.monotonic() - began, 1)
            lost = found.pop("lost", False)
            notes = " ".join(filter(None, [answer.note, found.pop("note", "")]))
            yield Outcome(answer.id, **found, note=notes, seconds=taken)
            if lost:
                self._end()
                return

    def _found(self, number: int, answer: Answer) -> dict[str, Any]:
        try:
            self._message({"begins": number}, START_SECONDS)
            self._message({"runs": number}, START_SECONDS)
            deadline = find(answer.id).deadline if self._seconds is None else self._seconds
            # Two cells, which have the same limit, and the check.
            return self._message({"ends": number}, 3 * deadline + _MORE_THAN_THE_CHECK_S)
        except _LostError as error:
            return error.found | {"lost": True}

    def _message(self, expected: dict[str, int], seconds: float) -> dict[str, Any]:
        """Return the content of an expected message.

        Raises:
            _LostError: if something else comes, or nothing.
        """
        until = time.monotonic() + seconds
        while not self._connection.poll(_LOOK_EVERY_S):
            if self._stopping.is_set():
                raise StoppedError
            self._look_at_the_family()
            if time.monotonic() > until:
                text = f"It was stopped from outside, {seconds:g} s after it had begun."
                raise _LostError("out of time", "does-not-finish", text)
        try:
            message = json.loads(self._connection.recv_bytes(_LONGEST_MESSAGE))
        except (EOFError, OSError, ValueError):
            raise _LostError("crashed", "it-crashes", self._how_it_ended()) from None
        right = isinstance(message, dict) and message.pop("secret", "") == self._secret
        if not right or not expected.items() <= message.items():
            raise _LostError("crashed", "it-crashes", _FORGED)
        found = {key: value for key, value in message.items() if key not in expected}
        if "ends" in expected and found.get("kind") not in KINDS:
            raise _LostError("crashed", "it-crashes", _FORGED)
        return found

    def _how_it_ended(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_ENDS_WITHIN_S)
        status = self._process.returncode
        if status is None:
            return "Its process closed the connection to the grader."
        if status < 0:
            names = {one.value: one.name for one in signal.Signals}  # no real-time signals
            return f"Its process was killed by {names.get(-status, f'signal {-status}')}."
        return f"Its process ended with status {status} before it sent a verdict."

    def _look_at_the_family(self) -> None:
        processes, resident = self._family.size()
        if processes > MOST_PROCESSES or resident > MOST_BYTES:
            size = f"{processes} processes with {resident / (1 << 30):.1f} GiB of memory"
            text = f"It had {size}, more than any answer needs, and was stopped."
            raise _LostError("crashed", "it-crashes", text)

    def _end(self) -> None:
        self._family.end()
        self._process.wait(_ENDS_WITHIN_S)


class _LostError(Exception):
    def __init__(self, kind: str, mistake: str, text: str) -> None:
        super().__init__(text)
        self.found = {"kind": kind, "mistake": mistake, "text": text}
