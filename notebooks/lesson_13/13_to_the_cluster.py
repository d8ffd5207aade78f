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
# **The one idea.** A training program asks three questions: which rank am I, of how many, and which one on this machine? Its launcher, `mpiexec`, `torchrun` or Slurm, answers in its own way. Everything else in the program stays as it is on a laptop.
#
# **You will be able to**
# - start the training of lesson 05 by `mpiexec`, by `torchrun`, as a batch job of Slurm and from a notebook, and find out whether they computed the same;
# - say what each launcher tells its ranks, and which of these values you can trust;
# - give every rank its own GPU, whatever the order in which hosts are filled;
# - read a list of nodes, work out what to ask Slurm for, and fix a job script;
# - choose between NCCL, MPI and gloo, and use the MPI of your site;
# - recognise the usual failures by their symptoms.
#
# **You need first** lesson 05 (synchronous SGD) and section 10 of lesson 08 (launching).
#
# **Time.** The notebook runs in about 20 s (*measured here*: 2 ranks on 2 cores). Allow 120 minutes with the four exercises.
#
# **Where it runs.** All programs run on your machine. For everything that needs several hosts or Slurm, you see a stored run of the same programs on three virtual hosts, h1, h2 and h3, made of Linux namespaces. Each host has its own address, host name, processes and sshd, and a real Slurm runs on them. If you have Slurm or other hosts, the text says what to type there. If you set `COURSE_CLUSTER=hosts:node1:1,node2:1` (or `slurm:nodes=2`) before JupyterLab starts, the cells of this notebook run there, too.

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
# First we run the training itself in the notebook. It is the loop of lesson 05: LeNet, shards by rank, rank 0's weights at the start, the mean gradient in every step. It ends with a *checksum* of the weights (lesson 08). Everything is computed on the CPU here, so that we can compare the bits.

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
# The file `scripts/sync_sgd.py` has this loop as a program; its last line of output is the result. A *launcher* starts one process for each rank. `terminal` runs a command as you would in a terminal, in the folder that has `scripts/`: the checkout, or the one you gave to `rank-by-rank lab`. You can type the commands after the `$` there yourself, once the course's environment is active (in a checkout by `. .venv/bin/activate`).

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
# Three ways to start, two communication libraries, the same bits. How does the program find out what started it? By environment variables. In short, its first lines, in `course_lib/parallel/launching.py`, do this:
#
# | what is set | what started it | the program calls |
# |---|---|---|
# | `RANK`, `WORLD_SIZE`, `MASTER_ADDR`, `MASTER_PORT` | `torchrun` | `init_process_group("nccl")` with a GPU for each rank, else `"gloo"` |
# | `OMPI_COMM_WORLD_RANK`, `PMIX_RANK` or `PMI_RANK` | an MPI, or `srun --mpi=pmix` (section 5) | `init_process_group("mpi4py", init_method="mpi://")`, or `"nccl"` with a GPU for each rank |
# | none of these | no launcher | a world of one |
#
# ## 2. What the launcher tells
#
# A small program, `who.py`, prints its host and those of these variables that are set. Here it runs under two launchers on your machine:

# %% tags=["nbval-ignore-output"]
who = ["notebooks/lesson_13/who.py"]
told_by_mpiexec = terminal(f"mpiexec -n 2 python {who[0]}", launch.mpiexec(2, sys.executable, *who))
told_by_torchrun = terminal(f"torchrun --standalone --nproc-per-node 2 {who[0]}", [*torchrun, *who])
for told in told_by_mpiexec + told_by_torchrun:
    print({name: value for name, value in told.items() if name != "host"})

