"""Results tell whether a function is right, its messages whether it is good.

The judges behind the checks of lesson 02. Each is given an :class:`Observation`, the same on
every rank, and raises :class:`WrongAnswer` with the name of the usual mistake it recognises.
"""

from __future__ import annotations

import math
from collections import Counter

import torch
import torch.distributed as dist

from course_lib.teaching.distributed_log import observe_distributed
from course_lib.teaching.exercise import WrongAnswer
from course_lib.teaching.judges.collective_calls import judge_collectives
from course_lib.teaching.judges.failures import judge_errors, own_error
from course_lib.teaching.judges.messages import all_waited, judge_hang, no_collective
from course_lib.teaching.message_log import Observation, observe

# ---- broadcast and scatter from send and recv -------------------------------------------------


def note(rank: int) -> str:
    return f"value of rank {rank}"


def _part(root: int, rank: int) -> str:
    # Long enough that its size tells one part from a list of them, whatever pickling adds.
    return f"part {rank} of rank {root}".ljust(200, ".")


def observe_scatter(scatter, comm, root: int) -> Observation:
    parts = [_part(root, rank) for rank in range(comm.size)]
    return observe(scatter, comm, parts if comm.rank == root else None, root)


def judge_broadcast(seen: Observation, root: int) -> None:
    _judge_messages(seen, root)
    for rank, result in enumerate(seen.results):
        if result == note(root):
            continue
        if rank == root and result is None:
            raise WrongAnswer(
                "root-returns-nothing",
                "the root returns None. It has to return its value as well, so that the same "
                "line works on every rank",
            )
        raise WrongAnswer(
            "wrong-value", f"rank {rank} returned {result!r}, not the root's {note(root)!r}"
        )
    _judge_number_of_messages(seen, root)


def judge_scatter(seen: Observation, root: int) -> None:
    _judge_messages(seen, root)
    results = seen.results
    p = len(results)
    for rank, result in enumerate(results):
        if result == _part(root, rank):
            continue
        if result == [_part(root, r) for r in range(p)]:
            raise WrongAnswer(
                "everyone-keeps-everything" if rank != root else "root-keeps-everything",
                f"rank {rank} returned the whole list. It should return its own part alone",
            )
        if result is None and rank == root:
            raise WrongAnswer(
                "root-returns-nothing", "the root returns None. It has a part of its own"
            )
        others = [r for r in range(p) if result == _part(root, r)]
        if others:
            raise WrongAnswer(
                "parts-shifted",
                f"rank {rank} returned part {others[0]}. Part r of the list is for rank r, and "
                "the root's own part counts too",
            )
        raise WrongAnswer("wrong-value", f"rank {rank} returned {result!r}, not its part")
    needed = len(_part(root, 0)) * (p - 1)
    moved = sum(event.nbytes or 0 for _, event in seen.events("send"))
    if p > 2 and moved > 1.5 * needed:
        raise WrongAnswer(
            "sends-everything",
            f"every rank has its part, but {moved} bytes were sent where about {needed} are "
            "enough: the ranks are sent parts that are not theirs",
        )
    _judge_number_of_messages(seen, root)


def _judge_messages(seen: Observation, root: int) -> None:
    """What can be said before looking at the results, worst first."""
    judge_errors(seen.errors)
    no_collective(
        seen,
        "it calls `comm.{}`, which is the thing to be built. Use `comm.send` and `comm.recv`",
    )
    own = [rank for rank, peer in seen.sent() if rank == peer]
    if own:
        raise WrongAnswer(
            "sends-to-itself",
            f"rank {own[0]} sends to itself. Its data is there already, and with a large "
            "message a blocking send to itself would wait for ever",
        )
    if seen.hung:
        _judge_waiting(seen, root)


def _judge_waiting(seen: Observation, root: int) -> None:
    waiting = [rank for rank, event in seen.stuck().items() if event.kind == "recv"]
    unserved = sorted(set(waiting) - {peer for _, peer in seen.sent()})
    if root in waiting and not seen.sent():
        raise WrongAnswer(
            "nobody-sends",
            "every rank waits in a receive, and nobody sends: not even the root",
        )
    if unserved:
        raise WrongAnswer(
            "somebody-gets-nothing",
            f"rank {unserved[0]} waits for a message that nobody sends. Does the root's loop "
            "reach every rank?",
        )
    judge_hang(seen)


