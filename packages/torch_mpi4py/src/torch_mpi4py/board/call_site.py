"""Finds the line of the program that asked for an operation.

That is the innermost line outside installed packages, Python's own library and this one. In a
notebook it reads ``cell 7, line 3``, elsewhere ``program.py:12``. The name of a place in the code
is worked out once; after that, a lookup takes half a microsecond.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path
from types import FrameType
from typing import Any

_MOST_PLACES = 20_000

_LIBRARIES = tuple(
    {
        str(Path(__file__).resolve().parents[2]),
        *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    }
)

# For each file: None if it belongs to a library, otherwise the names of the places in it, by
# the first line of the function (outside functions by the line itself) and the instruction. (Not by
# the code object: its hash reads all of its constants.)
_files: dict[str, dict[tuple[int, int], str] | None] = {}
_cell_files: set[str] = set()
_places = 0
_get_frame = sys._getframe


def call_site(depth: int = 1) -> str:
    """Return the line that led to this call, "" if only libraries did.

    Args:
        depth: calls to pass over at least.
    """
    try:
        return site_of(_get_frame(depth))
    except ValueError:  # a thread of C++ runs so few calls of Python
        return ""


def site_of(frame: FrameType | None) -> str:
    """Return the innermost line of the user's program in the stack of ``frame``."""
    files = _files
    while frame is not None:
        code = frame.f_code
        try:
            places = files[code.co_filename]
        except KeyError:
            places = _new_file(code.co_filename)
        if places is not None:
            first = code.co_firstlineno
            # A cell has many such codes, one for each statement. (Elsewhere the line is not needed:
            # to find it in a long program takes as long as an event.)
            if code.co_name == "<module>" and code.co_filename in _cell_files:
                first = -frame.f_lineno
            place = (first, frame.f_lasti)
            site = places.get(place)
            return site if site is not None else _new_place(places, place, frame)
        frame = frame.f_back
    return ""


def is_of_the_program(frame: FrameType) -> bool:
    """Return whether a frame is of the user's program, and not of a library."""
    name = frame.f_code.co_filename
    return (_files[name] if name in _files else _new_file(name)) is not None


def _new_file(filename: str) -> dict[tuple[int, int], str] | None:
    places: dict[tuple[int, int], str] | None = {}
    if filename in _cells():
        _cell_files.add(filename)
        _forget_with_the_next_cell()
    elif filename in {"<string>", "<stdin>"}:  # each string, each statement that is typed
        _cell_files.add(filename)
    elif filename.startswith(("<", *_LIBRARIES)):
        places = None
    _files[filename] = places
    return places


def _new_place(places: dict[tuple[int, int], str], place: tuple[int, int], frame: FrameType) -> str:
    global _places
    filename = frame.f_code.co_filename
    cell = _cells().get(filename)
    if cell is None:
        site = f"{Path(filename).name}:{frame.f_lineno}"
    else:
        site = f"cell {cell}, line {frame.f_lineno}"
    _places += 1
    if _places > _MOST_PLACES:
        _places = 0
        _files.clear()
    places[place] = site
    return site


def add_library(directory: str) -> None:
    """Count the Python files in a directory as a library's, as those of installed packages are."""
    global _LIBRARIES
    _LIBRARIES = (*_LIBRARIES, f"{directory}{os.sep}")
    _files.clear()


def shell() -> Any:
    """Return the IPython shell this process runs cells in, None if there is none."""
    # While another thread imports IPython, the module is there and the function is not.
    get = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return get() if get is not None else None


def _cells() -> dict[str, int]:
    """Return the number of the cell for each generated file name, {} outside notebooks."""
    running = shell()
    return getattr(running.compile, "_filename_map", {}) if running is not None else {}


_listening = None


def _forget_with_the_next_cell() -> None:
    """A cell that is run again unchanged keeps its file name and gets another number."""
    global _listening
    running = shell()
    if _listening is not running:
        _listening = running
        running.events.register("pre_run_cell", _forget_cells)


def _forget_cells(*_: object) -> None:
    while _cell_files:
        _files.pop(_cell_files.pop(), None)
