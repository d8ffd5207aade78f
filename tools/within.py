"""Run a Python program in the course's surroundings.

Usage: ``.venv/bin/python tools/within.py PROGRAM.py ARGS`` or ``... -m MODULE ARGS``.

The surroundings are three: the programs beside this Python come first on PATH, so that
``mpiexec`` in a lesson is the course's own; where the home directory cannot be written to,
whatever Jupyter, IPython, Matplotlib and pip keep there goes to .runtime in the checkout;
Python's output is not held back.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def home_is_writable() -> bool:
    """Tell whether files can be made in the home directory, by making one.

    Asking for permissions is not enough: root always has them, also on a read-only disk.
    """
    try:
        with tempfile.NamedTemporaryFile(dir=Path.home(), prefix=".course-"):
            return True
    except (OSError, RuntimeError):  # RuntimeError: there is no home directory at all
        return False


def surroundings(base: dict[str, str]) -> dict[str, str]:
    """Return the variables for a course program, from those in ``base``."""
    variables = dict(base)
    programs = str(Path(sys.executable).parent)
    path = variables.get("PATH", os.defpath).split(os.pathsep)
    if path[0] != programs:
        variables["PATH"] = os.pathsep.join([programs, *path])
    variables.setdefault("PYTHONUNBUFFERED", "1")
    if home_is_writable():
        return variables
    runtime = ROOT / ".runtime"
    for name, folder in {
        "JUPYTER_CONFIG_DIR": "jupyter/config",
        "JUPYTER_DATA_DIR": "jupyter/data",
        "JUPYTER_RUNTIME_DIR": "jupyter/runtime",
        "IPYTHONDIR": "ipython",
        "MPLCONFIGDIR": "matplotlib",
        "TORCH_HOME": "torch",
        "PIP_CACHE_DIR": "pip",
        "XDG_CACHE_HOME": "cache",
        "XDG_CONFIG_HOME": "config",
        "XDG_DATA_HOME": "data",
    }.items():
        if name not in variables:
            (runtime / folder).mkdir(parents=True, exist_ok=True)
            variables[name] = str(runtime / folder)
    return variables


if __name__ == "__main__":
    os.execve(sys.executable, [sys.executable, *sys.argv[1:]], surroundings(dict(os.environ)))
