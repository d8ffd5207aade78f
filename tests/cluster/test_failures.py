"""A cluster that cannot start says why, with the log, and leaves nothing."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import ipyranks
import pytest
from ipyranks import StartError, start_cluster

pytestmark = pytest.mark.timeout(240)

# Each takes 1 to 5 s on two quiet cores; this machine may be far slower for moments. Waiting for
# ranks that will not come takes a minute.
SOON_S = 45
GONE_S = 30


@pytest.fixture
def break_processes(tmp_path, monkeypatch, traces):
    """A function that makes Python run some code first in processes of a cluster."""

    def install(code: str) -> None:
        (tmp_path / "sitecustomize.py").write_text(
            f"import os, sys\ncommand = ' '.join(sys.orig_argv)\n{code}\n"
        )
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    yield install
    traces.gone_within(GONE_S)


def failure(n: int = 2, within: float = SOON_S, **arguments) -> str:
    began = time.monotonic()
    with pytest.raises(StartError) as caught:
        start_cluster(n, **arguments)
    assert time.monotonic() - began < within
    assert ipyranks.current_cluster() is None
    return str(caught.value)


def test_start_fails_without_mpiexec(traces, monkeypatch):
    monkeypatch.setenv("TORCH_MPI4PY_MPIEXEC", "/nowhere/mpiexec")
    assert "TORCH_MPI4PY_MPIEXEC='/nowhere/mpiexec' is not an executable" in failure()
    traces.gone_within(GONE_S)


def test_mpiexec_fails(traces, monkeypatch, tmp_path):
    broken = tmp_path / "mpiexec"
    broken.write_text(
        "#!/bin/sh\n"
        'if [ "$1" = --version ]; then echo "mpiexec (Open MPI) 5.0.11"; exit 0; fi\n'
        "echo There are not enough slots; exit 1\n"
    )
    broken.chmod(0o755)
    monkeypatch.setenv("TORCH_MPI4PY_MPIEXEC", str(broken))
    message = failure()
    assert "mpiexec ended" in message
    assert "There are not enough slots" in message
    traces.gone_within(GONE_S)


def test_torch_cannot_be_imported(break_processes, tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError('libtorch is broken on purpose')")
    break_processes("")
    message = failure()
    assert "ended while starting" in message
    assert "ImportError: libtorch is broken on purpose" in message


def test_one_engine_ends_at_once(break_processes):
    break_processes(
        "if 'ipyranks.engine' in command and os.environ.get('PMIX_RANK') == '1':\n"
        "    sys.exit('rank 1 is broken on purpose')"
    )
    message = failure()
    assert "rank 1 is broken on purpose" in message


def test_one_engine_hangs(break_processes):
    break_processes(
        "if 'ipyranks.engine' in command and os.environ.get('PMIX_RANK') == '1':\n"
        "    import time; print('rank 1 dawdles', file=sys.stderr); time.sleep(600)"
    )
    message = failure(timeout=15)  # until it dawdles, and says so
    assert "not ready after 15 s" in message
    assert "waiting for ranks [0, 1]" in message or "waiting for ranks [1]" in message
    assert "rank 1 dawdles" in message


def test_the_controller_fails(break_processes):
    break_processes(
        "if 'ipyranks.controller' in command: sys.exit('the controller is broken on purpose')"
    )
    message = failure()
    assert "the controller ended" in message
    assert "the controller is broken on purpose" in message


def test_start_fails_without_ssh(traces, monkeypatch):
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    assert "node9 can't be reached: there is no program 'ssh'" in failure(hosts="node9:2")
    traces.gone_within(GONE_S)


def test_the_keeper_fails_after_starting_everything(break_processes):
    break_processes("if 'ipyranks.keeper' in command: sys.modules['ipyparallel.util'] = None")
    assert "ModuleNotFoundError: import of ipyparallel.util halted" in failure()


def test_the_keeper_fails(break_processes):
    break_processes("if 'ipyranks.keeper' in command: sys.exit('the keeper is broken on purpose')")
    message = failure()
    assert "the keeper is broken on purpose" in message


def test_a_notebook_shows_the_message_alone(new_kernel, monkeypatch):
    monkeypatch.setenv("TORCH_MPI4PY_MPIEXEC", "/nowhere/mpiexec")
    out = new_kernel().run("from ipyranks import start_cluster; start_cluster(2)")
    assert out.error["ename"] == "StartError"
    assert out.traceback.startswith("StartError: ")
    assert "src/ipyranks" not in out.traceback


def test_more_ranks_than_cores(traces):
    n = 16
    with start_cluster(n) as cluster:
        answers = cluster.view.apply_sync(_sum_of_ranks)
    assert answers == [(rank, n * (n - 1) // 2, 1) for rank in range(n)]
    traces.gone_within(GONE_S)


def _sum_of_ranks():
    from mpi4py import MPI

    threads = sys.modules["torch"].get_num_threads()
    return MPI.COMM_WORLD.rank, MPI.COMM_WORLD.allreduce(MPI.COMM_WORLD.rank), threads
