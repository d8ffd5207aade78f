"""Checks the machine itself: Python, cores, shared memory, ports and disk."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import tempfile
from pathlib import Path

import psutil

from course_lib.places import CHECKOUT

from .examination import INSTALL, Finding, fail, ok, warn

__all__ = ["cores", "disk", "memory", "ports", "python", "shared_memory", "user"]

RANKS = 4  # of most lessons
_OLDEST, _NEWEST = (3, 11), (3, 14)
_MIB = 2**20
# Measured: four ranks use 5 to 15 MiB of shared segments, and do not start if only 12 are free.
_SEGMENTS_MIB = 32
_COMFORTABLE_MIB = 256
# Measured for lesson 00: notebook and four ranks take 1.5 GiB; its kernel was killed with 1.1.
_LEAST_GIB, _AMPLE_GIB = 1.5, 3.0
_GROUPS = Path("/sys/fs/cgroup")


def python() -> Finding:
    """Check the version of Python, and whether it has its own environment."""
    version = ".".join(map(str, sys.version_info[:3]))
    seen = f"{version}, {sys.executable}"
    if not _OLDEST <= sys.version_info[:2] <= _NEWEST:
        then = "make clean && make setup PYTHON=python3.12" if CHECKOUT else INSTALL
        return fail(seen, f"The course works with Python 3.11 to 3.14: install one. Then: {then}")
    if sys.prefix == sys.base_prefix and not os.environ.get("CONDA_PREFIX"):
        return warn(
            f"{seen}; not in an environment of its own",
            "Run `make setup`, then start the doctor with `make doctor`." if CHECKOUT else INSTALL,
        )
    return ok(seen)


def cores() -> Finding:
    """Compare the number of cores with the number of ranks."""
    usable = (
        os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    )
    n = len(usable)
    for text in _limits_of_the_container("cpu.max", "cpu.cfs_quota_us"):
        quota, *period = map(int, text.split())
        n = max(1, min(n, round(quota / (period[0] if period else 100_000))))
    if n >= RANKS:
        return ok(f"{n} cores, one thread for each of {RANKS} ranks")
    if n >= 2:
        return ok(f"{n} cores for {RANKS} ranks, so expect speed-ups only up to {n} ranks")
    return warn(
        "1 core; every lesson runs, but none can show a speed-up",
        "Give the virtual machine or container 2 cores or more.",
    )


def memory() -> Finding:
    """Check for the memory that the notebook and its ranks need."""
    limits = [int(text) for text in _limits_of_the_container("memory.max", "memory.limit_in_bytes")]
    free = min([psutil.virtual_memory().available, *limits]) / 2**30
    seen = f"{free:.1f} GiB free"
    fix = (
        "End other programs and other notebooks' kernels (Kernel > Shut Down All Kernels), or give "
        "the virtual machine or container more (docker run --memory=4g)"
    )
    if free < _LEAST_GIB:
        return fail(f"{seen}, too little for a notebook and {RANKS} ranks", f"{fix}.")
    if free < _AMPLE_GIB:
        return warn(f"{seen}, enough for one notebook with {RANKS} ranks", f"For more: {fix}.")
    return ok(seen)


def _limits_of_the_container(name: str, old_name: str) -> list[str]:
    """Return the limits in the files of this process's control groups and those above them.

    ``old_name``: the file's in version 1 of control groups.
    """
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except FileNotFoundError:  # not on Linux
        return []
    found = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and old_name.partition(".")[0] not in controllers.split(","):
            continue
        root = _GROUPS / controllers
        group = root / path.strip("/")
        for folder in (group, *group.parents):
            file = folder / (old_name if controllers else name)
            if folder.is_relative_to(root) and file.is_file():
                found.append(file.read_text())
    return [text for text in found if not text.startswith(("max", "-1"))]


def user() -> Finding:
    """Report the user who runs this; root is fine."""
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        return ok("root; Open MPI is told that this is intended")
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
            "make sure that the limit on open files (ulimit -n) is at least 1024.",
        )
    return ok("connections over 127.0.0.1 work")


def shared_memory(folder: Path = Path("/dev/shm")) -> Finding:
    """Check the room for the ranks' shared memory."""
    if not folder.exists():
        return ok(f"no {folder} here; ranks use files instead")
    free = shutil.disk_usage(folder).free / _MIB
    seen = f"{free:,.0f} MiB free in {folder}"
    fix = (
        f"Remove leftover files there (ls {folder}); a container may need more: docker run "
        "--shm-size=1g"
    )
    if free < _SEGMENTS_MIB:
        return fail(f"{seen}, too little for {RANKS} ranks", fix)
    if free < _COMFORTABLE_MIB:
        return warn(f"{seen}, tight for more than {RANKS} ranks", fix)
    return ok(seen)


def disk(folder: Path | None = None) -> Finding:
    """Try to write a temporary file, and check the room there."""
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
