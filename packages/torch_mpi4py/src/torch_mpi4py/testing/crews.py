"""Crews: sets of ranks that are kept for many tests, because starting one takes seconds.

Each rank connects to a socket, gets one test after another, and answers with pytest's reports of
it. The next test is sent only when all have answered, so tests never overlap. A rank that fails,
dies or does not answer in time spoils its crew, which is ended. The next test gets a new one.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..board.hang_report import HangReport
from ..board.observing import RankBoards
from ..launch import NoMPIError
from .channel import Channel
from .program_run import ProgramRun

__all__ = ["SOCKET", "Answer", "Crew", "CrewError", "Result"]

SOCKET = "RANKS_SOCKET"
"""The variable by which a rank finds pytest."""
STACK_SIGNAL = signal.SIGUSR1
"""Makes a rank write the Python stacks of its threads."""

_START_S = 180.0  # imports of torch on a machine whose cores are busy
_MESSAGE_S = 30.0
_OTHERS_S = 5.0  # for the others to report a failure or death
_STACKS_S = 2.0
_LAST_WORDS_S = 2.0
_LEAVE_S = 90.0  # longer than MPI may take to end
_LOOK_S = 0.1
# The shell stays the parent of its rank, records how it ended, which a fault tolerant MPI does not
# report, and ends in the same way: the others are told only of a signal.
_AND_TELL = (
    '"$@"; status=$?; echo $status > "$0.$$"; '
    "[ $status -le 128 ] || kill -$((status - 128)) $$; exit $status"
)


class CrewError(Exception):
    """A crew did not start; the message says why."""


@dataclass(frozen=True)
class Answer:
    """The outcome of a test on one rank.

    Attributes:
        rank: which one.
        reports: pytest's reports of the test, ready for JSON; empty if it has not ended.
        problem: why the rank did not run the test, if it did not.
        is_done: whether it has torn down the test's set-up and waits for the next one.
        ended: how its process ended, e.g. "was killed by SIGKILL", empty if it lives.
        stacks: its Python stacks, if it has not ended the test.
        output: its printed output.
    """

    rank: int
    reports: Sequence[dict[str, Any]] = ()
    problem: str = ""
    is_done: bool = False
    ended: str = ""
    stacks: str = ""
    output: str = ""

    @property
    def came(self) -> bool:
        """Whether the rank has come to the end of the test."""
        return bool(self.reports or self.problem)

    @property
    def failed(self) -> bool:
        """Whether the test has failed there."""
        return bool(self.problem) or any(one["outcome"] == "failed" for one in self.reports)


@dataclass(frozen=True)
class Result:
    """The outcome of a test on all ranks.

    Attributes:
        answers: one of each rank.
        seconds: how long it took.
        hang: what every rank was doing, if some did not reach the end and can be observed.
        launcher: the output of mpiexec itself.
    """

    answers: Sequence[Answer]
    seconds: float
    hang: str = ""
    launcher: str = ""

    @property
    def stuck(self) -> list[int]:
        """The ranks that have not come to the end: of the test, or else of tearing it down."""
        in_test = [one.rank for one in self.answers if not one.came]
        return in_test or [one.rank for one in self.answers if not one.is_done]

    @property
    def is_good(self) -> bool:
        """Whether all ranks have come to the end, and none has failed."""
        return not self.stuck and not any(one.failed for one in self.answers)


@dataclass
class _Rank:
    """A rank, as its crew knows it."""

    host: str
    pid: int
    shell: int
    channel: Channel
    printed: int = 0  # bytes that belong to earlier tests
    lost: bool = False

    def tell(self, message: Mapping[str, Any]) -> None:
        """Send it a message; a lost rank will be noticed when its answer is read."""
        with contextlib.suppress(OSError):
            self.channel.send(message)


@dataclass
class Crew:
    """Ranks that run tests.

    Args:
        size: number of ranks.
        arguments: of the pytest that each rank runs.
        variables: more for the ranks' environment. They also choose the MPI.
        options: options of pytest that its ranks take over.
        cwd: the folder in which they start.

    Raises:
        CrewError: if they do not start.
    """

    size: int
    arguments: Sequence[str]
    variables: Mapping[str, str]
    options: Mapping[str, Any]
    cwd: Path
    spoilt: bool = False
    _ranks: dict[int, _Rank] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="ranks-"))
        plan = {"size": self.size, "options": dict(self.options)}
        (self.folder / "plan.json").write_text(json.dumps(plan))
        self._boards = RankBoards(self.folder / "boards")
        self._number = 0
        self._imported: set[str] = {""}
        self._launcher = open(self.folder / "mpiexec", "w+", errors="replace")  # noqa: SIM115
        try:
            self._start()
        except BaseException:
            self.kill()
            raise

    # --- the start ------------------------------------------------------------------------

    def _start(self) -> None:
        address = str(self.folder / "socket")
        python = [sys.executable, *([] if str(self.cwd) in sys.path else ["-P"]), "-m", "pytest"]
        ours = {SOCKET: address, "TORCH_MPI4PY_EVENTS_DIR": str(self._boards.directory)}
        variables = dict(self.variables) | ours | {"PYTEST_ADDOPTS": ""}
        # No launcher passes unknown variables to another host.
        given = ["env", *(f"{name}={value}" for name, value in variables.items())]
        told = ["sh", "-c", _AND_TELL, str(self.folder / "status"), *given]
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(address)
            listening.listen(self.size)
            listening.settimeout(_LOOK_S)
            try:
                self._run = ProgramRun(
                    self.size,
                    *(*told, *python, *self.arguments),
                    output=self._launcher,
                    variables=variables,
                    cwd=self.cwd,
                )
            except NoMPIError as error:
                raise CrewError(str(error)) from error
            deadline = time.monotonic() + _START_S
            while len(self._ranks) < self.size:
                with contextlib.suppress(TimeoutError):
                    self._welcome(listening.accept()[0])
                if self._run.process.poll() is not None or time.monotonic() > deadline:
                    raise CrewError(self._why_not_started())

    def _welcome(self, connected: socket.socket) -> None:
        channel = Channel(connected, _MESSAGE_S)
        who = channel.receive()
        if who is not None:
            self._ranks[who["rank"]] = _Rank(who["host"], who["pid"], who["shell"], channel)

    def _why_not_started(self) -> str:
        status = self._run.process.poll()
        how = f"mpiexec ended with status {status}" if status is not None else "mpiexec still runs"
        missing = sorted(set(range(self.size)) - set(self._ranks))
        printed = [f"--- rank {rank} ---\n{self._printed(rank)}" for rank in missing]
        return "\n".join(
            [f"ranks {missing} of {self.size} did not start; {how}", self._said(), *printed]
        )

    # --- a test ---------------------------------------------------------------------------

    def run(self, order: Mapping[str, Any], seconds: float) -> Result:
        """Have all ranks run a test, and wait at most ``seconds`` for it.

        The time to import its file does not count.

        Args:
            order: the description of it for :mod:`.on_rank`.
        """
        self._number += 1
        self.spoilt = True  # unless all goes well, or if this is interrupted
        for number, rank in self._ranks.items():
            rank.printed = (self.folder / f"output.{number}").stat().st_size
        began, clock = time.monotonic(), time.perf_counter()
        answers: dict[int, dict[str, Any]] = {}
        if self._is_ready(order):
            began, clock = time.monotonic(), time.perf_counter()
            answers = self._ask(dict(order) | {"number": self._number}, seconds)
        known = {
            number: Answer(number, said["reports"], said["problem"], not said["tears_down"])
            for number, said in answers.items()
        }
        result = Result(
            [known.get(number) or Answer(number) for number in range(self.size)],
            time.monotonic() - began,
            launcher=self._said(),
        )
        if result.is_good:
            self.spoilt = False
            return self._with_output(result)
        return self._with_output(self._looked_at(result, clock))

    def _is_ready(self, order: Mapping[str, Any]) -> bool:
        """Have all ranks import the files of a test and the next one; return whether they have."""
        new = [file for file in (order["file"], order["next_file"]) if file not in self._imported]
        if not new:
            return True
        self._imported.update(new)
        return len(self._ask({"imports": new}, _START_S)) == self.size

    def _ask(self, message: Mapping[str, Any], seconds: float) -> dict[int, dict[str, Any]]:
        """Send all ranks a message, and return the answers of those that gave one.

        A rank answers twice for a test. None tears down its set-up before all have ended the test:
        another rank may still wait for, say, its process group.
        """
        deadline = time.monotonic() + seconds
        answers: dict[int, dict[str, Any]] = {}
        self._tell_all(message)
        with selectors.DefaultSelector() as waiting:
            for number, rank in self._ranks.items():
                waiting.register(rank.channel, selectors.EVENT_READ, number)
            while waiting.get_map() and (left := deadline - time.monotonic()) > 0:
                for key, _ in waiting.select(left):
                    number, rank = key.data, self._ranks[key.data]
                    said = rank.channel.receive()
                    rank.lost = said is None
                    if said is not None:
                        answers[number] = said
                    if said is None or not said["tears_down"]:
                        waiting.unregister(rank.channel)
                    elif len(answers) == self.size:
                        self._tell_all({"tear_down": True})
                    if said is None or said["failed"]:
                        deadline = min(deadline, time.monotonic() + _OTHERS_S)
                lost = {number for number, rank in self._ranks.items() if rank.lost}
                if lost and len(answers.keys() | lost) == self.size:
                    break  # the others wait for the lost before they tear down
        return answers

    def _tell_all(self, message: Mapping[str, Any]) -> None:
        for rank in self._ranks.values():
            rank.tell(message)

    def _looked_at(self, result: Result, began: float) -> Result:
        """Add what the ranks that did not reach the end were doing, and how the dead died."""
        if not result.stuck:
            return result
        living = [number for number in result.stuck if not self._ranks[number].lost]
        hang = self._hang_report(result, began) if living else ""
        stacks = self._stacks(living)
        answers = [
            replace(
                one,
                ended=self._how_ended(one.rank) if self._ranks[one.rank].lost else "",
                stacks=stacks.get(one.rank, ""),
            )
            for one in result.answers
        ]
        return replace(result, answers=answers, hang=hang, launcher=self._said())

    def _hang_report(self, result: Result, began: float) -> str:
        """The state of the ranks on the boards since the test began; empty if there are none."""
        if not all(self._boards.board(number) for number in range(self.size)):
            return ""
        numbers = {number: number for number in range(self.size)}
        seen = []
        for one in result.answers:
            state = self._boards.state(
                one.rank,
                one.rank,
                numbers,
                alive=not self._ranks[one.rank].lost,
                ask_site=lambda: "",
            )
            seen.append(
                replace(
                    state,
                    past=tuple(event for event in state.past if event.start >= began),
                    seconds=time.perf_counter() - began,
                    running=one.rank in result.stuck,
                    outcome=_error_of(one),
                )
            )
        return HangReport.of(seen).text()

    def _stacks(self, ranks: Sequence[int]) -> dict[int, str]:
        """The Python stacks of living ranks, if they write them in time."""
        ranks = [number for number in ranks if self._ranks[number].host == socket.gethostname()]
        for number in ranks:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._ranks[number].pid, STACK_SIGNAL)
        found: dict[int, str] = {}
        deadline = time.monotonic() + _STACKS_S
        while time.monotonic() < deadline:
            now = {number: _text(self.folder / f"stacks.{number}") for number in ranks}
            if all(now.values()) and now == found:
                break
            found = now
            time.sleep(_LOOK_S)
        return found

    def _how_ended(self, number: int) -> str:
        """How the process of a lost rank ended, in the words of its shell."""
        path = self.folder / f"status.{self._ranks[number].shell}"
        _until(lambda: bool(_text(path).strip()), _LAST_WORDS_S)
        status = int(_text(path).strip() or -1)
        if status < 0:
            return "has gone"
        if status <= 128:
            return f"ended with status {status}"
        with contextlib.suppress(ValueError):
            return f"was killed by {signal.Signals(status - 128).name}"
        return f"ended with status {status}"

    # --- what is printed ------------------------------------------------------------------

    def _with_output(self, result: Result) -> Result:
        answers = [replace(one, output=self._printed(one.rank)) for one in result.answers]
        return replace(result, answers=answers)

    def _printed(self, number: int) -> str:
        rank = self._ranks.get(number)
        try:
            with open(self.folder / f"output.{number}", errors="replace") as file:
                file.seek(rank.printed if rank else 0)
                return file.read()
        except FileNotFoundError:
            return ""

    def _said(self) -> str:
        return _text(self.folder / "mpiexec").strip()

    # --- the end --------------------------------------------------------------------------

    def close(self) -> str:
        """End the ranks, kill those that do not end, and return any error, empty if none.

        A spoilt crew can't be expected to end by itself, so it is killed.
        """
        if self.spoilt:
            self.kill()
            return ""
        self._tell_all({})
        status: int | None = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            status = self._run.process.wait(_LEAVE_S)
        left = self._run.end()
        wrong = []
        if status != 0 or left:
            how = "did not end" if status is None else f"ended with status {status}"
            printed = [f"--- rank {n} ---\n{self._printed(n)}" for n in self._ranks]
            wrong = [f"the end of {self.size} ranks: mpiexec {how}; left behind: {left}"]
            wrong += [self._said(), *printed]
        self._tidy()
        return "\n".join(wrong)

    def kill(self) -> None:
        """Kill the ranks."""
        if hasattr(self, "_run"):
            self._run.kill()
        self._tidy()

    def _tidy(self) -> None:
        for rank in self._ranks.values():
            rank.channel.close()
        self._launcher.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def _error_of(answer: Answer) -> str:
    """The last line of an error, as in a report on all ranks; empty if there is none."""
    if answer.problem:
        return "the test was not found"
    crashes = [
        one["longrepr"]["reprcrash"]["message"]
        for one in answer.reports
        if one["outcome"] == "failed" and isinstance(one["longrepr"], dict)
    ]
    return crashes[0].partition("\n")[0] if crashes else "failed" * answer.failed


def _until(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except FileNotFoundError:
        return ""
