"""However a rank leaves, the others are free in time, and no process or segment stays behind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests import ranks

START = """
import os, signal, sys, time
from datetime import timedelta
import torch, torch.distributed as dist
import torch_mpi4py as mpi
dist.init_process_group("mpi4py", init_method="mpi://", timeout=timedelta(seconds={longest}))
rank, size = dist.get_rank(), dist.get_world_size()
ones = torch.ones(3)
dist.all_reduce(ones)
dist.group.WORLD.set_timeout(timedelta(seconds={timeout}))  # all ranks had to come so far

def all_have(what):
    # MPI knows no such call: who has left a barrier, and dies, may end it for the others.
    store = dist.distributed_c10d._get_default_store()
    store.add(what, 1)
    deadline = time.monotonic() + {longest}
    while store.add(what, 0) < size:
        assert time.monotonic() < deadline, "not all ranks have " + what
        time.sleep(0.01)

if os.environ.get("SEGMENTS") and not os.listdir(os.environ["SEGMENTS"]):
    print("no segment where this test looks for them")
"""
# Importing torch on four ranks and two busy cores takes this long at most.
START_SECONDS = 80
# Whoever is not freed waits so long, which is longer than any program here may take.
LONGEST_SECONDS = 150
# 2 s are promised (0.2 s on two quiet cores); this machine may be far slower for moments.
FREE_SECONDS = 15


class Exits:
    """Runs programs and looks for what they leave."""

    def __init__(self, segments: Path, mpich: Callable[[], ranks.Library]) -> None:
        self.segments = segments
        self.mpich = mpich

    def run(
        self,
        n: int,
        program: str,
        timeout: float = LONGEST_SECONDS,
        within: float = 5,
        mpi: str = "openmpi",
        ulfm: bool = True,
        before: str = "",
    ) -> ranks.Run:
        """Run ``before``, START and ``program``; fail if it takes long or leaves something."""
        finished = ranks.run(
            n,
            "-c",
            before + START.format(timeout=timeout, longest=LONGEST_SECONDS) + program,
            limit=START_SECONDS + within,
            library=self.mpich() if mpi == "mpich" else ranks.OPEN_MPI,
            ulfm=ulfm,
            variables={
                "OMPI_MCA_btl_sm_backing_directory": str(self.segments),
                "SEGMENTS": str(self.segments) if mpi == "openmpi" and n > 1 else "",
            },
            leave_within=20,
        )
        assert finished.returncode is not None, f"still running:\n{finished.output}"
        assert "no segment where" not in finished.output
        assert "Fatal Python error" not in finished.output, finished.output
        assert not finished.left_behind, f"{finished.left_behind}\n{finished.output}"
        assert not list(self.segments.iterdir())
        return finished


@pytest.fixture
def exits(tmp_path: Path, request: pytest.FixtureRequest) -> Exits:
    segments = tmp_path / "segments"
    segments.mkdir()
    return Exits(segments, lambda: request.getfixturevalue("mpich"))


@pytest.mark.parametrize("mpi", ["openmpi", "mpich"])
@pytest.mark.parametrize(
    "end",
    ["", "dist.destroy_process_group()\nif rank == 0: sys.stdout.close()"],
    ids=["plain", "destroyed, and one prints no more"],
)
def test_clean_exit(exits: Exits, end: str, mpi: str) -> None:
    program = """
groups = [dist.new_group() for _ in range(3)]
dist.all_reduce(ones, group=groups[1], async_op=True).get_future().then(lambda done: 1).wait()
works = [dist.all_reduce(ones, async_op=True) for _ in range(10)]   # nobody waits for these
"""
    finished = exits.run(2, program + end, mpi=mpi)
    assert finished.returncode == 0, finished.output
    assert "rror" not in finished.output, finished.output


GIVE_A_SUM_TO_ATEXIT = """
import atexit

def end():
    import torch, torch.distributed as dist
    x = torch.ones(1)
    dist.all_reduce(x)
    print("sum", x.item(), flush=True)
    dist.destroy_process_group()

