"""Ranks die one after the other, and the rest go on, in one start of four ranks.

A program for :mod:`tests.torch_mpi4py.test_shrink`; each part prints a line on the ranks that
passed it.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from array import array
from datetime import timedelta

import torch
import torch.distributed as dist
import torch_mpi4py as mpi
from rank_by_rank.lesson_12.survivors import catch_up, unwrapped
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch_mpi4py.comm.guarded_comm import duplicate_world
from torch_mpi4py.core.base_comm import base
from torch_mpi4py.core.runtime import MPI
from torch_mpi4py.faults import comm_reaper

from tests.torch_mpi4py.helpers import equal, raises, still_works

BATCH = 12  # samples; divides among 3 ranks and among 2
STEPS = 8
LAST_STEP_OF_THREE = 3


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def all_have(what: str) -> None:
    """Return when all ranks have come here, without MPI.

    Who has left a collective, and dies or revokes, may end it for the others, who have not.
    """
    store = dist.distributed_c10d._get_default_store()
    store.add(what, 1)
    deadline = time.monotonic() + 60
    while store.add(what, 0) < dist.get_world_size():
        assert time.monotonic() < deadline, f"not all ranks have {what}"
        time.sleep(0.01)


def passed(part: str) -> None:
    print(f"rank {dist.get_rank()} of {dist.get_world_size()} passed: {part}", flush=True)


def rank_0_dies_in_a_collective() -> None:
    """It served the store, and a sub-group shrinks before the world does."""
    rank = dist.get_rank()
    mpi.world().timeout = 17
    pair = dist.new_group([0, 2, 3])
    everyone = MPI.Intracomm.Dup(base())
    kept = torch.full((3,), float(rank))
    if rank == 0:
        dist.all_reduce(torch.ones(3))
        die()
    with raises(mpi.RankFailedError, "rank 0 died", "torch_mpi4py.shrink()"):
        dist.all_reduce(torch.ones(3))
        dist.all_reduce(torch.ones(3))
    if rank in (2, 3):
        with raises(mpi.RankFailedError, "rank 0 died"):
            dist.all_reduce(torch.ones(3), group=pair)
        pair = pair.shrink()
        assert dist.get_process_group_ranks(pair) == [2, 3]
        still_works(pair)
        dist.all_reduce(torch.ones(2), group=pair, async_op=True).get_future().then(
            lambda _: dist.all_reduce(torch.ones(2), group=pair)  # meets at the new store
        ).wait()
    shrunk = mpi.shrink()
    assert shrunk == ([0], [1, 2, 3], rank - 1, 3), shrunk
    assert (dist.get_rank(), dist.get_world_size()) == (rank - 1, 3)
    assert dist.group.WORLD.timeout == timedelta(seconds=20)
    assert mpi.world().timeout == 17
    equal(kept, [float(rank)] * 3)
    memory_of_a_farewell_is_not_used_again(everyone)
    passed("rank 0 died in a collective")


def memory_of_a_farewell_is_not_used_again(comm: MPI.Intracomm) -> None:
    """Rank 1 can't say farewell to rank 0, which has died; a message of rank 3 still comes."""
    rank, second = comm.Get_rank(), comm_reaper._LAST_TAG - 1
    if rank == 1:
        retired = comm_reaper._Retired(comm, begun=0)
        deadline = time.monotonic() + 30
        while retired.is_under_way():
            assert time.monotonic() < deadline, "it waits for the dead"
        later = [array("q", [7, 7]) for _ in range(1000)]
    all_have("given their farewell up")
    if rank == 3:
        comm.Isend([array("q", [0, 0]), MPI.INT64_T], 1, second).Wait()
    all_have("sent the second message of a farewell")
    if rank == 1:
        assert retired.farewell is None
        for _ in range(100):
            MPI.COMM_SELF.Iprobe()
        assert all(one == array("q", [7, 7]) for one in later)


def everything_works_again() -> None:
    still_works()
    rank, size = dist.get_rank(), dist.get_world_size()
    assert mpi.world().allreduce(1) == size
    assert mpi.renew_world().allgather(rank) == list(range(size))
    assert duplicate_world(10).allreduce(1) == base().Get_size() == size
    group = dist.new_group([0, 2])
    if rank != 1:
        still_works(group)
    dist.destroy_process_group()
    dist.init_process_group("mpi4py", init_method="mpi://", timeout=timedelta(seconds=20))
    still_works()
    all_have("communication made anew")
    passed("communication made anew")


