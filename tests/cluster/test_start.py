"""A cluster of four comes up by itself, and every rank is who it should be."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import time

import ipyparallel
import psutil
import pytest
from ipyranks import ClusterError, current_cluster, start_cluster

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def cluster(traces):
    began = time.monotonic()
    started = start_cluster(4)
    started.seconds = time.monotonic() - began
    yield started
    started.stop()
    started.stop()  # twice does no harm
    assert "stopped" in repr(started)
    traces.gone_within(40)


def test_four_ranks_are_ready_with_torch(cluster):
    # 4.5 to 5 s on two free cores; a busy machine may take longer.
    assert cluster.seconds <= 60
    loaded = cluster.view.apply_sync(lambda: "torch.distributed" in __import__("sys").modules)
    assert loaded == [True] * 4


def test_engine_ids_are_mpi_ranks(cluster):
    def who():
        from mpi4py import MPI

        return MPI.COMM_WORLD.Get_rank()

    assert cluster.ids == [0, 1, 2, 3] == cluster.client.ids
    assert cluster.view.apply_sync(who) == [0, 1, 2, 3]
    assert [row.rank for row in cluster.ranks] == [0, 1, 2, 3]


def test_names_on_every_rank(cluster):
    assert cluster.view["rank"] == [0, 1, 2, 3]
    assert cluster.view["world_size"] == [4] * 4
    names = "comm.allreduce(rank), dist.__name__, np.__name__, torch.get_num_threads(), device.type"
    cluster.view.execute(f"answer = [{names}]", block=True)
    device = "cuda" if cluster.ranks[0].device.startswith("cuda") else "cpu"
    assert cluster.view["answer"] == [[6, "torch.distributed", "numpy", 1, device]] * 4


def test_table_shows_all_ranks(cluster):
    titles, *rows = cluster.table().splitlines()
    assert titles.split() == ["rank", "device", "threads", "MPI", "library", "pid", "host"]
    assert [row.split()[0] for row in rows] == ["0", "1", "2", "3"]
    without_pid_and_host = {re.sub(r"\s+\d+  \S+$", "", row)[4:] for row in rows}
    assert len(without_pid_and_host) == 1
    pids = [row.pid for row in cluster.ranks]
    assert [psutil.pid_exists(pid) for pid in pids] == [True] * 4


def test_all_but_the_launcher_listen_on_loopback_only(cluster, traces):
    """The launcher opens a port on all interfaces, whatever it is told (docs/security.md)."""
    cluster.init_process_group()  # which opens a store
    cluster.view.execute("dist.barrier()", block=True).get()
    found = traces.processes()
    parts = [traces.the("ipyranks.keeper"), traces.the("ipyranks.controller"), traces.mpiexec()]
    assert len(traces.engines()) == 4
    assert {*parts, *traces.engines()} <= set(found)
    ours = {process.pid: process for process in found}
    for process in found:
        with contextlib.suppress(psutil.NoSuchProcess):  # a short-lived child
            ours.update((child.pid, child) for child in process.children(recursive=True))
    listening = set()
    for process in ours.values():
        with contextlib.suppress(psutil.NoSuchProcess):  # a short-lived child
            listening |= {
                (process.name(), connection.laddr.ip)
                for connection in process.net_connections(kind="inet")
                if connection.status == psutil.CONN_LISTEN
            }
    assert any(name.startswith("python") for name, _ in listening)
    exposed = {(name, ip) for name, ip in listening if ip not in ("127.0.0.1", "::1")}
    assert exposed <= {("prterun", "0.0.0.0"), ("prterun", "::")}


def test_engines_reject_clients_without_the_key(cluster, tmp_path):
    directory = cluster.keeper.directory
    for path in (directory.path, directory.client_file, directory.engine_file, directory.socket):
        assert path.stat().st_mode & 0o077 == 0, path
    info = json.loads(directory.client_file.read_text())
    stolen = tmp_path / "client.json"
    stolen.write_text(json.dumps(info | {"key": "00000000-" + info["key"][9:]}))
    with pytest.raises(TimeoutError):
        ipyparallel.Client(str(stolen), timeout=2)


def test_starting_again_keeps_the_variables(cluster, capsys):
    cluster.view["kept"] = 42
    assert start_cluster(4) is cluster
    assert "4 ranks found running; their variables are kept" in capsys.readouterr().out
    assert cluster.view["kept"] == [42] * 4
    assert current_cluster() is cluster


def test_start_cluster_rejects_another_size(cluster):
    with pytest.raises(ClusterError, match=r"start_cluster\(2, replace=True\) replaces it"):
        start_cluster(2)
    assert cluster.is_running


def test_start_cluster_rejects_another_place(cluster):
    with pytest.raises(ClusterError, match=r"4 ranks is running on this machine, .* replaces it"):
        start_cluster(4, hosts="localhost:4")
    assert start_cluster(4, slurm=False) is cluster


@pytest.mark.parametrize("n", [0, -1, 1.5, "4", None, True, 10**9])
def test_start_cluster_rejects_invalid_rank_counts(cluster, n):
    with pytest.raises(ValueError, match=r"^n must be (a whole number|from 1 to \d+) .*, not "):
        start_cluster(n)


def test_reset_of_communication_keeps_variables(cluster):
    cluster.init_process_group()
    cluster.view.execute("group = dist.group.WORLD; before = comm; kept = rank", block=True)
    cluster.reset_communication(timeout_s=20)
    code = """
t = torch.ones(1); dist.all_reduce(t)
answer = [kept, t.item(), comm.allreduce(1), dist.group.WORLD is group, comm is before]
"""
    cluster.view.execute(code, block=True).get()
    assert cluster.view["answer"] == [[rank, 4.0, 4, False, False] for rank in range(4)]


def test_repr_and_length(cluster):
    assert len(cluster) == 4
    assert repr(cluster).startswith("<Cluster of 4 ranks, on ")


SCRIPT = """
from ipyranks import start_cluster
{body}
"""
BODIES = {
    "forgets": "cluster = start_cluster(2); print(cluster.view['rank'])",
    "raises": "cluster = start_cluster(2); print(cluster.view['rank']); 1 / 0",
    "uses with": "with start_cluster(2) as cluster: print(cluster.restart().view['rank'])",
}


@pytest.mark.parametrize("manner", BODIES)
def test_a_plain_script_leaves_nothing_behind(cluster, traces, manner, wait_until):
    before = set(traces.left())
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(body=BODIES[manner])],
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert "[0, 1]" in done.stdout, done.stderr
    assert (done.returncode == 0) == (manner != "raises")
    wait_until(lambda: set(traces.left()) == before, 40, "nothing of the script's is left")
