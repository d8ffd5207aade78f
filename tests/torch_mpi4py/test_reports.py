"""When ranks are given up, the error of every one ends with the same report on all."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ranks

START = """
import json, os, signal, sys, time
from datetime import timedelta
from pathlib import Path
import torch, torch.distributed as dist
import torch_mpi4py as mpi
from torch_mpi4py.log import shared_report, peer_boards
dist.init_process_group("mpi4py", init_method="mpi://", timeout=timedelta(seconds=60))
comm, rank, size = mpi.world(), dist.get_rank(), dist.get_world_size()
folder, three = Path(sys.argv[1]), torch.ones(3)

def note(name, error):
    partial = folder / f"partial-{rank}"  # a note is there as a whole, or not at all
    partial.write_text(json.dumps([type(error).__name__, str(error)]))
    partial.rename(folder / f"{name}-{rank}")

# In time for all to wait, on a machine that may stall: who comes later is not in the report.
BRIEF = 6

def given_up(name, call):
    group = dist.new_group()
    dist.barrier(group)
    group.set_timeout(timedelta(seconds=BRIEF))  # it has to hold for the call alone
    try:
        call(group)
    except mpi.CommunicationError as error:
        note(name, error)
    dist.barrier()
"""

HANGS = """
def receive_first(group):
    dist.recv(three, 1 - rank, group=group, tag=rank) if rank < 2 else None

def one_stays_away(group):
    if rank == 2:
        while not (folder / "one stays away-0").exists(): pass  # a loop that does not communicate
    dist.all_reduce(three, group=group)

given_up("receive first", receive_first)
given_up("one stays away", one_stays_away)

# Raw MPI: the first two wait for each other, the others for a message that nobody sends.
comm.timeout = BRIEF
try:
    comm.recv(source=size - 1 - rank, tag=4) if rank in (0, size - 1) else comm.Recv(three, 0)
except mpi.CommunicationError as error:
    note("raw", error)
dist.barrier()

# A rank that is killed can be read by the others.
if rank == 2:
    Path(folder / "ready").touch()
    dist.recv(three, 0, tag=77)
elif rank == 0:
    board = peer_boards.board_of(2)
    while not any(event.tag == 77 and event.waiting for event in board.open_operations()):
        time.sleep(1e-3)
    os.kill(board.pid, signal.SIGKILL)
    while shared_report.look().ranks[2].state != "dead":
        time.sleep(1e-3)
    (folder / "dead").write_text(shared_report.look().text())
"""


def run(folder: Path, n: int, program: str, **options: object) -> ranks.Run:
    finished = ranks.run(n, "-c", START + program, folder, limit=150, **options)
    assert finished.returncode is not None, f"still running:\n{finished.output}"
    assert not finished.left_behind, finished.output
    return finished


def read(folder: Path, name: str, n: int, finished: ranks.Run) -> tuple[list[str], list[str]]:
    """Return the kinds of the errors, and the lines of the report that ends them all."""
    files = [folder / f"{name}-{rank}" for rank in range(n)]
    assert all(map(Path.exists, files)), finished.output
    kinds, texts = zip(*(json.loads(file.read_text()) for file in files), strict=True)
    reports = {text.partition("\nWhat every rank was doing:\n")[2] for text in texts}
    assert len(reports) == 1, reports
    (report,) = reports
    return list(kinds), report.splitlines()


def test_hangs(tmp_path: Path) -> None:
    finished = run(tmp_path, 3, HANGS)
    site = "<string>:"
    kinds, lines = read(tmp_path, "receive first", 2, finished)
    assert set(kinds) <= {"DeadlineError", "RevokedError"}
    for rank, line in enumerate(lines[:2]):
        wanted = f"  rank {rank}: waiting in recv from rank {1 - rank}, tag {rank}, (3,) float32"
        assert line.startswith(wanted), lines
        assert site in line
    kinds, lines = read(tmp_path, "one stays away", 3, finished)
    assert kinds[2] == "RevokedError"
    for rank in (0, 1):
        assert lines[rank].startswith(f"  rank {rank}: waiting in all_reduce, SUM of 3 float32")
    assert lines[2].startswith("  rank 2: computing"), lines
    assert site in lines[2]
    kinds, lines = read(tmp_path, "raw", 3, finished)
    assert lines[0].startswith("  rank 0: waiting in recv from rank 2, tag 4, pickle"), lines
    assert lines[1].startswith("  rank 1: waiting in Recv from rank 0, (3,) float32"), lines
    assert lines[2].startswith("  rank 2: waiting in recv from rank 0, tag 4, pickle"), lines
    dead = (tmp_path / "dead").read_text()
    assert "\n  rank 2: dead" in dead, dead


# Whoever leaves with a status has its launcher end the others, so all wait until all have noted.
SMALL = """
dist.barrier()
try:
    comm.timeout = BRIEF
    comm.Recv(three, 1 - rank, tag=rank)
