"""Runs everything that needs a GPU, and writes a table of the results.

``python -m tools.on_gpu [FILE]`` runs one after another the backend's battery with its tensors on
the GPUs, lessons 00, 02, 05, 07 and 08, a training by NCCL and by MPI, and ``benchmarks.gpu``, each
for ten minutes at most. A failure becomes a row of the table too, with the end of its output.
Without a GPU it ends with one line.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch_mpi4py import launch

from course_lib.places import ROOT
from course_lib.teaching import execution, lessons

ON_GPUS = "RANKS_ON_GPUS"  # as tests.ranks calls it
LESSONS = ("00", "02", "05", "07", "08")
CASES = (
    *("gpus", "collectives", "point_to_point", "objects", "dtypes", "groups", "data_parallel"),
    *("buffers", "functional", "sparse", "sharded", "pipelines", "futures"),
)
MEASURED = "gpu.md"  # the benchmark's output
MOST_SECONDS = 600  # for one row
_SHOWN = 400  # last characters of a failed row's output


@dataclass(frozen=True)
class Row:
    """A program, how it ended ("passed", "failed" or "not in time"), and its last output."""

    what: str
    outcome: str
    seconds: float
    said: str = ""


def row(
    what: str, command: Sequence[object], output: Path | None = None, /, **variables: str
) -> Row:
    """Run a command, at most ten minutes; keep its output in ``output``, if it passes."""
    began = time.monotonic()
    try:
        ended = subprocess.run(
            [*map(str, command)],
            cwd=ROOT,
            env=launch.environment() | variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=MOST_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Row(what, "not in time", time.monotonic() - began)
    seconds = time.monotonic() - began
    if ended.returncode == 0:
        if output:
            output.write_text(ended.stdout)
        return Row(what, "passed", seconds)
    return Row(what, "failed", seconds, ended.stdout.strip()[-_SHOWN:])


def rows(gpus: int, folder: Path) -> list[Row]:
    """Run everything on a machine with this many GPUs."""
    python = sys.executable
    ranks = max(2, gpus)
    found = [
        row(
            f"battery, {cases}, {n} ranks",
            [python, "-m", "tests.ranks", "-n", n, f"tests.torch_mpi4py.cases.{cases}"],
            **{ON_GPUS: "1"},
        )
        for n in (2, 4)
        for cases in CASES
    ]
    execute = "import sys; from tools.on_gpu import execute; execute(sys.argv[1])"
    found += [row(f"lesson {number}", [python, "-c", execute, number]) for number in LESSONS]
    script = [python, "scripts/ddp.py", "--steps", "100"]
    found.append(row(f"scripts/ddp.py, mpiexec, {ranks} ranks", launch.mpiexec(ranks, *script)))
    by_mpi = row(
        f"scripts/ddp.py, mpiexec, {ranks} ranks, by MPI",
        launch.mpiexec(ranks, *script),
        COURSE_BACKEND="mpi4py",
    )
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", ranks)
    by_torchrun = row(f"scripts/ddp.py, torchrun, {ranks} ranks", [python, *torchrun, *script[1:]])
    bench = [python, "-m", "benchmarks", "--only", "gpu"]
    measured = row("benchmarks.gpu", bench, folder / MEASURED)
    return [*found, by_mpi, by_torchrun, measured]


def execute(number: str) -> None:
    """Execute a lesson without changing its notebook."""

    (source,) = (path for path in lessons.sources() if lessons.number(path) == number)
    execution.execute(lessons.read_source(source))


def table(title: str, found: Sequence[Row]) -> str:
    """Return the rows in Markdown, under a line that names the machine."""
    lines = [title, "", "| what | outcome | seconds |", "| --- | --- | ---: |"]
    lines += [f"| {one.what} | {one.outcome} | {one.seconds:.0f} |" for one in found]
    for one in found:
        if one.said:
            lines += ["", f"**{one.what}** said last:", "", "```", one.said, "```"]
    return "\n".join(lines) + "\n"


def main(
    arguments: Sequence[str] | None = None, count: Callable[[], int] = torch.cuda.device_count
) -> int:
    """Run it, and write the table to a file; return 1 if something failed, 2 without a GPU."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", nargs="?", type=Path, default=Path("on_gpu.md"))
    given = parser.parse_args(arguments)
    gpus = count()
    if not gpus:
        print(f"no GPU here that PyTorch {torch.__version__} can use: nothing was run")
        return 2
    names = ", ".join(torch.cuda.get_device_name(number) for number in range(gpus))
    title = (
        f"{names}; PyTorch {torch.__version__}, CUDA {torch.version.cuda}, {os.cpu_count()} cores"
    )
    with tempfile.TemporaryDirectory() as folder:
        found = rows(gpus, Path(folder))
        text = table(title, found)
        measured = Path(folder) / MEASURED
        if measured.exists():
            _, title, tables = measured.read_text().partition("## GPU")
            text += f"\n{title}{tables}"
    given.file.write_text(text)
    print(text)
    return int(any(one.outcome != "passed" for one in found))


if __name__ == "__main__":
    sys.exit(main())
