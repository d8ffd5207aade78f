"""The same all-reduce by every peer that runs here, in turns in the same ranks.

``C`` is the MPI library's own MPI_Allreduce in a small C function, made with the compiler that is
here; it gets the communicator from mpi4py, so all variants run in the same processes. Without a
compiler it is left out, and ``no_c`` says why.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from benchmarks.report import MIB, Section, Table, each, microseconds, size
from benchmarks.running import all_reduces, least_loops, take_turns, world

if TYPE_CHECKING:
    from torch_mpi4py import MPI

SIZES = (4, 4096, 64 * 2**10, MIB, 16 * MIB)
TURNS = 9
COMPILE_SECONDS = 60
SOURCE = """\
#include <mpi.h>
void all_reduce(void *data, int count, MPI_Comm *comm) {
    MPI_Allreduce(MPI_IN_PLACE, data, count, MPI_FLOAT, MPI_SUM, *comm);
}
"""
NAMES = {
    "ours": "torch_mpi4py",
    "gloo": "gloo",
    "raw": "raw mpi4py",
    "C": "C, called from Python by ctypes",
}


def measure() -> dict:
    """Measure every size."""
    from torch_mpi4py import MPI

    gloo, comm = dist.new_group(backend="gloo"), world()
    with tempfile.TemporaryDirectory() as folder:
        in_c, reason = c_function(comm, Path(folder))
        comm.Barrier()
    handle = MPI._addressof(comm)
    if in_c:
        check = torch.ones(2)
        in_c(check.data_ptr(), 2, handle)
        assert check.tolist() == [comm.Get_size()] * 2
    rows = []
    for count in SIZES:
        variants = all_reduces(comm, count, gloo=gloo)
        data = torch.zeros(count // 4)
        if in_c:
            variants["C"] = partial(in_c, data.data_ptr(), count // 4, handle)
        samples = take_turns(comm, variants, TURNS, least_loops(count))
        rows.append({"bytes": count, "samples": samples})
    return {"ranks": comm.Get_size(), "no_c": reason, "all_reduce": rows}


def c_function(comm: MPI.Intracomm, folder: Path) -> tuple[Callable | None, str]:
    """Return the C function on all ranks, or None on all and why; rank 0 compiles."""
    library, reason = compiled(folder) if comm.Get_rank() == 0 else (None, "")
    library, reason = comm.bcast((library, reason))
    if library is None:
        return None, reason
    function = ctypes.CDLL(str(library)).all_reduce
    function.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]
    function.restype = None
    return function, ""


def compiled(folder: Path) -> tuple[Path | None, str]:
    """Return a shared library with ``all_reduce``, or None and why there is none."""
    beside = Path(sys.executable).parent / "mpicc"
    wrapper = str(beside) if beside.exists() else shutil.which("mpicc")
    if wrapper is None:
        return None, "there is no mpicc"
    source, library = folder / "peer.c", folder / "peer.so"
    source.write_text(SOURCE)
    command = [wrapper, "-O2", "-shared", "-fPIC", "-o", str(library), str(source)]
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, timeout=COMPILE_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, f"mpicc did not run: {error}"
    if answer.returncode != 0:
        return None, f"mpicc failed: {(answer.stderr.strip().splitlines() or ['no output'])[-1]}"
    return library, ""


def section(measured: dict) -> Section:
    """Return the table of :func:`measure`; it has no target."""
    rows = measured["all_reduce"]
    here = {name: NAMES[name] for name in NAMES if name in rows[0]["samples"]}

    def over_fastest(row: dict) -> str:
        medians = {name: median(values) for name, values in row["samples"].items()}
        return f"{medians.pop('ours') / min(medians.values()):.2f}x"

    columns = {
        "size": size,
        **each(here, microseconds),
        "ours over the fastest peer": over_fastest,
    }
    missing = f" The C all-reduce is missing: {measured['no_c']}." if measured["no_c"] else ""
    about = (
        f"all_reduce of float32, {measured['ranks']} ranks, all in the same processes in turns. "
        f"Microseconds: median (quartiles). ctypes adds about a microsecond a call.{missing}"
    )
    return Section("Peers", [about, Table(columns, rows)])
