"""Whatever hangs, the stop button and a restart of the kernel cost nothing.

The tests share one kernel and one cluster, and run in this order; the last ones kill its ranks.
"""

from __future__ import annotations

import re
import time

import pytest
from torch_mpi4py.board.observing import RankBoards

from tests.cluster.hangs import (
    CASES,
    FREE_WITHIN_S,
    IN_PLACE_WITHIN_S,
    RENEWED,
    STUCK_FOR_GOOD,
    assert_trains,
    begin,
    check,
    rows_of,
)

pytestmark = pytest.mark.timeout(270)


def press(hangs, running: str, *pauses: float):
    """Press the stop button, and again after each pause; return the cell's output."""
    hangs.interrupt()
    for pause in pauses:
        time.sleep(pause)
        hangs.interrupt()
    return hangs.finish(running)


@pytest.mark.parametrize("name", CASES)
def test_stop_button(hangs, name, wait_until):
    case = CASES[name]
    running = case.begin(hangs, wait_until)
    began = time.monotonic()
    out = press(hangs, running)
    assert out.error["ename"] == "KeyboardInterrupt"
    assert "the cell was interrupted on all ranks" in out.traceback
    check(case, hangs, out, time.monotonic() - began)


# From before the ranks are asked what they do, to after the report has been shown.
IMPATIENT = {"at once": [0.01], "while freed": [0.3], "thrice": [0.1] * 3, "on and on": [0.05] * 20}


@pytest.mark.parametrize("pauses", IMPATIENT.values(), ids=IMPATIENT)
def test_stop_button_pressed_repeatedly(hangs, pauses, wait_until):
    case = CASES["skipped"]
    running = case.begin(hangs, wait_until)
    began = time.monotonic()
    out = press(hangs, running, *pauses)
    assert out.error["ename"] == "KeyboardInterrupt"
    assert out.traceback.startswith("KeyboardInterrupt: the cell was interrupted on all ranks\n")
    assert out.text("stderr") == ""
    check(case, hangs, out, time.monotonic() - began)


@pytest.mark.parametrize("name", CASES)
def test_restart_of_the_kernel(hangs, name, wait_until):
    case = CASES[name]
    before = hangs.must("print([rank.pid for rank in cluster.ranks])").text()
    case.begin(hangs, wait_until)
    hangs.restart(now=True)  # otherwise it is interrupted first, which is the stop button
    said = hangs.start_cluster(4)
    assert RENEWED in said or (not case.renews and "Lost: pair; make it again" in said)
    assert "4 ranks found running; their variables are kept" in said
    assert hangs.must("print([rank.pid for rank in cluster.ranks])").text() == before
    assert_trains(hangs)


def test_hang_after_one_rank_destroyed_the_default_group(hangs):
    """All ranks decide together what is recreated."""
    hangs.must("%px if rank == 1: dist.destroy_process_group()")
    began = time.monotonic()
    out = hangs.run("%%px --limit 1\nif rank == 0: comm.recv(source=1)")
    assert time.monotonic() - began < FREE_WITHIN_S
    assert out.error["ename"] == "HangError"
    assert RENEWED in out.text()
    assert_trains(hangs)
    hangs.must("%px if rank == 2: dist.destroy_process_group()")
    hangs.must("cluster.reset_communication()")
    assert_trains(hangs)


PRESS_WHEN = """
import os, signal, sys, threading, time

def calls():
    frame = sys._current_frames()[threading.main_thread().ident]
    while frame is not None:
        yield frame.f_code.co_name
        frame = frame.f_back

def press_when(condition, times):
    while not condition():
        time.sleep(0.001)
    for _ in range(times):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.05)

def press(condition, times=1):
    threading.Thread(target=press_when, args=(condition, times), daemon=True).start()
"""


def test_stop_during_a_start_that_finds_the_ranks_or_a_restart(hangs, wait_until):
    CASES["skipped"].begin(hangs, wait_until)
    hangs.restart(now=True)
    hangs.must(PRESS_WHEN)
    # NumPy cannot be imported again in a process in which its import was interrupted.
    hangs.must("from ipyranks import start_cluster; assert 'numpy' not in sys.modules")
    hangs.must("press(lambda: 'numpy._core._multiarray_umath' in sys.modules)")
    out = hangs.run("start_cluster(4)")
    interrupted = "KeyboardInterrupt: start_cluster was interrupted; the ranks keep their variables"
    assert out.traceback == interrupted
    assert "4 ranks found running; their variables are kept" in hangs.start_cluster(4)
    assert_trains(hangs)

    hangs.must("press(lambda: 'users_names' in calls())")
    hangs.must("cluster.signal(signal.SIGSTOP, [1])")
    out = hangs.run("cluster.restart()")
    hangs.must("cluster.signal(signal.SIGCONT, [1])")
    assert out.traceback == (
        "KeyboardInterrupt: the restart was interrupted; the ranks keep their variables"
    )
    assert_trains(hangs)


