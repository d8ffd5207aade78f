"""The deadline of a start counts the time of its own, not what it waits for a core."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from ipyranks.cores import WAITS_ARE_TOLD, StartClock, waits

from tests import ranks

pytestmark = pytest.mark.timeout(270)

USUAL_S = 6  # a start of two ranks takes 2 s of its own
CROWD = 8  # programs for each core

linux = pytest.mark.skipif(not WAITS_ARE_TOLD, reason="the system does not tell who waits")


@contextlib.contextmanager
def computing(count: int) -> Iterator[list[int]]:
    """Run some processes that always want a core; give their ids.

    Each has a session of its own, as programs of many users do: Linux shares cores among sessions.
    """
    command = [sys.executable, "-S", "-c", "while True: pass"]
    processes = [subprocess.Popen(command, start_new_session=True) for _ in range(count)]
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
        clock.look(now, waits(pids))
        time.sleep(0.1)
    return now


@linux
def test_waiting_for_a_core_does_not_count() -> None:
    with computing(8 * (os.cpu_count() or 1)) as pids:
        clock = StartClock(time.monotonic(), usual=1.0, most=600.0)
        now = watched(clock, pids, 2.0)
        assert clock.seconds < 0.5 * (now - clock.began)
        assert clock.crowded
        assert not clock.is_over(now)


@linux
def test_sleeping_counts_in_full() -> None:
    sleeper = subprocess.Popen(["sleep", "60"])
    try:
        clock = StartClock(time.monotonic(), usual=1.0, most=600.0)
        now = watched(clock, [sleeper.pid], 2.0)
        assert clock.seconds > 0.9 * (now - clock.began) - 0.2
        assert not clock.crowded
        assert clock.is_over(now)
    finally:
        sleeper.kill()
        sleeper.wait()


@linux
def test_late_step_extends_the_time_up_to_the_maximum() -> None:
    clock = StartClock(began=0.0, usual=60.0, most=100.0)
    clock.look(59.0, {})
    assert clock.is_over(60.0)
    clock.step()
    assert not clock.is_over(88.0)
    assert clock.is_over(90.0)
    clock.look(89.0, {})
    clock.step()
    assert not clock.is_over(99.0)
    assert clock.is_over(100.0)


@linux
def test_time_waiting_for_a_core_extends_start_and_cells(new_kernel) -> None:
    kernel = new_kernel()
    kernel.must(
        "from ipyranks import notebook_client, start_cluster, starting\n"
        f"starting._USUAL_START_S, starting._USUAL_PER_RANK_S = {USUAL_S}, 0\n"
        "notebook_client._TELL_AFTER_S = 3"
    )
    with computing(CROWD * (os.cpu_count() or 1)):
        out = kernel.must("cluster = start_cluster(2)", within=200)
        log = kernel.must("print(cluster.keeper.directory.keeper_log.read_text())").text()
        seconds, own = map(float, re.findall(r"ready after (\S+) s, of which (\S+) s", log)[0])
        assert own < USUAL_S < seconds
        assert re.search(r"^\d+ s: waiting for a core: \d of 2 ranks have", out.text(), re.M)
        # A second in which a rank had a fifth of a core or more counts in full, so what this cell
        # computes must be less than a fifth of its limit.
        kernel.must(
            "%%px --limit 2\nimport time\nbegan, has_run = time.monotonic(), time.process_time()\n"
            "while time.process_time() < has_run + 0.35:\n    pass\n"
            "took = time.monotonic() - began"
        )
        assert "True" in kernel.must("print(min(cluster.view['took']) > 2)").text()
        waits = kernel.run("%%px --limit 3\nimport time\ntime.sleep(60)")
        computes = kernel.run("%%px --limit 0.5\nwhile True:\n    pass")
    assert computes.error["ename"] == waits.error["ename"] == "HangError"
    assert re.search(r"For \d+ s of that, rank \d was ready, but no", computes.traceback)
    assert "no core was free" not in waits.traceback
    assert "If the cell only needs more time" in waits.traceback


def test_ranks_wait_for_a_starved_rank_until_start_times_out() -> None:
    """They wait longer than any other call may take, a limit that is shortened here."""
    program = """
import time
from torch_mpi4py.comm import guarded_comm
from ipyranks.rank_functions import namespace
guarded_comm.renew_world.__defaults__ = (0.5,)
if guarded_comm.MPI.COMM_WORLD.rank == 1:
    time.sleep(3)
print("there are", namespace(60.0)["world_size"])
"""
    finished = ranks.run(2, "-c", program, limit=100)
    assert finished.returncode == 0, finished.output
    assert finished.output.splitlines() == ["there are 2"] * 2
