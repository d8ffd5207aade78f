"""The judge of lesson 10c for the bytes that a rank sends in ring attention and in Ulysses.

Keys and values may have fewer heads than queries; all numbers have 2 bytes.
"""

from __future__ import annotations

from collections.abc import Callable

from course_lib.teaching.judges.formulas import Mistake, judge_formula

_CASES = tuple(
    (way, tokens, ranks, heads, kv_heads, d)
    for way in ("ring", "ulysses")
    for tokens, ranks, heads, kv_heads, d in (
        (8192, 8, 64, 64, 128),
        (2**20, 8, 64, 8, 128),
        (4096, 4, 32, 8, 64),
        (96, 3, 12, 6, 8),
        (64, 2, 4, 2, 16),
        (64, 1, 4, 4, 16),
    )
)


def expected(
    way: str, tokens: int, ranks: int, heads: int, kv_heads: int, d: int, each: int = 2
) -> int:
    """Return the bytes one rank sends in forward, for one sequence; all divisions are exact."""
    n = tokens // ranks
    if way == "ring":
        return (ranks - 1) * each * n * 2 * kv_heads * d
    return (ranks - 1) * each * n * 2 * (heads + kv_heads) * d // ranks


def _changed(**other: Callable) -> Callable:
    """Return the formula with another one for the ring or for Ulysses."""

    def formula(way: str, *case: int) -> float:
        return other[way](*case) if way in other else expected(way, *case)

    return formula


def _parts(formula: Callable) -> Callable:
    """Give a formula of n, p and the widths of queries and of keys."""
    return lambda tokens, p, heads, kv, d: 2 * formula(tokens / p, p, heads * d, kv * d)


_RING_KEYS = _parts(lambda n, p, q, kv: (p - 1) * n * kv)
_RING_P = _parts(lambda n, p, q, kv: p * n * 2 * kv)
_RING_QUERIES = _parts(lambda n, p, q, kv: (p - 1) * n * 2 * q)
_RING_ONCE = _parts(lambda n, p, q, kv: n * 2 * kv)
_ALL_SENT = _parts(lambda n, p, q, kv: n * 2 * (q + kv))
_NO_OUTPUT = _parts(lambda n, p, q, kv: (p - 1) / p * n * (q + 2 * kv))
_ALL_WIDE = _parts(lambda n, p, q, kv: (p - 1) / p * n * 4 * q)
_TO_EACH = _parts(lambda n, p, q, kv: (p - 1) * n * 2 * (q + kv))
_ALL_TOKENS_RING = _parts(lambda n, p, q, kv: (p - 1) * n * p * 2 * kv)
_ALL_TOKENS_ULYSSES = _parts(lambda n, p, q, kv: (p - 1) * n * 2 * (q + kv))

_MISTAKES = (
    Mistake("only-keys", _changed(ring=_RING_KEYS)),
    Mistake("one-step-too-many", _changed(ring=_RING_P)),
    Mistake("queries-go-round", _changed(ring=_RING_QUERIES)),
    Mistake("one-step-only", _changed(ring=_RING_ONCE)),
    Mistake("own-part-is-sent", _changed(ulysses=_ALL_SENT)),
    Mistake("forgets-the-output", _changed(ulysses=_NO_OUTPUT)),
    Mistake("as-many-keys-as-queries", _changed(ulysses=_ALL_WIDE)),
    Mistake("as-many-keys-as-queries", _changed(ring=_RING_QUERIES, ulysses=_ALL_WIDE)),
    Mistake("whole-to-each-rank", _changed(ulysses=_TO_EACH)),
    Mistake("whole-sequence", _changed(ring=_ALL_TOKENS_RING, ulysses=_ALL_TOKENS_ULYSSES)),
    Mistake(
        "ways-swapped", lambda way, *case: expected("ulysses" if way == "ring" else "ring", *case)
    ),
    Mistake("numbers-not-bytes", lambda *case: expected(*case, each=1)),
    Mistake("other-bytes-a-number", lambda *case: expected(*case, each=4)),
    Mistake("other-bytes-a-number", lambda *case: expected(*case, each=8)),
)


def judge_bytes(attention_bytes: Callable[[str, int, int, int, int, int], float]) -> None:
    """Raise WrongAnswer unless the learner's function is that formula."""
    judge_formula(attention_bytes, expected, _MISTAKES, _CASES)
