"""Who lives and who has ended is told rightly, whatever happens at the same time."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from ipyranks.ranks_here import RanksHere
from ipyranks.runtime_dir import RuntimeDir

WITHIN_S = 30


@pytest.fixture
def process() -> Iterator[subprocess.Popen]:
    with subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE) as one:
        yield one
        one.kill()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a start is told in another way")
def test_rank_survives_a_changed_system_clock(
    process: subprocess.Popen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[int] = []
    ranks = RanksHere(RuntimeDir(tmp_path), lambda **_: None, ended.append)
    said = {"number": 0, "pid": process.pid, "stage": "registered", "description": None}
    ranks.hear(**said)
    # What Linux says then: the machine was started at another time.
    boot_time, before = psutil._pslinux.boot_time, psutil.Process(process.pid).create_time()
    monkeypatch.setattr(psutil._pslinux, "boot_time", lambda: boot_time() + 1)
    assert psutil.Process(process.pid).create_time() == before + 1
    ranks.look_after()
    assert ended == []
    process.kill()
    process.wait()
    ranks.look_after()
    assert ended == [0]


def test_directory_never_exists_with_an_unheld_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = RuntimeDir(tmp_path / "one")
    directory.make()
    found = []
    flock = fcntl.flock

    def look_before(file: int, how: int) -> None:
        """The keeper loses its core here, and another start looks around."""
        monkeypatch.setattr(fcntl, "flock", flock)
        found.append(RuntimeDir(directory.path).is_held())
        flock(file, how)

    monkeypatch.setattr(fcntl, "flock", look_before)
    directory.hold()
    assert found == [True]
    assert RuntimeDir(directory.path).is_held()
    directory.remove()  # its shared memory, too, which is elsewhere
