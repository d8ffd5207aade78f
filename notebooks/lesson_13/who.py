"""Says on which host this process is, and what its launcher has told it.

mpiexec -n 2 python notebooks/lesson_13/who.py
"""

import json
import os
import socket
import sys

NAMES = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "PMIX_RANK",
    "SLURM_PROCID",
    "SLURM_NTASKS",
    "SLURM_LOCALID",
)


def told() -> dict[str, str]:
    """Return the variables by which launchers tell a process who it is, those that are set."""
    return {name: os.environ[name] for name in NAMES if name in os.environ}


if __name__ == "__main__":
    # One write for the line, as launchers mix the output of all ranks; an unbuffered print() makes
    # two, and the end of a line may come after the next rank's line.
    line = json.dumps({"host": socket.gethostname(), **told()}) + "\n"
    os.write(sys.stdout.fileno(), line.encode())
