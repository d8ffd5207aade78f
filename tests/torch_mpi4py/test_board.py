"""A board can be read while, and after, another process writes it, however that one ends."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch_mpi4py.board.event_board import (
    NEVER_WAITS,
    RECORDS,
    RECORDS_AT,
    TOTAL,
    WAITING,
    Board,
    BoardWriter,
    Position,
    group_text,
)
from torch_mpi4py.board.observing import RankBoards, observe

WRITER = """
import itertools, sys
from torch_mpi4py.board.event_board import BoardWriter, Position
from pathlib import Path
board = BoardWriter(3, 4, Path(sys.argv[1]))
recv = board.string("recv")
board.begin(recv, 0, 1, "cell 5, line 2", peer=1, tag=7, size=12)
board.set_verdict("default", "it hangs")
position = Position(1.5, 0.5, "cell 5, line 2", 5, True, "", 1.0, 0.25, 4, True, "a run", True, 2)
board.set_position(position)
send, texts = board.string("send"), [(name, board.string(name)) for name in "abcdefgh"]
for turn in itertools.count():
    if turn == 2000:  # the ring has turned over
        print("ready", flush=True)
    for n, (name, at) in enumerate(texts):  # every field of a record says n
        event = board.begin(send, 0, 0, name, at, at, n, n, n, n, 1.0 + n)
        board.end(event, outcome=name, when=1.0 + n)
