"""Results tell whether a function is right, its messages whether it is good.

The judges behind the checks of lesson 02. Each is given an :class:`Observation`, the same on
every rank, and raises :class:`WrongAnswer` with the name of the usual mistake it recognises.
"""

from __future__ import annotations

import math
import reprlib
from collections import Counter

import torch
import torch.distributed as dist

from course_lib.teaching.distributed_log import observe_distributed
from course_lib.teaching.exercise import WrongAnswer
from course_lib.teaching.judges.collective_calls import judge_collectives
from course_lib.teaching.judges.failures import judge_errors, not_attempted, own_error
from course_lib.teaching.judges.formulas import plain
from course_lib.teaching.judges.messages import (
    all_waited,
    inside_the_world,
    judge_hang,
    no_collective,
)
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
        all_waited(seen)  # or it returned before anything had come
        _judge_nothing(rank, result)
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
        if result == [_part(root, rank)]:
            raise WrongAnswer(
                "list-of-one",
                f"rank {rank} returned a list with its part in it. `parts[r]` is the part itself, "
                "`parts[r : r + 1]` a list of one",
            )
        all_waited(seen)
        _judge_nothing(rank, result)
        raise WrongAnswer(
            "wrong-value", f"rank {rank} returned {reprlib.repr(result)}, not its part"
        )
    needed = len(_part(root, 0)) * (p - 1)
    moved = sum(event.nbytes or 0 for _, event in seen.events("send"))
    if p > 2 and moved > 1.5 * needed:
        raise WrongAnswer(
            "sends-everything",
            f"every rank has its part, but {moved} bytes were sent where about {needed} are "
            "enough: the ranks are sent parts that are not theirs",
        )
    _judge_number_of_messages(seen, root)


def _judge_nothing(rank: int, result: object) -> None:
    if result is None:
        raise WrongAnswer(
            "returns-nothing", f"rank {rank} returns None. It has to return what it receives"
        )


