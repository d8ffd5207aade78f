"""A cluster outlives a kernel restart, and nothing else, whatever is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(280)

GRACE_S = 10
SHORT_GRACE_S = 20  # a kernel is back after 3 s, but not on a busy machine
NO_CLUSTER = "there is no cluster: start_cluster(n=4) starts one"
CONTROLLER_USES_S = 0.05  # of a core while nothing happens; 0.2 s in 20 s if it polled engines
SLOW_STOP_S = 40  # SIGTERM, patience, SIGKILL: 6 s; and a machine that stalls for moments


@pytest.fixture
def started(new_kernel, traces):
    """A kernel with a cluster of two, in which every rank has ``x == 7``."""
    kernel = new_kernel()
    kernel.banner = kernel.start_cluster(2, grace=None)
    kernel.must("%px x = 7")
    assert traces.segments() or sys.platform != "linux", "looked for in the wrong place"
    yield kernel
    kernel.shut_down()
    traces.gone_within(GRACE_S + SLOW_STOP_S)


def pids(traces) -> set[int]:
    return {process.pid for process in traces.processes()}


def cpu_of_controller(traces) -> float:
    return sum(traces.the("ipyranks.controller").cpu_times()[:2])


def begin_long_cell(kernel, wait_until, folder: Path, seconds: tuple[int, int] = (50, 50)) -> str:
    """Start a cell of so many seconds on each rank, and return when both run it."""
    cell = f"""
