"""Judges a job script by what Slurm, a shell and torchrun would do with it.

Its ``#SBATCH`` lines are read as Slurm reads them, and the rest is rehearsed by a shell
(:mod:`.rehearsed_job`). Only if the rehearsal goes wrong is the script's text read for the reason.
"""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field

from course_lib.teaching.exercise import WrongAnswer

from .rehearsed_job import NODES, Launch, Rehearsal, number_of_node, rehearse

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
        asked: the options of the ``#SBATCH`` lines that Slurm reads.
        ignored: the options below the first command, which Slurm ignores.
        commented: the first line with a space too many to be an option line: ``# SBATCH``.
        variables: the variables set above the command that starts torchrun, as written.
        launch: the words of that command, including those within ``bash -c``.
        on_each_node: whether each node's own shell reads the words, as in ``bash -c '...'``.
        left_alone: whether the command runs in the background without a ``wait``.
    """

    asked: dict[str, str] = field(default_factory=dict)
    ignored: dict[str, str] = field(default_factory=dict)
    commented: str = ""
    variables: dict[str, str] = field(default_factory=dict)
    launch: list[str] = field(default_factory=list)
    on_each_node: bool = False
    left_alone: bool = False

    def option(self, *names: str) -> str | None:
        """Return the value of an option of the launching command, or None without that option."""
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
        if re.match(r"#[# ]+SBATCH", line):
            job.commented = job.commented or line
        if not line or line.startswith("#"):
            continue
        commands_began = True
        if (found := _SET.match(line)) and not job.launch:
            job.variables[found[1]] = found[2]
        if line.startswith("--"):
            raise WrongAnswer("not-a-script", line=line)
        if line.partition(" ")[0] == "wait":
            job.left_alone = False
        if "torchrun" in line or "torch.distributed.run" in line:
            job.left_alone = line.endswith("&")
            job.launch = _words(line.removesuffix("&"))
            for number, word in enumerate(job.launch):
                if "torchrun" in word and " " in word:  # bash -c '...'
                    job.launch[number : number + 1] = _words(word)
                    job.on_each_node = f"'{word}'" in line
                    break
    return job


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line, comments=True)
    except ValueError as error:
        raise WrongAnswer("not-a-script: of a shell", line=line, error=error) from error


def _options(words: list[str]) -> dict[str, str]:
    found, name = {}, ""
    for word in words:
        if re.fullmatch(r"-[A-Za-z]\d+", word):  # -N2
            name, value = word[:2], word[2:]
            found[_SHORT.get(name, name)] = value
        elif word.startswith("-"):
            name, _, value = word.partition("=")
            name = _SHORT.get(name, name)
            found[name] = value
        elif name:
            found[name] = word
    return found


def _bare(word: str) -> str:
    """Return a shell word without quotes, and without the braces of a variable."""
    return word.strip('"').replace("{", "").replace("}", "")


def judge_job_script(job_script: Callable) -> None:
    """Raise the first mistake that is still in the job script."""
    script = job_script()
    if script is None:
        raise WrongAnswer("returns-nothing")
    if not isinstance(script, str):
        raise WrongAnswer("not-a-script: of another kind", script=repr(script))
    if not script.startswith("#!"):
        raise WrongAnswer("not-a-script: of sbatch")
    job = read_job(script)
    if not job.launch:
        raise WrongAnswer("no-torchrun")
    _judge_asked(job)
    rehearsal = rehearse(script, _tasks(job))
    if _goes_well(rehearsal):
        return
    # The text says more about a mistake than the rehearsal does.
    if not job.left_alone and not _one_on_each_node(rehearsal):
        _judge_request(job)
    _judge_launch(job)
    _judge_rehearsal(rehearsal)


def _tasks(job: Job) -> int:
    """Return the number of tasks that the job asks for, on its two nodes together."""
    if job.asked.get("--ntasks"):
        return _number(job.asked["--ntasks"])
    return 2 * _number(job.asked.get("--ntasks-per-node") or "1")


def _of_srun(job: Job) -> dict[str, str]:
    """Return srun's own options, which override those of the job."""
    names = [word.rpartition("/")[2] for word in job.launch]
    if "srun" not in names:
        return {}
    own = itertools.takewhile(
        lambda word: word.startswith("-") or word.isdigit(), job.launch[names.index("srun") + 1 :]
    )
    return _options(list(own))


def _judge_asked(job: Job) -> None:
    needed = {"--nodes", "--ntasks-per-node", "--ntasks", "--time"}
    if needed & job.ignored.keys():
        raise WrongAnswer("below-a-command", ignored=", ".join(sorted(needed & job.ignored.keys())))
    nodes = _number(job.asked.get("--nodes") or "1")
    if nodes != 2:
        if job.commented:
            raise WrongAnswer("wrong-nodes: in comments", nodes=nodes, line=job.commented)
        raise WrongAnswer("wrong-nodes", nodes=nodes)


