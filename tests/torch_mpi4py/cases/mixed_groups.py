"""Groups whose devices have backends of their own, as ``"cpu:gloo,cuda:mpi4py"`` asks for them."""

from __future__ import annotations

import pickle
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed import distributed_c10d as c10d
from torch.torch_version import TorchVersion
from torch_mpi4py import (
    ClosedGroupError,
    DeadlineError,
    MismatchError,
    RevokedError,
    Traffic,
    shrink,
)
from torch_mpi4py.log.live_groups import live_groups

from tests.ranks import GROUP_SECONDS, case
from tests.torch_mpi4py.cases.collectives import same, total, values
from tests.torch_mpi4py.helpers import raises, still_works

OURS_ALONE = ("mpi4py", "cpu:mpi4py", "cuda:mpi4py", "cpu:mpi4py,cuda:mpi4py")
LATE_SECONDS = 0.5
MIXED = ("cpu:gloo,cuda:mpi4py", "cpu:mpi4py,cuda:gloo")


def is_possible() -> bool:
    """Whether this PyTorch makes all backends alike."""
    return TorchVersion(torch.__version__) >= (2, 14)


SIZES = (2, 3, 4) if is_possible() else (0,)
mixed = case(group=False, sizes=SIZES)


def start(backend: str, seconds: float = GROUP_SECONDS) -> None:
    timeout = timedelta(seconds=seconds)
    dist.init_process_group(backend, init_method="mpi://", timeout=timeout)


@case(group=False)
def case_mpi4py_for_all_named_devices(rank, size):
    for backend in OURS_ALONE:
        start(backend)
        group = dist.new_group(backend=backend)
        for each in (None, group):
            tensor = values(rank, 3)
            dist.all_reduce(tensor, group=each)
            same(tensor, total(size, 3))
        dist.destroy_process_group()


@case(group=False, sizes=(0,) if is_possible() else ())
def case_unsupported_backend_combination_raises(rank, size):
    """The error says what to write, and what it says works."""
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


@case(group=False, sizes=(0,) if is_possible() else (2, 3, 4))
def case_refused_ranks_wait_for_each_other(rank, size):
    """A rank that drops its part of the other backend would disturb those still making theirs."""
    start("mpi4py")
    for backend in MIXED:
        began = time.perf_counter()
        dist.barrier()
        time.sleep(LATE_SECONDS if rank == size - 1 else 0)
        with raises(ValueError, 'dist.new_group(backend="gloo")'):
            dist.new_group(backend=backend)
        assert time.perf_counter() >= began + LATE_SECONDS, backend
    dist.destroy_process_group()


def all_reduces_of_ours(call) -> int:
    """Return how many all-reduces the call has this backend do."""
    with Traffic() as traffic:
        call()
    return traffic.collectives.get("all_reduce", (0,))[0]


@mixed
def case_each_device_has_the_backend_that_was_named(rank, size):
    for backend in MIXED:
        start(backend)
        ours = backend.startswith("cpu:mpi4py")
        for group in (None, dist.new_group(), dist.new_group(backend=backend)):
            wanted = group or dist.group.WORLD
            names = {
                device: wanted._get_backend(torch.device(device)).name()
                for device in ("cpu", "cuda")
            }
            assert f"cpu:{names['cpu']},cuda:{names['cuda']}" == backend, names
            assert all_reduces_of_ours(lambda group=group: still_works(group)) == ours
        assert dist.get_backend() == backend
        assert dist.new_group(backend="mpi4py").backend == "mpi4py"
        dist.destroy_process_group()


@mixed
def case_call_with_tensors_of_two_backends_raises(rank, size):
    start("cpu:mpi4py,cuda:gloo")
    with FakeTensorMode(allow_non_fake_inputs=True):
        gpu = torch.ones(2, device="cuda")
    with raises(
        ValueError, "tensors on cpu and cuda", "cpu:mpi4py,cuda:gloo", "one call per device"
    ):
        dist.group.WORLD.allreduce_coalesced([torch.ones(2), gpu])
    still_works()
    dist.destroy_process_group()


