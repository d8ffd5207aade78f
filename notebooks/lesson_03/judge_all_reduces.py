"""Judges an all-reduce by its sum, then by its steps, its bytes and its partners.

The judges behind the checks of lesson 03. Each rehearses the learner's function on several
numbers of ranks and raises :class:`WrongAnswer` with the name of the mistake that it recognises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from course_lib.teaching.exercise import WrongAnswer, as_mistake

from .judge_rehearsals import (
    contribution,
    counts_of,
    explain_counts,
    need_array,
    need_fractions,
    need_neighbours,
    need_new_array,
    need_new_array_each_time,
    need_no_mean,
    play,
    total,
)
from .own_globals import OnRanks
from .rehearsal import Rehearsal
from .rehearsed_comm import Message

__all__ = [
    "judge_all_gather",
    "judge_any_world_size",
    "judge_mended_ring",
    "judge_reduce_scatter",
    "the_same_for_real",
]

LENGTH = 12


def _contributions(p: int) -> list[np.ndarray]:
    return [contribution(rank, LENGTH) for rank in range(p)]


# ---- recursive doubling for any number of ranks -----------------------------------------------


def judge_any_world_size(sum_over_all: Callable) -> None:
    function = OnRanks(sum_over_all)
    for p in (4, 8, 2):
        _judge_steps(_judge_sums(function, p), p)
    for p in (3, 5, 6, 7, 1):
        with _only_powers_of_two(p):
            seen = _judge_sums(function, p, folded=True)
        _judge_steps(seen, p)
    need_fractions(function, _contributions(4), [total(4, LENGTH)] * 4)
    need_new_array_each_time(function, _contributions(4))


@contextmanager
def _only_powers_of_two(p: int) -> Iterator[None]:
    try:
        yield
    except WrongAnswer as error:
        if error.mistake in ("left-out-not-told", "left-out-not-counted", "skips-missing-partners"):
            raise
        raise WrongAnswer("only-powers-of-two", p=p, error=error) from error.__cause__


def _judge_sums(function: OnRanks, p: int, folded: bool = False) -> Rehearsal:
    given = _contributions(p)
    before = [array.copy() for array in given]
    seen, right = play(function, given), total(p, LENGTH)
    need_no_mean(seen.results[0], right, p)
    results = [need_array(seen.results[rank], rank, given[rank], before[rank]) for rank in range(p)]
    _need_length(results, LENGTH)
    wrong = [rank for rank in range(p) if not np.array_equal(results[rank], right)]
    if wrong and folded:
        _explain_fold(seen, results, wrong)
    for rank in wrong:
        explain_counts(rank, results[rank], LENGTH, p)
    need_new_array(seen, given, before)
    return seen


def _need_length(results: list[np.ndarray], length: int) -> None:
    for rank, result in enumerate(results):
        if result.shape != (length,):
            raise WrongAnswer("wrong-shape", rank=rank, shape=result.shape, length=length)


def _explain_fold(seen: Rehearsal, results: list[np.ndarray], wrong: list[int]) -> None:
    p = len(results)
    m = 2 ** (p.bit_length() - 1)
    swaps = {(m.source, m.dest, m.end) for m in seen.messages}
    if all((dest, source, end) in swaps for source, dest, end in swaps):  # no rank hands over
        raise WrongAnswer("skips-missing-partners", p=p, wrong=", ".join(map(str, wrong)), m=m)
    if len(wrong) <= p - m:
        raise WrongAnswer("left-out-not-told", p=p, wrong=", ".join(map(str, wrong)))
    counts = counts_of(results[wrong[0]], LENGTH, p)
    if counts is not None and sum(counts) == m and max(counts) == 1:
        raise WrongAnswer("left-out-not-counted", p=p, m=m)


def _judge_steps(seen: Rehearsal, p: int) -> None:
    lg = p.bit_length() - 1
    enough = lg + (2 if p != 2**lg else 0)
    if seen.steps <= enough:
        return
    for root in range(p):
        if p > 2 and all(root in (m.source, m.dest) for m in seen.messages):
            raise WrongAnswer("naive", root=root, p=p, steps=seen.steps, enough=enough)
    partners: list[set[int]] = [set() for _ in range(p)]
    for message in seen.messages:
        partners[message.source].add(message.dest)
        partners[message.dest].add(message.source)
    aside = [rank for rank in range(p) if len(partners[rank]) == 1]
    for root in range(p):
        guests = [rank for rank in aside if partners[rank] == {root}]
        if len(guests) > 1:
            raise WrongAnswer(
                "all-to-the-same",
                p=p,
                steps=seen.steps,
                enough=enough,
                guests=", ".join(map(str, guests)),
                root=root,
            )
    if aside and p == 2**lg and seen.steps == lg + 1:
        raise WrongAnswer(
            "stands-aside-needlessly",
            p=p,
            steps=seen.steps,
            enough=enough,
            aside=", ".join(map(str, aside)),
        )
    raise WrongAnswer("too-many-steps", p=p, steps=seen.steps, enough=enough)


# ---- the two halves of the ring ---------------------------------------------------------------


def judge_reduce_scatter(reduce_scatter: Callable) -> None:
    function = OnRanks(reduce_scatter)
    _judge_chunks(function, 4, LENGTH)
    for p in (3, 5, 2, 1):
        with as_mistake("size-is-fixed", p=p):
            _judge_chunks(function, p, 2 * p)
    for length in (10, 3):
        with as_mistake("only-equal-chunks", length=length):
            _judge_chunks(function, 4, length)
    with as_mistake("wider-numbers"):
        _judge_chunks(function, 4, LENGTH, np.int32)
    need_fractions(function, _contributions(4), np.array_split(total(4, LENGTH), 4))
    need_new_array_each_time(function, _contributions(4))


def _judge_chunks(function: OnRanks, p: int, length: int, dtype: type = np.int64) -> None:
    given = [contribution(rank, length).astype(dtype) for rank in range(p)]
    before = [array.copy() for array in given]
    seen = play(function, given)
    chunks = np.array_split(total(p, length).astype(dtype), p)
    starts = np.cumsum([0, *map(len, chunks)])
    for rank in range(p):
        need_no_mean(seen.results[rank], chunks[rank], p)
        result = need_array(seen.results[rank], rank, given[rank], before[rank])
        if np.array_equal(result, chunks[rank]):
            continue
        _explain_chunk(rank, result, chunks, length, p)
        _explain_passing_of_chunks(seen, rank, chunks)
        explain_counts(rank, result, length, p, int(starts[rank]))
    need_new_array(seen, given, before)
    need_neighbours(seen, p)
    _judge_bytes(seen, p, [given[0].nbytes - chunk.nbytes for chunk in chunks], given[0].nbytes)


def _explain_chunk(rank: int, result: np.ndarray, chunks: list, length: int, p: int) -> None:
    if p > 1 and np.array_equal(result, np.concatenate(chunks)):
        raise WrongAnswer("returns-everything", rank=rank)
    others = [index for index, chunk in enumerate(chunks) if np.array_equal(result, chunk)]
    if others and length >= p:
        raise WrongAnswer("wrong-chunk", rank=rank, other=others[0])
    if result.shape != chunks[rank].shape:
        raise WrongAnswer(
            "wrong-shape",
            p=p,
            length=length,
            rank=rank,
            shape=result.shape,
            wanted=chunks[rank].shape,
        )


def _explain_passing_of_chunks(seen: Rehearsal, rank: int, chunks: list) -> None:
    """Raise the mistake that the messages reveal: whose numbers, of which chunk, each held."""
    p = len(chunks)
    if p > 2 and seen.messages and all(_is_the_senders_own(m, chunks) for m in seen.messages):
        raise WrongAnswer("passes-its-own", p=p)
    arrived = [_found_in(m, chunks) for m in seen.messages if m.dest == rank]
    if not arrived or arrived[-1] is None:
        return
    number, counts = arrived[-1]
    counts[rank] += 1
    if number != rank and counts == [1] * p:
        raise WrongAnswer("wrong-chunk: not the one it completes", p=p, rank=rank, number=number)


def _found_in(message: Message, chunks: list) -> tuple[int, list[int]] | None:
    """Return which chunk the message holds, and how often each rank's numbers are in it."""
    content, start = np.asarray(message.content), 0
    length = sum(map(len, chunks))
    for number, chunk in enumerate(chunks):
        if content.shape == chunk.shape and content.any():
            counts = counts_of(content, length, len(chunks), start)
            if counts is not None:
                return number, counts
        start += len(chunk)
    return None


