"""The parameter server: who may die, and its rules without ranks."""

from __future__ import annotations

import pickle
import subprocess
import sys
from itertools import islice

import pytest
import torch

from course_lib.parallel.flat_tensors import FlatBytes
from course_lib.parallel.parameter_server import (
    Asynchronous,
    BoundedStaleness,
    Record,
    Stop,
    Synchronous,
    constant,
    over_staleness,
)
from course_lib.parallel.parameter_server.messages import GradientMessage, Header, average
from course_lib.parallel.parameter_server.policies import Progress
from course_lib.training.shuffled_batches import shuffled_batches
from tests import ranks

# --- who may die ----------------------------------------------------------------------------

START = """
import os, signal, sys, time
from datetime import timedelta
import torch, torch.distributed as dist, torch.nn.functional as F
import torch_mpi4py as mpi
from course_lib.parallel.parameter_server import *
from course_lib.parallel.parameter_server import messages
from tests.parallel.cases.parameter_server import OPTIMIZERS, batches_of, network, require_replay
torch.set_num_threads(1)
dist.init_process_group("mpi4py", init_method="mpi://", timeout=timedelta(seconds=20))
rank, size = dist.get_rank(), dist.get_world_size()
# The server begins, and so somebody may die, when all have come out of init_process_group.
if rank:
    dist.send(torch.zeros(1), 0)
else:
    for worker in range(1, size):
        dist.recv(torch.zeros(1), worker)
model = network()
FILE = os.environ["DIED_AT"]

def die():
    with open(FILE, "w") as file:
        file.write(repr(time.monotonic()))  # all processes of a machine have this clock
    os.kill(os.getpid(), signal.SIGKILL)

def deadly(batches, at):
    for step, batch in enumerate(batches):
        if step == at:
            die()
        yield batch

def serve(**options):
    model = network()
    return Server(model, OPTIMIZERS["SGD"](model.parameters()), **options).run()

def work(at=None, **options):
    batches = batches_of(rank) if at is None else deadly(batches_of(rank), at)
    return Worker(network(), F.cross_entropy, batches, **options).run()
"""
LIMIT = 90.0  # four ranks that import torch on two busy cores


def launch(tmp_path, n: int, program: str) -> str:
    """Run START and ``program`` on ``n`` ranks; return what they wrote."""
    variables = {"DIED_AT": str(tmp_path / "died")}
    ended = ranks.run(n, "-c", START + program, limit=LIMIT, variables=variables)
    assert ended.returncode is not None, f"still running:\n{ended.output}"
    assert not ended.left_behind, ended.output
    return ended.output


@pytest.mark.timeout(120)
def test_killed_workers_do_not_stop_the_others(tmp_path) -> None:
    """One dies between two steps, one between a gradient's header and its body.

    The first does so when its gradients have been used: what a rank sent last may die with it.
    """
    output = launch(
        tmp_path,
        4,
        """
USED = FILE + ".used"

def after_five_were_used():
    for step, batch in enumerate(batches_of(rank)):
        while step == 5 and not os.path.exists(USED):
            time.sleep(0.001)
        if step == 5:
            die()
        yield batch

def ends(server):
    if server.record.steps_by_worker[3] == 5:
        open(USED, "w").close()
    return server.version >= 60 and server.record.died

if rank == 0:
    record = serve(stop=Stop(when=ends))
    require_replay(record)
    assert set(record.died) == {3} and record.version >= 60, record.died
    assert record.steps_by_worker[3] == 5, record.steps_by_worker
    record = serve(mode=Synchronous(), stop=Stop(steps=20))
    require_replay(record)
    assert record.workers == (1, 2) and set(record.died) == {2} and record.version == 20
    assert record.steps_by_worker == {1: 20, 2: 4}, record.steps_by_worker
    record = serve(mode=BoundedStaleness(0), stop=Stop(steps=10))
    assert record.workers == (1,) and not record.died and record.version == 10
    print("the server is content", flush=True)
else:
    batches = after_five_were_used() if rank == 3 else batches_of(rank)
    ended = Worker(network(), F.cross_entropy, batches, step_seconds=0.005).run()
    worker = Worker(network(), F.cross_entropy, batches_of(rank))
    if rank == 2:
        plain = worker._team.send
        def send(tensor, to, tag):
            if tag == messages.TAG_BODY and worker.steps == 4:
                die()
            plain(tensor, to, tag)
        worker._team.send = send
    worker.run()
    print(rank, ended, work(), flush=True)
""",
    )
    assert "the server is content" in output, output
    assert "1 told to stop told to stop" in output, output
    assert "Traceback" not in output, output


