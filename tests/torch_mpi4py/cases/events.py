"""The event log holds exactly what a known program did, and other ranks can read it."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import threading
import time
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist
import torch_mpi4py as mpi
from torch_mpi4py import MPI, MismatchError
from torch_mpi4py.board import observing
from torch_mpi4py.board.event_board import RECORDS
from torch_mpi4py.comm import comm_events, guarded_comm, requests
from torch_mpi4py.comm.call_arguments import bytes_of
from torch_mpi4py.log import events, heartbeat, peer_boards

from tests.torch_mpi4py.helpers import raises, sizes

WITHIN = 20.0


def next_line() -> str:
    """Return what the log calls the line after the caller's."""
    return f"events.py:{sys._getframe(1).f_lineno + 1}"


def rows(since: int, *names: str) -> list[tuple]:
    """Return some attributes of the events from number ``since``, and check the rest."""
    found = events.events(since)
    for event in found:
        assert event.end is not None, event
        assert event.end >= event.start, event
    return [tuple(getattr(event, name) for name in names) for event in found]


@sizes(1, 2, 3, 4)
def case_collectives(rank: int, size: int) -> None:
    ones, many = torch.ones(2, 3), torch.ones(2 * size, dtype=torch.int16)
    begin = events.mark()
    at = [next_line()]
    dist.all_reduce(ones)
    at.append(next_line())
    work = dist.all_reduce(ones, op=dist.ReduceOp.MAX, async_op=True)
    work.wait()
    at.append(next_line())
    dist.broadcast(ones, src=size - 1)
    at.append(next_line())
    dist.reduce(ones, dst=0)
    at.append(next_line())
    dist.all_to_all_single(torch.empty_like(many), many)
    at.append(next_line())
    dist.barrier()
    wanted = [
        ("all_reduce", "float32", "SUM of 6", 24, -1),
        ("all_reduce", "float32", "MAX of 6", 24, -1),
        ("broadcast", "float32", "6", 24 if rank == size - 1 else 0, size - 1),
        ("reduce", "float32", "SUM of 6", 24, 0),
        ("all_to_all_single", "int16", "", 4 * size, -1),
        ("barrier", "", "", 0, -1),
    ]
    assert rows(begin, "kind", "dtype", "shape", "bytes", "root") == wanted
    assert rows(begin, "site") == [(site,) for site in at]
    everyone = tuple(range(size))
    assert set(rows(begin, "group", "outcome", "ranks")) == {("default", "ok", everyone)}


@sizes(2, 3, 4)
def case_messages(rank: int, size: int) -> None:
    after, before = (rank + 1) % size, (rank - 1) % size
    sent, received = torch.ones(4, 2), torch.zeros(4, 2)
    begin = events.mark()
    at = [next_line()]
    request = dist.isend(sent, after, tag=5)
    at.append(next_line())
    dist.recv(received, before, tag=5)
    request.wait()
    dist.barrier()
    at.append(next_line())
    request = dist.isend(sent[0], after)
    at.append(next_line())
    dist.recv(received[0])
    request.wait()
    wanted = [
        ("send", after, 5, 32, "(4, 2)", at[0]),
        ("recv", before, 5, 32, "(4, 2)", at[1]),
        ("send", after, 0, 8, "(2,)", at[2]),
        ("recv", before, 0, 8, "(2,)", at[3]),  # from any rank: the log says from which
    ]
    names = ("kind", "peer", "tag", "bytes", "shape", "site")
    assert [row for row in rows(begin, *names) if row[0] != "barrier"] == wanted


@sizes(2, 4)
def case_events_record_group_name_and_group_ranks(rank: int, size: int) -> None:
    pair = dist.new_group([size - 2, size - 1], group_desc="the last two")
    if rank >= size - 2:
        begin = events.mark()
        dist.all_reduce(torch.ones(1), group=pair)
        if rank == size - 1:
            dist.send(torch.ones(1), size - 2, group=pair)
        else:
            dist.recv(torch.ones(1), size - 1, group=pair)
        found = events.events(begin)
        assert {event.group for event in found} == {"the last two"}
        assert {event.ranks for event in found} == {(size - 2, size - 1)}
        other = size - 2 if rank == size - 1 else size - 1
        assert found[1].world_peer == other
        assert found[1].peer == other - (size - 2)


