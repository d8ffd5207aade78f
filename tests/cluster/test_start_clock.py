"""The deadline of a start counts the time of its own, not what it waits for a core."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from course_lib.cluster import StartError
from course_lib.cluster.notebook_client import NotebookClient
from course_lib.cluster.start_clock import StartClock

pytestmark = pytest.mark.timeout(270)

linux = pytest.mark.skipif(
    not os.path.exists("/proc/self/schedstat"), reason="the system does not tell who waits"
)


@contextlib.contextmanager
def computing(count: int) -> Iterator[list[int]]:
    """Run some processes that always want a core; give their ids."""
    command = [sys.executable, "-S", "-c", "while True: pass"]
    processes = [subprocess.Popen(command) for _ in range(count)]
    try:
        yield [process.pid for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def watched(clock: StartClock, pids: list[int], seconds: float) -> float:
    """Have a clock look at processes for some seconds; return the time at the end."""
    until = time.monotonic() + seconds
    while (now := time.monotonic()) < until:
        clock.look(now, pids)
        time.sleep(0.1)
    return now


@linux
def test_waiting_for_a_core_does_not_count() -> None:
    with computing(8 * (os.cpu_count() or 1)) as pids:
        clock = StartClock(time.monotonic(), usual=2.0, most=600.0)
        now = watched(clock, pids, 4.0)
        assert clock.own < 0.5 * clock.seconds(now)
        assert clock.crowded
        assert not clock.is_over(now)


@linux
def test_sleeping_counts_in_full() -> None:
    sleeper = subprocess.Popen(["sleep", "60"])
    try:
        clock = StartClock(time.monotonic(), usual=2.0, most=600.0)
        now = watched(clock, [sleeper.pid], 3.0)
        assert clock.own > 0.9 * clock.seconds(now) - 0.2
        assert not clock.crowded
        assert clock.is_over(now)
    finally:
        sleeper.kill()
        sleeper.wait()


def test_a_late_step_gives_time_up_to_the_most() -> None:
    clock = StartClock(0.0, usual=60.0, most=100.0)
    here = [os.getpid()]
    for now in range(59):
        clock.look(float(now), here)
    clock.step()
    assert not clock.is_over(clock._looked + 25.0)
