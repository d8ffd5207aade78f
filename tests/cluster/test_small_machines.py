"""With little shared memory and one core the ranks work, or the error says what to change."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.timeout(240)

START = """
import os
from ipyranks import StartError, start_cluster
os.sched_setaffinity(0, list(os.sched_getaffinity(0))[:1])
try:
    with start_cluster(4, init_process_group=True) as cluster:
        cluster.view.execute("total = torch.ones(2**22); dist.all_reduce(total)", block=True).get()
        print("sums:", [total[-1].item() for total in cluster.view["total"]])
except StartError as error:
    print(error)
"""


def may_mount() -> bool:
    """Whether this process may have a /dev/shm of its own."""
    own = ["unshare", "-m", "sh", "-c", "mount -t tmpfs tmpfs /dev/shm"]
    try:
        return subprocess.run(own, capture_output=True, timeout=60, check=False).returncode == 0
    except FileNotFoundError:  # not Linux
        return False


@pytest.mark.skipif(not may_mount(), reason="needs root, to mount a small /dev/shm")
@pytest.mark.parametrize(
    ("mib", "said"),
    [
        (64, "sums: [4.0, 4.0, 4.0, 4.0]"),  # what a container has by default
        (8, "/dev/shm has 8 MiB free, which is too little for the ranks: remove leftover"),
    ],
)
def test_cluster_runs_with_little_shared_memory_and_one_core(mib: int, said: str) -> None:
    mount = f'mount -t tmpfs -o size={mib}m tmpfs /dev/shm && exec "$@"'
    ended = subprocess.run(
        ["unshare", "-m", "sh", "-c", mount, "sh", sys.executable, "-c", START],
        env=os.environ,
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
    )
    assert said in ended.stdout, ended.stdout + ended.stderr
