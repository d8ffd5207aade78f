"""A program that imports ``mpi4py.MPI`` before the backend works, and is told what it loses."""

from __future__ import annotations

import pytest

from tests import ranks

PROGRAM = """
import mpi4py
{settings}
from mpi4py import MPI
import torch, torch.distributed as dist
dist.init_process_group("mpi4py", init_method="mpi://")
tensor = torch.ones(3)
dist.all_reduce(tensor)
print("sum", int(tensor[0]), flush=True)
dist.destroy_process_group()
"""
WARNING = "imported before torch_mpi4py"
ADVICE = "from torch_mpi4py import MPI"


def run(settings: str = "", n: int = 2, **variables: str) -> ranks.Run:
    program = PROGRAM.format(settings=settings)
    finished = ranks.run(n, "-c", program, limit=120, variables=variables)
    assert not finished.left_behind, finished.output
    return finished


def test_mpi_imported_first_warns_once_per_rank() -> None:
    finished = run()
    assert finished.returncode == 0, finished.output
    assert finished.output.count("sum 2") == 2, finished.output
    assert finished.output.count(WARNING) == 2, finished.output
    for name in ("fast_reduce", "rc.finalize", "OMPI_MCA_btl", ADVICE):
        assert finished.output.count(name) >= 2, f"{name}: {finished.output}"
    assert "OMPI_MCA_smsc" not in finished.output, "the launcher has set it, so it is not lost"


def test_no_warning_once_the_advice_is_followed() -> None:
    assert WARNING in run("import torch_mpi4py", n=1).output  # it does not start MPI
    finished = run(ADVICE, n=1)
    assert finished.returncode == 0, finished.output
    assert WARNING not in finished.output


def test_no_warning_when_settings_are_already_right() -> None:
    settings = "mpi4py.rc.fast_reduce = False; mpi4py.rc.finalize = False"
    finished = run(settings, OMPI_MCA_btl="^tcp,ofi")
    assert finished.returncode == 0, finished.output
    assert finished.output.count("sum 2") == 2, finished.output
    assert WARNING not in finished.output


def test_mpi_imported_but_not_initialised() -> None:
    finished = run("mpi4py.rc.initialize = False")
    assert finished.returncode == 0, finished.output
    assert "fast_reduce" in finished.output, finished.output
    assert "OMPI_MCA" not in finished.output, "what MPI reads when it is initialised is in time"
    assert finished.output.count("sum 2") == 2, finished.output


@pytest.mark.parametrize("level", ["single", "funneled", "serialized"])
def test_insufficient_thread_level_raises_with_advice(level: str) -> None:
    finished = run(f"mpi4py.rc.thread_level = {level!r}", n=1)
    assert finished.returncode != 0
    assert "MPI_THREAD_MULTIPLE" in finished.output, finished.output
    assert ADVICE in finished.output
    assert "sum" not in finished.output