atexit.register(end)
"""


@pytest.mark.parametrize("mpi", ["openmpi", "mpich"])
def test_function_given_to_atexit_before_mpi_starts_communicates(exits: Exits, mpi: str) -> None:
    finished = exits.run(2, "", mpi=mpi, before="import torch" + GIVE_A_SUM_TO_ATEXIT)
    assert finished.returncode == 0, finished.output
    assert finished.output.count("sum 2.0") == 2, finished.output


def test_function_given_to_atexit_before_torch_is_told_why_it_comes_too_late(exits: Exits) -> None:
    """Python calls it after every function that torch or this package can give to atexit."""
    output = exits.run(2, "", before=GIVE_A_SUM_TO_ATEXIT).output
    advice = (
        "all_reduce: the program is ending and MPI has been closed; call it before the program "
        "ends, or give your function to atexit after init_process_group"
    )
    assert output.count(advice) == 2, output


def test_clean_exit_of_a_program_using_one_module() -> None:
    """It asks for no name of the package itself, but its rank has to leave MPI all the same."""
    program = "from torch_mpi4py.tools.clocks import clock_offsets; print(len(clock_offsets()))"
    finished = ranks.run(2, "-c", program, limit=START_SECONDS, ulfm=False, leave_within=20)
    assert finished.returncode == 0, finished.output
    assert finished.output.split() == ["2", "2"]


def test_forked_child_is_not_a_rank(exits: Exits) -> None:
    """It shares MPI's memory, but no rank waits for it; its error frees no rank."""
    program = """
from torch_mpi4py.log import peer_boards

def status_of(child):
    deadline, ended = time.monotonic() + 30, (0, 0)
    while ended[0] == 0 and time.monotonic() < deadline:
        ended = os.waitpid(child, os.WNOHANG)
        time.sleep(1e-2)
    if ended[0] == 0:
        os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(ended[1]) if ended[0] else None

work = dist.irecv(ones, 1 - rank, tag=5)
child = os.fork()
if child == 0:
    del work
    sys.exit(0)
assert status_of(child) == 0
dist.all_reduce(ones)
child = os.fork()
if child == 0:
    raise ValueError("in the child")
assert status_of(child) == 1
assert not peer_boards.board_of(rank).verdict, "the child has given the group up"
outcome = peer_boards.board_of(rank).at(work.event).outcome
assert outcome == "", f"the child has written {outcome} on the parent's board"
dist.send(ones, 1 - rank, tag=5)
work.wait()
print("all is well", flush=True)
"""
    finished = exits.run(2, program, within=40)
    assert finished.returncode == 0, finished.output
    assert finished.output.count("all is well") == 2, finished.output


@pytest.mark.parametrize("n", [1, 3])
def test_pending_receive_does_not_block_exit(exits: Exits, n: int) -> None:
    program = "work = dist.irecv(torch.ones(3), src=(rank + 1) % size) if size > 1 else None"
    finished = exits.run(n, program, within=12)
    assert finished.returncode == 0, finished.output


def test_rank_is_freed_from_create_group_at_its_deadline(exits: Exits) -> None:
    """Open MPI 5 stays in that call even if the communicator is revoked."""
    program = """
comm = mpi.renew_world()
if rank == 0:
    comm.timeout = 1
    try:
        comm.Create_group(comm.Get_group())
    except mpi.DeadlineError as error:
        print(str(error).partition(";")[0], flush=True)
all_have("tried")
"""
    output = exits.run(2, program, within=40).output
    assert output.count("Create_group: Timed out after 1 s") == 1, output


DAEMONS = """
import threading
from torch_mpi4py.exits import at_exit

def start(calls):
    threads = [threading.Thread(target=call, daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    until = time.monotonic() + 60
    while len(at_exit._threads_in_calls()) < len(threads):
        assert time.monotonic() < until, "the threads are not in their calls"
        time.sleep(0.01)
"""


@pytest.mark.parametrize(
    ("mpi", "ulfm", "ranks_that_wait"),
    [("openmpi", True, 2), ("openmpi", True, 1), ("openmpi", False, 2), ("mpich", False, 2)],
)
def test_daemon_threads_in_calls_do_not_end_the_job(
    exits: Exits, mpi: str, ulfm: bool, ranks_that_wait: int
) -> None:
    """All of them are ended before MPI is; a future's error has its own place."""
    program = f"""
comm = mpi.world()
if rank < {ranks_that_wait}:
    start([
        lambda: dist.recv(torch.zeros(1), 1 - rank),
        lambda: comm.recv(source=1 - rank, tag=5),
    ])
    future = dist.irecv(torch.zeros(1), 1 - rank, tag=7).get_future()
print("all is well", flush=True)
"""
    finished = exits.run(2, DAEMONS + program, within=30, mpi=mpi, ulfm=ulfm)
    assert finished.returncode == 0, finished.output
    assert finished.output.count("all is well") == 2, finished.output
    told = finished.output.count("was still in a call, which has been ended: recv")
    assert told == 2 * ranks_that_wait, finished.output
    assert "Traceback" not in finished.output, finished.output