@sizes(2, 3)
def case_calls_of_comm(rank: int, size: int) -> None:
    comm = mpi.world()
    after, before = (rank + 1) % size, (rank - 1) % size
    four, space = np.arange(4.0), np.zeros(4)
    begin = events.mark()
    comm.Sendrecv(four, after, 1, space, before, 1)
    at = next_line()
    request = comm.isend({"a": rank}, after, tag=2)
    assert comm.recv(source=MPI.ANY_SOURCE, tag=2) == {"a": before}
    assert request.wait() is None
    request = comm.Irecv(space, source=before)
    comm.Send([four, 2, MPI.DOUBLE], dest=after)
    request.Wait()
    comm.Send(four, MPI.PROC_NULL)  # no message, no event
    comm.Allreduce(MPI.IN_PLACE, space)
    assert comm.bcast(rank, root=1) == 1
    pickled = len(MPI.pickle.dumps({"a": rank}))
    wanted = [
        ("Sendrecv: send", after, 1, 32, "float64", -1),
        ("Sendrecv: recv", before, 1, 32, "float64", -1),
        ("isend", after, 2, pickled, "pickle", -1),
        ("recv", before, 2, pickled, "pickle", -1),
        ("Irecv", before, 0, 16, "float64", -1),
        ("Send", after, 0, 16, "float64", -1),
        ("Allreduce", -1, -1, 32, "float64", -1),
        ("bcast", -1, -1, -1, "pickle", 1),
    ]
    assert rows(begin, "kind", "peer", "tag", "bytes", "dtype", "root") == wanted
    assert rows(begin, "site")[2] == (at,)
    assert set(rows(begin, "group", "outcome")) == {("world", "ok")}


TAG = 3


class OneCall:
    """A call of one of comm's methods, with the arguments that its signature names."""

    def __init__(self, comm: mpi.GuardedComm, name: str, size: int) -> None:
        self.comm, self.name = comm, name
        self.other = 1 - comm.Get_rank()
        self.names = list(inspect.signature(getattr(MPI.Intracomm, name)).parameters)[1:]
        self.values = {
            "obj": "x", "sendobj": ["x"] * size, "dest": self.other, "source": self.other,
            "tag": TAG, "sendtag": TAG, "recvtag": TAG, "root": 1, "op": MPI.SUM,
            "group": comm.Get_group(), "color": 0, "split_type": MPI.COMM_TYPE_SHARED,
            "key": 0, "info": MPI.INFO_NULL, "status": MPI.Status(),
        }  # fmt: skip
        one = np.zeros(4)

        def all_of_them() -> np.ndarray | list:
            numbers = np.zeros(4 * size)
            if name.endswith("v"):
                return [numbers, ([4] * size, [0, 4]), MPI.DOUBLE]
            if name.endswith("w"):
                return [numbers, ([4] * size, [0, 32]), [MPI.DOUBLE] * size]
            return numbers

        gives_all = "lltoall" in name or name.removeprefix("I").lower().startswith("scatter")
        gets_all = "lltoall" in name or "ather" in name
        self.values["buf"] = one
        self.values["sendbuf"] = all_of_them() if gives_all else one
        self.values["recvbuf"] = all_of_them() if gets_all else one.copy()
        if "educe_scatter" in name:
            self.values["sendbuf"], self.values["recvcounts"] = np.zeros(4 * size), [4] * size
        if name.islower() and "recvbuf" in self.names:
            self.values["recvbuf"] = None
        if name == "irecv" or name == "recv":
            self.values["buf"] = None

    def make(self, by_name: bool) -> list[tuple]:
        """Make the call, with what it needs from MPI on the other side; return its events."""
        plain, requests = MPI.Intracomm, []
        sends, receives = "dest" in self.names, "source" in self.names
        if sends and not receives:
            requests.append(plain.Irecv(self.comm, bytearray(512), self.other, TAG))
        if receives and not sends:
            data = [MPI.pickle.dumps("x"), MPI.BYTE] if self.name.islower() else np.zeros(4)
            requests.append(plain.Isend(self.comm, data, self.other, TAG))
        self.comm.Barrier()  # a ready send wants its receive to be there
        begin = events.mark()
        arguments = {name: self.values[name] for name in self.names}
        method = getattr(self.comm, self.name)
        made = method(**arguments) if by_name else method(*arguments.values())
        if isinstance(made, MPI.Request):
            made.Wait()
        elif isinstance(made, MPI.Message):
            MPI.Message.Recv(made, bytearray(512))
        elif isinstance(made, MPI.Comm):
            made.Free()
        if "robe" in self.name and not isinstance(made, MPI.Message):
            plain.Recv(self.comm, bytearray(512), self.other, TAG)
        MPI.Request.Waitall(requests)
        found = events.events(begin)
        return [(e.kind, e.peer, e.tag, e.root, e.dtype, e.bytes) for e in found]

    def wanted(self) -> list[tuple]:
        """Return what is to be logged, by the names of the arguments alone."""
        pickled, rank, names = self.name.islower(), self.comm.Get_rank(), self.names
        item = self.values["sendobj" if "sendobj" in names else "obj"]
        item_bytes = len(MPI.pickle.dumps(item)) if pickled else 32
        dtype = "pickle" if pickled else "float64"
        if "dest" in names or "source" in names:
            sides = []
            if "dest" in names:
                sides.append(("send", dtype, item_bytes))
            if "source" in names:
                probe = "robe" in self.name
                sides.append(("recv", "" if probe else dtype, -1 if probe else item_bytes))
            both = len(sides) == 2
            return [
                (f"{self.name}: {side}" if both else self.name, self.other, TAG, -1, dtype, size)
                for side, dtype, size in sides
            ]
        root = 1 if "root" in names else -1
        if "arrier" in self.name or self.name in comm_events.MAKE_COMMUNICATORS:
            return [(self.name, -1, -1, root, "", -1)]
        if pickled:
            return [(self.name, -1, -1, root, "pickle", -1)]  # it is not pickled to find out
        key = "buf" if "buf" in names else "sendbuf"
        size = bytes_of(self.values[key])
        only_root_gives = "cast" in self.name or self.name.removeprefix("I").lower().startswith(
            "scatter"
        )
        return [(self.name, -1, -1, root, dtype, 0 if only_root_gives and rank != 1 else size)]


