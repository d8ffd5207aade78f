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
        "wrong-value": _changed(_DEVICES, "hosts[:rank]", "hosts[rank:]"),
        "counts-itself": _changed(_DEVICES, "hosts[:rank]", "hosts[: rank + 1]"),
        "counts-itself: and does not share": _changed(
            _changed(_DEVICES, "hosts[:rank]", "hosts[: rank + 1]"), "local % gpus[host]", "local"
        ),
        "spare-ranks-on-the-processor": _changed(_DEVICES, "local % gpus[host]", "local").replace(
            "if gpus[host] else", "if local < gpus[host] else"
        ),
        "all-others-on-the-last": _changed(
            _DEVICES, "local % gpus[host]", "min(local, gpus[host] - 1)"
        ),
        "gpu-0-for-all": _changed(_DEVICES, "local % gpus[host]", "0"),
        "in-order-of-hosts": """
def devices(hosts, gpus):
    found = []
    for host, number in sorted(gpus.items()):
        for local in range(hosts.count(host)):
            found.append(f"cuda:{local % number}" if number else "cpu")
    return found
""",
        "no-device: the number alone": _changed(_DEVICES, 'f"cuda:{local % gpus[host]}"', "local"),
        "no-device: another name": _changed(_DEVICES, "cuda:", "gpu:"),
        "no-device: whichever": _changed(_DEVICES, 'f"cuda:{local % gpus[host]}"', '"cuda"'),
        "not-a-list": _changed(_DEVICES, "return found", "return dict(enumerate(found))"),
        "not-a-list: how many there are": _changed(_DEVICES, "return found", "return len(found)"),
        "it-raises: while it yields": _changed(_DEVICES, "found.append(", "yield (").replace(
            "return found", "raise ValueError(host)"
        ),
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
        "padded-as-the-last": _changed(_NAMES, "len(first)", "len(last or first)"),
        "padded-as-the-first-of-all": _changed(
            _NAMES, "{len(first)}", "{len(re.split('[,-]', numbers)[0])}"
        ),
        "wrong-value: names without hyphens": _changed(_NAMES, r"[^,\[]+(", r"\w+("),
        "plain-names-lost": _changed(_NAMES, "            nodes.append(name)\n", ""),
        "numbers-without-names": _changed(_NAMES, "{name}{n:", "{n:"),
        "ends-only": _changed(
            _NAMES,
            "            for n in range(int(first), int(last or first) + 1):\n"
            '                nodes.append(f"{name}{n:0{len(first)}}")\n',
            '            nodes += [name + n for n in item.split("-")]\n',
        ),
        "brackets-not-written-out": r"""
import re
def node_names(text):
    return re.findall(r"[^,\[]+(?:\[[^]]*\])?", text)
""",
        "order-lost: a set": _changed(_NAMES, "return nodes", "return set(nodes)"),
        "not-a-list: one text": _changed(_NAMES, "return nodes", 'return ",".join(nodes)'),
        "it-raises": "def node_names(text):\n    return [int(name) for name in text.split(',')]\n",
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
        "other-order": _changed(
            _REQUEST, "ranks // per_node, per_node", "per_node, ranks // per_node"
        ),
        "more-ranks-than-gpus": _changed(_REQUEST, "gpus + 1", "ranks + 1"),
        "too-many-nodes: the common divisor": "import math\n"
        + _changed(
            _REQUEST,
            "max(k for k in range(1, gpus + 1) if ranks % k == 0)",
            "math.gcd(ranks, gpus)",
        ),
        "too-many-nodes: range without its end": _changed(_REQUEST, "gpus + 1", "max(gpus, 2)"),
        "too-many-nodes: powers of two": """
def job_request(ranks, gpus, cores):
    per_node = 1
    while ranks % (2 * per_node) == 0 and 2 * per_node <= gpus:
        per_node *= 2
    return ranks // per_node, per_node, cores // per_node
""",
        "other-number-of-ranks: rounded down": """
def job_request(ranks, gpus, cores):
    nodes = -(-ranks // gpus)
    return nodes, ranks // nodes, cores // (ranks // nodes)
""",
        "too-many-cores: rounded up": _changed(
            _REQUEST, "cores // per_node", "-(-cores // per_node)"
        ),
        "not-three-numbers": _changed(_REQUEST, ", cores // per_node", ""),
        "not-three-numbers: with names": """
def job_request(ranks, gpus, cores):
    per_node = max(k for k in range(1, gpus + 1) if ranks % k == 0)
    return {"nodes": ranks // per_node, "ranks": per_node, "cores": cores // per_node}
""",
        "not-three-numbers: as options": _changed(
            _REQUEST,
            "return ranks // per_node, per_node, cores // per_node",
            'return f"--nodes={ranks // per_node} --ntasks-per-node={per_node}"',
        ),
        "it-raises": _changed(_REQUEST, "range(1,", "range(0,"),
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
        "wrong-nodes: srun is told one": _script("srun ", "srun --nodes=1 --ntasks=1 "),
        "first-node-only: one task": _script("--ntasks-per-node=1", "--ntasks=1"),
        "ends-at-once": _script("scripts/ddp.py", "scripts/ddp.py &"),
        "no-such-host: the first piece of the list": _script(
            "$first:", "${SLURM_JOB_NODELIST%%,*}:"
        ),
        "no-such-host: cut at the comma": _script(
            '$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
            '$(echo "$SLURM_JOB_NODELIST" | cut -d, -f1)',
        ),
        "no-such-host: the first ten names": _script("head -n 1", "head"),
        "wrong-world": _script("--nproc-per-node=4", "--nproc-per-node=8"),
        "no-such-variable": _script("$first:", "$master:"),
        "not-a-script": _script("#!/bin/bash", "\n#!/bin/bash"),
        "not-a-script: a backslash is missing": _script("c10d \\\n", "c10d\n"),
        "not-a-script: its name": "def job_script():\n    return 'scripts/ddp_torchrun.sbatch'\n",
        "not-a-script: a list": f"def job_script():\n    return {MENDED!r}.splitlines()\n",
        "no-torchrun": _script("srun torchrun", "srun --mpi=pmix python"),
        "no-meeting-place": _script(" --rdzv-endpoint=$first:29500", ""),
        "no-meeting-place: each node alone": _script("--rdzv-backend=c10d", "--standalone"),
        "no-such-host: the list of nodes": _script("$first:", "$SLURM_JOB_NODELIST:"),
        "no-such-host: all names": _script(" | head -n 1", ""),
        "no-meeting-place: each node its own id": _script(
            "srun torchrun", "export first\nsrun bash -c 'torchrun"
        )
        .replace("$SLURM_JOB_ID", "$RANDOM")
        .replace("scripts/ddp.py", "scripts/ddp.py\\'"),
        "no-such-variable: set too late": _script(
            'first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)\n', ""
        ).replace("scripts/ddp.py\\n", "scripts/ddp.py\\nfirst=$(hostname)\\n"),
        "no-program": _script(" scripts/ddp.py", ""),
        "same-node-number: no backend": _script("--rdzv-backend=c10d ", ""),
        "same-node-number: the first node's for both": _script(
            "--rdzv-backend=c10d", "--node-rank=$SLURM_NODEID"
        ),
        "localhost: each node its own": _script("srun torchrun", "srun bash -c 'torchrun")
        .replace("$first:", "$HOSTNAME:")
        .replace("scripts/ddp.py", "scripts/ddp.py\\'"),
        "it-raises": "def job_script():\n    return open('no such file').read()\n",
        "returns-nothing": "def job_script():\n    pass\n",
    },
}
