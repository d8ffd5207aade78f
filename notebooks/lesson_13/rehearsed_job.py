"""Runs a job script in a shell with stand-ins for srun and torchrun, which log their calls.

Only a shell knows what ``$first`` means within quotes, in a loop, or in ``bash -c``. So bash runs
the script, in an empty folder, on two invented nodes: ``srun`` runs its command on this machine,
once for each task, with the node's name in the variables that Slurm would set; ``torchrun`` logs
its options, and waits for the other ``torchrun`` as it would at a real rendezvous.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

NODES = ("c07", "c12")
_ADDRESSES = ("10.1.0.7", "10.1.0.12")
_LIST = "c[07,12]"
_LIMIT_S = 8.0
_MEETS_WITHIN_S = 2.0


@dataclass
class Launch:
    """One call of torchrun.

    Attributes:
        node: the node's number, from 0.
        words: the words after ``torchrun``, as the shell passed them.
        met: whether another torchrun ran at the same time.
        ended: whether it ended before the script did.
    """

    node: int
    words: list[str]
    met: bool
    ended: bool

    def option(self, *names: str) -> str:
        """Return the value of an option, or an empty text without that option."""
        for number, word in enumerate(self.words):
            name, equals, value = word.partition("=")
            if name.replace("_", "-") in names:
                return value if equals else "".join(self.words[number + 1 : number + 2])
        return ""


@dataclass
class Rehearsal:
    """The outcome of a script: its torchruns, and bash's message if it stopped."""

    launches: list[Launch]
    stopped: str


def number_of_node(host: str) -> int | None:
    """Return the number of the node with that name or address, None if there is none."""
    for names in (NODES, _ADDRESSES):
        if host in names:
            return names.index(host)
    return None


def rehearse(script: str, tasks: int) -> Rehearsal:
    """Run a script on two nodes; ``tasks`` is the total that its ``#SBATCH`` lines ask for."""
    with tempfile.TemporaryDirectory() as place:
        commands, log, home = (Path(place, name) for name in ("bin", "log", "home"))
        for folder in (commands, log, home):
            folder.mkdir()
        for name, text in _COMMANDS.items():
            file = commands / name
            file.write_text(text.replace("@PYTHON@", sys.executable), encoding="utf-8")
            file.chmod(0o755)
        environment = _environment(commands, log, home, tasks)
        said = Path(place, "said")
        with said.open("w", encoding="utf-8") as errors:
            job = subprocess.Popen(
                [shutil.which("bash") or "bash", "-c", _without_activation(script)],
                cwd=home,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,
            )
        error = ""
        try:
            job.wait(_LIMIT_S)
        except subprocess.TimeoutExpired:
            error = f"it did not end within {_LIMIT_S:g} s"
        launches = [_launch(path) for path in sorted(log.glob("*.begun"))]
        _end(job)
        lines = said.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        if job.returncode and not error and lines:
            error = lines[-1].partition(": ")[2]
        return Rehearsal(launches, error)


def _launch(path: Path) -> Launch:
    noted = json.loads(path.read_text(encoding="utf-8"))
    met = path.with_suffix(".met").exists()
    return Launch(noted["node"], noted["words"], met, path.with_suffix(".ended").exists())


def _end(job: subprocess.Popen) -> None:
    """End the processes that the script has left in the background."""
    with contextlib.suppress(ProcessLookupError, PermissionError):  # where all of it has ended
        os.killpg(job.pid, signal.SIGKILL)
    job.wait()


def _without_activation(script: str) -> str:
    """Leave out the lines that activate an environment, which does not exist here."""
    lines = re.sub(r"(?m)^\s*(\.|source)\s+\S+\s*$", ":", script)
    return lines.replace("\r\n", "\n")


def _environment(commands: Path, log: Path, home: Path, tasks: int) -> dict[str, str]:
    slurm = {
        "JOB_ID": "4711",
        "JOBID": "4711",
        "JOB_NODELIST": _LIST,
        "NODELIST": _LIST,
        "JOB_NUM_NODES": "2",
        "NNODES": "2",
        "NTASKS": str(tasks),
        "NPROCS": str(tasks),
        "SUBMIT_HOST": "login1",
        "SUBMIT_DIR": str(home),
        "LAUNCH_NODE_IPADDR": _ADDRESSES[0],
        "GPUS_ON_NODE": "4",
        "CPUS_ON_NODE": "64",
        "PROCID": "0",
        "NODEID": "0",
        "LOCALID": "0",
    }
    found = {f"SLURM_{name}": value for name, value in slurm.items()}
    return found | {
        "PATH": f"{commands}:/usr/bin:/bin",
        "HOME": str(home),
        "USER": "you",
        "HOSTNAME": NODES[0],
        "SLURMD_NODENAME": NODES[0],
        "REHEARSAL_LOG": str(log),
        "REHEARSAL_NODES": " ".join(NODES),
        "REHEARSAL_ADDRESSES": " ".join(_ADDRESSES),
        "REHEARSAL_WAIT": str(_MEETS_WITHIN_S),
        # Commands that a cluster has and this machine lacks (module, conda) do nothing.
        "BASH_FUNC_command_not_found_handle%%": "() { return 0; }",
    }


