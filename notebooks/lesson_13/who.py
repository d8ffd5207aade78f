"""Prints this process's host, and the variables that its launcher has set.

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
    """Return those of the launchers' variables that are set."""
    return {name: os.environ[name] for name in NAMES if name in os.environ}


if __name__ == "__main__":
    # A single write for the whole line, because launchers mix the output of all ranks: unbuffered
    # print() makes two writes, and another rank's line may come between them.
    line = json.dumps({"host": socket.gethostname(), **told()}) + "\n"
    os.write(sys.stdout.fileno(), line.encode())
