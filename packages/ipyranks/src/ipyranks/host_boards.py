"""What the ranks of a cluster show, on whichever host they run.

Those on this host are read from their boards' memory; for others the keeper asks the agent of their
host, which reads the boards there, also of ranks that are stuck. Times are this host's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from torch_mpi4py.board.event_board import Position
from torch_mpi4py.board.observing import RankBoards
from torch_mpi4py.board.rank_states import RankState


class HostBoards(RankBoards):
    """The boards of ranks on several hosts.

    Args:
        directory: where those of this host are.
        elsewhere: on which other host each engine is that is not on this one.
        ask: called with a host, a question and its arguments, has the host answer it; None
            where that host is lost.

    Attributes:
        elsewhere: as given.
    """

    def __init__(self, directory: Path, elsewhere: Mapping[int, str], ask: Callable[..., Any]):
        super().__init__(directory)
        self.elsewhere = elsewhere
        self._ask = ask

    def position(self, number: int) -> Position | None:
        if number not in self.elsewhere:
            return super().position(number)
        found = self._ask(self.elsewhere[number], "position", number=number)
        return None if found is None else Position(*found)

    def keeps_the_lock(self, number: int) -> bool:
        if number not in self.elsewhere:
            return super().keeps_the_lock(number)
        return bool(self._ask(self.elsewhere[number], "keeps_the_lock", number=number))

    def waits(self, numbers: Iterable[int]) -> dict[int, int | None]:
        found: dict[int, int | None] = dict.fromkeys(numbers)
        for host, some in self._by_host(found).items():
            if host is None:
                found |= super().waits(some)
            elif answer := self._ask(host, "waits", numbers=some):
                found |= zip(some, answer, strict=True)
        return found

    def last_movement(self, numbers: Iterable[int]) -> float:
        latest = 0.0
        for host, some in self._by_host(numbers).items():
            if host is None:
                latest = max(latest, super().last_movement(some))
            else:
                latest = max(latest, self._ask(host, "last_movement", numbers=some) or 0.0)
        return latest

    def state(
        self,
        rank: int,
        number: int,
        numbers: Mapping[int, int],
        *,
        alive: bool,
        ask_site: Callable[[], str],
    ) -> RankState:
        if number not in self.elsewhere:
            return super().state(rank, number, numbers, alive=alive, ask_site=ask_site)
        host = self.elsewhere[number]
        known = {str(first): now for first, now in numbers.items()}
        found = self._ask(host, "state", rank=rank, number=number, numbers=known, alive=alive)
        if found is None:
            return RankState(rank, visible=False, alive=alive)
        return RankState.from_dict(found)

    def _by_host(self, numbers: Iterable[int]) -> dict[str | None, list[int]]:
        """The engines of each host; None is this one."""
        hosts: dict[str | None, list[int]] = {}
        for number in numbers:
            hosts.setdefault(self.elsewhere.get(number), []).append(number)
        return hosts
