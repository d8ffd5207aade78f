"""The one idea: what a process group is asked to do is written down, from Python and from C++."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from course_lib.teaching.group_log import GroupCall, bytes_of, group_calls, rounds_of


def case_operations_and_their_bytes(rank, size):
    """Bytes are those of the caller's own data, in the order of the calls."""
    mine = torch.zeros(3)
    with group_calls() as log:
        dist.all_reduce(mine)
        dist.broadcast(torch.zeros(5, dtype=torch.int64), src=0)
        dist.all_gather([torch.zeros(3) for _ in range(size)], mine)
        dist.all_gather_into_tensor(torch.zeros(3 * size), mine)
        dist.reduce_scatter_tensor(torch.zeros(2), torch.zeros(2 * size))
        dist.barrier()
    sizes = [(call.nbytes, call.dtype) for call in log]
    floats = torch.float32
    assert sizes[:4] == [(12, floats), (40, torch.int64), (12, floats), (12, floats)], log
    assert sizes[4:] == [(8 * size, floats), (0, None)], log
    assert log[0] == GroupCall("allreduce", floats, 12)
    assert (bytes_of(log, "allreduce", "broadcast"), rounds_of(log)) == (52, 1)
    assert bytes_of(log) == 12 + 40 + 12 + 12 + 8 * size


def case_nothing_is_written_down_afterwards(rank, size):
    group = dist.group.WORLD
    before = dict(group.__dict__)
    with group_calls() as outer:
        with group_calls() as inner:
            dist.all_reduce(torch.zeros(1))
        dist.all_reduce(torch.zeros(1))
    dist.all_reduce(torch.zeros(1))
    assert (rounds_of(outer), rounds_of(inner)) == (2, 1)
    assert group.__dict__.keys() == before.keys()


def case_data_parallel_calls_from_outside_python(rank, size):
    """One all-reduce per bucket in backward, none under no_sync."""
    model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False))
    ddp = DistributedDataParallel(model, bucket_cap_mb=1e-4)
    rounds = []
    for _ in range(2):
        with group_calls() as log:
            ddp(torch.ones(1, 8)).sum().backward()
        rounds.append((rounds_of(log), bytes_of(log, "allreduce")))
    assert rounds == [(1, 512), (2, 512)]
    with group_calls() as log, ddp.no_sync():
        ddp(torch.ones(1, 8)).sum().backward()
    assert rounds_of(log) == 0


def case_another_backend_is_refused(rank, size):
    gloo = dist.new_group(backend="gloo")
    with pytest.raises(TypeError, match="mpi4py"), group_calls(gloo):
        pass
    dist.destroy_process_group(gloo)
