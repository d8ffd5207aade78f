"""What lesson 06 predicts of an all-reduce holds on a network that is slow, between two hosts."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch_mpi4py import launch

from course_lib.teaching import cost
from tests.hosts.slow_links import GRADIENT_BYTES
from tests.hosts.testbed import BedClient

WITHIN = 0.2
LIMIT_S = 120
HEADERS = 1514 / 1448
"""A full frame on the wire to what it carries: Ethernet's, IP's and TCP's headers come on top."""
RATES = (1000, 100)  # Mbit/s
LATENCY_S = 0.01
SHORT_BYTES = 8192  # of float32, see remote_sums.MOST_NUMBERS of torch_mpi4py


def predicted(size: int, latency: float, bandwidth: float) -> float:
    """The seconds of an all-reduce of two ranks, as lesson 06 predicts them."""
    link = cost.Link(latency, bandwidth)
    names = ("recursive doubling", "ring")
    return min(cost.cost(name, 2, size).seconds(link) for name in names)


def measured(root: Path, hostfile: Path, *words: object, settings: tuple[str, ...] = ()) -> list:
    ranks = (sys.executable, "-m", "tests.hosts.slow_links", *map(str, words))
    one_each = ("--hostfile", str(hostfile), "--map-by", "ppr:1:node:oversubscribe", *settings)
    ended = subprocess.run(
        launch.mpiexec(2, *one_each, *ranks),
        cwd=root,
        env=launch.environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return json.loads(ended.stdout.strip().splitlines()[-1])


@pytest.fixture
def links(bed: BedClient) -> Iterator[BedClient]:
    """Return the test-bed; afterwards its links are quick again."""
    yield bed
    for host in ("h1", "h2"):
        bed.limit(host, None)
    bed.delay("h1", "h2", None)


def test_link_with_limited_bandwidth(root: Path, hostfile: Path, links: BedClient) -> None:
    found = measured(root, hostfile, "rates", *RATES)
    for rate, one in zip(RATES, found, strict=True):
        expected = predicted(GRADIENT_BYTES, 0, rate * 1e6 / 8)
        # At the higher rate the cores, which others use too, have to keep up.
        seconds = (statistics.median if rate == min(RATES) else min)(one["seconds"])
        assert seconds == pytest.approx(expected, rel=WITHIN), (rate, expected, one)
        # Each way the gradient crosses once: so it is predicted.
        for bytes_ in one["crossed"]:
            assert 1 <= bytes_ / GRADIENT_BYTES <= HEADERS * 1.05, (rate, one)


def test_link_with_added_latency(root: Path, hostfile: Path, links: BedClient) -> None:
    """A short all-reduce compares the calls in the same messages, a longer one before.

    Larger messages take longer than the model says: more than ten frames, some 14 kB, are too much
    for TCP's first window and wait for an answer, and those above 64 KiB also ask first. Each is a
    latency there and one back. And the relay takes a while for each frame: the largest message has
    seven. It takes longer on busy cores, so nothing may be slower than the messages between the
    all-reduces promise, nor quicker than the relay.
    """
    device = links.delay("h1", "h2", LATENCY_S)
    sizes = (4, 1024, 9000)
    settings = ("--mca", "btl_tcp_if_include", device)
    found = measured(root, hostfile, "late", *sizes, settings=settings)
    assert len(found) == 2 * len(sizes)
    for one, compared in zip(found, (False, True) * len(sizes), strict=True):
        apart = compared and one["bytes"] > SHORT_BYTES
        least, most = (
            predicted(one["bytes"], latency, float("inf"))
            + apart * predicted(8, latency, float("inf"))
            for latency in (LATENCY_S, min(one["latency"]))
        )
        assert (1 - WITHIN) * least < min(one["seconds"]) < (1 + WITHIN) * most, found
        # A frame has 66 bytes at least, and one goes each way. Other traffic, as of mpiexec with
        # its daemon, was 10 bytes a call on a busy machine.
        assert max(one["crossed"]) < 33, "all of it is to go by the slow network"
