"""What tests on virtual hosts share: the hosts, and programs that mpiexec starts on two of them.

They run on h1; ``make test-cluster`` sees to that.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

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
    path = folder / "hosts"
    path.write_text("h1 slots=2\nh2 slots=2\n")
    return path


@pytest.fixture(scope="session")
def two_hosts(hostfile: Path) -> ranks.Library:
    """Return what has ranks start on two hosts, for :func:`tests.ranks.run`."""
    return ranks.Library("openmpi", {"PRTE_MCA_prte_default_hostfile": str(hostfile)})


@pytest.fixture(autouse=True)
def nothing_left(bed: BedClient) -> Iterator[None]:
    """Fail a test that leaves a process or shared memory on another host."""
    yield
    deadline = time.monotonic() + ENDS_WITHIN_S
    while found := {name: [*bed.processes(name).values()] for name in NAMES[1:]} | {
        f"files of {name}": bed.left(name) for name in NAMES[1:]
    }:
        found = {where: what for where, what in found.items() if what}
        if not found or time.monotonic() > deadline:
            break
        time.sleep(0.1)
    assert not found
