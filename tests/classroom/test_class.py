"""The command ``rank-by-rank class``: its page as a file and on loopback, and its refusals."""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from html import escape
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest

from course_lib.classroom import __main__ as command
from course_lib.classroom import serving
from course_lib.classroom.page import page as page_for
from course_lib.classroom.reading import Learner, Running, Work
from course_lib.command import lab
from course_lib.teaching.catalogue import find
from course_lib.teaching.mistakes import in_general
from tests.classroom.class_by_script import MY_SHARE, NEIGHBOURS
from tests.classroom.test_reading import line, write
from tests.lab_server import wait_until

WITHIN_S = 60


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """Return the folder of a class of four."""
    folder = tmp_path / "shared"
    write(folder, "ada.1", line("solved", NEIGHBOURS), line("solution", NEIGHBOURS))
    uneven = line("tried", MY_SHARE, "uneven")
    write(folder, "ben.1", uneven, uneven, line("hint", MY_SHARE))
    write(folder, "cleo.1", line("running", hangs=True, **{"for": 11}))
    write(folder, "dan.1", uneven, line("tried", MY_SHARE, "falls-off-the-end"))
    return folder


def page_of(tmp_path: Path, *arguments: str) -> str:
    out = tmp_path / "class.html"
    assert command.main([*arguments, "--once", "--out", f"{out}"]) == 0
    return out.read_text()


def interrupt(process: subprocess.Popen) -> None:
    """End the command as a person does."""
    process.send_signal(signal.SIGINT)
    try:
        assert process.wait(WITHIN_S) == 0
    finally:
        process.kill()


def rows(page: str) -> list[list[str]]:
    """Return the words of the class's rows, without signs that are not read aloud."""
    page = re.sub(r'<span aria-hidden="true">.</span> ', "", page.partition("</table>")[0])
    found = re.findall(r'<tr><th scope="row">(.*?)</th>(.*?)</tr>', page)
    cells = [[name, *re.findall(r"<td[^>]*>(.*?)</td>", rest)] for name, rest in found]
    return [[re.sub(r" ?<[^>]*>", " ", cell).strip() for cell in row] for row in cells]


def test_stuck_learners_are_listed_first(tmp_path: Path, shared: Path) -> None:
    page = page_of(tmp_path, f"{shared}")
    shown = rows(page)
    assert [row[0] for row in shown] == ["cleo", "ben", "dan", "ada"]
    assert shown[0][1].startswith("hangs for 11 s")
    assert shown[1][2:5] == ["", "2 tries uneven, 1 hint", ""]
    assert shown[3][2] == "solved 1 try, solution"
    assert "4 learners, 1 of 12 exercises solved" in page
    assert "1 hangs now" in page
    exercises = page.split("<table>")[2]
    assert f'<th scope="row">{MY_SHARE}</th><td class="number">2</td>' in exercises
    assert '<td>uneven</td><td class="number">2</td><td>' in exercises
    assert escape(in_general("uneven", find(MY_SHARE))) in exercises


def test_page_needs_no_colour_script_or_other_file(tmp_path: Path, shared: Path) -> None:
    page = page_of(tmp_path, f"{shared}")
    assert page.startswith('<!DOCTYPE html>\n<html lang="en">')
    assert "prefers-color-scheme: dark" in page
    assert page.count("<caption>") == page.count("<table>") == 3
    assert not re.search(r"<th(?! scope)[ >]|<script|<img|<link|https?:|url\(|http-equiv", page)


def test_names_can_be_left_out(tmp_path: Path, shared: Path) -> None:
    page = page_of(tmp_path, f"{shared}", "--no-names")
    assert sorted(row[0] for row in rows(page)) == [f"learner {n}" for n in (1, 2, 3, 4)]
    assert not re.search(r"\b(ada|ben|cleo|dan)\b", page)


def test_html_in_names_is_escaped(tmp_path: Path, shared: Path) -> None:
    """Reading rejects such names already; the page must not rely on it."""
    write(shared, "<script>alert(1)<.1", line("tried", NEIGHBOURS, "<script>"), line("here"))
    assert "<script" not in page_of(tmp_path, f"{shared}")
    tag = "<script>"
    work = Work(tries=1, mistake=tag, mistakes={tag})
    learner = Learner(tag, {NEIGHBOURS: work}, running=Running(tag, 5.0, False))
    assert tag not in page_for([learner], [NEIGHBOURS], 0, {tag: tag})


def test_columns_are_the_selected_lessons(tmp_path: Path, shared: Path) -> None:
    page = page_of(tmp_path, f"{shared}", "--lessons", "01-02")
    columns = re.findall(r'<th scope="col">(\d\d\.\w+)', page)
    assert {column[:2] for column in columns} == {"01", "02"}
    assert "0 of " in page


def test_empty_class_says_no_learner_has_begun(tmp_path: Path) -> None:
    page = page_of(tmp_path, f"{tmp_path / 'new'}")
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o1733
    assert "No learner has begun yet, or none has COURSE_CLASS set." in page


