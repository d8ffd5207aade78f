"""A rank that does not do its part: the others are free soon after the time-out."""

from __future__ import annotations

import _thread
import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
import torch_mpi4py
from torch_mpi4py import CommunicationError, DeadlineError, RevokedError
from torch_mpi4py.faults import deadlines
from torch_mpi4py.log import events

from tests.torch_mpi4py.helpers import raises, sizes, still_works

TIMEOUT = 0.4
# 2 s are promised (0.1 s on two quiet cores); this machine may be far slower for moments. What
# else could free a rank, or keep it, takes longer: 20 s for a group here, 30 s for the default one.
SLACK = 12.0
FREED = (DeadlineError, RevokedError)


def brief_group() -> dist.ProcessGroup:
    """Return a new group with this time-out, which does not hold while it is made."""
    group = dist.new_group(timeout=timedelta(seconds=20))
    group.set_timeout(timedelta(seconds=TIMEOUT))
    return group


def without_rank_0(rank: int, call: Callable[[dist.ProcessGroup], object]) -> None:
    """Rank 0 stays away from ``call`` on a fresh group; the others must be freed in time."""
    group = brief_group()
    if rank:
        with raises(FREED, within=TIMEOUT + SLACK):
            call(group)
        with raises(CommunicationError, "unusable"):
            dist.all_reduce(torch.ones(1), group=group)
    dist.barrier()
    dist.destroy_process_group(group)
    still_works()


@sizes(2, 3)
def case_all_reduce(rank: int, size: int) -> None:
    without_rank_0(rank, lambda group: dist.all_reduce(torch.ones(2), group=group))


@sizes(2, 3)
def case_all_reduce_async(rank: int, size: int) -> None:
    def call(group: dist.ProcessGroup) -> None:
        dist.all_reduce(torch.ones(2), group=group, async_op=True).wait()

    without_rank_0(rank, call)


@sizes(2)
def case_first_of_many_async_calls(rank: int, size: int) -> None:
    def call(group: dist.ProcessGroup) -> None:
        works = [dist.all_reduce(torch.ones(2), group=group, async_op=True) for _ in range(5)]
        for work in works[1:]:
            with raises(CommunicationError, within=TIMEOUT + SLACK):
                work.wait()
        works[0].wait()

    without_rank_0(rank, call)


@sizes(2)
def case_future(rank: int, size: int) -> None:
    def call(group: dist.ProcessGroup) -> None:
        work = dist.all_reduce(torch.ones(2), group=group, async_op=True)
        try:
            work.get_future().then(lambda done: done.value()).wait()
        except Exception as error:
            raise DeadlineError(str(error)) from error

    without_rank_0(rank, call)


@sizes(2, 3)
def case_every_collective(rank: int, size: int) -> None:
    ones = torch.ones(size)

    def parts() -> list[torch.Tensor]:
        return [torch.ones(1) for _ in range(size)]

    for call in (
        lambda group: dist.barrier(group=group),
        lambda group: dist.broadcast(ones, src=0, group=group),
        lambda group: dist.reduce(ones, dst=1, group=group),
        lambda group: dist.all_gather(parts(), torch.ones(1), group=group),
        lambda group: dist.all_gather_into_tensor(torch.ones(size), torch.ones(1), group=group),
        lambda group: dist.gather(torch.ones(1), parts() if rank == 1 else None, 1, group=group),
        lambda group: dist.scatter(torch.ones(1), None if rank != 1 else parts(), 1, group=group),
        lambda group: dist.reduce_scatter(torch.ones(1), parts(), group=group),
        lambda group: dist.reduce_scatter_tensor(torch.ones(1), ones, group=group),
        lambda group: dist.all_to_all(parts(), parts(), group=group),
        lambda group: dist.all_to_all_single(torch.ones(size), ones, group=group),
        lambda group: dist.all_gather_object([None] * size, rank, group=group),
        lambda group: dist.broadcast_object_list([rank], src=0, group=group),
    ):
        without_rank_0(rank, call)