@pytest.mark.timeout(240)
@pytest.mark.parametrize("mode", ["Synchronous(wait_for=2)", "BoundedStaleness(0)"])
def test_killed_worker_is_not_waited_for(tmp_path, mode: str) -> None:
    """The straggler that a round or the bound waits for dies: the others go on at once."""
    output = launch(
        tmp_path,
        3,
        f"""
if rank == 0:
    record = serve(mode={mode}, stop=Stop(steps=20))
    require_replay(record)
    assert record.version == 20 and set(record.died) == {{2}}
    assert record.seconds < 15, record.seconds  # and not the 20 of a deadline
    print("the server is content", flush=True)
else:
    work(3 if rank == 2 else None, step_seconds=0.01 if rank == 2 else 0)
""",
    )
    assert "the server is content" in output, output
    assert "Traceback" not in output, output


@pytest.mark.timeout(240)
@pytest.mark.parametrize("mode", ["Asynchronous()", "Synchronous()"])
def test_killed_server_is_reported_on_every_worker(tmp_path, mode: str) -> None:
    """At once by who waits for it, after its step by who computes: 0.3 s here."""
    output = launch(
        tmp_path,
        4,
        f"""
if rank == 0:
    serve(mode={mode}, stop=Stop(when=lambda server: server.version == 4 and die()))
else:
    try:
        work(step_seconds=0.3 if rank == 1 else 0.001)
    except mpi.RankFailedError as error:
        late = time.monotonic() - float(open(FILE).read())
        assert "the parameter server, rank 0, died" in str(error), error
        assert late < 15, late
        print("worker", rank, "knows", flush=True)
""",
    )
    for worker in (1, 2, 3):
        assert f"worker {worker} knows" in output, output


@pytest.mark.timeout(120)
def test_server_without_remaining_workers_raises(tmp_path) -> None:
    output = launch(
        tmp_path,
        3,
        """
if rank == 0:
    try:
        serve()
    except mpi.RankFailedError as error:
        print("server:", error, flush=True)
else:
    work(rank)
""",
    )
    assert "server: parameter server: all workers died (ranks 1, 2)" in output, output


# --- rules, without ranks -------------------------------------------------------------------


def test_synchronous_rules() -> None:
    progress = Progress(Synchronous(), (1, 2, 3))
    assert progress.due() == []
    for worker in (3, 1):
        assert progress.may_start(worker)
        assert progress.deliver(worker, 0, 0) == ""
        assert not progress.may_start(worker)
        assert progress.due() == []
    progress.deliver(2, 0, 0)
    assert progress.due() == [1, 2, 3]
    assert progress.may_start(3)
    assert "late" in progress.deliver(1, 0, 1)
    progress.deliver(1, 1, 1)
    progress.leave(2)
    assert progress.due() == []
    progress.leave(3)
    assert progress.due() == [1]


def test_synchronous_counts_gradients_of_workers_that_left() -> None:
    progress = Progress(Synchronous(), (1, 2))
    progress.deliver(1, 0, 0)
    progress.leave(1)
    assert progress.due() == []
    progress.deliver(2, 0, 0)
    assert progress.due() == [1, 2]


def test_backup_rules() -> None:
    progress = Progress(Synchronous(wait_for=2), (1, 2, 3))
    progress.deliver(3, 0, 0)
    assert progress.due() == []
    progress.deliver(1, 0, 0)
    assert progress.due() == [1, 3]
    assert "late" in progress.deliver(2, 0, 1)
    progress.leave(1)
    progress.leave(2)
    progress.deliver(3, 1, 1)
    assert progress.due() == [3]  # no more than are left can be waited for


