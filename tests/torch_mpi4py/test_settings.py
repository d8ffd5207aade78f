"""What the variables of the README's table switch, in real runs."""

from __future__ import annotations

import pytest

from tests import ranks

# Bits of a float are read as an integer where nobody compares what the ranks call.
PROGRAM = """
import torch, torch.distributed as dist
import torch_mpi4py as mpi
dist.init_process_group("mpi4py", init_method="mpi://")
tensor = torch.ones(1) if dist.get_rank() == 0 else torch.zeros(1, dtype=torch.int32)
try:
    dist.broadcast(tensor, src=0)
except mpi.MismatchError:
    print("compared")
else:
    print("sent", int(tensor.view(torch.int32)))
dist.destroy_process_group()
"""


@pytest.mark.parametrize(("value", "expected"), [("1", "compared"), ("0", "sent 1065353216")])
def test_check_collectives(value: str, expected: str) -> None:
    variables = {"TORCH_MPI4PY_CHECK_COLLECTIVES": value}
    finished = ranks.run(2, "-c", PROGRAM, limit=120, variables=variables)
    assert finished.output.splitlines().count(expected) == 2, finished.output
