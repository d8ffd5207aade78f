# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 13 To the cluster
#
# **The one idea.** A training program asks three questions: which rank am I, of how many, and which one on this machine? Each launcher (`mpiexec`, `torchrun` or Slurm) answers them in its own way. Everything else in the program is the same as on a laptop.
#
# **You will be able to**
# - start lesson 05's training with `mpiexec`, with `torchrun`, as a Slurm batch job and from a notebook, and check that every run ended with the same weights;
# - say what each launcher tells its ranks, and which of these values you can trust;
# - give every rank its own GPU, whatever order the hosts are filled in;
# - read a Slurm node list, work out what to ask Slurm for, and fix a job script;
# - choose between NCCL, MPI and gloo, and use your site's MPI;
# - recognise the usual failures by their symptoms.
#
# **Prerequisites:** lesson 05 (synchronous SGD) and section 10 of lesson 08 (launching).
#
# **Time.** The notebook runs in about 20 s (*measured here*: 2 ranks on 2 cores). Allow 120 minutes to work through it and its four exercises.
#
# **Where it runs.** Every program runs on your machine. For anything that needs several hosts or Slurm, you see a stored run of the same programs on three virtual hosts (h1, h2 and h3) built from Linux namespaces. Each virtual host has its own address, host name, processes and sshd, and a real Slurm runs jobs on h2 and h3. If you have several hosts or a Slurm cluster of your own, the text tells you what to type there. To run this notebook's cells there as well, set `COURSE_CLUSTER=hosts:node1:1,node2:1` (or `slurm:nodes=2`) before you start JupyterLab.

# %%
from course_lib.cluster import start_cluster
from course_lib.teaching import check, compare, hint, solution
from rank_by_rank.lesson_13 import jobs, records
from rank_by_rank.lesson_13.figures import gradient_paths, placements

print(records.about())

# %% tags=["nbval-ignore-output"]
cluster = start_cluster(n=2, init_process_group=True)

# %% [markdown]
# ## 1. One training run, three ways to start it
#
# First, run the training in the notebook. It is the loop from lesson 05: LeNet, a shard of the data for each rank, rank 0's weights at the start, and the mean gradient in every step. At the end it returns a *checksum* of the weights (lesson 08). Everything here is computed on the CPU, so the results can be compared bit for bit.

# %%
# %%px
# lesson 05's loop
import torch
import torch.nn.functional as F

from course_lib.parallel.gradient_sync import sync_gradients
from course_lib.parallel.initial_weights import sync_initial_weights
from course_lib.training.data import load_available
from course_lib.training.loops import batches, set_seed_of_rank
from course_lib.training.models import LeNet, checksum

train, _, data_name = load_available("mnist", "digits", size=28)


# %%
# %%px
# lesson 05's loop
def train_by_hand(steps=80, batch=16):
    set_seed_of_rank(0, rank)  # another seed on every rank ...
    model = LeNet()
    sync_initial_weights(model)  # ... and rank 0's weights on all
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    together = batch * world_size
    per_epoch = len(train) // together
    for step in range(steps):
        if step % per_epoch == 0:
            order = batches(len(train), together, seed=step // per_epoch)
        images, labels = train[next(order)[rank::world_size]]
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        sync_gradients(model)
        optimizer.step()
    return checksum(model)


# %%
# %%px
# lesson 05's loop
trained = train_by_hand()
assert comm.allreduce(int(trained == comm.bcast(trained))) == world_size, "replicas differ"

# %% [markdown]
# The file `scripts/sync_sgd.py` contains this loop as a program, and the last line it prints is the result. A *launcher* starts one process for each rank. In the next cells, `terminal` runs a command as if you had typed it in a terminal, in the folder that contains `scripts/`: the checkout, or the folder you gave to `rank-by-rank lab`. You can also type the commands (without the `$`) in that folder yourself, once the course's environment is active (in a checkout, `. .venv/bin/activate`).

# %%
import json
import subprocess
import sys

from course_lib.places import SCRIPTS
from torch_mpi4py import launch

FOLDER = SCRIPTS.parent  # the checkout, say
OPTIONS = ["--epochs", "4", "--steps", "80", "--batch", "16", "--rate", "0.05"]


def terminal(shown, command):
    """Run a command as a terminal would, at most 100 s; return its lines of JSON."""
    print(f"$ {shown}\n", end="")  # in one piece: section 8 runs two at a time
    variables = launch.environment() | {"CUDA_VISIBLE_DEVICES": ""}  # on the processor
    ran = subprocess.run(
        [*map(str, command)], cwd=FOLDER, env=variables, capture_output=True, text=True, timeout=100
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]


# %% tags=["nbval-ignore-output"]
program = ["scripts/sync_sgd.py", *OPTIONS, "--no-progress"]
(by_mpiexec,) = terminal(
    f"mpiexec -n 2 python {' '.join(program)}", launch.mpiexec(2, sys.executable, *program)
)
print({name: by_mpiexec[name] for name in ("backend", "data", "ranks", "accuracy")})

# %% tags=["nbval-ignore-output"]
torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2]
(by_torchrun,) = terminal(
    f"torchrun --standalone --nproc-per-node 2 {' '.join(program)}", [*torchrun, *program]
)
print({name: by_torchrun[name] for name in ("backend", "data", "ranks", "accuracy")})

