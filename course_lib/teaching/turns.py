"""Lets several functions wait for each other on one thread: one runs until it has to wait.

:class:`Turns` gives every function a stack of its own (a greenlet) and switches between them where
they wait, and nowhere else. So the order is the same each time, and a deadlock is known at once,
without waiting for a deadline. Because all of it happens on the caller's thread, a stop button or a
deadline interrupts the line that is running, as in any other call.

Threads would not do. A thread of CPython that hands over the interpreter's lock waits without a
limit for the other thread's signal that it has it, and glibc before 2.41 can lose that signal (its
bug 25847): beside a thread that computes indefinitely the main thread then hangs. That happened in
two whole runs of CI, for 300 s, in a rehearsal that was to be interrupted, and never on purpose;
the second time a third thread was there to wake it.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from greenlet import getcurrent, greenlet

_MOST_REFUSALS = 400  # of one function: one that catches this many will never end

# Functions that cannot be ended. Greenlets without references are told to end once again.
_left_behind: list[greenlet] = []


class StuckError(BaseException):
    """No function can go on. Not an Exception, so that the learner's code cannot catch it."""


@dataclass
class _Turn:
    """A function's wait: it may go on when ``until()`` holds, lower ``place`` first."""

    stack: greenlet
    until: Callable[[], bool] = lambda: True
    place: int = 0
    refusals: int = 0


class Turns:
    """Several functions of which one runs at a time; on exit, those that still wait are ended::

        with Turns(functions) as turns:
            stuck = turns.play()

    Attributes:
        results: what each function returned; None if it has not.
        errors: what each function raised, StuckError if it was ended.
        running: the number of the function that runs, None if none of them does.
        ending: whether those that still wait are being ended.
    """

    def __init__(self, functions: Sequence[Callable[[], object]]) -> None:
        self.results: list = [None] * len(functions)
        self.errors: list[BaseException | None] = [None] * len(functions)
        self._functions = functions
        self.running: Any = None
        self.ending = False
        self._turns: dict[int, _Turn] = {}  # of those that have not ended
        self._caller = getcurrent()

    def __enter__(self) -> Turns:
        return self

    def __exit__(self, *exception: object) -> None:
        """Raise StuckError in every function that waits, so that its ``finally`` blocks run."""
        self.ending = True
        for number in list(self._turns):
            if self._turns[number].stack:  # it has begun
                self._go_on(number)

    def play(self) -> list[int]:
        """Call all functions; return the numbers of those that wait when none can go on.

        An interrupt, or anything else that is neither an Exception nor SystemExit, is raised here.
        """
        for number in range(len(self._functions)):
            stack = greenlet(self._call, self._caller)
            # Where a kernel shows what is printed depends on such a variable.
            stack.gr_context = contextvars.copy_context()
            self._turns[number] = _Turn(stack)
        while (ready := self._next()) is not None:
            self._go_on(ready)
        return list(self._turns)

    def wait(self, until: Callable[[], bool], place: int = 0) -> None:
        """Let others run until ``until()`` holds; to be called by one of the functions.

        Of those that can go on, the one with the lowest ``place`` does, then the first in number.
        """
        turn = self._turns[self.running]
        turn.until, turn.place = until, place
        if not self.ending:
            self._caller.switch()
        if self.ending:
            self.refuse(StuckError())

    def refuse(self, error: BaseException) -> None:
        """Raise ``error`` in the function that runs; if it always goes on regardless, leave it."""
        turn = self._turns[self.running]
        turn.refusals += 1
        if turn.refusals > _MOST_REFUSALS:
            self.errors[self.running] = error
            del self._turns[self.running]
            _left_behind.append(turn.stack)
            self._caller.switch()
        raise error

    def _next(self) -> int | None:
        ready = [number for number, turn in self._turns.items() if turn.until()]
        return min(ready, key=lambda number: (self._turns[number].place, number), default=None)

    def _go_on(self, number: int) -> None:
        self.running = number
        try:
            self._turns[number].stack.switch(number)
        finally:
            self.running = None

    def _call(self, number: int) -> None:
        try:
            self.results[number] = self._functions[number]()
        except (Exception, SystemExit, StuckError) as error:  # judged by the caller of play
            self.errors[number] = error
        finally:
            self._turns.pop(number, None)
