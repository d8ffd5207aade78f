"""Whatever the mode, a serial replay of the record gives the same bits."""

from __future__ import annotations

import itertools
import random
import time
from collections import Counter
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch_mpi4py import CommunicationError, DeadlineError
from torch_mpi4py.emulation.machine import clock_identity

from course_lib.parallel.parameter_server import (
    Asynchronous,
    BoundedStaleness,
    Record,
    Server,
    Stop,
    Synchronous,
    Worker,
    load_parameters,
    over_staleness,
    replay,
)
from course_lib.parallel.parameter_server.messages import HELLO, TAG_HEADER, Header
from course_lib.parallel.parameter_server.transport import HEADERS_PER_WORKER, Inbox
from tests.parallel.cases.toys import CLASSES, FEATURES, Toy, from_all_ranks
from tests.ranks import case

several = case(sizes=(2, 3, 4))
three_up = case(sizes=(3, 4))
OPTIMIZERS = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.05),
    "momentum": lambda parameters: torch.optim.SGD(
        parameters, lr=0.05, momentum=0.9, weight_decay=0.01
    ),
    "Adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01),
}
BATCH = 4
LONG = Stop(seconds=20)  # for runs that end by an error, however late a worker comes


def network() -> nn.Module:
    """Return the same float32 network on every rank."""
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(FEATURES, 16), nn.ReLU(), nn.Linear(16, CLASSES))


def batches_of(worker: int, count: int | None = None, dtype=torch.float32):
    """Yield this worker's batches, the same ones each time; endless if no count is given."""
    generator = torch.Generator().manual_seed(100 + worker)
    for _ in itertools.count() if count is None else range(count):
        inputs = torch.randn(BATCH, FEATURES, generator=generator, dtype=torch.float64)
        yield inputs.to(dtype), torch.randint(CLASSES, (BATCH,), generator=generator)


def play(
    rank: int,
    make=network,
    *,
    server: int = 0,
    optimizer=OPTIMIZERS["SGD"],
    count: int | None = None,
    dtype=torch.float32,
    pace=lambda rank: 0.0,
    group=None,
    loss=F.cross_entropy,
    **options,
) -> Record | str:
    """Run the server on its rank and workers on all others; return what it returns."""
    # A process's first optimizer imports this for seconds on a busy machine; workers have no
    # optimizer, and their deadline would run while they wait for the server.
    import torch._dynamo  # noqa: F401

    model = make()
    if rank == server:
        return Server(model, optimizer(model.parameters()), group=group, **options).run()
    if group is not None:
        server = dist.get_group_rank(group, server)
    batches = batches_of(rank, count, dtype)
    return Worker(model, loss, batches, group=group, server=server, step_seconds=pace(rank)).run()


def require_replay(
    record: Record, make=network, optimizer=OPTIMIZERS["SGD"], dtype=torch.float32
) -> None:
    """Raise AssertionError unless a serial replay ends with the bits of the run."""
    model = make()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(5)  # so that the start comes from the record
    batches = {worker: batches_of(worker, dtype=dtype) for worker in record.workers}
    made = replay(record, model, optimizer(model.parameters()), F.cross_entropy, batches)
    assert torch.equal(made, record.final)
    assert not torch.equal(record.final, record.initial)


def uneven(rank: int) -> float:
    """Seconds per gradient that make ranks overtake each other."""
    return 0.001 * rank


def replays(rank: int, mode, steps: int = 30, **options) -> list[Record]:
    """Run and replay with every optimizer; return the server's records.

    Workers meet in their first two gradients. So each takes part, however late it comes: the
    first ones are all computed at version 0, and all served before the third ones are begun.
    """
    workers = dist.new_group(list(range(1, dist.get_world_size())))
    records = []
    for optimizer in OPTIMIZERS.values():
        calls = itertools.count()

        def loss(outputs, labels, calls=calls):
            if next(calls) < 2:
                dist.barrier(group=workers)
            return F.cross_entropy(outputs, labels)

        record = play(
            rank,
            mode=mode,
            optimizer=optimizer,
            stop=Stop(steps=steps),
            pace=uneven,
            loss=loss,
            **options,
        )
        if rank == 0:
            require_replay(record, optimizer=optimizer)
            assert record.version == steps
            records.append(record)
    return records


# --- the replay, in all modes ---------------------------------------------------------------