# %% tags=["nbval-ignore-output"]
in_notebook = cluster.view["trained"][0]
print("notebook", in_notebook)
print("mpiexec ", by_mpiexec["checksum"])
print("torchrun", by_torchrun["checksum"])
assert in_notebook == by_mpiexec["checksum"] == by_torchrun["checksum"]
assert (by_mpiexec["backend"], by_torchrun["backend"]) == ("mpi4py", "gloo")
assert by_torchrun["accuracy"] > 0.6, "and it has learned something"

# %% [markdown]
# The training was started in three ways, with two communication libraries, and the weights agree bit for bit. How does the program find out what started it? From environment variables. In short, `course_lib/parallel/launching.py` does this:
#
# | variables set | started by | what the program does |
# |---|---|---|
# | `RANK`, `WORLD_SIZE`, `MASTER_ADDR`, `MASTER_PORT` | `torchrun` | calls `init_process_group("nccl")` if each rank has a GPU of its own, otherwise with `"gloo"` |
# | `OMPI_COMM_WORLD_RANK`, `PMIX_RANK` or `PMI_RANK` | an MPI's `mpiexec`, or `srun --mpi=pmix` (section 5) | calls `init_process_group("nccl")` if each rank has a GPU of its own, otherwise `init_process_group("mpi4py", init_method="mpi://")` |
# | none of these | no launcher | runs as a world of one |
#
# ## 2. What the launcher tells its ranks
#
# A small program, `who.py`, prints its host's name and those of the launchers' variables that are set. Here it runs under two launchers on your machine:

# %% tags=["nbval-ignore-output"]
who = ["notebooks/lesson_13/who.py"]
told_by_mpiexec = terminal(f"mpiexec -n 2 python {who[0]}", launch.mpiexec(2, sys.executable, *who))
told_by_torchrun = terminal(f"torchrun --standalone --nproc-per-node 2 {who[0]}", [*torchrun, *who])
for told in told_by_mpiexec + told_by_torchrun:
    print({name: value for name, value in told.items() if name != "host"})

# %% [markdown]
# Three of these values matter. The *global rank* numbers the ranks of the whole world and tells you which samples are yours. The *local rank* numbers only the ranks on this host and tells you which GPU is yours. `MASTER_ADDR` is the host on which the ranks meet under `torchrun`; MPI needs no such variable.
#
# Now for a cluster. Slurm is a *scheduler*: you ask for nodes, wait in a queue, and get an *allocation*. Inside the allocation you start programs with Slurm's own `srun`, or with an `mpiexec` that asks Slurm for the list of nodes. For the stored run we asked for two nodes with two tasks each, and started `who.py` on four ranks in three different ways. Rank 3 is the second rank on the second node.
#
# **Predict.** Inside the allocation, `mpiexec -n 4 python who.py` starts the ranks. Slurm's variable `SLURM_PROCID` is supposed to be the rank. What is its value on rank 3? Write a number.

# %%
prediction = None

