"""Open JupyterLab on the learner's copy of lesson 00.

Usage: ``make lab ARGS="--no-browser --port 8899"``; in a conda environment
``python tools/lab.py --no-browser --port 8899``. All arguments go to JupyterLab.
"""

from __future__ import annotations

import os
import subprocess
import sys

from within import ROOT, surroundings

FIRST_LESSON = "/lab/tree/workspace/00_start_here.ipynb"


def settings(given: list[str]) -> list[str]:
    """Return our arguments for JupyterLab, but for those in ``given``: it takes none twice."""
    chosen = [
        "--ip=127.0.0.1",  # this machine only, and JupyterLab asks for its token
        f"--ServerApp.root_dir={ROOT}",
        # Not a file to open but the address, so that the one printed leads to the lesson too.
        f"--LabApp.default_url={FIRST_LESSON}",
        # No questions about news on the first start, and no calls to anywhere else.
        f"--LabApp.app_settings_dir={ROOT / 'tools' / 'lab_settings'}",
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
        "--LabApp.extension_manager=readonly",
    ]
    if os.geteuid() == 0:
        chosen.append("--allow-root")
    named = {argument.partition("=")[0] for argument in given}
    return [argument for argument in chosen if argument.partition("=")[0] not in named]


def main() -> None:
    """Prepare the workspace, then become JupyterLab."""
    variables = surroundings(dict(os.environ))
    prepare = [sys.executable, "-m", "course_lib.teaching.workspace"]
    if subprocess.run(prepare, cwd=ROOT, env=variables, check=False).returncode != 0:
        sys.exit("make: the workspace could not be prepared; the lines above say why")
    command = [sys.executable, "-m", "jupyterlab", *settings(sys.argv[1:]), *sys.argv[1:]]
    os.chdir(ROOT)
    os.execve(sys.executable, command, variables)


if __name__ == "__main__":
    main()
