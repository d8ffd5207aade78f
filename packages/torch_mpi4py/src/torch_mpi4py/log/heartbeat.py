"""About ten times a second, a rank writes on its event board that it is alive, and where it is.

A Python thread does this, the watcher of :mod:`.deadlines`, so it stops while C code on the main
thread holds the interpreter's lock. So a report can say in which line a rank computes that is not
communicating, or that it is in C code, from where it can no longer write.

The board also says which cell a notebook's rank runs, since when, and how the last one ended. The
program that runs cells reports them (:func:`begin_cell`, :func:`end_cell`); in any other IPython,
its own events do.
"""

from __future__ import annotations

import gc
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from inspect import iscoroutine
from itertools import accumulate, chain, repeat, takewhile
from operator import attrgetter, call, methodcaller
from types import FrameType
from typing import Any

from ..board.call_site import shell, site_of
from ..board.event_board import Position
from ..board.main_thread import own_cpu_seconds
from .events import log

at_each_beat: list[Callable[[], Any]] = []
"""Further functions to call about ten times a second; they must not wait."""
_reported: set[Callable[[], Any]] = set()  # those of them that have failed

_shown = Position(0.0, 0.0, "", 0, True, "", began=time.perf_counter())
_over = False  # the program has ended
_told = False  # some program reports when cells begin and end
_interrupts = 0  # that have reached the running cell
_awaited: Any = None  # the coroutine of a cell that awaits
_lock = threading.RLock()  # or the watcher could overwrite the end with an older state


def _show(site: str = "", **changes: Any) -> None:
    global _shown
    with _lock:
        now, cpu = time.perf_counter(), own_cpu_seconds()
        _shown = _shown._replace(time=now, cpu=cpu, site=site, **changes)
        log.set_position(_shown)


def note() -> None:
    """Write where the main thread is; the watcher calls this."""
    if not _told:
        _follow(shell())
    before, site = _shown, ""
    if before.at_breakpoint:  # where the rank's own debugger is the innermost program
        site = before.site
    elif before.running:
        site = _place_of_main_thread()
    with _lock:
        if _shown is before and not _over:  # else the main thread has moved on, and shown where to
            _show(site, interrupts=_interrupts)
    for do in at_each_beat.copy():
        try:
            do()
        except Exception:  # one must not prevent the others
            if do not in _reported:
                _reported.add(do)
                traceback.print_exc()


def _place_of_main_thread() -> str:
    """Return the line in which the main thread is, or its cell, if that only awaits something.

    Before Python 3.12 a collection of garbage may begin while this thread is given an object for
    one of the main thread's frames. Destructors may let the main thread continue and leave that
    frame, so the object refers to no frame: the process crashed.
    """
    main = threading.main_thread().ident or 0
    if sys.version_info >= (3, 12):
        site = site_of(sys._current_frames().get(main))
    else:
        site = site_of(next(filter(None, list(frames_uncollected(main))), None))
    return site or _place_in(_awaited)


def _place_in(coroutine: Any) -> str:
    """Return the innermost line of the program in a coroutine and those that it awaits."""
    awaited = accumulate(chain([coroutine], repeat("cr_await")), getattr)
    coroutines = list(takewhile(iscoroutine, awaited))
    frames = list(_uncollected(map(attrgetter("cr_frame"), coroutines)))
    return next(filter(None, map(site_of, reversed(frames))), "")


def frames_uncollected(thread: int) -> Iterator[FrameType | None]:
    """Iterate over the frames of a thread, innermost first, without garbage collection meanwhile.

    All is done by C functions, so in one call of list() no other thread has a turn, whose own
    gc.disable() would be undone. With all objects made, walking along ``f_back`` makes none.
    """
    tops = map(methodcaller("get", thread), map(call, (sys._current_frames,)))
    return _uncollected(takewhile(bool, accumulate(chain(tops, repeat("f_back")), getattr)))