# %%
rank_3 = records.stored()["told"]["mpiexec in a job"][3]
compare(prediction, int(rank_3["SLURM_PROCID"]), source="In the stored run")
assert rank_3["OMPI_COMM_WORLD_RANK"] == "3"
print("What rank 3 of 4 is told, two ranks on each of two nodes (stored run):\n")
print(records.variables_table(["srun --mpi=pmix", "mpiexec in a job", "torchrun"]))

# %% [markdown]
# It is 1, and it does not tell the ranks apart: `SLURM_PROCID` is 0 for both ranks on the first node and 1 for both on the second. `mpiexec` uses `srun` to start one *daemon* (a helper process) on each node. The daemon then starts the ranks there, and they inherit its variables, so `SLURM_PROCID` identifies the *daemon*, not the rank. The same happens with `torchrun`, because `srun` starts one `torchrun` on each node. A program that takes its rank from `SLURM_PROCID` gets the right one under `srun` and a wrong one under the other launchers.
#
# > Take the rank from the library, with `dist.get_rank()` or `comm.rank`. Take the local rank from the launcher that started the *ranks*, or work it out with MPI: `comm.Split_type(MPI.COMM_TYPE_SHARED)` makes a communicator of the ranks that share this host's memory, and a process's rank in that communicator is its local rank.
#
# The second method works under every MPI launcher. Try it on your ranks:

# %%
# %%px
from mpi4py import MPI

neighbours = comm.Split_type(MPI.COMM_TYPE_SHARED)
local_rank, ranks_here = neighbours.Get_rank(), neighbours.Get_size()
neighbours.Free()
assert 0 <= local_rank < ranks_here <= world_size
assert len(set(comm.allgather((MPI.Get_processor_name(), local_rank)))) == world_size

# %% [markdown]
# ## 3. Which rank is where
#
# Suppose you start four ranks on two hosts with two *slots* (places for a rank) each. By default `mpiexec` fills one host after the other, so ranks 0 and 1 are on the first host. With `--map-by node` it deals the ranks out to the hosts in turn instead.
#
# **Predict.** With `--map-by node`, what is the *local* rank of rank 2? Write a number.

# %%
prediction = None

# %%
rank_2 = records.stored()["told"]["mpiexec --map-by node"][2]
compare(prediction, int(rank_2["OMPI_COMM_WORLD_LOCAL_RANK"]), source="In the stored run")
placements(
    {
        "--map-by slot": records.hosts_of("mpiexec"),
        "--map-by node": records.hosts_of("mpiexec --map-by node"),
        ":oversubscribe": records.hosts_of(":oversubscribe"),
    }
)

# %% [markdown]
# Its local rank is 1: rank 2 is on the first host, where rank 0 has local rank 0. With `--map-by node`, ranks that are neighbours in a ring are on different hosts, so every message crosses the network. With `--map-by slot`, two of the ring's four links stay within a host.
#
# The third row is a trap. By default, Open MPI refuses to start more ranks than it sees cores. You find `:oversubscribe` on the web, put it into `PRTE_MCA_rmaps_default_mapping_policy`, and now all ranks are on the first host. The job runs, but slowly, while the other host is idle. Write `slot:oversubscribe` instead, as `launch.environment()` does.
#
# **One process for each GPU.** One process could drive several GPUs, as DataParallel does (lesson 07), but all of them would then share one Python interpreter. Instead, start as many ranks on a host as it has GPUs, and let each rank use the GPU whose index is its local rank:
#
# ```python
# device = torch.device("cuda", local_rank)
# torch.cuda.set_device(device)          # before anything is allocated
# model = DDP(model.to(device), device_ids=[device])
# ```
#
# You need `set_device` because much of PyTorch uses "the current GPU", which is GPU 0 unless you change it. Without the call, every rank on a host allocates memory on GPU 0, which is then the first to run out. At some sites Slurm sets `CUDA_VISIBLE_DEVICES` so that each rank sees only its own GPU; every rank's device is then `cuda:0`. A program that takes its local rank modulo `torch.cuda.device_count()`, as in exercise 1, is right in both cases.
#
# ### Exercise 1: devices
#
# Write `devices(hosts, gpus)`. `hosts` lists the name of each rank's host, in rank order; `gpus` is a dict that maps each host to its number of GPUs. Return a list with each rank's device: `"cuda:0"`, `"cuda:1"`, ... according to its local rank. If a host has fewer GPUs than ranks, the ranks take them in turn (with two GPUs, local ranks 0, 1 and 2 get GPUs 0, 1 and 0). On a host without GPUs the device is `"cpu"`.


