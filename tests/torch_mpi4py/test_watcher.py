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
from torch_mpi4py import deadlines, heartbeat
from torch_mpi4py.errors import CommunicationError
from torch_mpi4py.runtime import MPI

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
def test_a_deadline_still_ends_a_call(root: Path, what: str) -> None:
    assert said(root, f"{what}\nprint(hang(1.0))") == "DeadlineError"


def test_other_signals_make_no_look_come_sooner(root: Path) -> None:
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


def test_the_interrupt_of_a_forked_child_is_none_of_its_parent(root: Path) -> None:
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