@several
def case_replay_of_asynchronous(rank, size):
    for record in replays(rank, Asynchronous()):
        for update in record.updates:
            (gradient,) = update.gradients
            assert gradient.staleness == update.version - 1 - gradient.computed_at
        if size > 2:
            assert max(record.staleness) > 0, "nobody overtook anybody: the replay shows little"


@several
def case_replay_with_rate_over_staleness(rank, size):
    for record in replays(rank, Asynchronous(), rate=over_staleness):
        base = record.optimizer_state["param_groups"][0]["lr"]
        for update in record.updates:
            assert update.rates[0] == base / max(1, update.gradients[0].staleness)


@several
def case_replay_of_synchronous(rank, size):
    for record in replays(rank, Synchronous()):
        everyone = tuple(range(1, size))
        assert all(update.workers == everyone for update in record.updates)
        assert set(record.staleness) == {0}
        assert not [gradient for gradient in record.dropped if "late" in gradient.dropped]


@three_up
def case_replay_of_backup_workers(rank, size):
    """The first R of R + b make a round; what comes later is dropped and written down."""
    needed = size - 2
    for record in replays(rank, Synchronous(wait_for=needed)):
        assert all(len(update.gradients) == needed for update in record.updates)
        assert set(record.staleness) == {0}
        late = [gradient for gradient in record.dropped if "late" in gradient.dropped]
        assert late, "no gradient was late"
        used = Counter((gradient.worker, gradient.step) for gradient in record.gradients)
        assert set(used.values()) == {1}
        assert not any((gradient.worker, gradient.step) in used for gradient in record.dropped)


@several
def case_replay_of_bounded_staleness(rank, size):
    for bound in (0, 2):
        for record in replays(rank, BoundedStaleness(bound)):
            require_bound(record, bound)


@several
def case_wrong_order_replays_differently(rank, size):
    """The replay is no tautology: two updates exchanged give other bits."""
    record = play(rank, stop=Stop(steps=12), optimizer=OPTIMIZERS["momentum"], pace=uneven)
    if rank == 0:
        first, second = record.updates[4], record.updates[8]
        record.updates[4], record.updates[8] = (
            type(first)(first.version, second.gradients, first.rates, first.seconds),
            type(first)(second.version, first.gradients, second.rates, second.seconds),
        )
        model = network()
        optimizer = OPTIMIZERS["momentum"](model.parameters())
        batches = {worker: list(batches_of(worker, 40)) for worker in record.workers}
        try:
            made = replay(record, model, optimizer, F.cross_entropy, batches)
        except (ValueError, KeyError):
            return  # it asks for a batch, or a version, that is gone
        assert not torch.equal(made, record.final)


def require_bound(record: Record, bound: int) -> None:
    """Raise AssertionError if a worker started more than ``bound`` steps ahead of the slowest.

    Each gradient that the server has makes an update at once, so the workers of the updates up
    to a version tell how many steps each had made when that version was handed out.
    """
    for gradient in record.gradients + record.dropped:
        done = Counter(used.worker for used in record.gradients[: gradient.computed_at])
        ahead = done[gradient.worker] - min(done[worker] for worker in record.workers)
        assert ahead <= bound, f"worker {gradient.worker} was {ahead} steps ahead"
    limit = (len(record.workers) - 1) * (2 * bound + 1)
    assert max(record.staleness) <= limit, (max(record.staleness), limit)


@three_up
def case_bounded_staleness_makes_fast_workers_wait(rank, size):
    """With a straggler, fast workers wait for it; without the bound they run away.

    In the second run the straggler sends its first gradient, which ends it, when worker 1 is in
    its fifth: a straggler by the clock may be faster than a worker whose core is taken.
    """
    straggler = size - 1
    calls = itertools.count()

    def pace(rank):
        return 0.03 if rank == straggler else 0.0

    def loss(outputs, labels):
        call = next(calls)
        if rank == 1 and call == 4:
            dist.send(torch.zeros(1), straggler)
        if rank == straggler and call == 0:
            dist.recv(torch.zeros(1), 1)
        return F.cross_entropy(outputs, labels)

    bounded = play(rank, mode=BoundedStaleness(1), stop=Stop(steps=20), pace=pace)
    stop = Stop(when=lambda server: straggler in server.record.updates[-1].workers)
    free = play(rank, mode=Asynchronous(), stop=stop, loss=loss)
    if rank == 0:
        require_bound(bounded, 1)
        done = free.steps_by_worker
        assert done[1] - done[straggler] > 2, done