@mixed
def case_subgroups_of_a_mixed_group(rank, size):
    for backend in MIXED:
        start(backend)
        part = dist.new_group([1, 0])
        split = dist.group.WORLD.split_group([1, 0])
        if rank < 2:
            for group in (part, split):
                assert group.backend == backend
                tensor = values(rank, 3)
                dist.all_reduce(tensor, group=part)
                same(tensor, total(2, 3))
            tensor = values(rank, 3)
            split.allreduce([tensor]).wait()
            same(tensor, total(2, 3))
            split.shutdown()
        else:
            assert split is None
        with raises(ValueError, "all of its backends"):
            dist.group.WORLD.split_group([0], device_types=[torch.device("cpu")])
        with raises(NotImplementedError, "merge_remote_group"):
            dist.group.WORLD.merge_remote_group(dist.HashStore(), 1)
        dist.destroy_process_group()


@mixed
def case_call_on_destroyed_group_raises(rank, size):
    for backend in MIXED:
        start(backend)
        group = dist.group.WORLD
        dist.destroy_process_group()
        with raises(ClosedGroupError, "all_reduce"):
            group.allreduce([torch.ones(2)])
        assert group not in live_groups


@mixed
def case_deadline_and_mismatch_errors(rank, size):
    start("cpu:mpi4py,cuda:gloo")
    group = dist.new_group(timeout=timedelta(seconds=1))
    for asynchronous in (False, True):
        with raises(MismatchError, "rank 0: ", "rank 1: "):
            work = dist.all_reduce(torch.ones(3 + (rank == 0)), group=group, async_op=asynchronous)
            work.wait()
        still_works(group)
    dist.barrier()
    if rank == 0:
        with raises(DeadlineError, "monitored_barrier", "rank 1"):
            group.monitored_barrier(timedelta(seconds=0.2))
    dist.barrier()
    if rank:
        with raises((DeadlineError, RevokedError), "all_reduce", "rank 0: waiting in barrier"):
            dist.all_reduce(torch.ones(3), group=group, async_op=True).wait()
    dist.barrier()  # the default group goes on
    still_works()
    dist.destroy_process_group()


@case(group=False, sizes=SIZES, mpi="openmpi")  # others can't shrink
def case_renewed_group_has_the_same_backends(rank, size):
    for backend in MIXED:
        start(backend)
        part = dist.new_group([0, 1])
        still_works()  # so the group is made before any rank gives its parent up
        if rank < 2:
            part = part.shrink()
            assert part.backend == backend
            still_works(part)
        shrink()
        assert dist.get_backend() == dist.group.WORLD.backend == backend
        still_works()
        dist.destroy_process_group()


@mixed
def case_failure_to_create_the_other_backend(rank, size):
    start("cpu:mpi4py,cuda:gloo")  # which registers it
    dist.destroy_process_group()
    plugin = dist.Backend._plugins["GLOO"]

    def refuse(*_):
        raise RuntimeError("no gloo today")

    dist.Backend._plugins["GLOO"] = plugin._replace(creator_fn=refuse)
    try:
        before = set(live_groups)
        with raises(RuntimeError, "no gloo today"):
            start("cpu:mpi4py,cuda:gloo")
        assert live_groups == before
    finally:
        dist.Backend._plugins["GLOO"] = plugin
    start("cpu:mpi4py,cuda:gloo")
    still_works()
    dist.destroy_process_group()


@mixed
def case_debug_level_detail(rank, size):
    """PyTorch compares the calls of the other backend, as it would without us."""
    before, wrap = dist.get_debug_level(), c10d._create_process_group_wrapper
    wrapped = []

    def note(**given):
        wrapped.append(type(given["wrapped_pg"]).__name__)
        return wrap(**given)

    dist.set_debug_level(dist.DebugLevel.DETAIL)
    c10d._create_process_group_wrapper = note
    try:
        start("cpu:mpi4py,cuda:gloo")
        still_works()
        dist.destroy_process_group()
        start("cpu:gloo,cuda:mpi4py")
        still_works()
        assert wrapped == ["ProcessGroupGloo"] * 2, wrapped
        with raises(RuntimeError, "Detected mismatch between collectives on ranks"):
            dist.all_reduce(torch.ones(3 + (rank == 0)))
        dist.destroy_process_group()
    finally:
        dist.set_debug_level(before)
        c10d._create_process_group_wrapper = wrap


@mixed
def case_flight_recorder_records_the_other_backend(rank, size):
    start("cpu:gloo,cuda:mpi4py")
    still_works()
    record = pickle.loads(_distributed_c10d._dump_fr_trace(True, False, False))
    last = record["entries"][-1]
    assert last["profiling_name"] == "gloo:all_reduce", last
    assert last["process_group"][1] == "default_pg", last
    dist.destroy_process_group()
