"""The loss of a host ends its cluster on all hosts, and a restart goes on with the other hosts."""

from __future__ import annotations

import contextlib
import re
import signal
import sys
import time
from collections.abc import Iterator

import pytest

from tests.cluster.conftest import Kernel, wait_until
from tests.hosts.clusters import HOSTS, LOST_WITHIN_S, a_kernel, await_nothing_left, left, prepare
from tests.hosts.testbed import BedClient


@pytest.fixture(autouse=True)
def nothing_left() -> None:
    """Take the place of what other tests here require after each of them: ours share a kernel."""


@pytest.fixture(scope="module")
def shared(bed: BedClient) -> Iterator[Kernel]:
    with a_kernel(bed) as kernel:
        yield kernel


@pytest.fixture
def kernel(bed: BedClient, shared: Kernel) -> Kernel:
    """A kernel with a cluster on two hosts that can train, whatever an earlier test has left."""
    bed.mend("h2")
    reach = "import socket; socket.create_connection(('h2', 22), 2)"
    reached = lambda: bed.execute("h1", [sys.executable, "-c", reach]).returncode == 0  # noqa: E731
    wait_until(reached, 30, "h2 can be reached")
    shared.start_cluster(4, f"{HOSTS}, replace=True")
    prepare(shared)
    return shared


def assert_names_the_host(error: str) -> None:
    """The error is about the host alone: no rank's death, no traceback, and what helps."""
    assert re.match(r"ClusterError: the cluster has ended: h2 was lost: ", error), error
    assert "cluster.restart() starts fresh ranks on other hosts" in error
    assert len(error.splitlines()) == 2, error


def assert_restarts_on_h1(kernel: Kernel) -> None:
    said = kernel.must("cluster.restart()").text()
    assert "Without h2" in said
    assert "2 fresh ranks" in said
    kernel.must("%%px\nimport socket\nassert socket.gethostname() == 'h1' and world_size == 2")
    kernel.must("cluster.init_process_group()")
    kernel.must("%%px\nx = torch.ones(100_000)\ndist.all_reduce(x)\nassert x[-1] == 2")


# Each rank trains by itself and writes down each step: both sides could go on for ever.
STEPS = """%%px --limit none
import time
with open(f"/tmp/steps-{rank}", "w") as steps:
    dist.barrier()
    while True:
        steps.write(f"{time.time()}\\n")
        steps.flush()
        time.sleep(0.01)
"""


def test_a_cut_cable_ends_the_cell_and_all_processes(bed: BedClient, kernel: Kernel) -> None:
    running = kernel.begin(STEPS)
    wrote = lambda: all(  # noqa: E731
        bed.execute("h2", ["cat", f"/tmp/steps-{rank}"]).stdout for rank in (2, 3)
    )
    wait_until(wrote, 30, "ranks 2 and 3 train")
    cut = time.time()
    bed.cut("h2")
    assert_names_the_host(kernel.finish(running, LOST_WITHIN_S).traceback)
    ended = time.time()
    # While the cable is cut: what is on h2 ends by its lease, and before the other side goes on.
    await_nothing_left(bed)
    for rank in (2, 3):
        steps = bed.execute("h2", ["tail", "-n", "1", f"/tmp/steps-{rank}"]).stdout
        # Virtual hosts have one clock for the time of day; other clocks began at other times.
        assert cut < float(steps) < ended
    assert_restarts_on_h1(kernel)


def test_a_cut_during_an_all_reduce(bed: BedClient, kernel: Kernel) -> None:
    """The messages are so large that MPI frees no rank that sends one."""
    running = kernel.begin("%%px\nx = torch.ones(100_000)\nwhile True:\n    dist.all_reduce(x)")
    before = bed.traffic("h2")[0]
    wait_until(lambda: bed.traffic("h2")[0] > before + 10**7, 30, "the ranks reduce")
    bed.cut("h2")
    assert_names_the_host(kernel.finish(running, LOST_WITHIN_S).traceback)
    assert_restarts_on_h1(kernel)
    await_nothing_left_on_h2(bed)


def await_nothing_left_on_h2(bed: BedClient) -> None:
    there = lambda: [it for it in left(bed) if it.startswith("h2")]  # noqa: E731
    wait_until(lambda: not there(), LOST_WITHIN_S, "nothing is left on h2", still=there)


@pytest.mark.parametrize("of", ["agent", "its sshd"])
def test_end_of_an_agent_is_reported(bed: BedClient, kernel: Kernel, of: str) -> None:
    """It ends while no cell runs; the next cell reports it."""
    ((agent, _),) = ((p, w) for p, w in bed.processes("h2").items() if "ipyranks.agent" in w)
    bed.kill(agent if of == "agent" else bed.parent(agent))
    await_nothing_left_on_h2(bed)
    assert_names_the_host(kernel.run("%px rank").traceback)
    assert_restarts_on_h1(kernel)


def test_paused_remote_host_loses_its_ranks(bed: BedClient, kernel: Kernel) -> None:
    """Its agent could not see its lease expire; the same happens on machines that sleep."""
    still = [*bed.processes("h2")]  # ranks, agent, MPI's daemon, and sshd between them and us
    assert len(still) > 4, bed.processes("h2")
    for pid in still:
        bed.kill(pid, signal.SIGSTOP)
    assert_names_the_host(kernel.run("%px dist.barrier()", LOST_WITHIN_S).traceback)
    assert_restarts_on_h1(kernel)
    for pid in still:
        # The first that wakes may end others before their turn comes: the agent its ranks.
        with contextlib.suppress(ProcessLookupError):
            bed.kill(pid, signal.SIGCONT)
    await_nothing_left_on_h2(bed)
    kernel.must("%%px\nassert comm.allreduce(1) == 2")


def test_paused_local_host_loses_remote_ranks(bed: BedClient, kernel: Kernel) -> None:
    """The agent on the other host had to end its ranks, and no other reason is reported."""
    running = kernel.begin("%%px\nwhile True:\n    dist.barrier()")
    (keeper,) = (pid for pid, words in bed.processes("h1").items() if "ipyranks.keeper" in words)
    bed.kill(keeper, signal.SIGSTOP)
    try:
        await_nothing_left_on_h2(bed)
    finally:
        bed.kill(keeper, signal.SIGCONT)
    assert_names_the_host(kernel.finish(running, LOST_WITHIN_S).traceback)
    assert_restarts_on_h1(kernel)


def test_a_cluster_stops_while_a_host_is_cut_off(bed: BedClient, kernel: Kernel) -> None:
    bed.cut("h2")
    kernel.must("cluster.stop()", LOST_WITHIN_S)
    assert not [it for it in left(bed) if it.startswith("h1")]
    await_nothing_left_on_h2(bed)