@sizes(2, 3)
def case_receive_without_a_sender(rank: int, size: int) -> None:
    without_rank_0(rank, lambda group: dist.recv(torch.ones(2), src=0, group=group))
    without_rank_0(rank, lambda group: dist.irecv(torch.ones(2), src=0, group=group).wait())
    without_rank_0(rank, lambda group: dist.recv(torch.ones(2), group=group))  # from any


@sizes(2)
def case_large_send_without_a_receiver(rank: int, size: int) -> None:
    without_rank_0(rank, lambda group: dist.send(torch.ones(1_000_000), dst=0, group=group))


@sizes(2, 3, 4)
def case_all_ranks_receive(rank: int, size: int) -> None:
    group = brief_group()
    with raises(FREED, within=TIMEOUT + SLACK):
        dist.recv(torch.ones(2), src=(rank + 1) % size, group=group)
    dist.barrier()
    dist.destroy_process_group(group)


@sizes(2)
def case_wait_with_its_own_timeout(rank: int, size: int) -> None:
    group = dist.new_group(timeout=timedelta(seconds=20))
    if rank:
        work = dist.all_reduce(torch.ones(2), group=group, async_op=True)
        with raises(dist.DistBackendError, " Timed out ", "0.3 s", within=0.3 + SLACK):
            work.wait(timedelta(seconds=0.3))
    dist.barrier()
    dist.destroy_process_group(group)


@sizes(2)
def case_timeout_in_call_options(rank: int, size: int) -> None:
    for asynchronous in (False, True):
        group = dist.new_group(timeout=timedelta(seconds=20))
        options = dist.AllreduceOptions()
        options.asyncOp = asynchronous
        options.timeout = timedelta(seconds=0.3)
        if rank:
            with raises(DeadlineError, " Timed out ", "0.3 s", within=0.3 + SLACK):
                group.allreduce([torch.ones(2)], options).wait()
        dist.barrier()
        dist.destroy_process_group(group)


@sizes(2, 3)
def case_error_message_names_the_call(rank: int, size: int) -> None:
    group = brief_group()
    words: list[str] = []
    if rank:
        try:
            dist.all_reduce(torch.ones(2), group=group)
        except CommunicationError as error:
            words.append(str(error))
        assert "all_reduce" in words[0], words
        assert "init_process_group" in words[0], words
    dist.barrier()
    dist.destroy_process_group(group)


@sizes(2, 3)
def case_new_group_with_a_late_rank(rank: int, size: int) -> None:
    for comes in (rank > 0, rank == 0):
        if comes:
            words = ("new_group", " Timed out ", f"of {size} ranks")
            with raises(DeadlineError, *words, within=TIMEOUT + SLACK):
                dist.new_group(timeout=timedelta(seconds=TIMEOUT))
        dist.barrier()
    still_works()


def new_ones(seconds: float) -> list[Callable[[], dist.ProcessGroup]]:
    """Return ways to make a group under a name that comes again."""
    time_out = timedelta(seconds=seconds)
    everyone = list(range(dist.get_world_size()))
    return [
        lambda: dist.new_group(timeout=time_out, use_local_synchronization=True),
        lambda: dist.group.WORLD.split_group(everyone, time_out),
    ]


@sizes(2, 3)
def case_new_group_succeeds_after_a_timeout(rank: int, size: int) -> None:
    """Ranks that have tried more or less often find each other."""
    for way in range(2):
        for early, tries in ((0, 1), (size - 1, 3)):
            if rank == early:
                for _ in range(tries):
                    with raises(DeadlineError, "Timed out", within=TIMEOUT + SLACK):
                        new_ones(TIMEOUT)[way]()
            dist.barrier()
            if rank != early:
                time.sleep(0.3)  # it waits already: what is tested is being late
            group = new_ones(20)[way]()
            still_works(group)
            group.shutdown() if way else dist.destroy_process_group(group)
    still_works()