# --- equal to serial runs ---------------------------------------------------------------------


def serially(model: nn.Module, optimizer, batches, steps: int) -> None:
    for _, (inputs, labels) in zip(range(steps), batches, strict=False):
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), labels).backward()
        optimizer.step()


class Bufferless(Toy):
    """A tied, a frozen and an unused parameter, and no buffer: no message would carry it."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._buffers.clear()


@case(sizes=(2,))
def case_one_worker_equals_serial_training(rank, size):
    """Bit for bit, in every mode, also with a tied, a frozen and an unused parameter."""
    for make, dtype in ((network, torch.float32), (lambda: Bufferless(3), torch.float64)):
        for mode in (Asynchronous(), Synchronous(), BoundedStaleness(0)):
            for optimizer in OPTIMIZERS.values():
                model = make()
                if rank == 1:
                    Worker(model, F.cross_entropy, batches_of(1, 10, dtype)).run()
                    continue
                used = optimizer(model.parameters())
                record = Server(model, used, mode=mode).run()
                assert record.version == 10
                alone = make()
                serially(alone, optimizer(alone.parameters()), batches_of(1, 10, dtype), 10)
                for trained, expected in zip(model.parameters(), alone.parameters(), strict=True):
                    assert torch.equal(trained, expected)


@several
def case_synchronous_equals_one_process_with_the_whole_batch(rank, size):
    """In float64 the mean of R means differs from the mean over all by rounding alone.

    Each of 20 steps rounds a sum of at most 12 terms in another order: some 1e-15 relative,
    which 20 steps of a smooth network at this rate do not raise above 1e-12.
    """
    record = play(
        rank,
        lambda: Bufferless(3),
        mode=Synchronous(),
        optimizer=OPTIMIZERS["momentum"],
        stop=Stop(steps=20),
        dtype=torch.float64,
    )
    if rank:
        return
    alone = Bufferless(3)
    optimizer = OPTIMIZERS["momentum"](alone.parameters())
    streams = [batches_of(worker, 20, torch.float64) for worker in range(1, size)]
    together = [
        (torch.cat([inputs for inputs, _ in row]), torch.cat([labels for _, labels in row]))
        for row in zip(*streams, strict=True)
    ]
    serially(alone, optimizer, together, 20)
    trained = Bufferless(4)
    load_parameters(trained, record.final)
    for ours, expected in zip(trained.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-12, atol=1e-13)


@three_up
def case_synchronous_result_does_not_depend_on_slow_workers(rank, size):
    finals = []
    for slow in range(1, size):
        record = play(
            rank,
            mode=Synchronous(),
            stop=Stop(steps=6),
            pace=lambda rank, slow=slow: 0.01 if rank == slow else 0.0,
        )
        if rank == 0:
            finals.append(record.final)
    assert all(torch.equal(final, finals[0]) for final in finals)


# --- the queue --------------------------------------------------------------------------------


def now(step: int) -> Header:
    """Return a header that is sent now, on this machine."""
    return Header(1, step=step, sent=time.perf_counter(), machine=clock_identity())


@case(sizes=(2, 3, 4), seconds=60)
def case_server_receives_messages_in_order_of_arrival(rank, size):
    """Workers send in a random order that a token enforces, several messages each."""
    orders = []
    shuffle = random.Random(5)
    for _ in range(30):
        order = [worker for worker in range(1, size) for _ in range(HEADERS_PER_WORKER)]
        shuffle.shuffle(order)
        orders.append(order)
    token = torch.zeros(1)
    for order in orders:
        if rank == 0:
            inbox = Inbox(dist.group.WORLD, size - 1, timedelta(seconds=20))
        dist.barrier()
        for turn, worker in enumerate(order):
            following = [*order, 0][turn + 1]
            if rank == worker:
                if turn and order[turn - 1] != rank:
                    dist.recv(token, order[turn - 1])
                header = now(turn)
                dist.send(header.encode(), 0, tag=TAG_HEADER)
                if following != rank:
                    dist.send(token, following)
        if rank == 0:
            dist.recv(token, order[-1])
            assert inbox.count() == len(order)
            served = [inbox.next() for _ in order]
            assert [arrival.sender for arrival in served] == order
            assert [arrival.header.step for arrival in served] == list(range(len(order)))
            assert inbox.count() == 0
            inbox.close()


@case(sizes=(2,), seconds=30)
def case_invalid_header_raises(rank, size):
    """Too short or too long, it is not taken for a header, and the next message is served."""
    inbox = None
    if rank == 0:
        inbox = Inbox(dist.group.WORLD, size - 1, timedelta(seconds=20))
    for turn, length in enumerate((2, len(Header.room()) + 3) * 2):
        dist.barrier()
        if rank == 1:
            time.sleep(0.05 if turn > 1 else 0)  # the server waits for it; otherwise it is here
            dist.send(torch.ones(length, dtype=torch.float64), 0, tag=TAG_HEADER)
            header = now(turn)
            dist.send(header.encode(), 0, tag=TAG_HEADER)
            dist.send(torch.zeros(1), 0)
            continue
        if turn <= 1:
            dist.recv(torch.zeros(1), 1)
        told = ""
        try:
            inbox.next()
        except CommunicationError as error:
            told = str(error)
        assert f"from any rank with tag {TAG_HEADER}: " in told, told
        arrival = inbox.next()
        assert (arrival.sender, arrival.header.step) == (1, turn)
        if turn > 1:
            dist.recv(torch.zeros(1), 1)
    if rank == 0:
        inbox.close()


@three_up
def case_flood_of_messages_starves_no_worker(rank, size):
    """After each update the server waits for a message of every worker; all get their turns.

    So there is always a queue, even if a busy machine takes the core from a worker for a while.
    A fair share is 20 or more of the 60 updates.
    """

    def slowly(server) -> bool:
        inbox = server._inbox
        while inbox.count() < size - 1 or len({here.sender for here in inbox.arrived}) < size - 1:
            time.sleep(0.001)
        return False

    record = play(rank, stop=Stop(steps=60, when=slowly))
    if rank == 0:
        assert 1 < max(record.queue_lengths) <= HEADERS_PER_WORKER * (size - 1), (
            record.queue_lengths
        )
        assert min(record.steps_by_worker.values()) >= 3, record.steps_by_worker


@three_up
def case_worker_slow_to_receive_its_parameters_holds_up_no_other(rank, size):
    """The last rank asks for parameters, and receives them once rank 1 has used up its batches.

    The parameters are larger than what MPI sends without the receiver.
    """
    last, steps = size - 1, 5
    token = torch.zeros(1)

    class Slow(Worker):
        def _tell(self, header: Header) -> None:
            super()._tell(header)
            if header.kind == HELLO and self.steps == 0:
                dist.send(token, 1)
                dist.recv(token, 1)

    def wide() -> nn.Module:
        torch.manual_seed(7)
        return nn.Sequential(nn.Linear(FEATURES, 5000), nn.ReLU(), nn.Linear(5000, CLASSES))

    if rank == last:
        batches = batches_of(rank, 1)
        assert Slow(wide(), F.cross_entropy, batches).run() == "batches used up"
        return
    if rank == 1:
        dist.recv(token, last)
    record = play(rank, wide, count=steps if rank == 1 else 1)
    if rank == 1:
        dist.send(token, last)
    if rank == 0:
        late = next(one for one in record.gradients if one.worker == last)
        assert late.staleness >= steps, late
        require_replay(record, wide)


# --- how runs end -----------------------------------------------------------------------------


@several
def case_run_ends_when_batches_are_used_up(rank, size):
    for mode in (Asynchronous(), Synchronous(), BoundedStaleness(1)):
        record = play(rank, mode=mode, count=3 + rank)
        if rank:
            assert record == "batches used up"
        else:
            assert record.steps_by_worker == {worker: 3 + worker for worker in range(1, size)}
            assert not record.dropped
            require_replay(record)


@several
def case_run_ends_by_steps_seconds_or_a_condition(rank, size):
    record = play(rank, stop=Stop(steps=10))
    assert rank or record.version == 10
    record = play(rank, stop=Stop(when=lambda server: server.version == 7))
    assert rank or record.version == 7
    seconds = 0.5
    record = play(rank, stop=Stop(seconds=seconds), pace=lambda rank: 0.02)
    if rank == 0:  # the first update may come after the time, if the machine stands still
        *before, last = [update.seconds for update in record.updates]
        assert last >= seconds
        assert all(made < seconds for made in before), before


@several
def case_many_runs_in_one_group(rank, size):
    """A worker that is let go early may say hello to the next run while this one goes on."""
    for turn in range(12):
        modes = (Asynchronous(), Synchronous(), BoundedStaleness(turn))
        record = play(rank, mode=modes[turn % 3], stop=Stop(steps=3 + turn % 2), pace=uneven)
        if rank == 0:
            require_replay(record)
    dist.barrier()


@three_up
def case_server_on_another_rank_and_in_a_subgroup(rank, size):
    record = play(rank, server=size - 1, stop=Stop(steps=8))
    if rank == size - 1:
        assert record.workers == tuple(range(size - 1))
        require_replay(record)
    members = [1, size - 1]
    group = dist.new_group(members)
    if rank in members:
        record = play(rank, server=size - 1, stop=Stop(steps=8), group=group)
        if rank == size - 1:
            assert record.workers == (0,)


# --- the record -------------------------------------------------------------------------------


@several
def case_record_contains_the_whole_run(rank, size):
    record = play(rank, stop=Stop(steps=20), pace=uneven, snapshots=5)
    if rank:
        assert record == "told to stop"
        return
    for worker in record.workers:
        mine = [one for one in record.gradients + record.dropped if one.worker == worker]
        assert sorted(one.step for one in mine) == list(range(len(mine))), mine
        assert len(record.waiting[worker]) == len(mine)
    for gradient in record.gradients:
        assert gradient.waited >= 0
        assert gradient.samples == BATCH
    times = [update.seconds for update in record.updates]
    assert times == sorted(times)
    assert times[-1] <= record.seconds
    assert [version for version, _, _ in record.snapshots] == [0, 5, 10, 15, 20]
    assert torch.equal(record.snapshots[-1][2], record.final)
    assert torch.equal(record.snapshots[0][2], record.initial)


@several
def case_rate_rule_uses_server_steps(rank, size):
    def rule(rate: float, step: int, staleness: int) -> float:
        return rate * 0.5 ** (step // 4)

    model = network()
    optimizer = OPTIMIZERS["SGD"](model.parameters())
    if rank:
        Worker(model, F.cross_entropy, batches_of(rank)).run()
        return
    record = Server(model, optimizer, rate=rule, stop=Stop(steps=10)).run()
    assert [update.rates[0] for update in record.updates] == [0.05] * 4 + [0.025] * 4 + [0.0125] * 2
    assert optimizer.param_groups[0]["lr"] == 0.05


# --- what goes wrong --------------------------------------------------------------------------


def outcome_of(call) -> str:
    """Return which error the call raises, and its message."""
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


@several
def case_different_model_on_one_worker(rank, size):
    def make():
        return nn.Linear(FEATURES, CLASSES + 1) if rank == 1 else network()

    told = from_all_ranks(outcome_of(lambda: play(rank, make, stop=LONG)))
    assert told[0].startswith("ValueError: the model of worker 1 has shapes or dtypes that"), told
    assert told[1].startswith("ValueError: worker 1: this model has shapes or dtypes that"), told
    assert all("the server failed" in text for text in told[2:]), told


@several
def case_recorded_parameters_load_only_into_the_same_model(rank, size):
    """Others may have as many bytes."""
    record = play(rank, lambda: nn.Linear(FEATURES, 2), stop=Stop(steps=1), loss=two_classes)
    if rank:
        return
    load_parameters(nn.Linear(FEATURES, 2), record.final)
    for make in (
        lambda: nn.Linear(FEATURES - 1, 2),
        lambda: nn.Linear(FEATURES, 2, bias=False),
        lambda: nn.Linear(2, FEATURES, bias=False),
        lambda: nn.Linear(FEATURES, 2).to(torch.bfloat16),
    ):
        for call in (
            lambda make=make: load_parameters(make(), record.final),
            lambda make=make: require_replay(record, make),
        ):
            assert outcome_of(call).startswith("ValueError: the record is of a different model"), (
                make()
            )
    assert outcome_of(lambda: load_parameters(network(), record)).startswith("TypeError: recorded")


def two_classes(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the loss of a network with two classes."""
    return F.cross_entropy(outputs, labels % 2)


