"""Run a program with packages that the course does not install, in a folder that is then removed.

``python -m tests.torch_mpi4py.borrowed -m pytest tests/torch_mpi4py/test_other_libraries.py``
installs the packages of other_libraries.txt into a temporary folder, puts it first on PYTHONPATH,
which ranks inherit, and runs ``python -m pytest ...`` with the checkout's Python and torch.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

PACKAGES = Path(__file__).with_name("other_libraries.txt")


def main() -> int:
    """Install the packages, run the program of the command line and return its exit status."""
    with tempfile.TemporaryDirectory(prefix="other-libraries") as folder:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "--no-deps", "--target", folder, "-r", PACKAGES], check=True)
        paths = [folder, os.environ.get("PYTHONPATH", "")]
        variables = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
        return subprocess.run(
            [sys.executable, *sys.argv[1:]], env=variables, check=False
        ).returncode


if __name__ == "__main__":
    sys.exit(main())
