"""``%pxdebug``: a prompt in the notebook on the latest error of a rank."""

from __future__ import annotations

import os
import re
import signal
import sys

import pexpect
import pytest

from . import prompts
from .conftest import Kernel, Output
from .hangs import FREE_WITHIN_S, RENEWED
from .prompts import ASKS_WITHIN_S, await_prompt, plain

pytestmark = pytest.mark.timeout(240)

FAILS = """%%px
def divide(by):
    half = by / 2
    return 1 / half
divide(rank - 2)
"""


def typing(kernel: Kernel, code: str, *lines: str) -> Output:
    """Run a cell that asks for these lines about rank 2."""
    return prompts.typing(kernel, code, *(f"rank 2> {line}" for line in lines))


@pytest.fixture
def failed(kernel):
    """A kernel of whose ranks number 2 has failed in ``divide``."""
    assert "ZeroDivisionError" in kernel.run(FAILS).traceback
    return kernel


def test_the_prompt_begins_where_the_error_was_raised(failed):
    first, place, *lines = plain(typing(failed, "%pxdebug 2", "q")).splitlines()
    assert first == "rank 2 raised ZeroDivisionError: float division by zero"
    assert re.fullmatch(r"> cell \d+\(4\)divide\(\)", place)
    assert "----> 4     return 1 / half" in lines


def test_commands_show_calls_and_variables(failed):
    said = plain(typing(failed, "%pxdebug 2", "w", "p (by, half)", "u", "p world_size - rank", "q"))
    assert re.search(r"cell (\d+)\(5\)<module>.*> cell \1\(4\)divide", said, re.DOTALL)
    assert "(0, 0.0)" in said.splitlines()
    assert said.splitlines()[-1] == "2"
    assert "ipykernel" not in said


def test_lines_of_python_run_on_the_rank(failed):
    said = plain(typing(failed, "%pxdebug 2", "print(by + 40);; found = half", "", "c"))
    assert said.splitlines()[-1] == "40"
    said = plain(typing(failed, "%pxdebug 2", "divide(4)", "1 +", "oh", "interact", "q"))
    assert "0.5\n*** SyntaxError: invalid syntax\n*** NameError: name 'oh' is not" in said


def test_ranks_continue_after_debugging(failed):
    plain(typing(failed, "%pxdebug 2", "p by", "q"))
    out = failed.must("%%px\nprint(comm.allreduce(rank))").text()
    assert out == "".join(f"rank {rank} | 6\n" for rank in range(4))


def test_the_stop_button_leaves_the_prompt(failed):
    running = failed.begin("%pxdebug 2")
    await_prompt(failed)
    failed.interrupt()
    shown = failed.finish(running, FREE_WITHIN_S).traceback
    assert shown == "KeyboardInterrupt: the prompt was closed; the ranks are unchanged"
    failed.must("%px comm.barrier()")


def test_a_command_that_hangs_ends_at_the_limit(failed):
    failed.must("cluster.limit = 1")
    out = typing(failed, "%pxdebug 2", "p comm.recv(source=0)")
    assert out.error["ename"] == "HangError"
    assert re.search(r"^2 +waiting +recv from rank 0", out.traceback, re.MULTILINE)
    assert RENEWED in out.text()
    failed.must("cluster.limit = 60")
    assert "divide()" in plain(typing(failed, "%pxdebug 2", "q"))


def test_pxdebug_without_input_raises_one_clear_error(failed):
    running = failed.client.execute("%pxdebug 2", allow_stdin=False)
    out = failed.finish(running)
    assert "float division by zero" in out.text()
    assert out.traceback.startswith("ClusterError: %pxdebug cannot ask for commands: the program")
    assert len(out.traceback.splitlines()) == 1


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("", "give the rank to look into, like %pxdebug 2"),
        ("0,2", "give the rank to look into, like %pxdebug 2"),
        ("all", "give the rank to look into, like %pxdebug 2"),
        ("x", "give the rank to look into, like %pxdebug 2"),
        ("4", "%pxdebug 4: the ranks are 0 to 3"),
        ("1", "rank 1 has no error to look into"),
    ],
)
def test_pxdebug_rejects_rank_without_an_error(failed, line, wrong):
    said = failed.run(f"%pxdebug {line}").error["evalue"]
    assert wrong in said
    assert "--targets" not in said


def test_pxdebug_rejects_a_syntax_error(kernel):
    assert "SyntaxError" in kernel.run("%%px\n1 +").traceback
    assert "its latest error is a syntax error" in kernel.run("%pxdebug 2").error["evalue"]


def test_pxdebug_leaves_a_busy_rank_alone(failed, wait_until):
    failed.must("%%px --noblock\nif rank == 2: comm.recv(source=0)")
    busy = lambda: failed.must("print(cluster.busy([2]))").text()  # noqa: E731
    wait_until(lambda: busy() == "[2]\n", 30, "rank 2 runs the cell")
    assert "rank 2 is running a cell" in failed.run("%pxdebug 2").error["evalue"]
    failed.must("cluster.interrupt()")
    failed.run("%pxresult")


def test_tab_completes_in_a_terminal(traces):
    """IPython's prompt handles Tab itself; the debugger's prompt asks the rank."""
    environment = os.environ | {"TERM": "dumb", "IPYTHONDIR": str(traces.base / "terminal")}
    arguments = ["-m", "IPython", "--simple-prompt", "--no-banner", "--colors=nocolor"]
    terminal = pexpect.spawn(
        sys.executable, arguments, env=environment, encoding="utf-8", timeout=ASKS_WITHIN_S
    )
    try:
        for number, line in enumerate(
            [
                "from ipyranks import start_cluster; cluster = start_cluster(1)",
                "%px longest = [1]; longest.missing",
                "%pxdebug 0",
            ],
            start=1,
        ):
            terminal.expect_exact(f"In [{number}]: ")
            terminal.sendline(line)
        terminal.expect_exact("rank 0> ")
        terminal.send("p lon\t.app\t7);; p longest\n")
        terminal.expect_exact("[1, 7]")
        terminal.expect_exact("rank 0> ")
        terminal.sendline("q")
        terminal.expect_exact("In [4]: ")
        terminal.sendline("cluster.stop(); exit()")
        terminal.expect(pexpect.EOF)
    finally:
        terminal.kill(signal.SIGKILL)