# %% tags=["exercise"] exercise="13.devices"
def devices(hosts, gpus):
    """Return each rank's device, from each rank's host and each host's number of GPUs."""
    ### BEGIN SOLUTION
    found = []
    for rank, host in enumerate(hosts):
        local_rank = hosts[:rank].count(host)
        found.append(f"cuda:{local_rank % gpus[host]}" if gpus[host] else "cpu")
    return found
    ### END SOLUTION


# %% tags=["check"]
check("13.devices")

# %% [markdown]
# Stuck? `hint("13.devices")`, `solution("13.devices")`.
#
# ## 4. Several hosts, with mpiexec and torchrun
#
# Every host needs the same program at the same path, with the same versions of all packages (use a shared home folder, or run the same `make setup` on every host), and must accept ssh from the first host without a password. Then type this once, on the first host:
#
# ```
# mpiexec -n 2 --host h1:1,h2:1 "$(which python)" scripts/sync_sgd.py
# ```
#
# (h1 and h2 stand for the names of your hosts; `h1:1` means one slot on h1. Give Python's absolute path, because your virtual environment is not active in the sessions that ssh opens.) With `torchrun`, you type the command on every host, each time with that host's own `--node-rank` and with the first host's address:
#
# ```
# torchrun --nnodes=2 --node-rank=0 --nproc-per-node=1 --master-addr=10.77.0.1 --master-port=29533 scripts/sync_sgd.py
# ```
#
# We ran both on the virtual hosts, with the options of section 1. In every step each rank needs the other rank's gradient. LeNet has 61,706 parameters of 4 bytes each, and there were 80 steps.
#
# **Predict.** Under `mpiexec`, how many megabytes (10⁶ bytes) did h2 send, according to the counter of its network interface? Write a number.

# %%
prediction = None

# %%
on_two_hosts = records.trainings()[0]
compare(
    prediction, on_two_hosts["sent_by_h2"] / 1e6, within=0.1, unit="MB", source="In the stored run"
)

# %%
gradients = 61_706 * 4 * on_two_hosts["steps"]
print(f"gradients alone (predicted): {gradients / 1e6:.2f} MB")
print(f"sent by h2 (stored run):     {on_two_hosts['sent_by_h2'] / 1e6:.2f} MB")
assert gradients < on_two_hosts["sent_by_h2"] < 1.1 * gradients

# %% [markdown]
# Almost all of it is gradients: in a ring all-reduce each of $p$ ranks sends $2 \frac{p-1}{p} n$ bytes, and with two ranks that is $n$, the size of the gradient. The remaining 0.13 MB is TCP headers, acknowledgements and MPI's start-up messages. (The broadcast of the initial weights, 0.25 MB, went the other way, to h2.)
#
# ## 5. Under Slurm
#
# A *batch job* is a shell script with its requests to Slurm at the top. Here is one from `scripts/`, without its comments:

# %%
script = (SCRIPTS / "ddp_srun.sbatch").read_text()
comments = ("# ", "#\n")
print("".join(line for line in script.splitlines(True) if not line.startswith(comments)))

