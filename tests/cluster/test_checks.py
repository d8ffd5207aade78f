"""The check of an exercise ends like any other cell, whatever the answer does.

The tests share one kernel and one cluster, and run in this order; one of them kills a rank.
"""

from __future__ import annotations

import ast
import textwrap
import time

import pytest
from torch_mpi4py.board.observing import RankBoards

from course_lib.teaching.lessons import exercise_cell
from course_lib.teaching.solution_marks import unmarked
from tests.cluster.hangs import FREE_WITHIN_S, IN_PLACE_WITHIN_S, RENEWED

pytestmark = pytest.mark.timeout(270)

DEADLINE_S = 3
RIGHT = "def total(comm):\n    return comm.allreduce(comm.rank + 1)"
# Answers that do not end; each notes when a rank has begun.
BEGIN = """
import pathlib
def total(comm):
    pathlib.Path({folder!r}, str(comm.rank)).touch()
"""
ENDLESS = BEGIN + "    while comm.rank == 1: pass\n    return comm.allreduce(1)"
ENDLESS_EVERYWHERE = BEGIN + "    while True: pass"
WAITS = BEGIN + "    comm.send(comm.recv(source=comm.rank ^ 1), dest=comm.rank ^ 1)"
SET_UP = """
import os, sys
if {root!r} not in map(os.path.abspath, sys.path):
    sys.path.insert(0, {root!r})
from course_lib.teaching import catalogue, check, checking, record
catalogue.PACKAGES.append("tests.teaching.own_exercises")
find, deadline = checking.find, {deadline}
checking.find = lambda id: find(id)._replace(deadline=deadline)
"""
# How long each freeing of ranks took, by the notebook's own clock.
TIME_THE_FREEING = """
import time
from ipyranks import cells, recovery
free, freed = cells.free, []
def timed_free(*args):
    began = time.perf_counter()
    stuck = free(*args)
    freed.append(time.perf_counter() - began)
    return stuck
cells.free = timed_free
"""


GROUPS = """
from datetime import timedelta
pair = dist.new_group([1, 2])
gloo_pair = dist.new_group([0, 1], backend="gloo", timeout=timedelta(seconds=30))
rows = [dist.new_group([0, 1]), dist.new_group([2, 3])]
"""


@pytest.fixture(scope="module")
def checks(kernel, root, traces):
    """The kernel, whose four ranks know an exercise and have variables."""
    (directory,) = traces.directories()
    kernel.events = directory / "events"
    kernel.must(SET_UP.format(root=str(root), deadline=DEADLINE_S))
    kernel.must(TIME_THE_FREEING)
    kernel.must("cluster.init_process_group()")
    kernel.must(f"%%px\nimport sys\nsys.path.insert(0, {str(root)!r})\ntreasure = 10 * rank")
    return kernel


def forget(kernel) -> None:
    """Let no exercise have been tried yet."""
    kernel.must("record._of_this_kernel.clear()")


def tried(kernel) -> list[str]:
    return ast.literal_eval(kernel.must("print(sorted(record._of_this_kernel))").text())


def works(kernel, treasures: list[int]) -> None:
    """The next cell runs at once, with what the ranks had."""
    began = time.monotonic()
    out = kernel.must("%px treasure, comm.allreduce(1)").text()
    assert time.monotonic() - began < FREE_WITHIN_S
    n = len(treasures)
    assert out == "".join(f"rank {rank} = {(own, n)}\n" for rank, own in enumerate(treasures))
    kernel.must(f"%%px\n{RIGHT}")
    assert "90.total: right." in kernel.must("check('90.total')").text()


def begins(kernel, answer: str, folder, wait_until) -> str:
    """Start a check, and return when all ranks are in the answer."""
    n = int(kernel.must("print(len(cluster))").text())
    kernel.must(f"%%px\n{answer.format(folder=str(folder))}")
    running = kernel.begin("check('90.total')")
    wait_until(lambda: len(list(folder.iterdir())) == n, IN_PLACE_WITHIN_S, "all ranks check")
    return running


def takes_too_long(kernel, answer: str, who: str, folder, wait_until) -> None:
    running = begins(kernel, answer, folder, wait_until)
    began = time.monotonic()
    out = kernel.finish(running)
    assert time.monotonic() - began < DEADLINE_S + FREE_WITHIN_S
    assert out.error is None, out.traceback
    too_long = f"your function did not finish within {DEADLINE_S} s on {who}. It was in line "
    assert f"90.total: not yet: {too_long}" in out.text()


def is_stopped(kernel, answer: str, folder, wait_until, presses: int = 1) -> None:
    """Press the stop button in the middle of a check."""
    kernel.must("deadline = 100")
    running = begins(kernel, answer, folder, wait_until)
    began = time.monotonic()
    for _ in range(presses):
        kernel.interrupt()
        time.sleep(0.1)
    out = kernel.finish(running)
    assert time.monotonic() - began < FREE_WITHIN_S
    assert out.traceback.startswith(
        "KeyboardInterrupt: the check of 90.total was interrupted on all ranks"
    )
    kernel.must(f"deadline = {DEADLINE_S}")


