"""Groups within the world have ranks, order and traffic of their own."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import sys
import time
import warnings
import weakref
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch_mpi4py as mpi
from torch_mpi4py import MPI, CommunicationError, RevokedError
from torch_mpi4py.faults import comm_reaper, deadlines
from torch_mpi4py.log import events

from tests.ranks import GROUP_SECONDS, case
from tests.torch_mpi4py.cases.collectives import same, total, values
from tests.torch_mpi4py.helpers import raises, still_works


def start() -> None:
    dist.init_process_group(
        "mpi4py", init_method="mpi://", timeout=timedelta(seconds=GROUP_SECONDS)
    )


def comes_true(condition: Callable[[], bool]) -> bool:
    """Return whether ``condition`` comes true once other threads and ranks have had their turn."""
    deadline = time.monotonic() + 20
    while True:
        if gc.isenabled():
            gc.collect()
        if condition() or time.monotonic() > deadline:
            return condition()
        time.sleep(0.01)


def open_files() -> Counter[str]:
    """Count the process's open files by kind; a socket's or pipe's number does not matter."""
    names: Counter[str] = Counter()
    if sys.platform == "linux":
        for number in os.listdir("/proc/self/fd"):
            with contextlib.suppress(FileNotFoundError):  # that of the folder itself is closed
                names[os.readlink(f"/proc/self/fd/{number}").partition(":[")[0]] += 1
    return names


def case_identity(rank, size):
    assert dist.get_rank() == rank
    assert dist.get_world_size() == size
    assert dist.is_initialized()
    if dist.get_backend() != "gloo":
        assert dist.get_backend() == "mpi4py"
    assert dist.get_process_group_ranks(None) == list(range(size))


@case(sizes=(2, 3, 4))
def case_part_of_the_world(rank, size):
    members = list(range(1, size))
    group = dist.new_group(members)
    if rank in members:
        assert dist.get_rank(group) == rank - 1
        tensor = values(rank, 3)
        dist.all_reduce(tensor, group=group)
        same(tensor, sum(values(r, 3) for r in members))
        dist.broadcast(tensor, src=1, group=group)
        dist.broadcast(tensor, group_src=len(members) - 1, group=group)
    else:
        assert dist.get_rank(group) == -1
    dist.barrier()


@case(sizes=(2, 3, 4))
def case_roots_are_global_ranks(rank, size):
    members = list(range(1, size))
    group = dist.new_group(members)
    if rank in members:
        root = size - 1
        tensor = values(rank, 2)
        dist.broadcast(tensor, src=root, group=group)
        same(tensor, values(root, 2))
        outputs = [torch.zeros(2) for _ in members] if rank == root else None
        dist.gather(values(rank, 2), outputs, dst=root, group=group)
        if rank == root:
            same(torch.stack(outputs), torch.stack([values(r, 2) for r in members]))


@case(sizes=(3, 4))
def case_messages_in_a_group(rank, size):
    """Source and destination are global ranks, also of a receive from any source."""
    group = dist.new_group([1, 2])
    if rank == 1:
        dist.send(values(1, 2), 2, group=group)
        tensor = torch.zeros(2)
        assert dist.recv(tensor, group=group) == 2
        same(tensor, values(2, 2))
    elif rank == 2:
        tensor = torch.zeros(2)
        assert dist.recv(tensor, 1, group=group) == 1
        same(tensor, values(1, 2))
        dist.send(values(2, 2), 1, group=group)


@case(sizes=(2, 3, 4))
def case_several_groups_at_once(rank, size):
    """Overlapping groups do not mix their traffic, whatever the order of waiting."""
    everyone = [dist.new_group(list(range(size))) for _ in range(3)]
    tensors = [values(rank + 5 * i, 1000) for i in range(3)]
    order = range(3) if rank % 2 == 0 else reversed(range(3))
    works = {i: dist.all_reduce(tensors[i], group=everyone[i], async_op=True) for i in order}
    for i in range(3):
        works[i].wait()
        same(tensors[i], sum(values(r + 5 * i, 1000) for r in range(size)))


@case(sizes=(2, 3, 4))
def case_rank_outside_the_group_may_leave_first(rank, size):
    """Rank 0, which serves the store, destroys its group while the others make theirs."""
    if rank == 0:
        dist.new_group(list(range(1, size)))
        dist.destroy_process_group()
        return
    time.sleep(0.3)  # what is tested is being late
    group = dist.new_group(list(range(1, size)))
    tensor = values(rank, 2)
    dist.all_reduce(tensor, group=group)
    same(tensor, sum(values(r, 2) for r in range(1, size)))


