"""The usual wrong predictions, each as the formula that makes it: seconds, speed-up, bytes."""

from __future__ import annotations

import bisect
import copy
import math
from collections.abc import Callable

from course_lib.teaching.exercise import WrongAnswer
from course_lib.teaching.judges.formulas import Mistake, judge_formula

from . import costs
from .costs import Run

__all__ = ["judge_bytes", "judge_speed_up", "judge_sync", "judge_time_to_target"]


# ---- seconds of synchronising ------------------------------------------------------------------

_SYNC_CASES = (
    ([38_440], 4, 0.005, 100),
    ([32_768, 512, 5_120, 40], 4, 0.005, 100),
    ([4_000_000, 600_000, 1_200], 8, 0.01, 50),
    ([2_000_000, 30_000], 2, 0.002, 200),
    ([9_000_000, 9_000_000], 16, 0.001, 400),
    ([1_001], 8, 0.0, 100),
)


def _doubling(n: float, p: int, alpha: float, beta: float) -> float:
    return (p.bit_length() - 1) * (alpha + n * beta)


def _ring(n: float, p: int, alpha: float, beta: float) -> float:
    return 2 * (p - 1) * (alpha + n / p * beta)


def _rabenseifner(n: float, p: int, alpha: float, beta: float) -> float:
    return 2 * (p.bit_length() - 1) * alpha + 2 * (p - 1) / p * n * beta


def _cheaper(n: float, p: int, alpha: float, beta: float) -> float:
    return min(_doubling(n, p, alpha, beta), _ring(n, p, alpha, beta))


def _beta(megabits: float) -> float:
    return 8 / (megabits * 1e6)


def _each(one: Callable[[float, int, float, float], float]) -> Callable:
    return lambda b, p, a, m: sum(one(n, p, a, _beta(m)) for n in b)


_SYNC_MISTAKES = (
    Mistake("bits-for-bytes", lambda b, p, a, m: sum(_cheaper(n, p, a, 1 / (m * 1e6)) for n in b)),
    Mistake(
        "bits-the-wrong-way",
        lambda b, p, a, m: sum(_cheaper(n, p, a, 1 / (8 * m * 1e6)) for n in b),
    ),
    Mistake("mebi-for-mega", lambda b, p, a, m: sum(_cheaper(n, p, a, 8 / (m * 2**20)) for n in b)),
    Mistake("one-latency-for-all-buckets", lambda b, p, a, m: _cheaper(sum(b), p, a, _beta(m))),
    Mistake(
        "one-bucket-s-latency", lambda b, p, a, m: sum(_cheaper(n, p, 0, _beta(m)) for n in b) + a
    ),
    Mistake("forgets-latency", lambda b, p, a, m: sum(_cheaper(n, p, 0, _beta(m)) for n in b)),
    Mistake("forgets-bytes", lambda b, p, a, m: sum(_cheaper(0, p, a, 0) for _ in b)),
    Mistake("only-ring", _each(_ring)),
    Mistake("only-doubling", _each(_doubling)),
    Mistake(
        "one-algorithm-for-all-buckets",
        lambda b, p, a, m: min(_each(_doubling)(b, p, a, m), _each(_ring)(b, p, a, m)),
    ),
    Mistake(
        "rabenseifner-too",
        _each(lambda n, p, a, b: min(_cheaper(n, p, a, b), _rabenseifner(n, p, a, b))),
    ),
    Mistake("the-dearer", _each(lambda n, p, a, b: max(_doubling(n, p, a, b), _ring(n, p, a, b)))),
    Mistake(
        "one-way-round", _each(lambda n, p, a, b: min(_doubling(n, p, a, b), _ring(n, p, a, b) / 2))
    ),
    Mistake(
        "p-for-p-minus-one",
        _each(lambda n, p, a, b: min(_doubling(n, p, a, b), 2 * p * (a + n / p * b))),
    ),
    Mistake(
        "chunks-of-p-minus-one",
        _each(lambda n, p, a, b: min(_doubling(n, p, a, b), 2 * (p - 1) * (a + n / (p - 1) * b))),
    ),
    Mistake(
        "natural-logarithm",
        _each(lambda n, p, a, b: min(math.log(p) * (a + n * b), 2 * (p - 1) * (a + n / p * b))),
    ),
    Mistake("once-for-each-rank", lambda b, p, a, m: p * costs.sync_seconds(b, p, a, m)),
    Mistake(
        "both-directions-of-a-link",
        lambda b, p, a, m: sum(_cheaper(n, p, a, 2 * _beta(m)) for n in b),
    ),
)