# %% [markdown]
# Three of them matter. The *global rank* counts through the whole world and says which samples are yours. The *local rank* counts only on this host and says which GPU is yours. `MASTER_ADDR` is where ranks meet under `torchrun`; an MPI knows how to find its ranks and needs no such variable.
#
# Now we go to a cluster. Slurm is a *scheduler*: you ask for nodes, wait in a queue, and get an *allocation*. In it, you start programs by Slurm's own `srun`, or by an `mpiexec` that asks Slurm which nodes there are. In the stored run we asked for two nodes with two tasks each, and started `who.py` four times, in each of three ways. Rank 3 is the second one on the second node.
#
# **Predict.** In the allocation, `mpiexec -n 4 python who.py` starts the ranks. Slurm's variable `SLURM_PROCID` is supposed to be the rank. What is its value on rank 3? Write a number.

# %%
prediction = None

# %%
rank_3 = records.stored()["told"]["mpiexec in a job"][3]
compare(prediction, int(rank_3["SLURM_PROCID"]), source="In the stored run")
assert rank_3["OMPI_COMM_WORLD_RANK"] == "3"
print("What rank 3 of 4 is told, two ranks on each of two nodes (stored run):\n")
print(records.variables_table(["srun --mpi=pmix", "mpiexec in a job", "torchrun"]))

# %% [markdown]
# It is 1, and it does not tell the ranks apart: `SLURM_PROCID` is 0 on both ranks of the first node and 1 on both of the second. `mpiexec` has `srun` start one *daemon* (a helper process) on each node. The daemon starts the ranks, and they inherit its variables, which number the *daemons*. It is the same with `torchrun`, which is one task on each node. A program that takes its rank from `SLURM_PROCID` works under `srun` and is wrong under everything else.
#
# > Take the rank from the library, `dist.get_rank()` or `comm.rank`, and the local rank from the launcher that started the *ranks*, or count: `comm.Split_type(MPI.COMM_TYPE_SHARED)` makes a communicator of the ranks that share this host's memory, and the rank in it is the local rank.
#
# With MPI you can always count. On your ranks:

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
# There are four ranks, and two hosts with two *slots* (places for a rank) each. By default hosts are filled one after the other: ranks 0 and 1 are on the first host. `mpiexec --map-by node` deals out the ranks in turn instead.
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
# Rank 2 goes to the first host again and is the second one there. Neighbouring ranks, which exchange messages in a ring, are then on different hosts, and every message crosses the network. By slot, two of the four links of the ring stay inside a host.
#
# The third row is a trap. Open MPI refuses to start more ranks than it sees cores. You find `:oversubscribe` on the web and put it into `PRTE_MCA_rmaps_default_mapping_policy`, and then all ranks are on the first host. The job runs, slowly, and the other node is idle. Write `slot:oversubscribe`, as `launch.environment()` does.
#
# **One process for each GPU.** A process could drive several GPUs, as DataParallel does (lesson 07), but then they share one interpreter. So start as many ranks on a host as it has GPUs, and let each take the GPU of its local rank:
#
# ```python
# device = torch.device("cuda", local_rank)
# torch.cuda.set_device(device)          # before anything is allocated
# model = DDP(model.to(device), device_ids=[device])
# ```
#
# `set_device` is there because much of PyTorch uses "the current GPU", which is number 0 until you change it. Without it all ranks of a host take memory on GPU 0, and that one runs out first. A site's Slurm may show each rank only a GPU of its own (`CUDA_VISIBLE_DEVICES`). There every rank's device is `cuda:0`. A program that asks `torch.cuda.device_count()` first, and takes the remainder as in exercise 1, is right in both cases.
#
# ### Exercise 1: devices
#
# Write `devices(hosts, gpus)`. `hosts` is a list with the name of each rank's host, in the order of the ranks; `gpus` tells how many GPUs a host has, as a dict. Return a list with each rank's device: `"cuda:0"`, `"cuda:1"`, ... by its local rank. If a host has fewer GPUs than ranks, the ranks take them in turn (with two GPUs, local ranks 0, 1, 2 get 0, 1, 0). Without a GPU the device is `"cpu"`.


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
# ## 4. Several hosts, by mpiexec and torchrun
#
# Every host needs the same program at the same path with the same versions (by a shared home folder, or the same `make setup` everywhere), and ssh without a password from the first one. Then type once, on the first host:
#
# ```
# mpiexec -n 2 --host h1:1,h2:1 "$(which python)" scripts/sync_sgd.py
# ```
#
# (h1 and h2 stand for the names of your hosts; `h1:1` is one slot on h1. Give the full path of Python, because ssh does not know your virtual environment.) With `torchrun` you type the command on every host, each with its own number, and all name the first one:
#
# ```
# torchrun --nnodes=2 --node-rank=0 --nproc-per-node=1 --master-addr=10.77.0.1 --master-port=29533 scripts/sync_sgd.py
# ```
#
# We ran both on the virtual hosts, with the options of section 1. In every step each rank has to get the other one's gradient: LeNet has 61,706 parameters of 4 bytes, and there were 80 steps.
#
# **Predict.** Under `mpiexec`, how many megabytes (10⁶ bytes) went out of h2, as its network card counted them? Write a number.

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
# Nearly all of it is gradients: a ring all-reduce sends $2 \frac{p-1}{p} n$ bytes from each of $p$ ranks, and with two ranks that is $n$, the size of the gradient, in each step. The rest, 0.13 MB, is TCP's headers, its acknowledgements of what came in, and the start of MPI. (The first broadcast of the weights, 0.25 MB, went the other way, into h2.)
#
# ## 5. Under Slurm
#
# A *batch job* is a shell script with its requests to Slurm at the top. This one is in `scripts/` (shown without its comments):

