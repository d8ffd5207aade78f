"""Make requirements.lock from pyproject.toml and requirements.in, with uv.

Usage: ``make lock``, or ``python tools/lock.py`` where ``uv`` is installed. One lock serves Linux
and macOS with every supported Python; where a version differs, a marker says for which.

Torch's dependencies on a machine with a GPU (the CUDA libraries and triton) are left out: torch
itself requires exact versions of them, and its CPU builds require none, so the lock fits both.
Packages for Windows only are left out too, because the course needs an MPI that Windows lacks.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements.lock"
OURS = re.compile(r"(\./)?packages/|-e ")
BROUGHT_BY_TORCH = re.compile(r"nvidia-|cuda-|triton==")
WINDOWS_ONLY = re.compile(r"; (sys_platform == 'win32'|os_name == 'nt')$")

HEADER = """\
# Exact versions of everything the course runs on: Linux and macOS, Python 3.11 to 3.14.
# Made by `make lock` from pyproject.toml and requirements.in; do not edit.
#
# The package index has torch for Linux with CUDA libraries, PyTorch's own index has it without.
# `make` takes the latter on a machine without an NVIDIA driver; both fit this file.
"""


def resolved() -> list[str]:
    """Return uv's resolution, one ``name==version [; marker]`` per line.

    Raises SystemExit if uv is missing or finds no resolution (uv prints why).
    """
    uv = shutil.which("uv")
    if uv is None:
        sys.exit("making the lock needs uv; install it with: python -m pip install uv")
    command = [uv, "pip", "compile", "--quiet", "--universal", "--python-version", "3.11.0"]
    command += ["--only-binary", ":all:", "--no-annotate", "--no-header", "--extra", "test"]
    command += ["--constraint", "requirements.in", "pyproject.toml"]
    answer = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if answer.returncode != 0:
        sys.exit("uv found no set of versions that fits; requirements.lock is unchanged")
    return answer.stdout.splitlines()


def main() -> None:
    """Write requirements.lock."""
    kept = [
        line
        for line in resolved()
        if not OURS.match(line)
        and not BROUGHT_BY_TORCH.match(line)
        and not WINDOWS_ONLY.search(line)
    ]
    LOCK.write_text(HEADER + "\n".join(kept) + "\n", encoding="utf-8")
    print(f"wrote {LOCK.name}: {len(kept)} lines")


if __name__ == "__main__":
    main()
