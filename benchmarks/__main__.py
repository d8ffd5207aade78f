"""The one idea: one command measures on real ranks and writes table, plot and JSON.

The backend is measured on 2 and 4 ranks. Every entry of PROGRAMS is a further program with a
part of the report of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from benchmarks import async_sgd_report, report, throughput_report
from course_lib import launch

ROOT = Path(__file__).resolve().parent.parent
LIMIT_SECONDS = 240


class Program(NamedTuple):
    """A benchmark of training: ``python -m benchmarks.NAME FILE`` on so many ranks."""

    name: str
    ranks: int
    section: Callable[[dict], report.Section]


PROGRAMS = (
    Program("throughput", 2, throughput_report.section),
    Program("async_sgd", 5, async_sgd_report.section),
)


def measure(ranks: int, folder: Path, name: str = "measure") -> dict:
    """Return what the program of this name measured on so many ranks.

    Raises:
        RuntimeError: with what the ranks wrote, if they failed.
    """
    output = folder / f"{name}.{ranks}.json"
    environment = launch.environment()
    paths = [str(ROOT), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    command = launch.mpiexec(ranks, sys.executable, "-m", f"benchmarks.{name}", output)
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
        said = ended.stdout + ended.stderr
        raise RuntimeError(f"benchmarks.{name} on {ranks} ranks failed:\n{said}")
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
        programs = {each.name: measure(each.ranks, Path(folder), each.name) for each in PROGRAMS}
    result = {
        "machine": f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}",
        "load": load,
        "python": platform.python_version(),
        "runs": runs,
        "programs": programs,
    }
    arguments.output.mkdir(parents=True, exist_ok=True)
    (arguments.output / "results.json").write_text(json.dumps(result, indent=1) + "\n")
    text = report.markdown(result, [each.section(programs[each.name]) for each in PROGRAMS])
    (arguments.output / "results.md").write_text(text)
    report.plot(result, arguments.output / "all_reduce.svg")
    print(text)


if __name__ == "__main__":
    main()