# %% [markdown]
# - `sbatch scripts/ddp_srun.sbatch --epochs 2` puts the job in the queue, prints its job ID and returns at once; `squeue --me` shows the job, and `scancel JOB_ID` cancels it. The job's output goes to `ddp-JOB_ID.out`.
# - The product of `--nodes` and `--ntasks-per-node` is the world size: `srun` starts that many tasks, and each is a rank. If you use GPUs, add `--gpus-per-node`; if each rank has worker processes that load data, add `--cpus-per-task`. Since Slurm 22.05, `srun` does not inherit `--cpus-per-task` from the script's header [4], so repeat it on the `srun` line, or `export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK` as `ddp_torchrun.sbatch` does. Otherwise, if Slurm binds tasks to cores, a rank and all its workers share one core.
# - `--mpi=pmix` lets the ranks find each other. *PMIx* is an interface through which a process asks its launcher for its rank and for the addresses of the other ranks. `mpiexec` brings its own PMIx; Slurm supports PMIx through a plugin, which not every site has built (`srun --mpi=list` shows whether yours has). The line with `export OPAL_PREFIX` does what `mpiexec` would do: it says where the pip package's Open MPI is, and asks for fault tolerance (lesson 12).
# - Slurm kills a job that runs longer than its `--time`, so save checkpoints (lesson 12).
#
# There are two more scripts. The last line of `ddp_mpiexec.sbatch` is `mpiexec --with-ft ulfm --map-by slot python scripts/ddp.py` (`mpiexec` asks Slurm for the nodes and tasks, so it needs neither `-n` nor `--host`); with this script, the surviving ranks can go on when a rank dies. In `ddp_torchrun.sbatch`, `srun` starts one `torchrun` on each node. (Slurm on our virtual hosts does not bind tasks to cores, so a missing `--cpus-per-task` has no effect there.)
#
# From the notebook, `start_cluster(n=2, slurm="nodes=2,time=10")` asks for an allocation and, if it has to wait, says why. The engines then run as tasks in that allocation, and `%%px` works as usual.
#
# If you have Slurm, the next cell submits `ddp_srun.sbatch` to it.

# %% tags=["nbval-ignore-output"]
if jobs.slurm_answers():
    print(jobs.run_job("scripts/ddp_srun.sbatch", OPTIONS))  # at most five minutes
else:
    print("No Slurm answers here: the next cells show the stored run.")

# %% [markdown]
# In the stored run we started the same training in seven ways, always with two ranks on two hosts: with `mpiexec` and with `torchrun`; with the three batch scripts, which use DDP and so average the same gradients as `sync_gradients`; and from a notebook with the cells of section 1, once with `hosts=` and once with `slurm=`.
#
# **Predict.** Compared bit for bit, how many *different* sets of weights did the seven runs end with? Write a number.

# %%
prediction = None

# %%
runs = records.trainings()
checksums = {run["checksum"] for run in runs}
compare(prediction, len(checksums), source="In the stored run")

# %%
for run in runs:
    print(f"{run['by']:<17} {run['backend']:<7} {run['checksum']}  {run['command']}")
assert len(runs) == 7

# %% [markdown]
# One. That is not luck but an invariant: **the launcher decides where the ranks run, not what they compute**. When you move to a cluster, train for a few steps on one machine and on the cluster, and compare the weights before you start a week-long job.
#
# The bits agree because the sum of two numbers does not depend on their order, and because all seven runs used the same kind of CPU. With more ranks, two libraries may add the gradients in different orders. Another kind of CPU may use different instructions, and then even a single process ends with different bits. So compare checksums only between runs on the same kind of CPU. Otherwise compare losses or weights with a tolerance, such as a relative $10^{-5}$ after a few steps in float32, or repeat the comparison in float64. The next cell compares your checksum with the stored one; "other bits" only means that your CPU or your data is different.

# %% tags=["nbval-ignore-output"]
assert len(checksums) == 1
same = in_notebook == runs[0]["checksum"]
print("Your weights and those of the stored run:", "the same bits" if same else "other bits")
print("Data here:", cluster.view["data_name"][0], "- in the stored run: digits")

# %% [markdown]
# ### Exercise 2: node names
#
# `SLURM_JOB_NODELIST` lists the nodes of a job in a short form: `gpu[1-3,7]` stands for gpu1, gpu2, gpu3 and gpu7, and `n[08-11],login1` for n08, n09, n10, n11 and login1. (You can expand it with the command `scontrol show hostnames`, but not every container has that.) `torchrun`'s ranks meet on the first node in the list.
#
# Write `node_names(text)`, which returns a list of all the nodes' names in the order of the text. A name has at most one pair of brackets, at its end. Every number in a range is padded with zeros to as many digits as the first number of that range.


# %% tags=["exercise"] exercise="13.node_names"
import re


def node_names(text):
    """Return the names that a list of nodes of Slurm stands for."""
    ### BEGIN SOLUTION
    nodes = []
    for part in re.findall(r"[^,\[]+(?:\[[^]]*\])?", text):  # no comma between brackets
        name, _, numbers = part.rstrip("]").partition("[")
        if not numbers:
            nodes.append(name)
            continue
        for item in numbers.split(","):
            first, _, last = item.partition("-")
            for number in range(int(first), int(last or first) + 1):
                nodes.append(f"{name}{number:0{len(first)}}")
    return nodes
    ### END SOLUTION


