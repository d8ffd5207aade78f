"""A host with other versions is named, in one clear error, when ranks meet."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import distribution
from pathlib import Path

from tests import ranks
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
    """There mpi4py says of itself that it is another one."""
    (metadata,) = (
        Path(str(file.locate()))
        for file in distribution("mpi4py").files or ()
        if file.name == "METADATA"
    )
    version = distribution("mpi4py").version
    other = folder / "METADATA"
    other.write_text(metadata.read_text().replace(f"\nVersion: {version}", "\nVersion: 3.9.9", 1))
    bed.execute("h2", ["mount", "--bind", str(other), str(metadata)]).check_returncode()
    try:
        done = ranks.run(2, "-c", MEET, limit=90, library=on_two_hosts(2))
    finally:
        bed.execute("h2", ["umount", str(metadata)]).check_returncode()
    assert done.returncode == 0, done.output
    said = (
        f"refused: hosts differ from h1, that of rank 0: h2 has mpi4py 3.9.9 instead of {version}"
    )
    assert done.output.count(said) == 2, done.output