def test_bounded_rules() -> None:
    progress = Progress(BoundedStaleness(1), (1, 2))
    for _ in range(2):
        assert progress.may_start(1)
        progress.deliver(1, 0, 0)
        assert progress.due() == [1]
    assert not progress.may_start(1)
    assert progress.may_start(2)
    progress.deliver(2, 0, 0)
    assert progress.may_start(1)
    progress.deliver(1, 0, 0)
    assert not progress.may_start(1)
    progress.leave(2)
    assert progress.may_start(1)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Synchronous(wait_for=0), "at least 1"),
        (lambda: Progress(Synchronous(wait_for=4), (1, 2, 3)), "needs 4 workers, but there are 3"),
        (lambda: BoundedStaleness(-1), "at least 0"),
        (lambda: Stop(steps=0), "steps must be at least 1"),
        (lambda: shuffled_batches([1, 2], 3, seed=0), "batch_size must be from 1 to 2"),
        (lambda: Stop(seconds=float("nan")), "seconds must be at least 0"),
    ],
)
def test_invalid_argument_values_raise(make, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Synchronous(wait_for=1.5), "wait_for must be a whole number"),
        (lambda: BoundedStaleness(0.5), "bound must be a whole number"),
        (lambda: BoundedStaleness(None), "bound must be a whole number"),
        (lambda: Stop(steps=2.5), "steps must be a whole number"),
        (lambda: Stop(seconds="3"), "seconds must be a number"),
        (lambda: Stop(when=5), "when must be a function"),
        (lambda: shuffled_batches([1, 2], 1.0, seed=0), "batch_size must be a whole number"),
    ],
)
def test_invalid_argument_types_raise(make, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        make()


def test_rates() -> None:
    assert constant(0.8, 5, 3) == 0.8
    assert [over_staleness(0.8, 0, staleness) for staleness in (0, 1, 2, 4)] == [0.8, 0.8, 0.4, 0.2]


def test_message_preserves_every_dtype() -> None:
    tensors = [
        torch.tensor([1, 2, 3], dtype=torch.uint8),
        torch.tensor([[1.5, float("nan")]], dtype=torch.float64),
        torch.tensor(2**53 + 1),
        torch.randn(5).bfloat16(),
        torch.empty(0, 4),
        torch.randn(4, 3).t(),
    ]
    sent, received = FlatBytes(tensors), FlatBytes(tensors)
    received.buffer.copy_(sent.pack(tensors))
    copies = [torch.empty_like(tensor) for tensor in tensors]
    received.unpack(copies)
    for copied, tensor in zip(copies, tensors, strict=True):
        assert torch.equal(copied.nan_to_num(-1), tensor.nan_to_num(-1))


def test_missing_gradient_stays_none() -> None:
    parameters = [torch.zeros(3), torch.zeros(2)]
    message = GradientMessage(parameters)
    message.write(0.1, [torch.ones(3), torch.ones(2)])
    message.write(0.25, [None, torch.full((2,), 4.0)])
    loss, (first, second) = message.read()
    assert loss == 0.25
    assert first is None
    assert torch.equal(second, torch.tensor([4.0, 4.0]))


def test_average_is_weighted_by_samples() -> None:
    mean = average(
        [[torch.tensor([4.0]), None], [torch.tensor([8.0]), torch.tensor([1.0])]], [3, 1]
    )
    assert [layer.item() for layer in mean] == [5.0, 0.25]
    assert average([[None]] * 2, [1, 1]) == [None]


def test_headers_round_trip_exactly() -> None:
    header = Header(2, 10**9, 7, 32, 2**32 - 1, 12345.678901234, 2.0**32 - 3, 1.5)
    assert Header.decode(header.encode()) == header


def test_shuffled_batches_repeat_with_the_same_seed() -> None:
    data = torch.utils.data.TensorDataset(torch.arange(10), torch.arange(10))
    drawn = [
        [inputs.tolist() for inputs, _ in islice(shuffled_batches(data, 4, seed=seed), 6)]
        for seed in (1, 1, 2)
    ]
    assert drawn[0] == drawn[1] != drawn[2]
    for first, second in zip(drawn[0][::2], drawn[0][1::2], strict=True):
        assert len(set(first + second)) == 8


def test_record_can_be_loaded_without_mpi() -> None:
    """A notebook's kernel may not start MPI, but wants to draw what happened."""
    program = (
        "import pickle, sys; record = pickle.load(sys.stdin.buffer); "
        "assert record.mode == 'asynchronous'; assert 'mpi4py.MPI' not in sys.modules"
    )
    record = Record(mode=str(Asynchronous()), workers=(1,))
    subprocess.run(
        [sys.executable, "-c", program], input=pickle.dumps(record), check=True, timeout=120
    )