def all_stuck(hangs, cell: str, ranks: int, wait_until) -> None:
    """Start a cell and wait until no rank of ``ranks`` shows a heartbeat any more."""
    begin(hangs, cell, wait_until, stuck=range(ranks))


def test_restart_of_the_kernel_while_all_ranks_are_stuck_in_c(hangs, gate, wait_until):
    before = hangs.must("print([rank.pid for rank in cluster.ranks])").text()
    all_stuck(hangs, gate.cell, 4, wait_until)
    hangs.restart(now=True)
    said = hangs.start_cluster(4)
    advice = (
        "Ranks 0, 1, 2, 3 do not end when interrupted and could not be freed. Wait until they come "
        "back by themselves, with all variables, or call cluster.restart() for fresh ranks."
    )
    assert advice in said
    assert "4 ranks found running; their variables are kept" in said
    assert hangs.run("%px kept").error["evalue"] == advice
    gate.open()
    boards = RankBoards(hangs.events)
    wait_until(
        lambda: not any(map(boards.is_busy, range(4))), IN_PLACE_WITHIN_S, "the ranks come back"
    )
    assert (
        hangs.must("%px kept").text().endswith("".join(f"rank {r} = {r * 11}\n" for r in range(4)))
    )
    assert hangs.must("print([rank.pid for rank in cluster.ranks])").text() == before
    assert_trains(hangs)


def test_a_rank_stuck_in_c(hangs, wait_until):
    running = begin(hangs, STUCK_FOR_GOOD, wait_until, waiting=[0, 2, 3], stuck=[1])
    began = time.monotonic()
    out = press(hangs, running, 0.2, 0.2)
    assert time.monotonic() - began < FREE_WITHIN_S
    assert out.traceback.startswith("KeyboardInterrupt: the cell was interrupted, but rank 1 did")
    assert rows_of(out.traceback)[1].startswith("stuck    in C code, where no signal reaches it")
    assert re.search(r"Rank 1 is stuck in C code \[cell \d+, line 4\]", out.traceback)
    advice = (
        "cluster.kill(1) and cluster.shrink() to continue with the others and their variables, or "
        "cluster.restart() for fresh ranks"
    )
    assert advice in out.traceback.splitlines()[-1]
    assert advice in hangs.run("%px kept").error["evalue"]

    hangs.restart(now=True)
    said = hangs.start_cluster(4, "init_process_group=True")
    assert "4 ranks found running; their variables are kept" in said
    assert advice in said
    assert hangs.must("print(cluster.client[3]['kept'])").text() == "33\n"
    assert advice in hangs.run("%px kept").error["evalue"]

    hangs.must("cluster.kill(1)")
    assert "with new numbers" in hangs.must("cluster.shrink()").text()
    out = hangs.must("%px rank, kept, comm.allreduce(1)").text()  # and nothing is renewed again
    assert out == "rank 0 = (0, 0, 3)\nrank 1 = (1, 22, 3)\nrank 2 = (2, 33, 3)\n"


def test_reports_after_a_shrink_have_the_new_numbers(hangs):
    """Rank 1 was rank 2, and rank 2 was rank 3."""
    out = hangs.run("%%px --limit 5\nif rank > 0:\n    dist.recv(t, src=3 - rank)")
    assert re.search(r"Deadlock: ranks 1 and 2 both receive first \[cell", out.error["evalue"])
    hangs.must("%px comm.timeout = 5")
    out = hangs.run(
        "%%px\ncaught = None\ntry:\n    comm.recv(source=(rank + 1) % 3)\n"
        "except Exception as error:\n    caught = str(error)\ncaught"
    )
    assert out.text().count("Deadlock: ranks 0, 1 and 2 all receive first") == 3
    assert "  rank 2: waiting in recv from rank 0, pickle" in out.text()


PRESS = """
import os, signal, sys, threading, time

def waits_in_shrink():
    frame, names = sys._current_frames()[threading.main_thread().ident], set()
    while frame is not None:
        names.add(frame.f_code.co_name)
        frame = frame.f_back
    return {"shrink", "wait"} <= names

def press_while_it_waits():
    while not waits_in_shrink():
        time.sleep(0.002)
    os.kill(os.getpid(), signal.SIGINT)

ask = cluster.keeper.ask

def ask_and_press(operation, **content):
    if operation != "shrunk":
        return ask(operation, **content)
    os.kill(os.getpid(), signal.SIGINT)
    answer = ask(operation, **content)
    os.kill(os.getpid(), signal.SIGINT)
    return answer
"""
INTERRUPTED = (
    "KeyboardInterrupt: the shrink was interrupted; nothing is lost, and the next "
    "cluster.shrink() continues it"
)
TOO_LATE = (
    "KeyboardInterrupt: the ranks had already finished; only the rest of this cell was interrupted"
)


