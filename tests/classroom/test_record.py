"""What a learner's process writes for a teacher, and that nothing of it disturbs a check."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from course_lib.classroom import reading
from course_lib.teaching import class_record, lessons, mistakes

WITHIN_S = 100
RIGHT = "check('00.neighbours', lambda r, n: ((r - 1) % n, (r + 1) % n))"


def said(folder: Path, code: str = RIGHT, before: str = "", **variables: str) -> str:
    """Return what a learner's process prints, which runs in the workspace in ``folder``."""
    workspace = folder / "workspace"
    workspace.mkdir(exist_ok=True)
    given = {"COURSE_WORKSPACE": f"{workspace}", "HOME": f"{folder}", **variables}
    return subprocess.run(
        [sys.executable, "-c", f"{before}\nfrom course_lib.teaching import check\n{code}"],
        cwd=workspace,
        env=os.environ | given,
        stdout=subprocess.PIPE,
        text=True,
        timeout=WITHIN_S,
        check=True,
    ).stdout


def test_nothing_is_recorded_by_default(tmp_path: Path) -> None:
    assert said(tmp_path) == "00.neighbours: right. Right for 1, 2, 3, 4 and 7 ranks.\n"
    files = [path.name for path in tmp_path.rglob("*") if path.is_file()]
    assert files == ["00.neighbours.solved"], "the learner's own"


def test_nothing_is_recorded_outside_workspace(tmp_path: Path) -> None:
    """For example where lessons are built or graded."""
    variables = {"COURSE_CLASS": f"{tmp_path}", "COURSE_WORKSPACE": f"{tmp_path / 'another'}"}
    assert "teacher" not in said(tmp_path, **variables)
    assert not list(tmp_path.glob("*.jsonl"))


def test_lines_are_written_before_process_ends(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    old = os.umask(0o077)
    try:
        asks = "for _ in range(1000): class_record.note('hint', '00.my_share')"
        code = f"{RIGHT}\nfrom course_lib.teaching import class_record\n{asks}"
        text = said(tmp_path, code, COURSE_CLASS=f"{shared}", COURSE_CLASS_NAME="../A. <b>")
    finally:
        os.umask(old)
    assert text.startswith(f"Your teacher can see how you get on ({shared})")
    (path,) = shared.iterdir()
    assert re.fullmatch(r"_A\. _b_\.[0-9a-f]{16}\.jsonl", path.name)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644, "the teacher is another account"
    lines = [json.loads(line) for line in path.read_text().split("\n") if line]
    assert [line["is"] for line in lines] == ["here", "solved", *["hint"] * 1000]


def test_private_folder_is_created(tmp_path: Path) -> None:
    said(tmp_path, COURSE_CLASS="~/rank-by-rank/class", JUPYTERHUB_USER="ada")
    folder = tmp_path / reading.IN_A_HOME
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    (learner,) = reading.homes(
        f"{tmp_path.parent}/{tmp_path.name}", reading.IN_A_HOME, ["00.neighbours"]
    )
    assert learner.work["00.neighbours"].solved


def test_account_without_name_is_recorded_by_number(tmp_path: Path) -> None:
    """As in a container that runs under an arbitrary account."""
    before = "import os, pwd\nfor name in ('LOGNAME', 'USER', 'LNAME', 'USERNAME'):\n"
    before += "    os.environ.pop(name, None)\ndel pwd.getpwuid\n"
    before += "def getpwuid(number): raise KeyError\npwd.getpwuid = getpwuid"
    assert "right" in said(tmp_path, RIGHT, before, COURSE_CLASS=f"{tmp_path}")
    (path,) = tmp_path.glob("*.jsonl")
    assert path.name.startswith(f"account {os.getuid()}.")


def test_a_forked_child_ends_at_once_and_writes_nothing(tmp_path: Path) -> None:
    code = f"import os, sys, time\nif os.fork() == 0:\n    {RIGHT}\n    sys.exit()\n"
    code += "began = time.monotonic(); os.wait()\nprint(time.monotonic() - began < 2)"
    assert "right" in (text := said(tmp_path, code, COURSE_CLASS=f"{tmp_path}"))
    assert text.endswith("True\n")
    (path,) = tmp_path.glob("*.jsonl")
    assert "solved" not in path.read_text()


FULL = "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
FULL += "resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"


@pytest.mark.parametrize(
    ("before", "folder", "reason"),
    [("", "gone", "No such file"), ("", "a file", "Not a directory"), (FULL, "there", "too large")],
)
def test_check_works_if_record_cannot_be_written(
    tmp_path: Path, before: str, folder: str, reason: str
) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "a file").touch()
    wait = "import time\nfrom course_lib.teaching.class_record import _teller as t\n"
    wait += "while not t._trouble: time.sleep(.01)\n"
    class_ = f"{tmp_path / folder}"
    text = said(tmp_path, f"{wait}{RIGHT}\n{RIGHT}\n{RIGHT}", before, COURSE_CLASS=class_)
    assert text.count("00.neighbours: right.") == 3
    assert text.count("(your teacher's page does not show this: ") == 1
    assert reason in text


def test_hanging_disk_delays_neither_check_nor_exit(tmp_path: Path) -> None:
    """A pipe without a reader simulates it: the thread hangs in opening it."""
    os.mkfifo(tmp_path / f"ada.{'0' * 16}.jsonl")
    before = "import secrets; secrets.token_hex = lambda n: '0' * 2 * n"
    variables = {"COURSE_CLASS": f"{tmp_path}", "COURSE_CLASS_NAME": "ada"}
    assert "00.neighbours: right." in said(tmp_path, RIGHT, before, **variables)


def test_every_mistake_name_is_readable() -> None:
    paths = [mistakes.SHARED, *lessons.NOTEBOOKS.glob("lesson_*/mistakes.md")]
    names = {name for path in paths for _, name in mistakes.read(path).texts}
    assert len(names) > 100
    assert not [name for name in names if not reading._MISTAKE.fullmatch(name)]


def test_long_run_writes_a_short_file() -> None:
    at, signs = 5.0, 0
    while at < 24 * 3600:
        at, signs = at + class_record.pause(at), signs + 1
    assert signs < 60
