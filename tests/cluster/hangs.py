"""Cells that hang, and what has to hold after each of them: the ranks still train."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import re
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

from torch_mpi4py.board.observing import RankBoards

LIMIT_S = 60  # passes when a test says so
# 2 s are promised from the limit to free ranks (0.7 s on two quiet cores); this machine may stand
# still for moments.
FREE_WITHIN_S = 20
IN_PLACE_WITHIN_S = 40
RENEWED = "Communication is renewed: comm and the default process group are new"

PREPARE = """
from course_lib.training.data import load
kept = rank * 11
big = np.zeros(1_000_000)
t = torch.zeros(3)
data = load("digits")[0]
pixels = (data.images[:64].reshape(64, -1).double() * 16).round()
labels = data.labels[:64]

def train(rows, synchronise):
    # In whole numbers, so that sums are exact in any order: a perceptron for each digit.
    weights = torch.zeros(pixels.shape[1], 10, dtype=torch.float64)
    for _ in range(3):
        right = 2 * torch.nn.functional.one_hot(labels[rows], 10).double() - 1
        gradient = pixels[rows].T @ (right - (pixels[rows] @ weights).sign())
        synchronise(gradient)
        weights += gradient
    return weights

def trains():
    mine = train(slice(rank, None, world_size), dist.all_reduce)
    total = torch.full((3,), rank + 1.0)
    dist.all_reduce(total)
    assert total.tolist() == [10.0] * 3 and comm.allreduce(rank) == 6 and kept == rank * 11
    assert torch.equal(mine, train(slice(None), lambda gradient: None)) and mine.any()
    return True

def survivors_train():
    mine = train(slice(rank, None, world_size), dist.all_reduce)
    assert torch.equal(mine, train(slice(None), lambda gradient: None)) and mine.any()
    assert comm.allreduce(1) == dist.get_world_size() == world_size == comm.Get_size()
    return kept