"""


def write(board: BoardWriter, kind: str, waiting: int = WAITING) -> tuple[int, int]:
    return board.begin(board.string(kind), 0, waiting, "", size=0)


@pytest.fixture
def writer(tmp_path: Path, root: Path) -> Iterator[tuple[Path, subprocess.Popen]]:
    path = tmp_path / "events" / "3"
    command = [sys.executable, "-c", WRITER, path]
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "ready\n"
            yield path, process
        finally:
            process.kill()


def test_reading_while_another_process_writes(writer: tuple[Path, subprocess.Popen]) -> None:
    path, process = writer
    board = Board.open(path)
    assert (board.pid, board.rank, board.world_size) == (process.pid, 3, 4)
    for _ in range(20):
        events = [event for event in board.events() if event.kind == "send"]
        assert len(events) > RECORDS // 2  # the others were being written
        for event in events:
            n = event.peer
            fields = (event.root, event.tag, event.bytes, event.start - 1, event.site)
            assert fields == (n, n, n, n, "abcdefgh"[n]), event
            assert event.end in (None, 1.0 + n)


@pytest.mark.parametrize("signum", [signal.SIGSTOP, signal.SIGKILL], ids=["stopped", "killed"])
def test_board_of_a_stopped_or_dead_process(
    writer: tuple[Path, subprocess.Popen], signum: int
) -> None:
    path, process = writer
    process.send_signal(signum)
    if signum == signal.SIGKILL:
        process.wait(60)
    board = Board.open(path)
    waits = next(event for event in board.open_operations() if event.waiting)
    assert (waits.kind, waits.peer, waits.tag, waits.site) == ("recv", 1, 7, "cell 5, line 2")
    assert board.verdict.text == "it hangs"
    assert board.position == (
        1.5,
        0.5,
        "cell 5, line 2",
        5,
        True,
        "",
        1.0,
        0.25,
        4,
        True,
        "a run",
        True,
        2,
    )
    assert board.latest().kind == "send"
    assert board.latest_end == board.latest().end


def test_half_written_record_is_skipped() -> None:
    board = BoardWriter(0, 1)
    write(board, "send")
    write(board, "recv")
    at = RECORDS_AT  # of the first
    board._memory[at] += 5  # as if the first number were new and the last one old
    assert [event.kind for event in board.reader.events()] == ["recv"]


@pytest.mark.parametrize("read", ["open_operations", "latest", "events"])
def test_operation_ending_during_observe_is_seen_once(read: str, monkeypatch) -> None:
    board = BoardWriter(0, 1)
    before = write(board, "all_reduce", NEVER_WAITS)
    board.end(before)
    token = write(board, "all_reduce", NEVER_WAITS)

    def then_it_ends(reader: Board, *arguments: int):
        found = unchanged(reader, *arguments)
        board.end(token)
        return found

    unchanged = getattr(Board, read)
    monkeypatch.setattr(Board, read, then_it_ends)
    seen = observe(0, board.reader, {0: 0}, alive=True)
    assert [event.number for event in (*seen.past, *seen.operations)] == [before[0], token[0]]


def test_oldest_operation_is_replaced_when_all_slots_are_open() -> None:
    board = BoardWriter(0, 1)
    first = write(board, "send")
    for _ in range(RECORDS):
        write(board, "recv", NEVER_WAITS)
    board.end(first)  # its place belongs to another one now
    events = board.reader.open_operations()
    assert len(events) == RECORDS
    assert {event.kind for event in events} == {"recv"}


def test_strings_over_capacity_become_empty() -> None:
    board = BoardWriter(0, 1)
    assert board.string("early")
    for number in range(20):
        board.string(str(number) * 60_000)
    assert board.string("new" * 20_000) == 0
    board.end(write(board, "early"), outcome="early")
    assert board.reader.latest().outcome == "early"


def test_unwritable_path_falls_back_to_private_memory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    board = BoardWriter(0, 1, tmp_path / "file" / "0")
    assert board.path is None
    write(board, "send")
    assert len(board.reader.events()) == 1


@pytest.mark.parametrize("in_a_folder", [True, False])
def test_full_file_system_leaves_no_files_behind(in_a_folder: bool, tmp_path: Path) -> None:
    folder = Path("/proc/self/fd")
    before = len(list(folder.iterdir())) if folder.is_dir() else 0
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (TOTAL - 1, hard))  # a file cannot grow larger
    try:
        board = BoardWriter(0, 1, tmp_path / "0" if in_a_folder else None)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert board.path is None
    assert list(tmp_path.iterdir()) == []
    assert (len(list(folder.iterdir())) if folder.is_dir() else 0) == before


def test_long_verdict_is_truncated() -> None:
    board = BoardWriter(0, 1)
    board.set_verdict("default", "x" * 100_000)
    text = board.reader.verdict.text
    assert set(text) == {"x"}
    assert 16_000 < len(text) < 17_000


def test_invalid_board_file_raises(tmp_path: Path) -> None:
    path = tmp_path / "0"
    path.write_bytes(b"short")
    with pytest.raises(ValueError, match="too small"):
        Board.open(path)
    path.write_bytes(bytes(5_000_000))
    with pytest.raises(ValueError, match="not an event board"):
        Board.open(path)


def test_members_of_large_groups_use_little_space() -> None:
    board = BoardWriter(0, 10_000)
    ranks = (0, 2, *range(5, 10_000))
    place = board.string(group_text("rows", ranks))
    board.begin(board.string("barrier"), place, WAITING, "")
    (event,) = board.reader.events()
    assert event.group == "rows"
    assert event.ranks == ranks


def test_without_memory_files_the_path_is_temporary(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.delattr(os, "memfd_create", raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    board = BoardWriter(0, 1)
    assert board.temporary
    write(board, "send")
    assert len(Board.open(board.path).events()) == 1
    assert Path(board.path).parent == tmp_path


def test_numbers_are_consecutive_with_many_open_operations() -> None:
    """To begin an operation takes no longer where all places are open, or all but a few."""
    board = BoardWriter(0, 1)
    opened = [write(board, "recv", NEVER_WAITS) for _ in range(3 * RECORDS)]
    assert [number for number, _ in opened] == list(range(1, 3 * RECORDS + 1))
    assert len({place for _, place in opened[-RECORDS:]}) == RECORDS
    for token in opened[-3:]:
        board.end(token)
    for _ in range(100):
        board.end(write(board, "send"))
    events = board.reader.events()
    assert [event.number for event in events if event.kind == "send"] == [
        3 * RECORDS + 98,
        3 * RECORDS + 99,
        3 * RECORDS + 100,
    ]
    assert len(board.reader.open_operations()) == RECORDS - 3


def test_operation_ended_twice_frees_its_slot_once() -> None:
    board = BoardWriter(0, 1)
    for _ in range(RECORDS):
        token = write(board, "send")
        board.end(token)
        board.end(token)
        board.drop(token)
    places = [write(board, "recv")[1] for _ in range(RECORDS)]
    assert len(set(places)) == RECORDS


SHAPES = 60_000  # far more than there is room for


def test_new_strings_reuse_space() -> None:
    board = BoardWriter(0, 1)
    early = board.begin(board.string("recv"), 0, WAITING, "early.py:1", size=0)
    other = Board(board._memory)  # as in another process
    send, kept = board.string("send"), board.string("float32")
    for number in range(SHAPES):
        shape = board.passing_string(f"({number}, 3)")
        token = board.begin(send, 0, WAITING, f"program.py:{number}", kept, shape, peer=number)
        board.end(token)
        if number % 5000 == 4999:
            for reader in (board.reader, other):
                events = reader.events()
                assert len(events) == min(number + 2, RECORDS)
                for event in (one for one in events if one.kind == "send"):
                    fields = (event.site, event.shape, event.dtype)
                    at = event.peer
                    assert fields == (f"program.py:{at}", f"({at}, 3)", "float32")
                (still,) = reader.open_operations()
                assert (still.site, still.kind) == ("early.py:1", "recv")
    assert board.is_open(early)


TEXTS = """
import sys
import time
from torch_mpi4py.board.event_board import BoardWriter
from pathlib import Path
board = BoardWriter(0, 1, Path(sys.argv[1]))
send = board.string("send")
for number in range(2**31):
    if number == 60_000:
        print("ready", flush=True)
    shape = board.passing_string(f"({number},)")
    board.end(board.begin(send, 0, 1, f"program.py:{number}", 0, shape, peer=number))