def _judge_number_of_messages(seen: Observation, root: int) -> None:
    received = Counter(peer for _, peer in seen.sent())
    twice = [rank for rank, times in sorted(received.items()) if times > 1]
    if twice:
        raise WrongAnswer(
            "sends-twice",
            f"the result is right, but rank {twice[0]} is sent {received[twice[0]]} messages. One "
            f"each is enough, and none for the root: {len(seen.results) - 1} in all",
        )
    if received[root]:
        sender = next(rank for rank, peer in seen.sent() if peer == root)
        raise WrongAnswer(
            "sends-to-the-root",
            f"the result is right, but rank {sender} sends to the root, rank {root}, which has its "
            "data already. A chain ends at the last rank that needs something",
        )
    all_waited(seen)


# ---- a report without a hang ------------------------------------------------------------------


def judge_report(seen: Observation, losses: list[int]) -> None:
    p = len(seen.results)
    failed = own_error(seen.errors)
    if failed is not None and "NoneType" in str(failed[1]):
        raise WrongAnswer(
            "divides-nothing",
            f"rank {failed[0]} raised {failed[1]}. After a reduce the other ranks hold None: only "
            "rank 0 can divide",
        ) from failed[1]
    judge_errors(seen.errors)
    collectives = [event.call for event in seen.logs[0] if event.kind == "collective"]
    if seen.hung:
        raise WrongAnswer(
            "collective-behind-an-if",
            "it still hangs: not all ranks reach the same collective. Move the call out of the "
            "`if`, so that every rank makes it",
        )
    mean = sum(losses) / p
    if mean == 0 and seen.results[0] is None:
        raise WrongAnswer(
            "zero-is-no-sum",
            "right unless the losses add up to 0. Then rank 0 returned None. "
            "Zero is as false as None: ask for the rank, not for the sum",
        )
    if seen.results[0] == mean * p and p > 1 and mean:
        raise WrongAnswer("sum-not-mean", f"rank 0 got {mean * p:g}, the sum. Divide by comm.size")
    if seen.results[0] != mean:
        raise WrongAnswer("wrong-value", f"rank 0 got {seen.results[0]!r}, the mean is {mean:g}")
    if any(result is not None for result in seen.results[1:]):
        raise WrongAnswer(
            "everyone-gets-it",
            "the mean is right, but other ranks return something too. Only rank 0 should: the "
            "others return None",
        )
    if seen.events("send"):
        raise WrongAnswer(
            "messages-not-a-collective",
            "right, but by single messages. One collective call does it, and a library can make "
            "it faster",
        )
    if len(collectives) != 1:
        raise WrongAnswer(
            "too-many-collectives", f"right, but with {len(collectives)} collectives; one does it"
        )
    if collectives[0].lower() != "reduce":
        raise WrongAnswer(
            "more-than-a-reduce",
            f"right, but `{collectives[0]}` brings rank 0 or the others more than the sum that "
            "rank 0 needs. Which collective leaves the sum with the root alone?",
        )


# ---- one mean over unequal shares -------------------------------------------------------------


def _shares(p: int) -> list[list[float]]:
    """Rank r has r + 1 values, which float32 does not hold."""
    return [[10 * rank + i + 0.1 for i in range(rank + 1)] for rank in range(p)]


def observe_mean(global_mean, ranks: list[int] | None) -> Observation:
    shares = _shares(dist.get_world_size())

    def call(group):
        values = torch.tensor(shares[dist.get_rank(group)], dtype=torch.float64)
        before = values.clone()
        return global_mean(values, group), torch.equal(values, before)

    return observe_distributed(call, ranks=ranks)