_SRUN = r"""#!@PYTHON@ -IS
import os, subprocess, sys

VALUES = set("-A -c -C -D -e -i -J -m -n -N -o -p -q -r -t -w -x --cpus-per-task --nodes --ntasks"
    " --ntasks-per-node --nodelist --relative --time --job-name --partition --account --output"
    " --error --gres --gpus --gpus-per-node --gpus-per-task --mem --cpu-bind --gpu-bind --mpi"
    " --export --chdir --kill-on-bad-exit --distribution".split())
SHORT = {"-N": "--nodes", "-n": "--ntasks", "-w": "--nodelist", "-r": "--relative"}
words, options = sys.argv[1:], {}
while words and words[0].startswith("-"):
    word = words.pop(0)
    if word.startswith("--"):
        name, equals, value = word.partition("=")
    else:
        name, equals, value = word[:2], word[2:], word[2:]
    if not equals and name in VALUES and words:
        value = words.pop(0)
    options[SHORT.get(name, name)] = value
names = os.environ["REHEARSAL_NODES"].split()
addresses = os.environ["REHEARSAL_ADDRESSES"].split()
nodes = list(range(len(names)))
if options.get("--nodelist"):
    nodes = [names.index(name) for name in options["--nodelist"].split(",") if name in names]
nodes = nodes[int(options.get("--relative") or 0):]
count = options.get("--nodes")
if count:
    nodes = nodes[: int(count.partition("-")[0])]
each = options.get("--ntasks-per-node")
tasks = options.get("--ntasks")
if tasks is None:
    tasks = len(nodes) * int(each) if each else int(os.environ["SLURM_NTASKS"])
tasks = int(tasks)
if count is None and tasks < len(nodes) and not options.get("--nodelist"):
    nodes = nodes[:tasks]
per_node = -(-tasks // max(len(nodes), 1))
started = []
for task in range(tasks):
    number, local = divmod(task, per_node)
    node = nodes[number]
    own = {"SLURM_PROCID": task, "SLURM_LOCALID": local, "SLURM_NODEID": number,
        "SLURM_NTASKS": tasks, "SLURM_NPROCS": tasks, "SLURM_STEP_NUM_NODES": len(nodes),
        "SLURMD_NODENAME": names[node], "HOSTNAME": names[node], "REHEARSAL_NODE": node,
        "SLURM_STEP_NODELIST": ",".join(names[n] for n in nodes)}
    environment = os.environ | {key: str(value) for key, value in own.items()}
    started.append(subprocess.Popen(words, env=environment))
sys.exit(max([one.wait() for one in started], default=0))
"""

# Two torchruns that run at the same time have met; a torchrun alone waits until its limit.
_TORCHRUN = r"""#!@PYTHON@ -IS
import json, os, pathlib, sys, time

log = pathlib.Path(os.environ["REHEARSAL_LOG"])
own = log / f"{os.getpid():09}.begun"
part = own.with_suffix(".part")
part.write_text(json.dumps(
    {"node": int(os.environ.get("REHEARSAL_NODE", 0)), "words": sys.argv[1:]}))
part.rename(own)
until = time.monotonic() + float(os.environ["REHEARSAL_WAIT"])
while time.monotonic() < until:
    if sum(not one.with_suffix(".ended").exists() for one in log.glob("*.begun")) > 1:
        own.with_suffix(".met").touch()
        time.sleep(0.3)  # it trains
        break
    time.sleep(0.02)
own.with_suffix(".ended").touch()
"""

_COMMANDS = {
    "srun": _SRUN,
    "torchrun": _TORCHRUN,
    "python": r"""#!/bin/sh
case "$*" in *torch.distributed.run*) shift 2; exec torchrun "$@";; esac
exec @PYTHON@ "$@"
""",
    "python3": r"""#!/bin/sh
exec python "$@"
""",
    "scontrol": r"""#!/bin/sh
for name in $REHEARSAL_NODES; do echo "$name"; done
""",
    "hostname": r"""#!/bin/sh
node=${REHEARSAL_NODE:-0}
case "$1" in
-I|-i|--ip-address|--all-ip-addresses) all=$REHEARSAL_ADDRESSES;;
*) all=$REHEARSAL_NODES;;
esac
set -- $all
shift "$node"
echo "$1"
""",
}
