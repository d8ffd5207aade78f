"""A cluster's runtime directory: everything it has on disk, and its removal.

Each cluster has a directory of its own (socket, logs, keys) and, on Linux, one under /dev/shm
for the shared memory of its ranks. Its processes know it by a variable of their environment.
Any process that finds such a directory without a living keeper may remove it and its processes.
Nothing heavy is imported here: the keeper needs it first.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import secrets
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from torch_mpi4py import launch

if TYPE_CHECKING:
    import psutil

# A socket's path has to fit into sun_path: 104 bytes on macOS, 108 on Linux.
_LONGEST_BASE = 60
_SHARED_MEMORY = launch.SHARED_MEMORY
# By MPICH, and by Open MPI 5 and 4: at a terminal, without torch_mpi4py and with it.
_OPEN_MPI_SEGMENTS = ("sm_segment.*", "vader_segment.*")
_SEGMENTS = (
    "mpich_shm_*",
    *_OPEN_MPI_SEGMENTS,
    *(f"{launch.RUN_FOLDERS}*/{name}" for name in _OPEN_MPI_SEGMENTS),
)
_LEAST_SHARED_MIB = 32  # four ranks do not start with 12
_YOUNG_S = 1.0
CLUSTER_VARIABLE = "IPYRANKS_DIRECTORY"
"""Names the directory of the cluster in all of its processes, and in what the ranks start."""


class RuntimeDir:
    """The directory of one cluster: ``<base>/<key>-<random>`` with mode 0700."""

    def __init__(self, path: str | os.PathLike[str]):
        self.path = Path(path)
        self.socket = self.path / "s"
        self.profile = self.path / "profile"
        self.logs = self.path / "log"
        self.temporary = self.path / "t"
        self.events = self.path / "events"
        self.keeper_log = self.logs / "keeper.log"
        self.client_file = self.profile / "security" / "ipcontroller-client.json"
        self.engine_file = self.profile / "security" / "ipcontroller-engine.json"
        self._lock: int | None = None

    @classmethod
    def create(cls, key: str) -> RuntimeDir:
        """Make a new directory for the cluster of ``key``."""
        made = cls(base() / f"{_digest(key)}-{secrets.token_hex(3)}")
        made.make()
        return made

    def make(self) -> None:
        """Make it with its shared memory; on another host than the keeper's at the same paths."""
        _private(self.path.parent)
        self.path.mkdir(mode=0o700)
        # An engine gives up if it looks for the profile before a slow controller has made it.
        for directory in (self.logs, self.temporary, self.events, self.profile):
            directory.mkdir()
        if self.shared_memory is not None:
            self.shared_memory.mkdir(mode=0o700)

    @classmethod
    def find(cls, key: str) -> list[RuntimeDir]:
        """All directories of ``key``, with or without a living keeper."""
        return [cls(path) for path in sorted(base().glob(f"{_digest(key)}-*"))]

    @property
    def shared_memory(self) -> Path | None:
        """Where the ranks keep their shared segments; None where /dev/shm does not exist."""
        if not os.access(_SHARED_MEMORY, os.W_OK):
            return None
        base = _digest(str(self.path.parent))  # clusters of other bases have other names
        return _SHARED_MEMORY / f"rank-by-rank-{os.getuid()}-{base}-{self.path.name}"

    def rank_log(self, rank: int) -> Path:
        """Where rank ``rank`` writes output that is printed outside cells."""
        return self.logs / f"rank-{rank}.log"

    def hold(self) -> None:
        """Mark this process as the keeper; the mark goes when the process does."""
        young = self.path / "lock.new"
        self._lock = os.open(young, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        young.rename(self.path / "lock")  # no other start ever finds an unheld one

    def is_held(self) -> bool:
        """Whether a keeper lives. A directory without a mark yet counts as held for 30 s."""
        try:
            lock = os.open(self.path / "lock", os.O_RDWR)
        except FileNotFoundError:
            with contextlib.suppress(FileNotFoundError):
                return time.time() - self.path.stat().st_mtime < 30
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(lock)
        return False

    def processes(self, besides: Collection[int] = ()) -> list[psutil.Process]:
        """The living processes of the cluster, and their descendants, except this one.

        Some are orphans, because their rank has died.

        Args:
            besides: others that are left out, with their descendants.
        """
        import psutil

        found, parents = set(), {}
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):  # it has ended, or is not ours
                parents[process.pid] = process.ppid()
                if process.environ().get(CLUSTER_VARIABLE) == str(self.path):
                    found.add(process.pid)
        _add_descendants(found, parents)
        left_out = set(besides)
        _add_descendants(left_out, parents)
        return [*filter(None, map(living, found - left_out - {os.getpid()}))]

    def remove(self) -> None:
        """Delete the directory and the shared memory."""
        if self.shared_memory is not None:
            shutil.rmtree(self.shared_memory, ignore_errors=True)
        sweep_segments()
        for _ in range(10):  # a dying process may still write into it
            shutil.rmtree(self.path, ignore_errors=True)
            if not self.path.exists():
                return
            time.sleep(0.1)
        shutil.rmtree(self.path)

    def sweep(self) -> None:
        """Kill what is left of the cluster, except this process, and delete its traces."""
        for process in self.processes():
            kill(process.pid, signal.SIGKILL)
        self.remove()


