"""A notebook's cluster over two hosts does all that one on a single host does."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterator

import pytest

from tests.cluster.conftest import Kernel, wait_until
from tests.cluster.hangs import FREE_WITHIN_S, assert_trains
from tests.cluster.prompts import await_prompt, plain
from tests.hosts.clusters import HOSTS, a_kernel, bridges, prepare
from tests.hosts.testbed import BedClient


@pytest.fixture(autouse=True)
def nothing_left() -> None:
    """Take the place of what other tests here require after each of them: ours share a cluster."""


@pytest.fixture(scope="module")
def kernel(bed: BedClient) -> Iterator[Kernel]:
    # MPI would take the bridges for a network, in which each host reaches itself.
    with bridges(bed), a_kernel(bed) as kernel:
        prepare(kernel)
        yield kernel


LISTENING = """
import json, psutil
found = set()
for process in psutil.process_iter():
    name, words = process.name(), process.cmdline()
    ours = [word.removeprefix("ipyranks.") for word in words if word.startswith("ipyranks.")]
    if not name.startswith("prte"):
        name = ours[0] if ours else ""
    for connection in process.net_connections("inet") if name else ():
        if connection.status == psutil.CONN_LISTEN:
            found.add((name, connection.laddr.ip))
print(json.dumps(sorted(found)))
"""
# As docs/security.md says: MPI listens everywhere, since Open MPI cannot be told otherwise.
ANYWHERE = ("0.0.0.0", "::")
LISTENS = {
    "h1": {
        *((name, "127.0.0.1") for name in ("controller", "prterun")),
        *((name, "10.77.0.1") for name in ("controller", "engine")),
        *((name, address) for name in ("engine", "prterun") for address in ANYWHERE),
    },
    "h2": {
        ("prted", "127.0.0.1"),
        *((name, address) for name in ("engine", "prted") for address in ANYWHERE),
    },
}


@pytest.mark.parametrize("host", LISTENS)
def test_listening_addresses_on_each_host(bed: BedClient, kernel: Kernel, host: str) -> None:
    said = bed.execute(host, [sys.executable, "-c", LISTENING])
    assert {tuple(one) for one in json.loads(said.stdout)} == LISTENS[host], said.stderr


def test_the_table_names_the_hosts(kernel: Kernel) -> None:
    rows = kernel.banner.splitlines()[-4:]
    assert [row.split()[-1] for row in rows] == ["h1", "h1", "h2", "h2"]


def test_output_comes_in_rank_order(kernel: Kernel) -> None:
    text = kernel.must("%%px\nimport socket\nprint(rank, socket.gethostname())").text()
    assert re.findall(r"\d h\d", text) == ["0 h1", "1 h1", "2 h2", "3 h2"]


def test_a_hang_names_lines_on_both_hosts(kernel: Kernel) -> None:
    # Ranks 2 and 3 are on the other host: what one computes there, and where one waits, is told.
    hang = "%%px --limit 3\nif rank == 3:\n    while True:\n        pass\ndist.all_reduce(t)"
    error = kernel.run(hang).traceback
    assert re.search(r"^2 +waiting +all_reduce.* cell \d+, line 5", error, re.MULTILINE), error
    assert re.search(r"^3 +computing +cell \d+, line [34]", error, re.MULTILINE), error
    assert "All ranks are free again" in error
    assert_trains(kernel)


def test_a_group_lost_on_the_other_host_is_reported(kernel: Kernel) -> None:
    kernel.must("%%px\npair = dist.new_group([2, 3])")
    out = kernel.must("%%px\nif rank > 1: pair.abort()")
    assert "Lost: pair; make it again" in out.text()
    assert_trains(kernel)


def test_where_shows_stacks_of_both_hosts(kernel: Kernel) -> None:
    kernel.must("%%px --noblock\ndef outer():\n    comm.recv(source=0)\nif rank in (1, 3): outer()")
    code = "ranks = [s.rank for s in cluster.report().ranks if s.state != 'finished']; print(ranks)"
    wait_until(lambda: kernel.must(code).text() == "[1, 3]\n", 30, "ranks 1 and 3 wait")
    said = kernel.must("print(cluster.where(stacks=True))").text()
    for rank in (1, 3):
        first = rf"rank {rank}, innermost call last:\n  cell \d+, line 4, in <module>\n"
        assert re.search(first + r"  cell \d+, line 3, in outer\n", said), said
    kernel.must("cluster.interrupt()")
    assert kernel.run("%pxresult").error is not None
    assert_trains(kernel)


@pytest.mark.parametrize("stops", [0, 3], ids=["here", "elsewhere"])
def test_breakpoint_pauses_limits_on_both_hosts(kernel: Kernel, stops: int) -> None:
    kernel.must("%px comm.timeout = 2")
    code = f"%%px\nif rank == {stops}: breakpoint()\nprint(comm.allreduce(1))"
    running = kernel.begin(code)
    assert await_prompt(kernel) == f"rank {stops}> "
    time.sleep(4)  # what is tested is that this does not count
    kernel.client.input("p 40 + rank;; c")
    said = plain(kernel.finish(running))
    stands = rf"^{stops} +at a breakpoint +cell \d+, line 2$"
    assert re.search(stands, said, re.MULTILINE), said
    fours = [f"rank {rank} | 4\n" for rank in range(4)]
    fours.insert(stops, f"rank {stops} | {40 + stops}\n")
    assert said.endswith("".join(fours)), said
    kernel.must("%px comm.timeout = 60")


def test_c_code_on_another_host_is_reported_with_its_line(kernel: Kernel) -> None:
    cell = "import ctypes\nif rank == 2:\n    ctypes.PyDLL(None).sleep(30)\ncomm.barrier()"
    error = kernel.run(f"%%px --limit 2\n{cell}").traceback
    assert re.search(r"^2 +stuck +in C code.* cell \d+, line 4", error, re.MULTILINE), error
    assert_trains(kernel)  # the signal that frees ranks ends a sleep


def test_an_error_on_the_other_host_frees_this_one(kernel: Kernel) -> None:
    error = kernel.run(
        "%%px\nif rank == 2:\n    raise ValueError('on h2')\ncomm.barrier()"
    ).traceback
    assert "ValueError: on h2" in error
    assert_trains(kernel)


# The kernel waits meanwhile: whether rank 3 has begun is asked on its host.
LOOK = [
    sys.executable,
    "-c",
    "import glob, pathlib; from torch_mpi4py.board.observing import RankBoards\n"
    "(events,) = glob.glob('/tmp/rank-by-rank-*/*/events')\n"
    "print('busy' if RankBoards(pathlib.Path(events)).is_busy(3) else 'idle')",
]


def test_stop_button(bed: BedClient, kernel: Kernel) -> None:
    running = kernel.begin(
        "%%px\nif rank != 3:\n    dist.all_reduce(t)\nelse:\n    while True: pass"
    )
    wait_until(lambda: "busy" in bed.execute("h2", LOOK).stdout, 30, "rank 3 runs the cell")
    kernel.interrupt()
    error = kernel.finish(running, FREE_WITHIN_S).error
    assert error["ename"] == "KeyboardInterrupt"
    assert_trains(kernel)


def test_a_restarted_kernel_finds_its_cluster(kernel: Kernel) -> None:
    kernel.restart()
    assert "their variables are kept" in kernel.start_cluster(4, HOSTS)
    assert_trains(kernel)


def test_a_killed_rank_on_the_other_host(kernel: Kernel) -> None:
    # Rank 0 never comes to the all-reduce, so rank 3 dies in it.
    cell = "if rank == 0:\n    comm.recv(source=3)\ndist.all_reduce(torch.ones(1000))"
    kernel.must(f"%%px --noblock\n{cell}")
    waits = "print([s.rank for s in cluster.report().ranks if s.state == 'waiting'])"
    wait_until(lambda: kernel.must(waits).text() == "[0, 1, 2, 3]\n", 30, "all ranks wait")
    kernel.must("cluster.kill(3)")
    error = kernel.run("%pxresult").traceback
    assert "rank 3 died" in error
    assert re.search(
        r"^3 +dead +in all_reduce, SUM of 1000.* cell \d+, line 4", error, re.MULTILINE
    ), error
    kernel.must("cluster.shrink()")
    kernel.must("%%px\nassert survivors_train() == kept and world_size == 3")
    fresh = kernel.must("cluster.restart()").text()
    assert "4 fresh ranks" in fresh
    prepare(kernel)
