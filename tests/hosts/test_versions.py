"""A host with other versions is named, in one clear error, when ranks meet."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests import ranks
from tests.hosts.clusters import another_version
from tests.hosts.testbed import BedClient

MEET = """
import torch.distributed as dist
try:
    dist.init_process_group("mpi4py", init_method="mpi://")
except RuntimeError as error:
    print("refused:", error, flush=True)
"""


def test_a_host_with_another_version_is_named(
    bed: BedClient, folder: Path, on_two_hosts: Callable
) -> None:
    with another_version(bed, folder, "h2", "mpi4py") as difference:
        done = ranks.run(2, "-c", MEET, limit=90, library=on_two_hosts(2))
    assert done.returncode == 0, done.output
    said = f"refused: hosts differ from h1, the host of rank 0: h2 has {difference}"
    assert done.output.count(said) == 2, done.output