def _judge_request(job: Job) -> None:
    nodes = 2
    of_srun = _number(_of_srun(job).get("--nodes") or str(nodes), nodes)
    if of_srun != nodes:
        raise WrongAnswer("wrong-nodes: of srun", nodes=nodes, of_srun=of_srun)
    tasks = _tasks_per_node(job, nodes)
    if tasks < 1:
        raise WrongAnswer("first-node-only")
    if tasks != 1:
        raise WrongAnswer("a-torchrun-for-each-rank", tasks=tasks)


def _tasks_per_node(job: Job, nodes: int) -> float:
    by_srun = _of_srun(job)
    if by_srun.get("--ntasks-per-node"):
        return _number(by_srun["--ntasks-per-node"])
    if by_srun.get("--ntasks"):
        return _number(by_srun["--ntasks"], nodes) / nodes
    if job.asked.get("--ntasks-per-node"):
        return _number(job.asked["--ntasks-per-node"])
    if job.asked.get("--ntasks"):
        return _number(job.asked["--ntasks"]) / nodes
    return 1


_NODES = ("$SLURM_JOB_NUM_NODES", "$SLURM_NNODES")


def _number(text: str, nodes: int = 0) -> int:
    """Return the number in ``text``, or ``nodes`` if it is Slurm's variable for the nodes."""
    if _bare(text) in _NODES:
        return nodes
    found = re.fullmatch(r"\s*(\d+)\s*", text)
    return int(found[1]) if found else 0


def _judge_launch(job: Job) -> None:
    if not any(word.rpartition("/")[2] == "srun" for word in job.launch):
        raise WrongAnswer("first-node-only: without srun")
    together = (job.option("--nnodes") or "1", job.option("--nproc-per-node") or "1")
    nodes = _bare(together[0])
    each = 4 if together[1] in ("gpu", "auto") else _number(together[1])  # as many as GPUs
    if nodes not in ("2", *_NODES) or each != 4:
        raise WrongAnswer("wrong-world", nodes=together[0], each=together[1])
    if not any(word.endswith(".py") or word in ("-m", "--module") for word in _of_torchrun(job)):
        raise WrongAnswer("no-program")
    _judge_meeting_place(job)
    if job.left_alone:
        raise WrongAnswer("ends-at-once")


def _of_torchrun(job: Job) -> list[str]:
    """Return the words after torchrun."""
    for number, word in enumerate(job.launch):
        if word.rpartition("/")[2] in ("torchrun", "torch.distributed.run"):
            return job.launch[number + 1 :]
    return []


_OTHER_ON_EACH_NODE = ("$HOSTNAME", "$(hostname)", "$(hostname -s)", "$SLURMD_NODENAME")
_OTHER_NUMBERS = ("$SLURM_NODEID", "$SLURM_PROCID")
_OTHER_IDS = ("$RANDOM", *_OTHER_ON_EACH_NODE, *_OTHER_NUMBERS)


def _judge_meeting_place(job: Job) -> None:
    if "--standalone" in job.launch:
        raise WrongAnswer("no-meeting-place")
    point = job.option("--rdzv-endpoint")
    if (job.option("--rdzv-backend") or "static") == "static":
        point = point or job.option("--master-addr")  # which the other backends ignore
    if not point:
        raise WrongAnswer("no-meeting-place: none is named")
    host = _bare(point.partition(":")[0])
    if not host:
        raise WrongAnswer("localhost: no host")
    if host in ("localhost", "127.0.0.1", "::1", "0.0.0.0"):
        raise WrongAnswer("localhost", host=host)
    if host in _OTHER_ON_EACH_NODE and job.on_each_node:
        raise WrongAnswer("localhost: by a name", host=host)
    _judge_name(job, host)
    _judge_numbering(job)
    if job.on_each_node and (job.option("--rdzv-id") or "") in _OTHER_IDS:
        raise WrongAnswer("no-meeting-place: another id", id=job.option("--rdzv-id"))


def _judge_name(job: Job, host: str) -> None:
    if re.match(r"\$SLURM_(JOB_)?NODELIST", host):
        raise WrongAnswer("no-such-host", host=host)
    if not host.startswith("$") or host in _OTHER_ON_EACH_NODE:
        return
    name = re.sub(r"\[\d+\]", "", host.strip("$"))
    if name.startswith("SLURM_"):
        return
    value = host if host.startswith("$(") else job.variables.get(name)
    if value is None:
        raise WrongAnswer("no-such-variable", host=host)
    if "NODELIST" in value and not re.search("scontrol|python|hostlist|nodeset", value):
        raise WrongAnswer("no-such-host: a piece of the list", value=value)
    if re.search(r"\|\s*head\b(?!\s+(-n\s*|-|--lines[= ])1\b)", value):
        raise WrongAnswer("no-such-host: several names", host=host, value=value)
    if re.match(r"[\"]?\$\((scontrol|srun)\b", value) and "|" not in value:
        raise WrongAnswer("no-such-host: both names", host=host, value=value)


