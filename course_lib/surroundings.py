"""The environment variables with which programs of the course run, on any machine.

It imports nothing but the standard library: ``make`` needs it before anything is installed.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path


def home_is_writable() -> bool:
    """Return whether files can be made in the home directory, by making one.

    Asking for permissions is not enough: root always has them, even on a read-only disk.
    """
    try:
        with tempfile.NamedTemporaryFile(dir=Path.home(), prefix=".course-"):
            return True
    except (OSError, RuntimeError):  # RuntimeError: there is no home directory at all
        return False


def surroundings(base: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Return the variables for a course program, from those in ``base``.

    The programs beside this Python come first on PATH, so that ``mpiexec`` in a lesson is the
    course's own; Python's output is not buffered, and compiled modules are kept; if the home
    directory cannot be written to, the files that Jupyter, IPython, Matplotlib and pip keep there
    go to ``.runtime`` in ``folder``.
    """
    variables = dict(base)
    programs = str(Path(sys.executable).parent)
    path = variables.get("PATH", os.defpath).split(os.pathsep)
    if path[0] != programs:
        variables["PATH"] = os.pathsep.join([programs, *path])
    variables.setdefault("PYTHONUNBUFFERED", "1")
    # Some containers set it, and every rank, kernel and pytest would compile what it imports.
    variables.pop("PYTHONDONTWRITEBYTECODE", None)
    if home_is_writable():
        return variables
    runtime = folder / ".runtime"
    for name, place in {
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
            (runtime / place).mkdir(parents=True, exist_ok=True)
            variables[name] = str(runtime / place)
    return variables