def _is_the_senders_own(message: Message, chunks: list) -> bool:
    found = _found_in(message, chunks)
    return found is not None and sum(found[1]) == found[1][message.source] == 1


def _judge_bytes(seen: Rehearsal, p: int, enough: list[int], whole: int) -> None:
    for rank in range(p):
        sent = seen.bytes_sent(rank)
        if sent <= enough[rank]:
            continue
        factor = sent / enough[rank]
        if sent >= (p - 1) * whole:
            raise WrongAnswer(
                "whole-arrays", p=p, rank=rank, sent=sent, enough=enough[rank], factor=factor
            )
        if p > 2 and len(seen.sent(rank)) == p:
            raise WrongAnswer("one-step-too-many", p=p, last=p - 1)
        if abs(factor - 2) < 0.1 and len(seen.sent(rank)) > p:
            raise WrongAnswer("goes-round-twice", rank=rank, sent=sent, enough=enough[rank])
        raise WrongAnswer(
            "too-many-bytes", p=p, rank=rank, sent=sent, enough=enough[rank], factor=factor
        )


def judge_all_gather(all_gather: Callable) -> None:
    function = OnRanks(all_gather)
    _judge_gathered(function, 4)
    for p in (3, 5, 2, 1):
        with as_mistake("size-is-fixed", p=p):
            _judge_gathered(function, p)
    with as_mistake("wider-numbers"):
        _judge_gathered(function, 4, np.int32)
    gathered = np.concatenate(_contributions(4))
    need_fractions(function, _contributions(4), [gathered] * 4)
    need_new_array_each_time(function, _contributions(4))


