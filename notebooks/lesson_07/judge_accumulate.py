"""Force a race that happens once in a million runs to happen in every run.

Used by :mod:`rank_by_rank.lesson_07.exercises`. The learner's threads are functions that take turns
(:mod:`course_lib.teaching.turns`). A thread that reads the shared sum goes on only when no other
thread can: without a lock, all of them then start from the same sum, while with a lock there is
only ever one reader. For each read and write, the lock records whether it was held, so that no
answer is right by luck.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from course_lib.teaching.exercise import WrongAnswer
from course_lib.teaching.judges.failures import judge_errors
from course_lib.teaching.turns import Turns

THREADS = 4
_READS, _WRITES_UNLOCKED, _TURNED_AWAY = 1, 2, 3  # places in the queue, behind all other threads


class Lock:
    """A lock that is granted in the order of requests, and counts how often it was acquired."""

    def __init__(self) -> None:
        self.turns: Turns
        self.used = self._asked = 0
        self.turned_away: set[int] = set()  # threads that found it held, and did not wait
        self.refused: set[int] = set()  # threads whose last `acquire` failed
        self._holder: int | None = None

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if self._holder == self.turns.running:
            raise WrongAnswer("locked-twice")
        if (not blocking or timeout >= 0) and self.locked():  # every time-out passes
            self.refused.add(self.turns.running)
            return False
        self.refused.discard(self.turns.running)
        mine, self._asked = self._asked, self._asked + 1
        self.turns.wait(lambda: self._holder is None and self.used == mine)
        self.used += 1
        self._holder = self.turns.running
        return True

    def release(self) -> None:
        if self._holder is None:
            raise RuntimeError("release unlocked lock")  # as threading's does
        self._holder = None

    def locked(self) -> bool:
        if self._holder is None:
            return False
        self.turned_away.add(self.turns.running)
        self.turns.wait(lambda: True, place=_TURNED_AWAY)  # it may ask again
        return True

    def mine(self) -> int | None:
        """Return how many times it has been acquired, if the calling thread holds it."""
        return self.used if self._holder == self.turns.running else None

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *exception) -> None:
        self.release()


class Shared:
    """A sum that threads share. ``pairs``: the results of ``Lock.mine`` at each read and write."""

    def __init__(self, lock: Lock) -> None:
        self.value = torch.zeros(2, dtype=torch.float64)
        self.pairs: list[tuple[int | None, int | None]] = []
        self.writers: set[int] = set()
        self.reads = 0
        self.intruders: set[int] = set()
        self._lock = lock
        self._at_read: dict[int, int | None] = {}

    def read(self) -> torch.Tensor:
        turns = self._lock.turns
        self.reads += 1
        if turns.running in self._lock.refused:
            self.intruders.add(turns.running)
        self._at_read[turns.running] = self._lock.mine()
        value = self.value.clone()
        turns.wait(lambda: True, place=_READS)
        return value

    def write(self, value: torch.Tensor) -> None:
        turns, hold = self._lock.turns, self._lock.mine()
        if hold is None:  # the unlucky case: the other threads come first
            turns.wait(lambda: True, place=_WRITES_UNLOCKED)
        self.value = value
        self.writers.add(turns.running)
        self.pairs.append((self._at_read.get(turns.running), hold))


def judge_accumulate(accumulate: Callable) -> str:
    lock = Lock()
    shared = Shared(lock)
    computed: list[tuple[int, int | None]] = []

    def gradient_of(r: int) -> Callable[[], torch.Tensor]:
        def compute() -> torch.Tensor:
            computed.append((r, lock.mine()))
            return torch.tensor([1.0, 10.0], dtype=torch.float64) * 2**r

        return compute

    threads = [functools.partial(accumulate, shared, gradient_of(r), lock) for r in range(THREADS)]
    with Turns(threads) as lock.turns:
        stuck = lock.turns.play()
    if shared.intruders:
        raised = next(filter(None, lock.turns.errors), None)  # it may release another thread's lock
        raise WrongAnswer("enters-all-the-same", thread=min(shared.intruders)) from raised
    judge_errors(lock.turns.errors, who="thread {}")
    if stuck:
        raise WrongAnswer("never-opened")
    _judge_computing(computed)
    _judge_adding(shared, lock)
    return "No gradient is lost, and the threads wait for each other only while they add."


def _judge_computing(computed: list[tuple[int, int | None]]) -> None:
    if not computed:
        raise WrongAnswer("computes-nothing")
    if len(computed) > THREADS:
        raise WrongAnswer("computes-twice")
    if any(hold is not None for _, hold in computed):
        raise WrongAnswer("computes-behind-the-lock")


def _judge_adding(shared: Shared, lock: Lock) -> None:
    everything = torch.tensor([1.0, 10.0], dtype=torch.float64) * (2**THREADS - 1)
    if not shared.pairs:
        raise WrongAnswer("never-written")
    if lock.turned_away - shared.writers:
        thread = min(lock.turned_away - shared.writers)
        raise WrongAnswer("goes-away", thread=thread)
    if len(shared.pairs) != THREADS:
        raise WrongAnswer("not-one-write-each", threads=THREADS, count=len(shared.pairs))
    found, wanted = shared.value.tolist(), everything.tolist()
    lost = f"the sum is {found}, not {wanted}" if found != wanted else "the sum is right by luck"
    if not lock.used:
        raise WrongAnswer("no-lock", lost=lost)
    if not shared.reads:
        raise WrongAnswer("never-read", lost=lost)
    for at_read, at_write in shared.pairs:
        if at_read is None:
            raise WrongAnswer("read-outside-the-lock", lost=lost)
        if at_write is None:
            raise WrongAnswer("written-outside-the-lock", lost=lost)
        if at_read != at_write:
            raise WrongAnswer("two-locks-a-gap", lost=lost)
    if found != wanted:
        raise WrongAnswer("wrong-value", lost=lost)
    # By name, since a thread may have written an array of NumPy.
    given, dtype = (str(t.dtype).removeprefix("torch.") for t in (shared.value, everything))
    if given != dtype:
        raise WrongAnswer("loses-digits", given=given, dtype=dtype)
