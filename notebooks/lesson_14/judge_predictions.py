"""The usual wrong predictions, each as the formula that makes it: seconds, speed-up, bytes."""

from __future__ import annotations

import math
from collections.abc import Callable

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
)


def _doubling(n: float, p: int, alpha: float, beta: float) -> float:
    return (p.bit_length() - 1) * (alpha + n * beta)


def _ring(n: float, p: int, alpha: float, beta: float) -> float:
    return 2 * (p - 1) * (alpha + n / p * beta)


def _cheaper(n: float, p: int, alpha: float, beta: float) -> float:
    return min(_doubling(n, p, alpha, beta), _ring(n, p, alpha, beta))


def _beta(megabits: float) -> float:
    return 8 / (megabits * 1e6)


def _each(one: Callable[[float, int, float, float], float]) -> Callable:
    return lambda b, p, a, m: sum(one(n, p, a, _beta(m)) for n in b)


_SYNC_MISTAKES = (
    Mistake(
        "bits-for-bytes",
        lambda b, p, a, m: sum(_cheaper(n, p, a, 1 / (m * 1e6)) for n in b),
        "it takes the Mbit/s for MB/s. A byte has 8 bits, so the link carries megabits / 8 "
        "million bytes a second, and each byte takes eight times as long",
    ),
    Mistake(
        "bits-the-wrong-way",
        lambda b, p, a, m: sum(_cheaper(n, p, a, 1 / (8 * m * 1e6)) for n in b),
        "it multiplies the bandwidth by 8 instead of dividing it: a link of 100 Mbit/s carries "
        "12.5 MB a second, not 800",
    ),
    Mistake(
        "mebi-for-mega",
        lambda b, p, a, m: sum(_cheaper(n, p, a, 8 / (m * 2**20)) for n in b),
        "it takes 1 Mbit for 2**20 bits. Links are sold in powers of ten: 10**6",
    ),
    Mistake(
        "one-latency-for-all-buckets",
        lambda b, p, a, m: _cheaper(sum(b), p, a, _beta(m)),
        "it adds up the bytes and pays for one message. Each bucket is an all-reduce of its own, "
        "with latencies of its own",
    ),
    Mistake(
        "one-bucket-s-latency",
        lambda b, p, a, m: sum(_cheaper(n, p, 0, _beta(m)) for n in b) + a,
        "it pays the latency once. It belongs to every message: lg p or 2 (p - 1) of them for "
        "each bucket",
    ),
    Mistake(
        "forgets-latency",
        lambda b, p, a, m: sum(_cheaper(n, p, 0, _beta(m)) for n in b),
        "the latency does not occur. On a slow link small buckets are almost nothing but latency",
    ),
    Mistake(
        "forgets-bytes",
        lambda b, p, a, m: sum(_cheaper(0, p, a, 0) for _ in b),
        "the bytes do not occur: it counts latencies only",
    ),
    Mistake(
        "only-ring",
        _each(_ring),
        "it always takes the ring. For small buckets recursive doubling has fewer latencies: take "
        "the smaller of the two, for each bucket",
    ),
    Mistake(
        "only-doubling",
        _each(_doubling),
        "it always takes recursive doubling (or a ring that sends all n bytes in each step, which "
        "is never cheaper). For large buckets the ring sends fewer bytes: n / p in each step",
    ),
    Mistake(
        "one-algorithm-for-all-buckets",
        lambda b, p, a, m: min(_each(_doubling)(b, p, a, m), _each(_ring)(b, p, a, m)),
        "it takes one algorithm for all buckets. Each bucket is an all-reduce of its own, and "
        "takes whichever is faster for its size",
    ),
    Mistake(
        "the-dearer",
        _each(lambda n, p, a, b: max(_doubling(n, p, a, b), _ring(n, p, a, b))),
        "it takes the slower of the two algorithms. The faster one counts",
    ),
    Mistake(
        "one-way-round",
        _each(lambda n, p, a, b: min(_doubling(n, p, a, b), _ring(n, p, a, b) / 2)),
        "it goes once round the ring: that is the reduce-scatter. The all-gather goes round once "
        "more, so there are 2 (p - 1) steps",
    ),
    Mistake(
        "p-for-p-minus-one",
        _each(lambda n, p, a, b: min(_doubling(n, p, a, b), 2 * p * (a + n / p * b))),
        "its ring has 2 p steps. Nobody sends to itself: 2 (p - 1) steps, and 2 (p - 1) / p of "
        "the bytes",
    ),
    Mistake(
        "chunks-of-p-minus-one",
        _each(lambda n, p, a, b: min(_doubling(n, p, a, b), 2 * (p - 1) * (a + n / (p - 1) * b))),
        "it cuts the bucket into p - 1 chunks. There are p, one for each rank; p - 1 is the number "
        "of steps in each round",
    ),
    Mistake(
        "natural-logarithm",
        _each(lambda n, p, a, b: min(math.log(p) * (a + n * b), 2 * (p - 1) * (a + n / p * b))),
        "it takes the natural logarithm. lg is the logarithm to base 2: with each step of "
        "recursive doubling the number of summands doubles",
    ),
    Mistake(
        "once-for-each-rank",
        lambda b, p, a, m: p * costs.sync_seconds(b, p, a, m),
        "it is right, times the number of ranks. All ranks send at the same time",
    ),
    Mistake(
        "both-directions-of-a-link",
        lambda b, p, a, m: sum(_cheaper(n, p, a, 2 * _beta(m)) for n in b),
        "it halves the bandwidth, as if the two directions shared it. The link carries megabits "
        "each way, at the same time",
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
)


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
    Mistake(
        "forgets-communication",
        lambda o, m, x, f, s, c: _ratio(o, m, x, f, 0, c),
        "communication does not occur. Each step of several ranks takes `sync` seconds more",
    ),
    Mistake(
        "hides-communication",
        lambda o, m, x, f, s, c: (
            o.steps * (f + o.batch * x) / (m.steps * max(-(-m.ranks // c) * (f + m.batch * x), s))
        ),
        "it has ranks compute and synchronise at the same time. Here they synchronise when all "
        "have computed: add the two",
    ),
    Mistake(
        "steps-divided-by-ranks",
        lambda o, m, x, f, s, c: _ratio(o, m, x, f, s, c, steps=o.steps / m.ranks),
        "it hopes that R ranks need a step in R. A larger batch is worth less than that: take the "
        "steps of `many`",
    ),
    Mistake(
        "same-number-of-steps",
        lambda o, m, x, f, s, c: _ratio(o, m, x, f, s, c, steps=o.steps),
        "it gives both as many steps, or compares the time of a single step. `many` has a "
        "number of steps of its own, because its batch "
        "is another one",
    ),
    Mistake(
        "speed-up-of-an-epoch",
        lambda o, m, x, f, s, c: _ratio(
            o, m, x, f, s, c, steps=o.steps * o.batch / (m.batch * m.ranks)
        ),
        "this is the speed-up of an epoch: both go through as many samples. Asked for is the time "
        "to the target, and a larger batch needs more samples for that",
    ),
    Mistake(
        "forgets-the-fixed-part",
        lambda o, m, x, f, s, c: _ratio(o, m, x, f, s, c, fixed=(0, 0)),
        "the fixed seconds of a step do not occur. They are what Amdahl's law is about: no number "
        "of ranks makes them shorter",
    ),
    Mistake(
        "divides-the-fixed-part",
        lambda o, m, x, f, s, c: _ratio(o, m, x, f, s, c, fixed=(f, f / m.ranks)),
        "it divides the fixed seconds among the ranks. That is what Amdahl's law forbids: each "
        "rank spends them in each of its steps",
    ),
    Mistake(
        "fixed-part-of-one-only",
        lambda o, m, x, f, s, c: _ratio(o, m, x, f, s, c, fixed=(f, 0)),
        "only the one rank spends the fixed seconds. Each of the many spends them too, in each "
        "step",
    ),
    Mistake(
        "cores-for-all",
        lambda o, m, x, f, s, c: _ratio(o, m, x, f, s, c, turns=1),
        "it has all ranks compute at the same time. With more ranks than cores they compute in "
        "turns: ranks / cores, rounded up",
    ),
    Mistake(
        "turns-not-whole",
        lambda o, m, x, f, s, c: _ratio(o, m, x, f, s, c, turns=m.ranks / c),
        "it takes ranks / cores as it is. Turns are whole: four ranks on three cores take two, "
        "and two ranks on sixteen cores one",
    ),
    Mistake(
        "turns-rounded-down",
        lambda o, m, x, f, s, c: _ratio(o, m, x, f, s, c, turns=max(1, m.ranks // c)),
        "it rounds ranks / cores down. Four ranks on three cores take two turns",
    ),
    Mistake(
        "batch-divided",
        lambda o, m, x, f, s, c: _ratio(o, m, x, f, s, c, batch=m.batch / m.ranks),
        "it divides the batch among the ranks. `many.batch` is what *each* rank takes already",
    ),
    Mistake(
        "batch-of-all-ranks",
        lambda o, m, x, f, s, c: _ratio(o, m, x, f, s, c, batch=m.batch * m.ranks),
        "each rank computes the samples of all. They do so side by side: a step takes the time of "
        "one rank's batch",
    ),
    Mistake(
        "upside-down",
        lambda *case: 1 / costs.speed_up(*case),
        "it is upside down: a speed-up is the time of one divided by the time of many, above 1 "
        "where many are faster",
    ),
    Mistake(
        "sync-once",
        _sync_once,
        "it pays `sync` once. Ranks synchronise in every step",
    ),
    Mistake(
        "one-rank-synchronises",
        _one_synchronises,
        "the one rank synchronises too. It has nobody to do that with",
    ),
    Mistake(
        "sync-divided",
        lambda o, m, x, f, s, c: _ratio(o, m, x, f, s / m.ranks, c),
        "it divides `sync` among the ranks. `sync` is how long all of them take together",
    ),
    Mistake(
        "sync-of-each-rank",
        lambda o, m, x, f, s, c: _ratio(o, m, x, f, s * m.ranks, c),
        "it pays `sync` for each rank. `sync` is how long all of them take together",
    ),
    Mistake(
        "sync-in-turns",
        _sync_in_turns,
        "it multiplies `sync` by the turns. Only computing needs a core; messages go on meanwhile",
    ),
    Mistake(
        "fixed-part-not-in-turns",
        _fixed_not_in_turns,
        "the fixed seconds are computing, too: they need a core, so they are spent in turns",
    ),
)


def judge_speed_up(speed_up: Callable) -> None:
    judge_formula(speed_up, costs.speed_up, _SPEED_MISTAKES, _SPEED_CASES)


# ---- time to the target ------------------------------------------------------------------------

_LOOKS_CASES = (
    ([(1.0, 0.5), (2.0, 0.9), (3.0, 0.8), (4.0, 0.95), (5.0, 0.93)], 0.9),
    ([(0.5, 0.2), (1.5, 0.6), (4.0, 0.9), (6.0, 0.7)], 0.8),
    ([(1.0, 0.1), (2.0, 0.3)], 0.5),
    ([(1.0, 0.97), (2.0, 0.92), (3.0, 0.99), (4.0, 0.98)], 0.9),
    ([(1.0, 0.896), (2.0, 0.93)], 0.9),
)


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


def _best(looks, _=None):
    return max(looks, key=lambda look: look[1])[0]


_LOOKS_MISTAKES = (
    Mistake(
        "above-only",
        lambda looks, target: next((s for s, a in looks if a > target), None),
        "an accuracy that equals the target has reached it: use `>=`",
    ),
    Mistake(
        "rounds-the-accuracy",
        lambda looks, target: next((s for s, a in looks if round(a, 2) >= target), None),
        "it rounds the accuracy: 0.896 is not yet 0.9",
    ),
    Mistake(
        "the-best",
        _best,
        "it looks for the best accuracy of the run. Asked for is the first that is good enough",
    ),
    Mistake(
        "the-best-if-reached",
        lambda looks, target: _best(looks) if _reaching(looks, target) else None,
        "it gives the time of the best accuracy. The target was reached before that",
    ),
    Mistake(
        "the-last",
        lambda looks, target: looks[-1][0],
        "it gives the time of the last look, however the run went",
    ),
    Mistake(
        "the-last-if-reached",
        lambda looks, target: looks[-1][0] if _reaching(looks, target) else None,
        "it gives the length of the whole run. The target was reached before that",
    ),
    Mistake(
        "the-last-that-reaches-it",
        lambda looks, target: _at(lambda found: found[-1], looks, target),
        "it gives the last look at the target, not the first: stop at the first",
    ),
    Mistake(
        "stays-above",
        _stays,
        "it wants the accuracy to stay there. That is a stricter rule; here the first time counts",
    ),
    Mistake(
        "interpolates",
        _interpolated,
        "it guesses when the target was passed between two looks. Nobody has seen that; the first "
        "look at which it *was* seen counts",
    ),
    Mistake(
        "one-look-early",
        lambda looks, target: _at(lambda found: max(0, found[0] - 1), looks, target),
        "it gives the look before the one that reaches the target",
    ),
    Mistake(
        "the-number-of-the-look",
        lambda looks, target: next(iter(_reaching(looks, target)), None),
        "this is the number of the look. Asked for are its seconds",
    ),
    Mistake(
        "the-accuracy",
        lambda looks, target: next((a for _, a in looks if a >= target), None),
        "this is the accuracy. Asked for are the seconds",
    ),
    Mistake(
        "the-nearest-accuracy",
        lambda looks, target: min(((a, s) for s, a in looks if a >= target), default=(0.0, None))[
            1
        ],
        "among the looks at the target it takes the one with the lowest accuracy. Asked for is "
        "the first in time",
    ),
    Mistake(
        "not-none",
        lambda looks, target: next((s for s, a in looks if a >= target), looks[-1][0]),
        "where the target is never reached it gives the end of the run. Return None",
    ),
    Mistake(
        "zero-for-none",
        lambda looks, target: next((s for s, a in looks if a >= target), 0),
        "where the target is never reached it gives 0, which would be the fastest run of all. "
        "Return None",
    ),
)


def judge_time_to_target(time_to_target: Callable) -> None:
    judge_formula(time_to_target, costs.time_to_target, _LOOKS_MISTAKES, _LOOKS_CASES)


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
)


def _bytes(way, steps, p, n, every, *, ring=None, server=None, rounds=None):
    if way == "server":
        return steps * (2 * n if server is None else server)
    if way == "local SGD":
        steps = steps // every if rounds is None else rounds
    return steps * (2 * (p - 1) * n if ring is None else ring)


_BYTES_MISTAKES = (
    Mistake(
        "server-one-way",
        lambda w, s, p, n, e: _bytes(w, s, p, n, e, server=n),
        "it counts one direction of the server's link. For each update parameters go one way and "
        "a gradient comes the other",
    ),
    Mistake(
        "server-for-all-workers",
        lambda w, s, p, n, e: _bytes(w, s, p, n, e, server=2 * (p - 1) * n),
        "it counts every update for all workers. An update is the work of *one* of them",
    ),
    Mistake(
        "server-as-a-worker",
        lambda w, s, p, n, e: _bytes(w, s, p, n, e, server=2 * p * n),
        "it counts every update for all ranks. An update is the work of one worker",
    ),
    Mistake(
        "one-rank-of-the-ring",
        lambda w, s, p, n, e: _bytes(w, s, p, n, e, ring=2 * (p - 1) / p * n),
        "2 (p - 1) / p is what *one* rank of the ring sends. There are p of them",
    ),
    Mistake(
        "p-for-p-minus-one",
        lambda w, s, p, n, e: _bytes(w, s, p, n, e, ring=2 * p * n),
        "its ring moves 2 p n bytes. Each rank sends 2 (p - 1) / p of the model, so all of them "
        "2 (p - 1) times the model",
    ),
    Mistake(
        "half-a-ring",
        lambda w, s, p, n, e: _bytes(w, s, p, n, e, ring=(p - 1) * n),
        "it goes round the ring once. Reduce-scatter *and* all-gather: twice",
    ),
    Mistake(
        "every-pair",
        lambda w, s, p, n, e: _bytes(w, s, p, n, e, ring=p * (p - 1) * n),
        "it has every rank send its gradient to every other. The ring sends 2 (p - 1) / p of it "
        "for each rank",
    ),
    Mistake(
        "wrong-p-in-the-ring",
        lambda w, s, p, n, e: _bytes(w, s, p, n, e, ring=p * 2 * (p - 2) / (p - 1) * n),
        "it puts p - 1 for p into 2 (p - 1) / p. All p ranks are in the ring, none serves",
    ),
    Mistake(
        "local-in-every-step",
        lambda w, s, p, n, e: _bytes(w, s, p, n, e, rounds=s),
        "local SGD averages after every `every` steps only, not after each",
    ),
    Mistake(
        "local-multiplied",
        lambda w, s, p, n, e: _bytes(w, s, p, n, e, rounds=s * e),
        "it multiplies by `every`. Local SGD averages less often, not more often",
    ),
    Mistake(
        "local-rounds-up",
        lambda w, s, p, n, e: _bytes(w, s, p, n, e, rounds=-(-s // e)),
        "it counts a round for the steps that are left over. Weights are averaged after `every` "
        "whole steps: round down",
    ),
    Mistake(
        "local-last-round-lost",
        lambda w, s, p, n, e: _bytes(w, s, p, n, e, rounds=(s - 1) // e),
        "where the last step fills a round, that round is missing",
    ),
    Mistake(
        "local-to-the-nearest",
        lambda w, s, p, n, e: _bytes(w, s, p, n, e, rounds=round(s / e)),
        "it rounds to the nearest number of rounds. Weights are averaged after `every` whole "
        "steps: round down",
    ),
    Mistake(
        "local-fractions",
        lambda w, s, p, n, e: _bytes(w, s, p, n, e, rounds=s / e),
        "it counts a fraction of a round. Weights are averaged after `every` whole steps: round "
        "down",
    ),
    Mistake(
        "every-for-all",
        lambda w, s, p, n, e: _bytes("local SGD" if w == "synchronous" else w, s, p, n, e),
        "it divides the steps of synchronous SGD too, which averages in each step whatever "
        "`every` is",
    ),
)


def judge_bytes(bytes_on_links: Callable) -> None:
    judge_formula(bytes_on_links, costs.bytes_on_links, _BYTES_MISTAKES, _BYTES_CASES)
