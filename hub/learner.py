#!/usr/bin/env python3
"""A learner's JupyterLab under JupyterHub, in the learner's own account.

It copies the lessons into ``~/rank-by-rank/workspace``, where nothing ever overwrites the
learner's work, then becomes the server, whose packages are those of ``hub/.venv``. Any Python can
run it; the notebooks' is the course's (see install.sh).
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

HUB = Path(__file__).resolve().parent
COURSE = HUB.parent
PROGRAMS = COURSE / ".venv" / "bin"


def outside_of_the_job(variables: Mapping[str, str]) -> dict[str, str]:
    """Variables without those by which programs know the job of Slurm that the server runs in.

    The job is this one server and counts as one task, so ``mpiexec`` and ``start_cluster`` would
    find place for one rank, and ``SLURM_EXPORT_ENV`` would cut down what a job submitted from here
    gets. Without them a node is what a learner's own machine is: ranks run
    there and share the job's cores, and ``sbatch`` and ``salloc`` ask for jobs of their own.
    """
    return {
        name: value
        for name, value in variables.items()
        if name == "SLURM_CONF" or not name.startswith("SLURM")
    }


def main(arguments: list[str]) -> None:
    """Prepare the learner's folder, then become the server."""
    folder = Path.home() / "rank-by-rank"
    os.environ["COURSE_WORKSPACE"] = str(folder / "workspace")
    # The course's mpiexec and torchrun, also in JupyterLab's terminals.
    os.environ["PATH"] = os.pathsep.join([str(PROGRAMS), os.environ.get("PATH", os.defpath)])
    subprocess.run([PROGRAMS / "python", "-m", "course_lib.command.folder", folder], check=True)
    os.chdir(folder)
    settings = [
        f"--ServerApp.root_dir={folder}",
        f"--LabApp.app_settings_dir={COURSE / 'course_lib' / 'command' / 'lab_settings'}",
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
        "--LabApp.extension_manager=readonly",
    ]
    server = str(HUB / ".venv" / "bin" / "python")
    variables = outside_of_the_job(os.environ)
    os.execve(server, [server, "-m", "jupyterhub.singleuser", *settings, *arguments], variables)


if __name__ == "__main__":
    main(sys.argv[1:])