def shrink_without_a_death_is_a_renewal() -> None:
    rank = dist.get_rank()
    assert mpi.shrink() == ([], [0, 1, 2], rank, 3)
    still_works()
    all_have("shrunk without a death")


def shrink_without_one_survivor_has_a_deadline() -> None:
    if dist.get_rank() != 2:
        with raises(mpi.DeadlineError, " Timed out ", "not every living rank", "within 0.5 s"):
            mpi.shrink(0.5)
    all_have("met, or given up")
    assert mpi.shrink().dead == []  # and the call that was begun goes on
    still_works()


def dies_in_the_middle_of_a_backward() -> None:
    """Three ranks, then two: the losses are those of one process with the same batches."""
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(STEPS, BATCH, 10, dtype=torch.float64, generator=generator)
    targets = torch.randn(STEPS, BATCH, 2, dtype=torch.float64, generator=generator)
    model, optimizer = new_model()
    ddp = wrapped(model)
    losses: list[float] = []
    deaths = 0
    while len(losses) < STEPS:
        step, rank, size = len(losses), dist.get_rank(), dist.get_world_size()
        if size == 3 and step == LAST_STEP_OF_THREE:
            all_have("ended the step before")
        if size == 3 and step == LAST_STEP_OF_THREE and rank == 1:
            # The gradients of the layers behind have been reduced by now, these not yet.
            next(model.parameters()).register_post_accumulate_grad_hook(lambda _: die())
        try:
            share = slice(rank, None, size)
            loss = nn.functional.mse_loss(ddp(inputs[step, share]), targets[step, share])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        except mpi.RankFailedError as error:
            assert "rank 1 died" in str(error), error
            model = unwrapped(ddp)
            assert mpi.shrink().dead == [1]
            assert catch_up(model, optimizer, step) == step
            ddp = wrapped(model)
            deaths += 1
            continue
        mean = loss.detach().clone()
        dist.all_reduce(mean, dist.ReduceOp.AVG)
        losses.append(mean.item())
    assert deaths == 1
    expected, weights = serial(inputs, targets)
    # Sums of 12 float64 in another order, over 8 steps: 1e-15 each, with room to grow.
    torch.testing.assert_close(torch.tensor(losses), torch.tensor(expected), rtol=1e-12, atol=0)
    for mine, theirs in zip(model.parameters(), weights, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-11, atol=1e-13)
    passed("a death in the middle of a backward")


def new_model() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 16), nn.Tanh(), nn.Linear(16, 2)).double()
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def wrapped(model: nn.Module) -> DistributedDataParallel:
    return DistributedDataParallel(model, bucket_cap_mb=1e-4)  # a bucket for each tensor


def serial(inputs: torch.Tensor, targets: torch.Tensor) -> tuple[list[float], list[torch.Tensor]]:
    """The losses and the weights of one process that takes each batch as a whole."""
    model, optimizer = new_model()
    losses = []
    for batch, target in zip(inputs, targets, strict=True):
        loss = nn.functional.mse_loss(model(batch), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, list(model.parameters())


def dies_while_another_waits_for_its_message() -> None:
    if dist.get_rank() == 1:
        dist.send(torch.ones(2), 0)
        all_have("received")
        die()
    dist.recv(torch.ones(2), 1)
    all_have("received")
    with raises(mpi.RankFailedError, "rank 1 died"):
        dist.recv(torch.ones(2), 1)
    with raises(mpi.RankFailedError, "new communicator: rank 1 died"):
        mpi.renew_world()
    assert dist.group.WORLD.shrink() is dist.group.WORLD
    still_works()
    passed("a death while another waits")


def main() -> None:
    """Die down to one rank."""
    dist.init_process_group("mpi4py", init_method="mpi://", timeout=timedelta(seconds=20))
    rank_0_dies_in_a_collective()
    everything_works_again()
    shrink_without_a_death_is_a_renewal()
    shrink_without_one_survivor_has_a_deadline()
    dies_in_the_middle_of_a_backward()
    dies_while_another_waits_for_its_message()
    sys.exit(7)


if __name__ == "__main__":
    main()
