"""What an answer has started is found and ended, with a cgroup and without."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from course_lib.grading import processes
from course_lib.grading.processes import MARK, Family

# Its grandchild has neither parent nor session in common with it.
LEAVES = """\
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        print(os.getpid(), flush=True)
        time.sleep(600)
    os._exit(0)
os.wait()
"""
# The same, and the environment is gone, too.
HIDES = LEAVES.replace(
    "        print(os.getpid(), flush=True)\n        time.sleep(600)\n",
    "        os.execve(sys.executable, [sys.executable, '-c', 'import os, time\\n"
    "print(os.getpid(), flush=True)\\ntime.sleep(600)'], {})\n",
)


@pytest.fixture(params=["cgroup", "none"])
def family(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Family]:
    if request.param == "none":
        monkeypatch.setattr(processes, "_make_group", lambda name: None)
    made = Family()
    if request.param == "cgroup" and made._group is None:
        pytest.skip("this account may make no cgroup")
    yield made
    made.end()
    made.forget()


@contextmanager
def start(family: Family, code: str) -> Iterator[subprocess.Popen]:
    # It waits until it has been adopted, as the workers do for their task.
    process = subprocess.Popen(
        [sys.executable, "-c", f"input()\n{code}"],
        env={**os.environ, MARK: family.mark},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    family.adopt(process.pid)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("go\n")
    process.stdin.close()
    try:
        yield process
    finally:
        family.end()
        process.wait(10)
        process.stdout.close()


def test_detached_process_is_found_and_killed(family: Family) -> None:
    with start(family, LEAVES) as process:
        left = psutil.Process(int(process.stdout.readline()))
        process.wait(10)
        assert family.living() == [left]
        assert family.size()[1] > 1 << 20
        family.end()
        assert not left.is_running() or left.status() == psutil.STATUS_ZOMBIE
        assert family.living() == []


def test_hidden_process_is_found_by_the_cgroup(family: Family) -> None:
    if family._group is None:
        pytest.skip("without a cgroup it is not found: docs/grading.md says so")
    with start(family, HIDES) as process:
        hidden = psutil.Process(int(process.stdout.readline()))
        process.wait(10)
        family.end()
        assert not hidden.is_running() or hidden.status() == psutil.STATUS_ZOMBIE


def test_a_cgroup_bounds_a_fork_bomb(family: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    if family._group is None:
        pytest.skip("no cgroup")
    (family._group / "pids.max").write_text("20")
    code = "import os, time\ntry:\n    while True:\n        os.fork()\nexcept OSError:\n"
    code += "    os.write(1, b'bounded\\n')\n    time.sleep(600)"
    with start(family, code) as process:
        assert process.stdout.readline() == "bounded\n"
        assert 1 < family.size()[0] <= 20
        family.end()
        assert family.living() == []


def test_cgroup_is_removed_with_its_children() -> None:
    family = Family()
    group = family._group or Path("/none")
    family.forget()
    assert not group.exists()
