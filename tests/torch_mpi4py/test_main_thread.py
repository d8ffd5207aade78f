"""What keeps a rank silent is told apart from outside, on real processes."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import psutil
import pytest
from torch_mpi4py.board import main_thread
from torch_mpi4py.board.main_thread import own_cpu_seconds, seen_since

COMPUTES_IN_C = "sum(range(10**12))"
SLEEPS_IN_C = "ctypes.PyDLL(None).pause()"  # which keeps the interpreter's lock
PROGRAM = """
import ctypes, sys
from torch_mpi4py.board.main_thread import own_cpu_seconds
print(own_cpu_seconds(), flush=True)
"""

COUNTS_COLLECTIONS = """
import gc, linecache, sys, threading
from torch_mpi4py.log import heartbeat

begun = []  # the code in which a collection began
gc.callbacks.append(lambda phase, _: begun.append((sys._getframe(1), sys._getframe(1).f_lineno)))

def deep(calls, function):
    return deep(calls - 1, function) if calls else function()

def collected_in_a_look():
    look = heartbeat.frames_uncollected(threading.main_thread().ident)
    frames = []
    gc.set_threshold(1)
    begun.clear()
    frames.extend(look)
    seen = len(begun)
    gc.set_threshold(700)
    return seen, len(frames) > 50, gc.isenabled()

def collected_on_the_way():
    gc.set_threshold(1)
    begun.clear()
    place = heartbeat._place_of_main_thread()
    gc.set_threshold(700)
    lines = {linecache.getline(one.f_code.co_filename, line) for one, line in begun}
    return place, any(".f_back" in line for line in lines)

def of_a_library(function):
    code = function.__code__.replace(co_filename=heartbeat.__file__)
    return type(function)(code, globals())

print(*deep(50, collected_in_a_look))
deep = of_a_library(deep)  # its frames are passed over on the way to the program's line
print(*deep(50, of_a_library(collected_on_the_way)))
gc.disable()
print(*deep(50, collected_in_a_look))
"""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the system has no /proc")


@pytest.fixture
def silent_after() -> Iterator[Callable[[str], tuple[psutil.Process, float]]]:
    """Start a program that gives a last sign of life; return it and its seconds on a core."""
    started = []

    def start(then: str) -> tuple[psutil.Process, float]:
        command = [sys.executable, "-c", PROGRAM + then]
        program = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        started.append(program)
        return psutil.Process(program.pid), float(program.stdout.readline())

    yield start
    for program in started:
        program.kill()
        program.communicate(timeout=30)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def is_stuck(silent: float, pid: int, cpu: float) -> bool:
    return main_thread.keeps_the_lock(silent, *seen_since(pid, cpu))


def test_rank_computing_in_c_is_stuck(silent_after):
    process, cpu = silent_after(COMPUTES_IN_C)
    wait_until(lambda: is_stuck(1.1, process.pid, cpu))
    assert not is_stuck(0.9, process.pid, cpu), "signs come ten times a second, but not exactly"


def test_rank_without_a_core_is_stuck_only_after_five_seconds(silent_after):
    process, cpu = silent_after("while True: pass")
    process.send_signal(signal.SIGSTOP)
    wait_until(lambda: process.status() == psutil.STATUS_STOPPED)
    times = process.cpu_times()
    cpu = max(cpu, times.user + times.system)  # had it been stopped at its last sign
    assert not is_stuck(4.9, process.pid, cpu)
    assert is_stuck(5.1, process.pid, cpu), "no machine keeps a rank from its core for so long"


def test_rank_sleeping_in_c_is_stuck_a_little_later(silent_after):
    process, cpu = silent_after(SLEEPS_IN_C)
    wait_until(lambda: is_stuck(2.1, process.pid, cpu))
    assert not is_stuck(1.9, process.pid, cpu)


def test_own_seconds_are_cpu_time_of_the_main_thread():
    before, of_all = own_cpu_seconds(), time.process_time()
    while time.process_time() < of_all + 0.1:
        pass
    assert own_cpu_seconds() - before > 0.05


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="no allocation collects garbage there")
def test_no_collection_while_reading_frames_of_other_threads():
    # What a collection destroys can let the other thread go on, and its frames go: that crashed.
    command = [sys.executable, "-c", COUNTS_COLLECTIONS]
    said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    assert said.splitlines() == ["0 True True", "<string>:35 False", "0 True False"]
