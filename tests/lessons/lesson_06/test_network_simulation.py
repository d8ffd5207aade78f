"""The simulated schedules against the formulas, and against closed forms where links are shared."""

from __future__ import annotations

import gc
import math

import pytest
import simpy
from rank_by_rank.lesson_06 import network_simulation
from rank_by_rank.lesson_06.extrapolation import Hierarchy
from rank_by_rank.lesson_06.network_simulation import (
    Level,
    Network,
    Traffic,
    simulate,
    simulated_table,
)

from course_lib.parallel.all_reduces import ALGORITHMS as SCHEDULES
from course_lib.teaching.cost import ALGORITHMS, Link, cost

LINK = Link(5e-6, 1e9, 4e9)
INSIDE, BETWEEN = Link(2e-6, 50e9), Link(11e-6, 12.5e9)
same = pytest.approx


def near(value: float):
    return same(value, rel=1e-9, abs=0)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_formulas_hold_without_contention_on_any_rank_count(algorithm):
    for ranks in (*range(1, 18), 31, 32, 33, 64):
        power = 2 ** int(math.log2(ranks))
        size = 4 * ranks * power * 3  # so that chunks are equal
        found = simulate(algorithm, Network(ranks, LINK), size)
        wanted = cost(algorithm, ranks, size)
        assert found.seconds == near(wanted.seconds(LINK)), ranks
        assert found.factor == near(1.0)
        assert sum(found.messages.values()) == wanted.messages_total
        assert max(found.most_at_once.values(), default=1) == 1


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_simulation_of_thousands_of_ranks(algorithm):
    size = 4 * 4096
    found = simulate(algorithm, Network(4096, LINK), size)
    assert found.seconds == near(cost(algorithm, 4096, size).seconds(LINK))
    assert found.extrapolated == (algorithm == "ring")
    assert gc.isenabled(), "it was off for the simulation alone"


def test_formula_is_off_by_a_chunk_if_chunks_differ():
    found = simulate("ring", Network(3, LINK), 4 * 4)  # chunks of 2, 1, 1 elements
    step = LINK.alpha + 8 * LINK.beta  # in each step somebody has the long one
    assert found.seconds == near(4 * step + 2 * 8 * LINK.gamma)
    assert found.factor > 1.0001


@pytest.mark.parametrize("ranks", [1, 2, 3, 7, 8])
def test_only_steps_without_work_are_skipped(ranks):
    for rank in range(ranks):
        listed = list(network_simulation._steps("naive", rank, ranks, 5, shortened=False))
        schedule = SCHEDULES["naive"].schedule(rank, ranks, 5)
        assert listed == [(i, s) for i, s in enumerate(schedule) if s.send or s.receive]


def test_a_shortened_ring_does_the_first_steps_of_both_halves(monkeypatch):
    monkeypatch.setattr(network_simulation, "_FIRST_STEPS", 3)
    for rank in range(5):
        schedule = SCHEDULES["ring"].schedule(rank, 5, 10)
        wanted = [(i, schedule[i]) for i in (0, 1, 2, 4, 5, 6)]
        assert list(network_simulation._ring_in_part(rank, 5, 10)) == wanted


NODES = Network.nodes(Hierarchy(8, 6, INSIDE, BETWEEN))


@pytest.mark.parametrize(
    "network",
    [
        Network(48, LINK),
        NODES,
        Network(48, INSIDE, NODES.levels, scattered=True),
        Network(48, LINK, (Level(4, Link(7e-6, 5e8)), Level(16, Link(9e-6, 1e8)))),
    ],
    ids=["flat", "nodes", "scattered", "two levels"],
)
def test_a_shortened_ring_takes_as_long_as_the_whole(monkeypatch, network):
    whole = simulate("ring", network, 4 * 48 * 100)
    monkeypatch.setattr(network_simulation, "RING_IN_FULL", 10)
    short = simulate("ring", network, 4 * 48 * 100)
    assert (whole.extrapolated, short.extrapolated) == (False, True)
    assert short.seconds == near(whole.seconds)
    assert sum(short.messages.values()) < sum(whole.messages.values())


