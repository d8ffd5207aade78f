"""Which data sets can be loaded here, found out by loading them."""

from __future__ import annotations

from .finding import FAIL, OK, WARN, Finding
from .programs import ask_python

__all__ = ["data"]

_PROGRAM = """
import json
from course_lib.training.data import NAMES, DataUnavailableError, data_root, load_available
found = {}
for name in NAMES:
    try:
        training, test, _ = load_available(name)
        found[name] = f"{name} ({len(training):,} + {len(test):,})"
    except DataUnavailableError as error:
        found[name] = None if str(error).startswith("none of") else f"! {error}"
print(json.dumps([str(data_root()), found]))
"""


def data() -> Finding:
    """Load what is on disk; nothing is downloaded."""
    answer, ended = ask_python(_PROGRAM, limit=60)
    if answer is None:
        return Finding("data", FAIL, f"could not be loaded: {ended.last_lines}", "See torch.")
    root, found = answer
    digits = found.pop("digits")
    if digits.startswith("!"):
        return Finding("data", FAIL, digits[2:], "git checkout data/digits.npz")
    damaged = [text[2:] for text in found.values() if text and text.startswith("!")]
    if damaged:
        return Finding("data", WARN, "; ".join(damaged), f"Remove the damaged files below {root}.")
    there = ", ".join(filter(None, [digits, *found.values()]))
    absent = [name for name, text in found.items() if text is None]
    if not absent:
        return Finding("data", OK, f"{there} below {root}")
    return Finding(
        "data",
        OK,
        f"{there}; not below {root}: {', '.join(absent)}. Lessons that could use them go on with "
        "the digits; course_lib.training.data.load(name) downloads one",
    )
