"""Prepares a learner's folder: their copies of the lessons, and the files that these refer to.

In it are ``workspace``, with the learner's copies, ``notebooks``, a link to the lessons as they
were executed (the glossary is there), and ``scripts``, the lessons' programs to run and to change.
Nothing that a learner has changed is overwritten. A checkout is such a folder already.
"""

from __future__ import annotations

import sys
from pathlib import Path

from course_lib.places import CHECKOUT, NOTEBOOKS, PROGRAMS, course_folder
from course_lib.teaching.workspace import make_workspace, put_texts

__all__ = ["chosen", "prepare", "prepared"]

_NEW = "rank-by-rank"


def chosen(said: str | None) -> Path:
    """Return the folder to use: the one given, the checkout, or a folder nearby.

    That is the one around the current folder in which lessons were prepared before; without one,
    ``rank-by-rank`` in the current folder.
    """
    if said is not None:
        return Path(said).expanduser().resolve()
    return CHECKOUT or course_folder(Path.cwd()) or Path.cwd() / _NEW


def prepare(folder: Path) -> list[str]:
    """Bring ``folder`` up to date, and return the messages to print.

    Raises:
        OSError: if it cannot be written to, or something else is in the way.
    """
    linked = folder / "notebooks"
    if folder != CHECKOUT and linked.exists() and not linked.is_symlink():
        raise FileExistsError(f"something else is at {linked}; choose another folder")
    said = make_workspace(workspace=folder / "workspace")
    if folder == CHECKOUT:
        return said
    if linked.is_symlink() and linked.resolve() != NOTEBOOKS:  # of an environment that is gone
        linked.unlink()
    if not linked.is_symlink():
        linked.symlink_to(NOTEBOOKS)
    paths = [path for path in sorted(PROGRAMS.iterdir()) if path.suffix in (".py", ".sbatch")]
    put_texts({path.name: path.read_text(encoding="utf-8") for path in paths}, folder / "scripts")
    return said


def prepared(folder: Path) -> bool:
    """Prepare ``folder`` and print what changed; False, with the reason printed, if that failed."""
    try:
        said = prepare(folder)
    except OSError as error:
        print(f"rank-by-rank: {folder} cannot be prepared: {error}", file=sys.stderr)
        return False
    print("".join(f"workspace/{line}\n" for line in said), end="", flush=True)
    return True


if __name__ == "__main__":  # for a JupyterHub: the folder alone
    sys.exit(not prepared(chosen(sys.argv[1])))
