"""A finding is OK, WARN or FAIL, what was seen, and the exact fix."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .programs import OutOfTime

__all__ = ["FAIL", "OK", "WARN", "Finding", "examine", "text"]

OK, WARN, FAIL = "OK", "WARN", "FAIL"


@dataclass(frozen=True)
class Finding:
    """What one check found.

    Attributes:
        item: what was looked at, e.g. ``"mpiexec"``.
        status: ``"OK"``; ``"WARN"``, the lessons run but not as well as they could; or
            ``"FAIL"``, some lesson will not run.
        seen: what was found, one sentence.
        fix: what to do, empty if there is nothing to do.
    """

    item: str
    status: str
    seen: str
    fix: str = ""

    def as_dict(self) -> dict[str, str]:
        """Return the four fields by name, for JSON."""
        return dataclasses.asdict(self)


def examine(item: str, check: Callable[[], Finding]) -> Finding:
    """Return what ``check`` finds; a check that itself fails is a finding too."""
    try:
        return check()
    except OutOfTime:
        return Finding(
            item,
            WARN,
            "gave no answer in time; the machine is busy, or very slow",
            "See what else runs (top), and examine again, with more time: "
            "python -m course_lib.doctor --within 60",
        )
    except Exception as error:
        return Finding(
            item,
            FAIL,
            f"could not be examined: {type(error).__name__}: {error}",
            "Please report this, with the whole output of the doctor.",
        )


def text(findings: Sequence[Finding]) -> str:
    """Return the findings as a table, each fix below its item, and one line of summary."""
    width = max(len(finding.item) for finding in findings)
    lines = []
    for finding in findings:
        lines += _paragraph(f"{finding.status:4}  {finding.item:{width}}  ", finding.seen)
        if finding.fix:
            lines += _paragraph(" " * (width + 8) + "-> ", finding.fix)
    return "\n".join([*lines, "", _summary(findings)])


def _paragraph(head: str, words: str) -> list[str]:
    return textwrap.wrap(
        words,
        100,
        initial_indent=head,
        subsequent_indent=" " * len(head),
        break_long_words=False,
        break_on_hyphens=False,
    )


def _summary(findings: Sequence[Finding]) -> str:
    counts = {
        status: sum(finding.status == status for finding in findings) for status in (OK, WARN, FAIL)
    }
    verdict = {
        (False, False): "Everything is as it should be.",
        (True, False): "The lessons will run; the warnings above say what could be better.",
    }.get(
        (counts[WARN] > 0, counts[FAIL] > 0), "Do what stands behind each FAIL, then run it again."
    )
    return f"{counts[OK]} OK, {counts[WARN]} WARN, {counts[FAIL]} FAIL. {verdict}"
