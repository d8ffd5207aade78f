"""Judges a function first by its results, and then by its messages.

The judges behind the checks of lesson 02. Each is given an :class:`Observation`, the same on
every rank, and raises :class:`WrongAnswer` with the name of the usual mistake it recognises.
"""

from __future__ import annotations

import math
import reprlib
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from unittest.mock import patch

import torch
import torch.distributed as dist

from course_lib.teaching.distributed_log import observe_distributed
from course_lib.teaching.exercise import WrongAnswer
from course_lib.teaching.judges.collective_calls import judge_collectives
from course_lib.teaching.judges.failures import judge_errors, not_attempted, own_error
from course_lib.teaching.judges.formulas import name_the_mistake, plain
from course_lib.teaching.judges.messages import (
    all_waited,
    inside_the_world,
    judge_hang,
    no_collective,
)
from course_lib.teaching.message_log import Observation, observe

# ---- broadcast and scatter from send and recv -------------------------------------------------


def notes(p: int) -> list[str]:
    return [f"value of rank {rank}" for rank in range(p)]


def _part(root: int, rank: int) -> str:
    # Long enough that its size tells one part from a list of them, whatever pickling adds.
    return f"part {rank} of rank {root}".ljust(200, ".")


def observe_scatter(scatter, comm, root: int) -> Observation:
    parts = [_part(root, rank) for rank in range(comm.size)]
    return observe(scatter, comm, parts if comm.rank == root else None, root)


def observe_scatter_of_nothing(scatter, comm) -> Observation:
    """Scatter parts of rank 0 that count as false: 0, an empty string and so on."""

    def call(comm):
        own = _false_parts(comm.size) if comm.rank == 0 else None
        result = scatter(comm, own, 0)
        return result, own in (None, _false_parts(comm.size))

    return observe(call, comm)


def _false_parts(p: int) -> list:
    return [(0, "", [], {}, False)[rank % 5] for rank in range(p)]


def judge_scatter_of_nothing(seen: Observation) -> None:
    """Raise if a part is not sent because it is empty, or if the list of parts has changed."""
    judge_errors(seen.errors)
    if seen.hung:
        raise WrongAnswer("empty-part: and it hangs")
    p = len(seen.results)
    for rank, wanted in enumerate(_false_parts(p)):
        result, unchanged = seen.results[rank]
        if result in [_part(0, other) for other in range(p)]:
            raise WrongAnswer("remembers-earlier-calls: a part", rank=rank)
        if result != wanted:
            raise WrongAnswer("empty-part", rank=rank, result=repr(result), wanted=repr(wanted))
        if not unchanged:
            raise WrongAnswer("changes-its-input", rank=rank)


def judge_broadcast(seen: Observation, root: int, values: list) -> None:
    """``values``: the value that each rank passed in."""
    earlier = notes(len(values)) if values != notes(len(values)) else []
    if any(result in earlier for result in seen.results):
        raise WrongAnswer("remembers-earlier-calls: the value")
    _judge_messages(seen, root)
    for rank, result in enumerate(seen.results):
        if result == values[root]:
            continue
        if rank == root and result is None:
            raise WrongAnswer("root-returns-nothing")
        all_waited(seen)  # otherwise, it may have returned before the data arrived
        _judge_nothing(rank, result)
        raise WrongAnswer("wrong-value", rank=rank, result=repr(result), wanted=repr(values[root]))
    _judge_number_of_messages(seen, root)


def judge_scatter(seen: Observation, root: int) -> None:
    _judge_messages(seen, root)
    results = seen.results
    p = len(results)
    for rank, result in enumerate(results):
        if result == _part(root, rank):
            continue
        if result == [_part(root, r) for r in range(p)]:
            if rank == root:
                raise WrongAnswer("root-keeps-everything", rank=rank)
            raise WrongAnswer("everyone-keeps-everything", rank=rank)
        if result is None and rank == root:
            raise WrongAnswer("root-returns-nothing")
        parts = [r for r in range(p) if result == _part(root, r)]
        if parts:
            raise WrongAnswer("parts-shifted", rank=rank, part=parts[0])
        if result == [_part(root, rank)]:
            raise WrongAnswer("list-of-one", rank=rank)
        all_waited(seen)
        _judge_nothing(rank, result)
        raise WrongAnswer("wrong-value", rank=rank, result=reprlib.repr(result))
    needed = len(_part(root, 0)) * (p - 1)
    moved = sum(event.nbytes or 0 for _, event in seen.events("send"))
    if p > 2 and moved > 1.5 * needed:
        raise WrongAnswer("sends-everything", moved=moved, needed=needed)
    _judge_number_of_messages(seen, root)


