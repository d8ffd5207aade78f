"""The same all-reduce by every peer that runs here, in turns in the same ranks.

Runs under ``mpiexec``; rank 0 writes the samples, in seconds a call, to the file named on the
command line. ``C`` is the MPI library's own MPI_Allreduce in a loop of a small C function, made
with the compiler that is here; it gets the communicator from mpi4py, so all variants run in the
same processes. Without a compiler it is left out, and ``no_c`` says why.
"""

from __future__ import annotations

import ctypes
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch_mpi4py import MPI

from benchmarks.measure import LEAST_LOOPS, LEAST_LOOPS_SMALL, SMALL, take_turns

SIZES = (4, 4096, 64 * 2**10, 2**20, 16 * 2**20)
ROUNDS = 9
COMPILE_SECONDS = 60
SOURCE = """\
#include <mpi.h>
void all_reduce(void *data, int count, MPI_Comm *comm) {
    MPI_Allreduce(MPI_IN_PLACE, data, count, MPI_FLOAT, MPI_SUM, *comm);
}
"""


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


def main() -> None:
    """Measure every size."""
    torch.set_num_threads(1)
    dist.init_process_group("mpi4py", init_method="mpi://", timeout=timedelta(seconds=60))
    gloo = dist.new_group(backend="gloo")
    comm = MPI.COMM_WORLD.Dup()
    with tempfile.TemporaryDirectory() as folder:
        in_c, reason = c_function(comm, Path(folder))
        comm.Barrier()
    rows = []
    for size in SIZES:
        tensor = torch.zeros(size // 4)
        message = [tensor.numpy(), size // 4, MPI.FLOAT]
        variants: dict[str, Callable[[], None]] = {
            "ours": lambda: dist.all_reduce(tensor),  # noqa: B023 used within this turn
            "gloo": lambda: dist.all_reduce(tensor, group=gloo),  # noqa: B023
            "raw": lambda: comm.Allreduce(MPI.IN_PLACE, message, MPI.SUM),  # noqa: B023
        }
        if in_c:
            handle = MPI._addressof(comm)
            arguments = (tensor.data_ptr(), size // 4, handle)
            variants["C"] = lambda: in_c(*arguments)  # noqa: B023
            check = torch.ones(2)
            in_c(check.data_ptr(), 2, handle)
            assert check.tolist() == [comm.Get_size()] * 2
        least = LEAST_LOOPS_SMALL if size <= SMALL else LEAST_LOOPS
        rows.append({"bytes": size, "samples": take_turns(comm, variants, ROUNDS, least)})
    if dist.get_rank() == 0:
        result = {"ranks": dist.get_world_size(), "no_c": reason, "all_reduce": rows}
        Path(sys.argv[1]).write_text(json.dumps(result))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