@several
def case_rate_rule_without_a_number_raises(rank, size):
    for given, kind in ((float("nan"), "ValueError"), (-0.1, "ValueError"), (None, "TypeError")):

        def run(given=given) -> None:
            play(rank, rate=lambda rate, step, staleness: given, stop=Stop(steps=5))

        told = from_all_ranks(outcome_of(run))
        assert told[0].startswith(f"{kind}: the rate rule gave {given} for rate 0.05"), told
        assert all("the server failed" in text for text in told[1:]), told


@several
def case_server_error_reaches_all_ranks(rank, size):
    stop = Stop(when=lambda server: 1 // (3 - server.version) > 1)
    for mode in (Asynchronous(), Synchronous()):
        told = from_all_ranks(outcome_of(lambda mode=mode: play(rank, mode=mode, stop=stop)))
        assert told[0].startswith("ZeroDivisionError"), told
        assert all("the server failed" in text for text in told[1:]), told


@three_up
def case_worker_error_does_not_stop_the_other_workers(rank, size):
    """The others begin their sixth gradient after it, so most of the 40 updates are theirs."""

    def loss(outputs, labels):
        call = next(calls)
        if rank == 1 and call == 4:
            for other in range(2, size):
                dist.send(torch.zeros(1), other)
            raise KeyError("the worker's own error")
        if rank > 1 and call == 5:
            dist.recv(torch.zeros(1), 1)
        return F.cross_entropy(outputs, labels)

    for mode in (Asynchronous(), Synchronous()):
        calls = itertools.count()
        told = from_all_ranks(
            outcome_of(lambda mode=mode: play(rank, mode=mode, loss=loss, stop=Stop(steps=40)))
        )
        assert told[1] == 'KeyError: "the worker\'s own error"', told
        assert {*told[:1], *told[2:]} == {"nothing"}, told


@several
def case_missing_server_or_workers_raises(rank, size):
    """Both give up in time; with groups of their own, because a deadline ends a group."""
    for lonely in ("server", "worker"):
        group = dist.new_group()
        began = time.monotonic()
        model = network()
        if rank == 0 and lonely == "server":
            optimizer = OPTIMIZERS["SGD"](model.parameters())
            server = Server(model, optimizer, group=group, timeout=0.4)
            told = outcome_of(server.run)
            assert told.startswith(DeadlineError.__name__), told
        if rank and lonely == "worker":
            worker = Worker(model, F.cross_entropy, batches_of(rank), group=group, timeout=0.4)
            try:
                worker.run()
                raise AssertionError("there was no server")
            except CommunicationError:
                pass
        assert time.monotonic() - began < 8  # the group's own time-out is longer
        dist.barrier()
        dist.destroy_process_group(group)


@several
def case_bad_arguments(rank, size):
    model = network()
    optimizer = OPTIMIZERS["SGD"](model.parameters())
    normed = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    gloo = dist.new_group(backend="gloo")
    other, nan = (rank + 1) % size, float("nan")
    for call, words in (
        (
            lambda: Server(model, optimizer, mode=Synchronous(wait_for=size)),
            f"needs {size} workers",
        ),
        (lambda: Server(model, optimizer, group=gloo), "needs backend mpi4py"),
        (lambda: Server(model, optimizer, timeout=0), "timeout must be more than 0"),
        (lambda: Server("no model", optimizer), "model must be an nn.Module"),
        (lambda: Server(nn.ReLU(), optimizer), "has no parameters"),
        (
            lambda: Server(normed, optimizer),
            "the buffer '1.running_mean', which",
        ),
        (lambda: Server(network(), optimizer), "parameters that are not the model's"),
        (lambda: Server(model, optimizer, mode="synchronous"), "mode must be"),
        (lambda: Server(model, optimizer, rate=0.1), "rate must be a function"),
        (lambda: Server(model, optimizer, stop=10), "stop must be an object like Stop(steps"),
        (lambda: Server(model, optimizer, snapshots=-1), "snapshots must be at least 0"),
        (lambda: Server(model, optimizer, snapshots="x"), "snapshots must be a whole number"),
        (lambda: Server(model, None), "optimizer must be a torch.optim.Optimizer"),
        (lambda: Server(model, optimizer, timeout="x"), "timeout must be a number"),
        (lambda: Worker(model, F.cross_entropy, [], server=rank), "server must be another rank"),
        (lambda: Worker(model, F.cross_entropy, [], server=size), "server must be another rank"),
        (lambda: Worker(model, None, [], server=other, slowdown=-1), "slowdown must be at least 0"),
        (lambda: Worker(model, None, [], server=other, slowdown=nan), "slowdown must be at least"),
        (lambda: Worker(model, None, [], server=other), "loss_function must be a function"),
        (lambda: Worker(model, F.cross_entropy, 5, server=other), "batches must be an iterable"),
    ):
        told = outcome_of(call)
        assert words in told, told
        assert told.split(":")[0] in ("ValueError", "TypeError"), told
    dist.barrier()
    dist.destroy_process_group(gloo)
