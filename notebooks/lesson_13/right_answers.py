"""Right answers to lesson 13 in other styles than the worked solutions."""

from .wrong_answers import MENDED


def _script(right: str, wrong: str) -> str:
    if right not in MENDED:
        raise ValueError(f"{right!r} is not in the script")
    return f"def job_script():\n    return {MENDED.replace(right, wrong)!r}\n"


RIGHT_ANSWERS = {
    "13.devices": {
        "counts as it goes, torch's devices": """
from collections import Counter

import torch


def devices(hosts, gpus):
    seen, found = Counter(), []
    for host in hosts:
        number = gpus[host]
        found.append(torch.device("cuda", seen[host] % number) if number else torch.device("cpu"))
        seen[host] += 1
    return found
""",
        "host by host": """
def devices(hosts, gpus):
    found = ["cpu"] * len(hosts)
    for name, number in gpus.items():
        ranks = [rank for rank, host in enumerate(hosts) if host == name]
        for local, rank in enumerate(ranks):
            if number:
                found[rank] = f"cuda:{local % number}"
    return tuple(found)
""",
        "yields them": """
from collections import defaultdict
from itertools import count


def devices(hosts, gpus):
    numbers = defaultdict(count)
    for host in hosts:
        yield f"cuda:{next(numbers[host]) % gpus[host]}" if gpus[host] else "cpu"
""",
        "in turn, by itertools": """
from itertools import cycle


def devices(hosts, gpus):
    turns = {host: cycle([f"cuda:{i}" for i in range(n)] or ["cpu"]) for host, n in gpus.items()}
    return [next(turns[host]) for host in hosts]
""",
    },
    "13.node_names": {
        "commas outside of brackets become spaces": r"""
import re


def node_names(text):
    names = ()
    for part in re.sub(r",(?![^\[]*\])", " ", text).split():
        name, _, numbers = part.partition("[")
        if not numbers:
            names += (name,)
            continue
        for item in numbers[:-1].split(","):
            low, _, high = item.partition("-")
            numbered = range(int(low), int(high or low) + 1)
            names += tuple("%s%0*d" % (name, len(low), number) for number in numbered)
    return names
""",
        "letter by letter": """
def node_names(text):
    parts, depth = [""], 0
    for letter in text:
        depth += (letter == "[") - (letter == "]")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    nodes = []
    for part in parts:
        if "[" not in part:
            nodes += [part]
            continue
        name, numbers = part[:-1].split("[")
        for item in numbers.split(","):
            ends = item.split("-")
            nodes += [
                name + str(n).zfill(len(ends[0])) for n in range(int(ends[0]), int(ends[-1]) + 1)
            ]
    return nodes
""",
        "a generator": r"""
import re


def node_names(text):
    for name, numbers in re.findall(r"([^,\[]+)(?:\[([^]]*)\])?", text):
        for item in numbers.split(",") if numbers else [""]:
            first, last = (item.split("-") * 2)[:2]
            if not first:
                yield name
            else:
                for n in range(int(first), int(last) + 1):
                    yield f"{name}{n:0{len(first)}d}"
""",
    },
    "13.job_request": {
        "counts down": """
def job_request(ranks, gpus, cores):
    per_node = min(gpus, ranks)
    while ranks % per_node:
        per_node -= 1
    return [ranks // per_node, per_node, cores // per_node]
""",
        "counts nodes up": """
def job_request(ranks, gpus, cores):
    nodes = 1
    while ranks % nodes or ranks // nodes > gpus:
        nodes += 1
    return nodes, ranks // nodes, cores * nodes // ranks
""",
        "by NumPy": """
import numpy as np


def job_request(ranks, gpus, cores):
    sizes = np.arange(1, gpus + 1)
    per_node = sizes[ranks % sizes == 0].max()
    return np.array([ranks // per_node, per_node, cores // per_node])
""",
    },
    "13.job_script": {
        "a short option without a space": _script("--nodes=2", "-N2"),
        "as many as the node has GPUs": _script("--nproc-per-node=4", "--nproc-per-node=gpu"),
        "each node's own shell numbers it": _script(
            "srun torchrun", "export first\nsrun bash -c 'torchrun"
        )
        .replace("--rdzv-backend=c10d", "--node-rank=$SLURM_NODEID")
        .replace("scripts/ddp.py", "scripts/ddp.py\\'"),
        "by a module, in underscores": _script(
            "srun torchrun", "srun python -m torch.distributed.run"
        )
        .replace("--nproc-per-node", "--nproc_per_node")
        .replace("--rdzv-", "--rdzv_"),
        "an array of names": _script(
            'first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
            'nodes=($(scontrol show hostnames "$SLURM_JOB_NODELIST"))',
        ).replace("$first:", "${nodes[0]}:"),
        "by Slurm's variables": _script("--nnodes=2", '--nnodes="$SLURM_JOB_NUM_NODES"'),
        "in the background, and waited for": _script("scripts/ddp.py", "scripts/ddp.py &\nwait"),
        "two tasks in all": _script("--ntasks-per-node=1", "--ntasks=2"),
        "all of it told to srun": _script("#SBATCH --ntasks-per-node=1\n", "").replace(
            "srun torchrun", "srun -N 2 -n 2 torchrun"
        ),
        "srun is told, in Slurm's variables": _script(
            "srun torchrun", 'srun --nodes=$SLURM_NNODES --ntasks="${SLURM_JOB_NUM_NODES}" torchrun'
        ),
        "srun is told": _script("--ntasks-per-node=1", "--ntasks-per-node=4").replace(
            "srun torchrun", "srun --ntasks-per-node=1 torchrun"
        ),
        "short options, the node's name in braces": _script("--nodes=2", "-N 2").replace(
            "$first:", "${first}:"
        ),
        "the host that runs the script": _script("$first:", "$(hostname):"),
    },
}