"""


class Case:
    """A cell that hangs.

    Args:
        cell: what the ranks run.
        waiting: the ranks that wait in communication.
        says: what the diagnosis has to match.
        shows: what a row of the table has to contain.
        renews: whether communication has to be renewed.
        computing: the ranks that compute without an end; all others finish.
    """

    def __init__(self, cell, waiting, says, shows, renews=True, computing=()):
        self.cell = textwrap.dedent(cell)
        self.waiting = waiting
        self.says = says
        self.shows = shows
        self.renews = renews
        self.computing = list(computing)
        self.finished = sorted({0, 1, 2, 3} - {*waiting, *computing})

    def begin(self, kernel, wait_until, options: str = "") -> str:
        """Start the cell, and return when all ranks are where they belong."""
        places = {"waiting": self.waiting, "finished": self.finished, "computing": self.computing}
        return begin(kernel, self.cell, wait_until, **places, options=options)


def of_pairs(first: str, second: str, says: str, *shows: str) -> Case:
    """Ranks 0 and 1 hang in one form of a call, ranks 2 and 3 in another."""
    cell = f"""
        other = rank ^ 1
        if rank < 2:
            {first}
        else:
            {second}
    """
    return Case(cell, [0, 1, 2, 3], says, shows)


def of_one(first: str, second: str, says: str, *shows: str) -> Case:
    """Rank 0 waits for rank 1 in one form of a call, rank 2 for rank 3 in another."""
    cell = f"""
        other = rank + 1
        if rank == 0:
            {first}
        elif rank == 2:
            {second}
    """
    return Case(cell, [0, 2], says, shows)


RECEIVE_FIRST = r"Deadlock: ranks 0 and 1 both receive first \[cell \d+, line 5"
NO_SEND = r"Rank 0 waits in \w+ from rank 1.* but rank 1 has not sent such a message and has fin"
NO_RECEIVE = r"Rank 0 waits in \w+ to rank 1.* but rank 1 never receives it and has finished"
SKIPPED = r"Rank 3 finished without the \w+ in which ranks 0, 1 and 2 wait \[cell"

CASES = {
    "receive first": of_pairs(
        "dist.recv(t, src=other)",
        "dist.irecv(t, src=other).wait()",
        RECEIVE_FIRST,
        "recv from rank 1, tag 0, (3,) float32",
        "recv from rank 3, tag 0, (3,) float32",
    ),
    "receive first, mpi4py": of_pairs(
        "comm.recv(source=other)",
        "comm.Recv(np.empty(3), source=other, tag=4)",
        RECEIVE_FIRST,
        "recv from rank 1, pickle",
        "Recv from rank 3, tag 4, (3,) float64",
    ),
    "receive first, mpi4py without blocking": of_pairs(
        "comm.irecv(source=other).wait()",
        "comm.Irecv(np.empty(3), source=other).Wait()",
        RECEIVE_FIRST,
        "irecv from rank 1",
        "Irecv from rank 2",
    ),
    "send first": of_pairs(
        "comm.Send(big, dest=other)",
        "dist.send(torch.from_numpy(big), dst=other)",
        r"Deadlock: ranks 0 and 1 both send first \[cell .* too large to be buffered",
        "Send to rank 1, tag 0, (1000000,) float64",
        "send to rank 3, tag 0, (1000000,) float64",
    ),
    "no send": of_one(
        "dist.recv(t, src=other)", "comm.recv(source=other)", NO_SEND, "recv from rank 1, tag 0"
    ),
    "no send, without blocking": of_one(
        "comm.irecv(source=other).wait()",
        "comm.Irecv(np.empty(3), source=other).Wait()",
        NO_SEND,
        "irecv from rank 1",
        "Irecv from rank 3",
    ),
    "no receive": of_one(
        "dist.send(torch.from_numpy(big), dst=other)",
        "comm.Send(big, dest=other)",
        NO_RECEIVE,
        "send to rank 1, tag 0, (1000000,) float64",
        "Send to rank 3, tag 0, (1000000,) float64",
    ),
    "no receive, without blocking": of_one(
        "comm.isend(big, dest=other).wait()",
        "comm.Isend(big, dest=other).Wait()",
        NO_RECEIVE,
        "isend to rank 1",
        "Isend to rank 3",
    ),
    "skipped": Case(
        "if rank < 3: dist.all_reduce(t)", [0, 1, 2], SKIPPED, ["all_reduce, SUM of 3 float32"]
    ),
    "skipped, asynchronous": Case(
        "if rank < 3: dist.all_reduce(t, async_op=True).wait()", [0, 1, 2], SKIPPED, ["SUM of 3"]
    ),
    "skipped, pickled": Case(
        "if rank < 3: comm.allreduce(rank)", [0, 1, 2], SKIPPED, ["allreduce, pickle"]
    ),
    "skipped, buffers": Case(
        "if rank < 3: comm.Allreduce(np.ones(3), np.empty(3))", [0, 1, 2], SKIPPED, ["Allreduce"]
    ),
    "skipped, without blocking": Case(
        "if rank < 3: comm.Iallreduce(np.ones(3), np.empty(3)).Wait()",
        [0, 1, 2],
        SKIPPED,
        ["Iallreduce"],
    ),
    "skipped, making a communicator": Case(
        "if rank < 3: comm.Split(0)", [0, 1, 2], SKIPPED, ["Split"]
    ),
    "skipped, making a group": Case(
        """
        pair = dist.new_group([1, 2]) if rank < 2 else None
        """,
        [1],
        r"Rank 2 finished without the new_group in which rank 1 waits \[cell \d+, line 3\] of the "
        "group of ranks 1 and 2",
        ["new_group, in the group of ranks 1 and 2"],
    ),
    "different collectives": Case(
        """
        if rank == 0:
            comm.barrier()
        else:
            comm.gather(rank, root=0)
        """,
        [0],
        r"Different collectives on different ranks: rank 0 called barrier \[cell \d+, line 4\], "
        r"ranks 1, 2 and 3 called gather \[cell \d+, line 6\]",
        ["barrier"],
    ),
    "tag mismatch": Case(
        """
        if rank == 0:
            dist.send(t, dst=1, tag=5)
        elif rank == 1:
            dist.recv(t, src=0, tag=6)
        """,
        [1],
        r"The tags do not match: rank 0 sends to rank 1 with tag 5 \[cell \d+, line 4\], but "
        r"rank 1 receives with tag 6 \[cell \d+, line 6\]",
        ["recv from rank 0, tag 6, (3,) float32"],
    ),
    "irecv never waited for": Case(
        """
        if rank == 0:
            comm.send("once", dest=1)
        elif rank == 1:
            request = comm.irecv(source=0)
            comm.recv(source=0)
        """,
        [1],
        r"Rank 1 waits in recv from rank 0.* its earlier irecv from rank 0.*line 6\], which is "
        "never waited for, comes first and takes the message",
        ["recv from rank 0, pickle"],
    ),
    "endless loop": Case(
        """
        if rank == 1:
            while True:
                pass
        dist.barrier()
        """,
        [0, 2, 3],
        r"Rank 1 is still computing \[cell \d+, line [45]\]; ranks 0, 2 and 3 wait in barrier",
        ["barrier", "computing"],
        computing=[1],
    ),
    "sub-group": Case(
        """
        pair = dist.new_group([1, 2])
        if rank == 2:
            dist.recv(t, src=1, group=pair)
        """,
        [2],
        r"Rank 2 waits in recv from rank 1.*but rank 1 has not sent",
        ["recv from rank 1, tag 0, (3,) float32, in group"],
        renews=False,
    ),
}


MISMATCHES = {
    "shorter": "dist.all_reduce(torch.ones(3 - (rank == 1)))",
    "longer": "dist.all_reduce(torch.ones(3 + (rank == 1)))",
    "dtype": "dist.all_reduce(torch.ones(3, dtype=[torch.float32, torch.int32][rank == 1]))",
    "root": "dist.broadcast(t, src=int(rank == 1))",
    "op": "dist.all_reduce(t, op=[dist.ReduceOp.SUM, dist.ReduceOp.MAX][rank == 1])",
    "order of asynchronous calls": (
        "calls = [lambda: dist.all_reduce(t, async_op=True),"
        " lambda: dist.broadcast(t, src=0, async_op=True)]\n"
        "works = [call() for call in (reversed(calls) if rank == 1 else calls)]\n"
        "for work in works: work.wait()"
    ),
}


STUCK = """
import time
began = time.process_time()  # of this process alone, however busy the machine is
sum(range(2 * 10**6))
steps = int(2 * 10**6 * 12 / (time.process_time() - began))  # for 12 s or so
if rank == 1:
    sum(range(steps))