@sizes(2, 3)
def case_late_rank_in_new_group_raises_after_the_others_gave_up(rank: int, size: int) -> None:
    """It does not pass alone; if no other rank can come again, it raises at once."""
    counted = [lambda s=s: dist.new_group(timeout=timedelta(seconds=s)) for s in (TIMEOUT, 60)]
    for way in range(3):
        briefly, again = counted if way == 2 else (new_ones(TIMEOUT)[way], new_ones(TIMEOUT)[way])
        for late in (0, size - 1):
            if rank != late:
                with raises(DeadlineError, f"of {size} ranks", within=TIMEOUT + SLACK):
                    briefly()
            dist.barrier()
            if rank == late:
                with raises(DeadlineError, f"of {size} ranks", within=TIMEOUT + SLACK):
                    again()
            dist.barrier()
    still_works()


@sizes(2, 3)
def case_new_group_recreated_while_one_rank_is_late(rank: int, size: int) -> None:
    """No rank is let through by what is left of the meeting before."""
    for turn in range(4):
        late = turn % size
        for _ in range(2):
            group = dist.new_group(timeout=timedelta(seconds=20), use_local_synchronization=True)
            still_works(group)
            dist.destroy_process_group(group)
        if rank != late:
            with raises(DeadlineError, f"only {size - 1} of {size} ranks", within=TIMEOUT + SLACK):
                new_ones(TIMEOUT)[0]()
        dist.barrier()
    still_works()


@sizes(2, 3)
def case_interrupt_in_new_group(rank: int, size: int) -> None:
    """Others that have come are told, and all find each other afterwards."""
    store = dist.group.WORLD.get_group_store()

    def interrupt_when_all_have_come() -> None:
        store.wait(["rank 2 waits"][: size - 2], timedelta(seconds=20))
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGINT)

    dist.barrier()
    if rank == 1:
        interrupt = threading.Thread(target=interrupt_when_all_have_come)
        interrupt.start()
        with raises(KeyboardInterrupt):
            dist.new_group(use_local_synchronization=True, timeout=timedelta(seconds=60))
        interrupt.join()
    elif rank == 2:
        store.set("rank 2 waits", "")
        with raises(DeadlineError, "a rank was interrupted"):
            dist.new_group(use_local_synchronization=True, timeout=timedelta(seconds=60))
    dist.barrier()
    group = dist.new_group(use_local_synchronization=True, timeout=timedelta(seconds=20))
    still_works(group)
    dist.destroy_process_group(group)


@sizes(2, 3)
def case_interrupt_handled_by_the_program(rank: int, size: int) -> None:
    """Its handler only sets a flag, so the group goes on."""
    struck: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: struck.append(number))
    calls: list[Callable[[], object]] = [
        lambda: dist.all_reduce(torch.ones(2)),
        lambda: dist.all_reduce(torch.ones(2), async_op=True).wait(),
        lambda: dist.recv(torch.ones(2), src=0) if rank else None,
    ]
    try:
        for number, call in enumerate(calls):
            if rank == 0:
                time.sleep(1.5)  # three times as long as code gets to stop by itself
                if number == 2:
                    for other in range(1, size):
                        dist.send(torch.ones(2), other)
            else:
                os.kill(os.getpid(), signal.SIGINT) if number == 1 else interrupt_soon()
            call()
    finally:
        signal.signal(signal.SIGINT, before)
    assert len(struck) == (len(calls) if rank else 0), struck
    still_works()


@sizes(2)
def case_collective_in_a_callback_missing_on_one_rank(rank: int, size: int) -> None:
    group = dist.new_group(timeout=timedelta(seconds=20))
    work = dist.all_reduce(torch.ones(2), group=group, async_op=True)
    group.set_timeout(timedelta(seconds=TIMEOUT))  # not for that one, which all ranks call

    def again(done: torch.futures.Future) -> torch.Tensor:
        dist.all_reduce(done.value()[0], group=group)
        return done.value()[0]

    if rank:
        with raises(Exception, "callback", within=TIMEOUT + SLACK):
            work.get_future().then(again).wait()
    work.wait()
    dist.barrier()
    dist.destroy_process_group(group)
    still_works()


@sizes(2, 3)
def case_repeated_hangs(rank: int, size: int) -> None:
    for _ in range(5):
        without_rank_0(rank, lambda group: dist.all_reduce(torch.ones(2), group=group))


