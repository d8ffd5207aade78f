"""A class is read from files into which learners may have written anything."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from course_lib.classroom import reading
from course_lib.classroom.reading import Learner, NothingToReadError
from tests.classroom.class_by_script import IDS, MY_SHARE, NEIGHBOURS
from tests.lab_server import scratch


def line(
    kind: str, exercise: str = "", mistake: str = "", at: float | None = None, **more: Any
) -> str:
    at = time.time() if at is None else at
    return json.dumps({"t": at, "is": kind, "exercise": exercise, "mistake": mistake, **more})


def write(folder: Path, name: str, *lines: str | bytes, ago: float = 0.0) -> Path:
    """Write a kernel's file as if ``ago`` seconds before."""
    path = folder / f"{name}.jsonl"
    folder.mkdir(parents=True, exist_ok=True)
    encoded = [one.encode() if isinstance(one, str) else one for one in lines]
    path.write_bytes(b"".join(b"\n" + one + b"\n" for one in encoded))
    written = time.time() - ago
    os.utime(path, (written, written))
    return path


def the_only(folder: Path) -> Learner:
    (learner,) = reading.shared(folder, IDS)
    return learner


def test_two_kernels_of_a_learner_are_one_row(tmp_path: Path) -> None:
    now = time.time()
    write(tmp_path, "ada.1", line("tried", NEIGHBOURS, "uneven", now - 50), ago=50)
    later = line("tried", NEIGHBOURS, "wrong-value", now - 20)
    write(tmp_path, "ada.2", later, line("hint", MY_SHARE, at=now - 10), ago=10)
    ada = the_only(tmp_path)
    assert ada.name == "ada"
    assert (ada.work[NEIGHBOURS].tries, ada.work[NEIGHBOURS].mistake) == (2, "wrong-value")
    assert ada.work[NEIGHBOURS].mistakes == {"uneven", "wrong-value"}
    assert ada.work[MY_SHARE].hints == 1
    assert ada.stuck == 3
    assert ada.seen == pytest.approx(now - 10, abs=5)


def test_solved_exercise_stays_solved(tmp_path: Path) -> None:
    write(tmp_path, "ada.1", line("solved", NEIGHBOURS), line("tried", NEIGHBOURS, "uneven"))
    ada = the_only(tmp_path)
    assert (ada.solved, ada.stuck) == (1, 0)


@pytest.mark.parametrize(
    ("name", "ada"),
    [("ada.1", "ada"), ("a.b.1", "a.b"), ("<b>.1", "_b_"), ("1", "_"), ("a\u202eb\n.1", "a_b_")],
)
def test_name_is_reduced_to_plain_characters(tmp_path: Path, name: str, ada: str) -> None:
    write(tmp_path, name, line("here"))
    assert the_only(tmp_path).name == ada


def test_undecodable_name_is_reduced_to_plain_characters(tmp_path: Path) -> None:
    with open(os.fsencode(tmp_path) + b"/\xff\xfe.1.jsonl", "w") as file:
        file.write(line("here"))
    assert the_only(tmp_path).name == "__"


NONSENSE = [
    b"\xff\xfe",
    b"{",
    b"[" * 400,
    b"null",
    b"7",
    b'"solved"',
    b'{"is": "solved"}',
    line("solved", NEIGHBOURS, at=-1).encode(),
    line("solved", NEIGHBOURS, at=float("nan")).encode(),
    line("solved", NEIGHBOURS, at=float("inf")).encode(),
    b'{"t": true, "is": "solved", "exercise": "00.neighbours"}',
    b'{"t": 1' + b"0" * 400 + b', "is": "solved", "exercise": "00.neighbours"}',
    b'{"t": 5, "is": ["solved"], "exercise": "00.neighbours"}',
    b'{"t": 5, "is": "solved", "exercise": ["00.neighbours"]}',
    line("won", NEIGHBOURS).encode(),
    line("solved", "00.nothing").encode(),
    line("tried", NEIGHBOURS, "<script>").encode(),
    line("tried", NEIGHBOURS, "a" * 200).encode(),
    line("running", NEIGHBOURS, **{"for": "long"}).encode(),
    line("running", NEIGHBOURS, **{"for": -5}).encode(),
    line("running", NEIGHBOURS, hangs="<b>", **{"for": 5}).encode(),
    line("solved", NEIGHBOURS, more="a" * 1000).encode(),
    b'{"t": 5, "is": "solved", "exercise": "00.neigh',
]


@pytest.mark.parametrize("nonsense", NONSENSE, ids=range(len(NONSENSE)))  # some tell the time
def test_malformed_lines_are_ignored(tmp_path: Path, nonsense: bytes) -> None:
    write(tmp_path, "ada.1", nonsense, line("tried", MY_SHARE, "uneven"), nonsense)
    write(tmp_path, "ben.1", line("solved", NEIGHBOURS))
    ada, ben = reading.shared(tmp_path, IDS)
    assert {id: work.tries for id, work in ada.work.items()} == {MY_SHARE: 1}
    assert ada.running is None
    assert ben.solved == 1


def test_very_large_numbers_are_accepted(tmp_path: Path) -> None:
    write(tmp_path, "ada.1", line("solved", NEIGHBOURS, at=9e10), line("here", at=0))
    learner = the_only(tmp_path)
    assert learner.solved == 1
    assert learner.seen <= time.time()


