"""A rank notices that other programs take its core."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from torch_mpi4py.core import crowding

BUSY_LOOP = "while True: pass"


@pytest.fixture(autouse=True)
def nothing_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crowding, "others_take_the_core", False)
    monkeypatch.setattr(crowding, "_before", None)
    monkeypatch.setattr(crowding, "ranks_leave", 1.0)


@pytest.fixture
def look_after(monkeypatch: pytest.MonkeyPatch) -> Callable[..., bool]:
    """Return a function that looks after so many seconds, in which the threads ran and waited."""
    now = ran = waited = beside = 0.0

    def look(seconds: float, runs: float, waits: float, others_run: float = 0.0) -> bool:
        nonlocal now, ran, waited, beside
        now, ran, waited, beside = now + seconds, ran + runs, waited + waits, beside + others_run
        crowding.look()
        return crowding.others_take_the_core

    monkeypatch.setattr(crowding.time, "perf_counter", lambda: now)
    monkeypatch.setattr(crowding, "_read", lambda _: crowding._Reading(now, ran, waited, beside))
    return look


def test_thread_that_waits_for_its_core_is_crowded(look_after: Callable) -> None:
    assert not look_after(0.1, 0.05, 0.05), "the first look compares with nothing"
    assert not look_after(0.1, 0.09, 0.01)
    assert look_after(0.1, 0.05, 0.05)


def test_crowd_is_looked_for_again_after_two_seconds(look_after: Callable) -> None:
    look_after(0.1, 0.1, 0.0)
    assert look_after(0.1, 0.05, 0.05)
    assert all(look_after(0.1, 0.05, 0.0) for _ in range(19))
    assert not look_after(0.2, 0.1, 0.1), "without a crowd in mind, it looks again"
    assert look_after(0.1, 0.05, 0.05), "it is still there"


def test_sleeping_thread_is_not_crowded(look_after: Callable) -> None:
    look_after(0.1, 0.1, 0.0)
    assert not look_after(0.1, 0.001, 0.003)


def test_ranks_that_share_a_core_do_not_crowd_each_other(
    look_after: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crowding, "ranks_leave", 0.5)
    look_after(0.1, 0.1, 0.0)
    assert not look_after(0.1, 0.045, 0.055)
    assert look_after(0.1, 0.035, 0.065)


def test_threads_of_its_own_process_do_not_crowd_a_rank(look_after: Callable) -> None:
    look_after(0.1, 0.1, 0.0)
    assert not look_after(0.1, 0.06, 0.03, others_run=0.03)
    assert not look_after(0.1, 0.06, 0.0, others_run=0.09), "they had another core"
    assert look_after(0.1, 0.03, 0.06, others_run=0.02)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts how long a thread waits")
def test_reading_tells_main_thread_from_others() -> None:
    def compute() -> None:
        end = time.thread_time() + 0.2
        while time.thread_time() < end:
            pass

    readings = [crowding._read(0.0)]
    thread = threading.Thread(target=compute)
    thread.start()
    thread.join()
    readings.append(crowding._read(0.0))
    compute()
    readings.append(crowding._read(0.0))
    before, between, after = filter(None, readings)
    assert between.beside - before.beside > 0.15 > between.ran - before.ran
    assert after.ran - between.ran > 0.15 > after.beside - between.beside


@pytest.fixture
def crowded_core() -> Iterator[None]:
    """Put this process and a busy loop on one core."""
    before = os.sched_getaffinity(0)
    core = min(before)
    os.sched_setaffinity(0, [core])
    loop = subprocess.Popen([sys.executable, "-c", BUSY_LOOP])  # it inherits the core
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
        loop.kill()
        loop.wait()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts how long a thread waits")
def test_busy_loop_on_the_core_is_noticed(crowded_core: None) -> None:
    deadline = time.monotonic() + 30
    while not crowding.others_take_the_core:
        assert time.monotonic() < deadline
        end = time.perf_counter() + 0.1
        while time.perf_counter() < end:
            pass
        crowding.look()
