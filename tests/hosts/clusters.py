"""A kernel with a cluster on two virtual hosts, and a look at what is left of clusters anywhere."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

from tests.cluster.conftest import Kernel, wait_until
from tests.cluster.hangs import PREPARE, assert_trains
from tests.hosts.testbed import NAMES, BedClient

HOSTS = 'hosts="h1:2,h2:2"'
GONE_WITHIN_S = 60.0
LOST_WITHIN_S = 30.0  # 4.5 s on a quiet machine
OURS = ("ipyranks.", "prted", "mpiexec")
OWN = f"{NAMES[0]}: ompi.{NAMES[0]}.{os.getuid()}"
"""The folder of the test process, which is a rank of its own where a test module loads MPI."""


def left(bed: BedClient) -> list[str]:
    """What there is of clusters on any host: processes and files."""
    found = []
    for host in NAMES:
        commands = bed.processes(host).values()
        found += [
            f"{host}: {words[:90]}" for words in commands if any(name in words for name in OURS)
        ]
        found += [f"{host}: {path}" for path in bed.left(host)]
    return [what for what in found if what != OWN]


def await_nothing_left(bed: BedClient) -> None:
    wait_until(lambda: not left(bed), GONE_WITHIN_S, "nothing left", still=lambda: left(bed))


@contextlib.contextmanager
def a_kernel(bed: BedClient) -> Iterator[Kernel]:
    """A kernel with a cluster on two hosts; nothing of it is left on any of them."""
    assert not left(bed)
    kernel = Kernel()
    try:
        kernel.banner = kernel.start_cluster(4, HOSTS)
        yield kernel
    finally:
        for host in NAMES:
            bed.mend(host)
        kernel.shut_down()
    await_nothing_left(bed)


@contextlib.contextmanager
def bridges(bed: BedClient) -> Iterator[None]:
    """Give two hosts a bridge as Docker makes it: both have the same address there."""
    make = (
        "ip link add docker0 type bridge && ip address add 172.17.0.1/16 dev docker0 && "
        "ip link set docker0 up"
    )
    try:
        for host in NAMES[:2]:
            bed.execute(host, ["sh", "-c", make]).check_returncode()
        yield
    finally:
        for host in NAMES[:2]:
            bed.execute(host, ["ip", "link", "del", "docker0"])


@contextlib.contextmanager
def another_version(bed: BedClient, folder: Path, host: str, package: str) -> Iterator[str]:
    """Have a package say on a host that it is another version; give how that differs."""
    found = distribution(package)
    (metadata,) = (
        Path(str(file.locate())) for file in found.files or () if file.name == "METADATA"
    )
    other = folder / "METADATA"
    old, new = f"\nVersion: {found.version}", "\nVersion: 3.9.9"
    other.write_text(metadata.read_text().replace(old, new, 1))
    bed.execute(host, ["mount", "--bind", str(other), str(metadata)]).check_returncode()
    try:
        yield f"{package} 3.9.9 instead of {found.version}"
    finally:
        bed.execute(host, ["umount", str(metadata)]).check_returncode()


def prepare(kernel: Kernel) -> None:
    kernel.must("cluster.init_process_group()")
    kernel.must("%%px" + PREPARE)
    assert_trains(kernel)
