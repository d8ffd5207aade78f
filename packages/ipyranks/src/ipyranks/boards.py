"""The state of a cluster's ranks, on any host, as plain data by the notebook's clock.

The boards of this host's ranks are read from memory. For other hosts the keeper asks their agents,
which read the boards there by the same code. Neither needs the help of a rank, which may be stuck.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from itertools import starmap
from pathlib import Path
from typing import Any, NamedTuple

from torch_mpi4py.board import standstill
from torch_mpi4py.board.observing import RankBoards, Signs, signs_of, waits_in
from torch_mpi4py.board.rank_states import RankState

from . import stack_dump
from .cores import waited

_TIMES = ("began", "moved", "start", "end", "waited_from")


class RankView(NamedTuple):
    """The state of a rank at one moment: the only basis for judging a cell.

    Attributes:
        running: whether it runs a cell.
        run: the identity of its latest run of a cell.
        began: when that began, 0 if it has run none.
        lost: the communication that this run has lost, 0 if none.
        wait: the number of the call of communication in which it waits; None if it does not.
        moved: when it last ended such a call, 0 if it never has.
        keeps_the_lock: whether C code keeps the interpreter's lock, and no signal reaches it.
        waited: seconds in all for which it could run but had no core; None if not known.
        waited_at: when that was read, by the clock of its host.
        ran: seconds for which its main thread has run on a core, by its latest heartbeat.
        looks: how often it has looked for other ranks while it slept and waited for them.
        interrupts: how many have reached the Python code of its cell, and did not find it
            handling another; -1 if the cell has replaced the handler of SIGINT.
    """

    running: bool = False
    run: str = ""
    began: float = 0.0
    lost: int = 0
    wait: int | None = None
    moved: float = 0.0
    keeps_the_lock: bool = False
    waited: float | None = None
    waited_at: float = 0.0
    ran: float = 0.0
    looks: int = 0
    interrupts: int = 0

    @property
    def signs(self) -> Signs:
        """What shows, if it waits, whether it had a core."""
        return Signs(self.ran, self.looks)


Views = Mapping[int, RankView]
"""The states of some ranks, by engine."""


def same_waits(before: Views, now: Views) -> bool:
    """Whether these are the same ranks, and each waits in the same call, or still in none."""
    return {e: view.wait for e, view in before.items()} == {e: v.wait for e, v in now.items()}


def wait_for_others(before: Views, now: Views) -> bool:
    """Whether all ranks, whose waits are the same as ``before``, wait for others.

    That is not sure before each had a core: a rank whose call is over shows it only then.
    """
    return all(
        view.wait is not None and view.signs.show_a_core_since(before[engine].signs)
        for engine, view in now.items()
    )


class BoardsHere:
    """The ranks of this host.

    Args:
        directory: where their boards are.
        signal: called with a signal and a list of engines, sends it to them.
    """

    def __init__(self, directory: Path, signal: Callable[[int, list[int]], Any]) -> None:
        self.boards = RankBoards(directory)
        self._signal = signal

    def look(self, question: str, offset: float, **arguments: Any) -> Any:
        """Answer for a notebook on another host, ready for JSON.

        Args:
            question: ``"snapshot"``, ``"state"``, ``"stack"`` or ``"standstill"``.
            offset: the difference to add to this host's ``time.perf_counter()`` to get the
                notebook's.
            arguments: those of the method of that name.
        """
        if question == "snapshot":
            return [_moved(view, offset) for view in self.snapshot(**arguments)]
        if question == "stack":
            return self.stack(**arguments)
        if question == "standstill":
            return standstill.renew(self.boards.directory)
        state = dataclasses.asdict(self.state(**arguments))
        for name in ("operations", "past"):
            state[name] = [_moved(event, offset) for event in state[name]]
        return state

    def snapshot(self, numbers: Iterable[int]) -> list[RankView]:
        """Look at some engines."""
        return [self._view(number) for number in numbers]

    def _view(self, number: int) -> RankView:
        board = self.boards.board(number)
        position = None if board is None else board.position
        if board is None or position is None:
            return RankView()
        waits, signs = waited(board.pid), signs_of(board)
        return RankView(
            position.running,
            position.run,
            position.began,
            position.lost,
            waits_in(board),
            board.latest_end,
            self.boards.keeps_the_lock(number),
            waited=waits.seconds if waits else None,
            waited_at=waits.at if waits else 0.0,
            ran=signs.ran,
            looks=signs.looks,
            interrupts=position.interrupts,
        )

    def state(self, rank: int, number: int, members: list[int], alive: bool) -> RankState:
        """Return what a rank is doing, for a report; see :meth:`Boards.state`."""
        ask_site = partial(stack_dump.ask, *self._asked_for_its_stack(number))
        numbers = {engine: now for now, engine in enumerate(members)}
        return self.boards.state(rank, number, numbers, alive=alive, ask_site=ask_site)

    def stack(self, number: int) -> list[str]:
        """Return the Python stack of an engine that runs a cell; see :meth:`Boards.stack`."""
        position = self.boards.position(number)
        if position is None or not position.running:
            return []
        return stack_dump.ask_stack(*self._asked_for_its_stack(number), position.site)

    def _asked_for_its_stack(self, number: int) -> tuple[Path, int, Callable[[], Any]]:
        send = partial(self._signal, stack_dump.SIGNAL, [number])
        return self.boards.directory, number, send


class Boards:
    """The ranks of a cluster, on one host or several.

    Args:
        here: those of this host.
        elsewhere: the host of each engine that is not on this one.
        ask: called with a host, a question and its arguments by name; returns that host's answer
            (:meth:`BoardsHere.look`), None if the host is lost.
    """

    def __init__(
        self, here: BoardsHere, elsewhere: Mapping[int, str], ask: Callable[..., Any]
    ) -> None:
        self.here = here
        self.elsewhere = elsewhere
        self._ask = ask

    def snapshot(self, numbers: Iterable[int]) -> dict[int, RankView]:
        """Look at some engines, at all those of a host at once."""
        found = dict.fromkeys(numbers, RankView())
        for host in {self.elsewhere.get(number) for number in found}:
            some = [number for number in found if self.elsewhere.get(number) == host]
            if host is None:
                found |= zip(some, self.here.snapshot(some), strict=True)
            elif rows := self._ask(host=host, question="snapshot", numbers=some):
                found |= zip(some, starmap(RankView, rows), strict=True)
        return found

    def has_lost(self, numbers: Collection[int]) -> bool:
        """Whether the latest run of a cell has lost communication on one of some engines.

        Each cell asks this at its end; a look at all of the ranks' states would take 1 ms.
        """
        positions = (self.here.boards.position(n) for n in numbers if n not in self.elsewhere)
        if any(position is not None and position.lost for position in positions):
            return True
        elsewhere = self.snapshot(n for n in numbers if n in self.elsewhere)
        return any(view.lost for view in elsewhere.values())

    def state(self, rank: int, number: int, members: list[int], alive: bool) -> RankState:
        """Return what a rank is doing, for a report.

        Each rank is queried separately. One in C code may take 2 s to report its position, and
        several of them would take longer than an agent has for its answer.

        Args:
            rank: its number now.
            number: its engine.
            members: the engine of each rank.
            alive: whether its process lives.
        """
        arguments: dict[str, Any] = {
            "rank": rank,
            "number": number,
            "members": members,
            "alive": alive,
        }
        host = self.elsewhere.get(number)
        if host is None:
            return self.here.state(**arguments)
        found = self._ask(host=host, question="state", **arguments)
        return RankState.from_dict(found) if found else RankState(rank, visible=False, alive=alive)

    def renew_standstill(self) -> None:
        """Suspend deadlines on all hosts: see :mod:`torch_mpi4py.board.standstill`."""
        standstill.renew(self.here.boards.directory)
        for host in set(self.elsewhere.values()):
            self._ask(host=host, question="standstill")

    def stack(self, number: int) -> list[str]:
        """Return the Python stack of an engine's main thread, from its cell inwards.

        A line for each call; none if it runs no cell, or does not answer within 2 s.
        """
        host = self.elsewhere.get(number)
        if host is None:
            return self.here.stack(number)
        return self._ask(host=host, question="stack", number=number) or []


def _moved(seen: Any, offset: float) -> Any:
    """Return a view or an event with its times shifted to another host's clock."""
    times = {name: getattr(seen, name) for name in _TIMES if name in seen._fields}
    return seen._replace(**{name: at + offset for name, at in times.items() if at})
