"""What a rank was doing follows from what was seen of it, on whatever host."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest
from torch_mpi4py.board.event_board import Event
from torch_mpi4py.board.hang_report import HangReport
from torch_mpi4py.board.rank_states import RankState, classify

from tests.torch_mpi4py.calls import call

WAITS = call("recv", peer=1, site="cell 3, line 2", seconds=2.0, ranks=(0, 1))
ENDED = call("all_reduce", waiting=False, seconds=1.0, outcome="ok", ranks=(0, 1))
FREED = WAITS._replace(outcome="RevokedError")
CELL = RankState(0, notebook=True, cell=3, seconds=3.0, site="cell 3, line 9")
OVER = replace(CELL, running=False)
PROGRAM = RankState(0, seconds=3.0, site="program.py:9")

CASES = {
    "waits": (replace(CELL, operations=(WAITS,)), "waiting"),
    "waits, and has been silent": (
        replace(CELL, operations=(WAITS,), silent=9.0, computed=9.0),
        "waiting",
    ),
    "computes": (CELL, "computing"),
    "computes while a call is open": (
        replace(CELL, operations=(WAITS._replace(waiting=False),)),
        "computing",
    ),
    "in C code that computes": (replace(CELL, silent=1.1, computed=0.3), "stuck"),
    "in C code that sleeps": (replace(CELL, silent=2.1, asleep=True), "stuck"),
    "without a core": (replace(CELL, silent=4.9), "computing"),
    "silent for long": (replace(CELL, silent=5.1), "stuck"),
    "has finished the cell": (OVER, "finished"),
    "has raised": (replace(OVER, outcome="ValueError: wrong", past=(ENDED,)), "raised"),
    "was freed": (replace(OVER, outcome="RevokedError: recv", past=(ENDED, FREED)), "waiting"),
    "was interrupted, not in a call": (replace(OVER, outcome="KeyboardInterrupt: "), "raised"),
    "has run no cell": (replace(OVER, cell=0, seconds=None), "idle"),
    "was not in the latest cell": (replace(OVER, cell=2, seconds=4.0), "idle"),
    "was in another run of the cell": (replace(OVER, run="one", seconds=4.0), "idle"),
    "is in the latest cell, of a notebook that counts anew": (
        replace(CELL, cell=2, seconds=2.0, operations=(WAITS,)),
        "waiting",
    ),
    "has finished the latest, of a notebook that counts anew": (
        replace(OVER, cell=2, seconds=2.0),
        "finished",
    ),
    "still runs an earlier cell": (replace(CELL, cell=2, operations=(WAITS,)), "waiting"),
    "died in a cell": (replace(CELL, alive=False, operations=(WAITS,)), "dead"),
    "died between cells": (replace(OVER, alive=False), "dead"),
    "a program that waits": (replace(PROGRAM, operations=(WAITS,)), "waiting"),
    "a program that ended well": (replace(PROGRAM, running=False, past=(ENDED,)), "finished"),
    "a program that ended well, without a call": (replace(PROGRAM, running=False), "finished"),
    "and its process, too": (
        replace(PROGRAM, running=False, alive=False, past=(ENDED,)),
        "finished",
    ),
    "a program that ended by an error": (
        replace(PROGRAM, running=False, outcome="RevokedError: recv", past=(FREED,)),
        "raised",
    ),
    "a program that was killed": (replace(PROGRAM, alive=False), "dead"),
    "nothing can be seen": (
        RankState(0, visible=False),
        "on another host, or its board cannot be read",
    ),
    "nothing can be seen, but it is known to be dead": (
        RankState(0, visible=False, alive=False),
        "dead",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_states(name: str) -> None:
    seen, expected = CASES[name]
    another = replace(OVER, rank=1, notebook=seen.notebook)
    state, _ = classify([seen, another])
    assert state.state == expected
    there = json.loads(json.dumps([asdict(seen), asdict(another)]))  # as another host sends it
    assert HangReport.of(map(RankState.from_dict, there)) == HangReport.of([seen, another])


def test_rank_reported_as_finished_has_begun() -> None:
    """The row and the sentence agree, with and without numbers of cells."""
    barrier = call("barrier", seconds=2.0, site="line 2", ranks=(0, 1))
    for cell in (3, 0):
        waits = replace(CELL, cell=cell, run="two", operations=(barrier,))
        ended = replace(OVER, rank=1, cell=cell, run="two")
        begins_late = replace(ended, run="one", seconds=5.0)
        found = HangReport.of([waits, ended])
        assert found.ranks[1].state == "finished"
        assert found.diagnosis.startswith("Rank 1 finished without the barrier")
        for late in (begins_late, replace(begins_late, run="", seconds=None)):
            found = HangReport.of([waits, late])
            assert found.ranks[1].state == "idle"
            assert found.diagnosis.startswith("Rank 1 is idle: it has not begun the cell in which")


def test_sites_of_computing_and_waiting_ranks() -> None:
    computes, waits = classify([CELL, replace(CELL, rank=1, operations=(WAITS,))])
    assert computes.site == "cell 3, line 9"
    assert waits.waits_in == WAITS


def world(**details) -> Event:
    return call(**{"kind": "send", "waiting": False, "outcome": "ok", **details})


@pytest.mark.parametrize(
    ("of_0", "of_1", "expected"),
    [
        ([world(peer=1)], [world(kind="recv", peer=0)], False),
        ([world(peer=1)], [], True),
        ([world(peer=1, group="pair")], [], False),
        ([world(kind="barrier", ranks=(0, 1))], [world(kind="barrier", ranks=(0, 1))], False),
        ([world(kind="barrier", ranks=(0, 1))], [], True),
        ([world(peer=1)], [world(kind="Probe", peer=0), world(kind="Recv", peer=0)], False),
        ([world(kind="monitored_barrier", ranks=(0, 1))], [], False),
    ],
)
def test_unmatched_messages_or_calls_mean_out_of_step(of_0, of_1, expected) -> None:
    seen = [replace(OVER, rank=rank, past=tuple(past)) for rank, past in enumerate([of_0, of_1])]
    assert HangReport.of(seen).is_out_of_step is expected


def test_calls_before_the_cell_do_not_count_as_out_of_step() -> None:
    queued = WAITS._replace(kind="all_reduce", waiting=False, peer=-1)
    mine, earlier = replace(OVER, operations=(queued,)), replace(OVER, operations=(queued,))
    earlier = replace(earlier, seconds=1.0)
    assert HangReport.of([mine]).is_out_of_step
    assert HangReport.of([mine]).is_settling
    assert not HangReport.of([earlier]).is_out_of_step