@pytest.mark.parametrize("answer", [ENDLESS, ENDLESS_EVERYWHERE, WAITS], ids=["1", "all", "wait"])
def test_stop_button(checks, answer, tmp_path, wait_until):
    forget(checks)
    is_stopped(checks, answer, tmp_path, wait_until)
    assert tried(checks) == ["90.total.tried"]
    works(checks, [0, 10, 20, 30])


def test_stop_button_pressed_repeatedly(checks, tmp_path, wait_until):
    is_stopped(checks, ENDLESS, tmp_path, wait_until, presses=10)
    works(checks, [0, 10, 20, 30])


def test_stop_button_while_c_code_holds_the_gil(checks, gate, tmp_path, wait_until):
    folder = tmp_path / "begun"
    folder.mkdir()
    inside = f"    if comm.rank == 1:{textwrap.indent(gate.cell, ' ' * 8)}    comm.barrier()"
    checks.must("deadline = 100")
    forget(checks)
    running = begins(checks, BEGIN + inside, folder, wait_until)
    boards = RankBoards(checks.events)
    wait_until(lambda: boards.keeps_the_lock(1), IN_PLACE_WITHIN_S, "rank 1 is in C code")
    checks.interrupt()
    out = checks.finish(running)
    assert out.traceback.startswith(
        "CheckError: the check of 90.total was interrupted on all ranks. Rank 1 does not end when "
        "interrupted and could not be freed. All other ranks are free again."
    )
    # The rank cannot be freed, and is given up after 1.5 s: long before the 6 s that are given to
    # a rank whose heart beats. 1.6 s from the press to the report on two quiet cores.
    seconds, at_most = ast.literal_eval(
        checks.must("print((freed[-1], recovery._FREE_WITHIN_S))").text()
    )
    assert seconds < at_most
    assert tried(checks) == ["90.total.tried"]
    assert "Rank 1 does not end" in checks.run("check('90.total')").traceback
    gate.open()
    wait_until(lambda: not boards.is_busy(1), IN_PLACE_WITHIN_S, "rank 1 is back")
    checks.must(f"deadline = {DEADLINE_S}")
    assert RENEWED in checks.must("%px None").text()
    works(checks, [0, 10, 20, 30])


def test_objects_to_recreate_are_listed(checks, tmp_path, wait_until):
    checks.must(f"%%px{GROUPS}")
    checks.must(f"%%px\n{ENDLESS.format(folder=str(tmp_path))}")
    out = checks.must("check('90.total')").text().splitlines()
    assert out[0].startswith("90.total: not yet: your function did not finish"), out
    again = "Make these again, because they used the old ones: gloo_pair, pair, rows."
    assert out[1:] == [f"{RENEWED}, and all variables are kept. {again}"]
    checks.must(f"%%px{GROUPS}")
    works(checks, [0, 10, 20, 30])


def test_endless_answer_is_stopped(checks, tmp_path, wait_until):
    takes_too_long(checks, ENDLESS, "ranks 0, 1, 2, 3", tmp_path, wait_until)
    works(checks, [0, 10, 20, 30])


def test_check_on_a_rank_says_where_it_belongs(checks):
    forget(checks)
    for id in ("90.total", "90.double"):
        know = "from course_lib.teaching import catalogue, check\ncatalogue.PACKAGES[1:] = [own]"
        cell = know.replace("own", "'tests.teaching.own_exercises'") + f"\ncheck('{id}')"
        said = checks.run(f"%%px\n{cell}").traceback
        belongs = f"{id} is checked from the notebook, not on a rank: run check in a cell without "
        assert f"CheckError: {belongs}%%px" in said
        assert "no cluster" not in said
    assert tried(checks) == []


def test_rank_death_in_the_answer_is_reported(checks):
    checks.must(
        "%%px\nimport os\ndef total(comm):\n    if comm.rank == 1: os.kill(os.getpid(), 9)\n"
        "    return comm.allreduce(1)"
    )
    began = time.monotonic()
    out = checks.run("check('90.total')")
    assert time.monotonic() - began < FREE_WITHIN_S
    assert out.traceback.startswith("rank 1 died: ")
    advice = "ClusterError: rank 1 has ended; cluster.shrink() continues with the others"
    assert checks.run("check('90.total')").traceback.startswith(advice)
    checks.must("cluster.shrink()")
    works(checks, [0, 20, 30])


def test_check_after_a_shrink(checks, tmp_path, wait_until):
    """Rank 1 was rank 2, and rank 2 was rank 3."""
    answer = BEGIN + "    while comm.rank == 2: pass\n    return 6"
    takes_too_long(checks, answer, "rank 2", tmp_path, wait_until)
    works(checks, [0, 20, 30])


