"""The checks of lesson 01.

A message program is right if it ends on every rank, and for the right reason. Each check
runs the learner's function on the real ranks, on a communicator of its own with a short deadline,
and judges what was returned and every message that was sent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from course_lib.teaching.exercise import WrongAnswer, as_mistake, exercise
from course_lib.teaching.judges.trials import second_call

if TYPE_CHECKING:
    from torch_mpi4py import GuardedComm

    from course_lib.teaching.message_log import LoggedComm

# ---- ring pass --------------------------------------------------------------------------------

RING_PASS_HINTS = [
    "There are two roles here. Rank 0 has the token at the start and gets it back at the end. "
    "Every other rank first receives and then sends. The right neighbour of rank r is "
    "`(r + 1) % comm.size`, and its left neighbour is `(r - 1) % comm.size`.",
    "Every rank but 0: receive the token from the left, append your rank, send it to the right, "
    "return it. Rank 0: append your rank and send *first*; only then receive, and return what "
    "you received.",
    "```python\n"
    "right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size\n"
    "if comm.rank == 0:\n"
    "    comm.send([*token, 0], dest=right)\n"
    "    return ...  # the token that comes home\n"
    "token = [*..., comm.rank]  # the token from the left, and your rank\n"
    "...  # send it on\n"
    "return token\n"
    "```",
]


@exercise("01.ring_pass", function="ring_pass", where="engines", hints=RING_PASS_HINTS)
def check_ring_pass(ring_pass) -> str:
    from torch_mpi4py import world

    from course_lib.teaching.judges.rank_groups import with_fewer_ranks
    from course_lib.teaching.message_log import observe

    from .judge_messages import judge_ring_pass

    comm = world()

    def start(comm: LoggedComm, token: list):
        return ring_pass(comm, [*token] if comm.rank == 0 else None)

    def judge(comm: GuardedComm, token: list) -> None:
        judge_ring_pass(observe(start, comm, token), token)

    judge(comm, ["start"])
    with second_call():
        judge(comm, ["another", "start"])
    with_fewer_ranks(comm, lambda comm: judge(comm, ["start"]))
    return f"The token went once round {comm.size} ranks and came home, in {comm.size} messages."


# ---- shift ------------------------------------------------------------------------------------

SHIFT_LENGTH = 1 << 17  # float64 numbers: 1 MiB, more than any MPI buffers
SHIFT_HINTS = [
    "If every rank begins with a blocking `Send`, no rank gets as far as a receive. If every rank "
    "begins with `Recv`, no rank gets as far as a send. What can a rank start *without* waiting "
    "for it to finish?",
    "`request = comm.Isend(array, dest=right)` starts the send and returns at once. Then receive "
    "into a new array of the same shape and dtype, and only then `request.wait()`.",
    "```python\n"
    "received = np.empty_like(array)\n"
    "request = comm.Isend(array, dest=(comm.rank + 1) % comm.size)\n"
    "...  # receive from the left, into `received`\n"
    "...  # wait for the request\n"
    "return received\n"
    "```\n"
    "`comm.Sendrecv(array, dest=..., recvbuf=received, source=...)` does all this in one call.",
]


@exercise("01.shift", function="shift", where="engines", hints=SHIFT_HINTS)
def check_shift(shift) -> str:
    from torch_mpi4py import world

    from course_lib.teaching.judges.rank_groups import with_fewer_ranks
    from course_lib.teaching.message_log import observe

    from .judge_messages import judge_shift

    comm = world()
    kept: np.ndarray | None = None  # what the last call returned

    def call(comm: LoggedComm, dtype: type, length: int):
        nonlocal kept
        # Not the ranks themselves: the sum of two ranks' arrays must not equal a third rank's.
        owners = {10 * rank + 1: rank for rank in range(comm.size)}
        mine = np.full(length, 10 * comm.rank + 1, dtype=dtype)
        received = shift(comm, mine)
        intact = bool(np.all(mine == 10 * comm.rank + 1))
        owner = None
        if isinstance(received, np.ndarray) and received.shape == mine.shape:
            numbers = np.unique(received)
            whole = len(numbers) == 1 and received.dtype == mine.dtype
            owner = owners.get(numbers[0]) if whole else None
        kind, earlier = type(received).__name__, kept
        kept = received if kind == "ndarray" else None
        return owner, kind, intact, earlier is None or not np.may_share_memory(kept, earlier)

    def judge(comm: GuardedComm, dtype: type = np.float64, length: int = SHIFT_LENGTH) -> None:
        judge_shift(observe(call, comm, dtype, length), length * np.dtype(dtype).itemsize)

    judge(comm)
    with_fewer_ranks(comm, judge)
    with as_mistake("forgets-the-dtype"):
        judge(comm, np.int32)
    with as_mistake("length-is-fixed"):
        judge(comm, length=1)
    return "Every rank sent 1 MiB to its right neighbour, and no rank was left waiting."


# ---- handshake --------------------------------------------------------------------------------

HANDSHAKE_HINTS = [
    "There are two roles, so you need one `if`. The worker's side has three lines: it sends, "
    "receives, and sends again. The server's side is a loop of `comm.size - 1` rounds; in each "
    "round, it does the opposite of these three lines for one worker.",
    "The server does not know which worker comes next, so its first receive in each round is from "
    "`MPI.ANY_SOURCE`. Give it `status=status`, with `status = MPI.Status()`. Afterwards, "
    "`status.source` is the worker's rank. Send the answer to this rank, and receive the payload "
    "from this rank.",
    "```python\n"
    "if comm.rank != 0:\n"
    '    comm.send("hello", dest=0)\n'
    '    assert comm.recv(source=0) == "I am ready for you"\n'
    "    ...  # the payload\n"
    "    return None\n"
    "payloads, status = {}, MPI.Status()\n"
    "for _ in range(comm.size - 1):\n"
    "    comm.recv(source=MPI.ANY_SOURCE, status=status)\n"
    "    worker = status.source\n"
    "    ...  # answer the worker\n"
    "    payloads[worker] = ...  # from this worker alone\n"
    "return payloads\n"
    "```",
]


@exercise("01.handshake", function="handshake", where="engines", hints=HANDSHAKE_HINTS)
def check_handshake(handshake) -> str:
    from torch_mpi4py import world

    from course_lib.teaching.judges.rank_groups import with_fewer_ranks
    from course_lib.teaching.message_log import observe

    from .judge_messages import highest_worker_first, judge_handshake

    comm = world()

    def payloads(p: int, step: int) -> list:
        if step == 2:  # worker 1's is 0, which counts as false, as None does
            return [rank - 1 for rank in range(p)]
        return [{"gradient of rank": rank} for rank in range(p)]

    returned = []

    def call(comm: LoggedComm, step: int):
        returned.append(handshake(comm, payloads(comm.size, step)[comm.rank]))
        return returned[-1]

    def call_in_turn(comm: LoggedComm, step: int):
        with highest_worker_first(comm):
            return call(comm, step)

    def judge(comm: GuardedComm) -> None:
        judge_handshake(observe(call, comm, 1), payloads(comm.size, 1))

    judge(comm)
    first, second = (payloads(comm.size, step) for step in (1, 2))
    judge_handshake(observe(call_in_turn, comm, 2), second, first)
    if comm.bcast(returned[0] is returned[1]):
        raise WrongAnswer("remembers-earlier-calls: the dictionary")
    with_fewer_ranks(comm, judge)
    return "Every worker said hello, got an answer, and was served on its own, in order of arrival."


# ---- writing in order -------------------------------------------------------------------------

IN_ORDER_HINTS = [
    "Rank r may write when rank r - 1 has written. How can rank r - 1 tell it? The content of "
    "the message does not matter, only that it *arrives*.",
    "Every rank does three things in this order: wait for a message from rank r - 1 (rank 0 does "
    "not), write, send a message to rank r + 1 (the last rank does not).",
    "```python\n"
    "if comm.rank > 0:\n"
    "    ...  # wait for your turn\n"
    "write(text)\n"
    "if comm.rank < comm.size - 1:\n"
    "    ...  # pass the turn on\n"
    "```",
]


@exercise("01.write_in_order", function="write_in_order", where="engines", hints=IN_ORDER_HINTS)
def check_write_in_order(write_in_order) -> str:
    from torch_mpi4py import world

    from course_lib.teaching.judges.rank_groups import with_fewer_ranks
    from course_lib.teaching.message_log import observe

    from .judge_messages import judge_in_order

    comm = world()

    def lines(p: int, call: int) -> list[str]:
        return [f"line {call} of rank {rank}" for rank in range(p)]

    def call(comm: LoggedComm, number: int):
        def write(text: str) -> None:
            comm.mark(text)

        write.__qualname__ = "write"  # as errors name it
        return write_in_order(comm, lines(comm.size, number)[comm.rank], write)

    def judge(comm: GuardedComm, number: int = 1) -> None:
        judge_in_order(observe(call, comm, number), lines(comm.size, number))

    judge(comm)
    with second_call():
        judge(comm, 2)
    with_fewer_ranks(comm, judge)
    return f"The messages enforce the order, and {comm.size - 1} of them are enough."
