"""The checks of lesson 13: who computes where, which nodes a job has, and what a job asks for."""

from __future__ import annotations

from collections.abc import Callable

from course_lib.teaching.exercise import exercise

DEVICE_HINTS = [
    "A rank's device depends on how many *lower-numbered* ranks are on the same host, not on "
    "the rank itself, and not on the order in which hosts are filled.",
    "For rank r the local rank is `hosts[:r].count(hosts[r])`. If a host has more ranks than "
    "GPUs, the ranks take them in turn: use the remainder of a division.",
    "```python\n"
    "found = []\n"
    "for rank, host in enumerate(hosts):\n"
    "    local_rank = hosts[:rank].count(host)\n"
    "    if gpus[host] == 0:\n"
    '        found.append("cpu")\n'
    "    else:\n"
    "        ...\n"
    "return found\n"
    "```",
]


@exercise("13.devices", function="devices", where="notebook", hints=DEVICE_HINTS)
def check_devices(devices: Callable) -> str:
    from .judge_placement import judge_devices

    judge_devices(devices)
    return "Whatever the order of the hosts, and with fewer GPUs than ranks."


NODES_HINTS = [
    "There are two kinds of comma: those inside brackets separate numbers, those outside "
    "separate names. Separate the names first.",
    "`re.findall(r'[^,\\[]+(?:\\[[^]]*\\])?', text)` gives the names, each with its brackets. A "
    "range such as `08-11` has a first and a last number, and the first one shows how many digits "
    "they have: `f'{n:0{len(first)}}'`.",
    "```python\n"
    "nodes = []\n"
    "for part in re.findall(r'[^,\\[]+(?:\\[[^]]*\\])?', text):\n"
    "    name, _, numbers = part.rstrip(']').partition('[')\n"
    "    if not numbers:\n"
    "        nodes.append(name)\n"
    "        continue\n"
    "    for item in numbers.split(','):\n"
    "        first, _, last = item.partition('-')\n"
    "        ...  # from first to last (if there is no last: to first), padded with zeros\n"
    "return nodes\n"
    "```",
]


@exercise("13.node_names", function="node_names", where="notebook", hints=NODES_HINTS)
def check_node_names(node_names: Callable) -> str:
    from .judge_placement import judge_node_names

    judge_node_names(node_names)
    return "Ranges, single numbers, leading zeros, and names without any."


REQUEST_HINTS = [
    "How many ranks per node are possible at all? A node has at most `gpus` ranks, and "
    "every node has the same number.",
    "The ranks per node are a divisor of `ranks` that is at most `gpus`. The largest such divisor "
    "gives the fewest nodes. Then each rank gets its share of the node's cores, rounded down.",
    "```python\n"
    "per_node = max(k for k in range(1, gpus + 1) if ...)\n"
    "return ranks // per_node, per_node, ...  # nodes, ranks per node, cores per rank\n"
    "```",
]


@exercise("13.job_request", function="job_request", where="notebook", hints=REQUEST_HINTS)
def check_job_request(job_request: Callable) -> str:
    from .judge_placement import judge_job_request

    judge_job_request(job_request)
    return "The right number of ranks, equally many on each node, and as many cores as possible."


SCRIPT_HINTS = [
    "Read it as Slurm does, from the top: where does Slurm stop reading `#SBATCH` lines? Then "
    "count: how many times does `srun` start `torchrun`, and how many ranks does each `torchrun` "
    "start? Finally, where do they meet?",
    "(1) Slurm reads `#SBATCH` only above the first command. (2) `torchrun` starts the ranks of a "
    "node itself, so Slurm has to start one task on each node. (3) `localhost` is a different "
    "machine on each node: all of them need the name of one node, such as `$first`.",
    "Above `set -eu`: `#SBATCH --nodes=2`, `#SBATCH --ntasks-per-node=1`, `#SBATCH --time=30`. "
    "Below it, after `first=$(scontrol show hostnames ...)`: "
    "`srun torchrun --nnodes=2 --nproc-per-node=4 ... --rdzv-endpoint=$first:29500 ...`",
]


@exercise("13.job_script", function="job_script", where="notebook", hints=SCRIPT_HINTS)
def check_job_script(job_script: Callable) -> str:
    from .judge_scripts import judge_job_script

    judge_job_script(job_script)
    return "Two torchruns, four ranks each, one world of eight, and they know where to meet."
