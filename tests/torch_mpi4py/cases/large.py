"""More than 2**31 elements pass where MPI's int counts would overflow.

Elements are int8 and two ranks run, so memory stays at a few GB. Pages that are only ever
zero cost nothing until touched; what is checked lies on both sides of the 2**31 line.
"""

from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as dist

from tests.ranks import case

COUNT = 2**31 + 5


def marked(rank: int) -> torch.Tensor:
    tensor = torch.zeros(COUNT, dtype=torch.int8)
    tensor[0], tensor[2**31 - 1], tensor[2**31], tensor[-1] = rank + 1, rank + 2, rank + 3, rank + 4
    return tensor


def patient_group() -> dist.ProcessGroup:
    """Return a group that has time for gigabytes on a busy machine."""
    return dist.new_group(timeout=timedelta(seconds=80))


def marks(tensor: torch.Tensor) -> list[int]:
    """Return the marked elements, after checking that all others are zero."""
    found = [tensor[i].item() for i in (0, 2**31 - 1, 2**31, -1)]
    assert torch.count_nonzero(tensor).item() == 4
    return found


@case(sizes=(2,), seconds=120, timeout=60)
def case_broadcast_and_all_reduce(rank, size):
    group = patient_group()
    tensor = marked(rank)
    dist.all_reduce(tensor, group=group)
    assert marks(tensor) == [3, 5, 7, 9]
    if rank:
        tensor.zero_()
    dist.broadcast(tensor, 0, group=group)
    assert marks(tensor) == [3, 5, 7, 9]


@case(sizes=(2,), seconds=120, timeout=60)
def case_send_and_recv(rank, size):
    group = patient_group()
    if rank == 0:
        dist.send(marked(0), 1, group=group)
    else:
        tensor = torch.zeros(COUNT, dtype=torch.int8)
        dist.recv(tensor, 0, group=group)
        assert marks(tensor) == [1, 2, 3, 4]


@case(sizes=(2,), seconds=120, timeout=60)
def case_all_gather_into_more_than_2_31(rank, size):
    """Each part fits an int; the whole does not."""
    half = 2**30 + 3
    source = torch.zeros(half, dtype=torch.int8)
    source[-1] = rank + 1
    output = torch.empty(2 * half, dtype=torch.int8)
    dist.all_gather_into_tensor(output, source, group=patient_group())
    assert output[half - 1].item() == 1
    assert output[-1].item() == 2
    assert torch.count_nonzero(output).item() == 2
