"""Counts, bounds and ends all descendants of a process, wherever they have moved.

They have a variable in their environment, which descendants inherit, even those that have left
their parents and their session. If this account may make a cgroup for them, that bounds their
number, and also finds those that have changed their environment. Otherwise the account's limit of
processes bounds their number, which does not apply to root.
"""

from __future__ import annotations

import contextlib
import os
import resource
import secrets
import signal
import time
from pathlib import Path

import psutil

MARK = "RANK_BY_RANK_GRADES"
MOST_TASKS = 1000  # processes and threads; a cluster has about 80
_CGROUPS = Path("/sys/fs/cgroup")
_ENDS_WITHIN_S = 15.0


class Family:
    """Processes that can be found again.

    Attributes:
        mark: the value of their variable :data:`MARK`.
        bounded: whether something bounds their number.
    """

    def __init__(self) -> None:
        self.mark = secrets.token_hex(8)
        self._group = _make_group(self.mark)
        self.bounded = self._group is not None or os.getuid() != 0

    def adopt(self, pid: int) -> None:
        """Add a process that has started nothing yet."""
        if self._group is not None:
            (self._group / "cgroup.procs").write_text(f"{pid}")

    def living(self) -> list[psutil.Process]:
        """Return its processes, but no zombies."""
        listed = set[int]()
        if self._group is not None:
            listed = set(map(int, (self._group / "cgroup.procs").read_text().split()))
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(
                psutil.Error, OSError
            ):  # the process has ended, or is another user's
                known = process.pid in listed or process.environ().get(MARK) == self.mark
                if known and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def size(self) -> tuple[int, int]:
        """Return how many processes live, and the bytes of memory that they have."""
        living, resident = self.living(), 0
        for process in living:
            with contextlib.suppress(psutil.Error):  # the process has ended
                resident += process.memory_info().rss
        return len(living), resident

    def end(self) -> None:
        """End all of them, even a fork bomb: first all are stopped, then all are killed."""
        until = time.monotonic() + _ENDS_WITHIN_S
        hit: set[psutil.Process] = set()
        for signum in (signal.SIGSTOP, signal.SIGKILL):
            hit.clear()
            while (fresh := set(self.living()) - hit) and time.monotonic() < until:
                for process in fresh:
                    with contextlib.suppress(psutil.Error):  # the process has ended
                        process.send_signal(signum)
                hit |= fresh
        psutil.wait_procs(list(hit), timeout=_ENDS_WITHIN_S)

    def forget(self) -> None:
        """Remove the group; all of its processes must have ended, and been reaped."""
        if self._group is not None:
            until = time.monotonic() + _ENDS_WITHIN_S
            while (self._group / "cgroup.procs").read_text() and time.monotonic() < until:
                time.sleep(0.05)  # the kernel does not announce the end of a group
            self._group.rmdir()
            self._group = None


def something_bounds_them() -> bool:
    """Tell whether a cgroup or the account bounds how many processes learners' code starts."""
    family = Family()
    family.forget()
    return family.bounded


def bound_account() -> None:
    """Limit this process and its descendants to :data:`MOST_TASKS` more than the account has."""
    if os.getuid() == 0:  # it is not bound by this
        return
    tasks = 0
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):  # the process has ended
            if process.uids().real == os.getuid():
                tasks += process.num_threads()
    lower(resource.RLIMIT_NPROC, tasks + MOST_TASKS)


def lower(limit: int, value: int) -> None:
    """Set a limit of this process and its descendants, unless it is lower already."""
    _, hard = resource.getrlimit(limit)
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(limit, (value, value))


def _make_group(name: str) -> Path | None:
    """Return a new cgroup that may have :data:`MOST_TASKS`, of version 1 or 2, below our own."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except FileNotFoundError:  # no Linux
        return None
    for _, controllers, path in (line.split(":", 2) for line in lines):
        if controllers not in ("", "pids"):
            continue
        group = _CGROUPS / controllers / path.lstrip("/") / f"rank-by-rank-{name}"
        with contextlib.suppress(OSError):  # it is not ours to make
            group.mkdir()
            try:
                (group / "pids.max").write_text(f"{MOST_TASKS}")
                return group
            except OSError:  # the controller is not on here
                group.rmdir()
    return None