comm.barrier()
"""


class Gate:
    """A lock in a file. Whoever waits for it does so in C, and no signal ends that."""

    SIZE = 128  # more than a pthread_mutex_t
    is_open = False

    def __init__(self, path) -> None:
        path.write_bytes(bytes(self.SIZE))
        with path.open("r+b") as file:
            self.memory = mmap.mmap(file.fileno(), self.SIZE)
        self.lock = ctypes.byref(ctypes.c_char.from_buffer(self.memory))
        self.threads = ctypes.CDLL(None)
        shared = ctypes.create_string_buffer(self.SIZE)
        self.threads.pthread_mutexattr_init(shared)
        self.threads.pthread_mutexattr_setpshared(shared, 1)
        self.threads.pthread_mutex_init(self.lock, shared)
        self.threads.pthread_mutex_lock(self.lock)
        self.cell = f"""
import ctypes, mmap
with open({str(path)!r}, "r+b") as file:
    memory = mmap.mmap(file.fileno(), {self.SIZE})
lock = ctypes.byref(ctypes.c_char.from_buffer(memory))
holding_the_gil = ctypes.PyDLL(None)
try:
    holding_the_gil.pthread_mutex_lock(lock)
finally:  # an interrupt that came meanwhile strikes now
    holding_the_gil.pthread_mutex_unlock(lock)