def test_file_is_private_and_replaced_atomically(tmp_path: Path, shared: Path) -> None:
    out = tmp_path / "class.html"
    out.write_text("old")
    out.chmod(0o644)
    program = [sys.executable, "-c", "from course_lib.classroom import __main__ as c\n"]
    program[-1] += f"c._EVERY_S = 0.2\nc.main([{f'{shared}'!r}, '--out', {f'{out}'!r}])"
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(program, cwd=tmp_path, text=True, **pipes) as process:
        try:
            assert process.stdout.readline().startswith("the page is")
            assert stat.S_IMODE(out.stat().st_mode) == 0o600
            assert '<meta http-equiv="refresh" content="0.2">' in out.read_text()
            write(shared, "fay.1", line("here"))
            wait_until(lambda: "fay" in out.read_text(), WITHIN_S, "fay's row")
            shared.rename(tmp_path / "away")
            assert "shared cannot be read (No such file" in process.stderr.readline()
            (tmp_path / "away").rename(shared)
            write(shared, "gus.1", line("here"))
            wait_until(lambda: "gus" in out.read_text(), WITHIN_S, "the page goes on")
        finally:
            interrupt(process)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_interrupt_at_any_moment_ends_the_command(
    tmp_path: Path, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here it comes just after the page has been replaced."""
    replace = os.replace

    def interrupted(*places: str) -> None:
        replace(*places)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    assert command.main([f"{shared}", "--out", f"{tmp_path / 'class.html'}"]) == 0


@contextlib.contextmanager
def running(page: str) -> Iterator[str]:
    with serving.served(lambda: page, 0) as (address, server):
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield address
        finally:
            server.shutdown()
            thread.join(WITHIN_S)


def asked(address: str, path: str, host: str = "", method: str = "GET") -> tuple[int, str]:
    where = urlsplit(address)
    with contextlib.closing(http.client.HTTPConnection(where.netloc, timeout=WITHIN_S)) as one:
        one.request(method, path, headers={"Host": host} if host else {})
        answer = one.getresponse()
        return answer.status, answer.read().decode()


def test_page_is_served_only_at_its_secret_address() -> None:
    with running("the page of Ada") as address:
        where = urlsplit(address)
        assert where.hostname == "127.0.0.1"
        assert len(where.path) > 24
        assert asked(address, where.path) == (200, "the page of Ada")
        assert asked(address, where.path, "localhost:9000")[0] == 200, "through a tunnel"
        for path in ("/", where.path[:-1], "/../etc/passwd", "/é"):
            with contextlib.suppress(UnicodeEncodeError):  # http.client's own
                status, text = asked(address, path)
                assert status == 404
                assert "Ada" not in text
        assert asked(address, where.path, "evil.example")[0] == 404, "another page's script"
        assert asked(address, where.path, method="POST")[0] == 501
    with running("") as another:
        assert urlsplit(another).path != where.path


def test_silent_connection_does_not_block_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "_ASKS_WITHIN_S", 2 * WITHIN_S)
    with running("the page of Ada") as address:
        where = urlsplit(address)
        silent = http.client.HTTPConnection(where.netloc, timeout=WITHIN_S)
        silent.connect()
        assert asked(address, where.path)[0] == 200
        silent.close()


def test_server_listens_on_loopback_only(tmp_path: Path, shared: Path) -> None:
    program = [sys.executable, "-m", "course_lib.command", "class", f"{shared}", "--port", "0"]
    with subprocess.Popen(program, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        try:
            address = process.stdout.readline().removeprefix("the page is at ").strip()
            port = urlsplit(address).port
            listening = psutil.Process(process.pid).net_connections()
            assert [(one.laddr.ip, one.laddr.port) for one in listening] == [("127.0.0.1", port)]
            status, page = asked(address, urlsplit(address).path)
            assert status == 200
            assert [row[0] for row in rows(page)] == ["cleo", "ben", "dan", "ada"]
        finally:
            interrupt(process)
    assert not list(tmp_path.glob("*.html"))


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "give the folder that learners write to, or their homes with --homes"),
        (["--homes", "/nowhere/*"], "there is no folder /nowhere/*: give the learners' homes"),
        (["x", "--lessons", "99"], "give lessons like 03 or 01-05"),
        (["x", "--port", "1", "--out", "y"], "not allowed with argument"),
        (["a file"], "a file cannot be read (Not a directory)"),
        (["x", "--out", "gone/class.html"], "No such file or directory"),
    ],
)
def test_command_error_is_one_sentence(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    reason: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a file").touch()
    try:
        status = command.main([*arguments, *["--once"] * bool(arguments)])
    except SystemExit as end:
        status = end.code
    assert status in (1, 2)
    assert reason in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "variables"),
    [
        (["c", "--class", "shared"], ("shared", "")),
        (["--class=shared", "--no-browser", "--name", "Ada L."], ("shared", "Ada L.")),
        (["c", "--no-browser"], ("", "")),
    ],
)
def test_lab_passes_class_settings_on(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    variables: tuple[str, str],
) -> None:
    (tmp_path / "shared").mkdir()
    monkeypatch.chdir(tmp_path)
    started: list = []
    monkeypatch.setattr(os, "execve", lambda *given: started.extend(given))
    monkeypatch.setattr(lab, "prepared", lambda folder: folder.mkdir(exist_ok=True) or True)
    monkeypatch.setattr(lab, "chosen", lambda said: tmp_path / (said or "d"))
    assert lab.main(arguments) == 1 or started
    _, command_line, given = started
    folder, name = variables
    assert given.get("COURSE_CLASS", "") == (f"{tmp_path / folder}" if folder else "")
    assert given.get("COURSE_CLASS_NAME", "") == name
    assert not {"--class", "--class=shared", "shared", "--name", "Ada L."} & {*command_line}
    assert ("--no-browser" in command_line) == ("--no-browser" in arguments)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (
            ["--class", "gone"],
            "--class gone is not a folder that you may write to: ask your teacher",
        ),
        (["--name", "Ada"], "it needs --class SHARED as well"),
    ],
)
def test_lab_rejects_missing_class_folder(
    arguments: list[str],
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(lab, "prepared", lambda folder: pytest.fail("it was accepted"))
    assert lab.main(arguments) == 1
    assert reason in capsys.readouterr().err
