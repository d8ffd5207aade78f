"""Every case of the battery is a test of its own, per MPI and number of ranks.

One ``mpiexec`` is started per MPI and number of ranks, for the cases that were selected.
"""

from __future__ import annotations

import pytest

from tests import ranks
from tests.torch_mpi4py.cases import mixed_groups

OPERATIONS = (
    *("collectives", "point_to_point", "objects", "dtypes", "groups", "functional"),
    *("events", "progress", "overloads", "sparse", "futures", "buffers", "meeting", "stand_ins"),
    *("doorbell", "shared_sums", "remote_sums", "mixed_groups"),
)
TRAINING = ("data_parallel", "sharded", "pipelines", "torch_features")
# MPICH keeps a core busy per waiting rank: with more ranks than cores it is slow, not wrong.
LAUNCHES = {
    ("openmpi", 1): OPERATIONS + TRAINING,
    ("openmpi", 2): (*OPERATIONS, *TRAINING, "compiled"),
    ("openmpi", 3): OPERATIONS + TRAINING,
    ("openmpi", 4): OPERATIONS + TRAINING,
    ("mpich", 1): OPERATIONS + TRAINING,
    ("mpich", 2): OPERATIONS + TRAINING,
    ("mpich", 3): OPERATIONS + TRAINING,
    ("mpich", 4): OPERATIONS + TRAINING,
}
PARAMETERS = [
    ranks.parameter(mpi, n, case, id=f"{mpi}-{n}-{case.removeprefix('tests.torch_mpi4py.cases.')}")
    for (mpi, n), modules in LAUNCHES.items()
    for module in modules
    for case in ranks.cases_of(f"tests.torch_mpi4py.cases.{module}", n, mpi)
]
# On one of several backends (PyTorch 2.14): what a group of ours does, and what gloo does in ours.
MIXED = {
    "cpu:mpi4py,cuda:gloo": ("point_to_point", "objects", "functional", "futures", *TRAINING[:2]),
    "cpu:gloo,cuda:mpi4py": ("objects", "functional"),
}
PARAMETERS += [
    ranks.parameter(
        "openmpi", n, case, id=f"{backend}-{n}-{case.rpartition('.')[2]}", backend=backend
    )
    for backend, modules in (MIXED if mixed_groups.is_possible() else {}).items()
    for n in (2, 4)
    for module in modules
    for case in ranks.cases_of(f"tests.torch_mpi4py.cases.{module}", n, "openmpi")
]


@pytest.mark.timeout(600)  # the first one waits for a start of ranks and their imports
@pytest.mark.parametrize(("mpi", "n", "case"), PARAMETERS)
def test_case(mpi, n, case, rank, size):
    ranks.run_case(case, rank, size)
