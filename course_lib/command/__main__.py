"""``rank-by-rank lab``, ``class``, ``grade`` and others: each part reads its own arguments.

The parts are imported on request: ``rank-by-rank lab`` needs no PyTorch.
"""

from __future__ import annotations

import sys
from importlib import import_module

from course_lib import __version__

PARTS = {
    "lab": ("course_lib.command.lab", "open JupyterLab on lesson 00, in a folder of your choice"),
    "doctor": ("course_lib.doctor.__main__", "report what would fail on this machine, and why"),
    "grade": ("course_lib.grading.__main__", "grade a class's notebooks, with points and reasons"),
    "class": ("course_lib.classroom.__main__", "show who in a class is stuck, as it happens"),
    "run": ("course_lib.command.run", "execute lessons from the first cell to the last"),
}


def usage() -> str:
    """Return the command's parts, a line for each."""
    lines = [f"  {name:<7} {what}" for name, (_, what) in PARTS.items()]
    return "\n".join(
        [
            "usage: rank-by-rank PART [ARGUMENTS]",
            "",
            *lines,
            "",
            "rank-by-rank PART --help lists a part's options; --version shows the version.",
        ]
    )


def main(arguments: list[str] | None = None) -> int:
    """Run a part; return its exit status, 2 where there is no such part."""
    given = sys.argv[1:] if arguments is None else arguments
    if given in (["--help"], ["-h"]):
        print(usage())
        return 0
    if given == ["--version"]:
        print(f"rank-by-rank {__version__}")
        return 0
    if not given or given[0] not in PARTS:
        what = f"there is no {given[0]!r}" if given else "which part?"
        print(f"rank-by-rank: {what}\n{usage()}", file=sys.stderr)
        return 2
    module, _ = PARTS[given[0]]
    return import_module(module).main(given[1:])


if __name__ == "__main__":
    sys.exit(main())