def judge_mean(seen: Observation, p: int) -> None:
    judge_collectives(seen)
    shares = _shares(p)
    values = [value for share in shares for value in share]
    mean = sum(values) / len(values)
    mean_of_means = sum(sum(share) / len(share) for share in shares) / p
    for rank, (result, unchanged) in enumerate(seen.results[:p]):
        if not unchanged:
            raise WrongAnswer(
                "changes-its-input",
                "`values` is not what it was before the call. Whoever calls you still needs it: "
                "work on a tensor of your own",
            )
        if not isinstance(result, float):
            kind = type(result).__name__
            raise WrongAnswer("not-a-float", f"rank {rank} returned a {kind}, not a Python float")
        if math.isclose(result, mean, rel_tol=1e-12):
            continue
        if math.isclose(result, mean, rel_tol=1e-6):
            raise WrongAnswer(
                "loses-digits",
                f"rank {rank} returned {result!r}, and the mean is {mean!r}: only 7 digits are "
                "right, as in float32. The values are float64; let what you send be so too",
            )
        if abs(result - mean_of_means) < 1e-9:
            raise WrongAnswer(
                "mean-of-means",
                f"rank {rank} returned {result:g}, the mean of the ranks' means. The mean of "
                f"all {len(values)} values is {mean:g}: a rank with more values must count more",
            )
        if abs(result - sum(values)) < 1e-9:
            raise WrongAnswer("sum-not-mean", f"rank {rank} returned {result:g}, the sum")
        if abs(result - sum(shares[rank]) / len(shares[rank])) < 1e-9:
            raise WrongAnswer("own-mean", f"rank {rank} returned the mean of its own values alone")
        raise WrongAnswer("wrong-value", f"rank {rank} returned {result:g}, the mean is {mean:g}")
    calls = seen.logs[0]
    if len(calls) != 1:
        names = ", ".join(event.call for event in calls)
        raise WrongAnswer(
            "too-many-collectives",
            f"the mean is right, but it took {len(calls)} calls ({names}). Put what they carry "
            "into one tensor: each call costs a round of messages",
        )
    heaviest = max(
        calls[0].nbytes if calls[0].nbytes is not None else 17 for calls in seen.logs[:p]
    )
    if heaviest > 16:
        raise WrongAnswer(
            "gathers-everything",
            f"the mean is right, but `dist.{calls[0].call}` moves the values themselves. The "
            "budget is 16 bytes per rank: two float64 numbers",
        )


# ---- transpose by all-to-all ------------------------------------------------------------------

BLOCK = 2  # rows per rank


def _matrix(p: int) -> torch.Tensor:
    n = BLOCK * p
    return torch.arange(n * n).reshape(n, n)


def _rows_of(matrix: torch.Tensor, rank: int) -> torch.Tensor:
    return matrix[rank * BLOCK : (rank + 1) * BLOCK].clone()


def observe_transpose(transpose, ranks: list[int] | None, p: int) -> Observation:
    def call(group):
        return transpose(_rows_of(_matrix(p), dist.get_rank(group)), group)

    return observe_distributed(call, ranks=ranks)


def judge_transpose(seen: Observation, p: int) -> None:
    judge_collectives(seen)
    called = [event.call for event in seen.logs[0]]
    whole = BLOCK * BLOCK * p
    if any(name not in ("all_to_all_single", "all_to_all") for name in called):
        raise WrongAnswer(
            "gathers-everything",
            f"it calls `dist.{called[0]}`. Let every rank be sent only the {whole} numbers that "
            "it keeps: that is an all-to-all",
        )
    if len(called) != 1:
        raise WrongAnswer(
            "too-many-collectives", f"it takes {len(called)} collectives; one all-to-all does it"
        )
    for rank, result in enumerate(seen.results[:p]):
        expected = _rows_of(_matrix(p).T.contiguous(), rank)
        if not isinstance(result, torch.Tensor):
            kind = type(result).__name__
            raise WrongAnswer("not-a-tensor", f"rank {rank} returned a {kind}, not a tensor")
        if tuple(result.shape) != tuple(expected.shape):
            raise WrongAnswer(
                "wrong-shape",
                f"rank {rank} returned shape {tuple(result.shape)}; its block of rows has shape "
                f"{tuple(expected.shape)}",
            )
        if torch.equal(result, expected):
            continue
        pieces = expected.reshape(BLOCK, p, BLOCK)
        if torch.equal(result, pieces.transpose(0, 2).reshape(BLOCK, p * BLOCK)):
            raise WrongAnswer(
                "pieces-not-transposed",
                f"rank {rank} has the right pieces in the right places, but each "
                f"{BLOCK} × {BLOCK} piece itself is not transposed yet",
            )
        if sorted(result.flatten().tolist()) == sorted(expected.flatten().tolist()):
            raise WrongAnswer(
                "pieces-misplaced",
                f"rank {rank} has the right numbers, but in the wrong places. What came from "
                "rank s belongs in the s-th group of columns",
            )
        raise WrongAnswer(
            "wrong-pieces",
            f"rank {rank} has numbers that are not its own. `all_to_all_single` cuts the first "
            "dimension: part r of it goes to rank r, so bring the columns there first",
        )
