"""Opens JupyterLab on the learner's copy of lesson 00.

Usage::

    rank-by-rank lab [FOLDER] [ARGUMENTS OF JUPYTERLAB]

    rank-by-rank lab [FOLDER] --class SHARED [--name NAME] [...]

FOLDER is created if it does not exist. Your copies of the lessons are in its workspace, and nothing
ever overwrites them. By default, FOLDER is the enclosing one that already has lessons, or else
rank-by-rank in the current folder. With --class, your teacher sees your progress from what your
notebooks write to the folder SHARED (never your code), under NAME or the name of your account.
Examples::

    rank-by-rank lab ~/course
    rank-by-rank lab ~/course --no-browser --port 8899
    rank-by-rank lab ~/course --class /srv/class --name "Ada L."
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from course_lib.places import CHECKOUT
from course_lib.surroundings import surroundings
from course_lib.teaching import class_record

from .folder import chosen, prepared

FIRST_LESSON = "/lab/tree/workspace/00_start_here.ipynb"
LAB_SETTINGS = Path(__file__).with_name("lab_settings")

# No questions about news on the first start, and no calls to anywhere else.
QUIET = (
    f"--LabApp.app_settings_dir={LAB_SETTINGS}",
    "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    "--LabApp.extension_manager=readonly",
)


def settings(folder: Path, given: list[str]) -> list[str]:
    """Return our arguments for JupyterLab, except those in ``given``: it accepts none twice."""
    ours = [
        "--ip=127.0.0.1",  # this machine only, and JupyterLab asks for its token
        f"--ServerApp.root_dir={folder}",
        # Not a file to open but the address, so that the one printed leads to the lesson too.
        f"--LabApp.default_url={FIRST_LESSON}",
        *QUIET,
    ]
    if os.geteuid() == 0:
        ours.append("--allow-root")
    named = {argument.partition("=")[0] for argument in given}
    return [argument for argument in ours if argument.partition("=")[0] not in named]


def _ours() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--class", dest="shared", type=Path)
    parser.add_argument("--name")
    return parser


def _problem(ours: argparse.Namespace) -> str:
    if ours.name and not ours.shared:
        return "--name is your name in a class, so it needs --class SHARED as well"
    if ours.shared and not (ours.shared.is_dir() and os.access(ours.shared, os.W_OK | os.X_OK)):
        return (
            f"--class {ours.shared} is not a folder that you may write to: ask your teacher for "
            "the right one"
        )
    return ""


def main(arguments: list[str]) -> int:
    """Prepare the folder, then become JupyterLab; return 1 if it cannot be prepared."""
    if arguments[:1] in (["--help"], ["-h"]):
        print(__doc__)
        return 0
    ours, given = _ours().parse_known_args(arguments)
    if problem := _problem(ours):
        print(f"rank-by-rank: {problem}", file=sys.stderr)
        return 1
    folder = chosen(given.pop(0) if given and not given[0].startswith("-") else None)
    if not prepared(folder):
        return 1
    variables = surroundings(os.environ, folder)
    if folder != CHECKOUT:
        variables["COURSE_WORKSPACE"] = str(folder / "workspace")
    if ours.shared:
        variables[class_record.FOLDER] = f"{ours.shared.resolve()}"
    if ours.name:
        variables[class_record.NAME] = ours.name
    os.chdir(folder)
    command = [sys.executable, "-m", "jupyterlab", *settings(folder, given), *given]
    os.execve(sys.executable, command, variables)
