"""Type hints are complete and fit together; pyproject.toml says of what, and how strictly."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.timeout(300)  # 7 to 15 s, the first time
def test_mypy_passes(root: Path) -> None:
    answer = subprocess.run(
        [sys.executable, "-m", "mypy"],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
