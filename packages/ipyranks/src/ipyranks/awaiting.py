"""Runs a cell that awaits, on a rank.

ipykernel runs such a cell in its own event loop, with the help of a thread that ipyparallel's
engine does not have. An interrupt could not end it there either while it computes, or waits in
MPI. A loop of the cells' own lets an awaiting cell end like every other one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


def own_loop(shell: Any) -> None:
    """Run the cells of ``shell`` that await in a loop of their own, the same for all of them."""
    loop = asyncio.new_event_loop()
    shell.loop_runner = lambda cell: _run(loop, cell)


def _run(loop: asyncio.AbstractEventLoop, cell: Coroutine) -> Any:
    engines, request = asyncio.get_running_loop(), asyncio.current_task()
    assert request is not None  # of the engine, to run this cell
    asyncio.tasks._leave_task(engines, request)
    asyncio._set_running_loop(None)
    try:
        return _to_its_end(loop, cell)
    finally:
        asyncio._set_running_loop(engines)
        asyncio.tasks._enter_task(engines, request)


def _to_its_end(loop: asyncio.AbstractEventLoop, cell: Coroutine) -> Any:
    from torch_mpi4py.log import heartbeat

    heartbeat.awaits(cell)
    try:
        return loop.run_until_complete(cell)
    except BaseException as error:  # an interrupt, while the cell awaits something
        try:
            cell.throw(error)  # so that its traceback names the line of the cell
        except StopIteration as ended:
            return ended.value
        finally:
            _cancel_all(loop)
        raise
    finally:
        heartbeat.awaits(None)


def _cancel_all(loop: asyncio.AbstractEventLoop) -> None:
    """End what an interrupted cell has started: the next cell must not go on with it."""
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