@sizes(2, 3)
def case_recovery_with_a_new_default_group(rank: int, size: int) -> None:
    dist.destroy_process_group()
    dist.init_process_group("mpi4py", init_method="mpi://", timeout=timedelta(seconds=20))
    dist.group.WORLD.set_timeout(timedelta(seconds=TIMEOUT))  # all ranks had to come so far
    if rank:
        with raises(FREED, within=TIMEOUT + SLACK):
            dist.all_reduce(torch.ones(2))
    dist.destroy_process_group()
    dist.init_process_group("mpi4py", init_method="mpi://")
    still_works()


def interrupt_soon(seconds: float = 0.3) -> None:
    """Send this process a SIGINT, as a user's Ctrl-C does, ``seconds`` after it began to wait."""

    def strike() -> None:
        deadline = time.monotonic() + SLACK
        while not any(deadlines.under_way()) and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(seconds)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=strike).start()


def interrupted(call: Callable[[], object], within: float = 1 + SLACK) -> None:
    """Expect KeyboardInterrupt out of ``call`` although it waits for a rank that never comes."""
    started = time.monotonic()
    try:
        interrupt_soon()
        with contextlib.suppress(CommunicationError):
            call()
        # Freed first; the interrupt itself follows as soon as Python runs again.
        while time.monotonic() < started + within:
            time.sleep(0.01)
    except KeyboardInterrupt:
        pass
    took = time.monotonic() - started
    assert took < within, f"interrupted only after {took:.1f} s"


@sizes(2, 3)
def case_interrupt_in_each_kind_of_wait(rank: int, size: int) -> None:
    for call in (
        lambda group: dist.all_reduce(torch.ones(2), group=group),
        lambda group: dist.all_reduce(torch.ones(2), group=group, async_op=True).wait(),
        lambda group: dist.recv(torch.ones(2), src=0, group=group),
        lambda group: dist.all_gather_object([None] * size, rank, group=group),
    ):
        group = dist.new_group(timeout=timedelta(seconds=25))
        if rank == 1:
            interrupted(lambda call=call, group=group: call(group))
        elif rank:  # the interrupt of rank 1 frees it
            with raises(FREED, within=1 + SLACK):
                dist.all_reduce(torch.ones(2), group=group)
        dist.barrier()
        dist.destroy_process_group(group)
        still_works()


@sizes(2, 3)
def case_interrupt_in_backward_of_ddp(rank: int, size: int) -> None:
    group = dist.new_group(timeout=timedelta(seconds=25))
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 3), process_group=group)
    if rank == 1:
        interrupted(model(torch.ones(1, 3)).sum().backward)
    elif rank:
        with raises(FREED, within=1 + SLACK):
            model(torch.ones(1, 3)).sum().backward()
    dist.barrier()
    del model
    dist.destroy_process_group(group)
    still_works()


@sizes(2, 3)
def case_missing_rank_in_backward_of_ddp(rank: int, size: int) -> None:
    for broken_hook in (False, True):
        group = dist.new_group(timeout=timedelta(seconds=20))
        model = torch.nn.parallel.DistributedDataParallel(
            torch.nn.Linear(3, 3), process_group=group, bucket_cap_mb=1e-5
        )
        group.set_timeout(timedelta(seconds=TIMEOUT))  # all ranks had to make the model
        if broken_hook:
            from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

            model.register_comm_hook(group, default_hooks.fp16_compress_hook)
        if rank:
            with raises((*FREED, RuntimeError), "all_reduce", within=TIMEOUT + SLACK):
                model(torch.ones(1, 3)).sum().backward()
        dist.barrier()
        del model
        dist.destroy_process_group(group)
        still_works()


@sizes(2, 3)
def case_mismatch_in_backward_of_ddp(rank: int, size: int) -> None:
    group = dist.new_group(timeout=timedelta(seconds=20))
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 3), process_group=group)
    if rank == 0:
        with raises(CommunicationError, "rank 0: broadcast", "all_reduce"):
            dist.broadcast(torch.ones(1), src=0, group=group)
    else:
        with raises(CommunicationError, "rank 0: broadcast", "all_reduce"):
            model(torch.ones(1, 3)).sum().backward()
    dist.barrier()
    still_works(group)
    del model
    dist.destroy_process_group(group)