def _add_descendants(found: set[int], parents: Mapping[int, int]) -> None:
    while children := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= children


def sweep_stale() -> None:
    """Remove every cluster of this user whose keeper is dead."""
    for path in base().iterdir():
        stale = RuntimeDir(path)
        if path.is_dir() and not stale.is_held():
            stale.sweep()


def sweep_segments() -> None:
    """Remove the shared memory of killed runs of MPI programs, which no process maps any more.

    In a cluster Open MPI keeps its own in the cluster's directory, and at a terminal in one of the
    run; MPICH cannot be told.
    """
    if not _SHARED_MEMORY.is_dir() or not Path("/proc/self/maps").exists():
        return
    unused = {}
    for path in (path for names in _SEGMENTS for path in _SHARED_MEMORY.glob(names)):
        with contextlib.suppress(FileNotFoundError):
            status = path.stat()
            # A young one may be about to be mapped.
            if status.st_uid == os.getuid() and time.time() - status.st_ctime > _YOUNG_S:
                unused[str(path)] = path
    if not unused:
        return
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):  # it has ended, or belongs to another user
            text = maps.read_text(errors="replace")
            for name in [name for name in unused if name in text]:
                del unused[name]
    for path in unused.values():
        path.unlink(missing_ok=True)
        if path.parent != _SHARED_MEMORY:
            with contextlib.suppress(OSError):  # it is not empty
                path.parent.rmdir()


def no_room() -> str:
    """The probable cause of a failed start if there is little room for shared memory."""
    if not _SHARED_MEMORY.is_dir():
        return ""
    free = shutil.disk_usage(_SHARED_MEMORY).free >> 20
    if free >= _LEAST_SHARED_MIB:
        return ""
    return (
        f"\n\n{_SHARED_MEMORY} has {free} MiB free, which is too little for the ranks: remove "
        "leftover files there, or give the container more (docker run --shm-size=1g)"
    )


def base() -> Path:
    """The directory above all clusters of this user; made if missing, private to the user."""
    parent = Path(os.environ.get("IPYRANKS_RUNTIME_DIR") or tempfile.gettempdir())
    if len(os.fsencode(parent)) > _LONGEST_BASE:
        parent = Path("/tmp")
    return _private(parent / f"rank-by-rank-{os.getuid()}")


def _private(path: Path) -> Path:
    """Make a folder of this user's own, or see to it that it is one."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = path.lstat()
    if status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise PermissionError(f"{path} must belong to you and be private (mode 0700)")
    return path


def living(pid: int) -> psutil.Process | None:
    """Process ``pid``, or None if it does not run (a zombie does not).

    Two of them are equal if they are the same process, and not another with the same number. Do not
    compare their ``create_time()``, which psutil 7.2 works out from the time of the boot: it moves
    when the machine's clock is set, as after a sleep, and then every engine was another process and
    dead. Comparing ``psutil.Process`` objects goes by ticks since the boot.
    """
    import psutil

    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else process
    except psutil.NoSuchProcess:
        return None


def family(pid: int) -> list[int]:
    """A process and its descendants; none if it does not run."""
    import psutil

    with contextlib.suppress(psutil.Error):
        return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
    return []


def kill(pid: int, signum: int) -> None:
    """Send a signal; a process that is gone already is no error."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signum)


def tail(path: Path, lines: int = 15) -> str:
    """The last lines of a log file, or an empty string if there is no such file."""
    try:
        text = path.read_text(errors="replace")
    except FileNotFoundError:
        return ""
    return "\n".join(text.rstrip().splitlines()[-lines:])


def python(*arguments: str) -> list[str]:
    """A command line for the running Python that imports from where we were imported."""
    return [sys.executable, "-P", *arguments]


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()[:10]
