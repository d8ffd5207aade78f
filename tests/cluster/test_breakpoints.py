"""``breakpoint()`` in a cell: ranks stop, and a prompt in the notebook steps through them."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Iterator

import pexpect
import pytest

from .conftest import Kernel, Output
from .hangs import FREE_WITHIN_S
from .prompts import ASKS_WITHIN_S, answer, await_prompt, plain, typing

pytestmark = pytest.mark.timeout(240)

HELD_S = 3.0  # at a breakpoint, longer than a deadline of 1 s
SUMS = "".join(f"rank {rank} | 6\n" for rank in range(4))
ONE_STOPS = """%%px
def half(number):
    found = number / 2
    return found
if rank == 2: breakpoint()
mine = half(rank)
print(comm.allreduce(rank))
"""
ALL_STOP = """%%px
x = rank * 10; comm.barrier()
breakpoint()
total = comm.allreduce(x)
print(total)
"""
# Rank 3 sleeps until a message comes, and is stopped from before it comes until a second after.
LATE_TO_WAKE = """%%px
import os, signal, threading, time
from torch_mpi4py.board.observing import looks_asleep
from torch_mpi4py.log.peer_boards import board_of
pids = comm.allgather(os.getpid())
if rank == 3: comm.recv(source=0)
if rank == 0:
    is_open = lambda: any(one.kind == "recv" for one in board_of(3).open_operations())
    while not (is_open() and looks_asleep(board_of(3))): time.sleep(0.01)
    os.kill(pids[3], signal.SIGSTOP)
    comm.send("news", dest=3)
    threading.Timer(1, os.kill, (pids[3], signal.SIGCONT)).start()
