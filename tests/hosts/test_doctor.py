"""The doctor looks at every host before a workshop does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.hosts.testbed import BedClient

LIMIT_S = 240


def examine(root: Path, hosts: str) -> tuple[int, str]:
    """Return the doctor's status and what it says of some hosts, without its line breaks."""
    command = [sys.executable, "-m", "course_lib.doctor", "--hosts", hosts, "--within", "60"]
    done = subprocess.run(
        command, cwd=root, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    return done.returncode, " ".join(done.stdout.split())


def test_doctor_accepts_two_healthy_hosts(root: Path, bed: BedClient) -> None:
    status, said = examine(root, "h1:2,h2:2")
    assert status == 0, said
    assert "h2: ssh reached without a password; it reaches this machine at 10.77.0.1" in said
    assert f"h2: versions checkout at {root}, same versions as here" in said
    assert "OK MPI on all hosts the same" in said


def test_doctor_reports_an_unreachable_host(root: Path, bed: BedClient) -> None:
    bed.cut("h3")
    try:
        status, said = examine(root, "h1:2,h3:2")
    finally:
        bed.mend("h3")
    assert status != 0
    assert "FAIL h3: ssh" in said
