"""A site's own MPI, in place of the wheels: Debian's Open MPI 4.1 and its MPICH.

They are installed where they are missing, which takes root. The steps are those of
``docs/site_mpi.md``.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests import ranks
from tests.cluster.conftest import new_kernel, traces  # noqa: F401  fixtures

_LIBRARIES = {
    "openmpi": ("libmpi.so.40", ["openmpi-bin", "libopenmpi3"]),
    "mpich": ("libmpich.so.12", ["mpich"]),
}


def _installed(name: str) -> Path | None:
    folders = Path("/usr/lib").glob("*-linux-gnu*")
    return next((f / name for f in folders if (f / name).exists()), None)


@pytest.fixture(scope="module", params=sorted(_LIBRARIES))
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ranks.Library:
    """Return an MPI of Debian's, and the variables with which mpi4py uses it."""
    name, packages = _LIBRARIES[request.param]
    if _installed(name) is None:
        if os.geteuid() != 0:
            pytest.fail(f"not installed, as root: apt-get install {' '.join(packages)}")
        quiet = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        subprocess.run(["apt-get", "update"], check=True, timeout=200, env=quiet)
        install = ["apt-get", "install", "-y", "--no-install-recommends", *packages]
        subprocess.run(install, check=True, timeout=600, env=quiet)
    library = _installed(name)
    assert library is not None
    if request.param == "openmpi":
        return ranks.Library("openmpi", {"MPI4PY_LIBMPI": str(library)})
    # Debian calls it libmpich.so.12, and mpi4py's wheel looks for libmpi.so.12.
    folder = tmp_path_factory.mktemp("mpich")
    (folder / "libmpi.so.12").symlink_to(library)
    variables = {
        "MPI4PY_LIBMPI": str(folder / "libmpi.so.12"),
        "LD_LIBRARY_PATH": str(folder),
    }
    return ranks.Library("mpich", variables)