def test_daemon_thread_receives_until_all_ranks_have_ended(exits: Exits) -> None:
    program = """
def receive():
    dist.recv(torch.zeros(1), 1)
    print("the message came", flush=True)

if rank == 0:
    start([receive])
else:
    from torch_mpi4py.exits import ends
    until = time.monotonic() + 60
    while 0 not in ends._left:
        assert time.monotonic() < until, "rank 0 has not ended"
        ends.hear()
        time.sleep(0.01)
    dist.send(ones[:1], 0)
"""
    finished = exits.run(2, DAEMONS + program, within=30)
    assert finished.returncode == 0, finished.output
    assert "the message came" in finished.output, finished.output


def test_rank_ends_without_finalize_if_a_daemon_thread_stays_in_a_call(exits: Exits) -> None:
    program = """
if rank == 0:
    work = dist.irecv(torch.zeros(1), 1)
    start([lambda: work.wait(timedelta(seconds=600))])
"""
    finished = exits.run(2, DAEMONS + program, within=30)
    assert finished.returncode == 0, finished.output
    assert finished.output.count("this rank ends without MPI_Finalize") == 1, finished.output


def test_uncaught_error_frees_the_others(exits: Exits) -> None:
    program = f"""
if rank == 1:
    raise ValueError("the reason")
began = time.monotonic()
try:
    dist.all_reduce(ones)
except mpi.CommunicationError as error:
    seconds = time.monotonic() - began
    print(f"rank {{rank}} was freed after {{seconds:.1f}} s", flush=True)
    assert seconds < {FREE_SECONDS}
    sys.exit(4)
"""
    finished = exits.run(3, program)
    assert finished.returncode not in (0, None), finished.output
    assert "ValueError: the reason" in finished.output
    assert "rank 0 was freed" in finished.output, finished.output
    assert "rank 2 was freed" in finished.output, finished.output


def test_uncaught_error_ends_the_job_without_fault_tolerance(exits: Exits) -> None:
    program = """
if rank == 1:
    raise ValueError("the reason")
dist.all_reduce(ones)
"""
    finished = exits.run(2, program, mpi="mpich")
    assert finished.returncode not in (0, None), finished.output
    assert "ValueError: the reason" in finished.output


def test_error_on_every_rank(exits: Exits) -> None:
    finished = exits.run(2, "dist.all_reduce(ones, async_op=True)\nraise ValueError('all of us')")
    assert finished.returncode not in (0, None)
    assert finished.output.count("ValueError: all of us") == 2


@pytest.mark.parametrize("mpi", ["openmpi", "mpich"])
@pytest.mark.parametrize("end", ["sys.exit(3)", "pass"])
def test_exiting_rank_frees_ranks_waiting_in_a_collective(exits: Exits, end: str, mpi: str) -> None:
    """At once, and not at their deadlines, as gloo does; the job's status says that it failed."""
    program = f"""
if rank != 1:
    began = time.monotonic()
    try:
        dist.all_reduce(ones, async_op=rank == 2) and dist.all_reduce(ones)
    except mpi.CommunicationError as error:
        assert "rank 1 ended without making this call" in str(error) or rank == 2, error
        assert time.monotonic() - began < {FREE_SECONDS}
        print("freed", flush=True)
        raise
else:
    {end}
"""
    finished = exits.run(3, program, within=FREE_SECONDS + 15, mpi=mpi)
    # Where MPI frees nobody, the launcher ends the job with the first that fails.
    assert finished.output.count("freed") >= (2 if mpi == "openmpi" else 1), finished.output
    assert finished.returncode not in (0, None), finished.output


