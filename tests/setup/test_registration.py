"""What ``import torch`` pays for the backend, and that it never fails because of it."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys

MOST_SECONDS = 5e-3
PROCESSES = 5

# Measures what PyTorch does with the entry point: loading it and calling it. In seconds of the
# processor: a busy machine may take it away in between.
MEASURED = """
import importlib.metadata, json, sys, time

load, found, scans = importlib.metadata.EntryPoint.load, {}, []
entry_points = importlib.metadata.entry_points

def counted(*args, **kwargs):
    scans.append(kwargs)
    return entry_points(*args, **kwargs)

def measured(self):
    before, loaded = time.thread_time(), set(sys.modules)
    function = load(self)

    def call():
        function()
        found[self.name] = time.thread_time() - before, sorted(set(sys.modules) - loaded)

    return call

importlib.metadata.EntryPoint.load = measured
importlib.metadata.entry_points = counted
import torch

maps = "" if sys.platform == "darwin" else open("/proc/self/maps").read()
seconds, modules = found["torch_mpi4py"]
registered = "mpi4py" in torch.distributed.Backend.backend_list
print(json.dumps([seconds, modules, len(scans), registered, "libmpi" in maps]))
"""


def python(program: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *options, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_registration_is_quick_and_does_not_start_mpi() -> None:
    taken = []
    for _ in range(PROCESSES):
        answer = python(MEASURED)
        assert answer.returncode == 0, answer.stderr
        seconds, modules, scans, registered, has_mpi = json.loads(answer.stdout)
        taken.append(seconds)
        assert registered
        assert not has_mpi
        assert modules == ["torch_mpi4py", "torch_mpi4py.registration"]
        assert scans == 1, "only torch itself should look for entry points"
    assert statistics.median(taken) <= MOST_SECONDS, taken


BROKEN = """
import torch_mpi4py.registration as registration

def register():
    raise TypeError("this PyTorch wants something else")

registration.register = register
import torch
print(torch.ones(3).sum().item(), "mpi4py" in torch.distributed.Backend.backend_list)
"""


def test_import_torch_works_if_registration_fails() -> None:
    answer = python(BROKEN)
    assert (answer.returncode, answer.stdout) == (0, "3.0 False\n"), answer.stderr
    assert "torch_mpi4py could not register itself" in answer.stderr
    assert "this PyTorch wants something else" in answer.stderr


def test_import_torch_works_if_warnings_are_errors() -> None:
    answer = python(BROKEN, "-W", "error::UserWarning")
    assert (answer.returncode, answer.stdout) == (0, "3.0 False\n"), answer.stderr


def test_importing_the_package_first_registers_once() -> None:
    program = "import torch_mpi4py, sys; assert 'torch' not in sys.modules; import torch\n"
    program += "print(torch.distributed.Backend.backend_list.count('mpi4py'))"
    answer = python(program, "-W", "error::UserWarning")
    assert (answer.returncode, answer.stdout) == (0, "1\n"), answer.stderr