# %%
script = (SCRIPTS / "ddp_srun.sbatch").read_text()
comments = ("# ", "#\n")
print("".join(line for line in script.splitlines(True) if not line.startswith(comments)))

# %% [markdown]
# - `sbatch scripts/ddp_srun.sbatch --epochs 2` puts it into the queue and returns at once; `squeue --me` shows it, `scancel` takes it out. Its output goes to `ddp-JOB.out`.
# - `--nodes` and `--ntasks-per-node` decide the size of the world: `srun` starts this many tasks, and each is a rank. With GPUs add `--gpus-per-node`, and `--cpus-per-task` for the workers that load data. Since Slurm 22.05 `srun` does not inherit `--cpus-per-task` from the script's header [4]. So repeat it on `srun`, or `export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK` as `ddp_torchrun.sbatch` does. Otherwise, where Slurm binds tasks to cores, the workers share one core.
# - `--mpi=pmix` lets the ranks find each other. *PMIx* is an interface by which a process asks its launcher for its rank and for the others' addresses. `mpiexec` brings its own; Slurm has it as a plugin, if it was built with it (`srun --mpi=list`). The line with `export OPAL_PREFIX` does what `mpiexec` would do: it says where the pip package's Open MPI is, and asks for fault tolerance (lesson 12).
# - Slurm kills the job after `--time`. Save checkpoints (lesson 12).
#
# There are two more scripts. The last line of `ddp_mpiexec.sbatch` is `mpiexec --with-ft ulfm --map-by slot python scripts/ddp.py` (without `-n` and hosts, because it asks Slurm), and survivors of a dead rank may go on. In `ddp_torchrun.sbatch`, `srun` starts one `torchrun` on each node. (Our virtual hosts' Slurm does not bind tasks to cores, so no mistake with cores shows there.)
#
# From the notebook, `start_cluster(n=2, slurm="nodes=2,time=10")` asks for an allocation and says why it has to wait. The engines are then its tasks, and `%%px` works as always.
#
# If you have Slurm, this cell runs the first script there.

# %% tags=["nbval-ignore-output"]
if jobs.slurm_answers():
    print(jobs.run_job("scripts/ddp_srun.sbatch", OPTIONS))  # at most five minutes
