"""The thread that frees a rank outlives whatever a program does with signals and descriptors."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from torch_mpi4py import launch

START = """
import os, resource, signal, threading, time
from torch_mpi4py.faults import deadlines
from torch_mpi4py.log import heartbeat
from torch_mpi4py.core.errors import CommunicationError
from torch_mpi4py.core.runtime import MPI

comm = MPI.COMM_SELF.Dup()
comm.Set_errhandler(MPI.ERRORS_RETURN)

def hang(seconds):
    # Nobody sends; returns the error that ends it.
    try:
        deadlines.call(comm, "recv", seconds, comm.recv)
    except CommunicationError as error:
        return type(error).__name__
"""
A_DESCRIPTOR_OF_OTHERS_IS_CLOSED = """
read, write = os.pipe()
os.set_blocking(write, False)
signal.set_wakeup_fd(write)
signal.signal(signal.SIGUSR1, lambda *_: None)
deadlines.watch()
os.close(read), os.close(write)
os.kill(os.getpid(), signal.SIGUSR1)
"""
MANY_FILES_ARE_OPEN = """
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 2048), most))
files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
deadlines.watch()
"""


@pytest.mark.parametrize("what", [A_DESCRIPTOR_OF_OTHERS_IS_CLOSED, MANY_FILES_ARE_OPEN])
def test_deadline_still_ends_a_call(root: Path, what: str) -> None:
    assert said(root, f"{what}\nprint(hang(1.0))") == "DeadlineError"


def test_other_signals_do_not_shorten_the_interval(root: Path) -> None:
    program = """
looks, note = [], heartbeat.note
heartbeat.note = lambda: (looks.append(time.monotonic()), note())
signal.signal(signal.SIGALRM, lambda *_: None)
deadlines.watch()
signal.setitimer(signal.ITIMER_REAL, 0.005, 0.005)  # as a sampling profiler does
until = time.monotonic() + 60
while len(looks) < 10 and time.monotonic() < until:
    time.sleep(0.005)
signal.setitimer(signal.ITIMER_REAL, 0)
apart = sorted(b - a for a, b in zip(looks, looks[1:]))
print(apart[len(apart) // 2] > 0.09)
"""
    assert said(root, program) == "True"


def test_interrupt_of_a_forked_child_does_not_reach_its_parent(root: Path) -> None:
    program = """
signal.signal(signal.SIGINT, signal.default_int_handler)
deadlines.watch()
child = os.fork()
if child == 0:
    signal.signal(signal.SIGINT, lambda *_: os._exit(0))
    signal.pause()
threading.Timer(0.3, os.kill, (child, signal.SIGINT)).start()
print(hang(2.0), *os.wait()[1:])
"""
    assert said(root, program) == "DeadlineError 0"


def test_failing_beat_callback_does_not_block_the_others(root: Path) -> None:
    program = """
import contextlib, io
turns = []

def fail():
    turns.append("failed")
    raise ValueError("at each beat")

heartbeat.at_each_beat += [fail, lambda: turns.append("had its turn")]
printed = io.StringIO()
with contextlib.redirect_stderr(printed):
    deadlines.watch()
    until = time.monotonic() + 60
    while turns.count("failed") < 5 and time.monotonic() < until:
        time.sleep(0.01)
print(turns.count("had its turn") >= 4, printed.getvalue().count("ValueError: at each beat"))
"""
    assert said(root, program) == "True 1"


def test_garbage_collection_disabled_by_the_program_stays_off(root: Path) -> None:
    """The watcher switches it off for a moment, on Python 3.11, and on again."""
    program = """
import gc, sys
sys.setswitchinterval(1e-6)
stop, wrong = time.monotonic() + 3, 0

def look():
    while time.monotonic() < stop:
        heartbeat._place_of_main_thread()

threads = [threading.Thread(target=look) for _ in range(2)]
for thread in threads:
    thread.start()
while time.monotonic() < stop:
    gc.disable()
    for _ in range(200):
        wrong += gc.isenabled()
    gc.enable()
for thread in threads:
    thread.join()
print(wrong, gc.isenabled())
"""
    assert said(root, program) == "0 True"


def test_call_ending_during_its_report_is_left_alone(root: Path) -> None:
    program = """
began, ended = threading.Event(), threading.Event()

class Reported(deadlines.Operation):
    def take_report(self):
        began.set()
        ended.wait(60)

operation = Reported(comm, "recv", 0.2)
deadlines._single.add(operation)
deadlines.watch()
began.wait(60)
operation.in_mpi = False  # it has come back
ended.set()
beat = heartbeat._shown.time
until = time.monotonic() + 60
while heartbeat._shown.time == beat and time.monotonic() < until:
    time.sleep(0.01)
print(operation.reason, comm.Is_revoked())
"""
    assert said(root, program) == "None False"


def test_collective_on_an_abandoned_channel_ends_at_once(root: Path) -> None:
    """Nothing is left in the queue, for which the group would wait when it is closed."""
    program = """
from datetime import timedelta
import torch, torch.distributed as dist, torch_mpi4py
from torch_mpi4py.core.call import known_call
from torch_mpi4py.group.work import Collective
dist.init_process_group("mpi4py", init_method="mpi://")
group = dist.group.WORLD
(channel,) = group._channels
stuck, runs = threading.Event(), threading.Event()

def work(plan):
    one = Collective()
    one.call, one.what, one.comm, one.channel = known_call("barrier"), "barrier", comm, channel
    one.plan, one.tensors, one.seconds = plan, [], 60.0
    one.started = time.perf_counter()
    return one

def hang(_):
    runs.set()
    stuck.wait(600)  # longer than the test waits

first = work(hang)
channel.queue(first)
channel.hurry()
runs.wait(60)
channel.abandon(first)
second = work(lambda _: None)
channel.queue(second)
group._wait_for_pending_works()
print(type(second.error).__name__, channel.idle, len(channel._queue), flush=True)
os._exit(0)
"""
    assert said(root, program) == "RevokedError True 0"


def test_announced_cells_override_ipython_tracking(root: Path) -> None:
    """A rank that starts slowly finds its IPython before it says that it will tell its cells."""
    program = """
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
heartbeat.note()
heartbeat.runs_cells()
heartbeat.begin_cell(7, "this run")
shell.run_cell("pass", store_history=True)
print(heartbeat._shown.cell, heartbeat.current_run(), heartbeat._shown.running)
"""
    assert said(root, program).splitlines()[-1] == "7 this run True"


def said(root: Path, program: str) -> str:
    """Return what a program prints that is one rank, in an MPI that can free it."""
    environment = launch.environment() | {"OMPI_MCA_mpi_ft_enable": "1"}
    ended = subprocess.run(
        [sys.executable, "-c", START + program],
        cwd=root,
        env=environment | {"PYTHONPATH": os.environ.get("PYTHONPATH", "")},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout.strip()
