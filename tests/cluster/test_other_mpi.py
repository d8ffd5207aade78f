"""An MPI that cannot free ranks gets the same reports, and frees all that wait outside it.

These are the ranks that wait for others to come to a collective, and for messages. A rank that
waits inside MPI, as for a non-blocking collective, is lost: one restart at the end must repair
everything.
"""

from __future__ import annotations

import re

import pytest
from torch_mpi4py.board.observing import RankBoards

from tests.cluster.hangs import CLOCK, NO_SEND, RENEWED, begin, limit_passed, rows_of

pytestmark = pytest.mark.timeout(270)

LOST = "MPICH 5.0.2 cannot free a rank that is stuck inside it"
ADVICE = "cluster.restart() starts fresh ranks. This loses all variables"
ENDS = "All ranks have left the cell, but they cannot communicate any more: cluster.restart()"
LOOP = r"Rank 1 is still computing \[cell \d+, line [23]\]"
# A cell, the ranks that wait, and a pattern for the diagnosis.
HANGS = {
    "skipped": (
        "if rank == 0: dist.all_reduce(t)",
        [0],
        r"Rank 1 finished without the all_reduce in which rank 0 waits \[cell \d+, line 2\]",
    ),
    "skipped by comm": (
        "if rank == 0: comm.allreduce(1)",
        [0],
        r"Rank 1 finished without the allreduce in which rank 0 waits \[cell \d+, line 2\]",
    ),
    "endless loop before a barrier": (
        "while rank == 1:\n    n = 0\ncomm.barrier()",
        [0],
        LOOP + r"; rank 0 waits in barrier \[cell \d+, line 4\]",
    ),
    "endless loop": ("while rank == 1:\n    n = 0", [], LOOP),
    "receive first": (
        "comm.recv(source=1 - rank, tag=11)",
        [0, 1],
        r"Deadlock: ranks 0 and 1 both receive first \[cell \d+, line 2\]",
    ),
    "receive first, buffers": (
        "comm.Recv(np.empty(3), source=1 - rank, tag=12)",
        [0, 1],
        r"Deadlock: ranks 0 and 1 both receive first \[cell \d+, line 2\]",
    ),
    "no send": ("if rank == 0: comm.irecv(source=1, tag=13).wait()", [0], NO_SEND),
    "tag mismatch": (
        "comm.send(1, dest=1, tag=14) if rank == 0 else comm.recv(source=0, tag=15)",
        [1],
        "The tags do not match: rank 0 sends to rank 1 with tag 14 .* receives with tag 15",
    ),
}


@pytest.fixture
def kernel(new_kernel, mpich, monkeypatch, traces):
    """A kernel with two ranks under MPICH."""
    for name, value in mpich.variables.items():
        monkeypatch.setenv(name, value)
    started = new_kernel()
    started.start_cluster(2, "init_process_group=True")
    (directory,) = traces.directories()
    started.events = directory / "events"
    started.must("%px kept = rank * 11; t = torch.zeros(3)")
    started.must(CLOCK.format(path=started.is_late))
    return started


A_PROGRAM = "'from mpi4py import MPI; print(MPI.COMM_WORLD.allreduce(1))'"


def test_other_mpi_gives_same_reports_and_restarts(kernel, wait_until):
    start = f"subprocess.check_output([sys.executable, '-c', {A_PROGRAM}], timeout=40)"
    out = kernel.must(f"%%px\nimport subprocess, sys\n{start}, comm.allreduce(1)")
    assert out.text() == "".join(f"rank {rank} = (b'1\\n', 2)\n" for rank in range(2))

    out = kernel.run("%px dist.all_reduce(torch.ones(3 - rank))")
    assert out.error["evalue"].startswith("rank 0: MismatchError: ")
    assert LOST not in out.text()

    out = kernel.run("%%px\nif rank == 1: raise ValueError('mine')\ncomm.allreduce(1)")
    assert out.error["evalue"] == "rank 1: ValueError: mine"
    assert "rank 0: waiting in allreduce, pickle [cell" in out.traceback
    assert RENEWED in out.text()

    for name, (cell, waiting, says) in HANGS.items():
        computing = [1] if "while rank == 1" in cell else []
        finished = sorted({0, 1} - {*waiting, *computing})
        places = {"waiting": waiting, "computing": computing, "finished": finished}
        running = begin(kernel, cell, wait_until, **places, options=" --limit 60")
        with limit_passed(kernel):
            out = kernel.finish(running)
        assert out.error["ename"] == "HangError", name
        assert re.search(says, out.error["evalue"]), (name, out.traceback)
        rows = rows_of(out.traceback)
        assert [r for r, row in rows.items() if row.startswith("waiting")] == waiting, name
        assert LOST not in out.text(), (name, out.traceback)
        assert "All ranks are free again." in out.traceback, name
        if waiting:
            assert RENEWED in out.text(), (name, out.text())
            again = kernel.must("%%px\ndist.all_reduce(t)\n[comm.allreduce(1), kept]").text()
            assert again == "rank 0 = [2, 0]\nrank 1 = [2, 11]\n"

    def hang(cell: str) -> str:
        running = kernel.begin(f"%px {cell}")
        boards = RankBoards(kernel.events)
        in_place = lambda: None not in boards.waits([0, 1]).values()  # noqa: E731
        wait_until(in_place, 40, "the ranks wait")
        return running

    running = hang("comm.recv(source=1 - rank, tag=16)")
    kernel.interrupt()
    kernel.interrupt()
    out = kernel.finish(running)
    assert out.error["ename"] == "KeyboardInterrupt"
    assert "Deadlock: ranks 0 and 1 both receive first" in out.traceback
    assert "All ranks are free again." in out.traceback
    assert RENEWED in out.text()

    running = hang("comm.Ibarrier().Wait() if rank == 0 else comm.recv(source=0, tag=17)")
    kernel.interrupt()
    kernel.interrupt()
    out = kernel.finish(running)
    assert out.error["ename"] == "KeyboardInterrupt"
    assert ENDS in out.traceback
    assert LOST in out.text()
    assert ADVICE in out.text()

    hang("comm.recv(source=1 - rank, tag=18)")
    kernel.restart(now=True)
    said = kernel.start_cluster(2)
    assert "2 ranks found running; their variables are kept" in said
    assert ADVICE in said
    assert kernel.must("print(cluster.view['kept'])").text() == "[0, 11]\n"

    out = kernel.must("cluster.restart(); cluster.init_process_group()", within=120).text()
    assert re.search(r"2 fresh ranks in [\d.]+ s; all variables on them are lost: kept, n, t", out)
    out = kernel.must("%%px\nt = torch.ones(3)\ndist.all_reduce(t)\nt.tolist()").text()
    assert out == "rank 0 = [2.0, 2.0, 2.0]\nrank 1 = [2.0, 2.0, 2.0]\n"

    out = kernel.run("%%px\nimport os\nif rank == 1: os.kill(os.getpid(), 9)\ncomm.barrier()")
    assert re.match("(rank 1|ranks 0, 1) died: ", out.traceback)
    assert "MPICH 5.0.2 ends all ranks when one dies; cluster.restart() starts" in out.traceback
