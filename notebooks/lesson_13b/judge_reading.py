"""Judges the reading exercises: what settings and paragraphs mean, and which words say so."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from course_lib.teaching.exercise import WrongAnswer
from course_lib.teaching.judges.formulas import Mistake, judge_formula

__all__ = ["ANSWERS", "judge_batch", "judge_reading"]

ANSWERS = {
    "A": ("sync", "all-reduce", "nccl"),
    "B": ("async", "server", "none"),
    "C": ("sync", "server", "none"),
    "D": ("local", "all-reduce", "gloo"),
    "E": ("sync", "all-reduce", "mpi"),
}
_QUESTIONS = ("when", "how", "library")
_WORDS = {
    ("A", 0): "'the next batch begins on all devices together'",
    ("A", 1): "every device keeps a copy, and 'sums travel from card to card': no card is a server",
    ("A", 2): "graphics cards of one vendor, 'without a detour through host memory'",
    ("B", 0): "'whichever comes first is applied first': no worker waits for another",
    ("B", 1): "'fetch the parameters', 'hand in the gradient': the parameters live elsewhere",
    ("B", 2): "remote procedure calls are not collectives, so no collective library is used",
    ("C", 0): "'once all gradients of a round are in': the server waits for all workers",
    ("C", 1): "'the chief' holds the variables; a server may be synchronous, too",
    ("C", 2): "each worker talks to the chief alone; no collective is named",
    ("D", 0): "'on its own for 500 steps': an island does not wait for the others in each step, "
    "but nothing is applied late either; this is local SGD",
    ("D", 1): "'averaged over all': a sum that every rank gets, and no server",
    ("D", 2): "'over TCP on CPUs': PyTorch has one backend for that",
    ("E", 0): "'optimizer.step() returns once the averages have arrived'",
    ("E", 1): "'every process computes their averages': there is no server",
    ("E", 2): "'start your script with mpirun', 'whatever collective your site's library picks'",
}  # fmt: skip
_KNOWN = (
    {"sync", "async", "local"},
    {"all-reduce", "server"},
    {"nccl", "gloo", "mpi", "none"},
)


_SAME = {
    "allreduce": "all-reduce",
    "synchronous": "sync",
    "asynchronous": "async",
    "parameter-server": "server",
}


def _plain(word: object) -> str:
    return re.sub(r"[ _]", "-", str(word).strip().casefold())


def judge_reading(reading: Callable) -> None:
    """Raise the first answer that is wrong, with the words that give the right one."""
    given = reading()
    if given is None:
        raise WrongAnswer("returns-nothing")
    if not isinstance(given, dict) or {str(key).upper() for key in given} != set(ANSWERS):
        raise WrongAnswer("not-all-paragraphs")
    given = {str(key).upper(): answer for key, answer in given.items()}
    for paragraph, wanted in ANSWERS.items():
        answer = given[paragraph]
        if not isinstance(answer, tuple | list) or len(answer) != 3:
            raise WrongAnswer("not-a-triple", paragraph=paragraph, answer=repr(answer))
        told = [_SAME.get(word, word) for word in map(_plain, answer)]
        for number, (said, right) in enumerate(zip(told, wanted, strict=True)):
            if said not in _KNOWN[number]:
                raise WrongAnswer(
                    "unknown-word",
                    paragraph=paragraph,
                    said=repr(said),
                    known=", ".join(sorted(_KNOWN[number])),
                )
            if said != right:
                raise WrongAnswer(
                    _named(paragraph, number, said),
                    paragraph=paragraph,
                    question=_QUESTIONS[number],
                    said=repr(said),
                    words=_WORDS[paragraph, number],
                )


def _named(paragraph: str, number: int, said: str) -> str:
    if (paragraph, number) == ("C", 0):
        return "a-server-may-wait"
    if (paragraph, number) == ("D", 0):
        return "local-steps"
    return ("wrong-when", "wrong-how", "wrong-library")[number]


# ---- whose batch ------------------------------------------------------------------------------

_OF_ONE = ("ddp", "fabric", "accelerate")
_OF_ALL = ("accelerate split_batches", "keras")
_OF_STEP = ("deepspeed train_batch_size",)
_CASES = tuple(
    (setting, *numbers)
    for setting in (*_OF_ONE, *_OF_ALL, *_OF_STEP)
    for numbers in ((32, 4, 1), (32, 4, 2), (48, 3, 4))
)


def _effective(setting: str, written: int, ranks: int, accumulate: int) -> int:
    if setting in _OF_ONE:
        return written * ranks * accumulate
    return written * (accumulate if setting in _OF_ALL else 1)


_MISTAKES = (
    Mistake("always-of-one-rank", lambda s, w, r, a: w * r * a),
    Mistake("always-of-all-ranks", lambda s, w, r, a: w * (1 if s in _OF_STEP else a)),
    Mistake("forgets-accumulation", lambda s, w, r, a: w * (r if s in _OF_ONE else 1)),
    Mistake("deepspeed-counts-all", lambda s, w, r, a: w * (r * a if s in _OF_ONE else a)),
    Mistake(
        "split-batches",
        lambda s, w, r, a: w * (r * a if s in (*_OF_ONE, _OF_ALL[0]) else a if s == "keras" else 1),
    ),
    Mistake("ignores-setting", lambda s, w, r, a: w),
)


def judge_batch(effective_batch: Callable) -> None:
    judge_formula(effective_batch, _effective, _MISTAKES, _CASES, why=_what_it_counts)


def _what_it_counts(case: tuple, given: Any) -> str:
    setting = case[0]
    if setting in _OF_ONE:
        of = "one rank and one backward pass, so a step sees `ranks * accumulate` times as many"
    elif setting in _OF_ALL:
        of = "all ranks and one backward pass, so a step sees `accumulate` times as many"
    else:
        of = "all ranks and all backward passes of a step, so it is the answer"
    return f"the number counts the samples of {of}"