def test_only_end_of_huge_file_is_read(tmp_path: Path) -> None:
    path = write(tmp_path, "ada.1")
    with open(path, "ab") as file:
        file.truncate(1 << 40)  # a hole: it takes no place
        file.seek(0, os.SEEK_END)
        file.write(f"\n{line('solved', NEIGHBOURS)}\n".encode())
    assert the_only(tmp_path).solved == 1


def test_number_of_files_read_is_bounded(tmp_path: Path) -> None:
    for number in range(300):
        write(tmp_path, f"x{number}.1", line("here"))
        write(tmp_path, f"ada.{number}", line("tried", NEIGHBOURS))
    learners = reading.shared(tmp_path, IDS)
    assert len(learners) == reading._MOST_NAMES
    (ada,) = [learner for learner in learners if learner.name == "ada"]
    assert ada.work[NEIGHBOURS].tries == reading._MOST_KERNELS


def test_links_pipes_and_folders_are_ignored(tmp_path: Path) -> None:
    secret = write(tmp_path / "elsewhere", "secret.1", line("solved", NEIGHBOURS))
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "ada.1.jsonl").symlink_to(secret)
    os.mkfifo(shared / "ben.1.jsonl")
    (shared / "cleo.1.jsonl").mkdir()
    (shared / "dan.1.jsonl").symlink_to("dan.1.jsonl")
    write(shared, ".eva.1", line("here"))
    (shared / "notes.txt").touch()
    assert reading.shared(shared, IDS) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes files of others")
def test_files_of_two_accounts_are_two_rows(tmp_path: Path) -> None:
    write(tmp_path, "ada.1", line("solved", NEIGHBOURS))
    forged = write(tmp_path, "ada.2", line("tried", NEIGHBOURS))
    os.chown(forged, 12345, 12345)
    names = [learner.name for learner in reading.shared(tmp_path, IDS)]
    assert names == ["ada (root)", "ada (account 12345)"]


def test_running_cell_is_shown_until_its_updates_stop(tmp_path: Path) -> None:
    sign = {"for": 50.0, "hangs": True}
    write(tmp_path, "ada.1", line("running", NEIGHBOURS, **sign), ago=15)
    running = the_only(tmp_path).running
    assert running is not None
    assert running.hangs
    assert running.exercise == NEIGHBOURS
    assert running.seconds >= 65
    write(tmp_path, "ada.2", line("running", **{"for": 300.0}), ago=15)
    running = the_only(tmp_path).running
    assert running is not None
    assert running.hangs, "of two notebooks the one that hangs"
    write(tmp_path, "ada.1", line("running", NEIGHBOURS, **sign), line("done"), ago=15)
    running = the_only(tmp_path).running
    assert running is not None
    assert not running.hangs
    write(tmp_path, "ada.2", line("running", **{"for": 300.0}), ago=600)
    assert the_only(tmp_path).running is None, "its kernel was killed"


def test_a_learners_clock_does_not_matter(tmp_path: Path) -> None:
    """One clock is a day ahead: the file's own time says by how much."""
    now = time.time()
    day = 24 * 3600
    early = line("tried", NEIGHBOURS, "uneven", now + day - 100)
    sign = line("running", NEIGHBOURS, at=now + day, **{"for": 5.0})
    write(tmp_path, "ada.1", early, sign)
    write(tmp_path, "ada.2", line("tried", NEIGHBOURS, "wrong-value", now - 50), ago=50)
    ada = the_only(tmp_path)
    assert ada.work[NEIGHBOURS].mistake == "wrong-value"
    assert ada.running is not None
    assert ada.seen <= time.time()


def test_homes_are_read_without_following_links(tmp_path: Path) -> None:
    homes = tmp_path / "homes"
    write(homes / "ada" / reading.IN_A_HOME, "another name.1", line("solved", NEIGHBOURS))
    inside = Path(reading.IN_A_HOME)
    (homes / "ben" / inside.parent).mkdir(parents=True)
    (homes / "ben" / inside).symlink_to(homes / "ada" / inside)
    (homes / "cleo").mkdir()
    (homes / "cleo" / inside.parts[0]).symlink_to(homes / "ada" / inside.parts[0])
    (homes / "dan").mkdir()
    (homes / "a file").touch()
    (ada,) = reading.homes(f"{homes}/*", reading.IN_A_HOME, IDS)
    assert (ada.name, ada.solved) == ("ada", 1)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes files of others")
def test_files_of_other_owners_in_a_home_are_ignored(tmp_path: Path) -> None:
    folder = tmp_path / "ada" / reading.IN_A_HOME
    os.chown(write(folder, "ada.1", line("solved", NEIGHBOURS)), 12345, 12345)
    (ada,) = reading.homes(f"{tmp_path}/*", reading.IN_A_HOME, IDS)
    assert ada.solved == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another account")
def test_unreadable_homes_raise_one_sentence() -> None:
    with scratch() as homes:
        write(homes / "ada" / reading.IN_A_HOME, "ada.1", line("here"))
        (homes / "ben").mkdir()
        (homes / "ada").chmod(0o700)
        os.seteuid(12345)
        try:
            with pytest.raises(NothingToReadError, match="run this as root, with sudo"):
                reading.homes(f"{homes}/*", reading.IN_A_HOME, IDS)
        finally:
            os.seteuid(0)


def test_missing_folder_or_homes_raise_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(NothingToReadError, match=r"gone cannot be read .*COURSE_CLASS$"):
        reading.shared(tmp_path / "gone", IDS)
    with pytest.raises(NothingToReadError, match="give the learners' homes, in quotes"):
        reading.homes(f"{tmp_path}/nobody*", reading.IN_A_HOME, IDS)