def _judge_gathered(function: OnRanks, p: int, dtype: type = np.int64, length: int = 3) -> None:
    given = [10 * (rank + 1) + np.arange(length, dtype=dtype) for rank in range(p)]
    before = [array.copy() for array in given]
    seen = play(function, given)
    expected = np.concatenate(before)
    for rank in range(p):
        result = seen.results[rank]
        if isinstance(result, list):
            raise WrongAnswer("not-an-array: but a list", rank=rank)
        result = need_array(result, rank, given[rank], before[rank])
        if result.shape != expected.shape:
            raise WrongAnswer(
                "wrong-shape", p=p, rank=rank, shape=result.shape, wanted=expected.shape
            )
        if not np.array_equal(result, expected):
            _explain_gathered(rank, result, before, p)
    need_new_array(seen, given, before)
    need_neighbours(seen, p)
    one = given[0].nbytes
    _judge_bytes(seen, p, [(p - 1) * one] * p, p * one)


def _explain_gathered(rank: int, result: np.ndarray, chunks: list[np.ndarray], p: int) -> None:
    expected = np.concatenate(chunks)
    got = result.reshape(p, -1)
    if sorted(result.tolist()) == sorted(expected.tolist()):
        raise WrongAnswer(
            "wrong-order", p=p, rank=rank, order=[int(row[0]) // 10 - 1 for row in got]
        )
    if not np.array_equal(got[rank], chunks[rank]):
        raise WrongAnswer("own-chunk-missing", rank=rank)
    left = (rank - 1) % p
    others = [row for index, row in enumerate(got) if index != rank]
    if p > 2 and all(np.array_equal(row, chunks[left]) for row in others):
        raise WrongAnswer("keeps-sending-its-own", rank=rank, left=left)
    wrong = [index for index in range(p) if not np.array_equal(got[index], chunks[index])]
    raise WrongAnswer("chunk-missing", p=p, rank=rank, wrong=", ".join(map(str, wrong)))


# ---- the published ring, fixed ----------------------------------------------------------------


def judge_mended_ring(mended_ring: Callable) -> float:
    """Return how many times as many bytes as a ring all-reduce it sends, on 4 ranks."""
    function = OnRanks(mended_ring)
    factor = _judge_mended(function, 4)
    for p in (3, 2, 5, 1):
        with as_mistake("size-is-fixed", p=p):
            _judge_mended(function, p)
    need_fractions(function, _contributions(4), [total(4, LENGTH)] * 4)
    need_new_array_each_time(function, _contributions(4))
    return factor


def _judge_mended(function: OnRanks, p: int) -> float:
    given = _contributions(p)
    before = [array.copy() for array in given]
    seen = play(function, given)
    need_no_mean(seen.results[0], total(p, LENGTH), p)
    results = [need_array(seen.results[rank], rank, given[rank], before[rank]) for rank in range(p)]
    _need_length(results, LENGTH)
    for rank, result in enumerate(results):
        if np.array_equal(result, total(p, LENGTH)):
            continue
        if not any(message.content.any() for message in seen.messages):
            raise WrongAnswer("zeros-travel")
        _explain_passing(seen, rank, result, p)
        explain_counts(rank, result, LENGTH, p)
    need_new_array(seen, given, before)
    need_neighbours(seen, p)
    enough = 2 * (p - 1) * given[0].nbytes / p
    most = max(seen.bytes_sent(rank) for rank in range(p))
    if p > 1 and most > (p - 1) * given[0].nbytes:
        raise WrongAnswer("goes-round-twice", p=p, most=most)
    counts = [_counts_sent(message, p) for message in seen.messages]
    if p > 2 and any(count and sum(count) > 1 for count in counts):
        raise WrongAnswer("sends-the-sum: one after another", p=p, steps=seen.steps, enough=p - 1)
    return most / enough if enough else 1.0


def _explain_passing(seen: Rehearsal, rank: int, result: np.ndarray, p: int) -> None:
    """Raise the mistake that the messages reveal: whose numbers each rank has sent."""
    sent = [[_counts_sent(message, p) for message in seen.sent(r)] for r in range(p)]
    if p < 3 or any(None in row for row in sent):
        return  # parts of arrays, say
    own = [[int(r == other) for other in range(p)] for r in range(p)]
    if all(len(counts) > 1 and counts == [own[r]] * len(counts) for r, counts in enumerate(sent)):
        raise WrongAnswer("keeps-sending-its-own", p=p, count=len(sent[0]))
    if any(sum(counts) > 1 for row in sent for counts in row):
        raise WrongAnswer("sends-the-sum", p=p)
    if all(len(row) >= p for row in sent):
        raise WrongAnswer("one-step-too-many", p=p, count=len(sent[0]), last=p - 1)
    counts = counts_of(result, LENGTH, p)
    elsewhere = [count for other, count in enumerate(counts or []) if other != rank]
    if max(counts or [0]) > 1 and 0 in elsewhere and any(elsewhere):
        twice = counts.index(max(counts))
        raise WrongAnswer("adds-the-wrong-array", p=p, count=counts[twice], twice=twice, rank=rank)


def _counts_sent(message: Message, p: int) -> list[int] | None:
    content = np.asarray(message.content)
    return counts_of(content, LENGTH, p) if content.shape == (LENGTH,) else None


# ---- on the real ranks ------------------------------------------------------------------------


def the_same_for_real(function: Callable, given: Callable, expected: Callable) -> None:
    """Run ``function`` on all engines, with arrays too long for MPI to buffer.

    ``given(rank, p)`` returns the array that a rank passes in, ``expected(rank, p)`` the right
    result.
    """
    from torch_mpi4py import world

    from course_lib.teaching.judges.messages import judge_hang
    from course_lib.teaching.message_log import observe

    comm = world()
    rank, p = comm.rank, comm.size

    def equal(logged) -> bool:
        return np.array_equal(function(logged, given(rank, p)), expected(rank, p))

    seen = observe(equal, comm)
    with as_mistake("fails-for-real"):
        judge_hang(seen)
        if not all(seen.results):
            raise WrongAnswer("wrong-value")
