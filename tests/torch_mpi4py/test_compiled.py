"""Dynamo leaves the package alone, whether it is imported before a group is made or after."""

from __future__ import annotations

import pytest

from tests import ranks

PROGRAM = """
import sys
import torch, torch.distributed as dist
{before}
import torch_mpi4py
dist.init_process_group("mpi4py", init_method="mpi://")
tensor = torch.ones(3)
dist.all_reduce(tensor)
print("Dynamo:", "torch._dynamo" in sys.modules, flush=True)

@torch.compile(backend="eager")
def function(tensor, group):
    tensor = tensor * 2
    dist.broadcast(tensor, 0, group)
    return tensor + group.size()

group = dist.new_group([0, 1])
print("sum", int(function(tensor, group).sum()), flush=True)
dist.destroy_process_group()
"""


@pytest.mark.parametrize("before", ["import torch._dynamo", ""], ids=["before", "after"])
def test_import_order(before: str) -> None:
    program = PROGRAM.format(before=before)
    finished = ranks.run(2, "-c", program, limit=120)
    lines = finished.output.splitlines()
    assert lines.count("sum 18") == 2, finished.output
    # Making a group imports no Dynamo: that takes a second.
    assert lines.count(f"Dynamo: {bool(before)}") == 2, finished.output
    assert finished.returncode == 0, finished.output
    assert not finished.left_behind