# %% tags=["check"]
check("13.node_names")

# %% [markdown]
# Stuck? `hint("13.node_names")`, `solution("13.node_names")`.
#
# ### Exercise 3: what to ask for
#
# You want exactly `ranks` ranks, each with one GPU. A node has `gpus` GPUs and `cores` cores. Every node must run the same number of ranks, and you want as few nodes as possible (each extra node lengthens the job's wait in the queue and puts more messages on the network). The ranks on a node share its cores equally, rounded down.
#
# Write `job_request(ranks, gpus, cores)`, which returns three whole numbers: the values of `--nodes`, `--ntasks-per-node` and `--cpus-per-task`. For 12 ranks on nodes with 8 GPUs and 96 cores, it returns `(2, 6, 16)`.


# %% tags=["exercise"] exercise="13.job_request"
def job_request(ranks, gpus, cores):
    """Return nodes, ranks on each node, and cores for each rank."""
    ### BEGIN SOLUTION
    per_node = max(k for k in range(1, gpus + 1) if ranks % k == 0)
    return ranks // per_node, per_node, cores // per_node
    ### END SOLUTION


# %% tags=["check"]
check("13.job_request")

# %% [markdown]
# Stuck? `hint("13.job_request")`, `solution("13.job_request")`. Try 7 ranks with 4 GPUs per node: you need seven nodes. A number of ranks with many divisors is easier to place.
#
# ### Exercise 4: a job that does not run
#
# A colleague wants eight ranks on two nodes with four GPUs each, and one `torchrun` per node. The partition allocates whole nodes with all their cores and GPUs, so the script need not ask for these. The script has three mistakes. (The `--rdzv-...` options tell the `torchrun` on each node where and how to meet the others: the `c10d` backend uses PyTorch's own store, which runs on the node named in the endpoint, and the id keeps jobs apart.)

# %%
from rank_by_rank.lesson_13.judge_scripts import BROKEN

print(BROKEN)

# %% [markdown]
# Write `job_script()`, which returns the corrected script as a string. The check reads the script as Slurm would, then runs it in an empty folder, where stubs replace `srun` and `torchrun`, so nothing is trained.


