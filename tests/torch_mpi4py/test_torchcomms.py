"""The backend where PyTorch has been told to use the package torchcomms (a stand-in here)."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch.torch_version import TorchVersion, __version__

from tests import ranks

PROGRAM = """
import torch, torch.distributed as dist
backend, init_method = {backend!r}, "mpi://"
dist.init_process_group(backend, init_method=init_method)
rank, size = dist.get_rank(), dist.get_world_size()
group = dist.new_group([0, 1])
tensor = torch.ones(3)
dist.all_reduce(tensor, group=group)
parts = [torch.zeros(3) for _ in range(size)] if rank == 0 else None
dist.gather(tensor, parts)
dist.destroy_process_group(group)
dist.destroy_process_group()
print("sum", int(tensor[0]), flush=True)
"""
# What PyTorch imports of torchcomms, and which backend it is asked for.
PACKAGE = {
    "__init__.py": """
def is_backend_built(name):
    return name == "gloo"
def new_comm(backend, *arguments, **options):
    raise RuntimeError(f"torchcomms was asked for {backend}")
""",
    "_comms.py": """
class _BackendWrapper: pass
def _is_backend_registered(name):
    return False
""",
    "hooks.py": "class FlightRecorderHook: pass",
}


@pytest.fixture
def variables(tmp_path: Path) -> dict[str, str]:
    """The variables of ranks that find the stand-in and are to use it."""
    folder = tmp_path / "torchcomms"
    folder.mkdir()
    for name, text in PACKAGE.items():
        (folder / name).write_text(text)
    return {"PYTHONPATH": str(tmp_path), "TORCH_DISTRIBUTED_USE_TORCHCOMMS": "1"}


def run(backend: str, variables: dict[str, str]) -> ranks.Run:
    return ranks.run(2, "-c", PROGRAM.format(backend=backend), limit=120, variables=variables)


@pytest.mark.skipif(TorchVersion(__version__) >= (2, 14), reason="PyTorch 2.14 asks for its own")
def test_torch_before_2_14_raises_with_advice(variables: dict[str, str]) -> None:
    finished = run("mpi4py", variables)
    assert finished.returncode != 0
    assert "unset the variable, or update PyTorch to 2.14" in finished.output, finished.output
    assert "was asked for" not in finished.output, finished.output


@pytest.mark.skipif(TorchVersion(__version__) < (2, 14), reason="PyTorch asks it for all before")
def test_torch_2_14_or_later_works(variables: dict[str, str]) -> None:
    finished = run("mpi4py", variables)
    assert finished.returncode == 0, finished.output
    assert finished.output.count("sum 2") == 2, finished.output


def test_torchcomms_handles_its_own_backends(variables: dict[str, str]) -> None:
    finished = run("gloo", variables)
    assert "torchcomms was asked for gloo" in finished.output, finished.output
