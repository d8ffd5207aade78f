"""Run ``make lab`` in a copy of the checkout, as a learner does, and stop it again."""

from __future__ import annotations

import contextlib
import os
import pwd
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parent.parent
MARK = "COURSE_TEST_MARK"


def wait_until(condition: Callable[[], object], seconds: float, what: str) -> object:
    """Return the first true value of ``condition()``; fail after ``seconds``."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(0.05)
    return value


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """Give a new folder that other users may enter (pytest's own are closed to them)."""
    folder = Path(tempfile.mkdtemp(prefix="course-")).resolve()
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def copy_checkout(target: Path) -> None:
    """Copy the files that git tracks or would track: what a clone of this state holds."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    command += ["--exclude=core", "--exclude=core.*"]  # of a crash: nearly a GB
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):  # another test's, removed just now
                shutil.copy2(ROOT / name, target / name)


def copy_venv(target: Path) -> None:
    """Copy .venv, as hard links where that is possible, so it takes neither time nor space."""

    def link_or_copy(source: str, destination: str) -> None:
        try:
            os.link(source, destination, follow_symlinks=False)
        except FileNotFoundError:
            pass  # what another process wrote there for a moment, as Python does to compile
        except OSError:
            with contextlib.suppress(FileNotFoundError):
                shutil.copy2(source, destination, follow_symlinks=False)

    shutil.copytree(ROOT / ".venv", target / ".venv", symlinks=True, copy_function=link_or_copy)


def give_to(folder: Path, user: pwd.struct_passwd) -> None:
    """Make ``user`` the owner of a folder and of all in it."""
    for path in [folder, *folder.rglob("*")]:
        os.chown(path, user.pw_uid, user.pw_gid, follow_symlinks=False)


def ordinary_user() -> pwd.struct_passwd | None:
    """Return a user without rights to run programs as, None where we are such a one."""
    return pwd.getpwnam("nobody") if os.geteuid() == 0 else None


def as_user(user: pwd.struct_passwd | None) -> dict[str, Any]:
    """Return arguments for ``subprocess`` that run a program as ``user``."""
    if user is None:
        return {}
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


def marked(mark: str) -> list[psutil.Process]:
    """Return the processes that inherited ``mark``: all that a ``make lab`` ever started."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


@dataclass
class LabServer:
    """A running ``make lab``."""

    url: str  # as printed: the lesson's address with the token
    token: str
    port: int
    mark: str
    seconds: float  # from the call of make to the first answer

    def processes(self) -> list[psutil.Process]:
        """Return everything it started that still runs."""
        return marked(self.mark)

    def kernels(self) -> list[str]:
        """Return the command lines of all but make, its shell and the server itself."""
        lines = []
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                line = " ".join(process.cmdline())
                if process.name() not in ("make", "sh", "dash") and "-m jupyterlab" not in line:
                    lines.append(line)
        return lines


def free_port() -> int:
    """Return a port that nobody has, and below those that a system gives out by itself."""
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def listens(port: int) -> bool:
    """Tell whether somebody takes connections there."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except OSError:
        return False
    return True


@contextlib.contextmanager
def make_lab(
    checkout: Path,
    variables: dict[str, str],
    *,
    seconds: float,
    user: pwd.struct_passwd | None = None,
) -> Iterator[LabServer]:
    """Run ``make lab`` until the block ends; nothing of it may be left then.

    Args:
        checkout: the folder to call make in.
        variables: environment variables on top of the present ones.
        seconds: how long it may take until JupyterLab answers.
        user: whom to run it as, None for the present user.
    """
    mark, port, start = uuid.uuid4().hex, free_port(), time.monotonic()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            ["make", "lab", f"ARGS=--no-browser --expose-app-in-browser --port {port}"],
            cwd=checkout,
            env=os.environ | variables | {MARK: mark},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            **as_user(user),
        )

        def said() -> str:
            # Not by seek and read: they would move the place where the server writes.
            size = os.fstat(output.fileno()).st_size
            return os.pread(output.fileno(), size, 0).decode(errors="replace")

        def address() -> re.Match[str] | None:
            assert process.poll() is None, said()
            return re.search(rf"http://127\.0\.0\.1:{port}(\S*)\?token=(\w+)(?=\s)", said())

        try:
            found = wait_until(address, seconds, "JupyterLab's address")
            assert isinstance(found, re.Match)
            # The address is printed before anybody listens there: on a busy machine long before.
            wait_until(lambda: listens(port), 60, "JupyterLab at its address")
            yield LabServer(found[0], found[2], port, mark, time.monotonic() - start)
        except BaseException:
            sys.stderr.write(said()[-5000:])
            raise
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=60)
            left = wait_for_end(mark, 60)
    assert not left, f"left behind by make lab: {left}"


def wait_for_end(mark: str, seconds: float) -> list[str]:
    """Return the command lines of marked processes that do not end in time, and kill those."""
    deadline = time.monotonic() + seconds
    while (processes := marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.1)
    left = []
    for process in processes:
        with contextlib.suppress(psutil.Error):
            left.append(" ".join(process.cmdline()))
            process.kill()
    return left