@pytest.mark.parametrize("mpi", ["openmpi", "mpich"])
def test_exiting_rank_frees_ranks_waiting_for_it(exits: Exits, mpi: str) -> None:
    """In each kind of wait, on a group of its own."""
    program = f"""
comm = mpi.world()
comm.timeout = {LONGEST_SECONDS}
long = timedelta(seconds={LONGEST_SECONDS})
many = torch.ones(1_000_000)

def gather_with_a_time_out_in_its_options(group):
    options = dist.AllreduceOptions()
    options.timeout, options.asyncOp = long, True
    group.allreduce([ones], options).wait()

CALLS = [
    lambda group: dist.recv(ones, 1, group=group),
    lambda group: dist.irecv(ones, 1, group=group).wait(),
    lambda group: dist.recv(ones, group=group),
    lambda group: dist.send(many, 1, group=group),
    lambda group: dist.all_reduce(ones, group=group, async_op=True).wait(),
    gather_with_a_time_out_in_its_options,
    lambda group: comm.recv(source=1),
    lambda group: mpi.MPI.COMM_WORLD.Get_size() and comm.allreduce(1),
    lambda group: dist.new_group([0, 1], use_local_synchronization=True, timeout=long),
    lambda group: dist.new_group(timeout=long),
    lambda group: mpi.renew_world({LONGEST_SECONDS}),
]
groups = [dist.new_group(timeout=long) for _ in CALLS]
all_have("their groups")
if rank == 0:
    for call, group in zip(CALLS, groups):
        began = time.monotonic()
        try:
            call(group)
        except mpi.CommunicationError as error:
            how = "" if call is CALLS[7] and mpi.has_ulfm() else "rank 1 ended without"
            assert how in str(error), error  # that one was revoked by the one before
            assert time.monotonic() - began < {FREE_SECONDS}
            print("freed", flush=True)
"""
    finished = exits.run(2, program, within=60, mpi=mpi)
    assert finished.output.count("freed") == 11, finished.output


@pytest.mark.parametrize("mpi", ["openmpi", "mpich"])
def test_operations_before_a_rank_exits_are_delivered(exits: Exits, mpi: str) -> None:
    """The others go on without it, in groups of their own and by messages, for seconds."""
    program = """
large = torch.full((300_000,), float(rank))
pair = dist.new_group([0, 2])
if rank == 1:
    works = [dist.broadcast(large + i, src=1, async_op=True) for i in range(3)]
    works += [dist.isend(large, to, tag=tag) for to in (0, 2) for tag in (5, 6)]
    works += [dist.isend(ones, to, tag=7) for to in (0, 2)]
    sys.exit(0)
other = 2 - rank
time.sleep(4)  # what is tested is being late
for i in range(3):
    dist.broadcast(large, src=1)
    assert torch.equal(large, torch.full_like(large, 1.0 + i)), large
for _ in range(20):
    dist.all_reduce(ones, group=pair)
    time.sleep(0.1)
    dist.isend(ones, other, tag=9), dist.recv(ones, other, tag=9)
for tag, numbers in ((6, large), (7, ones), (5, large)):
    dist.recv(numbers, 1, tag=tag)
    assert tag == 7 or torch.equal(numbers, torch.ones_like(numbers)), numbers
assert dist.group.WORLD.failure is None
print("all is well", flush=True)
"""
    finished = exits.run(3, program, within=30, mpi=mpi)
    assert finished.returncode == 0, finished.output
    assert finished.output.count("all is well") == 2, finished.output


@pytest.mark.parametrize("mpi", ["openmpi", "mpich"])
@pytest.mark.parametrize("seconds", [2, LONGEST_SECONDS], ids=["briefly", "for long"])
@pytest.mark.parametrize("way", ["pass", "raise"])
def test_late_rank_in_init_process_group(
    request: pytest.FixtureRequest, tmp_path: Path, way: str, seconds: int, mpi: str
) -> None:
    """Rank 0 has given up; both come to their ends, whatever they do with their errors."""
    program = f"""
import os, sys, time
from datetime import timedelta
import torch.distributed as dist
import torch_mpi4py as mpi
rank = mpi.MPI.COMM_WORLD.Get_rank()
if rank == 1:
    deadline = time.monotonic() + {START_SECONDS}
    while not os.path.exists(sys.argv[1]) and time.monotonic() < deadline:
        time.sleep(0.01)
try:
    timeout = timedelta(seconds={seconds} if rank else 1)
    dist.init_process_group("mpi4py", init_method="mpi://", timeout=timeout)
except mpi.CommunicationError as error:
    open(sys.argv[1], "w").close()
    print("rank", rank, "gave up", flush=True)
    {way}
"""
    finished = ranks.run(
        2, "-c", program, tmp_path / "given up", limit=START_SECONDS + FREE_SECONDS,
        library=request.getfixturevalue("mpich") if mpi == "mpich" else ranks.OPEN_MPI,
    )  # fmt: skip
    assert finished.returncode is not None, f"still running:\n{finished.output}"
    assert not finished.left_behind
    assert "rank 0 gave up" in finished.output, finished.output
    assert "rank 1 gave up" in finished.output, finished.output