def test_shared_card_slows_recursive_doubling_by_its_ranks():
    nodes, k, size = 8, 4, 2**20
    found = simulate(
        "recursive doubling", Network.nodes(Hierarchy(nodes, k, INSIDE, BETWEEN)), size
    )
    inside, between = math.log2(k), math.log2(nodes)
    shared = BETWEEN.shared_by(k)
    assert found.seconds == near(inside * INSIDE.seconds(size) + between * shared.seconds(size))
    assert found.most_at_once == {0: 1, 1: k}


def test_ring_sends_one_message_per_card_unless_scattered():
    cluster = Hierarchy(8, 4, INSIDE, BETWEEN)
    size = 4 * 32 * 1000
    found = simulate("ring", Network.nodes(cluster), size)
    assert found.seconds == near(cluster.flat_ring(size))
    assert found.most_at_once[1] == 1
    scattered = simulate("ring", Network.nodes(cluster, scattered=True), size)
    assert scattered.most_at_once[1] == 4
    assert scattered.seconds == near(cost("ring", 32, size).seconds(BETWEEN.shared_by(4)))


def test_messages_share_a_link_while_they_are_both_on_it():
    """Ranks on two cards send 1 and 3 bytes over one uplink of 1 byte/s: done at 2 and 4 s."""
    env = simpy.Environment()
    fast = Link(0.0, math.inf)
    network = Network(4, fast, (Level(2, Link(0.5, 1.0)),))
    traffic = Traffic(env, network)
    arrivals = {}
    for source, size in ((0, 1.0), (1, 3.0)):
        traffic.post((source,), source, source + 2, size)
        event = traffic.post((source,), source, source + 2, size)
        event.callbacks.append(lambda _, source=source: arrivals.update({source: env.now}))
    env.run()
    assert arrivals == {0: same(0.5 + 2.0), 1: same(0.5 + 4.0)}
    assert traffic.most_at_once == {0: 1, 1: 2}
    assert traffic.bytes == {1: 4.0}


def test_a_message_waits_for_both_sides():
    env = simpy.Environment()
    traffic = Traffic(env, Network(2, Link(1.0, 1.0)))
    traffic.post(("a",), 0, 1, 5.0)
    env.run()
    assert (env.now, traffic.never_met()) == (0, [("a",)])


def test_simulate_rejects_bad_arguments():
    with pytest.raises(ValueError, match="algorithm must be one of"):
        simulate("star", Network(4, LINK), 16)
    with pytest.raises(ValueError, match="no whole number of 4 byte"):
        simulate("ring", Network(4, LINK), 15)
    with pytest.raises(ValueError, match="no multiple of 256"):
        simulate("ring", Network(256, LINK), 4 * 257)
    with pytest.raises(ValueError, match="cannot consist of"):
        Network(8, LINK, (Level(2, LINK), Level(3, LINK)))
    with pytest.raises(ValueError, match="whole groups"):
        Network(9, LINK, (Level(2, LINK),), scattered=True)


def test_steady_seconds_rejects_steps_that_never_become_equal(monkeypatch):
    monkeypatch.setattr(network_simulation, "RING_IN_FULL", 10)
    clock = network_simulation._Clock(Network(16, LINK), 4)
    clock._ends = {index: index**2 for index in range(30)}
    with pytest.raises(ValueError, match="do not become equal"):
        clock.steady_seconds(15)


def test_table_marks_repeated_steps():
    text = simulated_table([simulate("ring", Network(256, LINK), 4 * 256)])
    assert "| ring (steps repeated) | 256 | 1,024 |" in text
    assert text.endswith("| 1.00 | 1 |")
    cards = Network(4, LINK, (Level(2, LINK),), scattered=True)
    assert "| ring (ranks scattered) | 4 |" in simulated_table([simulate("ring", cards, 64)])
