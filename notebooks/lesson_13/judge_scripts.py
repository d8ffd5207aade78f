"""What Slurm and torchrun would make of a job script, as far as the exercise's mistakes go."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field

from course_lib.teaching.exercise import WrongAnswer

__all__ = ["BROKEN", "Job", "judge_job_script", "read_job"]

BROKEN = """\
#!/bin/bash
set -eu
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --time=30
. .venv/bin/activate
export OMP_NUM_THREADS=1
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun torchrun --nnodes=2 --nproc-per-node=4 --rdzv-backend=c10d \\
    --rdzv-id=$SLURM_JOB_ID --rdzv-endpoint=localhost:29500 scripts/ddp.py
"""
"""A colleague's job: eight ranks on two nodes with four GPUs each. It has three mistakes."""


@dataclass
class Job:
    """A job script as Slurm reads it.

    Attributes:
        asked: the options of its ``#SBATCH`` lines, those that count.
        ignored: options below the first command, which do not.
        variables: what is set in the script, as it is written.
        launch: the words of the command that starts torchrun.
    """

    asked: dict[str, str] = field(default_factory=dict)
    ignored: dict[str, str] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    launch: list[str] = field(default_factory=list)

    def option(self, *names: str) -> str | None:
        """Return the value of an option of the launching command, None if it is not there."""
        for number, word in enumerate(self.launch):
            name, equals, value = word.partition("=")
            if name.replace("_", "-") in names:
                following = self.launch[number + 1 : number + 2]
                return value if equals else (following or [""])[0]
        return None


_SHORT = {"-N": "--nodes", "-n": "--ntasks", "-t": "--time", "-J": "--job-name"}
_SET = re.compile(r"^(?:export\s+)?([A-Za-z_]\w*)=(.*)$")


def read_job(script: str) -> Job:
    """Read a job script line by line, as sbatch does."""
    job, commands_began = Job(), False
    for line in script.replace("\\\n", " ").splitlines():
        line = line.strip()
        if line.startswith("#SBATCH"):
            options = job.ignored if commands_began else job.asked
            options.update(_options(shlex.split(line.removeprefix("#SBATCH"), comments=True)))
            continue
        if not line or line.startswith("#"):
            continue
        commands_began = True
        if found := _SET.match(line):
            job.variables[found[1]] = found[2]
        if "torchrun" in line or "torch.distributed.run" in line:
            job.launch = _words(line)
    return job


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line, comments=True)
    except ValueError as error:
        raise WrongAnswer("not-a-script", f"a shell could not read `{line}`: {error}") from error


def _options(words: list[str]) -> dict[str, str]:
    found, name = {}, ""
    for word in words:
        if word.startswith("-"):
            name, _, value = word.partition("=")
            name = _SHORT.get(name, name)
            found[name] = value
        elif name:
            found[name] = word
    return found


def judge_job_script(job_script: Callable) -> None:
    """Raise what would still go wrong with the job that ``job_script`` returns."""
    script = job_script()
    if script is None:
        raise WrongAnswer("returns-nothing", "it returned nothing; return the script, a string")
    if not isinstance(script, str):
        raise WrongAnswer("not-a-script", f"it returned {script!r}, not a string")
    if not script.startswith("#!"):
        raise WrongAnswer(
            "not-a-script",
            "sbatch refuses it: its first line has to be #!/bin/bash, with nothing before it",
        )
    job = read_job(script)
    if not job.launch:
        raise WrongAnswer("not-a-script", "nothing in it starts torchrun")
    _judge_request(job)
    _judge_launch(job)


def _judge_request(job: Job) -> None:
    needed = {"--nodes", "--ntasks-per-node", "--ntasks", "--time"}
    if needed & job.ignored.keys():
        raise WrongAnswer(
            "below-a-command",
            f"Slurm ignores {', '.join(sorted(needed & job.ignored.keys()))}: it reads #SBATCH "
            "lines only above the first command, and `set -eu` is one. The job would get one "
            "node and one task",
        )
    nodes = _number(job.asked.get("--nodes") or "1")
    if nodes != 2:
        raise WrongAnswer("wrong-nodes", f"it asks for {nodes} nodes; the job is to have two")
    tasks = _tasks_per_node(job, nodes)
    if tasks != 1:
        raise WrongAnswer(
            "a-torchrun-for-each-rank",
            f"Slurm starts {tasks:g} tasks on each node, so `srun torchrun` starts {tasks:g} "
            "torchruns there, and each of them several ranks. torchrun is one task a node",
        )


def _tasks_per_node(job: Job, nodes: int) -> float:
    by_srun = job.option("--ntasks-per-node")
    if by_srun:
        return _number(by_srun)
    if job.asked.get("--ntasks-per-node"):
        return _number(job.asked["--ntasks-per-node"])
    if job.asked.get("--ntasks"):
        return _number(job.asked["--ntasks"]) / nodes
    return 1


def _number(text: str) -> int:
    found = re.fullmatch(r"\s*(\d+)\s*", text)
    return int(found[1]) if found else 0


def _judge_launch(job: Job) -> None:
    if not any(word.rpartition("/")[2] == "srun" for word in job.launch):
        raise WrongAnswer(
            "first-node-only",
            "without srun the script runs on the first node only, and its torchrun waits there "
            "for another one",
        )
    together = (job.option("--nnodes") or "1", job.option("--nproc-per-node") or "1")
    nodes = together[0].strip('"').replace("{", "").replace("}", "")
    if nodes not in ("2", "$SLURM_JOB_NUM_NODES", "$SLURM_NNODES") or _number(together[1]) != 4:
        raise WrongAnswer(
            "wrong-world",
            f"torchrun is told --nnodes={together[0]} --nproc-per-node={together[1]}: eight ranks "
            "on two nodes are 2 and 4",
        )
    point = job.option("--rdzv-endpoint") or job.option("--master-addr")
    host = (point or "").partition(":")[0].strip('"').replace("{", "").replace("}", "")
    if host in ("", "localhost", "127.0.0.1", "::1", "0.0.0.0"):
        raise WrongAnswer(
            "localhost",
            f"the torchruns are to meet at {host or 'no host at all'}, which is another machine "
            "on each node. Name one node of the job",
        )
    if host in ("$HOSTNAME", "$(hostname)", "$SLURMD_NODENAME") and "bash" in job.launch:
        raise WrongAnswer("localhost", f"{host} is another machine on each node")
    if host.startswith("$") and not host.startswith("$("):
        name = host.strip("$")
        if name not in job.variables and name not in ("HOSTNAME", "SLURMD_NODENAME"):
            raise WrongAnswer("no-such-variable", f"{host} is set nowhere: `set -u` ends the job")
    elif host.startswith("$SLURM_JOB_NODELIST"):
        raise WrongAnswer("no-such-host", f"{host} is a list of nodes, not the name of one")
