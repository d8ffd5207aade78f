"""Whatever hangs, a notebook says why, frees the ranks, and keeps the variables.

Every case runs in one and the same cluster; after each the cluster has to train real digits
exactly as one process does.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import textwrap
import threading
import time

import pytest
from torch_mpi4py.board.event_board import OTHER_GROUP
from torch_mpi4py.board.hang_report import HangReport
from torch_mpi4py.board.main_thread import SILENT_S
from torch_mpi4py.board.observing import RankBoards

from tests.cluster.hangs import (
    CASES,
    FREE_WITHIN_S,
    IN_PLACE_WITHIN_S,
    LIMIT_S,
    MISMATCHES,
    RENEWED,
    STUCK_FOR_GOOD,
    assert_trains,
    begin,
    check,
    limit_passed,
    rows_of,
)

pytestmark = pytest.mark.timeout(270)


@pytest.mark.parametrize("name", CASES)
def test_limit_ends_a_hanging_cell(hangs, name, wait_until):
    case = CASES[name]
    running = case.begin(hangs, wait_until, f" --limit {LIMIT_S}")
    began = time.monotonic()
    with limit_passed(hangs):
        out = hangs.finish(running)
    seconds = time.monotonic() - began
    assert out.error["ename"] == "HangError"
    assert "the cell did not finish within its limit of 60 s" in out.error["evalue"]
    assert "All ranks are free again." in out.traceback
    assert "%%px --limit 300, or cluster.limit = 300 for all cells" in out.traceback
    check(case, hangs, out, seconds)


def test_one_rank_raises_and_the_others_are_freed_at_once(hangs):
    began = time.monotonic()
    out = hangs.run("%%px\nif rank == 2:\n    raise ValueError('mine')\ncomm.allreduce(1)")
    assert time.monotonic() - began < FREE_WITHIN_S
    assert out.error["ename"] == "RemoteCellError"
    assert out.error["evalue"] == "rank 2: ValueError: mine"
    assert out.traceback.startswith("rank 2 raised:\n")
    last = out.traceback.splitlines()[-1]
    assert re.fullmatch(
        r"ranks 0, 1, 3: waiting in allreduce, pickle \[cell \d+, line 4\]; freed", last
    )
    assert RENEWED in out.text()
    assert_trains(hangs)


def test_one_rank_raises_before_the_group_is_made(hangs):
    hangs.must("%px dist.destroy_process_group()")
    make = "dist.init_process_group('mpi4py', init_method='mpi://')"
    began = time.monotonic()
    out = hangs.run(f"%%px\nif rank == 2:\n    raise ValueError('mine')\n{make}")
    assert time.monotonic() - began < FREE_WITHIN_S
    assert out.error["evalue"] == "rank 2: ValueError: mine"
    assert "ranks 0, 1, 3: waiting in init_process_group [cell " in out.traceback
    assert RENEWED in out.text()
    hangs.must(f"%%px\n{make}")
    assert_trains(hangs)


def test_mismatch_raises_on_every_rank_and_keeps_the_group(hangs):
    for name, cell in MISMATCHES.items():
        out = hangs.run(f"%%px\n{cell}")
        assert out.error["evalue"].startswith("rank 0: MismatchError: "), name
        assert out.traceback.splitlines()[-1].startswith("ranks 1, 2, 3: MismatchError"), name
        assert re.search(r"rank 0: .*\n +rank 1: .*\n +rank 2: ", out.traceback), name
        assert RENEWED not in out.text(), name
        assert_trains(hangs)


PAUSED_S = 4.0
PATIENCE = (
    "%px from torch_mpi4py.group import progress;"
    " progress._PATIENCE_SECONDS, progress._LONGEST_PATIENCE = "
)


def test_queued_operations_may_finish_after_a_failed_cell(hangs):
    settled = "from ipyranks import recovery; recovery._SETTLED_WITHIN_S"
    hangs.must(f"{settled} = 30")  # this machine may stand still for moments
    hangs.must(f"{PATIENCE}(0.1, 1)")  # a thread begins it after 0.1 to 0.2 s
    queue = "work = dist.all_reduce(t, async_op=True)"
    out = hangs.run(f"%%px\n{queue}\nraise ValueError")
    assert out.error["ename"] == "RemoteCellError"
    assert RENEWED not in out.text()
    assert_trains(hangs)
    hangs.must(f"{settled} = 1")
    began = time.monotonic()
    out = hangs.run(f"%%px\nif rank == 1: {queue}\nraise ValueError")  # the others never do it
    assert time.monotonic() - began < FREE_WITHIN_S
    assert RENEWED in out.text()
    hangs.must(f"{PATIENCE}(1e-3, 8)")
    assert_trains(hangs)


def test_operation_deadline_passes_before_the_limit(hangs):
    hangs.must("%px comm.timeout = 1")
    out = hangs.run("%%px\nif rank == 1: comm.recv(source=0)")
    assert out.error["ename"] == "HangError"
    assert "the deadline of an operation in the cell passed" in out.error["evalue"]
    assert re.match("waiting +recv from rank 0, pickle", rows_of(out.traceback)[1])
    assert RENEWED in out.text()
    out = hangs.must("%px comm.timeout; comm.timeout = 30; kept").text()
    assert out == "".join(f"rank {rank} = {11 * rank}\n" for rank in range(4))
    assert_trains(hangs)


def test_endless_recursion_is_reported_quickly_and_briefly(hangs):
    began = time.monotonic()
    out = hangs.run("%%px\ndef call(n):\n    return call(n + 1)\n\ncall(0)")
    assert time.monotonic() - began < 24  # was 20 to 60 s
    assert out.error["ename"] == "RemoteCellError"
    assert "RecursionError: maximum recursion depth exceeded" in out.traceback
    assert re.search(r"\(\d+ calls in the middle are not shown\.\)", out.traceback)
    assert "----> 5 call(0)" in out.traceback
    assert len(out.traceback) < 6_000
    assert_trains(hangs)


def test_leftover_message_of_a_failed_cell_is_not_received_later(hangs):
    out = hangs.run("%%px\nif rank == 0: comm.send('stale', dest=1)\nraise ValueError")
    assert RENEWED in out.text()
    hangs.must(
        "%%px\nif rank == 0: comm.send('fresh', dest=1)\n"
        "if rank == 1: assert comm.recv(source=0) == 'fresh'"
    )
    out = hangs.run("%%px\nraise ValueError")
    assert RENEWED not in out.text()
    assert_trains(hangs)


def test_limit_may_be_extended_by_progress(hangs):
    # Well above the limit in all, and far below it from one print to the next; in the second
    # cell also below half of it, though this machine may stand still for some seconds.
    cell = "\nimport time\nfor i in range({}):\n    time.sleep(0.4); print(i, flush=True)\n"
    assert hangs.must(f"%%px --limit 6+{cell.format(18)}").text().count(" 8\n") == 4
    out = hangs.run(f"%%px --limit 8{cell.format(60)}")
    assert "The cell was still making progress" in out.traceback
    assert "with --limit 8+ only time without progress counts" in out.traceback
    assert hangs.run("%px --limit never rank").error["ename"] == "ClusterError"
    hangs.must("cluster.limit = 1")
    out = hangs.run("%px comm.recv(source=rank)")
    assert hangs.must("print(cluster.limit); cluster.limit = 60").text() == "1 s\n"
    assert out.error["ename"] == "HangError"
    assert_trains(hangs)


def test_a_long_loop_of_messages_is_not_called_a_deadlock(hangs):
    cell = """
        x = torch.zeros(1)
        while True:
            if rank == 0:
                dist.send(x, dist.recv(x, tag=1), tag=2)
            else:
                dist.send(x, 0, tag=1)
                dist.recv(x, 0, tag=2)
    """
    out = hangs.run(f"%%px --limit 2\n{textwrap.dedent(cell)}")
    assert "All ranks were still exchanging messages, so none of them is stuck." in out.traceback
    assert "-0.0 s" not in out.traceback
    assert_trains(hangs)


def test_rank_that_receives_its_cell_late(hangs, wait_until):
    """It is not reported as finished, and what it does in the cell decides the report."""
    hangs.must("from ipyranks import limits; limits._BEGUN_WITHIN_S = 60")
    boards = RankBoards(hangs.events)
    late, before = boards.board(3).pid, boards.position(0).began
    numbers = {rank: rank for rank in range(4)}

    def report():
        looks = {"alive": True, "ask_site": lambda: ""}
        return HangReport.of(boards.state(rank, rank, numbers, **looks) for rank in numbers)

    def all_but_one_wait():
        begun = all(boards.position(rank).began > before for rank in range(3))
        return begun and None not in boards.waits(range(3)).values()

    os.kill(late, signal.SIGSTOP)
    try:
        running = hangs.begin("%%px --limit 2\nif rank != 3: comm.allreduce(1)")
        wait_until(all_but_one_wait, 30, "ranks 0 to 2 wait")
        since = time.monotonic()
        found = report()
        assert [state.state for state in found.ranks] == ["waiting"] * 3 + ["idle"]
        assert found.diagnosis.startswith("Rank 3 is idle: it has not begun the cell in which ")
        wait_until(lambda: time.monotonic() > since + 2.5, 10, "the limit is over for ranks 0 to 2")
    finally:
        os.kill(late, signal.SIGCONT)
    out = hangs.finish(running)
    assert "Rank 3 finished without the allreduce in which ranks 0, 1 and 2 wait" in out.traceback
    assert rows_of(out.traceback)[3] == "finished"
    assert RENEWED in out.text()
    assert_trains(hangs)

    patience = "from ipyranks import recovery; recovery._FREE_WITHIN_S, recovery._BUSY_AFTER_S"
    hangs.must(f"limits._BEGUN_WITHIN_S = 5; {patience} = 1, 1")
    before = boards.position(0).began
    os.kill(late, signal.SIGSTOP)
    try:
        running = hangs.begin("%%px --limit 60\nif rank != 3: comm.allreduce(1)")
        wait_until(all_but_one_wait, 30, "ranks 0 to 2 wait")
        with limit_passed(hangs):
            out = hangs.finish(running)
        assert "Rank 3 is idle: it has not begun the cell" in out.traceback
        assert "Rank 3 does not end when interrupted" in out.traceback
        out = hangs.run("%px kept")  # it would run what rank 3 still has to run before
        assert out.error["ename"] == "ClusterError"
        assert "Rank 3 does not end when interrupted" in out.error["evalue"]
    finally:
        os.kill(late, signal.SIGCONT)
    wait_until(lambda: hangs.run("%px kept").error is None, 60, "rank 3 comes back")
    hangs.must("recovery._FREE_WITHIN_S, recovery._BUSY_AFTER_S = 6, 5")
    assert_trains(hangs)


@pytest.mark.parametrize("way", ["option", "configured"])
def test_report_covers_untargeted_ranks(hangs, way):
    """The report names them, and communication is reset on all ranks."""
    if way == "configured":
        hangs.must("%pxconfig --targets 0,1")
    targets = " --targets 0,1" if way == "option" else ""
    out = hangs.run(f"%%px{targets} --limit 1\ncomm.barrier()")
    hangs.must("%pxconfig --targets all")
    begun = r"Ranks 2 and 3 are idle: they have not begun the cell in which ranks 0 and 1 wait in "
    why = r"barrier \[cell \d+, line 2\]\. Either they were not asked to run the cell, or"
    assert re.search(begun + why, out.traceback), out.traceback
    assert {rows_of(out.traceback)[rank] for rank in (2, 3)} == {"idle"}
    assert RENEWED in out.text()
    assert_trains(hangs)


def test_report_while_a_cell_runs(hangs, wait_until):
    assert "idle" not in hangs.must("print(cluster.report().table())").text()
    hangs.must("%%px --noblock\nif rank == 3: comm.recv(source=0)")
    asked = "print([s.state for s in cluster.report().ranks])"
    expected = "['finished', 'finished', 'finished', 'waiting']\n"
    wait_until(lambda: hangs.must(asked).text() == expected, 30, "only rank 3 waits")
    out = hangs.must("cluster.report()")
    assert "rank 0 has not sent such a message" in out.displayed[0]["text/plain"]
    (shown,) = hangs.must("cluster.where()").displayed
    assert re.match(r"waiting +recv from rank 0", rows_of(shown["text/plain"])[3])
    hangs.must("cluster.interrupt()")
    out = hangs.run("%pxresult")
    assert "rank 3: KeyboardInterrupt" in out.error["evalue"] or "Revoked" in out.error["evalue"]
    assert RENEWED in out.text()
    assert_trains(hangs)


NESTED = """%%px --limit 100
import time