def test_endless_lesson_answer_after_a_shrink(checks):
    """In lesson 12 the exercise is checked after a shrink, and one of the survivors stays away."""
    checks.must("deadline = 100")  # the first optimizer of a process imports for seconds
    checks.must(unmarked(exercise_cell("12.go_on")))
    assert "12.go_on: right." in checks.must("check('12.go_on')").text()
    checks.must(f"deadline = {DEADLINE_S}")
    checks.must("%%px\ndef go_on(*given):\n    while True: pass")
    out = checks.must("check('12.go_on')").text()
    assert out.startswith(f"12.go_on: not yet: your function did not finish within {DEADLINE_S} s")
    works(checks, [0, 20, 30])


def test_stop_button_after_a_shrink(checks, tmp_path, wait_until):
    is_stopped(checks, ENDLESS_EVERYWHERE, tmp_path, wait_until)
    works(checks, [0, 20, 30])
    error = checks.run("cluster.signal(2, [3])").error
    assert "the ranks are 0 to 2" in error["evalue"]


def test_one_rank_is_too_few(checks):
    """An answer that sends nothing would be right there."""
    checks.must("cluster.kill(1); cluster.kill(2)")
    checks.must("cluster.shrink()")
    checks.must("%%px\ndef total(comm):\n    return 1")
    few = "90.total cannot be checked: it needs at least 2 ranks, and the cluster has only 1; "
    then = ", then run the cell with your function again"
    forget(checks)
    error = checks.run("check('90.total')").error
    assert error["evalue"] == f"{few}start more with cluster.restart(){then}"
    checks.must("from ipyranks import start_cluster; start_cluster(1, replace=True)", within=100)
    error = checks.run("check('90.total')").error
    assert error["evalue"] == f"{few}start more with start_cluster(4, replace=True){then}"
    assert tried(checks) == []
    checks.must(unmarked(exercise_cell("10c.balanced_order")))  # it sends nothing
    assert "right." in checks.must("check('10c.balanced_order')").text()


# ---- where a person watches --------------------------------------------------------------------


@pytest.fixture
def watched(new_kernel, root):
    """A kernel without a cluster, as if a person watched."""
    kernel = new_kernel(watched=True)
    kernel.must(SET_UP.format(root=str(root), deadline=DEADLINE_S))
    return kernel


def test_slow_check_shows_progress_until_it_ends(watched):
    watched.must("import time\ndef double(x):\n    time.sleep(60)")
    printed = watched.must("check('90.double')").text()
    runs = f"90.double: checking; your function is stopped after {DEADLINE_S} s"
    shown, blank, said = printed.split("\r")
    assert (shown, blank) == (runs, " " * len(runs))
    too_long = f"your function did not finish within {DEADLINE_S} s"
    line = "It was in line 3: `time.sleep(60)`"
    assert said == f"90.double: not yet: {too_long}. {line} (does-not-finish)\n"
    watched.must("def double(x):\n    return 2 * x")
    assert watched.must("check('90.double')").text() == "90.double: right. 4 became 8.\n"


def test_stop_button_in_the_notebook(watched, tmp_path, wait_until):
    watched.must("deadline = 100")
    begun = f"    pathlib.Path({str(tmp_path)!r}, 'begun').touch()\n"
    watched.must(f"import pathlib\ndef double(x):\n{begun}    while True: pass")
    running = watched.begin("check('90.double')")
    wait_until(lambda: list(tmp_path.iterdir()), IN_PLACE_WITHIN_S, "the check runs")
    watched.interrupt()
    began = time.monotonic()
    out = watched.finish(running)
    assert time.monotonic() - began < FREE_WITHIN_S
    assert out.traceback == "KeyboardInterrupt: the check of 90.double was interrupted"
    assert tried(watched) == ["90.double.tried"]
    watched.must("def double(x):\n    return 2 * x")
    assert "90.double: right." in watched.must("check('90.double')").text()


def test_halves_of_surrogate_pairs_are_escaped(watched):
    """The kernel cannot send them, and would drop the whole text."""
    watched.must("def double(x):\n    print('\\ud800')\n    raise ValueError('\\ud801')")
    out = watched.must("check('90.double')")
    assert out.text("stderr") == ""
    assert out.text() == (
        "90.double: not yet: your function raised ValueError: \\ud801, called with x=4. It "
        "happened in line 3: `raise ValueError('\\ud801')` (it-raises)\n"
        "Your function printed:\n\\ud800\n"
    )


def test_exit_and_input_in_an_answer_do_not_end_the_kernel(watched):
    """``exit()`` would ask the notebook to end its kernel when the cell has ended."""
    for call in ("exit()", "quit()"):
        watched.must(f"def neighbours(rank, world_size):\n    {call}")
        said = watched.must("check('00.neighbours')").text()
        assert "raised RuntimeError: exit() would end the notebook's kernel, not your" in said, said
        assert f"line 2: `{call}`" in said
        assert watched.must("print(get_ipython().exit_now)").text() == "False\n"
    watched.must("def neighbours(rank, world_size):\n    return input()")
    asked = watched.client.execute("check('00.neighbours')", allow_stdin=False)
    assert "raised StdinNotImplementedError: raw_input was" in watched.finish(asked).text()
    asks_to_exit = "get_ipython().ask_exit.__func__.__name__"  # the shell's own method again
    assert watched.must(f"print({asks_to_exit})").text() == "ask_exit\n"