# %% tags=["exercise"] exercise="13.job_script"
def job_script():
    """Return a job script for eight ranks on two nodes, by torchrun."""
    ### BEGIN SOLUTION
    return """\
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
    ### END SOLUTION


# %% tags=["check"]
check("13.job_script")

# %% [markdown]
# Stuck? `hint("13.job_script")`, `solution("13.job_script")`.
#
# ## 6. GPUs: NCCL, MPI or gloo
#
# To reach another host, a gradient has to get from the GPU to the network card. The backend decides which route it takes:

# %%
gradient_paths()

# %% [markdown]
# **NCCL** is NVIDIA's library of collectives. Its kernels run on the GPU. Between GPUs in the same host the data travels over NVLink (NVIDIA's GPU interconnect) where it is available, and if the network card and driver support *GPUDirect RDMA*, the network card reads GPU memory directly. A *CUDA-aware* MPI can do the same. With any other MPI, the gradient has to be copied to host memory before it is sent and back to the GPU after it is received: it is *staged through the host*. The course's backend does these copies for you, through pinned memory, and so does `gloo`.
#
# | you have | use | because |
# |---|---|---|
# | several NVIDIA GPUs | `nccl` | it is the most direct route, and PyTorch's advice for GPUs [1] |
# | no GPU | `mpi4py` here, or `gloo` | NCCL has no operations for CPUs |
# | fewer GPUs than ranks | `mpi4py` or `gloo` | NCCL refuses to run two ranks on one GPU, unless you have NCCL 2.30 or later and set `NCCL_MULTI_RANK_GPU_ENABLE=1` [7] |
# | a network that only the site's MPI supports | `mpi4py` with that MPI (section 7) | gloo would use TCP |
# | ranks that must go on when one of them dies | `mpi4py` with Open MPI 5 | the survivors can form a smaller group (lesson 12) |
#
# You can also combine two backends: after `dist.init_process_group("cpu:gloo,cuda:nccl")`, the tensor's device decides which one is used, so counters on the CPU and gradients on GPUs can share a group. Two environment variables help when NCCL fails: `NCCL_DEBUG=INFO` makes it print its choices, and `NCCL_SOCKET_IFNAME` says which network interface it may use [2].
#
# Which device would each of your ranks use?

# %% tags=["nbval-ignore-output"]
# %%px
gpus = torch.cuda.device_count()
print(f"local rank {local_rank}:", f"cuda:{local_rank % gpus}" if gpus else "cpu (no GPU here)")

# %% [markdown]
# ## 7. Your site's MPI
#
# The course's MPI was installed with pip and uses TCP and shared memory. A cluster often has its own MPI, which supports the cluster's network (InfiniBand, Slingshot, ...) and which you load with `module load`. The mpi4py wheel works with both families of MPI (Open MPI, and MPICH including Intel MPI), so setting one variable switches to the site's MPI. Set it before you start JupyterLab, or in the job script:
#
# ```
# module load openmpi
# export MPI4PY_LIBMPI=$(dirname $(dirname $(which mpiexec)))/lib/libmpi.so.40
# make doctor
# ```
#
# A common mistake is to use the `mpiexec` of one MPI with the library of another. Each MPI tells its processes their ranks in a way that the other does not understand, so every process becomes a world of one. The course's backend uses the `mpiexec` from the same installation as the library; `make doctor` starts four ranks and says which library they loaded. Switching may also cost you features: Open MPI 4, MPICH and Intel MPI can neither free ranks that hang nor go on after a rank dies (lesson 12). `docs/site_mpi.md` has the details.
#
# ## 8. Break it on purpose: start without a launcher
#
# Two processes do not know that they belong together unless a launcher tells them. Nothing tells them if you use the wrong `mpiexec`, `srun` without `--mpi=pmix`, or a loop over `ssh host python ...`. Here you start two processes by hand at the same time, without any launcher's variables.
#
# **Predict.** What happens? (A) Both wait for each other until a time-out. (B) An error reports missing variables. (C) Both train without any error. Answer with a letter.

# %%
prediction = None

# %%
from concurrent.futures import ThreadPoolExecutor

alone = [*program[:1], "--steps", "5", "--no-progress"]
shown = f"python {' '.join(alone)}"
with ThreadPoolExecutor(2) as both:
    pair = [both.submit(terminal, shown, [sys.executable, *alone]) for _ in range(2)]
results = [result for started in pair for result in started.result()]

# %%
both_trained = [result["steps"] for result in results] == [5, 5]
compare(prediction, "C" if both_trained else "A or B")
print([(result["ranks"], result["backend"]) for result in results])
print("\nAnd by srun --mpi=none on two nodes (stored run):")
print(records.failure("no PMIx"))

# %% [markdown]
# Both processes train on all the data and never exchange a gradient: they are two worlds of one. The loss falls, you pay for two nodes, and the only sign is that there are two result lines instead of one, each with `"ranks": 1`. So a program for a cluster should begin by printing its world size. Better still, let the job script pass it the intended size as an option, and check it with `assert dist.get_world_size() == options.ranks`. (Do not use `SLURM_NTASKS`: in the table in section 2 it is 2 in a world of four.) Open MPI 5.0 starts such worlds of one without a warning [3].

# %%
assert both_trained
assert [result["ranks"] for result in results] == [1, 1]

# %% [markdown]
# The next cells show the symptoms of some other failures. In the first, gloo looks up the address of its host's own name. On Debian that is 127.0.1.1, a *loopback address*, which on every host means that host itself.

# %%
print("torchrun on two hosts, no GLOO_SOCKET_IFNAME (stored run):")
print(records.failure("loopback"))

# %%
print("mpiexec with a host that is not there (stored run):")
print(records.failure("unknown host"))

# %%
print("squeue while other jobs have the nodes (stored run):")
print(records.failure("queue"))
print("sbatch --partition=gpus where there is no such partition (stored run):")
print(records.failure("partition"))

# %% [markdown]
# | symptom | diagnosis | fix |
# |---|---|---|
# | every rank reports world size 1 | no PMIx, or `mpiexec` and the library belong to different MPIs | `srun --mpi=pmix` (see `srun --mpi=list`); `make doctor` |
# | gloo: connection refused or time-out, with an address 127.0.x.x | the host's own name resolves to a loopback address | `GLOO_SOCKET_IFNAME=eth0` on every host (`ip -brief address` shows the name) |
# | all ranks wait at the start | the ranks cannot reach `MASTER_ADDR`, or one rank never started | check the name, port and firewall; count the processes on each host |
# | all ranks are on the first host | the mapping policy is `:oversubscribe` | `slot:oversubscribe`, or `--map-by slot` |
# | `ModuleNotFoundError` only on the other host | a different Python was started there | give Python's absolute path: `"$(which python)"` |
# | "hosts differ: h2 has mpi4py ..." | the versions differ (the course's backend compares them when the ranks meet) | use the same `requirements.lock` everywhere |
# | `PENDING (Resources)` or `(Priority)` in the queue | other jobs have the nodes | wait, or ask for fewer nodes or less time |
# | `(PartitionTimeLimit)`, `(PartitionNodeLimit)` | the job can never run | ask for less; `sinfo` shows the limits |
# | `DUE TO TIME LIMIT` in the output | the job ran longer than `--time` | save checkpoints; ask for more time |
# | one GPU is full, the others are empty | `torch.cuda.set_device` is missing | section 3 and exercise 1 |
# | NCCL: "Duplicate GPU detected", or since 2.30 "Multiple Ranks are using the same GPU/Partition" | two ranks share a GPU | one rank per GPU, or another backend |
#
# ## Recap
#
# | | `mpiexec` | `srun` | `torchrun` |
# |---|---|---|---|
# | you type it | once | once, in a job | on every host, or once through `srun` |
# | it starts | all ranks | all ranks | the ranks on this host |
# | hosts come from | `--host`, `--hostfile`, or Slurm | the allocation | `--nnodes`, and the hosts that join |
# | rank | `OMPI_COMM_WORLD_RANK` | `SLURM_PROCID` | `RANK` |
# | local rank | `OMPI_COMM_WORLD_LOCAL_RANK` | `SLURM_LOCALID` | `LOCAL_RANK` |
# | ranks meet through | MPI itself | PMIx, `--mpi=pmix` | `MASTER_ADDR`, `MASTER_PORT` |
# | backend | `mpi4py` | `mpi4py` | `nccl`, `gloo` |
# | if a rank dies | the others may go on | Slurm ends them | it ends them all; with `--max-restarts` it starts all of them again (lesson 12) |
#
# With any of the three, start one process per GPU, choose the device by the *local* rank, and take the rank from the library. The launcher makes no difference to the weights.
#
# **Next:** lesson 13b is a map of the frameworks that sit on top of all this.
#
# ## References and further reading
#
# 1. PyTorch, "Distributed communication package: torch.distributed", section "Which backend to use?", [docs.pytorch.org](https://docs.pytorch.org/docs/stable/distributed.html).
# 2. NVIDIA, *NCCL User Guide*, chapter "Environment Variables", [docs.nvidia.com](https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html).
# 3. Open MPI, issue 13523, "srun with OpenMPI 5.0.3 unexpectedly launches MPI jobs as singletons without ERROR", [github.com](https://github.com/open-mpi/ompi/issues/13523).
# 4. SchedMD, *Slurm Workload Manager*, "MPI Users Guide", [slurm.schedmd.com](https://slurm.schedmd.com/mpi_guide.html), and the manual page of `sbatch`, which says where `#SBATCH` lines count and what `srun` does not inherit.
# 5. Open MPI, *Documentation*, version 5.0, section 11.1, "Environment variables set for MPI applications", [docs.open-mpi.org](https://docs.open-mpi.org/en/v5.0.x/tuning-apps/environment-var.html).
# 6. PyTorch, "torchrun (Elastic Launch)", [docs.pytorch.org](https://docs.pytorch.org/docs/stable/elastic/run.html).
# 7. NVIDIA, *NCCL*, `src/init.cc` of version 2.30, [github.com](https://github.com/NVIDIA/nccl): NCCL compares the GPU UUIDs of the ranks on a host.
