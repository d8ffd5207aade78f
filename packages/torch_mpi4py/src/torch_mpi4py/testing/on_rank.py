"""Runs pytest on a rank: it waits for tests, runs each, and answers with pytest's reports of it.

Collecting, fixtures, marks and rewritten asserts are pytest's own. Only the order of the tests and
each test's folder, which all of its ranks share, come from outside.
"""

from __future__ import annotations

import contextlib
import datetime
import faulthandler
import json
import os
import queue
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .channel import Channel
from .crews import STACK_SIGNAL
from .marks import RanksMark

_RANK = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")


class OnRank:
    """The plugin that makes this pytest a rank's.

    Args:
        config: pytest's.
        address: the socket of the pytest that has started the ranks.

    Attributes:
        rank: of this process.
        size: number of ranks.
    """

    def __init__(self, config: pytest.Config, address: str) -> None:
        self.rank = _own_rank()
        self._config = config
        self._folder = Path(address).parent
        self._order: dict[str, Any] = {}
        self._expected = ""  # the test whose fixtures are still set up
        self._found: dict[str, dict[str, pytest.Item]] = {}  # by file, then by id
        self._reports: list[pytest.TestReport] = []
        self._errors: list[str] = []
        self._wrong: dict[str, list[str]] = {}  # errors of collecting, by file
        self._print_into(self._folder / f"output.{self.rank}")
        plan = json.loads((self._folder / "plan.json").read_text())
        self.size: int = plan["size"]
        for name, value in plan["options"].items():
            setattr(config.option, name, value)
        config.option.basetemp = str(self._folder / f"tmp.{self.rank}")
        self._stacks = open(self._folder / f"stacks.{self.rank}", "w")  # noqa: SIM115
        faulthandler.register(STACK_SIGNAL, self._stacks, all_threads=True)
        connected = socket.socket(socket.AF_UNIX)
        connected.connect(address)
        self._channel = Channel(connected, None)
        self._orders: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()

    @staticmethod
    def _print_into(path: Path) -> None:
        """Send all output of this process to a file that outlives it."""
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
            os.dup2(file, stream.fileno())
            stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
        os.close(file)

    # --- one test after another -----------------------------------------------------------

    def pytest_collection(self) -> bool:
        """Collect nothing yet."""
        return True

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run the requested tests until there are no more."""
        here = {"host": socket.gethostname(), "pid": os.getpid(), "shell": os.getppid()}
        self._channel.send({"rank": self.rank, **here})
        threading.Thread(target=self._listen, daemon=True).start()
        while order := self._orders.get():
            self._channel.send(self._answer(session, order))
        return True

    def _listen(self) -> None:
        """Receive messages, and end this process if the pytest that started it is gone."""
        while order := self._channel.receive():
            self._orders.put(order)
        if order is None:
            os._exit(1)
        self._orders.put(order)

    def _answer(self, session: pytest.Session, order: dict[str, Any]) -> dict[str, Any]:
        if "imports" in order:
            self._reports = []
            for file in order["imports"]:
                self._collect(session, file)
            return self._reported()
        return self._reported(problem=self._run(session, order))

    def _reported(self, problem: str = "", tears_down: bool = False) -> dict[str, Any]:
        """Return the answer about the test."""
        return {
            "reports": list(map(self._as_json, self._reports)),
            "problem": problem,
            "failed": bool(problem) or any(report.failed for report in self._reports),
            "tears_down": tears_down,
        }

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_teardown(self) -> None:
        """Tear nothing down before all ranks have reached the end of the test."""
        self._channel.send(self._reported(tears_down=True))
        if not self._orders.get():
            pytest.exit("the ranks are to end")

    def _collect(self, session: pytest.Session, file: str) -> None:
        self._errors = []
        items = session.perform_collect([file])
        self._found[file] = {item.nodeid: item for item in items}
        self._wrong[file] = self._errors

    def _run(self, session: pytest.Session, order: dict[str, Any]) -> str:
        """Run a test; return why it could not be run, empty if it was."""
        self._order, self._reports = order, []
        if self._expected != order["test"]:
            session._setupstate.teardown_exact(None)
        item = self._found[order["file"]].get(order["test"])
        if item is None:
            self._expected = ""
            return self._why_not_found(order)
        following = self._found.get(order["next_file"], {}).get(order["next_test"])
        self._expected = order["next_test"] if following else ""
        self._config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        return ""

    def _why_not_found(self, order: dict[str, Any]) -> str:
        if self._wrong[order["file"]]:
            return "\n".join(self._wrong[order["file"]])
        there = [f"  {name}" for name in self._found[order["file"]]]
        return "\n".join(
            [
                f"pytest finds no {order['test']} on this rank. Tests must have the same names in "
                "all processes: don't build parameters from random numbers, times, sets or ranks. "
                "There are:",
                *there[:20],
                *(["  ..."] * (len(there) > 20)),
            ]
        )

    def _as_json(self, report: pytest.TestReport) -> dict[str, Any]:
        made = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        return json.loads(json.dumps(made, default=str))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep pytest's reports of the test."""
        self._reports.append(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Keep the error of collecting it."""
        if report.failed:
            self._errors.append(report.longreprtext)

    # --- fixtures -------------------------------------------------------------------------

    @pytest.fixture
    def tmp_path(self) -> Path:
        """Return a new folder, the same on all ranks of the test."""
        return Path(self._order["tmp_path"])

    @pytest.fixture(autouse=True)
    def _process_group(self, request: pytest.FixtureRequest) -> Iterator[None]:
        """Make the default process group if the mark names a backend; destroy any at the end."""
        mark = RanksMark.of(request.node)
        if mark is not None and mark.backend:
            self._start_group(mark.backend, mark.group_seconds)
        yield
        torch = sys.modules.get("torch")
        if torch is not None and torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()

    def _start_group(self, backend: str, seconds: float) -> None:
        import torch.distributed as dist

        timeout = datetime.timedelta(seconds=seconds)
        if "mpi4py" in backend:
            dist.init_process_group(backend, init_method="mpi://", timeout=timeout)
            return
        store = dist.FileStore(str(self._folder / f"store.{self._order['number']}"), self.size)
        dist.init_process_group(
            backend, store=store, rank=self.rank, world_size=self.size, timeout=timeout
        )


def _own_rank() -> int:
    """Return the rank that the launcher gave this process."""
    for name in _RANK:
        with contextlib.suppress(KeyError):
            return int(os.environ[name])
    raise pytest.UsageError(f"this MPI's launcher sets none of {', '.join(_RANK)}")
