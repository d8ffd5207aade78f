"""gloo by MPI's rendezvous, as the README shows it, and deaths in groups of several backends."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests import ranks
from tests.torch_mpi4py.cases import mixed_groups

DEATH = """
import os, signal, torch, torch.distributed as dist, torch_mpi4py as mpi
from datetime import timedelta
dist.init_process_group({backend!r}, init_method="mpi://", timeout=timedelta(seconds=20))
rank = dist.get_rank()
part = dist.new_group([0, 1, 2, 3])
dist.group.WORLD.barrier().wait()  # all are here
if rank == 0:  # it serves the store
    os.kill(os.getpid(), signal.SIGKILL)
try:
    while True:
        dist.group.WORLD.barrier().wait()
except mpi.RankFailedError as error:
    assert "rank 0 died" in str(error), error
if {backend!r}.startswith("cpu:mpi4py"):  # otherwise PyTorch makes gloo, at the store that is gone
    part = part.shrink()
    tensor = torch.ones(3)
    dist.all_reduce(tensor, group=part)
    assert tensor[0] == 3, tensor
left = mpi.shrink(30)
tensor = torch.ones(3)
dist.all_reduce(tensor)
print("left", left.dead, dist.get_backend(), int(tensor[0]), flush=True)
dist.destroy_process_group()
"""


def test_readme_program_on_gloo(root: Path) -> None:
    text = (root / "packages/torch_mpi4py/README.md").read_text()
    (program,) = re.findall(r"```python\n([^`]*\"gloo\", init_method=\"mpi://\"[^`]*)```", text)
    names = ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE")
    without = "import os\n" + "".join(f"os.environ.pop({name!r}, None)\n" for name in names)
    finished = ranks.run(2, "-c", without + program, limit=120)
    assert finished.returncode == 0, finished.output
    assert {"rank 0 of 2: 3", "rank 1 of 2: 3"} <= set(finished.output.splitlines())


@pytest.mark.skipif(not mixed_groups.is_possible(), reason="before PyTorch 2.14 they are refused")
@pytest.mark.parametrize("backend", mixed_groups.MIXED)
def test_survivors_go_on_with_all_backends(backend: str) -> None:
    """A barrier that names no device is MPI's, so the survivors hear of the death there."""
    program = DEATH.format(backend=backend)
    finished = ranks.run(4, "-c", program, limit=120)
    said = [line for line in finished.output.splitlines() if line.startswith("left")]
    assert said == [f"left [0] {backend} 3"] * 3, finished.output
    assert not finished.left_behind