def test_stop_while_a_shrink_waits_for_a_rank(hangs):
    """The process of the last of three ranks is stopped, so that it does not come."""
    hangs.must(PRESS)
    hangs.must("cluster.kill(0); cluster.signal(signal.SIGSTOP, [2])")
    for _ in range(2):  # the second time the shrink of the first is still under way
        hangs.must("threading.Thread(target=press_while_it_waits, daemon=True).start()")
        out = hangs.run("cluster.shrink()")
        assert out.traceback == INTERRUPTED
        assert out.text() + out.text("stderr") == ""
        said = hangs.run("%px kept").error["evalue"]
        assert said.startswith("rank 0 has ended; cluster.shrink() continues with the others")
    hangs.must("cluster.signal(signal.SIGCONT, [2])")
    said = hangs.must("cluster.shrink()").text()
    assert "2 ranks go on" in said
    assert "rank 0  was rank 1\nrank 1  was rank 2\n" in said
    out = hangs.must("%px rank, kept, comm.allreduce(1)").text()
    assert out == "rank 0 = (0, 22, 2)\nrank 1 = (1, 33, 2)\n"


def test_stop_after_a_shrink(hangs):
    """It is too late to stop the shrink then, and not everything is recorded yet."""
    hangs.must("cluster.kill(0)")
    hangs.must("cluster.keeper.ask = ask_and_press; went_on = False")
    out = hangs.run("cluster.shrink()\nwent_on = True")
    hangs.must("cluster.keeper.ask = ask")
    assert "1 rank goes on" in out.text()
    assert out.traceback == TOO_LATE
    assert hangs.must("print(went_on, len(cluster))").text() == "False 1\n"
    out = hangs.must("%px rank, kept, comm.allreduce(1)").text()
    assert out == "rank 0 = (0, 33, 1)\n"
    assert "there is nothing to shrink" in hangs.must("cluster.shrink();").text()


def test_start_replaces_ranks_that_are_all_stuck_in_c(hangs, gate, traces, wait_until):
    (directory,) = traces.directories()
    assert hangs.events == directory / "events"
    hangs.must(PRESS_WHEN + "press(lambda: 'await_ready' in calls(), times=5)")
    out = hangs.run("cluster.restart()")
    assert out.traceback == (
        "KeyboardInterrupt: the restart was interrupted; start_cluster() starts fresh ranks"
    )
    assert out.text() + out.text("stderr") == ""
    assert traces.left() == []
    assert "4 ranks ready in " in hangs.start_cluster(4)
    (directory,) = traces.directories()
    hangs.events = directory / "events"
    all_stuck(hangs, gate.cell, 4, wait_until)
    hangs.restart(now=True)
    assert "do not end when interrupted and could not be freed" in hangs.start_cluster(4)
    said = hangs.must("cluster.restart()", within=100).text()
    assert "4 fresh ranks in " in said
    assert "lost: everything on ranks 0, 1, 2, 3, which no longer answered" in said
    assert hangs.must("%px comm.allreduce(1)").text().count(" = 4\n") == 4


def test_px_settings_survive_a_shrink_and_a_restart(hangs):
    """The result of a non-blocking cell does not: its ranks are gone or have new numbers."""
    for way in ("cluster.kill(3); cluster.shrink()", "cluster.restart()"):
        hangs.must("%%px --noblock\nrank")
        assert "rank 2 = 2\n" in hangs.must("%pxresult").text()
        hangs.must("%pxconfig --signal-on-interrupt NONSENSE")
        hangs.must(way, within=100)
        assert "NONSENSE: give a signal" in hangs.run("%px rank").error["evalue"]
        assert "not yet been used" in hangs.run("%pxresult").text("stderr")
        hangs.must("%pxconfig --signal-on-interrupt SIGINT")
    assert hangs.must("%px comm.allreduce(1)").text().count(" = 4\n") == 4


def test_start_after_a_death_reports_lost_variables(hangs):
    hangs.must("cluster.kill(1)")
    hangs.restart(now=True)
    said = hangs.start_cluster(4)
    assert "not reused: rank 1 has ended. All variables on its ranks are lost." in said
    assert "4 ranks ready in " in said
    hangs.must("cluster.stop()")
    said = hangs.start_cluster(2)
    assert "not reused" not in said
    assert "2 ranks ready in " in said
