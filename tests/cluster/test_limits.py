"""A cell is judged by plain views of its ranks, so here without any."""

from __future__ import annotations

import math

import pytest
from ipyranks.boards import RankView
from ipyranks.limits import Limit, ShortWaits, Watch, last_movement

IN_CELL = RankView(running=True, run="this", began=100.0, waited=0.0, waited_at=100.0)
BEGAN = 100.0


def views(*ranks: RankView) -> dict[int, RankView]:
    return dict(enumerate(ranks))


def watch(limit: str, *ranks: RankView) -> Watch:
    return Watch(Limit.of(limit), "this", BEGAN, views(*ranks))


def test_the_limit_counts_from_when_the_last_rank_began() -> None:
    late = IN_CELL._replace(began=102.0)
    watched = watch("10", IN_CELL, IN_CELL)
    assert watched.soonest == 110
    assert watched.over_at(views(IN_CELL, late), [0, 1]) == 112
    assert watched.over_at(views(IN_CELL, late), [0]) == 110, "rank 1 has ended it"


def test_a_rank_in_an_earlier_run_has_five_seconds_to_begin() -> None:
    earlier = IN_CELL._replace(run="before", began=50.0)
    assert watch("10", IN_CELL).over_at(views(IN_CELL, earlier), [0, 1]) == 115
    assert watch("10", IN_CELL).over_at(views(IN_CELL, IN_CELL._replace(began=130.0)), [1]) == 115


def test_progress_limit_counts_from_the_latest_sign_of_progress() -> None:
    watched, moved = watch("10+", IN_CELL), views(IN_CELL._replace(moved=107.0))
    assert watched.over_at(views(IN_CELL), [0]) == 110
    assert watched.over_at(moved, [0]) == 117
    watched.note_printed(109.0, printed=5)
    watched.note_printed(120.0, printed=5)
    assert watched.over_at(moved, [0]) == 119
    assert last_movement(moved) == 107
    assert last_movement({}) == 0


def test_time_at_a_breakpoint_does_not_count() -> None:
    for limit, over_at in (("10", 140), ("10+", 145)):
        watched = watch(limit, IN_CELL)
        watched.leave_out(30.0, 135.0)
        assert watched.soonest == 140
        assert watched.over_at(views(IN_CELL), [0]) == over_at


@pytest.mark.parametrize(("share", "excused"), [(0.9, 9.0), (0.5, 0.0)])
def test_waiting_for_a_core_does_not_count(share: float, excused: float) -> None:
    watched = watch("10", IN_CELL, IN_CELL)
    now = views(IN_CELL._replace(waited=10 * share, waited_at=110.0), IN_CELL)
    watched.look_at_cores(110.0, now, [0, 1])
    assert watched.over_at(now, [0, 1]) == pytest.approx(110 + excused)
    assert watched.starved(now, [0, 1]) == {0: 10 * share, 1: 0.0}


def test_late_looks_do_not_hide_a_wait_for_a_core() -> None:
    """The notebook waits for a core, too: between its clock and its look at the ranks."""
    watched = Watch(
        Limit.of("2"), "this", BEGAN, views(IN_CELL._replace(waited=0.5, waited_at=100.6))
    )
    for now, waited, at in ((101.2, 1.0, 101.2), (102.2, 2.5, 102.8), (103.4, 3.05, 103.4)):
        seen = views(IN_CELL._replace(waited=waited, waited_at=at))
        watched.look_at_cores(now, seen, [0])
    assert watched.over_at(seen, [0]) > 105, "it has waited for nine tenths of the time"


def test_a_late_begin_and_waiting_for_a_core_both_extend_the_limit() -> None:
    watched = watch("2", IN_CELL, IN_CELL)
    for now, waited in ((101.0, 0.0), (102.0, 0.0), (103.0, 1.0), (104.0, 2.0)):
        late = IN_CELL._replace(began=102.0, waited=waited, waited_at=now)
        watched.look_at_cores(now, views(IN_CELL, late), [0, 1])
    assert watched.over_at(views(IN_CELL, late), [0, 1]) == 106


def test_computing_ranks_get_at_most_ten_times_the_limit() -> None:
    starved = IN_CELL._replace(waited=1000.0, waited_at=1100.0)
    watched = watch("10", IN_CELL)
    watched.look_at_cores(1100.0, views(starved), [0])
    assert watched.over_at(views(starved), [0]) == 200
    for at_rest, late in ((starved._replace(wait=3), [0]), (starved, [])):
        watched = watch("10", IN_CELL)
        watched.look_at_cores(1100.0, views(at_rest), late)
        assert watched.over_at(views(at_rest), late) == 110
        assert watched.starved(views(at_rest), late) == {}


def test_waiting_time_may_be_known_late_or_never() -> None:
    unknown = IN_CELL._replace(waited=None)
    watched = watch("10", unknown, unknown)
    now = views(IN_CELL._replace(waited=9.0), unknown)
    watched.look_at_cores(110.0, now, [0, 1])
    assert watched.over_at(now, [0, 1]) == 110
    assert watched.starved(now, [0, 1]) == {}


@pytest.mark.parametrize(
    ("died", "of_a_core", "patience"),
    [
        (False, {"looks": 10}, 0.5),
        (False, {"ran": 0.21}, 0.5),
        (False, {"ran": 0.2, "looks": 9}, 3.0),
        (True, {"looks": 10}, 3.0),
    ],
)
def test_unchanged_wait_counts_as_a_deadlock_after_a_while(died, of_a_core, patience) -> None:
    watched = watch("none", IN_CELL, IN_CELL)
    first, second, later = (
        views(IN_CELL, IN_CELL._replace(wait=1)),
        views(IN_CELL, IN_CELL._replace(wait=2)),
        views(IN_CELL, IN_CELL._replace(wait=2, **of_a_core)),
    )
    assert not watched.is_hopeless(101.0, first, [1], died)
    assert not watched.is_hopeless(101.0 + patience - 0.1, first, [1], died)
    assert not watched.is_hopeless(101.0 + patience + 0.1, second, [1], died), "another wait"
    assert not watched.is_hopeless(101.0 + 2 * patience, later, [1], died)
    assert watched.is_hopeless(101.2 + 2 * patience, later, [1], died)
    assert not watched.is_hopeless(120.0, later, [0, 1], died), "rank 0 computes"
    assert not watched.is_hopeless(150.0, later, [0, 1], died)
    assert math.isinf(watched.soonest)


def test_message_loop_has_short_waits() -> None:
    between, waits = IN_CELL._replace(moved=99.9), IN_CELL._replace(moved=99.9, wait=7)
    asked = ShortWaits(BEGAN)
    assert asked.are_over(100.0, views(between, between)) is None, "nobody happened to wait"
    assert asked.are_over(100.1, views(between, waits)) is None
    assert asked.are_over(100.2, views(waits, waits)) is None, "rank 1 still waits"
    assert asked.are_over(100.3, views(waits, waits._replace(wait=8))) is True


@pytest.mark.parametrize("wait", [7, None])
def test_long_or_missing_waits_are_not_a_message_loop(wait) -> None:
    rank = IN_CELL._replace(moved=99.9, wait=wait)
    asked = ShortWaits(BEGAN)
    assert asked.are_over(100.0, views(rank)) is None
    assert asked.are_over(100.4, views(rank)) is None
    assert asked.are_over(100.6, views(rank)) is False


def test_ranks_idle_for_half_a_second_are_not_a_message_loop() -> None:
    rank = IN_CELL._replace(moved=99.4, wait=7)
    assert ShortWaits(BEGAN).are_over(100.0, views(rank)) is False
