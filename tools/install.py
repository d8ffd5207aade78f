"""Bring .venv to the state that requirements.lock and the three projects describe.

Run by ``tools/install.sh`` with any supported Python; only the standard library is used. A note
in .venv says what was installed last, so a second call does nothing. The next call resumes one that
was interrupted.

Where there is no NVIDIA driver, PyTorch comes from its own index of CPU builds (torch_builds.py);
the variable ``TORCH_INDEX`` names another, or ``none``.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import torch_builds
from within import surroundings

ROOT = Path(__file__).resolve().parent.parent
PROJECTS = ("packages/torch_mpi4py", "packages/ipyranks", ".")
VENV = ROOT / ".venv"
VENV_PYTHON = VENV / "bin" / "python"
NOTE = VENV / "installed-by-make.txt"
NEEDED_BYTES = 3 * 1024**3  # CPU builds take 1.5 GB unpacked, with room for downloads


class SetUpError(Exception):
    """Setting up failed; the message names what is missing and the remedy."""


def wanted() -> dict[str, str]:
    """Return the inputs of an up-to-date .venv, part by part."""
    lock = (ROOT / "requirements.lock").read_bytes()
    projects = [(ROOT / place / "pyproject.toml").read_bytes() for place in PROJECTS]
    project = b"".join([*projects, str(ROOT).encode()])
    return {
        "lock": hashlib.sha256(lock).hexdigest(),
        "project": hashlib.sha256(project).hexdigest(),
    }


def installed() -> dict[str, str]:
    """Return the inputs from which .venv was made; empty if it is missing or incomplete."""
    if not NOTE.is_file() or not runs(VENV_PYTHON):
        return {}
    return dict(line.split() for line in NOTE.read_text().splitlines())


def runs(python: Path) -> bool:
    """Return whether ``python`` starts: it no longer does once its base Python was removed."""
    if not python.exists():
        return False
    return subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode == 0


def make_venv() -> None:
    """Create .venv, or recreate it if it is broken."""
    if runs(VENV_PYTHON) and has_pip():
        return
    missing = [name for name in ("venv", "ensurepip") if importlib.util.find_spec(name) is None]
    if missing:
        raise SetUpError(
            f"{sys.executable} lacks its module {' and '.join(missing)}, "
            "so it cannot make a virtual environment.\n"
            "  Debian, Ubuntu: apt install python3-venv"
        )
    print(f"Creating .venv with Python {sys.version.split()[0]} ({sys.executable})", flush=True)
    command = [sys.executable, "-m", "venv", "--clear", ".venv"]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        raise SetUpError(explain(answer.stdout + answer.stderr))


def has_pip() -> bool:
    """Return whether .venv has pip, which is missing if its creation was interrupted."""
    command = [str(VENV_PYTHON), "-c", "import pip"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def check_space() -> None:
    """Stop before a long download that would not fit."""
    free = shutil.disk_usage(ROOT).free
    if free < NEEDED_BYTES:
        raise SetUpError(
            f"only {free / 1024**3:.1f} GB are free on the disk of {ROOT}; "
            f"the course needs {NEEDED_BYTES / 1024**3:.0f} GB "
            "(CUDA builds of PyTorch on Linux: 10 GB).\n"
            "  Free some, or put the checkout on another disk."
        )


def remove_half_installed() -> None:
    """Forget packages whose installation was interrupted.

    pip writes RECORD last, but treats a package with metadata as installed; without this it would
    never repair such a package.
    """
    for metadata in VENV.glob("lib/python*/site-packages/*.dist-info"):
        if not (metadata / "RECORD").is_file():
            shutil.rmtree(metadata)


def pip(*arguments: str) -> None:
    """Run .venv's pip, showing its output.

    Raises:
        SetUpError: if pip fails, with the likely cause and the remedy.
    """
    command = [str(VENV_PYTHON), "-m", "pip", "--disable-pip-version-check", *arguments]
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=surroundings(os.environ, ROOT),  # pip's cache, too, needs a place to write to
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    said = []
    assert process.stdout is not None
    for line in process.stdout:
        said.append(line)
        if line.startswith(("Collecting", "Downloading", "Installing", "ERROR", "  Downloading")):
            print(f"  {line.strip()[:150]}", flush=True)
    if process.wait() != 0:
        raise SetUpError(explain("".join(said)))


def explain(said: str) -> str:
    """Return the cause of a failure and the remedy, from the output of pip or venv."""
    last = "\n".join(f"    {line}" for line in said.strip().splitlines()[-8:])
    if "No space left on device" in said:
        temporary = os.environ.get("TMPDIR", "/tmp")
        cause = (
            f"the disk of {ROOT} or of {temporary} is full.\n"
            "  Free some, or set TMPDIR to a folder on a larger disk, and call make again."
        )
    elif re.search(r"from versions: none|ConnectionError|NewConnectionError|Max retries", said):
        cause = (
            "the package index did not answer.\n"
            "  Check the network; behind a proxy set HTTPS_PROXY, with a mirror PIP_INDEX_URL.\n"
            "  Then call make again: it goes on where it stopped."
        )
    elif "No matching distribution" in said:
        cause = (
            "the package index has no build for this machine "
            f"({sys.platform}, {os.uname().machine}, Python {sys.version.split()[0]}).\n"
            "  The course runs on Linux (x86-64, ARM) and macOS 14 or later (Apple silicon)."
        )
    elif "Permission denied" in said or "Read-only file system" in said:
        cause = f"{ROOT} cannot be written to; put the checkout where you may write."
    else:
        cause = "installing failed; the lines below say why."
    return f"{cause}\n  Last lines:\n{last}"


def torch_arguments() -> list[str]:
    """Return pip's options for PyTorch, and print why; nothing if it is installed already."""
    lock = ROOT / "requirements.lock"
    if torch_builds.are_installed(VENV, lock) and not os.environ.get("TORCH_INDEX"):
        return []
    index, why = torch_builds.choose(VENV_PYTHON, lock)
    if why:
        print(f"  {why}", flush=True)
    return ["--extra-index-url", index] if index else []


def install(done: dict[str, str], target: dict[str, str]) -> None:
    """Install the differences between ``done`` and ``target``, and record them."""
    if not os.access(ROOT, os.W_OK):
        raise SetUpError(explain("Permission denied"))
    if done.get("lock") != target["lock"]:
        check_space()
        make_venv()
        NOTE.unlink(missing_ok=True)
        remove_half_installed()
        print("Installing the packages of requirements.lock (minutes, the first time)", flush=True)
        pip("install", "-r", "requirements.lock", *torch_arguments())
    # The lock already brought all that the project needs, including setuptools to build it.
    editable = [part for place in PROJECTS for part in ("--editable", f"./{place}")]
    pip("install", "--no-deps", "--no-build-isolation", *editable)
    note = NOTE.with_suffix(".new")
    note.write_text("".join(f"{part} {value}\n" for part, value in target.items()))
    note.replace(NOTE)
    print("The course is installed in .venv", flush=True)


def main() -> int:
    """Bring .venv up to date; return the exit status."""
    target = wanted()
    done = installed()
    if done == target:
        return 0
    try:
        install(done, target)
    except SetUpError as error:
        print(f"make: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nmake: interrupted; call make again to go on", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