else:
    print("No Slurm answers here: the next cells show the stored run.")

# %% [markdown]
# In the stored run the same training was started in seven ways, always with two ranks on two hosts: by the two launchers; by the three scripts, whose DDP averages the same gradients as `sync_gradients`; and from a notebook, on hosts and on nodes of Slurm, with the cells of section 1.
#
# **Predict.** How many *different* sets of weights did the seven runs end with, to the last bit? Write a number.

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
# One. That is not luck but an invariant: **the launcher decides where ranks are, not what they compute**. If you move to a cluster, run some steps on one machine and on the cluster, and compare before you train for a week.
#
# The bits agree because two numbers have only one sum, and because all seven ran on CPUs of one kind. With more ranks two libraries may add in different orders. Another kind of CPU may use other instructions, and then even one process alone ends with other bits. So compare checksums only on the same kind of CPU. Otherwise compare losses or weights with a tolerance, such as $10^{-5}$ relative after a few steps in float32, or compare in float64. The next cell compares the checksums on your machine; "other bits" only means that your CPU or your data is different.

# %% tags=["nbval-ignore-output"]
assert len(checksums) == 1
same = in_notebook == runs[0]["checksum"]
print("Your weights and those of the stored run:", "the same bits" if same else "other bits")
print("Data here:", cluster.view["data_name"][0], "- in the stored run: digits")

# %% [markdown]
# ### Exercise 2: names of nodes
#
# `SLURM_JOB_NODELIST` has the names of a job's nodes in a short form: `gpu[1-3,7]` means gpu1, gpu2, gpu3 and gpu7, and `n[08-11],login1` means n08, n09, n10, n11 and login1. (The command `scontrol show hostnames` writes it out, but not every container has it.) The first name is where `torchrun`'s ranks meet.
#
# Write `node_names(text)`: it returns the list of all names, in this order. Names have at most one pair of brackets, at the end; the numbers in it are padded with zeros as the first number of their range is.


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
# You want exactly `ranks` ranks, with one GPU each. A node has `gpus` GPUs and `cores` cores. Every node must have the same number of ranks, and there should be as few nodes as possible (each further node makes the job wait longer, and puts more messages on the network). The cores of a node are shared out equally to its ranks, rounded down.
#
# Write `job_request(ranks, gpus, cores)`. It returns three whole numbers: `--nodes`, `--ntasks-per-node` and `--cpus-per-task`. For 12 ranks on nodes with 8 GPUs and 96 cores that is `(2, 6, 16)`.


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
# Stuck? `hint("13.job_request")`, `solution("13.job_request")`. Try 7 ranks with 4 GPUs a node: seven nodes. Numbers of ranks with many divisors are easier to place.
#
# ### Exercise 4: a job that does not run
#
# A colleague wants eight ranks on two nodes with four GPUs each, one `torchrun` for each node. The partition gives whole nodes with all their cores and GPUs, so the script need not ask for these. The script has three mistakes. (The options `--rdzv-...` tell the `torchrun` of each node where and how to meet the others: `c10d` is PyTorch's own store, which the node of the endpoint runs, and the id keeps jobs apart.)

# %%
from rank_by_rank.lesson_13.judge_scripts import BROKEN

print(BROKEN)

# %% [markdown]
# Write `job_script()`, which returns the corrected script as a string. The check reads it as Slurm would, and rehearses it in an empty folder with a `srun` and a `torchrun` that start nothing.


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
# The gradient of a GPU has to get out of its host. The backend decides which way it takes:

# %%
gradient_paths()