def judge_sync(sync_seconds: Callable) -> None:
    judge_formula(sync_seconds, costs.sync_seconds, _SYNC_MISTAKES, _SYNC_CASES)


# ---- the speed-up ------------------------------------------------------------------------------

_SPEED_CASES = (
    (Run(1, 16, 200), Run(4, 16, 60), 0.0015, 0.004, 0.020, 4),
    (Run(1, 32, 100), Run(8, 8, 70), 0.001, 0.010, 0.005, 2),
    (Run(1, 16, 300), Run(4, 32, 80), 0.002, 0.003, 0.040, 3),
    (Run(1, 16, 300), Run(2, 16, 170), 0.002, 0.003, 0.010, 16),
    (Run(1, 16, 200), Run(4, 16, 60), 0.0015, 0.004, 0.100, 4),
    (Run(1, 16, 150), Run(6, 16, 50), 0.002, 0.008, 0.030, 4),
)
# Apart from the others, so that each usual mistake is recognised with this one and without it.
_ONE_RANK_AS_MANY = (Run(1, 16, 140), Run(1, 64, 70), 0.002, 0.008, 0.020, 4)


def _times(one, many, x, f, sync, cores, *, steps=None, batch=None, fixed=None, turns=None):
    """Seconds to the target of one and of many, with some numbers put in others' place."""
    alone = one.steps * ((f if fixed is None else fixed[0]) + one.batch * x)
    turns = -(-many.ranks // cores) if turns is None else turns
    compute = (f if fixed is None else fixed[1]) + (many.batch if batch is None else batch) * x
    return alone, (many.steps if steps is None else steps) * (turns * compute + sync)


def _ratio(one, many, *rest, **changed):
    alone, together = _times(one, many, *rest, **changed)
    return alone / together


def _sync_once(one, many, x, f, s, c):
    alone, together = _times(one, many, x, f, 0, c)
    return alone / (together + s)


def _one_synchronises(one, many, x, f, s, c):
    alone, together = _times(one, many, x, f, s, c)
    return (alone + one.steps * s) / together


def _sync_in_turns(one, many, x, f, s, c):
    turns = -(-many.ranks // c)
    alone, together = _times(one, many, x, f, turns * s, c)
    return alone / together


def _fixed_not_in_turns(one, many, x, f, s, c):
    alone, compute = _times(one, many, x, 0, 0, c)
    return (alone + one.steps * f) / (compute + many.steps * (f + s))


_SPEED_MISTAKES = (
    Mistake("forgets-communication", lambda o, m, x, f, s, c: _ratio(o, m, x, f, 0, c)),
    Mistake(
        "hides-communication",
        lambda o, m, x, f, s, c: (
            o.steps * (f + o.batch * x) / (m.steps * max(-(-m.ranks // c) * (f + m.batch * x), s))
        ),
    ),
    Mistake(
        "steps-divided-by-ranks",
        lambda o, m, x, f, s, c: _ratio(o, m, x, f, s, c, steps=o.steps / m.ranks),
    ),
    Mistake(
        "same-number-of-steps", lambda o, m, x, f, s, c: _ratio(o, m, x, f, s, c, steps=o.steps)
    ),
    Mistake(
        "speed-up-of-an-epoch",
        lambda o, m, x, f, s, c: _ratio(
            o, m, x, f, s, c, steps=o.steps * o.batch / (m.batch * m.ranks)
        ),
    ),
    Mistake(
        "forgets-the-fixed-part", lambda o, m, x, f, s, c: _ratio(o, m, x, f, s, c, fixed=(0, 0))
    ),
    Mistake(
        "divides-the-fixed-part",
        lambda o, m, x, f, s, c: _ratio(o, m, x, f, s, c, fixed=(f, f / m.ranks)),
    ),
    Mistake(
        "fixed-part-of-one-only", lambda o, m, x, f, s, c: _ratio(o, m, x, f, s, c, fixed=(f, 0))
    ),
    Mistake("cores-for-all", lambda o, m, x, f, s, c: _ratio(o, m, x, f, s, c, turns=1)),
    Mistake(
        "turns-not-whole", lambda o, m, x, f, s, c: _ratio(o, m, x, f, s, c, turns=m.ranks / c)
    ),
    Mistake(
        "turns-not-rounded",
        lambda o, m, x, f, s, c: _ratio(o, m, x, f, s, c, turns=max(1, m.ranks / c)),
    ),
    Mistake(
        "turns-one-too-many",
        lambda o, m, x, f, s, c: _ratio(o, m, x, f, s, c, turns=m.ranks // c + 1),
    ),
    Mistake(
        "turns-to-the-nearest",
        lambda o, m, x, f, s, c: _ratio(o, m, x, f, s, c, turns=max(1, round(m.ranks / c))),
    ),
    Mistake(
        "turns-rounded-down",
        lambda o, m, x, f, s, c: _ratio(o, m, x, f, s, c, turns=max(1, m.ranks // c)),
    ),
    Mistake(
        "batch-divided", lambda o, m, x, f, s, c: _ratio(o, m, x, f, s, c, batch=m.batch / m.ranks)
    ),
    Mistake(
        "batch-of-all-ranks",
        lambda o, m, x, f, s, c: _ratio(o, m, x, f, s, c, batch=m.batch * m.ranks),
    ),
    Mistake("upside-down", lambda *case: 1 / costs.speed_up(*case)),
    Mistake("sync-once", _sync_once),
    Mistake("one-rank-synchronises", _one_synchronises),
    Mistake("sync-divided", lambda o, m, x, f, s, c: _ratio(o, m, x, f, s / m.ranks, c)),
    Mistake("sync-of-each-rank", lambda o, m, x, f, s, c: _ratio(o, m, x, f, s * m.ranks, c)),
    Mistake("sync-in-turns", _sync_in_turns),
    Mistake("fixed-part-not-in-turns", _fixed_not_in_turns),
)


def judge_speed_up(speed_up: Callable) -> None:
    judge_formula(speed_up, costs.speed_up, _SPEED_MISTAKES, _SPEED_CASES)
    given = speed_up(*_ONE_RANK_AS_MANY)
    wanted = costs.speed_up(*_ONE_RANK_AS_MANY)
    if not math.isclose(float(given), wanted, rel_tol=1e-5):
        raise WrongAnswer(
            "sync-of-a-single-rank", case=_ONE_RANK_AS_MANY, given=f"{float(given):.6g}"
        )


# ---- time to the target ------------------------------------------------------------------------

_LOOKS_CASES = (
    ([(1.0, 0.5), (2.0, 0.9), (3.0, 0.8), (4.0, 0.95), (5.0, 0.93)], 0.9),
    ([(0.5, 0.2), (1.5, 0.6), (4.0, 0.9), (6.0, 0.7)], 0.8),
    ([(1.0, 0.1), (2.0, 0.3)], 0.5),
    ([(1.0, 0.97), (2.0, 0.92), (3.0, 0.99), (4.0, 0.98)], 0.9),
    ([(1.0, 0.896), (2.0, 0.93)], 0.9),
    ([(1.0, 0.7), (2.0, 0.6), (3.0, 0.65), (4.0, 0.92), (5.0, 0.91)], 0.9),
    ([(0.0, 0.95), (1.0, 0.97)], 0.9),
    (list(enumerate([0.5, 0.92, 0.6, 0.7, 0.8, 0.95, 0.96], 1)), 0.9),
    ([(1.0, 0.8996), (2.5, 0.93)], 0.9),
)
_NO_LOOKS: tuple[list, float] = ([], 0.9)


def _reaching(looks, target):
    return [i for i, (_, accuracy) in enumerate(looks) if accuracy >= target]


def _at(pick: Callable, looks, target):
    found = _reaching(looks, target)
    return looks[pick(found)][0] if found else None


def _interpolated(looks, target):
    found = _reaching(looks, target)
    if not found or found[0] == 0:
        return looks[0][0] if found else None
    (t, a), (u, b) = looks[found[0] - 1], looks[found[0]]
    return t + (u - t) * (target - a) / (b - a)


def _stays(looks, target):
    for i, (seconds, _) in enumerate(looks):
        if all(accuracy >= target for _, accuracy in looks[i:]):
            return seconds
    return None


def _gives_up_at_a_dip(looks, target):
    before = 0.0
    for seconds, accuracy in looks:
        if accuracy >= target:
            return seconds
        if accuracy < before:
            return None
        before = accuracy
    return None


def _by_halves(bisect_at: Callable):
    def search(looks, target):
        place = bisect_at([accuracy for _, accuracy in looks], target)
        return looks[place][0] if place < len(looks) else None

    return search


def _best(looks, _=None):
    return max(looks, key=lambda look: look[1])[0]


_LOOKS_MISTAKES = (
    Mistake("above-only", lambda looks, target: next((s for s, a in looks if a > target), None)),
    Mistake(
        "rounds-the-accuracy",
        lambda looks, target: next((s for s, a in looks if round(a, 2) >= target), None),
    ),
    Mistake("the-best", _best),
    Mistake(
        "the-best-if-reached",
        lambda looks, target: _best(looks) if _reaching(looks, target) else None,
    ),
    Mistake("the-last", lambda looks, target: looks[-1][0]),
    Mistake(
        "the-last-if-reached",
        lambda looks, target: looks[-1][0] if _reaching(looks, target) else None,
    ),
    Mistake(
        "the-last-that-reaches-it",
        lambda looks, target: _at(lambda found: found[-1], looks, target),
    ),
    Mistake("stays-above", _stays),
    Mistake("interpolates", _interpolated),
    Mistake(
        "one-look-early",
        lambda looks, target: _at(lambda found: max(0, found[0] - 1), looks, target),
    ),
    Mistake(
        "the-number-of-the-look", lambda looks, target: next(iter(_reaching(looks, target)), None)
    ),
    Mistake("the-accuracy", lambda looks, target: next((a for _, a in looks if a >= target), None)),
    Mistake(
        "the-nearest-accuracy",
        lambda looks, target: min(((a, s) for s, a in looks if a >= target), default=(0.0, None))[
            1
        ],
    ),
    Mistake(
        "not-none", lambda looks, target: next((s for s, a in looks if a >= target), looks[-1][0])
    ),
    Mistake("gives-up-at-a-dip", _gives_up_at_a_dip),
    Mistake("searches-by-halves", _by_halves(bisect.bisect_left)),
    Mistake("searches-by-halves", _by_halves(bisect.bisect_right)),
    Mistake(
        "skips-the-first-look",
        lambda looks, target: costs.time_to_target(looks[1:], target),
    ),
    Mistake("zero-is-never", lambda looks, target: costs.time_to_target(looks, target) or None),
    Mistake(
        "zero-is-never",
        lambda looks, target: costs.time_to_target([one for one in looks if one[0]], target),
    ),
    Mistake("zero-for-none", lambda looks, target: next((s for s, a in looks if a >= target), 0)),
)


def judge_time_to_target(time_to_target: Callable) -> None:
    judge_formula(time_to_target, costs.time_to_target, _LOOKS_MISTAKES, _LOOKS_CASES)
    try:
        given = time_to_target(*copy.deepcopy(_NO_LOOKS))
    except Exception as error:
        raise WrongAnswer("nothing-seen-yet: it raises", error=repr(error)) from error
    if given is not None:
        raise WrongAnswer("nothing-seen-yet", given=given)


# ---- bytes -------------------------------------------------------------------------------------

_BYTES_CASES = (
    ("synchronous", 100, 4, 1_000, 8),
    ("local SGD", 100, 4, 1_000, 8),
    ("server", 100, 4, 1_000, 8),
    ("synchronous", 70, 8, 5_000, 1),
    ("local SGD", 50, 8, 200, 16),
    ("server", 30, 3, 500, 4),
    ("local SGD", 47, 4, 300, 16),
    ("local SGD", 64, 2, 100, 16),
    ("local SGD", 10, 4, 1_000, 16),
)


def _bytes(way, steps, p, n, every, *, ring=None, server=None, rounds=None):
    if way == "server":
        return steps * (2 * n if server is None else server)
    if way == "local SGD":
        steps = steps // every if rounds is None else rounds
    return steps * (2 * (p - 1) * n if ring is None else ring)


_BYTES_MISTAKES = (
    Mistake("server-one-way", lambda w, s, p, n, e: _bytes(w, s, p, n, e, server=n)),
    Mistake(
        "server-for-all-workers",
        lambda w, s, p, n, e: _bytes(w, s, p, n, e, server=2 * (p - 1) * n),
    ),
    Mistake("server-as-a-worker", lambda w, s, p, n, e: _bytes(w, s, p, n, e, server=2 * p * n)),
    Mistake(
        "one-rank-of-the-ring",
        lambda w, s, p, n, e: _bytes(w, s, p, n, e, ring=2 * (p - 1) / p * n),
    ),
    Mistake("p-for-p-minus-one", lambda w, s, p, n, e: _bytes(w, s, p, n, e, ring=2 * p * n)),
    Mistake("half-a-ring", lambda w, s, p, n, e: _bytes(w, s, p, n, e, ring=(p - 1) * n)),
    Mistake("every-pair", lambda w, s, p, n, e: _bytes(w, s, p, n, e, ring=p * (p - 1) * n)),
    Mistake(
        "wrong-p-in-the-ring",
        lambda w, s, p, n, e: _bytes(w, s, p, n, e, ring=p * 2 * (p - 2) / (p - 1) * n),
    ),
    Mistake("local-in-every-step", lambda w, s, p, n, e: _bytes(w, s, p, n, e, rounds=s)),
    Mistake("local-multiplied", lambda w, s, p, n, e: _bytes(w, s, p, n, e, rounds=s * e)),
    Mistake("local-rounds-up", lambda w, s, p, n, e: _bytes(w, s, p, n, e, rounds=-(-s // e))),
    Mistake(
        "local-at-least-one-round",
        lambda w, s, p, n, e: _bytes(w, s, p, n, e, rounds=max(1, s // e)),
    ),
    Mistake(
        "local-last-round-lost", lambda w, s, p, n, e: _bytes(w, s, p, n, e, rounds=(s - 1) // e)
    ),
    Mistake(
        "local-to-the-nearest", lambda w, s, p, n, e: _bytes(w, s, p, n, e, rounds=round(s / e))
    ),
    Mistake("local-fractions", lambda w, s, p, n, e: _bytes(w, s, p, n, e, rounds=s / e)),
    Mistake(
        "every-for-all",
        lambda w, s, p, n, e: _bytes("local SGD" if w == "synchronous" else w, s, p, n, e),
    ),
)


def judge_bytes(bytes_on_links: Callable) -> None:
    judge_formula(bytes_on_links, costs.bytes_on_links, _BYTES_MISTAKES, _BYTES_CASES)