def test_exit_does_not_wait_for_a_vanished_process(exits: Exits) -> None:
    """It left without notifying MPI, which does not report it."""
    program = """
all_have("begun")
if rank == 1:
    os._exit(0)
print("rank 0 leaves", flush=True)
"""
    finished = exits.run(2, program, within=20)
    assert "rank 0 leaves" in finished.output, finished.output


def test_hanging_mpi_finalize_ends_the_process(exits: Exits) -> None:
    """It keeps the interpreter's lock, so nothing in Python could."""
    program = """
import ctypes
from torch_mpi4py.exits import at_exit
at_exit._FINALIZE_SECONDS = 1.0
mpi.MPI.Finalize = lambda: ctypes.PyDLL(None).sleep(600)
"""
    finished = exits.run(2, program, within=20)
    assert finished.returncode not in (0, None), finished.output
    assert "MPI_Finalize has not returned within 1 s" in finished.output, finished.output


@pytest.mark.parametrize(
    "timer",
    [
        "faulthandler.dump_traceback_later(8, exit=True)",
        "signal.setitimer(signal.ITIMER_REAL, 8)",
        "signal.signal(signal.SIGALRM, lambda *_: os._exit(1)); signal.alarm(8)",
    ],
)
def test_timers_set_before_import_are_kept(timer: str) -> None:
    program = f"""
import faulthandler, os, signal, sys, time
{timer}
import torch_mpi4py.core.runtime
print("begun", flush=True)
time.sleep(60)
print("the timer has gone", flush=True)
"""
    finished = ranks.run(2, "-c", program, limit=START_SECONDS + 60)
    assert "begun" in finished.output, finished.output
    assert "the timer has gone" not in finished.output


def test_pending_work_without_a_partner(exits: Exits) -> None:
    program = """
if rank == 1:
    work = dist.all_reduce(ones, async_op=True)
"""
    exits.run(2, program, timeout=2, within=16)


def test_error_in_a_collective_then_exit(exits: Exits) -> None:
    program = """
if rank == 1:
    try:
        dist.all_reduce(ones)
    except mpi.DeadlineError:
        print("the deadline passed", flush=True)
else:
    from torch_mpi4py.log import peer_boards
    board = peer_boards.board_of(1)
    until = time.monotonic() + 60
    while board.latest().outcome != "DeadlineError":
        assert time.monotonic() < until, board.events()
        time.sleep(0.01)
"""
    finished = exits.run(2, program, timeout=1, within=10)
    assert finished.returncode == 0, finished.output
    assert "the deadline passed" in finished.output


@pytest.mark.parametrize("mpi", ["openmpi", "mpich"])
def test_deadline_without_fault_tolerance(exits: Exits, mpi: str) -> None:
    program = """
comm = mpi.world()
comm.timeout = 1.0
groups = [dist.new_group(timeout=timedelta(seconds=60)) for _ in range(3)]
for group in groups:
    group.set_timeout(timedelta(seconds=1))
calls = [
    lambda group: dist.all_reduce(ones, group=group),
    lambda group: dist.recv(ones, src=0, group=group),
    lambda group: dist.all_reduce(ones, group=group, async_op=True).wait(),
    lambda group: comm.Ibarrier().Wait(),  # the only one that waits inside MPI
]
if rank == 1:
    for call, group in zip(calls, [*groups, None]):
        began = time.monotonic()
        try:
            call(group)
        except mpi.DeadlineError:
            assert time.monotonic() - began < 10
            print("the deadline passed", flush=True)
else:
    time.sleep(600)  # the launcher ends it when the other has left, or the run is still running
"""
    finished = exits.run(2, program, timeout=1, within=15, mpi=mpi, ulfm=False)
    # The stuck thread cannot be freed, so this rank ends without MPI's consent.
    assert finished.returncode not in (0, None), finished.output
    assert finished.output.count("the deadline passed") == 4, finished.output