def _judge_nothing(rank: int, result: object) -> None:
    if result is None:
        raise WrongAnswer("returns-nothing", rank=rank)


def _judge_messages(seen: Observation, root: int) -> None:
    """Judge what needs no results, worst first."""
    not_attempted(seen.errors)
    inside_the_world(seen)
    judge_errors(seen.errors)
    no_collective(seen)
    for rank, _ in seen.sent():
        if rank != root and not any(event.kind == "recv" for event in seen.logs[rank]):
            raise WrongAnswer("sends-like-the-root", rank=rank, root=root)
    own = [rank for rank, peer in seen.sent() if rank == peer]
    if own:
        raise WrongAnswer("sends-to-itself", rank=own[0])
    if seen.hung:
        _judge_waiting(seen, root)


def _judge_waiting(seen: Observation, root: int) -> None:
    waiting = [rank for rank, event in seen.stuck().items() if event.kind == "recv"]
    unserved = sorted(set(waiting) - {peer for _, peer in seen.sent()})
    if root in waiting and not seen.sent():
        raise WrongAnswer("nobody-sends")
    if root in unserved:
        raise WrongAnswer("root-receives")
    if unserved:
        raise WrongAnswer("somebody-gets-nothing", rank=unserved[0])
    judge_hang(seen)


def _judge_number_of_messages(seen: Observation, root: int) -> None:
    received = Counter(peer for _, peer in seen.sent())
    twice = [rank for rank, times in sorted(received.items()) if times > 1]
    if twice:
        raise WrongAnswer(
            "sends-twice", rank=twice[0], count=received[twice[0]], needed=len(seen.results) - 1
        )
    if received[root]:
        sender = next(rank for rank, peer in seen.sent() if peer == root)
        raise WrongAnswer("sends-to-the-root", sender=sender, root=root)
    all_waited(seen)


# ---- a report without a hang ------------------------------------------------------------------


def judge_report(seen: Observation, losses: list[float]) -> None:
    p = len(seen.results)
    failed = own_error(seen.errors)
    if failed is not None and "NoneType" in str(failed[1]):
        if failed[0] != 0:
            raise WrongAnswer("divides-nothing", rank=failed[0], error=failed[1]) from failed[1]
        raise WrongAnswer("wrong-root", rank=failed[0], error=failed[1]) from failed[1]
    judge_errors(seen.errors)
    if seen.hung:
        raise WrongAnswer("collective-behind-an-if")
    mean = sum(losses) / p
    _judge_mean_of_losses(seen.results, losses, mean)
    if any(result is not None for result in seen.results[1:]):
        raise WrongAnswer("everyone-gets-it")
    if seen.events("send"):
        raise WrongAnswer("messages-not-a-collective")
    collectives = [event.call for event in seen.logs[0] if event.kind == "collective"]
    if not collectives and p > 1:
        raise WrongAnswer("forgets-the-comm")
    if len(collectives) > 1:
        raise WrongAnswer("too-many-collectives", count=len(collectives))
    if collectives and collectives[0].lower().removeprefix("i") != "reduce":
        raise WrongAnswer("more-than-a-reduce", call=collectives[0])
    all_waited(seen)