def case_broken_hook_in_backward_of_ddp(rank: int, size: int) -> None:
    group = dist.new_group(timeout=timedelta(seconds=20))
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 3), process_group=group)

    def hook(state, bucket):  # torch refuses annotations that are strings
        work = dist.all_reduce(bucket.buffer(), group=group, async_op=True)

        def fail(done: torch.futures.Future) -> torch.Tensor:
            raise KeyError("the hook's own error")

        return work.get_future().then(fail)

    model.register_comm_hook(None, hook)
    with raises(Exception, "the hook's own error"):
        model(torch.ones(1, 3)).sum().backward()
    dist.barrier()
    del model
    dist.destroy_process_group(group)
    still_works()


@sizes(2, 3)
def case_missing_rank_in_calls_of_guarded_comm(rank: int, size: int) -> None:
    comm = torch_mpi4py.renew_world()
    assert torch_mpi4py.world() is comm
    for call in (
        lambda comm: comm.Barrier(),
        lambda comm: comm.allreduce(rank),
        lambda comm: comm.recv(source=0),
        lambda comm: comm.Recv(torch.ones(3).numpy(), source=0),
        lambda comm: comm.bcast(None, root=0),
        lambda comm: comm.Ssend(torch.ones(3).numpy(), dest=0),
        lambda comm: comm.wait(comm.Irecv(torch.ones(3).numpy(), source=0)),
        lambda comm: comm.irecv(source=0).wait(),
        lambda comm: comm.Issend(torch.ones(3).numpy(), dest=0).Wait(),
        lambda comm: comm.Split(0, rank),
        lambda comm: comm.allgather(rank),
        lambda comm: comm.Probe(source=0),
    ):
        comm.timeout = TIMEOUT
        if rank:
            with raises(FREED, within=TIMEOUT + SLACK):
                call(comm)
        dist.barrier()
        comm = torch_mpi4py.renew_world()
        assert comm.allgather(rank) == list(range(size))
    request = comm.isend({"from": rank}, dest=(rank + 1) % size)
    assert comm.irecv(source=(rank - 1) % size).wait() == {"from": (rank - 1) % size}
    request.wait()
    child = comm.Split(rank % 2, rank)
    child.timeout = 20.0
    assert child.allreduce(1) == len(range(rank % 2, size, 2))


@sizes(3)
def case_revoked_send_does_not_report_success(rank: int, size: int) -> None:
    # Open MPI calls about one in four such sends complete on the rank that was freed.
    for _ in range(8):
        comm = torch_mpi4py.renew_world()
        comm.timeout = TIMEOUT / 2
        if rank:
            with raises(FREED, within=TIMEOUT + SLACK):
                comm.Ssend(torch.ones(3).numpy(), dest=0)
        dist.barrier()


@sizes(2, 3)
def case_interrupt_in_calls_of_guarded_comm(rank: int, size: int) -> None:
    comm = torch_mpi4py.renew_world()
    if rank == 1:
        interrupted(lambda: comm.recv(source=0))
    elif rank:
        with raises(RevokedError, within=1 + SLACK):
            comm.recv(source=0)
    dist.barrier()
    comm = torch_mpi4py.renew_world()
    assert comm.allgather(rank) == list(range(size))


def case_interrupt_outside_a_wait_frees_no_rank(rank: int, size: int) -> None:
    # An interrupt in plain Python is Python's affair: the groups stay as they are.
    try:
        _thread.interrupt_main()
        deadline = time.monotonic() + 1
        while time.monotonic() < deadline:
            time.sleep(0.01)
    except KeyboardInterrupt:
        pass
    # What begins to wait before the watcher has read of the interrupt may be freed by it. In the
    # second of two looks that end from now on it has.
    for _ in range(2):
        now = time.perf_counter()
        while (position := events.log.reader.position) is None or position.time < now:
            time.sleep(0.01)
    still_works()