def test_rank_that_learns_of_a_death_late_reports_it(exits: Exits) -> None:
    """The others' news may take long on a machine that stalls: what freed the rank says it."""
    program = """
from torch_mpi4py.faults import deaths
all_have("begun")
if rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
if rank == 2:
    known, first = deaths.failed_ranks, []

    def late(comm):
        first.append(time.monotonic())
        return known(comm) if time.monotonic() > first[0] + 1 else []

    deaths.failed_ranks = late
try:
    dist.recv(ones, 1 if rank == 0 else 0)
except mpi.RankFailedError as error:
    assert "rank 1 died" in str(error), error
    print("told of the death", flush=True)
"""
    finished = exits.run(3, program, within=20)
    assert finished.output.count("told of the death") == 2, finished.output


def test_stopped_courier_does_not_call_a_finalised_mpi(exits: Exits) -> None:
    """It carries messages of an emulated link; here the machine stops it in the middle of one."""
    program = """
from torch_mpi4py.emulation import link_queue
push, finalize = link_queue.HeldSend.push, mpi.MPI.Finalize

def push_late(self):
    time.sleep(1)
    return push(self)

def finalize_and_stay():
    finalize()
    time.sleep(2)

link_queue.HeldSend.push, mpi.MPI.Finalize = push_late, finalize_and_stay
with mpi.emulated_link(latency=1e-3):
    dist.recv(ones, 0) if rank else dist.isend(ones, 1)
"""
    finished = exits.run(2, program, within=20)
    assert finished.returncode == 0, finished.output
    assert "FINALIZE" not in finished.output, finished.output


# From Python 3.12 on no thread can be started in the functions of atexit; here in none.
NO_THREAD_AT_EXIT = """
import threading

def refuse(thread):
    raise RuntimeError("can't create new thread at interpreter shutdown")

threading.Thread.start = refuse
"""


def test_survivors_of_a_death_go_on_and_exit(exits: Exits) -> None:
    """Where a group survives failures, the living exchange messages, from any source too."""
    program = f"""
all_have("begun")
group = dist.group.WORLD
group.survives_failures = True
if rank == 2:
    os.kill(os.getpid(), signal.SIGKILL)
if rank == 0:
    later = torch.zeros(3)
    work, second = dist.irecv(ones), dist.irecv(later)
    try:
        work.wait()
        raise AssertionError("nobody has sent anything yet")
    except mpi.RankFailedError as error:
        assert "rank 2 died" in str(error), error
    assert group.failed_ranks() == group.acknowledge_failures() == [2]
    assert not work.is_completed()
    dist.send(ones, 1)
    work.wait()
    assert work._source_rank() == 1
    second.wait()
    assert torch.equal(later, 2 * ones), ("not filled in the order of posting", ones, later)
    try:
        dist.recv(ones, 2)
        raise AssertionError("the dead do not send")
    except mpi.RankFailedError:
        pass
    assert group.failure is None
    dist.send(ones, 1)
    print("the living went on", flush=True)
else:
    dist.recv(ones, 0)
    dist.send(ones, 0)
    dist.send(2 * ones, 0)
    dist.recv(ones, 0)
dist.destroy_process_group()
{NO_THREAD_AT_EXIT}
"""
    finished = exits.run(3, program, within=10)
    assert "the living went on" in finished.output, finished.output
    assert "Traceback" not in finished.output, finished.output
    assert finished.returncode == 0, finished.output


def test_message_before_acknowledging_a_death_is_received(exits: Exits) -> None:
    """Open MPI goes on to report the death of a receive that has ended since.

    Whichever way a rank looks, each in a group of its own.
    """
    program = """
LOOKS = [
    lambda group, work: group.acknowledge_failures(),
    lambda group, work: work.is_completed(),
    lambda group, work: work.wait(),
]
groups = [dist.new_group() for _ in LOOKS]
for group in groups:
    group.survives_failures = True
dist.group.WORLD.survives_failures = True
all_have("begun")
if rank == 2:
    os.kill(os.getpid(), signal.SIGKILL)
for look, group in zip(LOOKS, groups):
    if rank == 0:
        numbers, later = torch.zeros(3), torch.zeros(3)
        work, second = (dist.irecv(to, tag=7, group=group) for to in (numbers, later))
        try:
            work.wait()
            raise AssertionError("nobody has sent anything yet")
        except mpi.RankFailedError as error:
            assert "rank 2 died" in str(error), error
        dist.send(ones, 1, group=group)
        dist.recv(ones, 1, tag=8, group=group)  # sent after it, so the other one is here
        look(group, work)
        assert work.is_completed() and work.is_success() and work._source_rank() == 1
        assert torch.equal(numbers, 5 * torch.ones(3)), numbers
        assert group.acknowledge_failures() == [2]
        dist.send(ones, 1, group=group)
        second.wait()
        assert torch.equal(later, 6 * torch.ones(3)), later
        print("nothing was lost", flush=True)
    else:
        dist.recv(ones, 0, group=group)
        dist.send(5 * torch.ones(3), 0, tag=7, group=group)
        dist.send(ones, 0, tag=8, group=group)
        dist.recv(ones, 0, group=group)
        dist.send(6 * torch.ones(3), 0, tag=7, group=group)
dist.destroy_process_group()
"""
    finished = exits.run(3, program, within=20)
    assert finished.output.count("nothing was lost") == 3, finished.output
    assert "Traceback" not in finished.output, finished.output
    assert finished.returncode == 0, finished.output


