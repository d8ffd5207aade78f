"""What tests on virtual hosts share: the hosts, and programs that mpiexec starts on two of them.

They run on h1; ``make test-cluster`` sees to that.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from torch_mpi4py import launch

from tests import ranks
from tests.hosts.testbed import NAMES, BedClient

ENDS_WITHIN_S = 20.0


@pytest.fixture(scope="session")
def bed() -> BedClient:
    """Return the virtual hosts."""
    return BedClient()


@pytest.fixture(scope="session", autouse=True)
def folder(bed: BedClient) -> Iterator[Path]:
    """Return a folder that all hosts see, in which temporary files are made meanwhile."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(bed.folder))
        yield bed.folder


@pytest.fixture(scope="session")
def hostfile(folder: Path) -> Path:
    """Return a host file of two hosts, for two ranks each."""
    return _hostfile(folder, 2)


@pytest.fixture(scope="session")
def on_two_hosts(folder: Path) -> Callable[[int], ranks.Library]:
    """Return what has :func:`tests.ranks.run` start half of so many ranks on each of two hosts."""

    def library(n: int) -> ranks.Library:
        hosts = {"PRTE_MCA_prte_default_hostfile": str(_hostfile(folder, n // 2))}
        return ranks.Library("openmpi", hosts)

    return library


def _hostfile(folder: Path, slots: int) -> Path:
    path = folder / f"hosts-{slots}"
    path.write_text(f"h1 slots={slots}\nh2 slots={slots}\n")
    return path


@pytest.fixture(scope="session")
def known() -> set[str]:
    """What earlier tests have left and have failed for."""
    return set()


@pytest.fixture(autouse=True)
def nothing_left(bed: BedClient, known: set[str]) -> Iterator[None]:
    """Fail a test that leaves a process or shared memory on another host."""
    yield
    deadline = time.monotonic() + ENDS_WITHIN_S
    while (left := _left(bed) - known) and time.monotonic() < deadline:
        time.sleep(0.1)
    known |= left
    launch.remove_dead_sessions(Path("/tmp"))  # of killed launchers here, as the next one would
    assert not left


def _left(bed: BedClient) -> set[str]:
    found = set()
    for name in NAMES[1:]:
        files = bed.execute(name, ["find", "/dev/shm", "-type", "f"]).stdout.split()
        files += [path for path in bed.left(name) if not path.startswith("/dev/shm")]
        found |= {f"{name}: {what}" for what in [*bed.processes(name).values(), *files]}
    return found