def _judge_messages(seen: Observation, root: int) -> None:
    """What can be said before looking at the results, worst first."""
    not_attempted(seen.errors)
    inside_the_world(seen)
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
    if root in unserved:
        raise WrongAnswer(
            "root-receives",
            "the root waits for a message, and nobody sends it one: what it is to return, it has "
            "already. Only the others receive",
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


def judge_report(seen: Observation, losses: list[float]) -> None:
    p = len(seen.results)
    failed = own_error(seen.errors)
    if failed is not None and "NoneType" in str(failed[1]):
        root_knows = failed[0] != 0
        raise WrongAnswer(
            "divides-nothing" if root_knows else "wrong-root",
            f"rank {failed[0]} raised {failed[1]}. After a reduce "
            + (
                "the other ranks hold None: only rank 0 can divide"
                if root_knows
                else "only the root holds the sum, and rank 0 needs it: `root=0`"
            ),
        ) from failed[1]
    judge_errors(seen.errors)
    if seen.hung:
        raise WrongAnswer(
            "collective-behind-an-if",
            "it still hangs: not all ranks reach the same collective. Move the call out of the "
            "`if`, so that every rank makes it",
        )
    mean = sum(losses) / p
    _judge_mean_of_losses(seen.results, losses, mean)
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
    collectives = [event.call for event in seen.logs[0] if event.kind == "collective"]
    if not collectives and p > 1:
        raise WrongAnswer(
            "forgets-the-comm",
            "right, but no call of the `comm` that it is given was seen, so it asks all ranks of "
            "the world, whoever the caller meant",
        )
    if len(collectives) > 1:
        raise WrongAnswer(
            "too-many-collectives", f"right, but with {len(collectives)} collectives; one does it"
        )
    if collectives and collectives[0].lower().removeprefix("i") != "reduce":
        raise WrongAnswer(
            "more-than-a-reduce",
            f"right, but `{collectives[0]}` brings rank 0 or the others more than the sum that "
            "rank 0 needs. Which collective leaves the sum with the root alone?",
        )
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
        raise WrongAnswer(
            "zero-is-no-sum",
            "right unless the losses add up to 0. Then rank 0 returned None. "
            "Zero is as false as None: ask for the rank, not for the sum",
        )
    others = [rank for rank, result in enumerate(results) if result is not None]
    if given is None and others:
        raise WrongAnswer(
            "wrong-root", f"rank 0 got None, and rank {others[0]} {results[others[0]]!r}: `root=0`"
        )
    if given is None:
        raise WrongAnswer("returns-nothing", "every rank returned None. Rank 0 returns the mean")
    if p > 1 and is_close(mean * p):
        raise WrongAnswer("sum-not-mean", f"rank 0 got {mean * p:g}, the sum. Divide by comm.size")
    if is_close(mean // 1):
        raise WrongAnswer(
            "rounds-down",
            f"rank 0 got {given!r}, and the mean is {mean:g}: `//` rounds down. Divide by `/`",
        )
    if any(map(is_close, (max(losses) / p, min(losses) / p, max(losses), min(losses)))):
        raise WrongAnswer(
            "not-the-sum",
            f"rank 0 got {given!r}, which comes from one rank's loss alone. The mean is {mean:g}: "
            "the sum of all losses, divided by `comm.size`",
        )
    raise WrongAnswer("wrong-value", f"rank 0 got {given!r}, the mean is {mean:g}")


# ---- one mean over unequal shares -------------------------------------------------------------


def _shares(p: int, first: int) -> list[list[float]]:
    """Rank r has r + ``first`` values, which float32 does not hold."""
    return [[10 * rank + i + 0.1 for i in range(rank + first)] for rank in range(p)]


def observe_mean(global_mean, ranks: list[int] | None, first: int = 1) -> Observation:
    """``first``: how many values the group's rank 0 has."""
    shares = _shares(dist.get_world_size(), first)

    def call(group):
        values = torch.tensor(shares[dist.get_rank(group)], dtype=torch.float64)
        before = values.clone()
        return global_mean(values, group), torch.equal(values, before)

    return observe_distributed(call, ranks=ranks)


def judge_mean(seen: Observation, p: int, first: int = 1) -> None:
    judge_collectives(seen)
    shares = _shares(p, first)
    given = [result for result, _ in seen.results[:p]]
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
    _judge_means(seen, given, shares)
    all_waited(seen)
    calls = seen.logs[0]
    if len(calls) != 1:
        names = ", ".join(event.call for event in calls)
        raise WrongAnswer(
            "too-many-collectives",
            f"the mean is right, but it took {len(calls)} calls ({names}). Put what they carry "
            "into one tensor: each call costs a round of messages",
        )
    sizes = [log[0].nbytes for log in seen.logs[:p]]
    if len(set(sizes)) > 1 or sizes[0] is None:
        raise WrongAnswer(
            "gathers-everything",
            f"the mean is right, but `dist.{calls[0].call}` moves the values themselves. The "
            "budget is 16 bytes per rank: two float64 numbers",
        )
    if sizes[0] > 16:
        raise WrongAnswer(
            "over-the-budget",
            f"the mean is right, but every rank passes {sizes[0]} bytes to `dist.{calls[0].call}`. "
            "The budget is 16: two float64 numbers",
        )


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
    told = f"rank {wrong} returned {given[wrong]:g}"
    all_waited(seen)  # or it looked before anything had come
    if is_close([mean] * p, 1e-6):
        raise WrongAnswer(
            "loses-digits",
            f"rank {wrong} returned {given[wrong]!r}, and the mean is {mean!r}: only 7 digits are "
            "right, as in float32. The values are float64; let what you send be so too",
        )
    if any(event.call == "reduce" for event in seen.logs[0]):
        raise WrongAnswer(
            "only-the-root-knows",
            f"{told}, and the mean is {mean:g}. `dist.reduce` gives the sums to the root alone; "
            "what it leaves with the others is not defined",
        )
    if all(shares):
        lengths = [len(share) for share in shares]
        means = [sum(share) / len(share) for share in shares]
        mistakes = {
            "mean-of-means": (
                [sum(means) / p] * p,
                f"the mean of the ranks' means. The mean of all {len(values)} values is {mean:g}: "
                "a rank with more values must count more",
            ),
            "sum-not-mean": ([total] * p, "the sum"),
            "own-count": (
                [total / n for n in lengths],
                "the sum of all values divided by how many it has itself. The counts of all ranks "
                "have to be added up as well",
            ),
            "own-count-times-ranks": (
                [total / (n * p) for n in lengths],
                "the sum of all values divided by its own count times the number of ranks. Not all "
                "have as many: add up the counts as well",
            ),
            "own-mean": (means, "the mean of its own values alone"),
        }
        for name, (wanted, explanation) in mistakes.items():
            if is_close(wanted):
                raise WrongAnswer(name, f"{told}, {explanation}")
    raise WrongAnswer("wrong-value", f"{told}, the mean is {mean:g}")


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
        all_waited(seen)
        _judge_what_was_sent(seen, rank, p)
        pieces = expected.reshape(BLOCK, p, BLOCK)
        if torch.equal(result, pieces.transpose(0, 2).reshape(BLOCK, p * BLOCK)):
            raise WrongAnswer(
                "pieces-not-transposed",
                f"rank {rank} has the right pieces in the right places, but each "
                f"{BLOCK} × {BLOCK} piece itself is not transposed (or it is twice)",
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
    all_waited(seen)


def _judge_what_was_sent(seen: Observation, rank: int, p: int) -> None:
    sent = seen.logs[rank][0].content
    own = _rows_of(_matrix(p), rank).flatten().tolist()
    if sent is not None and sorted(sent) != own:
        raise WrongAnswer(
            "sends-something-else",
            f"what rank {rank} sends are not the numbers of its rows. `all_to_all_single` takes "
            "the tensor to receive into first, and the one to send second",
        )
