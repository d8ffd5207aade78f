"""Type hints are complete and fit together; pyproject.toml says of what, and how strictly."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


def mypy(root: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mypy", *arguments],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@pytest.mark.timeout(300)  # 7 to 15 s, the first time
def test_mypy_has_no_complaint(root: Path) -> None:
    answer = mypy(root)
    assert answer.returncode == 0, answer.stdout + answer.stderr


def test_mypy_would_complain(root: Path, tmp_path: Path) -> None:
    """Of a function without types, and of a wrong use of the backend's public names."""
    program = tmp_path / "program.py"
    program.write_text(
        "import torch_mpi4py\n"
        "def untyped(x):\n    return x\n"
        "print(torch_mpi4py.shrink().survivers)\n"
        "seconds: str = torch_mpi4py.shrink().rank\n"
    )
    complaints = mypy(root, program).stdout
    assert "Function is missing a type annotation" in complaints
    assert '"Shrunk" has no attribute "survivers"' in complaints
    assert 'Incompatible types in assignment (expression has type "int"' in complaints