"""


def test_strings_are_read_while_another_process_replaces_them(tmp_path: Path, root: Path) -> None:
    command = [sys.executable, "-c", TEXTS, tmp_path / "0"]
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "ready\n"
            board, newest = Board.open(tmp_path / "0"), 0
            deadline = time.monotonic() + 60
            while newest < 150_000 and time.monotonic() < deadline:
                events = [event for event in board.events() if event.end is not None]
                newest = events[-1].peer
                for event in events:
                    wanted = (f"program.py:{event.peer}", f"({event.peer},)")
                    assert (event.site, event.shape) == wanted
            assert newest >= 100_000, "it writes too slowly for this test"
        finally:
            process.kill()


def test_forked_child_does_not_write_to_the_board(tmp_path: Path) -> None:
    board = BoardWriter(0, 1, tmp_path / "0")
    token = board.begin(board.string("recv"), 0, NEVER_WAITS, "parent.py:1")
    child = os.fork()
    if child == 0:
        board.leave_to_parent()
        board.drop(token)
        for number in range(1000):
            board.end(board.begin(board.string("send"), 0, WAITING, f"child.py:{number}"))
        os._exit(len(board.reader.events()) != 1001)
    assert os.waitpid(child, 0)[1] == 0
    board.end(board.begin(board.string("send"), 0, WAITING, "parent.py:2"))
    events = Board.open(tmp_path / "0").events()
    assert [(event.site, event.outcome) for event in events] == [
        ("parent.py:1", ""),
        ("parent.py:2", "ok"),
    ]


def test_a_silent_rank_that_waits_in_a_call_does_not_keep_the_lock(tmp_path: Path) -> None:
    board = BoardWriter(0, 1, tmp_path / "0")
    boards, long_ago = RankBoards(tmp_path), time.perf_counter() - 6
    board.set_position(Position(long_ago, 0.0, "cell 1, line 2", 1, True, "", began=long_ago))
    assert boards.keeps_the_lock(0)
    call = write(board, "barrier")
    assert not boards.keeps_the_lock(0), "on a crowded machine, its watcher may have no core"
    board.end(call)
    assert boards.keeps_the_lock(0)
