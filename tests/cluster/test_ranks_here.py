"""Which engines live, as the keeper and the agents see it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from ipyranks.ranks_here import RanksHere
from ipyranks.runtime_dir import RuntimeDir

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sets the clock of Linux's /proc")


def test_engines_survive_a_changed_system_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a machine has slept: all past times that the system reports move, too."""
    ended: list[int] = []
    directory = RuntimeDir(tmp_path / "cluster")
    engine = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        proc = tmp_path / "proc"
        proc.mkdir()
        (proc / str(engine.pid)).symlink_to(f"/proc/{engine.pid}")
        told = Path("/proc/stat").read_text()
        booted = re.search(r"^btime (\d+)$", told, re.MULTILINE)
        assert booted
        later = told.replace(booted[0], f"btime {int(booted[1]) + 7}")

        def says(**_: Any) -> None:
            pass

        ranks = RanksHere(directory, says, ended.append)
        created = psutil.Process(engine.pid).create_time()
        ranks.hear(number=0, pid=engine.pid)
        (proc / "stat").write_text(later)
        monkeypatch.setattr(psutil, "PROCFS_PATH", str(proc))
        assert psutil.Process(engine.pid).create_time() == pytest.approx(created + 7)
        ranks.look_after()
        assert ended == []
    finally:
        engine.kill()
        engine.wait(10)
    ranks.look_after()
    assert ended == [0]
