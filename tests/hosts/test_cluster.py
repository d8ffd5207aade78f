"""A notebook's cluster over two hosts does all that one on a single host does."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import pytest

from tests.cluster.conftest import Kernel
from tests.cluster.hangs import FREE_WITHIN_S, assert_trains
from tests.hosts.clusters import HOSTS, a_kernel, prepare
from tests.hosts.testbed import BedClient


@pytest.fixture(autouse=True)
def nothing_left() -> None:
    """Take the place of what other tests here require after each of them: ours share a cluster."""


@pytest.fixture(scope="module")
def kernel(bed: BedClient) -> Iterator[Kernel]:
    with a_kernel(bed) as kernel:
        prepare(kernel)
        yield kernel


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


def test_c_code_on_another_host_is_told_with_its_line(kernel: Kernel) -> None:
    began = time.monotonic()
    cell = "%%px --limit 2\nimport ctypes\nif rank == 2:\n    ctypes.PyDLL(None).sleep(12)\ncomm.barrier()"
    error = kernel.run(cell).traceback
    assert re.search(r"^2 +stuck +in C code.* cell \d+, line 4", error, re.MULTILINE), error
    assert "cluster.kill(2)" in error
    kernel.must(f"import time; time.sleep(max(0, {began + 14} - time.monotonic()))")
    assert_trains(kernel)


def test_an_error_on_the_other_host_frees_this_one(kernel: Kernel) -> None:
    error = kernel.run(
        "%%px\nif rank == 2:\n    raise ValueError('on h2')\ncomm.barrier()"
    ).traceback
    assert "ValueError: on h2" in error
    assert_trains(kernel)


def test_the_stop_button(kernel: Kernel) -> None:
    running = kernel.begin(
        "%%px\nif rank != 3:\n    dist.all_reduce(t)\nelse:\n    while True: pass"
    )
    look = "[cluster.boards.is_busy(engine) for engine in cluster.engine_ids]"
    del look  # the kernel is busy: what the ranks do is seen from here
    time.sleep(1.0)  # no way to see it without the kernel; a stop before the start is fine, too
    kernel.interrupt()
    error = kernel.finish(running, FREE_WITHIN_S).error
    assert error["ename"] == "KeyboardInterrupt"
    assert_trains(kernel)


def test_a_restarted_kernel_finds_its_cluster(kernel: Kernel) -> None:
    kernel.restart()
    assert "their variables are kept" in kernel.start_cluster(4, HOSTS)
    assert_trains(kernel)


def test_a_killed_rank_on_the_other_host(kernel: Kernel) -> None:
    kernel.must("import threading; threading.Timer(1.0, cluster.kill, [3]).start()")
    cell = "%%px\nx = torch.ones(1000)\nwhile True:\n    dist.all_reduce(x)"
    error = kernel.run(cell).traceback
    assert re.search("RankFailedError: .*rank 3 died", error), error
    kernel.must("cluster.shrink()")
    kernel.must("%%px\nassert survivors_train() == kept and world_size == 3")
    fresh = kernel.must("cluster.restart()").text()
    assert "4 fresh ranks" in fresh
    prepare(kernel)