@sizes(2)
def case_keyword_and_positional_calls_are_logged_alike(rank: int, size: int) -> None:
    """By position or by name: what mpi4py takes for the tag, the log does, too."""
    comm = mpi.world()
    names = (*guarded_comm.BLOCKING, *requests.NON_BLOCKING, *comm_events.MAKE_COMMUNICATORS)
    names = [name for name in names if hasattr(MPI.Intracomm, name)]
    assert len(names) > 70
    MPI.Attach_buffer(bytearray(2**16))
    try:
        for name in names:
            call = OneCall(comm, name, size)
            wanted = call.wanted()
            for by_name in (False, True):
                found = call.make(by_name)
                assert found == wanted, (name, by_name, found, wanted)
    finally:
        MPI.Detach_buffer()


@sizes(2)
def case_board_shows_open_operations_to_other_ranks(rank: int, size: int) -> None:
    space = torch.zeros(3)
    if rank == 0:
        unattended = dist.irecv(space, 1, tag=8)
        at = next_line()
        dist.recv(torch.zeros(2), 1, tag=9)
        dist.broadcast_object_list([at], src=0)
        unattended.wait()
        return
    board = peer_boards.board_of(0)
    deadline = time.monotonic() + WITHIN
    # Not any waiting operation: rank 0 may not even have left the barrier before this case.
    while not any(event.waiting and event.tag == 9 for event in board.open_operations()):
        assert time.monotonic() < deadline, board.events()
        time.sleep(1e-3)
    found = board.open_operations()
    dist.send(torch.ones(2), 0, tag=9)
    at = [None]
    dist.broadcast_object_list(at, src=0)
    dist.send(torch.ones(3), 0, tag=8)
    assert [(e.kind, e.peer, e.tag, e.waiting) for e in found] == [
        ("recv", 1, 8, False),
        ("recv", 1, 9, True),
    ]
    assert found[1].site == at[0]
    assert found[1].outcome == ""
    assert found[1].end is None


def is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def case_heartbeat_keeps_outcome_of_ended_program(rank: int, size: int) -> None:
    """The watcher may be stopped between its look at the program and its writing of what it saw."""
    board, outcome = peer_boards.board_of(rank), ""

    def ends_meanwhile(frame: object) -> str:
        if is_main_thread():  # the watcher looks here, too, and might come after this case
            heartbeat.ended(ValueError("the reason"))
        return "program.py:1"

    try:
        with mock.patch.object(heartbeat, "site_of", ends_meanwhile):
            heartbeat.note()
        outcome = board.position.outcome
    finally:
        heartbeat._over = False
        heartbeat._show(running=True, outcome="")
    assert outcome == "ValueError: the reason", board.position


