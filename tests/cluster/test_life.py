"""The one idea: a cluster outlives a kernel restart, and nothing else, whatever is killed."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

pytestmark = pytest.mark.timeout(120)

GRACE_S = 10
SHORT_GRACE_S = 6
SLOW_STOP_S = 6  # SIGTERM, patience, SIGKILL, and a busy machine


@pytest.fixture
def started(new_kernel, traces):
    """A kernel with a cluster of two, in which every rank has ``x == 7``."""
    kernel = new_kernel()
    kernel.banner = kernel.start_cluster(2)
    kernel.must("%px x = 7")
    yield kernel
    kernel.shut_down()
    traces.gone_within(GRACE_S + SLOW_STOP_S)


def pids(traces) -> set[int]:
    return {process.pid for process in traces.processes()}


def test_a_restarted_kernel_finds_its_cluster(new_kernel, traces):
    started = new_kernel()
    started.start_cluster(2, f"grace={SHORT_GRACE_S}")
    started.must("%px x = 7")
    before = pids(traces)
    started.restart()
    assert "2 ranks found running; their variables are kept" in started.start_cluster(2)
    assert started.must("%px x").text() == "rank 0 = 7\nrank 1 = 7\n"
    assert pids(traces) == before
    time.sleep(SHORT_GRACE_S + 1)  # the time has to pass, to prove that nothing comes of it
    assert started.must("%px x").text() == "rank 0 = 7\nrank 1 = 7\n"

    # Again, but in the middle of a cell, which the old kernel leaves on the ranks.
    started.begin("%%px\nimport time\nfor i in range(600): time.sleep(0.1)")
    time.sleep(1)
    started.restart()
    other_size = started.run("from course_lib.cluster import start_cluster; start_cluster(3)")
    assert "a cluster of 2 ranks is running, with its variables" in other_size.error["evalue"]
    assert "start_cluster(3, replace=True)" in other_size.error["evalue"]
    assert "variables are kept" in started.start_cluster(2)
    assert started.must("%px x").text() == "rank 0 = 7\nrank 1 = 7\n"

    # And on request a fresh one, of another size.
    assert "3 ranks ready" in started.start_cluster(3, "replace=True")
    assert started.run("%px x").error["evalue"] == "rank 0: NameError: name 'x' is not defined"
    assert not before & pids(traces)


def test_a_killed_kernel_leaves_nothing_after_the_grace_time(started, traces):
    killed_at = time.monotonic()
    started.manager.provisioner.process.kill()
    started.manager.provisioner.process.wait(10)
    assert len(traces.engines()) == 2
    traces.gone_within(GRACE_S + SLOW_STOP_S)
    assert time.monotonic() - killed_at > GRACE_S - 1


def test_a_kernel_that_is_shut_down_takes_its_cluster_along_at_once(started, traces):
    started.shut_down()
    traces.gone_within(SLOW_STOP_S)


def test_the_keeper_killed(started, traces, wait_until):
    (keeper,) = traces.processes("cluster.keeper")
    keeper.kill()
    wait_until(lambda: len(traces.left()) <= 1, 3, "nothing but the killed keeper's zombie")
    error = started.run("%px x").error
    assert error["ename"] == "ClusterError"
    assert "its keeper was killed or failed" in error["evalue"]
    assert "start_cluster() starts a fresh one" in error["evalue"]
    assert "2 ranks ready" in started.start_cluster(2)


def test_the_controller_killed_while_a_cell_runs(started, traces):
    running = started.begin("%%px\nimport time\nfor i in range(300): time.sleep(0.1)")
    time.sleep(0.5)
    (controller,) = traces.processes("cluster.controller")
    controller.kill()
    error = started.finish(running, within=SLOW_STOP_S).error
    assert error["ename"] == "ClusterError"
    assert "the controller ended" in error["evalue"]
    traces.gone_within(3)
    assert "2 ranks ready" in started.start_cluster(2)


def test_one_engine_killed(started, traces):
    running = started.begin("%%px\nimport time\nfor i in range(30): time.sleep(0.1)")
    time.sleep(0.5)
    victim = int(started_pid(traces, rank=1))
    killed_at = time.monotonic()
    subprocess.run(["kill", "-9", str(victim)], check=True)
    out = started.finish(running, within=10)
    assert "rank 1: EngineError" in out.error["evalue"]
    assert time.monotonic() - killed_at < 6
    error = started.run("%px x").error
    assert error["evalue"] == "rank 1 has ended; cluster.restart() starts fresh ranks"
    out = started.must("cluster.restart()", within=60)
    assert "2 fresh ranks" in out.text()
    assert "all variables on them are lost" in out.text()
    assert started.must("%px rank").text() == "rank 0 = 0\nrank 1 = 1\n"


def started_pid(traces, rank: int) -> int:
    for process in traces.engines():
        if process.environ().get("PMIX_RANK") == str(rank):
            return process.pid
    raise AssertionError(f"no engine of rank {rank} among {traces.engines()}")


def test_a_rank_that_ignores_every_polite_signal_is_stopped(started, traces):
    started.must(
        "%%px\nimport signal\nfor s in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):"
        " signal.signal(s, signal.SIG_IGN)"
    )
    (mpiexec,) = [process for process in traces.processes("cluster.engine") if is_mpiexec(process)]
    mpiexec.suspend()  # it would kill the ranks, too
    began = time.monotonic()
    started.must("cluster.stop()", within=10)
    assert time.monotonic() - began < SLOW_STOP_S
    assert traces.left() == []


def test_interrupting_the_start_leaves_nothing(new_kernel, traces, wait_until):
    kernel = new_kernel()
    starting = kernel.begin("from course_lib.cluster import start_cluster; start_cluster(2)")
    wait_until(traces.engines, 20, "the first engine")
    kernel.interrupt()
    assert kernel.finish(starting, within=SLOW_STOP_S).error["ename"] == "KeyboardInterrupt"
    assert traces.left() == []
    assert "2 ranks ready" in kernel.start_cluster(2)


def is_mpiexec(process) -> bool:
    return "-n" in process.cmdline()


def test_a_cluster_whose_keeper_and_controller_died_is_swept_by_the_next_start(
    started, new_kernel, traces, wait_until
):
    for part in ("cluster.controller", "cluster.keeper"):
        (process,) = traces.processes(part)
        process.suspend() if part == "cluster.controller" else process.kill()
    (controller,) = traces.processes("cluster.controller")
    controller.send_signal(signal.SIGKILL)
    wait_until(lambda: not traces.engines(), 5, "the engines end by themselves")
    (stale,) = traces.directories()
    started.shut_down(now=True)
    other = new_kernel()
    assert "2 ranks ready" in other.start_cluster(2)
    assert stale not in traces.directories()
    other.shut_down()


def test_a_killed_script_leaves_nothing(traces):
    code = "from course_lib.cluster import start_cluster; start_cluster(2, grace=1); input()"
    script = subprocess.Popen(
        [sys.executable, "-u", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert "2 ranks ready" in script.stdout.readline()
    script.kill()
    script.communicate(timeout=10)
    traces.gone_within(1 + SLOW_STOP_S)
