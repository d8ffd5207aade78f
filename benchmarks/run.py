"""Every program of the benchmark is started in one way, with a time limit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from torch_mpi4py import launch

__all__ = ["ROOT", "command_of", "measure"]

ROOT = Path(__file__).resolve().parent.parent
LIMIT_SECONDS = 400  # on a quiet machine the longest takes less than 100


def command_of(
    name: str, ranks: int, output: Path, limit_seconds: float = LIMIT_SECONDS
) -> subprocess.CompletedProcess[str]:
    """Run ``python -m benchmarks.NAME output`` on so many ranks, or without MPI for 0 ranks."""
    environment = launch.environment()
    paths = [str(ROOT), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    program = [sys.executable, "-m", f"benchmarks.{name}", str(output)]
    return subprocess.run(
        launch.mpiexec(ranks, *program) if ranks else program,
        env=environment,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=limit_seconds,
        check=False,
    )


def measure(ranks: int, folder: Path, name: str = "measure") -> dict:
    """Return what the program of this name measured on so many ranks.

    Raises:
        RuntimeError: with what the ranks wrote, if they failed.
    """
    output = folder / f"{name}.{ranks}.json"
    ended = command_of(name, ranks, output)
    if ended.returncode != 0 or not output.exists():
        said = ended.stdout + ended.stderr
        raise RuntimeError(f"benchmarks.{name} on {ranks} ranks failed:\n{said}")
    return json.loads(output.read_text())
