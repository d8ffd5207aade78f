"""Runs one of the course's batch scripts under Slurm, with a time limit."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from course_lib.places import ROOT, SCRIPTS

__all__ = ["run_job", "slurm_answers"]


def slurm_answers() -> bool:
    """Return whether this machine has a Slurm that answers."""
    try:
        return subprocess.run(["sinfo"], capture_output=True, timeout=10).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def run_job(script: str, options: Sequence[str], seconds: float = 300) -> str:
    """Submit one of the course's scripts, with one task on each node; return the job's output.

    Args:
        script: its path, such as ``"scripts/ddp_srun.sbatch"``.
        options: for the program that the script starts.
        seconds: time limit, after which the job is cancelled and the text says why it waited.
    """
    # The nodes write there, so it is in the checkout or the learner's folder, which they can see.
    with tempfile.TemporaryDirectory(prefix=".shared-", dir=ROOT) as folder:
        output = Path(folder, "output")
        job = ["sbatch", "--wait", "--parsable", f"--output={output}", "--ntasks-per-node=1"]
        with subprocess.Popen(
            [*job, script, *options],
            cwd=SCRIPTS.parent,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as waiting:
            try:
                said, _ = waiting.communicate(timeout=seconds)
            except BaseException as error:  # the stop button, too
                waiting.kill()
                said, _ = waiting.communicate(timeout=10)
                number = said.split(";")[0].strip()
                state = _say("squeue", "--noheader", "--format=%T %R", f"--jobs={number}")
                _say("scancel", number)
                if not isinstance(error, subprocess.TimeoutExpired):
                    raise
                return f"Job {number} had not ended after {seconds:g} s ({state}): cancelled."
        written = output.read_text() if output.exists() else ""
        return written or said


def _say(*command: str) -> str:
    answer = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    return (answer.stdout or answer.stderr).strip()
