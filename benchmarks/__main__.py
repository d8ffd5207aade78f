"""The one idea: one command measures on 2 and 4 ranks and writes table, plot and JSON."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks import report
from course_lib import launch

ROOT = Path(__file__).resolve().parent.parent
LIMIT_SECONDS = 240


def measure(ranks: int, folder: Path) -> dict:
    """Return the samples taken on this many ranks.

    Raises:
        RuntimeError: with what the ranks wrote, if they failed.
    """
    output = folder / f"{ranks}.json"
    environment = launch.environment()
    paths = [str(ROOT), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    command = launch.mpiexec(ranks, sys.executable, "-m", "benchmarks.measure", output)
    ended = subprocess.run(
        command,
        env=environment,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    if ended.returncode != 0 or not output.exists():
        raise RuntimeError(f"the benchmark on {ranks} ranks failed:\n{ended.stdout}{ended.stderr}")
    return json.loads(output.read_text())


def main() -> None:
    """Measure and report; results go to benchmarks/results unless said otherwise."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=main.__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results")
    arguments = parser.parse_args()
    load = round(os.getloadavg()[0], 2)
    with tempfile.TemporaryDirectory() as folder:
        runs = [measure(ranks, Path(folder)) for ranks in arguments.ranks]
    result = {
        "machine": f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}",
        "load": load,
        "python": platform.python_version(),
        "runs": runs,
    }
    arguments.output.mkdir(parents=True, exist_ok=True)
    (arguments.output / "results.json").write_text(json.dumps(result, indent=1) + "\n")
    text = report.markdown(result)
    (arguments.output / "results.md").write_text(text)
    report.plot(result, arguments.output / "all_reduce.svg")
    print(text)


if __name__ == "__main__":
    main()