import pathlib, time
pathlib.Path(r"{folder}", str(rank)).touch()
for i in range({seconds}[rank] * 10): time.sleep(0.1)
"""
    running = kernel.begin(f"%%px{cell}")
    wait_until(lambda: len(list(folder.iterdir())) == 2, 40, "both ranks run the cell")
    return running


def test_a_restarted_kernel_finds_its_cluster(new_kernel, traces, wait_until, tmp_path):
    started = new_kernel()
    started.start_cluster(2, grace=SHORT_GRACE_S)
    started.must("%px x = 7")
    before = pids(traces)
    restarted_at = time.monotonic()
    started.restart()
    assert "2 ranks found running; their variables are kept" in started.start_cluster(2)
    assert started.must("%px x").text() == "rank 0 = 7\nrank 1 = 7\n"
    assert pids(traces) == before
    over = restarted_at + SHORT_GRACE_S + 5
    used = cpu_of_controller(traces)
    time.sleep(max(0, over - time.monotonic()))  # it has to pass, to prove that nothing comes of it
    assert cpu_of_controller(traces) - used < CONTROLLER_USES_S, "an idle cluster is quiet"
    assert started.must("%px x").text() == "rank 0 = 7\nrank 1 = 7\n"

    # Again, but in the middle of a cell, which the old kernel leaves on the ranks.
    begin_long_cell(started, wait_until, tmp_path)
    started.restart()
    other_size = started.run("from ipyranks import start_cluster; start_cluster(3)")
    assert "a cluster of 2 ranks is running, with its variables" in other_size.error["evalue"]
    assert "start_cluster(3, replace=True)" in other_size.error["evalue"]
    assert started.must("%px x").text() == "rank 0 = 7\nrank 1 = 7\n"
    assert "variables are kept" in started.start_cluster(2)
    assert started.must("%px x").text() == "rank 0 = 7\nrank 1 = 7\n"

    # And on request a new one, of another size.
    assert "3 ranks ready" in started.start_cluster(3, "replace=True")
    assert started.run("%px x").error["evalue"] == "rank 0: NameError: name 'x' is not defined"
    assert not before & pids(traces)


def test_px_after_a_failed_start_says_what_to_do(new_kernel, traces):
    kernel, px = new_kernel(), "%%px\nrank"
    kernel.run("from ipyranks import start_cluster; start_cluster(0)")
    assert kernel.run(px).error["evalue"] == NO_CLUSTER
    kernel.start_cluster(2)
    traces.engines()[0].suspend()  # so not all ranks answer
    kernel.restart()
    kernel.must("from ipyranks import recovery, start_cluster; recovery._ANSWER_WITHIN_S = 1")
    assert "not all ranks answer" in kernel.run("start_cluster(2)").error["evalue"]
    assert kernel.run(px).error["evalue"] == NO_CLUSTER


def test_reattached_cluster_restarts_on_its_hosts(new_kernel):
    started = new_kernel()
    started.start_cluster(2, "hosts='localhost:2'")
    started.restart()
    assert "2 ranks found running" in started.start_cluster(2)
    started.must("cluster.restart()")
    # As asked, and of the new keeper.
    for where in ("cluster.placement", "cluster.status()['where']"):
        said = started.must(f"print({where})").text()
        assert "{'hosts': {'localhost': 2}, 'slurm': None}" in said, where


def test_a_killed_kernel_leaves_nothing_after_the_grace_time(started, traces):
    killed_at = time.monotonic()
    started.manager.provisioner.process.kill()
    started.manager.provisioner.process.wait(10)
    assert len(traces.engines()) == 2
    traces.gone_within(GRACE_S + SLOW_STOP_S)
    assert time.monotonic() - killed_at > GRACE_S - 1


def test_kernel_shutdown_stops_its_cluster_at_once(new_kernel, traces):
    kernel = new_kernel()
    kernel.start_cluster(2, grace=10 * SLOW_STOP_S)
    kernel.shut_down()
    traces.gone_within(SLOW_STOP_S)


def test_killed_keeper_ends_the_cluster(started, traces, wait_until):
    keeper = traces.the("ipyranks.keeper")
    keeper.kill()
    wait_until(lambda: len(traces.left()) <= 1, SLOW_STOP_S, "nothing but the keeper's zombie")
    error = started.run("%px x").error
    assert error["ename"] == "ClusterError"
    assert "its keeper was killed or failed" in error["evalue"]
    assert "start_cluster() starts a fresh one" in error["evalue"]
    assert "2 ranks ready" in started.start_cluster(2)


def test_controller_killed_while_a_cell_runs(started, traces, wait_until, tmp_path):
    running = begin_long_cell(started, wait_until, tmp_path)
    controller = traces.the("ipyranks.controller")
    controller.kill()
    error = started.finish(running, within=SLOW_STOP_S).error
    assert error["ename"] == "ClusterError"
    assert "the controller ended" in error["evalue"]
    traces.gone_within(SLOW_STOP_S)
    assert "2 ranks ready" in started.start_cluster(2)


def test_one_engine_killed(started, traces, wait_until, tmp_path):
    victim = int(started_pid(traces, rank=1))
    # Rank 0 ends its part.
    running = begin_long_cell(started, wait_until, tmp_path, seconds=(3, 50))
    killed_at = time.monotonic()
    subprocess.run(["kill", "-9", str(victim)], check=True)
    out = started.finish(running)
    assert "rank 1: EngineError" in out.error["evalue"]
    assert "the most common cause is memory" in out.error["evalue"]
    assert time.monotonic() - killed_at < 35
    error = started.run("%px x").error
    assert error["evalue"].startswith(
        "rank 1 has ended; cluster.shrink() continues with the others"
    )
    out = started.must("cluster.restart()", within=100)
    assert "2 fresh ranks" in out.text()
    assert "all variables on them are lost" in out.text()
    assert started.must("%px rank").text() == "rank 0 = 0\nrank 1 = 1\n"


def test_an_idle_engine_killed(started, traces, wait_until):
    """The death is unrequested: the next cell lists the remaining ranks and possible causes."""
    subprocess.run(["kill", "-9", str(started_pid(traces, rank=0))], check=True)
    dead = "print(cluster.status()['dead'])"
    wait_until(lambda: started.must(dead).text() == "[0]\n", 40, "the death is noticed")
    out = started.run("%px rank")
    assert out.error["ename"] == "ClusterError"
    advice, ranks, why = out.error["evalue"].split("\n\n")
    assert advice.startswith("rank 0 has ended; cluster.shrink() continues with the others")
    states = [row.split()[:2] for row in ranks.splitlines()]
    assert states[:2] == [["rank", "state"], ["0", "dead"]]
    assert states[2][1] != "dead"
    assert "the most common cause is memory" in why
    assert "Smaller batches or fewer ranks" in why
    assert out.traceback == f"ClusterError: {out.error['evalue']}"
    known = lambda: started.must("print(cluster.client.ids)").text()  # noqa: E731
    wait_until(lambda: known() == "[1]\n", 40, "ipyparallel has heard of it")
    assert started.run("cluster.view['x']").error["evalue"].startswith(f"{advice}\n\n{ranks}")
    assert "2 fresh ranks" in started.must("cluster.restart()", within=100).text()
    started.must("cluster.kill(0)")  # on request: the cause is known
    assert "memory" not in started.run("%px rank").error["evalue"]
    alone = lambda: started.must("print(len(cluster.client.ids))").text()  # noqa: E731
    wait_until(lambda: alone() == "1\n", 40, "ipyparallel has heard of it")
    started.must("from ipyranks import completion; completion._WITHIN_S = 30")
    # What Tab completes is asked of a rank that lives, as far as ipyparallel knows.
    asked = started.must("print(completion._ask(cluster, 'world_s'))")
    assert asked.text() == "['world_size']\n"
    assert "2 fresh ranks" in started.must("cluster.restart()", within=100).text()


@pytest.mark.skipif(
    "COURSE_TEST_CGROUP" not in os.environ,
    reason="COURSE_TEST_CGROUP names no folder of /sys/fs/cgroup/memory that may be written to",
)
def test_engine_killed_by_the_out_of_memory_killer(started):
    """The engine alone is put into a cgroup with 600 MB, and allocates more."""
    group = Path(os.environ["COURSE_TEST_CGROUP"], f"rank-by-rank-{os.getpid()}")
    pid = started.must("print(cluster.ranks[1].pid)").text().strip()
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text(str(600 << 20))
        (group / "cgroup.procs").write_text(pid)
        hungry = "[np.ones(4_000_000) for _ in range(40)] if rank == 1 else 0"
        out = started.run(f"%%px\nheld = {hungry}\ncomm.barrier()")
        assert "oom_kill 1" in (group / "memory.oom_control").read_text()
        assert out.traceback.startswith("rank 1 died: ")
        assert "the most common cause is memory" in out.traceback
        started.must("cluster.shrink()")
        assert started.must("%px x, comm.allreduce(1)").text() == "rank 0 = (7, 1)\n"
    finally:
        subprocess.run(["kill", "-9", pid], check=False, capture_output=True)
        group.rmdir()


def started_pid(traces, rank: int) -> int:
    for process in traces.engines():
        if process.environ().get("PMIX_RANK") == str(rank):
            return process.pid
    raise AssertionError(f"no engine of rank {rank} among {traces.engines()}")


def test_rank_that_ignores_signals_is_killed(started, traces):
    started.must(
        "%%px\nimport signal\nfor s in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):"
        " signal.signal(s, signal.SIG_IGN)"
    )
    mpiexec = traces.mpiexec()
    mpiexec.suspend()  # it would kill the ranks, too
    began = time.monotonic()
    started.must("cluster.stop()")
    assert time.monotonic() - began < SLOW_STOP_S
    assert traces.left() == []


def test_interrupting_the_start_leaves_nothing(
    new_kernel, traces, wait_until, tmp_path, monkeypatch
):
    dawdle = tmp_path / "sitecustomize.py"  # or it might have started when it is interrupted
    dawdle.write_text(
        "import os, sys, time\n"
        "is_rank_1 = os.environ.get('PMIX_RANK') == '1'\n"
        "if is_rank_1 and 'ipyranks.engine' in sys.orig_argv: time.sleep(600)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    kernel = new_kernel()
    starting = kernel.begin("from ipyranks import start_cluster; start_cluster(2)")
    wait_until(traces.engines, 40, "the first engine")
    kernel.interrupt()
    out = kernel.finish(starting, within=SLOW_STOP_S)
    interrupted = "the start was interrupted; nothing is left of the cluster"
    assert out.traceback == f"KeyboardInterrupt: {interrupted}"
    assert traces.left() == []
    dawdle.unlink()
    assert "2 ranks ready" in kernel.start_cluster(2)


def test_next_start_removes_an_orphaned_cluster(started, new_kernel, traces, wait_until):
    for part in ("ipyranks.controller", "ipyranks.keeper"):
        process = traces.the(part)
        process.suspend() if part == "ipyranks.controller" else process.kill()
    controller = traces.the("ipyranks.controller")
    controller.send_signal(signal.SIGKILL)
    wait_until(lambda: not traces.engines(), SLOW_STOP_S, "the engines end by themselves")
    (stale,) = traces.directories()
    started.shut_down(now=True)
    other = new_kernel()
    assert "2 ranks ready" in other.start_cluster(2)
    assert stale not in traces.directories()
    other.shut_down()


def test_a_killed_script_leaves_nothing(traces):
    code = "from ipyranks import start_cluster; start_cluster(2, grace=1); input()"
    script = subprocess.Popen(
        [sys.executable, "-u", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    # On a busy machine a start prints its progress first.
    assert any("2 ranks ready" in line for line in iter(script.stdout.readline, ""))
    script.kill()
    script.communicate(timeout=40)
    traces.gone_within(1 + SLOW_STOP_S)