@case(sizes=(4,))
def case_new_subgroups(rank, size):
    mine, groups = dist.new_subgroups(2)
    assert len(groups) == 2
    tensor = values(rank, 2)
    dist.all_reduce(tensor, group=mine)
    first = rank // 2 * 2
    same(tensor, values(first, 2) + values(first + 1, 2))
    mine, _ = dist.new_subgroups_by_enumeration([[0, 2], [1, 3]])
    tensor = values(rank, 2)
    dist.all_reduce(tensor, group=mine)
    same(tensor, values(rank % 2, 2) + values(rank % 2 + 2, 2))


@case(sizes=(4,))
def case_device_mesh(rank, size):
    mesh = dist.init_device_mesh(
        torch.get_default_device().type, (2, 2), mesh_dim_names=("rows", "columns")
    )
    tensor = values(rank, 2)
    dist.all_reduce(tensor, group=mesh.get_group("columns"))
    first = rank // 2 * 2
    same(tensor, values(first, 2) + values(first + 1, 2))
    tensor = values(rank, 2)
    dist.all_reduce(tensor, group=mesh["rows"].get_group())
    same(tensor, values(rank % 2, 2) + values(rank % 2 + 2, 2))
    assert list(mesh.get_coordinate()) == [rank // 2, rank % 2]


@case(sizes=(2, 3, 4))
def case_destroy_one_group(rank, size):
    one, other = dist.new_group(list(range(size))), dist.new_group(list(range(size)))
    dist.all_reduce(values(rank, 2), group=one)
    dist.destroy_process_group(one)
    tensor = values(rank, 2)
    dist.all_reduce(tensor, group=other)
    same(tensor, total(size, 2))


@case(group=False, seconds=120)
def case_repeated_init_and_destroy(rank, size):
    for i in range(10):
        start()
        tensor = values(rank, 3) + i
        dist.all_reduce(tensor)
        same(tensor, total(size, 3) + i * size)
        half = dist.new_group(list(range(max(1, size // 2))))
        if rank < max(1, size // 2):
            dist.barrier(group=half)
        dist.destroy_process_group()
        assert not dist.is_initialized()


@case(group=False, seconds=120)
def case_renewing_the_world_leaks_no_communicators_or_sockets(rank, size):
    """Only communicators that are still referenced remain, and no sockets."""
    held = mpi.renew_world()
    handles, files = set(), open_files()
    for turn in range(12):
        comm = mpi.renew_world()
        start()
        group = dist.group.WORLD
        if size > 1:
            comm.send("stale", dest=(rank + 1) % size)
        dist.all_reduce(values(rank, 3))
        handles |= {comm.handle, group.comm.handle}
        dist.destroy_process_group()
        gc.collect()
        comm.Barrier()  # until it has destroyed its group, each rank has a socket on rank 0
        if turn == 4:
            files = open_files()
    assert len(handles) < 16 or not deadlines.has_ulfm(), len(handles)
    assert comm_reaper.count() < 12, comm_reaper.count()
    few = comes_true(lambda: open_files().total() <= files.total())
    assert few, open_files() - files
    assert held.handle not in handles  # it would have been free for another to use
    assert held.Get_size() == size
    comm = mpi.renew_world()
    request = comm.isend(f"from {rank}", dest=(rank + 1) % size)
    assert comm.recv() == f"from {(rank - 1) % size}"
    request.wait()
    assert group.get_group_store() is None


@case(seconds=120)
def case_destroyed_groups_leak_no_communicators_or_messages(rank, size):
    """Unreceived messages are not delivered to a later group."""
    if dist.get_backend() == "gloo":
        return
    last = size - 1
    handles = set()
    for turn in range(150):
        members = list(range(size)) if turn % 2 else sorted({0, last})
        group = dist.new_group(members)
        if rank in members:
            handles.add(group.comm.handle)
            tensor = values(rank, 3)
            dist.all_reduce(tensor, group=group)
            same(tensor, sum(values(r, 3) for r in members))
            if size > 1 and rank == 0:
                for number in (1, 100_000):
                    dist.isend(torch.full((number,), -1.0), last, group=group)
            elif size > 1 and rank == last and turn % 10 == 9:
                # No rank sends, so the communicator of this group stays.
                dist.irecv(values(0, 1), 0, tag=7, group=group)
            dist.destroy_process_group(group)
        del group
    gc.collect()
    dist.barrier()
    dist.destroy_process_group()
    start()
    assert comm_reaper.count() < 60, comm_reaper.count()
    # Of 150. A handle of Open MPI's is an address, which its version 4 uses again less often.
    assert len(handles) < 135, len(handles)
    if rank == 0 and size > 1:
        dist.send(values(0, 1), last)
    elif rank == last and size > 1:
        tensor = torch.zeros(1)
        dist.recv(tensor, 0)
        same(tensor, values(0, 1))


@case(sizes=(1, 2))
def case_communicator_reusing_a_freed_handle(rank, size):
    """It has a name and members of its own in the log, whoever has freed the other."""
    if dist.get_backend() == "gloo":
        return
    world = mpi.world()
    for turn in range(4):
        child = world.Split(rank, 0) if turn % 2 else MPI.COMM_SELF.Dup()
        assert events.log.group_of(child).ranks == (rank,)
        handle = child.handle
        MPI.Intracomm(child).Free() if turn > 1 else child.Free()
        assert handle not in events.log._groups  # whether MPI uses it again now is up to malloc
        fresh = MPI.COMM_WORLD.Dup()
        fresh.Set_name(f"fresh {turn}")
        known = events.log.group_of(fresh)
        assert (known.name, known.ranks) == (f"fresh {turn}", tuple(range(size))), known
        fresh.Free()


@case(group=False)
def case_very_long_timeout(rank, size):
    """Longer than the 292 years that Python's locks know."""
    dist.init_process_group("mpi4py", init_method="mpi://", timeout=timedelta(days=200_000))
    group = dist.new_group(timeout=timedelta(days=200_000))
    group.set_timeout(timedelta(days=300_000))
    for each in (group, None):
        works = [dist.all_reduce(values(rank, 3), group=each, async_op=True) for _ in range(3)]
        works[0].get_future().then(lambda done: 1).wait()
        for work in works:
            work.wait(timedelta(days=200_000))
        if size > 1:
            to, of = (rank + 1) % size, (rank - 1) % size
            sent = dist.isend(values(rank, 3), to, group=each)
            dist.irecv(values(rank, 3), of, group=each).wait(timedelta(days=200_000))
            sent.wait()
    comm = mpi.world()
    comm.timeout = float("inf")
    assert comm.allreduce(1) == size
    dist.destroy_process_group()


@case(sizes=(2,))
def case_timeout_set_by_torchs_function(rank, size):
    group = dist.new_group()
    for each in (group, None):
        usual = (each or dist.group.WORLD).timeout
        dist.distributed_c10d._set_pg_timeout(timedelta(seconds=17), each)
        assert (each or dist.group.WORLD).timeout == timedelta(seconds=17)
        dist.distributed_c10d._set_pg_timeout(usual, each)
    still_works(group)


@case(group=False, sizes=(1,), seconds=90)
def case_running_out_of_communicators_raises(rank, size):
    """The error says what is used up and what to do."""
    made, world = [], mpi.world()
    with contextlib.suppress(MPI.Exception):
        while True:
            made.append(MPI.COMM_SELF.Dup())
    try:
        for make in (mpi.renew_world, world.Dup, start):
            try:
                make()
            except mpi.CommunicationError as error:
                assert "used up its communicators" in str(error)
                assert "Start the program again" in str(error)
            else:
                raise AssertionError(f"{make} made a communicator")
    finally:
        for comm in made:
            comm.Free()
    assert mpi.renew_world().allreduce(1) == 1


@case(group=False)
def case_gloo_and_mpi4py_groups_coexist(rank, size):
    """gloo and mpi4py groups live in the same ranks, as benchmarks need."""
    start()
    gloo = dist.new_group(list(range(size)), backend="gloo")
    # It goes last: it joins gloo's threads without the interpreter's lock, for which one of them
    # may still wait to let go of a tensor. The group itself would join them with the lock held.
    last = gloo._get_backend(torch.device("cpu"))
    for group in (gloo, None, gloo, None):
        tensor = values(rank, 3)
        dist.all_reduce(tensor, group=group)
        same(tensor, total(size, 3))
    dist.destroy_process_group()
    del gloo
    del last


@case(group=False)
def case_call_on_destroyed_group_raises(rank, size):
    start()
    group = dist.group.WORLD
    dist.destroy_process_group()
    with contextlib.suppress(ValueError, RuntimeError):
        group.allreduce([torch.ones(1)])
        raise AssertionError("a destroyed group took a call")
    start()
    tensor = values(rank, 1)
    dist.all_reduce(tensor)
    same(tensor, total(size, 1))
    dist.destroy_process_group()


@case(sizes=(2, 3), group=False, seconds=120)
def case_destroying_a_group_frees_ranks_waiting_for_it(rank, size):
    """As a rank does that was interrupted before their call, and makes a new group at once."""
    last = size - 1
    ones, many = torch.ones(3), torch.ones(500_000)
    calls = [
        (0, "making this call", lambda: dist.all_reduce(ones)),
        (last, "making this call", dist.new_group),
        (0, "making this call", dist.new_group),
        (last, "making this call", mpi.monitored_barrier),
        (last, "sending this message", lambda: dist.recv(ones, last)),
        (0, "receiving this message", lambda: dist.send(many, 0)),
    ]
    if MPI.get_vendor()[0] == "Intel MPI":  # it takes a message of any length that nobody receives
        calls.pop()
    for goes, without, call in calls:
        start()
        if rank != goes:
            why = f"rank {goes} destroyed its process group without {without}"
            # Of several, the first that notices it frees the others.
            with raises(RevokedError, why if size == 2 else ""):
                call()
        dist.destroy_process_group()
    start()
    tensor = values(rank, 3)
    dist.all_reduce(tensor)
    same(tensor, total(size, 3))
    dist.destroy_process_group()


@case(group=False, seconds=120)
def case_default_arguments_of_torch_follow_the_current_group(rank, size):
    """PyTorch's functions with gradients would keep the group that was there at their import."""
    for _ in range(2):
        start()
        torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)  # imports half of PyTorch
        tensor = values(rank, 3).requires_grad_()
        summed = torch.distributed.nn.functional.all_reduce(tensor)
        same(summed.detach(), total(size, 3))
        group = weakref.ref(dist.group.WORLD)
        dist.destroy_process_group()
        del tensor, summed
        # The watcher looks at this thread's frames ten times a second, and holds them meanwhile.
        assert comes_true(lambda group=group: group() is None), "something keeps a destroyed group"


@case(sizes=(2,))
def case_destroyed_group_is_freed_without_the_garbage_collector(rank: int, size: int) -> None:
    gc.disable()
    try:
        group: Any = dist.new_group()
        dist.all_reduce(torch.ones(1), group=group)
        work = dist.all_reduce(torch.ones(1), group=group, async_op=True)
        work.get_future().then(lambda done: 1).wait()
        comm = weakref.ref(group._channels[0].comm)
        dist.destroy_process_group(group)
        del group, work
        assert comes_true(lambda: comm() is None), "a cycle keeps the communicator"
    finally:
        gc.enable()


@case(sizes=(2,))
def case_forked_child_does_not_take_the_place_of_its_rank(rank: int, size: int) -> None:
    told, tell = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python warns of threads that the child lacks
        child = os.fork()
    if child == 0:
        text = "no error"
        try:
            dist.all_reduce(torch.full((1,), 100.0))
        except CommunicationError as error:
            text = str(error)
        finally:
            os.write(tell, text.encode())
            os._exit(0)
    os.close(tell)
    with os.fdopen(told) as answer:
        text = answer.read()
    os.waitpid(child, 0)
    assert "forked from a rank" in text, text
    still_works()


@case(sizes=(3, 4), group=False)
def case_no_rank_is_stuck_in_new_group_when_others_give_up_the_default_group(rank, size):
    """Open MPI 5 left a member indefinitely in the call that makes a group from a revoked one."""
    chance, made = random.Random(rank), 0
    for number in range(16):
        start()
        if rank < 2:
            with contextlib.suppress(RevokedError):  # it was given up before they met
                pair = dist.new_group([0, 1], use_local_synchronization=True)
                tensor = values(rank, 3)
                dist.all_reduce(tensor, group=pair)
                same(tensor, total(2, 3))
                made += 1
        else:
            # They meet within some 5 ms; a busy machine may take a thousand times as long.
            time.sleep(5e-3 * chance.random() * 4 ** max(number - 11, 0))
            dist.group.WORLD.abort()
        dist.destroy_process_group()
    start()
    most = torch.tensor(made)
    dist.all_reduce(most, dist.ReduceOp.MAX)
    assert rank > 1 or most == made > 0
    dist.destroy_process_group()
