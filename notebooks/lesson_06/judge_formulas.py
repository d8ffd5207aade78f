"""Each common mistake in a formula gives different numbers, so the numbers reveal the mistake.

The judges of those exercises of lesson 06 that run in the notebook. Each mistake is written as a
function that makes it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from course_lib.teaching.exercise import WrongAnswer
from course_lib.teaching.judges.formulas import Mistake, judge_formula, plain

__all__ = ["judge_efficiency", "judge_epoch", "judge_fewest", "judge_waiting"]

# ---- an epoch ---------------------------------------------------------------------------------


def _epoch(samples, batch, comp, sync, ranks):
    return samples / (ranks * batch) * (comp + (sync if ranks > 1 else 0))


def _whole_steps(samples, batch, comp, sync, ranks):
    return math.ceil(samples / (ranks * batch)) * (comp + (sync if ranks > 1 else 0))


_EPOCH_CASES = (
    *((60_000, 100, 0.02, 0.01, 1), (60_000, 100, 0.02, 0.01, 4)),
    *((4096, 32, 3, 7, 8), (4096, 32, 3, 7, 2)),
)
# Here the last step is shorter. It may count as a fraction or as a whole step, but not as none.
_SHORTER_STEPS = ((1000, 32, 3, 7, 4), (1000, 32, 3, 7, 3))

_EPOCH_MISTAKES = (
    Mistake("one-rank-synchronises", lambda n, b, c, s, r: n / (r * b) * (c + s)),
    Mistake("steps-not-shared", lambda n, b, c, s, r: n / b * (c + (s if r > 1 else 0))),
    Mistake("sync-once-per-epoch", lambda n, b, c, s, r: n / (r * b) * c + (s if r > 1 else 0)),
    Mistake("forgets-sync", lambda n, b, c, s, r: n / (r * b) * c),
    Mistake("sync-not-shared", lambda n, b, c, s, r: n / (r * b) * c + n / b * (s if r > 1 else 0)),
    Mistake("sync-of-each-pair", lambda n, b, c, s, r: n / (r * b) * (c + (r - 1) * s)),
)


def judge_epoch(epoch_seconds: Callable) -> None:
    judge_formula(epoch_seconds, _epoch, _EPOCH_MISTAKES, _EPOCH_CASES)
    first = _SHORTER_STEPS[0]
    right = _whole_steps if plain(epoch_seconds(*first)) == _whole_steps(*first) else _epoch
    mistakes = [
        Mistake("drops-the-last-samples", lambda n, b, c, s, r: n // (r * b) * (c + s)),
        Mistake(
            "drops-the-last-samples: of some", lambda n, b, c, s, r: round(n / r / b) * (c + s)
        ),
    ]
    judge_formula(epoch_seconds, right, mistakes, _SHORTER_STEPS)


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
    (1.0, _ring, 13),  # and 14 would pay
    (4.0, _three, 100),  # two do
    (4.0, _three, 2),  # and no more are allowed
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
    Mistake("counts-equality", lambda c, s, m: _fewest(c, s, m, lambda r, ratio: ratio <= r - 1)),
    Mistake(
        "ranks-instead-of-ranks-minus-one",
        lambda c, s, m: _fewest(c, s, m, lambda r, ratio: ratio < r),
    ),
    Mistake("sync-of-two-ranks", lambda c, s, m: _fewest(c, lambda _: s(2), m)),
    Mistake("stops-too-early", lambda c, s, m: _fewest(c, s, m, end=0)),
    Mistake("ignores-comp", lambda c, s, m: _fewest(1.0, s, m)),
    Mistake("not-none", lambda c, s, m: _fewest(c, s, m) or m),
    Mistake("halves-the-range", _halving),
    Mistake("gives-up", lambda c, s, m: 2 if s(2) / c < 1 else None),
    Mistake("compares-with-one", lambda c, s, m: _fewest(c, s, m, lambda r, ratio: ratio < 1)),
    Mistake("best-not-fewest", _best),
)


def _why_not_fewest(case: tuple, given: Any) -> WrongAnswer:
    comp, sync_of, most = case
    fewest = _fewest(*case)
    if given is None:
        return WrongAnswer("wrong-value: not none", fewest=fewest, sync=sync_of(fewest), comp=comp)
    if isinstance(given, (list, tuple)) or given not in range(2, most + 1):
        return WrongAnswer("wrong-value: no number of ranks", most=most)
    if not sync_of(given) / comp < given - 1:
        return WrongAnswer("wrong-value: too few", given=given, sync=sync_of(given), comp=comp)
    return WrongAnswer("wrong-value: too many", given=given)


def judge_fewest(fewest_ranks: Callable) -> None:
    judge_formula(fewest_ranks, _fewest, _FEWEST_MISTAKES, _FEWEST_CASES, _why_not_fewest)


# ---- stragglers -------------------------------------------------------------------------------


def _waiting(times):
    ranks = len(times[0])
    return 1 - sum(map(sum, times)) / (ranks * sum(map(max, times)))


def _totals(times):
    return [sum(column) for column in zip(*times, strict=True)]


_WAITING_CASES = (
    ([[1.0, 1.5, 2.0], [2.0, 1.0, 1.25], [1.0, 3.0, 1.5]],),
    ([[4.0, 1.0], [1.0, 1.0]],),
    ([[2.0, 2.5, 3.0, 6.0]],),
)

_NOBODY_WAITS = ([[2.0, 2.0], [1.0, 1.0]],)

_WAITING_MISTAKES = (
    Mistake("slowest-rank-of-all", lambda t: 1 - sum(map(sum, t)) / (len(t[0]) * max(_totals(t)))),
    Mistake(
        "mean-of-shares",
        lambda t: sum(1 - sum(step) / len(step) / max(step) for step in t) / len(t),
    ),
    Mistake("slowdown", lambda t: len(t[0]) * sum(map(max, t)) / sum(map(sum, t)) - 1),
    Mistake("seconds", lambda t: sum(len(step) * max(step) - sum(step) for step in t)),
    Mistake("busy-share", lambda t: 1 - _waiting(t)),
    Mistake("only-rank-0", lambda t: 1 - sum(step[0] for step in t) / sum(map(max, t))),
    Mistake("forgets-the-ranks", lambda t: 1 - sum(map(sum, t)) / sum(map(max, t))),
    Mistake("over-the-waiting", lambda t: len(t[0]) / (len(t[0]) - 1) * _waiting(t)),
    Mistake("over-one-rank", lambda t: len(t[0]) * _waiting(t)),
    Mistake("steps-for-ranks", lambda t: _waiting([*zip(*t, strict=True)])),
    Mistake(
        "longest-of-all-steps",
        lambda t: 1 - sum(map(sum, t)) / (len(t) * len(t[0]) * max(map(max, t))),
    ),
    Mistake("only-the-first-step", lambda t: _waiting(t[:1])),
    Mistake("only-the-last-step", lambda t: _waiting(t[-1:])),
    Mistake(
        "only-the-quickest", lambda t: sum(max(step) - min(step) for step in t) / sum(map(max, t))
    ),
)


def _why_not_waiting(case: tuple, given: Any) -> WrongAnswer:
    (times,) = case
    if isinstance(given, (list, tuple)):
        return WrongAnswer("wrong-value: several numbers")
    slowest = [max(step) for step in times]
    return WrongAnswer(
        "wrong-value: another share",
        slowest=slowest,
        ranks=len(times[0]),
        computing=sum(map(sum, times)),
    )


def judge_waiting(waiting_share: Callable) -> None:
    judge_formula(waiting_share, _waiting, _WAITING_MISTAKES, _WAITING_CASES, _why_not_waiting)
    judge_formula(waiting_share, _waiting, (), [_NOBODY_WAITS])


# ---- a published efficiency -------------------------------------------------------------------


def _ratio(efficiency):
    return 1 / efficiency - 1


def _efficiency(base_ranks, base_rate, ranks, rate):
    efficiency = (rate / ranks) / (base_rate / base_ranks)
    return efficiency, _ratio(efficiency)


_EFFICIENCY_CASES = (
    *((8, 1_000, 256, 28_800), (1, 100, 4, 200), (4, 900, 16, 2_400)),
    (2, 100, 4, 250),  # more than twice as fast: such results are published, if caches help
    (4, 900, 6, 1_200),  # one and a half times as many ranks
)
_NOTHING_IS_LOST = (1, 100, 4, 400)

_EFFICIENCY_MISTAKES = (
    Mistake("baseline-is-one-rank", lambda b, s, r, t: (t / r / s, 1 / (t / r / s) - 1)),
    Mistake("speed-up", lambda b, s, r, t: (t / s, 1 / (t / s) - 1)),
    Mistake("upside-down", lambda b, s, r, t: ((s / b) / (t / r), (t / r) / (s / b) - 1)),
    Mistake(
        "loss-instead-of-ratio",
        lambda b, s, r, t: (_efficiency(b, s, r, t)[0], 1 - _efficiency(b, s, r, t)[0]),
    ),
    Mistake(
        "inverse-instead-of-ratio",
        lambda b, s, r, t: (_efficiency(b, s, r, t)[0], 1 / _efficiency(b, s, r, t)[0]),
    ),
    Mistake(
        "per-cent",
        lambda b, s, r, t: (100 * _efficiency(b, s, r, t)[0], _efficiency(b, s, r, t)[1]),
    ),
    Mistake(
        "per-cent: and so the ratio",
        lambda b, s, r, t: (100 * _efficiency(b, s, r, t)[0], _ratio(100 * t / r / (s / b))),
    ),
    Mistake("wrong-order", lambda b, s, r, t: _efficiency(b, s, r, t)[::-1]),
    Mistake("whole-times", lambda b, s, r, t: (t / s / (r // b), _ratio(t / s / (r // b)))),
    Mistake("rounds", lambda *case: tuple(round(number, 2) for number in _efficiency(*case))),
)


def _why_not_efficiency(case: tuple, given: Any) -> WrongAnswer | None:
    efficiency, ratio = _efficiency(*case)
    if abs(given[0] - efficiency) < 1e-5:
        return WrongAnswer("wrong-value: of the ratio", ratio=ratio)
    if abs(given[1] - ratio) < 1e-5:
        return WrongAnswer("wrong-value: of the efficiency")
    return None


def judge_efficiency(read_efficiency: Callable) -> None:
    given = plain(read_efficiency(*_EFFICIENCY_CASES[0]))
    if not isinstance(given, (tuple, list)) or len(given) != 2:
        raise WrongAnswer("not-two-numbers", given=repr(given))
    if all(read_efficiency(*case)[0] == case[3] / case[1] for case in _EFFICIENCY_CASES):
        raise WrongAnswer("speed-up: as the first number")
    judge_formula(
        read_efficiency, _efficiency, _EFFICIENCY_MISTAKES, _EFFICIENCY_CASES, _why_not_efficiency
    )
    judge_formula(read_efficiency, _efficiency, (), [_NOTHING_IS_LOST])