def outer():
    inner()

def inner():
    if rank == 1:
        time.sleep(100)
    comm.barrier()

if rank < 2:
    outer()
"""
IN_PLACE = ["waiting", "computing", "finished", "finished"]
LOOK = f"""
def look():
    until = time.monotonic() + {IN_PLACE_WITHIN_S}
    found = cluster.where(stacks=True)
    while [one.state for one in found.report.ranks] != {IN_PLACE} and time.monotonic() < until:
        found = cluster.where(stacks=True)
    seen.append(found)
    cluster.interrupt()

import threading
seen = []
threading.Thread(target=look).start()
"""
STACK = r"""rank {rank}, innermost call last:
  cell (\d+), line 13, in <module>
  cell \1, line 5, in outer
  cell \1, line {line}, in inner
"""


def test_where_shows_the_stacks_of_ranks_that_run_a_cell(hangs):
    """Also in another thread, while the notebook waits for the cell, which continues."""
    assert "innermost" not in str(hangs.must("cluster.where(stacks=True)").displayed)
    hangs.must(LOOK)
    assert "KeyboardInterrupt" in hangs.run(NESTED).traceback
    said = hangs.must("print(seen[0], end='\\n')").text()
    assert [row.split()[0] for row in rows_of(said).values()] == IN_PLACE
    assert re.search(STACK.format(rank=0, line=10), said), said
    assert re.search(STACK.format(rank=1, line=9).rstrip("\n") + "$", said, re.MULTILINE), said
    assert said.count("innermost") == 2
    assert_trains(hangs)


AWAITS = """%%px --noblock
import asyncio
async def pause():
    await asyncio.sleep(100)
