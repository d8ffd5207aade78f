"""Groups whose devices have backends of their own, as ``"cpu:gloo,cuda:mpi4py"`` asks for them."""

from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as dist
from torch.torch_version import TorchVersion

from tests.ranks import GROUP_SECONDS, case
from tests.torch_mpi4py.cases.collectives import same, total, values
from tests.torch_mpi4py.helpers import raises, still_works

OURS_ALONE = ("mpi4py", "cpu:mpi4py", "cuda:mpi4py", "cpu:mpi4py,cuda:mpi4py")
MIXED = ("cpu:gloo,cuda:mpi4py", "cpu:mpi4py,cuda:gloo")


def start(backend: str) -> None:
    seconds = timedelta(seconds=GROUP_SECONDS)
    dist.init_process_group(backend, init_method="mpi://", timeout=seconds)


@case(group=False)
def case_ours_for_all_devices_that_are_named(rank, size):
    for backend in OURS_ALONE:
        start(backend)
        group = dist.new_group(backend=backend)
        for each in (None, group):
            tensor = values(rank, 3)
            dist.all_reduce(tensor, group=each)
            same(tensor, total(size, 3))
        dist.destroy_process_group()


@case(group=False)
def case_another_backend_for_some_devices_is_refused(rank, size):
    """The error says what to write, and what it says works."""
    if is_possible():
        return
    for backend in MIXED:
        with raises(ValueError, '"mpi4py"', 'dist.new_group(backend="gloo")', torch.__version__):
            start(backend)
        assert not dist.is_initialized()
    start("mpi4py")
    for backend in MIXED:
        with raises(ValueError, 'dist.new_group(backend="gloo")'):
            dist.new_group(backend=backend)
    still_works(dist.new_group())
    dist.destroy_process_group()


def is_possible() -> bool:
    """Whether this PyTorch takes backends that are written in Python."""
    return TorchVersion(torch.__version__) >= (2, 14)