def case_heartbeat_keeps_line_of_breakpoint(rank: int, size: int) -> None:
    """The main thread may stop while the watcher, without a core, still has an older line."""

    def stops_meanwhile(frame: object) -> str:
        if is_main_thread():
            heartbeat.stand_at_breakpoint("cell 3, line 2")
        return "breakpoints.py:1"

    try:
        with mock.patch.object(heartbeat, "site_of", stops_meanwhile):
            heartbeat.note()
        heartbeat.note()
        site = peer_boards.board_of(rank).position.site
    finally:
        heartbeat.go_on()
    assert site == "cell 3, line 2", site


def case_ended_process_is_not_alive(rank: int, size: int) -> None:
    child = subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE)
    child.stdout.read()  # it has closed its end: it ends, and is not collected yet
    deadline = time.monotonic() + WITHIN
    while observing.is_alive(child.pid):
        assert time.monotonic() < deadline, "a process that nobody has collected has ended"
        time.sleep(0.01)
    child.wait()
    assert not observing.is_alive(child.pid)
    assert observing.is_alive(os.getpid())


@sizes(2)
def case_open_operations_outlive_a_full_ring(rank: int, size: int) -> None:
    pending = dist.irecv(torch.zeros(1), 1 - rank, tag=3)
    (waits,) = events.log.reader.open_operations()
    heard = []
    events.log.listeners.append(heard.append)
    begin = events.mark()
    for number in range(RECORDS + 500):
        with events.section(str(number)):
            pass
    events.log.listeners.remove(heard.append)
    assert events.log.reader.open_operations() == [waits]
    kept = events.events()
    assert len(kept) == RECORDS
    assert kept[0] == waits
    latest = [event.shape for event in kept[1:]]
    # The ring keeps the latest, in order, but for the one place that the open one holds.
    assert latest == [str(n) for n in range(501, RECORDS + 500)]
    assert [event.number for event in heard] == list(range(begin, events.mark()))
    dist.isend(torch.ones(1), 1 - rank, tag=3).wait()
    pending.wait()
    assert events.log.reader.open_operations() == []


@sizes(2)
def case_errors_and_dropped_handles_are_logged(rank: int, size: int) -> None:
    begin = events.mark()
    with raises(MismatchError):
        dist.all_reduce(torch.ones(2 + rank))
    handle = dist.isend(torch.ones(1), 1 - rank)
    dist.recv(torch.ones(1), 1 - rank)
    del handle
    with raises(KeyError), events.section("raises"):
        raise KeyError("x")
    outcomes = [("all_reduce", "MismatchError"), ("send", "dropped"), ("recv", "ok")]
    assert rows(begin, "kind", "outcome") == [*outcomes, ("section", "KeyError")]


@sizes(2)
def case_destroying_a_group_ends_open_operations(rank: int, size: int) -> None:
    group = dist.new_group()
    kept = dist.irecv(torch.zeros(1), 1 - rank, group=group)
    begin = events.mark() - 1
    assert [e.outcome for e in events.events(begin)] == [""]
    dist.isend(torch.ones(1), 1 - rank, group=group).wait()
    dist.barrier()
    dist.destroy_process_group(group)
    assert events.events(begin)[0].outcome == "dropped"
    assert kept is not None


@sizes(1, 2)
def case_log_can_be_switched_off(rank: int, size: int) -> None:
    events.log.enabled = False
    try:
        begin = events.mark()
        dist.all_reduce(torch.ones(1))
        mpi.world().Barrier()
        with events.section("not recorded"):
            pass
        assert events.events(begin) == []
    finally:
        events.log.enabled = True
    dist.all_reduce(torch.ones(1))
    assert len(events.events(begin)) == 1


@sizes(1)
def case_threads_write_concurrently(rank: int, size: int) -> None:
    begin = events.mark()

    def write(name: str) -> None:
        for _ in range(1000):
            with events.section(name):
                pass

    threads = [threading.Thread(target=write, args=(str(n),)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = events.events(begin)
    assert [event.number for event in found] == list(range(begin, begin + 4000))
    assert sorted(event.shape for event in found) == sorted("0123" * 1000)
    assert all(event.end is not None for event in found)