except mpi.CommunicationError as error:
    note("both", error)
deadline = time.monotonic() + 20
while len(list(folder.glob("both-*"))) < size:
    if time.monotonic() > deadline:
        raise TimeoutError("the other rank has noted no error")
    time.sleep(0.01)
sys.exit(3)
"""


@pytest.mark.parametrize("mpi", ["openmpi without ulfm", "mpich"])
def test_without_fault_tolerance(tmp_path: Path, mpi: str, request: pytest.FixtureRequest) -> None:
    library = request.getfixturevalue("mpich") if mpi == "mpich" else ranks.OPEN_MPI
    finished = run(tmp_path, 2, SMALL, library=library, ulfm=False)
    kinds, lines = read(tmp_path, "both", 2, finished)
    assert kinds == ["DeadlineError"] * 2
    for rank in (0, 1):
        wanted = f"  rank {rank}: waiting in Recv from rank {1 - rank}, tag {rank}, (3,) float32"
        assert lines[rank].startswith(wanted), lines
    assert lines[2].startswith("Deadlock: ranks 0 and 1 both receive first"), lines


def test_killed_ranks_leave_no_board_files(tmp_path: Path) -> None:
    """Also where there are no memory files: the ranks remove their files once all have them."""
    temporary = tmp_path / "t"
    temporary.mkdir()
    program = """
assert peer_boards.board_of(1 - rank).rank == 1 - rank
assert not list(Path(os.environ["BOARDS"]).iterdir())
(folder / f"here-{rank}").touch()  # who dies while others are in a barrier ends it for them
while len(list(folder.glob("here-*"))) < size:
    time.sleep(0.01)
os.kill(os.getpid(), signal.SIGKILL)
"""
    begin = "import os, tempfile\ndel os.memfd_create\ntempfile.tempdir = os.environ['BOARDS']\n"
    finished = ranks.run(
        2, "-c", begin + START + program, tmp_path, limit=120, variables={"BOARDS": str(temporary)}
    )
    assert "Error" not in finished.output, finished.output
    assert not list(temporary.iterdir())


HEARTBEAT = """
import sys
from torch_mpi4py.log import events, heartbeat

def shown():
    heartbeat.note()
    return events.log.reader.position

alone = shown()
assert alone.running and not alone.notebook and alone.began < alone.time, alone
assert "IPython" not in sys.modules
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
between = shown()
assert between.notebook and not between.running and not between.began, between
shell.user_ns["heartbeat"] = heartbeat
shell.run_cell("heartbeat.note()\\ninside = heartbeat._shown", store_history=True)
inside = shell.user_ns["inside"]
assert (inside.running, inside.cell, inside.site) == (True, 1, "cell 1, line 1"), inside
shell.run_cell("1 / 0", store_history=True)
after = shown()
assert (after.running, after.cell) == (False, 2), after
assert after.outcome == "ZeroDivisionError: division by zero", after
assert after.began > inside.began, after
print("all is shown")
"""


def test_the_heartbeat_shows_programs_and_the_cells_of_any_ipython() -> None:
    finished = ranks.run(1, "-c", HEARTBEAT, limit=100)
    assert "all is shown\n" in finished.output, finished.output


def test_shell_is_none_while_ipython_is_being_imported(tmp_path: Path) -> None:
    """As the heartbeat's thread may; the module has no function yet."""
    imported = "from torch_mpi4py.board import call_site\nprint(call_site.shell())\n"
    (tmp_path / "IPython.py").write_text(f"{imported}def get_ipython(): return 'made'\n{imported}")
    ended = subprocess.run(
        [sys.executable, "-c", "import IPython"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ended.stdout == "None\nmade\n", ended.stderr


IMPORT_CALL_SITE = """
import builtins
from torch_mpi4py.board.call_site import call_site
builtins.call_site = call_site
"""
STRINGS = """
for text in ("print(call_site())", "\\n\\nprint(call_site())"): exec(text)
"""
CELL = """
from IPython.core.interactiveshell import InteractiveShell
InteractiveShell.instance().run_cell("print(call_site())\\nprint(call_site())", store_history=True)
"""


@pytest.mark.parametrize(
    ("program", "sites"),
    [(STRINGS, ["<string>:1", "<string>:3"]), (CELL, ["cell 1, line 1", "cell 1, line 2"])],
    ids=["strings", "cell"],
)
def test_codes_of_one_name_have_lines_of_their_own(program: str, sites: list[str]) -> None:
    """Each string that exec() runs, and each statement of a cell, is a code that begins at 1."""
    ended = subprocess.run(
        [sys.executable, "-c", IMPORT_CALL_SITE + program],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ended.stdout.splitlines() == sites, ended.stderr
