"""Where the course is, and where a learner's own files go.

In a checkout all of it is in one folder. If pip installed the course, lessons and programs are in
the package ``rank_by_rank``, and the learner's own files in a folder of the learner's choice, which
``rank-by-rank lab`` prepares: there ``workspace``, ``notebooks`` and ``scripts`` are as in a
checkout.
"""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["CHECKOUT", "NOTEBOOKS", "PROGRAMS", "ROOT", "SCRIPTS", "WORKSPACE"]

ISSUED = ".issued.json"  # in a workspace, the note of what was handed out

_BESIDE = Path(__file__).resolve().parents[1]

CHECKOUT: Path | None = _BESIDE if (_BESIDE / "notebooks" / "lesson_00").is_dir() else None
"""The top of the checkout, None where the course was installed by pip."""

NOTEBOOKS: Path = _BESIDE / ("notebooks" if CHECKOUT else "rank_by_rank")
"""The executed notebooks, and each lesson's room."""


def course_folder(start: Path) -> Path | None:
    """Return the folder, ``start`` or one around it, in which a workspace was prepared."""
    for folder in (start, *start.parents):
        if (folder / "workspace" / ISSUED).is_file():
            return folder
    return None


def _root() -> Path:
    if CHECKOUT:
        return CHECKOUT
    if said := os.environ.get("COURSE_WORKSPACE"):
        return Path(said).resolve().parent
    return course_folder(Path.cwd()) or Path.cwd()


ROOT: Path = _root()
"""The checkout; without one the learner's folder, or where this process was started."""

# Under JupyterHub the checkout is shared, and each learner has a workspace of their own.
WORKSPACE: Path = Path(os.environ.get("COURSE_WORKSPACE") or ROOT / "workspace").resolve()
"""The learner's copies of the lessons."""

PROGRAMS: Path = (CHECKOUT or NOTEBOOKS) / "scripts"
"""The lessons' programs, as they came."""

SCRIPTS: Path = ROOT / "scripts" if (ROOT / "scripts" / "ddp.py").is_file() else PROGRAMS
"""The programs to run: the learner's copies, if there are any."""
