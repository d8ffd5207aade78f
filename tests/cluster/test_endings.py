"""However a rank ends, or what it has forked, the others hear of it and go on.

The tests share one kernel and its cluster. Who dies is left out by the test in which it dies.
"""

from __future__ import annotations

import textwrap
import time

import psutil
import pytest

from .conftest import logs

pytestmark = pytest.mark.timeout(240)

WITHIN_S = 60  # far more than anything here takes, and less than a child of ours lives


@pytest.fixture
def ranks(kernel):
    """The kernel, with two or more ranks that live and communicate."""
    out = kernel.run("%px comm.allreduce(1)")
    if out.error is not None or out.text().count("\n") < 2:
        kernel.start_cluster(4, "replace=True")
    return kernel


def px(code: str, targets: str = "") -> str:
    return f"%%px {targets}\n" + textwrap.dedent(code).strip("\n")


def assert_all_live(kernel) -> None:
    n = int(kernel.must("print(len(cluster))").text())
    assert kernel.must("%px comm.allreduce(1)").text() == "".join(
        f"rank {rank} = {n}\n" for rank in range(n)
    )


def shrinks(kernel, wait_until) -> None:
    """Rank 1 is dead, and the others go on without it."""
    dead = lambda: kernel.must("print(cluster.status()['dead'])").text()  # noqa: E731
    wait_until(lambda: dead() == "[1]\n", WITHIN_S, "rank 1 is known to be dead")
    assert "rank 1 died" in kernel.must("cluster.shrink(timeout_s=30);", within=WITHIN_S).text()
    assert_all_live(kernel)


@pytest.mark.parametrize("leave", ["exit", "exit()", "quit(1)"])
def test_exit_does_not_end_a_rank(ranks, leave):
    error = ranks.run(f"%px {leave}").error
    assert "exit() would end this rank, not the cell" in error["evalue"]
    ranks.must("%px import time; time.sleep(0.3)")  # IPython ends after 0.1 s
    assert ranks.must("print(cluster.status()['dead'])").text() == "[]\n"


def test_exit_of_one_rank_frees_the_others(ranks):
    for leave in ("exit()", "sys.exit()", "raise SystemExit(3)"):
        out = ranks.run(px(f"import sys\nif rank == 1: {leave}\ncomm.barrier()"), within=WITHIN_S)
        assert out.traceback.startswith("rank 1 raised:")
        assert "waiting in barrier" in out.traceback
        assert "Communication is renewed" in out.text()
        assert "To exit: use" not in out.text("stderr") + out.text()
        assert f"----> 3 if rank == 1: {leave}\n" in out.traceback
    assert_all_live(ranks)


def test_forked_children_may_end_in_any_way(ranks):
    code = """
        import multiprocessing, os, sys, time
        from ipyparallel.engine.app import IPEngine
        fork = multiprocessing.get_context("fork")

        def end_of(function, *arguments, terminate=False):
            child = fork.Process(target=function, args=arguments)
            child.start()
            if terminate:
                child.terminate()
            child.join(40)
            return child.exitcode

        has_let_go = lambda: sys.exit(IPEngine.instance().keeper._socket.fileno() == -1)
        print(end_of(sys.exit, 3), end_of(os._exit, 4), end_of(int), end_of(has_let_go))
        print(end_of(time.sleep, 600, terminate=True))
    """
    out = ranks.must(px(code, "--targets 1"))
    assert out.text() == "rank 1 | 3 4 0 1\nrank 1 | -15\n"
    for last, status in [("sys.exit(5)", 5), ("child = 0", 0), ("1 / 0", 1)]:
        code = f"""
            child = os.fork()
            if child == 0:
                {last}
            else:
                print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        """
        out = ranks.must(px(code, "--targets 1"))
        assert out.text() == f"rank 1 | {status}\n"
    assert_all_live(ranks)


CHILDREN = """
import ctypes, multiprocessing, threading, time
fork = multiprocessing.get_context("fork")
of_main = fork.Process(target=time.sleep, args=(600,))
of_main.start()
of_thread = fork.Process(target=time.sleep, args=(600,))
thread = threading.Thread(target=of_thread.start)
thread.start()
thread.join()
"""
# By its last word it is found in the list of processes.
PROGRAM = """
import os, subprocess, sys
lasting = [sys.executable, "-c", "import time; time.sleep(600)", os.environ["IPYRANKS_RUNTIME_DIR"]]
subprocess.Popen(lasting, start_new_session=True)
"""


def has_ended(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_a_long_lived_child_does_not_hide_a_death(ranks, wait_until):
    out = ranks.must(px(CHILDREN + "print(of_main.pid, of_thread.pid)", "--targets 1"))
    of_main, of_thread = map(psutil.Process, map(int, out.text().split("|")[1].split()))
    out = ranks.run(px("import os, signal\nif rank == 1: os.kill(os.getpid(), 9)\ncomm.barrier()"))
    assert out.traceback.startswith("rank 1 died")
    wait_until(lambda: has_ended(of_main), WITHIN_S, "the child has ended with its engine")
    assert of_thread.is_running()  # it has not ended with the thread that started it
    shrinks(ranks, wait_until)


def test_a_child_forked_in_c_does_not_hide_a_death(ranks, wait_until):
    code = """
        import ctypes
        c = ctypes.PyDLL(None)
        if c.fork() == 0:
            c.sleep(600)
            c._exit(0)
    """
    ranks.must(px(code, "--targets 1"))
    ranks.must("cluster.kill(1)")
    shrinks(ranks, wait_until)


@pytest.mark.parametrize("end", ["os._exit(1)", "get_ipython().ask_exit()"])
def test_exit_with_a_status_is_reported_to_other_ranks(ranks, wait_until, end):
    ranks.run(px(f"import os\n{end}", "--targets 1"))
    shrinks(ranks, wait_until)


def test_unreported_exit_makes_shrink_fail(ranks, wait_until, traces):
    ranks.must(px(CHILDREN + PROGRAM, "--targets 1"))
    ranks.run(px("import ctypes\nctypes.CDLL(None)._exit(1)", "--targets 1"))
    began = time.monotonic()
    error = ranks.run("cluster.shrink(timeout_s=2);").error
    assert error["ename"] == "ClusterError"
    assert "only cluster.restart() helps" in error["evalue"], logs()
    assert time.monotonic() - began < WITHIN_S
    ranks.must("cluster.stop()")
    assert traces.left() == []