# %% [markdown]
# **NCCL** is NVIDIA's library of collectives. Its kernels run on the GPU. Between GPUs of a host the data goes over NVLink (NVIDIA's own connection), and where card and driver support *GPUDirect RDMA* the network card reads the GPU's memory itself. A *CUDA-aware* MPI can do the same. With any other MPI, the gradient has to be copied into the host's memory first and back afterwards: it is *staged through the host*. The course's backend does that by itself, through pinned memory; `gloo` does it, too.
#
# | you have | take | because |
# |---|---|---|
# | several GPUs of NVIDIA | `nccl` | the straight way; PyTorch's advice for GPUs [1] |
# | no GPU | `mpi4py` here, or `gloo` | NCCL has no operations for CPU tensors |
# | fewer GPUs than ranks | `mpi4py` or `gloo` | NCCL refuses two ranks on one GPU, unless it is 2.30 or later and `NCCL_MULTI_RANK_GPU_ENABLE=1` is set [7] |
# | a network that only the site's MPI knows | `mpi4py` with that MPI (section 7) | gloo would go over TCP |
# | a rank may die and the others go on | `mpi4py` with Open MPI 5 | lesson 12 |
#
# You can also use both: `dist.init_process_group("cpu:gloo,cuda:nccl")` chooses by the device of the tensor, for example for counters on the CPU beside gradients on the GPU. Two variables help when NCCL fails: `NCCL_DEBUG=INFO` lets it print its choices, and `NCCL_SOCKET_IFNAME` says which network it may use [2].
#
# Which device would your ranks take?

# %% tags=["nbval-ignore-output"]
# %%px
gpus = torch.cuda.device_count()
print(f"local rank {local_rank}:", f"cuda:{local_rank % gpus}" if gpus else "cpu (no GPU here)")

# %% [markdown]
# ## 7. The MPI of your site
#
# The course's MPI came with pip, and knows TCP and shared memory. A cluster often has an MPI that knows its network (InfiniBand, Slingshot, ...), available by `module load`. The wheel of mpi4py is built for both families of MPI (Open MPI's, and MPICH's with Intel MPI), so one variable is enough to use it. Set it before JupyterLab starts or in the job script:
#
# ```
# module load openmpi
# export MPI4PY_LIBMPI=$(dirname $(dirname $(which mpiexec)))/lib/libmpi.so.40
# make doctor
# ```
#
# A common mistake is to use the `mpiexec` of one MPI with the library of another. Each tells a rank its number in a way that the other does not know, so every process is a world of one. The backend takes the `mpiexec` of the same installation as the library; the doctor starts four ranks and says which library they loaded. You lose something, too: Open MPI 4, MPICH and Intel MPI can neither free ranks that hang nor go on after a death (lesson 12). `docs/site_mpi.md` has the details.
#
# ## 8. Break it on purpose: start without a launcher
#
# Two processes do not know that they belong together unless a launcher tells them. You get such processes from `srun` without `--mpi=pmix`, from a wrong `mpiexec`, or from a loop over `ssh host python ...`. Here we start both by hand at the same time, with none of the launchers' variables.
#
# **Predict.** What do you see? (A) both wait for each other until a timeout; (B) an error about missing variables; (C) both train, without a complaint. Write a letter.

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
# Both train, on all the data, and never exchange a gradient: two worlds of one. The loss falls, you pay for two nodes, and the only signs are two result lines instead of one, with `"ranks": 1`. So a program for a cluster should print its world size first. It is better still to tell it the right size, as an option that the job script fills in: `assert dist.get_world_size() == options.ranks`. (Do not use `SLURM_NTASKS`: in section 2's table it is 2 in a world of four.) Open MPI 5.0 starts such worlds of one without a warning [3].

# %%
assert both_trained
assert [result["ranks"] for result in results] == [1, 1]