if rank == 1:
    await pause()
"""


def test_where_shows_the_line_of_a_rank_that_awaits(hangs, wait_until):
    hangs.must(AWAITS)
    stacks = lambda: hangs.must("print(cluster.where(stacks=True).stacks)").text()  # noqa: E731
    awaits = re.compile(r"\{1: \['cell \d+, line 4, awaiting'\]\}\n")
    wait_until(lambda: awaits.fullmatch(stacks()), 60, "only rank 1 awaits", still=stacks)
    hangs.must("cluster.interrupt()")
    assert "KeyboardInterrupt" in hangs.run("%pxresult").error["evalue"]
    assert_trains(hangs)


LITTLE_MEMORY = """
import resource
if rank == 1:
    pages = int(open("/proc/self/statm").read().split()[0])
    limit = pages * resource.getpagesize() + (256 << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
"""
TOO_MUCH = {
    "held = [bytearray(1 << 24) for _ in range(100)]": "MemoryError",
    "held = np.ones(10**8)": "MemoryError: Unable to allocate 763. MiB",
    "held = torch.ones(10**8)": "RuntimeError: .*can't allocate memory: you tried to allocate 4000",
}


def test_report_names_the_right_one_of_two_equal_statements(hangs):
    """IPython compiles each statement by itself, so both have the same instructions."""
    wait = "if rank == 0: comm.recv(source=1)"
    out = hangs.run(f"%%px --limit 2\n{wait}\nif rank == 1: comm.send(1, dest=0)\n{wait}")
    row = r"^0 +waiting +recv from rank 1.* cell \d+, line 4 "
    assert re.search(row, out.traceback, re.MULTILINE), out.traceback


@pytest.mark.skipif(sys.platform != "linux", reason="needs a limit of memory that is kept to")
def test_out_of_memory_is_an_ordinary_error(hangs):
    hangs.must(f"%%px{LITTLE_MEMORY}")
    for cell, says in TOO_MUCH.items():
        out = hangs.run(f"%%px\nif rank == 1:\n    {cell}\ncomm.barrier()")
        assert re.match(f"rank 1: {says}", out.error["evalue"]), out.traceback
        assert re.search(r"^ranks 0, 2, 3: waiting in barrier .*; freed", out.traceback, re.M)
        assert RENEWED in out.text()
        assert_trains(hangs)
    unlimited = "(resource.RLIM_INFINITY, resource.RLIM_INFINITY)"
    hangs.must(f"%px resource.setrlimit(resource.RLIMIT_AS, {unlimited})")


def test_syntax_error_does_not_reset_communication(hangs):
    out = hangs.run("%%px\nx = = 3")
    assert out.error["evalue"] == "rank 0: SyntaxError: invalid syntax (line 2)"
    assert RENEWED not in out.text()
    assert_trains(hangs)


A_PROGRAM_OF_ITS_OWN = """
import os, subprocess, sys
assert "TORCH_MPI4PY_EVENTS_DIR" not in os.environ
program = "import torch_mpi4py; print(torch_mpi4py.world().size)"
subprocess.check_output([sys.executable, "-c", program], text=True)
"""


def test_a_program_that_a_cell_starts_is_not_its_rank(hangs):
    boards = lambda: [(hangs.events / str(rank)).stat().st_ino for rank in range(4)]  # noqa: E731
    before = boards()
    out = hangs.must(f"%%px{A_PROGRAM_OF_ITS_OWN}", within=100).text()
    assert out == "".join(f"rank {rank} = '1\\n'\n" for rank in range(4))
    assert boards() == before
    hangs.must("cluster.boards.here.boards._boards.clear()  # they are opened anew")
    out = hangs.run("%%px --limit 1\nif rank == 0: comm.recv(source=1)")
    assert "Rank 0 waits in recv from rank 1" in out.error["evalue"]
    assert_trains(hangs)


def test_a_rank_stuck_in_c_is_named_and_the_others_are_freed(hangs, gate, wait_until):
    cell, places = gate.cell_of_rank_1, {"waiting": [0, 2, 3], "stuck": [1]}
    running = begin(hangs, cell, wait_until, **places, options=" --limit 60")
    began = time.monotonic()
    with limit_passed(hangs):
        out = hangs.finish(running)
    assert time.monotonic() - began < FREE_WITHIN_S
    assert out.error["ename"] == "HangError"
    assert re.search(r"Rank 1 is stuck in C code \[cell \d+, line 9\]", out.error["evalue"])
    assert "All other ranks are free again" in out.traceback
    assert "Rank 1 does not end when interrupted" in out.traceback
    out = hangs.run("%px kept")
    assert out.error["ename"] == "ClusterError"
    assert "cluster.kill(1)" in out.error["evalue"]
    assert hangs.must("print(cluster.client[3]['kept'])").text() == "33\n"

    gate.open()

    def comes_back():
        return hangs.run("%px kept").error is None

    wait_until(comes_back, 60, "rank 1 comes back")
    assert_trains(hangs)


@pytest.fixture
def patient(hangs):
    """The notebook waits long for a rank that does not end, and soon interrupts it again."""
    hangs.must("from ipyranks import recovery")
    hangs.must("recovery._FREE_WITHIN_S, recovery._INSIST_AFTER_S = 15, 1")
    yield
    hangs.must("recovery._FREE_WITHIN_S, recovery._INSIST_AFTER_S = 6, 3")


CATCHES = """
import time
if rank == 1:
    while True:
        try:
            time.sleep(0.5)
        except:
            pass
comm.barrier()
"""


# Each of the loops catches the interrupt that has ended the one inside.
CATCHES_IN_TWO_FUNCTIONS = """
import time
def step():
    while True:
        try:
            time.sleep(0.5)
        except:
            pass
def steps():
    while rank == 1:
        try:
            step()
        except:
            pass
steps()
comm.barrier()
"""


@pytest.mark.parametrize("code", [CATCHES, CATCHES_IN_TWO_FUNCTIONS])
def test_a_loop_that_catches_its_interrupt_ends(hangs, patient, wait_until, code):
    places = {"waiting": [0, 2, 3], "computing": [1]}
    running = begin(hangs, code, wait_until, **places, options=" --limit 60")
    with limit_passed(hangs):
        out = hangs.finish(running)
    assert out.error["ename"] == "HangError"
    assert re.search(r"Rank 1 is still computing \[cell \d+, line 7\]", out.error["evalue"])
    assert "All ranks are free again" in out.traceback
    assert_trains(hangs)


# In a library, where no exception is raised in each line.
CATCHES_ALL = """
import time, pathlib
loop = '''
while True:
    try:
        while not path.exists():
            time.sleep(0.1)
        break
    except BaseException:
        pass
'''
if rank == 1:
    exec(compile(loop, "<a library>", "exec"), {{"time": time, "path": pathlib.Path({path!r})}})
comm.barrier()
"""


# In a library, as the kernel's own code.
INTERRUPTED_IN_THE_KERNEL = """
import functools, os, signal
once = '''
import collections, sys
usual = kernel.{hook}
def hook():
    kernel.{hook} = usual
    {order}
kernel.{hook} = hook
class Shown(Exception):
    def _render_traceback_(self):
        press()
        kernel.shell.user_ns["traced"] = sys.gettrace() is not None
        return ["Shown"]
kernel.shell.user_ns["Shown"] = Shown
'''
press = functools.partial(os.kill, os.getpid(), signal.SIGINT)
kernel = get_ipython().kernel
exec(compile(once, "<a library>", "exec"), {{"kernel": kernel, "press": press}})
"""
BEFORE = INTERRUPTED_IN_THE_KERNEL.format(
    hook="pre_handler_hook", order="usual(); press(); collections.namedtuple('Pair', 'x y')"
)
AFTER = INTERRUPTED_IN_THE_KERNEL.format(
    hook="post_handler_hook", order="press(); collections.namedtuple('Pair', 'x y'); usual()"
)


@pytest.mark.parametrize(
    ("cell", "says"),
    [
        (
            "%%px --targets 1 --limit 30\nbegun = True",
            "rank 1 raised:\nKeyboardInterrupt in line 2 of its cell",
        ),
        ("cluster.client[1].apply_sync(int)", r"[\s\S]*KeyboardInterrupt"),
    ],
    ids=["cell", "function"],
)
def test_an_interrupt_just_before_a_program_ends_it(hangs, cell, says):
    hangs.must(f"%%px --targets 1{BEFORE}")
    assert re.match(says, hangs.run(cell).traceback)
    assert_trains(hangs)


def test_an_interrupt_after_a_cell_does_nothing(hangs):
    hangs.must(f"%%px --targets 1{AFTER}")
    assert_trains(hangs)


def test_an_interrupt_while_the_error_of_a_cell_is_shown_does_nothing(hangs):
    """To trace IPython meanwhile made it slow: on a busy machine the rank was called stuck."""
    hangs.must(f"%%px --targets 1{AFTER}")
    out = hangs.run("%%px --targets 1\nraise Shown")
    assert "Shown" in out.traceback
    assert out.text("stderr") == ""
    assert hangs.must("%px --targets 1 traced").text() == "rank 1 = False\n"
    assert_trains(hangs)


IGNORES = """
import pathlib, signal, time
if rank == 1:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while not pathlib.Path({path!r}).exists():
        time.sleep(0.01)
comm.barrier()
"""


@pytest.mark.parametrize(
    ("code", "told", "row"),
    [
        (
            CATCHES_ALL,
            r"Rank 1 catches every interrupt and goes on \[cell \d+, line 14\]; ranks 0, 2 and 3",
            "catching  every interrupt, and going on",
        ),
        (
            IGNORES,
            r"Rank 1 has replaced the handler of SIGINT, so an interrupt does not end the cell \[",
            "ignoring  interrupts: it has replaced the handler of SIGINT",
        ),
    ],
    ids=["catches", "ignores"],
)
def test_a_rank_that_interrupts_do_not_end_is_named(
    hangs, patient, tmp_path, wait_until, code, told, row
):
    path, places = tmp_path / "ends", {"waiting": [0, 2, 3], "computing": [1]}
    cell = code.format(path=str(path))
    running = begin(hangs, cell, wait_until, **places, options=" --limit 60")
    with limit_passed(hangs):
        out = hangs.finish(running)
    path.touch()
    assert re.search(told, out.error["evalue"])
    assert rows_of(out.traceback)[1].startswith(row)
    assert "Rank 1 does not end when interrupted" in out.traceback
    wait_until(lambda: hangs.run("%px kept").error is None, 60, "rank 1 comes back")
    assert_trains(hangs)


HANDLES = """
import time, pathlib
pathlib.Path({folder!r}, str(rank)).touch()
try:
    time.sleep(100)
except KeyboardInterrupt:
    while not pathlib.Path({folder!r}, "ends").exists():
        time.sleep(0.01)
    print("saved")
    raise
"""


def test_a_cell_that_handles_its_interrupt_is_left_alone(hangs, patient, tmp_path, wait_until):
    running = hangs.begin("%%px\n" + HANDLES.format(folder=str(tmp_path)))
    wait_until(lambda: len(list(tmp_path.iterdir())) == 4, 60, "all ranks are in the cell")
    hangs.interrupt()
    out = hangs.finish(running)  # after 15 s, in which they are interrupted again
    assert "Ranks 0, 1, 2 and 3 are still computing" in out.traceback
    (tmp_path / "ends").touch()
    wait_until(lambda: hangs.run("%px kept").error is None, 60, "they come back")
    assert_trains(hangs)


def test_a_rank_without_a_core_is_not_called_stuck(hangs, wait_until):
    """It is as silent as a rank in C code, but it has not computed meanwhile."""
    cell = "while rank == 1:\n    pass\ncomm.barrier()"
    places = {"waiting": [0, 2, 3], "computing": [1]}
    running = begin(hangs, cell, wait_until, **places, options=" --limit 60")
    boards = RankBoards(hangs.events)
    pid = boards.board(1).pid
    os.kill(pid, signal.SIGSTOP)
    gets_a_core = threading.Timer(0.7, os.kill, (pid, signal.SIGCONT))
    try:
        silent = lambda: time.perf_counter() - boards.position(1).time  # noqa: E731
        wait_until(lambda: silent() > SILENT_S, 20, "rank 1 is silent")
        with limit_passed(hangs):
            gets_a_core.start()
            out = hangs.finish(running)
    finally:
        os.kill(pid, signal.SIGCONT)
        gets_a_core.cancel()
    assert re.search(r"Rank 1 is still computing \[cell \d+, line [23]\]", out.error["evalue"])
    assert "All ranks are free again." in out.traceback
    assert_trains(hangs)


def test_paused_rank_continues(hangs, wait_until):
    """As in a paused container: its heart does not beat, but it has not ended.

    ipyparallel's controller would give it up after ten beats that it misses, which take 2 s.
    """
    pid = RankBoards(hangs.events).board(3).pid
    os.kill(pid, signal.SIGSTOP)
    try:
        running = hangs.begin("%px kept")
        time.sleep(PAUSED_S)  # they have to pass, to prove that nothing comes of it
    finally:
        os.kill(pid, signal.SIGCONT)
    out = hangs.finish(running)
    assert out.error is None, out.traceback
    assert out.text() == "rank 0 = 0\nrank 1 = 11\nrank 2 = 22\nrank 3 = 33\n"
    assert_trains(hangs)
    # Nor does a rank give a controller up, which by default takes 35 s.
    asked = "from ipyparallel.engine.app import IPEngine\nIPEngine.instance().max_heartbeat_misses"
    out = hangs.must(f"%%px\n{asked}").text()
    assert out == "rank 0 = 0\nrank 1 = 0\nrank 2 = 0\nrank 3 = 0\n"


def test_a_hang_in_a_group_on_another_backend(hangs, wait_until):
    hangs.must(
        "%%px\nfrom datetime import timedelta\n"
        "other = dist.new_group(backend='gloo', timeout=timedelta(seconds=250))"
    )
    boards, call = RankBoards(hangs.events), "dist.all_reduce(t, group=other)"

    def is_told(rank: int) -> bool:
        return any(OTHER_GROUP in op.group for op in boards.board(rank).open_operations())

    running = hangs.begin(f"%%px --limit 60\nif rank < 2: {call}")
    wait_until(lambda: is_told(0) and is_told(1), 60, "ranks 0 and 1 tell of their call")
    wait_until(lambda: not (boards.is_busy(2) or boards.is_busy(3)), 60, "the others have finished")
    with limit_passed(hangs):
        out = hangs.finish(running)
    assert out.error["ename"] == "HangError"
    assert re.search(r"Ranks 0 and 1 are stuck in C code \[cell \d+, line 2\]", out.traceback)
    kept = r"all_reduce, \(\d+,\) float, in group \d+ of PyTorch's gloo"
    assert re.search(rf"Ranks 0 and 1 are in {kept}\. Ranks 2 and 3 are not\.", out.traceback)
    assert "cluster.kill(0), cluster.kill(1) and cluster.shrink()" in out.traceback
    hangs.must(f"late = cluster.client[2, 3].execute('{call}', block=False)")
    wait_until(lambda: hangs.run("%px kept").error is None, 60, "the call has ended at last")
    assert_trains(hangs)


def test_a_rank_stuck_in_c_is_killed_on_request(hangs, wait_until):
    """The last test: it costs rank 1."""
    places = {"waiting": [0, 2, 3], "stuck": [1]}
    running = begin(hangs, STUCK_FOR_GOOD, wait_until, **places, options=" --limit 60")
    with limit_passed(hangs):
        hangs.finish(running)
    hangs.must("cluster.kill(1)")
    assert "with new numbers" in hangs.must("cluster.shrink()").text()
    out = hangs.must("%px rank, kept, comm.allreduce(1)").text()
    assert out == "rank 0 = (0, 0, 3)\nrank 1 = (1, 22, 3)\nrank 2 = (2, 33, 3)\n"


def test_hang_report_without_cell_numbers(new_kernel):
    """nbval runs cells so: it keeps no history, so cells have no numbers."""
    kernel = new_kernel()
    kernel.counts = False
    kernel.start_cluster(2)
    assert kernel.must("print(cluster.limit)").text() == "60 s\n"
    out = kernel.run("%%px --limit 5\nif rank == 0: comm.barrier()")
    assert out.error["ename"] == "HangError"
    assert "Rank 1 finished without the barrier in which rank 0 waits" in out.error["evalue"]
    assert RENEWED in out.text()
    assert kernel.must("%px comm.allreduce(1)").text() == "rank 0 = 2\nrank 1 = 2\n"