breakpoint()
"""


@pytest.fixture
def all_awaited(kernel: Kernel) -> Iterator[None]:
    """Have the prompt wait for ranks that a busy machine lets stop late, longer than usual."""
    kernel.must(
        "from ipyranks import prompt\nusual, prompt._STOPS_WITHIN_S = prompt._STOPS_WITHIN_S, 60"
    )
    yield
    kernel.must("prompt._STOPS_WITHIN_S = usual")


def assert_as_before(kernel: Kernel) -> None:
    """The ranks communicate, and nothing of the debugger is left on them."""
    kernel.must(
        "%%px\nimport sys, bdb\nassert sys.gettrace() is None\nassert not bdb.Breakpoint.bplist"
    )
    assert kernel.must("%%px\nprint(comm.allreduce(rank))").text() == SUMS


def test_one_rank_stops_and_the_others_wait(kernel):
    said = plain(typing(kernel, ONE_STOPS, "rank 2> p rank * 100", "rank 2> c"))
    table, rest = said.split("\n\n", 1)
    waits = r"waiting +allreduce, pickle +cell \d+, line 7 +\d+\.\d s"
    stands = r"at a breakpoint +cell \d+, line 5"
    for rank, row in enumerate([waits, waits, stands, waits]):
        assert re.search(rf"^{rank} +{row}$", table, re.MULTILINE), said
    assert re.match(r"> cell \d+\(5\)<module>\(\)\n", rest), said
    assert "----> 5 if rank == 2: breakpoint()" in rest
    assert rest.endswith("\n200\n" + SUMS)
    assert_as_before(kernel)


def test_steps_into_and_out_of_a_function(kernel):
    commands = ["n", "s", "n", "n", "p found", "u", "p rank", "d", "r", "n", "p mine", "n"]
    said = plain(typing(kernel, ONE_STOPS, *(f"rank 2> {command}" for command in commands)))
    lines = re.findall(r"^> cell \d+\((\d+)\)", said, re.MULTILINE)
    assert lines == ["5", "6", "2", "3", "4", "6", "4", "4", "7"]
    assert re.search(
        r"-+> 4     return found.*\n1\.0\n> cell \d+\(6\).*\n2\n> cell", said, re.DOTALL
    )
    assert said.endswith("1.0\n" + SUMS)
    assert_as_before(kernel)


@pytest.mark.usefixtures("all_awaited")
def test_prompt_visits_all_stopped_ranks_in_turn(kernel):
    lines = ["rank 0> p x", "rank 0> rank 3", "rank 3> p x", "rank 3> all n", "rank 3> rank 1"]
    said = plain(
        typing(kernel, ALL_STOP, *lines, "rank 1> all n", "rank 1> p total", "rank 1> all c")
    )
    assert len(re.findall(r"^\d +at a breakpoint +cell \d+, line 3$", said, re.MULTILINE)) == 4, (
        said
    )
    for rank in range(4):
        assert f"rank {rank} | ----> 4 total = comm.allreduce(x)\n" in said
        assert f"rank {rank} | ----> 5 print(total)\n" in said
    assert said.endswith("60\n" + "".join(f"rank {rank} | 60\n" for rank in range(4)))
    assert_as_before(kernel)


@pytest.mark.usefixtures("all_awaited")
def test_prompt_waits_for_a_rank_without_a_core(kernel):
    """Its message has come, but it looks as if it still waited."""
    said = plain(typing(kernel, LATE_TO_WAKE, "rank 0> all c"))
    stopped = re.findall(r"^\d +at a breakpoint +cell \d+, line \d+$", said, re.MULTILINE)
    assert len(stopped) == 4, said
    assert_as_before(kernel)


@pytest.mark.usefixtures("all_awaited")
def test_continued_rank_waits_for_ranks_at_the_prompt(kernel):
    lines = ["rank 0> n", "rank 0> n", "rank 1> rank 0", "rank 1> ranks", "rank 1> c"]
    said = plain(typing(kernel, ALL_STOP, *lines, "rank 2> c", "rank 3> c", "rank 0> c"))
    assert re.search(
        r"^rank 0: waiting in allreduce, pickle \[cell \d+, line 4\]", said, re.MULTILINE
    )
    assert "Ranks 1, 2 and 3 can be asked\n" in said
    rows = (
        r"0 +waiting +allreduce, pickle +cell (\d+), line 4.*\n1 +at a breakpoint +cell \1, line 3"
    )
    assert re.search(rows, said)
    assert said.endswith("".join(f"rank {rank} | 60\n" for rank in range(4)))


@pytest.mark.parametrize("wait", ["comm.barrier()", "mpi.monitored_barrier(group, 1)"])
def test_deadlines_and_limits_pause_at_a_breakpoint(kernel, wait):
    """They do not run while a rank is at its breakpoint, and apply again once it continues."""
    kernel.must(
        "%%px\nimport torch_mpi4py as mpi\nfrom datetime import timedelta\n"
        "comm.timeout = 1\n"
        "if not dist.is_initialized():\n"
        "    dist.init_process_group('mpi4py', init_method='mpi://')\n"
        "group = dist.new_group(timeout=timedelta(seconds=1))"
    )
    running = kernel.begin(f"%%px --limit 2\nif rank == 2: breakpoint()\n{wait}\nprint(1)")
    await_prompt(kernel)
    time.sleep(HELD_S)  # what is tested is that this does not count
    kernel.client.input("c")
    assert plain(kernel.finish(running)).endswith("".join(f"rank {r} | 1\n" for r in range(4)))
    out = kernel.run(f"%%px --limit 20\nif rank != 2: {wait}")
    assert "the deadline of an operation in the cell passed" in out.traceback, out.traceback
    kernel.must("%px comm.timeout = 60")


def test_hanging_command_ends_at_the_limit(kernel):
    started = "%%px --limit 1\nif rank == 2: breakpoint()"
    out = typing(kernel, started, "rank 2> while True: pass")
    assert out.error["ename"] == "HangError", out.traceback
    assert_as_before(kernel)


@pytest.mark.parametrize("leave", ["the stop button", "q"])
def test_leaving_ends_the_cell_on_all_ranks(kernel, leave):
    kernel.must("%px mine = None")
    running = kernel.begin(ONE_STOPS)
    answer(kernel, "rank 2> b 3")
    await_prompt(kernel)
    kernel.client.input("q") if leave == "q" else kernel.interrupt()
    shown = kernel.finish(running, FREE_WITHIN_S).traceback
    assert shown.startswith("KeyboardInterrupt: the cell was interrupted on all ranks\n")
    assert re.search(
        r"Rank 2 is at a breakpoint \[cell \d+, line 5\]; ranks 0, 1 and 3 wait", shown
    )
    assert "All ranks are free again." in shown
    kernel.must("%px assert rank != 2 or mine is None, 'it has gone on'")
    assert_as_before(kernel)


@pytest.mark.parametrize("dies", [2, 3], ids=["the one at the prompt", "one that waits"])
def test_a_death_ends_the_prompt(kernel, dies):
    shown = kernel.must("[rank.pid for rank in cluster.ranks]").displayed[0]["text/plain"]
    pids = [int(pid) for pid in re.findall(r"\d+", shown)]
    running = kernel.begin(ONE_STOPS)
    await_prompt(kernel)
    os.kill(pids[dies], signal.SIGKILL)
    out = kernel.finish(running)
    assert out.error["ename"] == "RemoteCellError", out.traceback
    assert f"rank {dies} died" in out.traceback, out.traceback
    kernel.must("cluster.restart()", 100)
    assert_as_before(kernel)


def unattended(kernel: Kernel, code: str) -> Output:
    return kernel.finish(kernel.client.execute(code, allow_stdin=False))


def test_breakpoint_without_a_prompt_raises_one_clear_error(kernel):
    out = unattended(kernel, ONE_STOPS)
    where = "BreakpointError in line 5 of its cell: if rank == 2: breakpoint()"
    why = "breakpoint() cannot ask for commands: the program that executes this cell gives no input"
    assert f"{where}\n\n{why}" in out.traceback
    assert "_hook" not in out.traceback
    assert_as_before(kernel)


def test_a_cell_that_is_not_awaited_does_not_stop(kernel):
    kernel.must("%%px --noblock\nbreakpoint()")
    assert "or the cell runs with --noblock" in kernel.run("%pxresult").traceback


def test_only_the_main_thread_stops(kernel):
    out = kernel.run(
        "%%px\nfrom concurrent.futures import ThreadPoolExecutor\n"
        "with ThreadPoolExecutor(1) as pool: pool.submit(breakpoint).result()"
    )
    assert "breakpoint() stops a rank only in its main thread" in out.traceback


def test_disabled_breakpoint_does_not_stop(kernel):
    kernel.must(
        "%%px\nimport os\nos.environ['PYTHONBREAKPOINT'] = '0'\n"
        "breakpoint()\ndel os.environ['PYTHONBREAKPOINT']"
    )


def test_breakpoint_in_a_terminal(traces):
    """The prompt appears, Tab asks the rank, and Control-C leaves."""
    environment = os.environ | {"TERM": "dumb", "IPYTHONDIR": str(traces.base / "terminal")}
    arguments = ["-m", "IPython", "--simple-prompt", "--no-banner", "--colors=nocolor"]
    terminal = pexpect.spawn(
        sys.executable, arguments, env=environment, encoding="utf-8", timeout=ASKS_WITHIN_S
    )
    try:
        for number, line in enumerate(
            ["from ipyranks import start_cluster; cluster = start_cluster(1)", "%px breakpoint()"],
            start=1,
        ):
            terminal.expect_exact(f"In [{number}]: ")
            terminal.sendline(line)
        terminal.expect_exact("rank 0> ")
        terminal.send("p world_s\t + 41\n")
        terminal.expect_exact("42")
        terminal.expect_exact("rank 0> ")
        terminal.sendintr()
        terminal.expect_exact("KeyboardInterrupt: the cell was interrupted on all ranks")
        terminal.expect_exact("In [3]: ")
        terminal.sendline("cluster.stop(); exit()")
        terminal.expect(pexpect.EOF)
    finally:
        terminal.kill(signal.SIGKILL)
