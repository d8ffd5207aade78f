"""How long until JupyterLab answers, when everything is installed already?

An ordinary program: ``python -m benchmarks.lab FILE`` calls ``make lab`` in this checkout, as a
learner does, and waits for the address that it prints to answer.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import requests

from benchmarks.run import ROOT
from tests.lab_server import make_lab

STARTS = 3
WITHIN_SECONDS = 60


def one_start() -> float:
    """Return the seconds from the call of make to the lesson's page."""
    start = time.monotonic()
    with make_lab(ROOT, {}, seconds=WITHIN_SECONDS) as lab:
        answer = requests.get(lab.url, timeout=WITHIN_SECONDS)
        took = time.monotonic() - start
    if "JupyterLab" not in answer.text:
        raise RuntimeError(f"{lab.url} answered with something else: {answer.text[:200]}")
    return took


def main() -> None:
    """Measure; the first start brings things up to date and does not count."""
    one_start()
    seconds = [one_start() for _ in range(STARTS)]
    Path(sys.argv[1]).write_text(json.dumps({"warm": seconds}))


if __name__ == "__main__":
    main()