def _uncollected(frames: Iterator[FrameType | None]) -> Iterator[FrameType | None]:
    uncollected = chain(map(call, (gc.disable,)), frames, map(call, (gc.enable,)))
    ways = {True: uncollected, False: frames}
    return chain.from_iterable(map(ways.__getitem__, map(call, (gc.isenabled,))))


# ---- a program -------------------------------------------------------------------------------


def ended(error: BaseException | None = None) -> None:
    """Write that this program has ended, or ends with ``error``; the first call counts."""
    global _over
    with _lock:
        if not _over:
            _over = True
            _show(running=False, outcome=_text(error), cell=0, notebook=False)


def outcome() -> str:
    """Return the error with which this program ends, "" if none."""
    return _shown.outcome if _over else ""


# ---- a notebook's cells ----------------------------------------------------------------------


def runs_cells() -> None:
    """Write that this process runs cells, whose beginnings and ends are told from now on."""
    global _told
    _told = True
    _show(running=False, notebook=True, began=0.0)


def has_cells() -> bool:
    """Return whether this process runs cells rather than a program."""
    return _shown.notebook


def begin_cell(number: int, run: str = "") -> None:
    """Write that a cell begins.

    Args:
        number: the cell's, 0 where cells are not counted.
        run: a text of your own that no other run of a cell has, the same on all ranks.
    """
    global _interrupts
    _interrupts, began = 0, time.perf_counter()
    new: dict[str, Any] = {"cell": number, "run": run, "began": began, "running": True}
    _show(**new, outcome="", lost=0, notebook=True, interrupts=0)


def end_cell(outcome: str, lost: int = 0) -> None:
    """Write how the cell has ended.

    Args:
        outcome: "" if well, else e.g. ``"ValueError: wrong"``.
        lost: what it has lost, in flags that you define.
    """
    _show(running=False, outcome=outcome.partition("\n")[0], lost=lost)


def count_interrupt() -> int:
    """Count an interrupt that has reached the running cell; return how many there have been.

    A signal handler may call this: only the next heartbeat writes it on the board.
    """
    global _interrupts
    _interrupts = max(_interrupts, 0) + 1
    return _interrupts


def ignores_interrupts() -> None:
    """Tell that the running cell has replaced the handler of interrupts."""
    global _interrupts
    _interrupts = -1


def awaits(coroutine: Any) -> None:
    """Tell which coroutine is the running cell that awaits, None for no such cell.

    Its line is shown while only libraries are on the stack, as those of an event loop.
    """
    global _awaited
    _awaited = coroutine


def is_awaiting() -> bool:
    """Return whether a cell runs that awaits."""
    return _awaited is not None


def current_run() -> str:
    """Return the text with which the latest cell began: see :func:`begin_cell`."""
    return _shown.run


def stand_at_breakpoint(site: str) -> None:
    """Write that the main thread is stopped at a breakpoint, in this line of the program."""
    _show(site, at_breakpoint=True)


def go_on() -> None:
    """Write that the main thread continues from a breakpoint."""
    _show(at_breakpoint=False)


def renewed() -> None:
    """Write that communication has been renewed: what is still open is over."""
    _show(renewed=time.perf_counter())


_listening: Any = None


def _follow(running_shell: Any) -> None:
    """Follow the cells of an IPython if no other program reports them."""
    global _listening
    if running_shell is None or running_shell is _listening:
        return
    _listening = running_shell
    running_shell.events.register("pre_run_cell", _begin_of_cell)
    running_shell.events.register("post_run_cell", _end_of_cell)
    _show(running=False, notebook=True, began=0.0)


def _begin_of_cell(info: Any) -> None:
    if _told:  # since then, on a rank that was slow to start
        return
    # IPython counts on before it runs a cell, and adds it to the history after this event.
    history = _listening.history_manager.input_hist_parsed
    begin_cell(len(history) if info.store_history else 0)


def _end_of_cell(result: Any) -> None:
    if not _told:
        end_cell(_text(result.error_before_exec or result.error_in_exec))


def _text(error: BaseException | None) -> str:
    return "" if error is None else f"{type(error).__name__}: {error}".partition("\n")[0]