# %% [markdown]
# Here are the symptoms of some more failures. In the first, gloo asks for the address of its own host's name. On Debian that is 127.0.1.1, a *loopback address*, which on each host means that host itself.

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
# | every rank says world size 1 | no PMIx, or `mpiexec` and library of different MPIs | `srun --mpi=pmix` (see `srun --mpi=list`); `make doctor` |
# | gloo: refused, or a timeout, with an address 127.0.x.x | the host's own name stands for a loopback address | `GLOO_SOCKET_IFNAME=eth0` on every host (`ip -brief address` shows the name) |
# | all ranks wait at the start | the ranks cannot reach `MASTER_ADDR`, or one rank never started | name, port, firewall; count the processes on each host |
# | all ranks on the first host | mapping policy `:oversubscribe` | `slot:oversubscribe`, or `--map-by slot` |
# | `ModuleNotFoundError` only on the other host | another Python was started there | full path: `"$(which python)"` |
# | "hosts differ: h2 has mpi4py ..." | other versions | the same `requirements.lock` everywhere; the course's backend compares when ranks meet |
# | `PENDING (Resources)` or `(Priority)` in the queue | others have the nodes | wait, or ask for fewer nodes or less time |
# | `(PartitionTimeLimit)`, `(PartitionNodeLimit)` | it can never run | ask for less; `sinfo` shows the limits |
# | `DUE TO TIME LIMIT` in the output | the job was longer than `--time` | checkpoints; more time |
# | one GPU is full, the others empty | `torch.cuda.set_device` is missing | exercise 1 |
# | NCCL: "Duplicate GPU detected", or from 2.30 "Multiple Ranks are using the same GPU/Partition" | two ranks on one GPU | one rank for each GPU, or another backend |
#
# ## Recap
#
# | | `mpiexec` | `srun` | `torchrun` |
# |---|---|---|---|
# | you type it | once | once, in a job | on every host, or by `srun` once |
# | it starts | all ranks | all ranks | the ranks of this host |
# | hosts come from | `--host`, `--hostfile`, or Slurm | the allocation | `--nnodes`, and the hosts that join |
# | rank | `OMPI_COMM_WORLD_RANK` | `SLURM_PROCID` | `RANK` |
# | local rank | `OMPI_COMM_WORLD_LOCAL_RANK` | `SLURM_LOCALID` | `LOCAL_RANK` |
# | ranks meet | MPI knows | PMIx, `--mpi=pmix` | `MASTER_ADDR`, `MASTER_PORT` |
# | backend | `mpi4py` | `mpi4py` | `nccl`, `gloo` |
# | if a rank dies | the others may go on | Slurm ends them | all are ended; with `--max-restarts` all start again (lesson 12) |
#
# With all of them: one process for each GPU, the device by the *local* rank, the rank from the library, and equal weights whatever the launcher.
#
# **Next:** lesson 13b is a map of the frameworks that sit on top of all this.
#
# ## References and further reading
#
# 1. PyTorch, "Distributed communication package: torch.distributed", section "Which backend to use?", [docs.pytorch.org](https://docs.pytorch.org/docs/stable/distributed.html).
# 2. NVIDIA, *NCCL User Guide*, chapter "Environment Variables", [docs.nvidia.com](https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html).
# 3. Open MPI, issue 13523, "srun with OpenMPI 5.0.3 unexpectedly launches MPI jobs as singletons without ERROR", [github.com](https://github.com/open-mpi/ompi/issues/13523).
# 4. SchedMD, *Slurm Workload Manager*, "MPI Users Guide", [slurm.schedmd.com](https://slurm.schedmd.com/mpi_guide.html), and the manual page of `sbatch`, which says where `#SBATCH` lines count, and what `srun` does not inherit.
# 5. Open MPI, *Documentation*, version 5.0, section 11.1, "Environment variables set for MPI applications", [docs.open-mpi.org](https://docs.open-mpi.org/en/v5.0.x/tuning-apps/environment-var.html).
# 6. PyTorch, "torchrun (Elastic Launch)", [docs.pytorch.org](https://docs.pytorch.org/docs/stable/elastic/run.html).
# 7. NVIDIA, *NCCL*, `src/init.cc` of version 2.30, [github.com](https://github.com/NVIDIA/nccl): ranks of a host are compared by the UUIDs of their GPUs.
