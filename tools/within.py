"""Run a Python program in the course's surroundings: see course_lib/surroundings.py.

Usage: ``.venv/bin/python tools/within.py PROGRAM.py ARGS`` or ``... -m MODULE ARGS``.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # also for a Python in which the course is not installed

from course_lib.surroundings import surroundings  # noqa: E402

if __name__ == "__main__":
    variables = surroundings(os.environ, ROOT)
    os.execve(sys.executable, [sys.executable, *sys.argv[1:]], variables)
