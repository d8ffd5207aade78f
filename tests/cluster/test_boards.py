"""Ranks of other hosts are seen as those of this one, by the notebook's clock."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ipyranks.boards import Boards, BoardsHere, RankView
from torch_mpi4py.board.event_board import Event
from torch_mpi4py.board.rank_states import RankState

AHEAD_S = 1000.0  # the other host's clock
SEEN = RankView(True, "run", 5.0, 1, 7, 6.0, False, 0.5, 5.5, 0.25, 9, 2)
EVENT = Event(1, "recv", "comm", 1, -1, 0, 8, "int32", "(2,)", 5.0, None, "", "", True, (0, 1), 5.5)


class Shows(BoardsHere):
    """Ranks that show the same at any time, by a clock of their host's."""

    def __init__(self, ahead: float) -> None:
        super().__init__(Path("nowhere"), lambda *_: None)
        self._ahead = ahead

    def _view(self, number: int) -> RankView:
        if number == 3:
            return RankView()
        return SEEN._replace(began=SEEN.began + self._ahead, moved=SEEN.moved + self._ahead)

    def state(self, rank: int, number: int, members: list[int], alive: bool) -> RankState:
        event = EVENT._replace(start=5.0 + self._ahead, waited_from=5.5 + self._ahead)
        return RankState(rank, alive=alive, operations=(event,), past=(event,))


def by_json(there: BoardsHere) -> Any:
    """How a host's agent is asked."""

    def ask(host: str, **asked: Any) -> Any:
        if host == "lost":
            return None
        answer = there.look(offset=-AHEAD_S, **json.loads(json.dumps(asked)))
        return json.loads(json.dumps(answer))

    return ask


def test_remote_views_and_states_equal_local_ones() -> None:
    boards = Boards(Shows(0.0), {2: "h2", 3: "h2", 4: "lost"}, by_json(Shows(AHEAD_S)))
    seen = boards.snapshot([4, 2, 0, 3])
    assert list(seen) == [4, 2, 0, 3]
    assert seen[0] == seen[2] == SEEN
    assert seen[3] == seen[4] == RankView()
    members = [0, 2, 4]
    states = [boards.state(rank, engine, members, rank != 1) for rank, engine in enumerate(members)]
    assert states[1] == RankState(1, alive=False, operations=(EVENT,), past=(EVENT,))
    assert states[1].operations == states[0].operations
    assert states[2] == RankState(2, visible=False)


def test_rank_without_board_is_not_visible(tmp_path: Path) -> None:
    boards = Boards(BoardsHere(tmp_path, lambda *_: None), {}, by_json(Shows(0.0)))
    assert boards.snapshot([0]) == {0: RankView()}
    assert boards.state(0, 0, [0], True) == RankState(0, visible=False)