"""
        self.cell_of_rank_1 = f"if rank == 1:{textwrap.indent(self.cell, '    ')}comm.barrier()"

    def open(self) -> None:
        if not self.is_open:
            self.is_open = True
            self.threads.pthread_mutex_unlock(self.lock)


# For a rank that is to be killed: C code without an end, which keeps the interpreter's lock.
STUCK_FOR_GOOD = """
if rank == 1:
    sum(range(10**12))
comm.barrier()
"""


def begin(
    kernel,
    cell: str,
    wait_until,
    *,
    waiting: Sequence[int] = (),
    finished: Sequence[int] = (),
    computing: Sequence[int] = (),
    stuck: Sequence[int] = (),
    options: str = "",
) -> str:
    """Start a cell of four ranks, or fewer, and return when all of them are where they belong."""
    ranks = sorted({*waiting, *finished, *computing, *stuck})
    boards = RankBoards(kernel.events)
    before = max(boards.position(rank).began for rank in ranks)
    running = kernel.begin(f"%%px{options}\n{cell}")

    def computes(rank: int) -> bool:
        position = boards.position(rank)
        return position.running and position.site.startswith("cell")

    def in_place() -> bool:
        return (
            all(boards.position(rank).began > before for rank in ranks)
            and not any(map(boards.is_busy, finished))
            and None not in boards.waits(waiting).values()
            and all(boards.is_busy(rank) and boards.keeps_the_lock(rank) for rank in stuck)
            and all(map(computes, computing))
        )

    wait_until(in_place, IN_PLACE_WITHIN_S, f"ranks {list(waiting)} wait")
    return running


# The kernel takes a limit for passed when the test says so, for then all ranks are where they
# belong, however slow the machine is.
CLOCK = """
import time
from pathlib import Path
from ipyranks import cells

class Clock:
    def __init__(self, is_late):
        self.is_late = is_late
    def perf_counter(self):
        return time.perf_counter() + 1000 * self.is_late.exists()

cells.time = Clock(Path({path!r}))
"""


@contextlib.contextmanager
def limit_passed(kernel) -> Iterator[None]:
    """In the block the limit of the cell that ``kernel`` runs has passed; needs :data:`CLOCK`."""
    path = Path(kernel.is_late)
    path.touch()
    try:
        yield
    finally:
        path.unlink()


def assert_trains(kernel) -> None:
    out = kernel.must("%px trains()").text()
    assert out == "".join(f"rank {rank} = True\n" for rank in range(4))


def rows_of(traceback: str) -> dict[int, str]:
    found = re.findall(r"^(\d)  +(\w+.*)$", traceback, re.MULTILINE)
    return {int(rank): row for rank, row in found}


def check(case: Case, kernel, out, seconds: float) -> None:
    rows = rows_of(out.traceback)
    assert [rank for rank, row in rows.items() if row.startswith("waiting")] == case.waiting
    assert len(rows) == 4
    assert re.search(case.says, out.traceback), out.traceback
    for part in case.shows:
        assert any(part in row for row in rows.values()), out.traceback
    for rank in case.waiting:
        assert re.search(r"cell \d+, line \d+  +\d+\.\d s$", rows[rank])
    assert seconds < FREE_WITHIN_S
    assert "NBC_Progress" not in out.text("stderr")
    if case.renews:
        assert RENEWED in out.text()
    else:
        assert "Lost: pair; make it again" in out.text()
    assert kernel.must("print(len(cluster.client.outstanding))").text() == "0\n"
    assert_trains(kernel)
