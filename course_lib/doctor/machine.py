"""Checks the machine itself: Python, cores, shared memory, ports and disk."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import tempfile
from pathlib import Path

from .examination import Finding, fail, ok, warn

__all__ = ["cores", "disk", "ports", "python", "shared_memory", "user"]

RANKS = 4  # of most lessons
_OLDEST, _NEWEST = (3, 11), (3, 13)
_MIB = 2**20
_SEGMENTS_MIB = 64  # what the shared segments of four ranks take, measured: 20 to 40 MiB
_COMFORTABLE_MIB = 256


def python() -> Finding:
    """Look at the version of Python, and whether it is an environment of its own."""
    version = ".".join(map(str, sys.version_info[:3]))
    seen = f"{version}, {sys.executable}"
    if not _OLDEST <= sys.version_info[:2] <= _NEWEST:
        return fail(
            seen,
            "The course works with Python 3.11 to 3.13: install one, then "
            "make clean && make setup PYTHON=python3.12",
        )
    if sys.prefix == sys.base_prefix and not os.environ.get("CONDA_PREFIX"):
        return warn(
            f"{seen}; not in an environment of its own",
            "Run `make setup`, then the doctor as `make doctor`.",
        )
    return ok(seen)


def cores() -> Finding:
    """Look at the number of cores against the number of ranks."""
    usable = (
        os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    )
    n = len(usable)
    if n >= RANKS:
        return ok(f"{n} cores, one thread for each of {RANKS} ranks")
    if n >= 2:
        return ok(f"{n} cores; {RANKS} ranks share them, so speed-ups show up to {n} ranks")
    return warn(
        "1 core; every lesson runs, but none can show a speed-up",
        "Give the virtual machine or container 2 cores or more.",
    )


def user() -> Finding:
    """Say who runs this; root is fine."""
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        return ok("root; Open MPI is told that this is meant")
    return ok("not root")


def ports() -> Finding:
    """Open a port on the loopback address and connect to it."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            address = server.getsockname()
            with socket.create_connection(address, timeout=5):
                server.accept()[0].close()
    except OSError as error:
        return fail(
            f"no connection over the loopback address 127.0.0.1: {error}",
            "Bring the loopback interface up (ip link set lo up), allow it in the firewall, and "
            "see that the limit of open files (ulimit -n) is at least 1024.",
        )
    return ok("connections over 127.0.0.1 work")


def shared_memory(folder: Path = Path("/dev/shm")) -> Finding:
    """Look for room for what ranks share."""
    if not folder.exists():
        return ok(f"no {folder} here; ranks use files instead")
    free = shutil.disk_usage(folder).free / _MIB
    seen = f"{free:,.0f} MiB free in {folder}"
    fix = (
        f"Remove what is left there (ls {folder}); in a container give it more: "
        "docker run --shm-size=1g"
    )
    if free < _SEGMENTS_MIB:
        return fail(f"{seen}, too little for {RANKS} ranks", fix)
    if free < _COMFORTABLE_MIB:
        return warn(f"{seen}, tight for more than {RANKS} ranks", fix)
    return ok(seen)


def disk(folder: Path | None = None) -> Finding:
    """Try to write where temporary files go, and look at the room there."""
    folder = folder or Path(tempfile.gettempdir())
    try:
        with tempfile.NamedTemporaryFile(dir=folder) as file:
            file.write(b"0" * _MIB)
            file.flush()
    except OSError as error:
        return fail(
            f"cannot be written to {folder}: {error}",
            "Free some space there, or set TMPDIR to a folder that can be written to.",
        )
    return ok(f"can be written to {folder}")
