"""The usual wrong answers to lesson 13: from a mistake's name to a function that makes it."""

from .judge_scripts import BROKEN

_DEVICES = """
def devices(hosts, gpus):
    found = []
    for rank, host in enumerate(hosts):
        local = hosts[:rank].count(host)
        found.append(f"cuda:{local % gpus[host]}" if gpus[host] else "cpu")
    return found
"""
_NAMES = """
import re


def node_names(text):
    nodes = []
    for part in re.findall(r"[^,\\[]+(?:\\[[^]]*\\])?", text):
        name, _, numbers = part.rstrip("]").partition("[")
        if not numbers:
            nodes.append(name)
            continue
        for item in numbers.split(","):
            first, _, last = item.partition("-")
            for n in range(int(first), int(last or first) + 1):
                nodes.append(f"{name}{n:0{len(first)}}")
    return nodes
"""
_REQUEST = """
def job_request(ranks, gpus, cores):
    per_node = max(k for k in range(1, gpus + 1) if ranks % k == 0)
    return ranks // per_node, per_node, cores // per_node
"""
MENDED = """\
#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --time=30
set -eu
. .venv/bin/activate
export OMP_NUM_THREADS=1
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun torchrun --nnodes=2 --nproc-per-node=4 --rdzv-backend=c10d \\
    --rdzv-id=$SLURM_JOB_ID --rdzv-endpoint=$first:29500 scripts/ddp.py
"""


def _changed(answer: str, right: str, wrong: str) -> str:
    """Return an answer with one thing changed."""
    if right not in answer:
        raise ValueError(f"{right!r} is not in the answer")
    return answer.replace(right, wrong)


def _script(right: str = "", wrong: str = "", *, of: str = MENDED) -> str:
    """Return the answer that hands in a script with one thing changed."""
    return f"def job_script():\n    return {_changed(of, right, wrong)!r}\n"


WRONG_ANSWERS = {
    "13.devices": {
        "global-rank": _changed(_DEVICES, 'f"cuda:{local % gpus[host]}"', 'f"cuda:{rank}"'),
        "global-rank-modulo": _changed(_DEVICES, "local % gpus", "rank % gpus"),
        "hosts-filled-in-order": _changed(
            _DEVICES, "hosts[:rank].count(host)", "rank - hosts.index(host)"
        ),
        "no-such-gpu": _changed(_DEVICES, "local % gpus[host]", "local"),
        "no-gpu-at-all": _changed(_DEVICES, "% gpus[host]", "% max(gpus[host], 1)").replace(
            ' if gpus[host] else "cpu"', ""
        ),
        "divides-by-no-gpus": _changed(_DEVICES, ' if gpus[host] else "cpu"', ""),
        "returns-nothing": _changed(_DEVICES, "return found", "print(found)"),
        "wrong-value": _changed(_DEVICES, "hosts[:rank]", "hosts"),
    },
    "13.node_names": {
        "end-left-out": _changed(
            _NAMES, "int(last or first) + 1", "int(last) if last else int(first) + 1"
        ),
        "zeros-lost": _changed(_NAMES, ":0{len(first)}", ""),
        "single-numbers-lost": _changed(
            _NAMES,
            "            for n in",
            "            if not last:\n                continue\n            for n in",
        ),
        "cut-at-every-comma": "def node_names(text):\n    return text.split(',')\n",
        "order-lost": _changed(_NAMES, "return nodes", "return sorted(nodes)"),
        "returns-nothing": _changed(_NAMES, "    return nodes\n", ""),
        "wrong-value": _changed(_NAMES, "len(first)", "3"),
    },
    "13.job_request": {
        "too-many-ranks": _changed(
            _REQUEST, "ranks // per_node, per", "-(-ranks // gpus), per"
        ).replace("max(k for k in range(1, gpus + 1) if ranks % k == 0)", "gpus"),
        "too-few-ranks": _changed(
            _REQUEST, "max(k for k in range(1, gpus + 1) if ranks % k == 0)", "gpus"
        ),
        "unequal-nodes": """
def job_request(ranks, gpus, cores):
    nodes = -(-ranks // gpus)
    per_node = -(-ranks // nodes)
    return nodes, per_node, cores // per_node
""",
        "one-rank-a-node": "def job_request(ranks, gpus, cores):\n    return ranks, 1, cores\n",
        "cores-of-unused-gpus": _changed(_REQUEST, "cores // per_node", "cores // gpus"),
        "all-cores-for-each-rank": _changed(_REQUEST, "cores // per_node", "cores"),
        "ranks-of-the-job": _changed(_REQUEST, ", per_node, cores", ", ranks, cores"),
        "not-whole": _changed(_REQUEST, "ranks // per_node", "ranks / per_node"),
        "returns-nothing": _changed(_REQUEST, "    return ranks", "    ranks"),
        "wrong-value": _changed(_REQUEST, "cores // per_node", "cores // per_node - 1"),
    },
    "13.job_script": {
        "below-a-command": _script("", "", of=BROKEN),
        "below-a-command: only the last two are mended": _script(
            "--ntasks-per-node=4", "--ntasks-per-node=1", of=BROKEN
        ).replace("localhost", "$first"),
        "a-torchrun-for-each-rank": _script("--ntasks-per-node=1", "--ntasks-per-node=4"),
        "a-torchrun-for-each-rank: --ntasks": _script("--ntasks-per-node=1", "--ntasks=8"),
        "localhost": _script("$first:", "localhost:"),
        "localhost: by its number": _script("$first:", "127.0.0.1:"),
        "first-node-only": _script("srun ", ""),
        "wrong-nodes": _script("#SBATCH --nodes=2\n", ""),
        "wrong-world": _script("--nproc-per-node=4", "--nproc-per-node=8"),
        "no-such-variable": _script("$first:", "$master:"),
        "not-a-script": _script("#!/bin/bash", "\n#!/bin/bash"),
        "returns-nothing": "def job_script():\n    pass\n",
    },
}