def _judge_mean_of_losses(results: list, losses: list[float], mean: float) -> None:
    given, p = plain(results[0]), len(results)

    def is_close(value: float) -> bool:
        # Sums of these losses are exact. Dividing first is not, by about 1e-16.
        number = isinstance(given, (int, float))
        return number and math.isclose(given, value, rel_tol=1e-9, abs_tol=1e-9)

    if is_close(mean):
        return
    if given is None and mean == 0:
        raise WrongAnswer("zero-is-no-sum")
    others = [rank for rank, result in enumerate(results) if result is not None]
    if given is None and others:
        raise WrongAnswer(
            "wrong-root: on another rank", rank=others[0], result=repr(results[others[0]])
        )
    if given is None:
        raise WrongAnswer("returns-nothing")
    if p > 1 and is_close(mean * p):
        raise WrongAnswer("sum-not-mean", total=mean * p)
    if is_close(mean // 1):
        raise WrongAnswer("rounds-down", given=repr(given), mean=mean)
    if any(map(is_close, (max(losses) / p, min(losses) / p, max(losses), min(losses)))):
        raise WrongAnswer("not-the-sum", given=repr(given), mean=mean)
    raise WrongAnswer("wrong-value", given=repr(given), mean=mean)


# ---- one mean over unequal shares -------------------------------------------------------------


def _shares(p: int, first: int, more: float) -> list[list[float]]:
    """Rank r has r + ``first`` values of both signs that float32 cannot represent exactly."""
    return [[10 * rank + i - 11.9 + more for i in range(rank + first)] for rank in range(p)]


def observe_mean(
    global_mean, ranks: list[int] | None, first: int = 1, more: float = 0.0
) -> Observation:
    """``first``: the number of values on the group's rank 0; ``more`` is added to all values."""
    shares = _shares(dist.get_world_size(), first, more)

    def call(group):
        values = torch.tensor(shares[dist.get_rank(group)], dtype=torch.float64)
        before = values.clone()
        return global_mean(values, group), torch.equal(values, before)

    return observe_distributed(call, ranks=ranks)


def judge_mean(seen: Observation, p: int, first: int = 1, more: float = 0.0) -> None:
    judge_collectives(seen)
    shares = _shares(p, first, more)
    given = [result for result, _ in seen.results[:p]]
    for rank, (result, unchanged) in enumerate(seen.results[:p]):
        if not unchanged:
            raise WrongAnswer("changes-its-input")
        if not isinstance(result, float):
            kind = type(result).__name__
            raise WrongAnswer("not-a-float", rank=rank, kind=kind)
    _judge_means(seen, given, shares)
    all_waited(seen)
    calls = seen.logs[0]
    if len(calls) != 1:
        names = ", ".join(event.call for event in calls)
        raise WrongAnswer("too-many-collectives", count=len(calls), names=names)
    sizes = [log[0].nbytes for log in seen.logs[:p]]
    if len(set(sizes)) > 1 or sizes[0] is None:
        raise WrongAnswer("gathers-everything", call=calls[0].call)
    if sizes[0] > 16:
        raise WrongAnswer("over-the-budget", nbytes=sizes[0], call=calls[0].call)


def _judge_means(seen: Observation, given: list[float], shares: list[list[float]]) -> None:
    values = [value for share in shares for value in share]
    total, p = sum(values), len(shares)
    mean = total / len(values)

    def is_close(wanted: list[float], tolerance: float = 1e-12) -> bool:
        # Sums in float64, in another order, differ by some 1e-16; float32 by some 1e-8.
        pairs = zip(given, wanted, strict=True)
        return all(math.isclose(g, w, rel_tol=tolerance) for g, w in pairs)

    if is_close([mean] * p):
        return
    wrong = next(r for r, g in enumerate(given) if not math.isclose(g, mean, rel_tol=1e-12))
    all_waited(seen)  # otherwise, it may have looked before the data arrived
    if is_close([mean] * p, 1e-6):
        raise WrongAnswer("loses-digits", rank=wrong, given=repr(given[wrong]), mean=repr(mean))
    if any(event.call == "reduce" for event in seen.logs[0]):
        raise WrongAnswer("only-the-root-knows", rank=wrong, given=given[wrong], mean=mean)
    if all(shares):
        lengths = [len(share) for share in shares]
        means = [sum(share) / len(share) for share in shares]
        mistakes = {
            "mean-of-means": [sum(means) / p] * p,
            "sum-not-mean": [total] * p,
            "own-count": [total / n for n in lengths],
            "own-count-times-ranks": [total / (n * p) for n in lengths],
            "own-mean": means,
        }
        told = {"rank": wrong, "given": given[wrong], "count": len(values), "mean": mean}
        name_the_mistake(mistakes, is_close, **told)
    raise WrongAnswer("wrong-value", rank=wrong, given=given[wrong], mean=mean)


# ---- transpose by all-to-all ------------------------------------------------------------------


def _matrix(p: int, block: int) -> torch.Tensor:
    n = block * p
    return torch.arange(n * n).reshape(n, n) + 2**40  # more digits than float32 has


def _rows_of(matrix: torch.Tensor, rank: int, block: int) -> torch.Tensor:
    return matrix[rank * block : (rank + 1) * block].clone()


def observe_transpose(transpose, ranks: list[int] | None, p: int, block: int = 2) -> Observation:
    """``block``: the number of rows on a rank."""

    def call(group):
        rows = _rows_of(_matrix(p, block), dist.get_rank(group), block)
        before = rows.clone()
        with _memory_without_luck():
            result = transpose(rows, group)
        return result, torch.equal(rows, before)

    return observe_distributed(call, ranks=ranks)


def _memory_without_luck() -> AbstractContextManager:
    """Fill memory from ``torch.empty``: it may hold the right numbers from an earlier call."""

    def filled(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        return lambda *args, **kwargs: make(*args, **kwargs).fill_(-1)

    return patch.multiple(torch, empty=filled(torch.empty), empty_like=filled(torch.empty_like))


def judge_transpose(seen: Observation, p: int, block: int = 2) -> None:
    judge_collectives(seen)
    called = [event.call for event in seen.logs[0]]
    whole = block * block * p
    if any(name not in ("all_to_all_single", "all_to_all") for name in called):
        raise WrongAnswer("gathers-everything", call=called[0], whole=whole)
    if len(called) != 1:
        raise WrongAnswer("too-many-collectives", count=len(called))
    for rank, (result, unchanged) in enumerate(seen.results[:p]):
        expected = _rows_of(_matrix(p, block).T.contiguous(), rank, block)
        if not isinstance(result, torch.Tensor):
            kind = type(result).__name__
            raise WrongAnswer("not-a-tensor", rank=rank, kind=kind)
        if tuple(result.shape) != tuple(expected.shape):
            raise WrongAnswer(
                "wrong-shape", rank=rank, shape=tuple(result.shape), wanted=tuple(expected.shape)
            )
        if result.dtype != expected.dtype:
            raise WrongAnswer("other-dtype", rank=rank, dtype=result.dtype, wanted=expected.dtype)
        if torch.equal(result, expected):
            if not unchanged:
                raise WrongAnswer("changes-its-input", rank=rank)
            continue
        all_waited(seen)
        if torch.equal(result, expected.float().to(expected.dtype)):
            raise WrongAnswer("loses-digits", rank=rank)
        _judge_what_was_sent(seen, rank, p, block)
        pieces = expected.reshape(block, p, block)
        if torch.equal(result, pieces.transpose(0, 2).reshape(block, p * block)):
            raise WrongAnswer("pieces-not-transposed", rank=rank, block=block)
        if sorted(result.flatten().tolist()) == sorted(expected.flatten().tolist()):
            raise WrongAnswer("pieces-misplaced", rank=rank)
        raise WrongAnswer("wrong-pieces", rank=rank)
    all_waited(seen)
    own = _rows_of(_matrix(p, block), 0, block).nbytes
    for rank, log in enumerate(seen.logs[:p]):
        if log[0].nbytes is not None and log[0].nbytes > own:
            raise WrongAnswer("sends-too-much", rank=rank, nbytes=log[0].nbytes, needed=own)


def _judge_what_was_sent(seen: Observation, rank: int, p: int, block: int) -> None:
    sent = seen.logs[rank][0].content
    own = _rows_of(_matrix(p, block), rank, block).flatten().tolist()
    if sent is not None and sorted(sent) != own:
        raise WrongAnswer("sends-something-else", rank=rank)
