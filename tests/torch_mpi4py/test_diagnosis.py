"""Each kind of hang is told from the others by what every rank was doing."""

from __future__ import annotations

import pytest
from torch_mpi4py.board.diagnosis import diagnose
from torch_mpi4py.board.event_board import Event
from torch_mpi4py.board.rank_states import RankState, describe, name_ranks

from tests.torch_mpi4py.calls import call


def waits(rank: int, kind: str, *earlier: Event, past=(), **details) -> RankState:
    details = {"site": f"cell 3, line {rank + 2}", "seconds": 2.0, **details}
    return RankState(rank, "waiting", (*earlier, call(kind, **details)), tuple(past))


def finished(rank: int, *past: Event, still_open=()) -> RankState:
    return RankState(rank, "finished", tuple(still_open), past)


def done(kind: str, **details) -> Event:
    return call(kind, outcome="ok", site="cell 3, line 1", **details)


def idle(kind: str, **details) -> Event:
    return call(kind, waiting=False, site="cell 3, line 1", **details)


CASES = {
    "all receive first": (
        [waits(0, "recv", peer=1), waits(1, "recv", peer=2), waits(2, "Recv", peer=0)],
        "Deadlock: ranks 0, 1 and 2 all receive first",
    ),
    "both send first": (
        [waits(0, "Send", peer=1), waits(1, "send", peer=0), finished(2)],
        "Deadlock: ranks 0 and 1 both send first",
    ),
    "a circle of both": (
        [waits(0, "send", peer=1), waits(1, "send", peer=2), waits(2, "recv", peer=0)],
        "Deadlock: ranks 0, 1 and 2 wait for each other in a circle",
    ),
    "a circle beside one who waits for it": (
        [waits(0, "recv", peer=1), waits(1, "recv", peer=2), waits(2, "recv", peer=1)],
        "Deadlock: ranks 1 and 2 both receive first",
    ),
    "a receive from oneself": (
        [waits(0, "recv", peer=0, tag=3), waits(1, "recv", peer=0)],
        "Rank 0 waits for itself in recv from rank 0, tag 3 [cell 3, line 2]: it cannot do the "
        "other half at the same time. Correct the source,",
    ),
    "a send to oneself": (
        [finished(0), waits(1, "Send", peer=1)],
        "Correct the destination, or use isend or irecv.",
    ),
    "no send": (
        [waits(0, "recv", peer=1), finished(1)],
        "Rank 0 waits in recv from rank 1 [cell 3, line 2], but rank 1 has not sent such a "
        "message and has finished. A receive needs a send.",
    ),
    "no send from anybody": (
        [waits(0, "recv"), finished(1), finished(2)],
        "recv from any rank [cell 3, line 2], but no rank has sent such a message.",
    ),
    "no receive": (
        [waits(0, "isend", peer=1), finished(1)],
        "Rank 0 waits in isend to rank 1 [cell 3, line 2], but rank 1 never receives it and has "
        "finished.",
    ),
    "tags": (
        [finished(0, done("send", peer=1, tag=5)), waits(1, "recv", peer=0, tag=6)],
        "The tags do not match: rank 0 sends to rank 1 with tag 5 [cell 3, line 1], but rank 1 "
        "receives with tag 6",
    ),
    "a message of another tag that was received is no mismatch": (
        [
            finished(0, done("send", peer=1, tag=5)),
            waits(1, "recv", peer=0, tag=6, past=[done("recv", peer=0, tag=5)]),
        ],
        "rank 0 has not sent such a message and has finished",
    ),
    "message against collective": (
        [waits(0, "recv", peer=1), waits(1, "barrier"), waits(2, "barrier")],
        "Rank 0 waits in recv from rank 1 [cell 3, line 2], but rank 1 is in barrier "
        "[cell 3, line 3]: the two wait for different things.",
    ),
    "collectives of different groups": (
        [
            waits(0, "all_reduce", ranks=(0, 1), group="the group of ranks 0 and 1"),
            waits(1, "barrier", ranks=(1, 2), group="the group of ranks 1 and 2"),
            waits(2, "barrier", ranks=(1, 2), group="the group of ranks 1 and 2"),
        ],
        "Rank 0 waits in all_reduce, in the group of ranks 0 and 1 [cell 3, line 2], but ranks 1 "
        "and 2 wait in barrier, in the group of ranks 1 and 2 [cell 3, line 3]. Ranks that share",
    ),
    "a new default group and the one before it": (
        [
            waits(0, "init_process_group", group="world"),
            waits(1, "all_reduce", group="default"),
            waits(2, "all_reduce", group="default"),
        ],
        "Rank 0 waits in init_process_group [cell 3, line 2], but ranks 1 and 2 wait in all_reduce "
        "[cell 3, line 3]. Ranks that share several groups",
    ),
    "skipped": (
        [waits(0, "Allreduce", site="here"), waits(1, "all_reduce", site="here"), finished(2)],
        "Rank 2 finished without the Allreduce in which ranks 0 and 1 wait [here].",
    ),
    "skipped in a sub-group": (
        [
            waits(0, "all_reduce", group="pair", ranks=(0, 2)),
            finished(1),
            finished(2),
        ],
        "Rank 2 finished without the all_reduce in which rank 0 waits [cell 3, line 2] of pair.",
    ),
    "not begun": (
        [waits(0, "barrier", site="here"), waits(1, "barrier", site="here"), RankState(2, "idle")],
        "Rank 2 is idle: it has not begun the cell in which ranks 0 and 1 wait in barrier [here]. "
        "Either it was not asked to run the cell, or the machine has been too busy to start it.",
    ),
    "not begun by two": (
        [waits(0, "barrier", ranks=(0, 1, 2)), RankState(1, "idle"), RankState(2, "idle")],
        "Ranks 1 and 2 are idle: they have not begun the cell in which rank 0 waits in barrier "
        "[cell 3, line 2]. Either they were not asked",
    ),
    "not begun by one, and skipped by another": (
        [waits(0, "barrier", site="here"), finished(1), RankState(2, "idle")],
        "Rank 1 finished without the barrier in which rank 0 waits [here].",
    ),
    "not begun by the sender": (
        [waits(0, "recv", peer=1), RankState(1, "idle")],
        "Rank 1 is idle: it has not begun the cell in which rank 0 waits in recv from rank 1 "
        "[cell 3, line 2].",
    ),
    "not begun by one who may send": (
        [waits(0, "recv"), finished(1), RankState(2, "idle")],
        "Rank 2 is idle: it has not begun the cell in which rank 0 waits in recv from any rank "
        "[cell 3, line 2].",
    ),
    "not begun by one that nobody waits for": (
        [waits(0, "recv", peer=1), finished(1), RankState(2, "idle")],
        "rank 1 has not sent such a message and has finished.",
    ),
    "different collectives": (
        [waits(0, "all_reduce"), waits(1, "broadcast", root=0)],
        "Different collectives on different ranks: rank 0 called all_reduce [cell 3, line 2], "
        "rank 1 called broadcast [cell 3, line 3].",
    ),
    "different collectives, of which one has returned": (
        [
            waits(0, "barrier", past=[done("all_reduce")]),
            finished(1, done("all_reduce"), done("gather", root=0)),
        ],
        "rank 0 called barrier [cell 3, line 2], rank 1 called gather [cell 3, line 1]",
    ),
    "an irecv that takes the message": (
        [finished(0, done("send", peer=1)), waits(1, "recv", idle("irecv", peer=0), peer=0)],
        "its earlier irecv from rank 0 [cell 3, line 1], which is never waited for, comes first",
    ),
    "an irecv nobody waits for": (
        [finished(0), finished(1, still_open=[idle("irecv", peer=0)])],
        "Rank 1 has started irecv from rank 0 [cell 3, line 1] and never waits for it.",
    ),
    "a breakpoint": (
        [
            waits(0, "barrier"),
            RankState(1, "at a breakpoint", site="cell 3, line 9"),
            RankState(2, "at a breakpoint", site="cell 3, line 9"),
        ],
        "Ranks 1 and 2 are at a breakpoint [cell 3, line 9]; rank 0 waits in barrier "
        "[cell 3, line 2].",
    ),
    "an endless loop": (
        [waits(0, "barrier"), RankState(1, "computing", site="cell 3, line 9")],
        "Rank 1 is still computing [cell 3, line 9]; rank 0 waits in barrier [cell 3, line 2].",
    ),
    "stuck in C": (
        [waits(0, "barrier"), RankState(1, "stuck", site="cell 3, line 9"), waits(2, "barrier")],
        "Rank 1 is stuck in C code [cell 3, line 9], where no signal reaches it; ranks 0 and 2 "
        "wait in barrier.",
    ),
    "in a loop that goes on after interrupts": (
        [waits(0, "barrier"), RankState(1, "catching", site="cell 3, line 9")],
        "Rank 1 catches every interrupt and goes on [cell 3, line 9]; rank 0 waits in barrier "
        "[cell 3, line 2]. Around that line, write `except Exception:`",
    ),
    "in a program that ignores interrupts": (
        [waits(0, "barrier"), RankState(1, "ignoring", site="cell 3, line 9")],
        "Rank 1 has replaced the handler of SIGINT, so an interrupt does not end the cell "
        "[cell 3, line 9]; rank 0 waits in barrier [cell 3, line 2].",
    ),
    "dead": (
        [waits(0, "recv", peer=1), RankState(1, "dead")],
        "Rank 1 has died; rank 0 waited in recv [cell 3, line 2].",
    ),
    "an error": (
        [waits(0, "barrier"), RankState(1, "raised", outcome="ValueError: wrong")],
        "Rank 1 raised an error (ValueError), so rank 0 never got out of barrier",
    ),
    "nothing": ([finished(0), RankState(1, "idle")], "No rank was waiting for another."),
}


@pytest.mark.parametrize("name", CASES)
def test_diagnosis(name):
    states, expected = CASES[name]
    assert expected in diagnose(states)


def test_report_has_one_line_for_a_rank():
    op = {"tag": 7, "shape": "(3,)", "dtype": "float32", "group": "pair"}
    assert describe(waits(1, "recv", peer=0, **op)) == (
        "waiting in recv from rank 0, tag 7, (3,) float32, in pair [cell 3, line 3], for 2.0 s"
    )
    assert describe(waits(1, "Sendrecv: recv"), seconds=False) == (
        "waiting in Sendrecv: recv from any rank [cell 3, line 3]"
    )
    assert describe(RankState(0, "raised", outcome="KeyError: 'x'")) == "raised KeyError: 'x'"
    assert describe(RankState(0, "computing", site="cell 3, line 9")) == (
        "computing [cell 3, line 9]"
    )
    assert [name_ranks(ranks) for ranks in ([2], [1, 0], [2, 0, 1])] == [
        "rank 2",
        "ranks 0 and 1",
        "ranks 0, 1 and 2",
    ]
