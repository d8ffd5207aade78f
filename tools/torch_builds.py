"""Choose pip's source of PyTorch: builds with CUDA are of no use without an NVIDIA driver.

On Linux the package index has PyTorch with CUDA, 5.1 GB in .venv. PyTorch's own index has the same
versions for the CPU, 1.5 GB in .venv, as ``2.13.0+cpu``: pip accepts that as ``==2.13.0``, and as
the newer of the two if it is given both indexes.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

CPU_INDEX = "https://download.pytorch.org/whl/cpu"
PACKAGES = ("torch", "torchvision")
# Users who can't reach that index should not wait for it: the limits for one answer, and for all
# queries together, which are three starts of pip.
ANSWER_SECONDS = 3
ALL_SECONDS = 20.0
SIGNS_OF_A_DRIVER = (
    "/proc/driver/nvidia/version",
    "/dev/nvidiactl",
    "/usr/lib/wsl/lib/nvidia-smi",  # Windows' driver, in its Linux
    "/etc/nv_tegra_release",
)
# The settings that pip needs to reach any index.
WAY_OUT = ("proxy", "cert", "client-cert", "trusted-host")


class Choice(NamedTuple):
    """An address to give pip beside the package index, empty if none, and a line that says why."""

    address: str
    why: str


def has_nvidia_driver() -> bool:
    """Return whether CUDA builds could use a GPU of this machine."""
    return any(map(os.path.exists, SIGNS_OF_A_DRIVER)) or shutil.which("nvidia-smi") is not None


def are_installed(venv: Path, lock: Path) -> bool:
    """Return whether an environment has the lock's PyTorch, with CUDA or without."""
    for name in PACKAGES:
        about = f"lib/python*/site-packages/{name}-{locked_version(lock, name)}"
        if not [*venv.glob(f"{about}.dist-info"), *venv.glob(f"{about}+*.dist-info")]:
            return False
    return True


def choose(python: Path, lock: Path, cpu_index: str = CPU_INDEX) -> Choice:
    """Return where pip should look for PyTorch, beside the package index.

    ``TORCH_INDEX`` wins: an address, or ``none`` for the package index alone.

    Args:
        python: the Python whose pip will install.
        lock: the file that names the versions.
        cpu_index: the address of PyTorch's CPU builds.
    """
    asked = os.environ.get("TORCH_INDEX", "")
    if asked:
        return Choice("" if asked == "none" else asked, "")
    if sys.platform != "linux" or has_nvidia_driver():
        return Choice("", "")
    problem = why_not(python, lock, cpu_index)
    if problem:
        return Choice("", f"PyTorch comes from the package index, with CUDA there: {problem}")
    return Choice(cpu_index, f"No NVIDIA driver here: taking PyTorch's CPU builds from {cpu_index}")


def why_not(python: Path, lock: Path, index: str) -> str:
    """Return why PyTorch can't be had from ``index``, empty if it can."""
    deadline = time.monotonic() + ALL_SECONDS
    try:
        settings = pip_settings(python, deadline)
        if settings.keys() & {"index-url", "no-index"}:
            return "pip is told where to look (index-url or no-index)"
        for name in PACKAGES:
            version = locked_version(lock, name)
            said = versions_on(python, index, name, settings, deadline)
            if "Could not fetch URL" in said and "404 Client Error" not in said:
                return f"{index} can't be reached"
            found = re.search(r"^Available versions: (.*)$", said, re.MULTILINE)
            versions = found[1].split(", ") if found else []
            if version not in {one.partition("+")[0] for one in versions}:
                return f"{index} has no {name} {version} for this machine and Python"
    except subprocess.TimeoutExpired:
        return f"{index} doesn't answer in {ALL_SECONDS:g} s"
    return ""


def locked_version(lock: Path, name: str) -> str:
    """Return the version of ``name`` in the lock."""
    found = re.search(rf"^{name}==(\S+)", lock.read_text(), re.MULTILINE)
    assert found is not None, f"{lock} has no {name}"
    return found[1]


def pip_settings(python: Path, deadline: float) -> dict[str, str]:
    """Return pip's settings from its variables and files, by name."""
    said = ask_pip(python, deadline, os.environ, "config", "list")
    found = re.findall(r"""^[^=]*\.([a-z-]+)=('.*'|".*")$""", said, re.MULTILINE)
    return {name: str(ast.literal_eval(value)) for name, value in found}


def versions_on(
    python: Path, index: str, name: str, settings: Mapping[str, str], deadline: float
) -> str:
    """Return pip's answer about the versions of ``name`` on ``index``, and on no other.

    pip itself decides which builds fit this machine, and uses its own proxy settings.
    """
    way_out = {f"PIP_{key.replace('-', '_').upper()}": settings.get(key, "") for key in WAY_OUT}
    plain = {key: value for key, value in os.environ.items() if not key.startswith("PIP_")}
    variables = plain | {key: value for key, value in way_out.items() if value}
    variables["PIP_CONFIG_FILE"] = os.devnull
    where = ("--index-url", index, "--timeout", str(ANSWER_SECONDS), "--retries", "0", "-vv")
    return ask_pip(python, deadline, variables, "index", "versions", name, *where)


def ask_pip(python: Path, deadline: float, variables: Mapping[str, str], *arguments: str) -> str:
    """Return all output of pip."""
    answer = subprocess.run(
        [python, "-m", "pip", "--disable-pip-version-check", "--no-input", *arguments],
        env=dict(variables),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=max(0.1, deadline - time.monotonic()),
        check=False,
    )
    return answer.stdout
