"""A formula with a usual mistake in it gives numbers of its own in every case.

The judges of the exercises of lesson 06 that run in the notebook. Each mistake is written as the
function that makes it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from course_lib.teaching.exercise import WrongAnswer
from course_lib.teaching.judges.formulas import Mistake, judge_formula, plain

__all__ = ["judge_efficiency", "judge_epoch", "judge_fewest", "judge_waiting"]

# ---- an epoch ---------------------------------------------------------------------------------


def _epoch(samples, batch, comp, sync, ranks):
    return samples / (ranks * batch) * (comp + (sync if ranks > 1 else 0))


# Steps are whole numbers in all cases: whether the last, shorter one is counted is left open.
_EPOCH_CASES = ((60_000, 100, 0.02, 0.01, 1), (60_000, 100, 0.02, 0.01, 4), (4096, 32, 3, 7, 8))

_EPOCH_MISTAKES = (
    Mistake(
        "one-rank-synchronises",
        lambda n, b, c, s, r: n / (r * b) * (c + s),
        "for several ranks it is right, but one rank alone has nobody to synchronise with: its "
        "step takes T_comp",
    ),
    Mistake(
        "steps-not-shared",
        lambda n, b, c, s, r: n / b * (c + (s if r > 1 else 0)),
        "every rank goes through the whole data set. R ranks share it: in one step they take "
        "R * B samples together",
    ),
    Mistake(
        "sync-once-per-epoch",
        lambda n, b, c, s, r: n / (r * b) * c + (s if r > 1 else 0),
        "it pays T_sync once in an epoch. Gradients are averaged in *every* step",
    ),
    Mistake(
        "forgets-sync",
        lambda n, b, c, s, r: n / (r * b) * c,
        "T_sync does not occur: that would be R ranks that never talk to each other",
    ),
    Mistake(
        "sync-not-shared",
        lambda n, b, c, s, r: n / (r * b) * c + n / b * (s if r > 1 else 0),
        "it pays N/B times T_sync: once for each rank's batch, or as if the batch B were cut into "
        "R parts. Every rank has B samples of its own, and all synchronise at the same time: "
        "N/(R B) steps, one T_sync in each",
    ),
    Mistake(
        "sync-of-each-pair",
        lambda n, b, c, s, r: n / (r * b) * (c + (r - 1) * s),
        "it pays R - 1 times T_sync in each step. T_sync is the time until *all* ranks are "
        "synchronised, not of one rank with another",
    ),
)


def judge_epoch(epoch_seconds: Callable) -> None:
    judge_formula(epoch_seconds, _epoch, _EPOCH_MISTAKES, _EPOCH_CASES)


# ---- the boundary -----------------------------------------------------------------------------


def _fewest(comp, sync_of, most, pays=lambda r, ratio: ratio < r - 1, first=2, end=1):
    ranks = range(first, most + end)
    return next((r for r in ranks if pays(r, sync_of(r) / comp)), None)


def _two_and_a_half(ranks):
    return 2.5 if ranks > 1 else 0.0


def _three(ranks):
    return 3.0 if ranks > 1 else 0.0


def _ring(ranks):  # alpha 0.39, n beta 1.5
    return 2 * (ranks - 1) * (0.39 + 1.5 / ranks)


def _slow_ring(ranks):
    return 2 * (ranks - 1) * (0.6 + 1.5 / ranks)


def _two_machines(ranks):  # 4 ranks each: between them the link is slow
    return 1.5 if ranks <= 4 else 30.0


def _powers_of_two(ranks):  # for other numbers the library has only a slow algorithm
    return 0.9 if ranks in (4, 8, 16) else 9.5


_FEWEST_CASES = (
    (1.0, _two_and_a_half, 100),
    (1.0, _three, 100),
    (1.0, _ring, 100),
    (1.0, _ring, 14),
    (2.0, _ring, 100),
    (1.0, _slow_ring, 100),
    (1.0, _two_machines, 100),
    (1.0, _powers_of_two, 10),
)


def _best(comp, sync_of, most):
    good = [r for r in range(2, most + 1) if sync_of(r) / comp < r - 1]
    return max(good, key=lambda r: r / (1 + sync_of(r) / comp)) if good else None


def _halving(comp, sync_of, most):
    if not sync_of(most) / comp < most - 1:
        return None
    low, high = 2, most
    while low < high:
        middle = (low + high) // 2
        if sync_of(middle) / comp < middle - 1:
            high = middle
        else:
            low = middle + 1
    return low


_FEWEST_MISTAKES = (
    Mistake(
        "counts-equality",
        lambda c, s, m: _fewest(c, s, m, lambda r, ratio: ratio <= r - 1),
        "with T_sync / T_comp = R - 1 exactly, R ranks are just as fast as one. That does not pay: "
        "use `<`",
    ),
    Mistake(
        "ranks-instead-of-ranks-minus-one",
        lambda c, s, m: _fewest(c, s, m, lambda r, ratio: ratio < r),
        "it compares T_sync / T_comp with R. The bound is R - 1: one of the R ranks would have "
        "done the work of one anyhow",
    ),
    Mistake(
        "sync-of-two-ranks",
        lambda c, s, m: _fewest(c, lambda _: s(2), m),
        "it takes T_sync of two ranks for every R. Synchronising more ranks takes longer: call "
        "`sync_of(ranks)` anew",
    ),
    Mistake(
        "stops-too-early",
        lambda c, s, m: _fewest(c, s, m, end=0),
        "the largest R that is allowed, `most`, is never tried: `range(2, most + 1)`",
    ),
    Mistake(
        "ignores-comp",
        lambda c, s, m: _fewest(1.0, s, m),
        "it compares T_sync itself with R - 1. It is the *ratio* T_sync / T_comp that counts",
    ),
    Mistake(
        "not-none",
        lambda c, s, m: _fewest(c, s, m) or m,
        "where no R up to `most` pays, it returns `most`. Return None",
    ),
    Mistake(
        "halves-the-range",
        _halving,
        "it halves the range, which finds the boundary only if there is one: all below it do not "
        "pay, all above do. Here 3 and 4 ranks pay, 5 to 31 do not. Try R = 2, 3, 4, ... in turn",
    ),
    Mistake(
        "gives-up",
        lambda c, s, m: 2 if s(2) / c < 1 else None,
        "it gives up where R = 2 does not pay. Go on to the next R, and return None only *after* "
        "the loop",
    ),
    Mistake(
        "compares-with-one",
        lambda c, s, m: _fewest(c, s, m, lambda r, ratio: ratio < 1),
        "it compares T_sync with T_comp alone, which is the condition for two ranks. R ranks save "
        "R - 1 times T_comp",
    ),
    Mistake(
        "best-not-fewest",
        _best,
        "it returns the R with the largest speed-up. Asked for is the smallest that pays at all",
    ),
)


def _why_not_fewest(case: tuple, given: Any) -> str:
    comp, sync_of, most = case
    fewest = _fewest(*case)
    if given is None:
        ratio = f"{sync_of(fewest):g} / {comp:g}"
        return f"{fewest} ranks pay, since T_sync / T_comp = {ratio} is less than {fewest} - 1"
    if isinstance(given, (list, tuple)) or given not in range(2, most + 1):
        return f"return one whole number from 2 to {most}, or None where none pays"
    ratio = f"T_sync / T_comp = {sync_of(given):g} / {comp:g}"
    if not sync_of(given) / comp < given - 1:
        return f"{given} ranks do not pay: {ratio} is not less than {given} - 1"
    return f"{given} ranks pay, but fewer do, too. Try every R from 2 on"


def judge_fewest(fewest_ranks: Callable) -> None:
    judge_formula(fewest_ranks, _fewest, _FEWEST_MISTAKES, _FEWEST_CASES, _why_not_fewest)


# ---- stragglers -------------------------------------------------------------------------------


def _waiting(times):
    ranks = len(times[0])
    return 1 - sum(map(sum, times)) / (ranks * sum(map(max, times)))


def _totals(times):
    return [sum(column) for column in zip(*times, strict=True)]


_WAITING_CASES = (
    ([[1.0, 1.0, 2.0], [2.0, 1.0, 1.0], [1.0, 3.0, 1.0]],),
    ([[4.0, 1.0], [1.0, 1.0]],),
    ([[2.0, 2.0, 2.0, 6.0]],),
)

_WAITING_MISTAKES = (
    Mistake(
        "slowest-rank-of-all",
        lambda t: 1 - sum(map(sum, t)) / (len(t[0]) * max(_totals(t))),
        "it adds up each rank's times and waits for the slowest *rank*. In synchronous SGD the "
        "ranks meet in every step, and a different one may be the slowest: take the maximum of "
        "each step",
    ),
    Mistake(
        "mean-of-shares",
        lambda t: sum(1 - sum(step) / len(step) / max(step) for step in t) / len(t),
        "it averages the steps' shares, so that a short step counts as much as a long one. Add up "
        "seconds, and divide once",
    ),
    Mistake(
        "slowdown",
        lambda t: len(t[0]) * sum(map(max, t)) / sum(map(sum, t)) - 1,
        "it divides the waiting by the time *computed*. Asked for is its share of all the time "
        "that the ranks spend",
    ),
    Mistake(
        "seconds",
        lambda t: sum(len(step) * max(step) - sum(step) for step in t),
        "these are the seconds that all ranks wait. Divide by all the seconds that they spend",
    ),
    Mistake(
        "busy-share",
        lambda t: 1 - _waiting(t),
        "this is the share in which the ranks compute. Asked for is the rest",
    ),
    Mistake(
        "only-rank-0",
        lambda t: 1 - sum(step[0] for step in t) / sum(map(max, t)),
        "it looks at rank 0 alone. All ranks wait, each for a different time",
    ),
    Mistake(
        "forgets-the-ranks",
        lambda t: 1 - sum(map(sum, t)) / sum(map(max, t)),
        "a step lasts as long as its slowest rank *for each of the R ranks*: together they spend "
        "R times that",
    ),
    Mistake(
        "over-one-rank",
        lambda t: len(t[0]) * _waiting(t),
        "it divides the waiting of all ranks by the time of one. All R ranks together spend R "
        "times the slowest's",
    ),
    Mistake(
        "steps-for-ranks",
        lambda t: _waiting([*zip(*t, strict=True)]),
        "it takes the maximum over the steps of each rank. `times[step][rank]`: the first index "
        "is the step, and the ranks wait for each other inside one",
    ),
    Mistake(
        "longest-of-all-steps",
        lambda t: 1 - sum(map(sum, t)) / (len(t) * len(t[0]) * max(map(max, t))),
        "it takes the longest of all steps for every step. Each step is as long as its own slowest "
        "rank",
    ),
    Mistake(
        "only-the-first-step",
        lambda t: _waiting(t[:1]),
        "this is the share of the first step alone. Does the `return` stand inside the loop?",
    ),
    Mistake(
        "only-the-last-step",
        lambda t: _waiting(t[-1:]),
        "this is the share of the last step alone. Add up the seconds of all steps",
    ),
    Mistake(
        "only-the-quickest",
        lambda t: sum(max(step) - min(step) for step in t) / sum(map(max, t)),
        "it counts the waiting of the quickest rank of each step alone. The others that are not "
        "the slowest wait, too",
    ),
)


def _why_not_waiting(case: tuple, given: Any) -> str:
    (times,) = case
    if isinstance(given, (list, tuple)):
        return "return one number, for all ranks and steps together"
    slowest = [max(step) for step in times]
    return (
        f"the steps last {slowest} s, for each of {len(times[0])} ranks. They compute "
        f"{sum(map(sum, times)):g} s in all, and wait for the rest"
    )


def judge_waiting(waiting_share: Callable) -> None:
    judge_formula(waiting_share, _waiting, _WAITING_MISTAKES, _WAITING_CASES, _why_not_waiting)


# ---- a published efficiency -------------------------------------------------------------------


def _ratio(efficiency):
    return 1 / efficiency - 1


def _efficiency(base_ranks, base_rate, ranks, rate):
    efficiency = (rate / ranks) / (base_rate / base_ranks)
    return efficiency, _ratio(efficiency)


_EFFICIENCY_CASES = ((8, 1_000, 256, 28_800), (1, 100, 4, 200), (4, 900, 16, 2_400))

_EFFICIENCY_MISTAKES = (
    Mistake(
        "baseline-is-one-rank",
        lambda b, s, r, t: (t / r / s, 1 / (t / r / s) - 1),
        "it takes the baseline for a run on one rank. It had `base_ranks`: compare samples/s *per "
        "rank*",
    ),
    Mistake(
        "speed-up",
        lambda b, s, r, t: (t / s, 1 / (t / s) - 1),
        "this is the speed-up over the baseline. The efficiency also divides by how many times "
        "more ranks there are",
    ),
    Mistake(
        "upside-down",
        lambda b, s, r, t: ((s / b) / (t / r), (t / r) / (s / b) - 1),
        "the efficiency is the wrong way up: the large run's samples/s per rank over the "
        "baseline's",
    ),
    Mistake(
        "loss-instead-of-ratio",
        lambda b, s, r, t: (_efficiency(b, s, r, t)[0], 1 - _efficiency(b, s, r, t)[0]),
        "the efficiency is right. 1 - efficiency is the lost part of the *long* step; asked for is "
        "the lost time over T_comp. From e = 1 / (1 + x) follows x = 1 / e - 1",
    ),
    Mistake(
        "inverse-instead-of-ratio",
        lambda b, s, r, t: (_efficiency(b, s, r, t)[0], 1 / _efficiency(b, s, r, t)[0]),
        "the efficiency is right. 1 / e is (T_comp + T_sync) / T_comp: subtract the 1 of T_comp",
    ),
    Mistake(
        "per-cent",
        lambda b, s, r, t: (100 * _efficiency(b, s, r, t)[0], _efficiency(b, s, r, t)[1]),
        "the efficiency is in per cent. Return it as a fraction, 0.9 for 90 %",
    ),
    Mistake(
        "per-cent",
        lambda b, s, r, t: (100 * _efficiency(b, s, r, t)[0], _ratio(100 * t / r / (s / b))),
        "the efficiency is in per cent. Return it as a fraction, 0.9 for 90 %, from which the "
        "ratio follows",
    ),
    Mistake(
        "wrong-order",
        lambda b, s, r, t: _efficiency(b, s, r, t)[::-1],
        "both numbers are right, but the efficiency comes first",
    ),
)


def _why_not_efficiency(case: tuple, given: Any) -> str:
    efficiency, ratio = _efficiency(*case)
    if abs(given[0] - efficiency) < 1e-5:
        return (
            f"the efficiency is right, but T_sync / T_comp is {ratio:.6g}. How does it follow from "
            "e = T_comp / (T_comp + T_sync)?"
        )
    if abs(given[1] - ratio) < 1e-5:
        return "the ratio is right, the efficiency is not: samples/s per rank, over the baseline's"
    return ""


def judge_efficiency(read_efficiency: Callable) -> None:
    given = plain(read_efficiency(*_EFFICIENCY_CASES[0]))
    if not isinstance(given, (tuple, list)) or len(given) != 2:
        raise WrongAnswer(
            "not-two-numbers",
            f"it returned {given!r}; return two numbers: the efficiency, and T_sync / T_comp",
        )
    if all(read_efficiency(*case)[0] == case[3] / case[1] for case in _EFFICIENCY_CASES):
        raise WrongAnswer(
            "speed-up",
            "the first number is the speed-up over the baseline. The efficiency also divides by "
            "how many times more ranks there are",
        )
    judge_formula(
        read_efficiency, _efficiency, _EFFICIENCY_MISTAKES, _EFFICIENCY_CASES, _why_not_efficiency
    )
