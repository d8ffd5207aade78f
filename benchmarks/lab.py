"""What a learner waits for: JupyterLab, its first start in a fresh clone, and all lessons' cells."""

from __future__ import annotations

import contextlib
import datetime
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import nbformat
import requests

from benchmarks.report import Section, Table, Target, few, target
from benchmarks.running import ROOT
from tools.build_notebooks import execute, problems

STARTS = 3
WITHIN_SECONDS = 60
FRESH_SECONDS = 1200
LESSONS, FRESH = "<= 7 min", "<= 60 s"
FRESH_CLONE = "make lab on a fresh clone"


def measure() -> dict:
    """Start ``make lab`` here; the first start brings things up to date and does not count."""
    first, *warm = [one_start(ROOT, WITHIN_SECONDS) for _ in range(1 + STARTS)]
    return {"warm": warm}


def one_start(checkout: Path, within: float) -> float:
    """Return the seconds from the call of make to the lesson's page.

    Raises:
        RuntimeError: with what make wrote, if there is no page in time.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    start = time.monotonic()
    with started(["make", "lab", f"ARGS=--no-browser --port {port}"], checkout, within) as lines:
        said = ""
        for line in lines:
            said += line
            if found := re.search(rf"http://127\.0\.0\.1:{port}\S*\?token=\w+", line):
                page = answer_of(found[0], start + within)
                took = time.monotonic() - start
                if "JupyterLab" in page:
                    return took
                said += page[:200]
                break
    raise RuntimeError(f"make lab has no page after {within:g} s:\n{said}")


@contextlib.contextmanager
def started(command: list[str], folder: Path, within: float) -> Iterator[Iterator[str]]:
    """Run a program until the block ends, ``within`` seconds at most; give what it writes."""
    process = subprocess.Popen(
        command,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert process.stdout

    def end(signum: int = signal.SIGTERM) -> None:
        with contextlib.suppress(ProcessLookupError):  # all of it has ended
            os.killpg(process.pid, signum)

    too_late = threading.Timer(within, end)
    too_late.start()
    try:
        yield process.stdout
    finally:
        too_late.cancel()
        end()
        try:
            process.wait(WITHIN_SECONDS)
        finally:
            end(signal.SIGKILL)
            process.stdout.close()


def answer_of(url: str, deadline: float) -> str:
    """Return a page; its address is printed before anything listens there."""
    while True:
        try:
            return requests.get(url, timeout=WITHIN_SECONDS).text
        except requests.ConnectionError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def section(measured: dict) -> Section:
    """Return text and target of :func:`measure`."""
    warm = measured["warm"]
    about = (
        f"From the call to the lesson's page, with everything installed: {few(warm)} s, median "
        f"(smallest to largest) of {len(warm)}."
    )
    cause = "JupyterLab's own start is most of it"
    within = target("make lab, warm start", "<= 3 s", median(warm), min(warm), "{:.1f} s", cause)
    return Section("make lab", [about], [within])


# ---- what takes many minutes, and is measured on demand ---------------------------------


def rare() -> dict:
    """Execute every lesson, one after the other, and call ``make lab`` in a fresh clone."""
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    return {"date": today, "lessons": lessons(), "fresh": fresh_clone()}


def lessons() -> dict[str, float]:
    """Return the seconds that each lesson takes from its first cell to its last.

    Raises:
        RuntimeError: if a lesson did not run as it should.
    """
    seconds = {}
    for path in sorted((ROOT / "notebooks").glob("[0-9][0-9]*_*.ipynb")):
        notebook = nbformat.read(path, as_version=4)
        start = time.monotonic()
        execute(notebook)
        seconds[path.stem] = time.monotonic() - start
        if found := problems(notebook):
            raise RuntimeError(f"{path.stem}: {found}")
        print(f"{path.stem}: {seconds[path.stem]:.1f} s", file=sys.stderr, flush=True)
    return seconds


def fresh_clone() -> float:
    """Return the seconds from ``make lab`` in a clone to the page, installing included."""
    with tempfile.TemporaryDirectory(prefix="course-") as folder:
        clone = ["git", "clone", "--quiet", str(ROOT), folder]
        subprocess.run(clone, check=True, timeout=WITHIN_SECONDS)
        return one_start(Path(folder), FRESH_SECONDS)


def rare_section(measured: dict | None) -> Section:
    """Return table and targets of what :func:`rare` last measured, if it ever did."""
    title = "What is measured on demand"
    if measured is None:
        missing = "Never measured here: `make bench ARGS=--all` does (many minutes)."
        both = {"all lessons executed": LESSONS, FRESH_CLONE: FRESH}
        unknown = [Target(*row, "-", "-", False, "not measured") for row in both.items()]
        return Section(title, [missing], unknown)
    lessons, fresh = measured["lessons"], measured["fresh"]
    total, longest = sum(lessons.values()), max(lessons, key=lessons.get)
    shown = {
        **lessons,
        "all lessons": total,
        f"`make lab`{FRESH_CLONE[8:]}, to the lesson's page": fresh,
    }
    about = (
        f"Measured once, on {measured['date']}, by `make bench ARGS=--all`. Installing a fresh "
        "clone includes fetching the packages, from pip's cache where it has them."
    )
    table = Table({"what": str, "s": lambda what: f"{shown[what]:.0f}"}, shown)
    cause = f"the longest, {longest}, takes {lessons[longest]:.0f} s"
    all_of_them = f"all {len(lessons)} lessons executed"
    fetching = "pip's fetching and unpacking of torch is most of it"
    targets = [
        target(all_of_them, LESSONS, total / 60, form="{:.1f} min", cause=cause),
        target(FRESH_CLONE, FRESH, fresh, form="{:.0f} s", cause=fetching),
    ]
    return Section(title, [about, table], targets)