def _judge_numbering(job: Job) -> None:
    if (job.option("--rdzv-backend") or "static") != "static":
        return
    number = _bare(job.option("--node-rank") or "0")
    if number in _OTHER_NUMBERS and job.on_each_node:
        return
    if number.startswith("$"):
        raise WrongAnswer("same-node-number: by the shell", number=number)
    raise WrongAnswer("same-node-number", number=number)


# ---- the rehearsal ------------------------------------------------------------------------------


def _goes_well(rehearsal: Rehearsal) -> bool:
    """Return whether two torchruns with four ranks each have met on one of the job's nodes."""
    launches = rehearsal.launches
    return (
        _one_on_each_node(rehearsal)
        and all(launch.met and launch.ended for launch in launches)
        and all(map(_is_half_the_world, launches))
        and len({_meeting_place(launch) for launch in launches}) == 1
        and number_of_node(_host(launches[0])) is not None
        and len({launch.option("--rdzv-backend") for launch in launches}) == 1
        and (_are_numbered(launches) or _agree_on_numbers(launches))
        and not any("--standalone" in launch.words for launch in launches)
    )


def _one_on_each_node(rehearsal: Rehearsal) -> bool:
    return sorted(launch.node for launch in rehearsal.launches) == [0, 1]


_WITHOUT_VALUE = ("--standalone", "--no-python", "--no_python", "--run-path", "--run_path")


def _is_half_the_world(launch: Launch) -> bool:
    words, program = iter(launch.words), False
    for word in words:
        if not word.startswith("-") or word in ("-m", "--module"):
            program = word.endswith(".py") or word.startswith("-")
            break
        if "=" not in word and word not in _WITHOUT_VALUE:
            next(words, None)
    nodes, ranks = launch.option("--nnodes"), launch.option("--nproc-per-node")
    return program and nodes in ("2", "2:2") and ranks in ("4", "gpu", "auto")


def _by_torchrun(launch: Launch) -> bool:
    return launch.option("--rdzv-backend") not in ("", "static")


def _meeting_place(launch: Launch) -> str:
    point = launch.option("--rdzv-endpoint")
    if point or _by_torchrun(launch):
        return point
    return f"{launch.option('--master-addr')}:{launch.option('--master-port')}"


def _host(launch: Launch) -> str:
    return _meeting_place(launch).partition(":")[0]


def _agree_on_numbers(launches: list[Launch]) -> bool:
    ids = {launch.option("--rdzv-id") for launch in launches}
    return len(ids) == 1 and all(map(_by_torchrun, launches))


def _are_numbered(launches: list[Launch]) -> bool:
    """Return whether each has a number of its own, and all meet on the node of number 0."""
    numbers = {launch.option("--node-rank") or "0": launch.node for launch in launches}
    if set(numbers) != {"0", "1"} or any(map(_by_torchrun, launches)):
        return False
    return number_of_node(_host(launches[0])) == numbers["0"]


def _judge_rehearsal(rehearsal: Rehearsal) -> None:
    """Raise the mistake that shows only when a shell and Slurm run the script."""
    launches = rehearsal.launches
    if not launches:
        raise WrongAnswer("no-torchrun: as it ran", stopped=rehearsal.stopped or "nothing")
    for launch in launches:
        host = _host(launch)
        if not host:
            raise WrongAnswer("no-such-host: none is left", node=NODES[launch.node])
        if host in ("localhost", "127.0.0.1", "::1", "0.0.0.0"):
            raise WrongAnswer("localhost", host=host)
        if number_of_node(host) is None:
            raise WrongAnswer("no-such-host: of the job", host=host, nodes=" and ".join(NODES))
    if len({_meeting_place(launch) for launch in launches}) > 1:
        raise WrongAnswer("localhost: by a name", host=_host(launches[0]))
    if not _one_on_each_node(rehearsal):
        counts = [sum(launch.node == node for launch in launches) for node in (0, 1)]
        if sum(counts) == 1 and not launches[0].met:
            raise WrongAnswer("one-after-another: and no more")
        raise WrongAnswer("wrong-nodes: as it ran", counts=counts)
    if not all(launch.met for launch in launches):
        raise WrongAnswer("one-after-another")
    if not all(launch.ended for launch in launches):
        raise WrongAnswer("ends-at-once")
    for launch in launches:
        if not _is_half_the_world(launch):
            nodes, each = launch.option("--nnodes"), launch.option("--nproc-per-node")
            raise WrongAnswer("wrong-world", nodes=nodes, each=each)
    if not all(map(_by_torchrun, launches)):
        raise WrongAnswer("same-node-number: as it ran", host=_host(launches[0]))
    raise WrongAnswer("no-meeting-place: another id", id=launches[0].option("--rdzv-id"))
