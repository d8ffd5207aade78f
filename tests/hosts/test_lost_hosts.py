"""A host that is lost takes its ranks along; the others go on, and never do both sides."""

from __future__ import annotations

import re
import signal
import sys
import time
from collections.abc import Iterator

import pytest

from tests.cluster.conftest import Kernel, wait_until
from tests.cluster.hangs import FREE_WITHIN_S
from tests.hosts.clusters import LOST_WITHIN_S, a_kernel, await_nothing_left, left, prepare
from tests.hosts.testbed import BedClient


@pytest.fixture(autouse=True)
def nothing_left() -> None:
    """Take the place of what other tests here require after each of them: ours share a cluster."""


AWAIT_LOSS = """
import time
while cluster.status()["dead"] != [2, 3]:
    time.sleep(0.02)
"""
# Each rank trains by itself and writes down each step: the other side could go on for ever.
STEPS = """%%px --limit none
import time
with open(f"/tmp/steps-{rank}", "w") as steps:
    dist.barrier()
    while True:
        steps.write(f"{time.time()}\\n")
        steps.flush()
        time.sleep(0.01)
"""


@pytest.fixture(scope="module")
def cut(bed: BedClient) -> Iterator[tuple[Kernel, dict]]:
    """A cluster whose second host was cut off while each rank trained by itself."""
    with a_kernel(bed) as kernel:
        prepare(kernel)
        running = kernel.begin(STEPS)
        wrote = lambda: all(  # noqa: E731
            bed.execute("h2", ["cat", f"/tmp/steps-{rank}"]).stdout for rank in (2, 3)
        )
        wait_until(wrote, 30, "ranks 2 and 3 train")
        seen = {"cut": time.time()}
        bed.cut("h2")
        kernel.interrupt()
        seen["error"] = kernel.finish(running, LOST_WITHIN_S + FREE_WITHIN_S)
        kernel.must(AWAIT_LOSS, LOST_WITHIN_S)
        seen["lost"] = time.time()
        seen["shrink"] = kernel.must("cluster.shrink()").text()
        yield kernel, seen


def test_of_two_sides_of_a_cut_one_goes_on(bed: BedClient, cut: tuple[Kernel, dict]) -> None:
    kernel, seen = cut
    assert "ranks 2, 3 died; 2 ranks go on" in seen["shrink"]
    kernel.must("%%px\nassert survivors_train() == kept and world_size == 2")
    for rank in (2, 3):
        steps = bed.execute("h2", ["tail", "-n", "1", f"/tmp/steps-{rank}"]).stdout
        # Virtual hosts have one clock for the time of day; other clocks began at other times.
        assert seen["cut"] < float(steps) < seen["lost"]


def test_what_is_said_of_a_lost_host(cut: tuple[Kernel, dict]) -> None:
    kernel, _ = cut
    text = kernel.must("print(cluster.status()['lost_hosts'])").text()
    assert text.strip() == "['h2']"


def test_the_cable_is_plugged_in_again(bed: BedClient, cut: tuple[Kernel, dict]) -> None:
    kernel, _ = cut
    bed.mend("h2")
    reach = "import socket; socket.create_connection(('h2', 22), 2)"
    reached = lambda: bed.execute("h1", [sys.executable, "-c", reach]).returncode == 0  # noqa: E731
    wait_until(reached, 30, "h2 is back")
    kernel.must("%%px\nassert survivors_train() == kept and world_size == 2")
    kernel.must("cluster.restart()")
    prepare(kernel)


def test_a_cut_during_an_all_reduce(bed: BedClient, cut: tuple[Kernel, dict]) -> None:
    kernel, _ = cut
    running = kernel.begin("%%px\nx = torch.ones(100_000)\nwhile True:\n    dist.all_reduce(x)")
    before = bed.traffic("h2")[0]
    wait_until(lambda: bed.traffic("h2")[0] > before + 10**7, 30, "the ranks reduce")
    began = time.monotonic()
    bed.cut("h2")
    error = kernel.finish(running, LOST_WITHIN_S + FREE_WITHIN_S).traceback
    took = time.monotonic() - began
    bed.mend("h2")
    assert re.search(r"^2 +dead", error, re.MULTILINE), error
    assert "h2 is lost" in error
    assert took < LOST_WITHIN_S
    kernel.must("cluster.shrink()")
    kernel.must("%%px\nassert survivors_train() == kept and world_size == 2")


@pytest.mark.parametrize("of", ["agent", "its sshd"])
def test_an_agent_ends(bed: BedClient, cut: tuple[Kernel, dict], of: str) -> None:
    kernel, _ = cut
    kernel.must("cluster.restart()")
    prepare(kernel)
    ((agent, _),) = ((p, w) for p, w in bed.processes("h2").items() if "ipyranks.agent" in w)
    bed.kill(agent if of == "agent" else bed.parent(agent))
    kernel.must(AWAIT_LOSS, LOST_WITHIN_S)
    kernel.must("cluster.shrink()")
    kernel.must("%%px\nassert survivors_train() == kept and world_size == 2")


def test_a_host_that_stood_still(bed: BedClient, cut: tuple[Kernel, dict]) -> None:
    """Its agent could not see its lease end, and the first that it reads is what the keeper says.

    So do machines that sleep, or are moved while they run.
    """
    kernel, _ = cut
    kernel.must("cluster.restart()")
    prepare(kernel)
    still = [p for p, words in bed.processes("h2").items() if "python" in words.split()[0]]
    assert len(still) == 3, bed.processes("h2")
    for pid in still:
        bed.kill(pid, signal.SIGSTOP)
    kernel.must(AWAIT_LOSS, LOST_WITHIN_S)
    kernel.must("cluster.shrink()")
    for pid in still:
        bed.kill(pid, signal.SIGCONT)
    await_no_engines(bed)
    kernel.must("%%px\nassert survivors_train() == kept and world_size == 2")


def await_no_engines(bed: BedClient) -> None:
    engines = lambda: [  # noqa: E731
        words for words in bed.processes("h2").values() if "ipyranks.engine" in words
    ]
    wait_until(lambda: not engines(), LOST_WITHIN_S, "the ranks on h2 have ended", still=engines)


def test_this_host_stood_still(bed: BedClient, cut: tuple[Kernel, dict]) -> None:
    """The agent on the other host had to end its ranks; nobody looks for another reason."""
    kernel, _ = cut
    kernel.must("cluster.restart()")
    prepare(kernel)
    (keeper,) = (pid for pid, words in bed.processes("h1").items() if "ipyranks.keeper" in words)
    bed.kill(keeper, signal.SIGSTOP)
    try:
        await_no_engines(bed)
    finally:
        bed.kill(keeper, signal.SIGCONT)
    kernel.must(AWAIT_LOSS, LOST_WITHIN_S)
    error = kernel.run("%px kept").error["evalue"]
    assert "h2 is lost" in error
    assert "memory" not in error
    kernel.must("cluster.shrink()")
    kernel.must("%%px\nassert survivors_train() == kept and world_size == 2")


def test_a_cluster_ends_without_a_host_that_is_cut_off(
    bed: BedClient, cut: tuple[Kernel, dict]
) -> None:
    kernel, _ = cut
    kernel.must("cluster.restart()")
    bed.cut("h2")
    kernel.must("cluster.stop()", LOST_WITHIN_S)
    assert not [it for it in left(bed) if it.startswith("h1")]
    bed.mend("h2")
    await_nothing_left(bed)
