"""One script under torchrun with gloo and under mpiexec with ours, in turns.

An ordinary program: ``python -m benchmarks.launchers FILE`` writes, for every run, the seconds of
training as scripts/ddp.py reports them and those from the launcher's start to its end.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from torch_mpi4py import launch

ROOT = Path(__file__).resolve().parent.parent
RANKS = 2
ROUNDS = 3
STEPS = 150
RUN_SECONDS = 60
SCRIPT = ["scripts/ddp.py", "--steps", STEPS, "--epochs", 100, "--batch", 32, "--no-progress"]


def commands() -> dict[str, list[str]]:
    """Return the command line of each launcher."""
    script = [str(word) for word in SCRIPT]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return {
        "mpiexec": launch.mpiexec(RANKS, sys.executable, *script),
        "torchrun": [*torchrun, "--nproc-per-node", str(RANKS), *script],
    }


def one_run(command: list[str], environment: dict[str, str]) -> dict:
    """Return what the script said in its last line, and the seconds of the whole.

    Raises:
        RuntimeError: with what it wrote, if it failed.
    """
    start = time.monotonic()
    ended = subprocess.run(
        command,
        env=environment,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
        check=False,
    )
    whole = time.monotonic() - start
    results = [line for line in ended.stdout.splitlines() if line.startswith("{")]
    if ended.returncode != 0 or not results:
        raise RuntimeError(f"{' '.join(command)} failed:\n{ended.stdout}{ended.stderr}")
    return json.loads(results[-1]) | {"whole_seconds": whole}


def main() -> None:
    """Measure both launchers in turns."""
    environment = launch.environment()
    paths = [str(ROOT), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    runs: dict[str, list[dict]] = {name: [] for name in commands()}
    for turn in range(ROUNDS):
        names = list(runs) if turn % 2 else list(reversed(runs))
        for name in names:
            runs[name].append(one_run(commands()[name], environment))
    result = {"ranks": RANKS, "steps": STEPS, "runs": runs}
    Path(sys.argv[1]).write_text(json.dumps(result))


if __name__ == "__main__":
    main()
