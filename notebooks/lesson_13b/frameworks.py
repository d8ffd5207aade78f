"""Runs each framework's training, and stores the results for machines without that framework.

    /path/to/env/bin/python -m rank_by_rank.lesson_13b.frameworks fabric accelerate

runs these frameworks with that Python, and writes the losses or the error into
``frameworks.json``. The frameworks need not be in the course's own environment.
"""

from __future__ import annotations

import difflib
import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from course_lib.places import ROOT

__all__ = [
    "FRAMEWORKS",
    "Framework",
    "added_lines",
    "code_lines",
    "here_or_stored",
    "listing",
    "run",
    "stored",
]

STEPS = Path(__file__).with_name("steps")
_RECORD = Path(__file__).with_name("frameworks.json")
_LIMIT_S = 120.0


@dataclass(frozen=True)
class Framework:
    """How a framework's script is started.

    Attributes:
        title: the framework's usual name.
        script: its file in ``steps``.
        module: the module that has to be installed, "" if PyTorch is enough.
        package: the name of that module's package.
        launcher: "none", "mpiexec" or "torchrun"; the launchers start two ranks.
    """

    title: str
    script: str
    module: str = ""
    package: str = ""
    launcher: str = "torchrun"


FRAMEWORKS = {
    "serial": Framework("one process", "serial.py", launcher="none"),
    "plain": Framework("torch.distributed", "plain.py", launcher="mpiexec"),
    "ddp": Framework("DDP", "ddp.py", launcher="mpiexec"),
    "fabric": Framework("Lightning Fabric", "fabric.py", "lightning_fabric", "lightning-fabric"),
    "accelerate": Framework("Accelerate", "accelerated.py", "accelerate", "accelerate"),
    "deepspeed": Framework("DeepSpeed", "deep_speed.py", "deepspeed", "deepspeed"),
    "horovod": Framework("Horovod", "horovod_.py", "horovod", "horovod", "mpiexec"),
    "tensorflow": Framework("tf.distribute", "mirrored.py", "tensorflow", "tensorflow-cpu", "none"),
}


def installed(name: str) -> bool:
    """Return whether a framework's module can be imported here."""
    module = FRAMEWORKS[name].module
    return not module or importlib.util.find_spec(module) is not None


def run(name: str) -> dict[str, Any]:
    """Train with a framework here, on two ranks.

    Returns:
        The ``losses`` of all steps, the ``version``, and ``where`` they come from.

    Raises:
        RuntimeError: if its program fails; the message has the end of its output.
    """
    framework = FRAMEWORKS[name]
    said, status = _run_to_its_end(framework)
    lines = [line for line in said.splitlines() if line.startswith('{"losses"')]
    if status or not lines:
        raise RuntimeError(f"{framework.title} failed: {said[-2000:]}")
    found = json.loads(lines[-1])
    return found | {"version": version_of(name), "where": "measured here"}


def version_of(name: str) -> str:
    """Return the version of a framework's package, or torch's if it needs no other."""
    try:
        return version(FRAMEWORKS[name].package or "torch")
    except PackageNotFoundError:
        return ""


def stored(name: str) -> dict[str, Any]:
    """Return the stored result of a framework: its losses, or the error."""
    found = json.loads(_RECORD.read_text(encoding="utf-8"))[name]
    return found | {"where": f"stored run of {found['date']}"}


def here_or_stored(name: str) -> dict[str, Any]:
    """Run a framework if it is installed, and return the stored run if it is not."""
    return run(name) if installed(name) else stored(name)


def listing(name: str) -> str:
    """Return a framework's script, without the docstring above it."""
    text = (STEPS / FRAMEWORKS[name].script).read_text(encoding="utf-8")
    return text.partition('"""\n')[2].strip()


def code_lines(name: str) -> list[str]:
    """Return the lines of a framework's script that are code, without indentation."""
    lines = (line.strip() for line in listing(name).splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def added_lines(name: str, than: str = "serial") -> list[str]:
    """Return the lines that a script adds to another one, as diff finds them."""
    compared = difflib.ndiff(code_lines(than), code_lines(name))
    return [line[2:] for line in compared if line.startswith("+ ")]


def _run_to_its_end(framework: Framework) -> tuple[str, int]:
    """Return the program's output and exit status; after the time limit, end its ranks."""
    with subprocess.Popen(
        _command(framework),
        cwd=ROOT,
        env=_variables(framework),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as program:
        try:
            return program.communicate(timeout=_LIMIT_S)[0], program.returncode
        except subprocess.TimeoutExpired:
            os.killpg(program.pid, signal.SIGKILL)
            said = program.communicate()[0]
            return f"{said}\nit had not ended after {_LIMIT_S:.0f} s", -1


def _command(framework: Framework) -> list[str]:
    script = str(STEPS / framework.script)
    if framework.launcher == "mpiexec":
        from torch_mpi4py import launch

        return launch.mpiexec(2, sys.executable, script)
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    return [sys.executable, *(torchrun if framework.launcher == "torchrun" else []), script]


def _variables(framework: Framework) -> dict[str, str]:
    ours = {"CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3"}
    if framework.launcher == "mpiexec":
        from torch_mpi4py import launch

        return launch.environment() | ours
    # The other launchers do not use MPI.
    alone = {"OMP_NUM_THREADS": "1", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    return os.environ | ours | alone


def _record(names: Sequence[str]) -> None:
    """Run frameworks and store their results."""
    record = json.loads(_RECORD.read_text(encoding="utf-8")) if _RECORD.exists() else {}
    for name in names:
        try:
            found = {key: value for key, value in run(name).items() if key != "where"}
        except RuntimeError as error:
            found = {"version": version_of(name), "error": str(error).splitlines()[-1]}
        record[name] = {"date": date.today().isoformat(), **found}
        print(name, record[name], flush=True)
        _RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    _record(sys.argv[1:] or list(FRAMEWORKS))
