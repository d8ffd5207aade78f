"""A cluster over hosts that does not start says why, and one that ends leaves nothing anywhere."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.conftest import Kernel
from tests.hosts.clusters import HOSTS, another_version, await_nothing_left, left
from tests.hosts.testbed import BedClient


def test_a_killed_kernel_leaves_nothing_on_any_host(bed: BedClient) -> None:
    assert not left(bed)
    kernel = Kernel()
    try:
        kernel.start_cluster(4, f"{HOSTS}, grace=0.5", grace=None)
        assert any(line.startswith("h2") for line in left(bed))
    finally:
        kernel.shut_down(now=True)
    await_nothing_left(bed)


def test_a_killed_keeper_leaves_nothing_on_any_host(bed: BedClient) -> None:
    kernel = Kernel()
    try:
        kernel.start_cluster(4, HOSTS)
        (keeper,) = (
            pid for pid, words in bed.processes("h1").items() if "ipyranks.keeper" in words
        )
        bed.kill(keeper, signal.SIGKILL)
        await_nothing_left(bed)
    finally:
        kernel.shut_down()


ERRORS = {
    "h1:2,nobody:2": "nobody true\nssh: Could not resolve hostname nobody",
    "h1:2,h3:2": "h3 cannot be used: this command must succeed:  ssh -oBatchMode=yes -F ",
    "h2:2,10.77.0.2:2": "Name each host only once",
    "h1:4,h2": "'h2' is not a host with its number of ranks",
    "h1:1,h2:2": "n must be from 1 to 3 ranks on h1, h2, not 4",
    "/no/such/file": "/no/such/file cannot be read",
}


@pytest.mark.parametrize("hosts", ERRORS)
def test_each_mistake_gets_one_clear_error(bed: BedClient, plain: Kernel, hosts: str) -> None:
    sshd = [pid for pid, words in bed.processes("h3").items() if "listener" in words]
    assert not sshd  # which is not among them
    if "h3" in hosts:
        bed.cut("h3")
    try:
        error = plain.run(f"start_cluster(4, hosts={hosts!r})", 60)
    finally:
        bed.mend("h3")
    assert ERRORS[hosts] in error.traceback
    await_nothing_left(bed)


@pytest.fixture(scope="module")
def plain() -> Iterator[Kernel]:
    """A kernel without a cluster."""
    kernel = Kernel()
    kernel.must("from ipyranks import start_cluster")
    yield kernel
    kernel.shut_down()


def test_a_host_with_other_versions_is_named(bed: BedClient, folder: Path, plain: Kernel) -> None:
    with another_version(bed, folder, "h2", "mpi4py") as difference:
        error = plain.run(f"start_cluster(4, {HOSTS})", 60)
    assert f"h2 has {difference}: every host needs the same versions" in error.traceback
    await_nothing_left(bed)


def test_a_host_without_the_checkout_is_named(bed: BedClient, plain: Kernel) -> None:
    environment = str(Path(sys.executable).parent)
    bed.execute("h2", ["mount", "-t", "tmpfs", "nothing", environment]).check_returncode()
    try:
        error = plain.run(f"start_cluster(4, {HOSTS})", 60)
    finally:
        bed.execute("h2", ["umount", environment]).check_returncode()
    assert f"h2 has no {sys.executable}: the checkout and its .venv must have" in error.traceback
    await_nothing_left(bed)


def test_the_end_of_the_mpi_daemon_ends_the_cluster(bed: BedClient, plain: Kernel) -> None:
    plain.start_cluster(4, HOSTS)
    for pid, words in bed.processes("h2").items():
        if "bin/prted" in words:
            bed.kill(pid)
    error = plain.run("while True: cluster.status()", 60).traceback
    assert "the cluster has ended: mpiexec ended" in error
    await_nothing_left(bed)
    assert "4 ranks ready" in plain.start_cluster(4, HOSTS)
    plain.must("cluster.stop()")
    await_nothing_left(bed)
