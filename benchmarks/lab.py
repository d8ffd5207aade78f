"""Measures a learner's waits: for JupyterLab, also in a fresh clone, and for all lessons' cells."""

from __future__ import annotations

import contextlib
import datetime
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

import nbformat
import requests

from benchmarks.report import Section, Table, Target, few, target, within
from benchmarks.running import ROOT
from tools.build_notebooks import execute, problems

STARTS = 3
START_SECONDS = 60
FRESH_SECONDS = 1200
LESSONS, FRESH = "<= 7 min", "<= 60 s"
FRESH_CLONE = "make lab on a fresh clone"


def measure() -> dict:
    """Start ``make lab`` here; the first start brings things up to date and does not count."""
    return {"warm": [one_start(ROOT, START_SECONDS) for _ in range(1 + STARTS)][1:]}


def one_start(checkout: Path, limit_seconds: float) -> float:
    """Return the seconds from the call of make to JupyterLab's page.

    Raises:
        RuntimeError: with what make wrote, if there is no page in time.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    token, start = uuid.uuid4().hex, time.monotonic()
    page = f"http://127.0.0.1:{port}/lab?token={token}"
    with tempfile.TemporaryFile() as written:
        make = subprocess.Popen(
            ["make", "lab", f"ARGS=--no-browser --port {port}"],
            cwd=checkout,
            env=os.environ | {"JUPYTER_TOKEN": token},
            stdin=subprocess.DEVNULL,
            stdout=written,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            while make.poll() is None and time.monotonic() < start + limit_seconds:
                with contextlib.suppress(requests.ConnectionError):  # it does not listen yet
                    if "JupyterLab" in requests.get(page, timeout=START_SECONDS).text:
                        return time.monotonic() - start
                time.sleep(0.02)
            written.seek(0)
            text = written.read().decode(errors="replace")
            raise RuntimeError(f"make lab has no page after {limit_seconds:g} s:\n{text}")
        finally:
            with contextlib.suppress(ProcessLookupError):  # all of it has ended
                os.killpg(make.pid, signal.SIGTERM)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    make.wait(START_SECONDS)
                os.killpg(make.pid, signal.SIGKILL)


def section(measured: dict) -> Section:
    """Return text and target of :func:`measure`."""
    warm, cause = measured["warm"], "most of it is JupyterLab's own start"
    about = (
        f"With everything installed, the lesson's page appears {few(warm)} s after the call: "
        f"median (smallest to largest) of {len(warm)} starts."
    )
    return Section(
        "make lab", [about], [within("make lab, warm start", 3, warm, cause, "{:.1f} s")]
    )


# ---- measurements of many minutes, on demand ---------------------------------


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
        subprocess.run(clone, check=True, timeout=START_SECONDS)
        return one_start(Path(folder), FRESH_SECONDS)


def rare_section(measured: dict | None) -> Section:
    """Return table and targets of what :func:`rare` last measured, if it ever did."""
    title = "Measured on demand"
    if measured is None:
        missing = "Not measured here yet. `make bench ARGS=--all` does it, and takes many minutes."
        both = {"all lessons executed": LESSONS, FRESH_CLONE: FRESH}
        unknown = [Target(*row, "-", "-", False, "not measured") for row in both.items()]
        return Section(title, [missing], unknown)
    lessons, fresh = measured["lessons"], measured["fresh"]
    total, longest = sum(lessons.values()), max(lessons, key=lessons.get)
    shown = {**lessons, "all lessons": total}
    shown["`make lab` on a fresh clone, to the lesson's page"] = fresh
    about = (
        f"These times were measured once, on {measured['date']}, with `make bench ARGS=--all`. "
        "The time for a fresh clone includes fetching the packages, which pip takes from its cache "
        "where it can."
    )
    table = Table({"what": str, "s": lambda what: f"{shown[what]:.0f}"}, shown)
    cause = f"the longest, {longest}, takes {lessons[longest]:.0f} s"
    all_of_them = f"all lessons executed ({len(lessons)} on {measured['date']})"
    fetching = "most of it is pip fetching and unpacking torch"
    targets = [
        target(all_of_them, LESSONS, total / 60, form="{:.1f} min", cause=cause),
        target(FRESH_CLONE, FRESH, fresh, form="{:.0f} s", cause=fetching),
    ]
    return Section(title, [about, table], targets)
