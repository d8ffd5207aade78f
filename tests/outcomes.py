"""What became of tests that ran in a pytest of their own, from the file that it writes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree


@dataclass(frozen=True)
class Outcome:
    """How a test has ended: passed, failed, error or skipped, and all that is said of it."""

    status: str
    text: str
    seconds: float


def read(path: Path) -> dict[str, Outcome]:
    """Return the outcomes that ``--junitxml`` has written, by the tests' names."""
    found = {}
    for case in ElementTree.parse(path).iter("testcase"):
        parts = [child for child in case if child.tag in ("failure", "error", "skipped")]
        status = {"failure": "failed"}.get(parts[0].tag, parts[0].tag) if parts else "passed"
        text = "\n".join(f"{part.get('message', '')}\n{part.text or ''}" for part in case)
        found[case.get("name", "")] = Outcome(status, text, float(case.get("time", 0)))
    return found
