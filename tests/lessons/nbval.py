"""Nbval runs a notebook and compares, and each cell has an outcome of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import ROOT

CELL_SECONDS = 300
NOTEBOOK_SECONDS = 560


@dataclass
class Run:
    """What came of running a notebook under nbval.

    Attributes:
        passed: whether pytest found nothing wrong.
        cells: "passed" or the message of the failure, for each code cell.
        output: all that pytest printed.
    """

    passed: bool
    cells: list[str]
    output: str


def run_nbval(notebook: Path, scratch: Path) -> Run:
    """Execute ``notebook`` in a fresh kernel and compare its outputs with the stored ones."""
    report = scratch / f"{notebook.stem}.xml"
    command = [sys.executable, "-m", "pytest", "-c", os.devnull, "--rootdir", str(notebook.parent)]
    command += ["-p", "no:cacheprovider", "-p", "tests.lessons.nbval_guard", "--color=no", "-q"]
    command += ["--nbval", "--nbval-current-env", f"--nbval-cell-timeout={CELL_SECONDS}"]
    command += ["--nbval-kernel-startup-timeout=200"]
    command += ["--nbval-sanitize-with", str(Path(__file__).with_name("sanitise.cfg"))]
    command += [f"--junitxml={report}", str(notebook)]
    done = subprocess.run(
        command,
        env=os.environ
        | {"IPP_NONINTERACTIVE": "1", "PYTHONPATH": str(ROOT)}
        | {"NBVAL_STARTED_BY": str(os.getpid())},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=NOTEBOOK_SECONDS,
        check=False,
    )
    cells = []
    if report.is_file():
        cells = [_outcome(case) for case in ElementTree.parse(report).iter("testcase")]
    return Run(done.returncode == 0, cells, done.stdout)


def _outcome(case: ElementTree.Element) -> str:
    for child in case:
        if child.tag in ("failure", "error", "skipped"):
            return f"{child.get('message', '')}\n{child.text or ''}"
    return "passed"