@pytest.mark.parametrize("way", ["", "mpi.shrink()"], ids=["broken", "shrunk"])
def test_survivors_of_a_killed_rank_keep_their_exit_status(exits: Exits, way: str) -> None:
    program = f"""
all_have("begun")
if rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
began = time.monotonic()
try:
    for _ in range(1000):
        dist.all_reduce(ones)
except mpi.RankFailedError as error:
    assert "rank 1 died" in str(error), error
    assert time.monotonic() - began < {FREE_SECONDS}
    print("freed", flush=True)
{way}
print("a survivor leaves", flush=True)
sys.exit(3)
"""
    finished = exits.run(3, program, within=10)
    assert finished.returncode == 3, finished.output
    assert finished.output.count("freed") == 2, finished.output
    assert finished.output.count("a survivor leaves") == 2, finished.output


def test_uncaught_error_in_a_surviving_group_counts_as_a_death(exits: Exits) -> None:
    program = """
dist.group.WORLD.survives_failures = True
dist.barrier()
all_have("left the barrier")
if rank == 1:
    raise ValueError("the reason")
try:
    dist.recv(ones, 1)
except mpi.RankFailedError as error:
    assert "rank 1 died" in str(error), error
    dist.send(ones, 2) if rank == 0 else dist.recv(ones, 0)
    print("went on", flush=True)
"""
    finished = exits.run(3, program, within=10)
    assert finished.returncode == 0, finished.output
    assert "ValueError: the reason" in finished.output
    assert finished.output.count("went on") == 2, finished.output


def test_large_message_to_a_busy_rank_ends_after_its_deadline(exits: Exits) -> None:
    """Revoking does not end it in MPI, where the other rank would have to be, too."""
    program = f"""
comm, large = mpi.world(), np.zeros(1 << 24)
if rank == 0:
    comm.timeout, began = 1.0, time.monotonic()
    try:
        comm.Send(large, dest=1)
    except mpi.DeadlineError as error:
        assert "rank 1: computing" in str(error), error
        assert time.monotonic() - began < {1 + FREE_SECONDS}
        print("freed", flush=True)
all_have("seen it")
"""
    finished = exits.run(2, "import numpy as np\n" + program, within=FREE_SECONDS + 10)
    assert finished.output.count("freed") == 1, finished.output


def test_death_during_startup_is_not_waited_for(tmp_path: Path) -> None:
    program = f"""
import os, signal, sys, time
if os.environ["OMPI_COMM_WORLD_RANK"] == "1":
    deadline = time.monotonic() + {START_SECONDS}
    while not os.path.exists(sys.argv[1]) and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)
import torch_mpi4py.launch
open(sys.argv[1], "w").close()
import torch_mpi4py.core.runtime
"""
    finished = ranks.run(
        2, "-c", program, tmp_path / "begins", limit=START_SECONDS,
        variables={"TORCH_MPI4PY_START_SECONDS": "2"},
    )  # fmt: skip
    assert finished.returncode not in (0, None), finished.output
    assert "MPI_Init waits for all ranks, and some did not start within 2 s" in finished.output
    assert not finished.left_behind


def test_ranks_of_another_launcher_raise() -> None:
    program = START.format(timeout=5, longest=5)
    finished = ranks.run(1, "-c", program, limit=120, variables={"WORLD_SIZE": "2", "RANK": "0"})
    assert finished.returncode not in (0, None)
    assert "start this program with mpiexec" in finished.output, finished.output
