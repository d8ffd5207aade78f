"""Checks the Python packages, PyTorch and the data sets."""

from __future__ import annotations

import importlib.metadata
import re
import sys
from pathlib import Path

from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.version import Version

from course_lib.places import CHECKOUT, ROOT

from .examination import INSTALL, Finding, ask_python, fail, ok, warn

__all__ = ["data", "gpus", "kernel", "lock", "torch_pair"]

_LOCK = (CHECKOUT or ROOT) / "requirements.lock"
_TORCH_SECONDS = 60


def lock(path: Path = _LOCK) -> Finding:
    """Compare the installed packages with the lock."""
    if not path.exists():
        return ok("not in a checkout, so there is no lock to compare with")
    missing, other, total = [], [], 0
    for name, version in _locked(path):
        total += 1
        try:
            installed = Version(importlib.metadata.version(name)).public
        except importlib.metadata.PackageNotFoundError:
            missing.append(name)
            continue
        if installed != version:
            other.append(f"{name} {installed} instead of {version}")
    if missing:
        return fail(f"missing: {', '.join(missing)}", INSTALL)
    if other:
        return warn(
            f"not the locked versions: {'; '.join(other)}",
            "`make clean && make setup` installs the versions that were tested together.",
        )
    return ok(f"all {total} locked packages are installed, in the locked versions")


def _locked(path: Path) -> list[tuple[str, str]]:
    found = []
    for line in path.read_text().splitlines():
        match = re.match(r"([A-Za-z0-9_.-]+)==([^ ;]+)(?:\s*;\s*(.+))?$", line)
        if match and (not match[3] or Marker(match[3]).evaluate()):
            found.append((match[1], Version(match[2]).public))
    return found


def torch_pair() -> Finding:
    """Check that torchvision fits this torch, and that both load."""
    fix = INSTALL
    if CHECKOUT:
        fix = f"Run `make setup`, or: {sys.executable} -m pip install -r requirements.lock"
    try:
        torch, vision = map(importlib.metadata.version, ("torch", "torchvision"))
    except importlib.metadata.PackageNotFoundError as error:
        return fail(f"{error.name} is not installed", fix)
    seen = f"torch {torch}, torchvision {vision}"
    for needed in map(Requirement, importlib.metadata.requires("torchvision") or []):
        if needed.name == "torch" and not needed.specifier.contains(torch, prereleases=True):
            return fail(f"{seen}, which is built for torch {needed.specifier}", fix)
    loaded, answer = ask_python(
        "import json; from course_lib.training.vision import torchvision; import torch; "
        "import torch.distributed as dist; assert torchvision.datasets and dist.is_available(); "
        "print(json.dumps(torch.ones(2, 2).mm(torch.ones(2, 2)).tolist()))",
        limit=_TORCH_SECONDS,
    )
    if loaded != [[2.0, 2.0], [2.0, 2.0]]:
        return fail(f"{seen}: cannot be imported: {answer.last_lines}", fix)
    return ok(f"{seen}, both can be imported")


def gpus() -> Finding:
    """Report which GPUs PyTorch sees, and how their tensors can be carried."""
    found, answer = ask_python(
        "import json, torch; n = torch.cuda.device_count(); import torch.distributed as dist; "
        "from torch_mpi4py.core.gpus import takes_cuda; "
        "print(json.dumps([[torch.cuda.get_device_name(i) for i in range(n)], "
        "dist.is_nccl_available(), n > 0 and takes_cuda()]))",
        limit=_TORCH_SECONDS,
    )
    if found is None:
        return warn(f"PyTorch could not list them: {answer.last_lines}", "See the line 'torch'.")
    return _about_gpus(*found)


def _about_gpus(names: list[str], nccl: bool, takes_cuda: bool) -> Finding:
    if not names:
        return ok("none that PyTorch can use; the lessons need none")
    by_mpi = "reads their tensors directly" if takes_cuda else "gets their tensors through the host"
    seen = f"{', '.join(names)}; MPI {by_mpi}"
    if not nccl:
        return warn(
            f"{seen}; this PyTorch has no NCCL",
            "Install PyTorch's CUDA build; until then, you can use the course's backend.",
        )
    return ok(f"{seen}; NCCL is available (docs/gpus.md)")


def kernel() -> Finding:
    """Check that a notebook's kernel runs this Python."""
    from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel

    install = f"{sys.executable} -m ipykernel install --sys-prefix"
    try:
        command = KernelSpecManager().get_kernel_spec("python3").argv[0]
    except NoSuchKernel:
        return fail("no kernel is called python3", install)
    runs = Path(command).name if not Path(command).is_absolute() else command
    same = runs in ("python", "python3") or Path(runs).parent == Path(sys.executable).parent
    if not same:
        return fail(
            f"notebooks run {runs}, not {sys.executable}",
            install,
        )
    return ok("notebooks run this Python")


_LOAD_DATA = """
import json
from course_lib.training.data import NAMES, DataUnavailableError, data_root, load_available
found = {}
for name in NAMES:
    try:
        training, test, _ = load_available(name)
        found[name] = f"{name} ({len(training):,} + {len(test):,})"
    except DataUnavailableError as error:
        found[name] = None if str(error).startswith("none of") else f"! {error}"
print(json.dumps([str(data_root()), found]))
"""


def data() -> Finding:
    """Load the data sets on disk; nothing is downloaded."""
    answer, ended = ask_python(_LOAD_DATA, limit=60)
    if answer is None:
        return fail(f"could not be loaded: {ended.last_lines}", "See the line 'torch'.")
    root, found = answer
    digits = found.pop("digits")
    if digits.startswith("!"):
        restore = "git checkout course_lib/training/digits.npz" if CHECKOUT else INSTALL
        return fail(digits[2:], restore)
    damaged = [text[2:] for text in found.values() if text and text.startswith("!")]
    if damaged:
        return warn("; ".join(damaged), f"Remove the damaged files below {root}.")
    there = ", ".join(filter(None, [digits, *found.values()]))
    absent = [name for name, text in found.items() if text is None]
    if not absent:
        return ok(f"{there} below {root}")
    return ok(
        f"{there}; not below {root}: {', '.join(absent)}. Lessons that could use them use the "
        "digits instead; course_lib.training.data.load(name) downloads one",
    )
