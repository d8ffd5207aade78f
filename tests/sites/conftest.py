"""MPIs in place of the wheel of Open MPI: those of the README's table, and Debian's as a site's."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

import pytest

from tests import ranks
from tests.cluster.conftest import new_kernel, traces  # noqa: F401  fixtures
from tests.sites import mpis

_INSTALLED = pytest.StashKey[dict[str, ranks.Library | Exception]]()


def library_of(config: pytest.Config, name: str) -> ranks.Library:
    """Return an MPI of the table, installed at the first call; skip where it needs a compiler."""
    if name.endswith("-abi") and mpis.COMPILER is None:
        pytest.skip("mpi4py has to be built, and there is no C compiler (cc)")
    installed = config.stash.setdefault(_INSTALLED, {})
    if name not in installed:
        folder = tempfile.TemporaryDirectory(prefix=f"{name}-")
        config.add_cleanup(folder.cleanup)
        try:
            installed[name] = mpis.MPIS[name].install(Path(folder.name))
        except (RuntimeError, OSError, subprocess.SubprocessError) as error:
            installed[name] = error  # which the next test would only wait for again
    library = installed[name]
    if isinstance(library, Exception):
        pytest.fail(f"{name} cannot be installed: {library}", pytrace=False)
    return library


def pytest_ranks_variables(item: pytest.Item) -> dict[str, str] | None:
    """Have a test of this folder with the parameter ``mpi`` run under this MPI."""
    if Path(__file__).parent not in item.path.parents:  # pytest asks for tests elsewhere, too
        return None
    return dict(library_of(item.config, item.callspec.params["mpi"]).variables)


@pytest.fixture(scope="module", params=("mpich", "openmpi"))
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ranks.Library:
    """Return an MPI of Debian's, and the variables with which mpi4py uses it."""
    return mpis.debian(request.param, tmp_path_factory.mktemp(request.param))
