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
# # 13b A map of the frameworks
#
# **The one idea.** All data-parallel frameworks do the same three things under different names: they give every rank the same weights, give each rank different samples, and average the gradients before the step. Once you know these three, you can read the documentation of any framework.
#
# **You will be able to**
# - find the three things in seven scripts, and say which lines each framework requires;
# - test whether the frameworks all train the same model, to within a tolerance;
# - say which samples a batch size counts in each framework;
# - read a paragraph of documentation and say whether the training it describes is synchronous, whether it uses all-reduce or a server, and which library it relies on;
# - debug DTensor code with many simulated ranks in one process, and say which bugs this cannot show;
# - read the parallel degrees of a torchtitan configuration, and say what each rank holds.
#
# **Prerequisites:** lesson 08 (DDP), lesson 09 (parameter server, local SGD) and lesson 13 (launching); for sections 8 and 9 also lesson 10b (DTensor, meshes).
#
# **Time.** The notebook runs in about 35 s (*measured here*: 4 ranks on 2 cores, with none of the frameworks installed). Allow 110 minutes to work through it and its three exercises; you can leave out sections 8 and 9.
#
# **What runs here.** Plain PyTorch and DDP run on your machine. So does every other framework that you have installed in the course's environment (at most two minutes each). For the rest you see a stored run, with its date. To install the two smallest, type `.venv/bin/python -m pip install lightning-fabric accelerate` (but not just before a workshop, because `make setup` may have to correct versions afterwards).

# %%
from course_lib.cluster import start_cluster
from course_lib.teaching import check, compare, hint, solution
from rank_by_rank.lesson_13b.figures import framework_map
from rank_by_rank.lesson_13b.frameworks import (
    FRAMEWORKS,
    added_lines,
    here_or_stored,
    listing,
    stored,
)

# %% tags=["nbval-ignore-output"]
cluster = start_cluster(n=4, init_process_group=True)

# %% [markdown]
# ## 1. The same training for all of them
#
# Every script trains a small network on 64 samples, for ten steps with momentum. The first script runs as one process and the others as two, started as you would start them in a terminal (TensorFlow's script runs as one process with two devices). You will not need this notebook's own four ranks until exercise 1. The initial weights, samples and labels come from a file that all the scripts share, so nothing depends on a framework's random generator. Here is the whole of the first script:

# %%
print(listing("serial"))

# %% [markdown]
# The next script uses only `torch.distributed`. It adds these lines (a changed line counts as new):

# %%
for line in added_lines("plain"):
    print("+", line)

# %% [markdown]
# You know all of these lines already. `inputs[rank::ranks]` gives each rank different samples, `broadcast` gives them all the same weights, and `all_reduce` and the division average the gradients. The last four lines merely produce a loss and print it: each of the two ranks has the loss of its own 32 samples, and the mean of the two is the loss of all 64.
#
# **Predict.** DDP makes some of these lines unnecessary. How many new lines does the DDP script have, compared with the serial one? Count the import lines as well. Write a number.

# %%
prediction = None

# %%
compare(prediction, len(added_lines("ddp")), within=0.1, source="Counted here")
for line in added_lines("ddp"):
    print("+", line)

# %% [markdown]
# The broadcast and the averaging have become one line. The rest is still up to you: finding out your rank, choosing its samples, and computing the loss to print.
#
# ## 2. Fabric and Accelerate: thin layers around DDP
#
# Lightning Fabric and Hugging Face Accelerate let you keep your loop. Both are thin layers: they detect the launcher and the device, wrap the model in DDP (or in FSDP or DeepSpeed, if you change one setting), and take care of mixed precision.

# %%
for name in ("fabric", "accelerate"):
    print(f"{FRAMEWORKS[name].title}:")
    for line in added_lines(name):
        print("  +", line)
    print()

# %% [markdown]
# To keep the scripts comparable, we shard the samples by hand in both of them. If you use a `DataLoader`, both frameworks shard for you: `fabric.setup_dataloaders(loader)` and `accelerator.prepare(loader)` add a `DistributedSampler` or something similar. Neither framework averages the loss that you print unless you ask it to.
#
# DeepSpeed goes further: the model and the optimizer become one object, its "engine", which owns the step (`engine.backward`, `engine.step`), and a dict of settings controls most of its behaviour. The first time it runs on a CPU, DeepSpeed builds one of its own operators, which needs a compiler and takes a few minutes. Its main purpose is ZeRO, which shards optimizer state, gradients and parameters over all ranks. PyTorch's `fully_shard` does the same (lesson 10b).
#
# Horovod dates from 2017, like PyTorch's first DDP. It wraps the optimizer instead of the model: each gradient goes to a background thread as soon as it is ready, and `optimizer.step()` waits for all the averages before it changes the weights.

# %%
for name in ("deepspeed", "horovod"):
    print(f"{FRAMEWORKS[name].title}:")
    for line in added_lines(name):
        print("  +", line)
    print()

# %% [markdown]
# ## 3. tf.distribute: not a rank in sight
#
# TensorFlow's `MirroredStrategy` uses one process with several devices, here two virtual ones on the CPU. A *mirrored* variable has a copy on each device, and `strategy.run` runs your function on every device. The script has hardly a line in common with the serial one, so here is the whole of it:

# %%
print(listing("tensorflow"))

# %% [markdown]
# Find the three things again. The weights are the same because variables made in `strategy.scope()` are mirrored. The samples are different because `experimental_distribute_dataset` splits each batch of 64 in two. The gradients are all-reduced in `apply_gradients`, but summed, not averaged. That is why the script divides the loss by the batch size of *all* devices, not by a device's own number of samples, and why `reduce("sum")` gives the loss.
#
# **Predict.** Suppose that the script's loss were `tf.reduce_mean(each)`, the mean over the device's own samples. With two devices, would the applied gradient be (A) half the right one, (B) the right one, or (C) twice the right one? Answer with a letter.

# %%
prediction = None

# %%
import torch

torch.manual_seed(0)
weight = torch.randn(3, requires_grad=True)
samples = torch.randn(64, 3)


def gradient(loss):
    return torch.autograd.grad(loss, weight)[0]


right = gradient((samples @ weight).square().mean())
parts = [gradient((samples[device::2] @ weight).square().mean()) for device in range(2)]
ratio = (sum(parts) / right).mean().item()
compare(
    prediction, {0.5: "A", 1.0: "B", 2.0: "C"}[round(ratio, 3)], source="By a stand-in of PyTorch"
)
print(f"summed means of two devices / mean of all: {ratio:.3f}")

# %% [markdown]
# Twice the right one. With SGD that silently doubles the learning rate, and with 64 devices the rate is 64 times as large. (Adam divides by the gradient's typical size, so a constant factor hardly changes its steps, but it does affect gradient clipping.) DDP, Horovod and Accelerate average, so with them the mean over a rank's own samples is right. "Sum or mean?" is the first question to ask about a new framework (lesson 04).

# %%
torch.testing.assert_close(sum(parts), 2 * right)  # each of its numbers, not only their mean

# %% [markdown]
# For several hosts, the counterpart of `MirroredStrategy` is `MultiWorkerMirroredStrategy`, with one process on each host. The processes find each other through the environment variable `TF_CONFIG`, which holds JSON, and all-reduce the gradients with TensorFlow's own ring over gRPC (Google's remote procedure calls) or with NCCL. `ParameterServerStrategy`, the *parameter-server strategy*, is asynchronous.
#
# ## 4. Do they all train the same model?
#
# Now run all the scripts, each with two ranks (or devices). Every loss is a mean over 64 samples, and the frameworks may add its terms in different orders. One float32 operation has a relative rounding error of up to $6 \cdot 10^{-8}$, and a loss of about 1 is the result of hundreds of operations, over ten steps. So we allow a difference of $5 \cdot 10^{-6}$. Would this tolerance reveal a missing average? Suppose that two processes train without communicating, each on its own half of the samples. Their mean loss differs from that of one process with all the samples by this much:

# %%
from torch.nn import functional as F

from rank_by_rank.lesson_13b.steps.toy import RATE, STEPS, model_and_data


def losses_alone(rank, ranks):
    model, inputs, labels = model_and_data()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs[rank::ranks]), labels[rank::ranks])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


halves = zip(losses_alone(0, 2), losses_alone(1, 2), strict=True)
differences = [sum(h) / 2 - w for h, w in zip(halves, losses_alone(0, 1), strict=True)]
print(" ".join(f"{difference:+.3f}" for difference in differences))
assert abs(differences[1]) > 1e-2

# %% [markdown]
# The first loss is the same, because it is computed before the first step. In the second loss, the difference is already four orders of magnitude above the tolerance.
#
# **Predict.** Which of the frameworks that ran have losses within this tolerance of the serial ones: (A) all; (B) all except TensorFlow; (C) only plain PyTorch and DDP? Answer with a letter.

# %%
prediction = None

# %% tags=["nbval-ignore-output"]
found = {name: here_or_stored(name) for name in FRAMEWORKS}
serial = found["serial"]["losses"]
print("framework            version       new lines  largest difference  where it ran")
apart = {}
for name, run in found.items():
    row = f"{FRAMEWORKS[name].title:<20} {run['version']:<13} {len(added_lines(name)):>9}  "
    if "losses" in run:
        apart[name] = max(abs(a - b) for a, b in zip(run["losses"], serial, strict=True))
        print(f"{row}{apart[name]:>18.1e}  {run['where']}")
    else:
        print(f"{row}{'did not run':>18}  {run['where']}")

# %%
compare(prediction, "A" if max(apart.values()) <= 5e-6 else "other")

# %% [markdown]
# All of them: two tensor libraries and three collective libraries give the same sequence of losses, to within the tolerance. So a result that a paper reports for DDP also holds for the other frameworks, given the same *global* batch, learning rate and reduction.

# %%
assert max(apart.values()) <= 5e-6
assert {"plain", "ddp", "fabric", "accelerate", "tensorflow"} <= apart.keys()
assert serial[-1] < 0.9 * serial[0], "and it has learned something"

# %% [markdown]
# The following framework did not run; the error is stored with the date of the attempt:

# %%
for name in FRAMEWORKS:
    attempt = stored(name)
    if "error" in attempt:
        print(f"{FRAMEWORKS[name].title}, {attempt['date']}: {attempt['error']}")

# %% [markdown]
# ## 5. Beyond SPMD: Ray Train and Monarch
#
# Everything so far is SPMD: one program, started once for each rank. In the two frameworks below, a single program starts the workers and directs them.
#
# **Ray Train.** Ray runs Python functions and *actors* (processes that keep state and take calls) anywhere in a cluster. Its `TorchTrainer` takes your training function and the number of workers, starts that many actors, calls `init_process_group` in each, and runs the function there [1]; `prepare_model` wraps the model in DDP. So what runs inside is lesson 08: synchronous training over NCCL or gloo. Around it, Ray places the workers without Slurm, feeds them data, restarts them after a failure, and runs many trials at once.
#
# **Monarch.** This is PyTorch's own experiment with a *single controller*: one program, such as a notebook, holds a "mesh" of actors in many processes and calls a method on all of them at once [2]. You have used a single controller yourself: the notebook controls its ranks with `%%px`. Monarch is useful if ranks do different things, as in reinforcement learning (some generate, some train), or if failures should be handled in one place. It is young: its repository called it experimental until 2026.
#
# ## 6. What does a wrapped optimizer do?
#
# ### Exercise 1: Horovod in ten lines
#
# Write `distributed(optimizer, group)`, which works like `hvd.DistributedOptimizer`: it returns an optimizer whose `step()` averages the gradients of all its parameters over `group` before it changes the weights. (You may change the given optimizer, or return an object of your own with `zero_grad` and `step`.) Skip parameters whose `grad` is None. An optimizer's parameters are in `settings["params"]`, for each dict `settings` in `optimizer.param_groups`.

# %%
# %%px
import torch
import torch.distributed as dist


# %% tags=["exercise"] exercise="13b.distributed"
# %%px
def distributed(optimizer, group):
    """Return an optimizer that averages the gradients over the ranks of group before it steps."""
    ### BEGIN SOLUTION
    own_step = optimizer.step

    def step():
        for settings in optimizer.param_groups:
            for parameter in settings["params"]:
                if parameter.grad is not None:
                    dist.all_reduce(parameter.grad, group=group)
                    parameter.grad /= dist.get_world_size(group)
        own_step()

    optimizer.step = step
    return optimizer
    ### END SOLUTION


# %% tags=["check"]
check("13b.distributed")

# %% [markdown]
# Stuck? `hint("13b.distributed")`, `solution("13b.distributed")`.
#
# Do four ranks with your wrapper train as one process would? They train the small network of section 1. Apart from the line with `wrap(...)`, the sharding of the samples and the averaging of the losses, this is the serial loop. (`yours_or_solution` uses the worked solution if yours is missing or not yet right.)

# %%
# %%px
from course_lib.teaching import yours_or_solution
from rank_by_rank.lesson_13b.steps.toy import RATE, STEPS, model_and_data

wrap = yours_or_solution("13b.distributed")
model, inputs, labels = model_and_data()
inputs, labels = inputs[rank::world_size], labels[rank::world_size]
optimizer = wrap(torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9), dist.group.WORLD)
losses = []
for _ in range(STEPS):
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(inputs), labels)
    loss.backward()
    optimizer.step()
    losses.append(comm.allreduce(loss.item()) / world_size)

# %%
assert len(serial) == len(cluster.view["losses"][0])
assert max(abs(a - b) for a, b in zip(cluster.view["losses"][0], serial, strict=True)) < 5e-6

# %% [markdown]
# The losses agree with those of the serial run, within the tolerance of section 4.
#
# ## 7. A decoder for documentation
#
# | what you read | what it means | lesson |
# |---|---|---|
# | mirrored, replicated, in lockstep, all workers wait | synchronous SGD | 05 |
# | as soon as it arrives, stale, Hogwild, without waiting | asynchronous SGD | 09 |
# | push and pull, chief, server, variables live on | parameter server | 09 |
# | each on its own for H steps, outer optimizer | local SGD | 09 |
# | fused, fusion buffer, bucket | several gradients in one message | 06, 08 |
# | ring, tree, hierarchical | the all-reduce algorithm | 03 |
# | ZeRO stages 1, 2 and 3; sharded; FSDP | each rank keeps only a shard of: the optimizer state (stage 1); the gradients too (2); the parameters too (3, FSDP) | 10b |
# | tensor parallel; pipeline | slices of layers; stages of layers | 10b, 10 |
# | `nccl`; RCCL; oneCCL; `gloo`; `mpi` | NVIDIA's GPUs; AMD's; Intel's; CPUs over TCP; whatever the site has | 13 |
# | replica, worker, task, process, engine | usually a rank | 00 |
# | node, host, machine | usually a machine, but a "node" in a graph or in Ray may be something else | 13 |
# | global batch, effective batch | the samples of all ranks, and of all accumulated backward passes | 05, 08 |
#
# ### Exercise 2: what does the batch size count?
#
# You write the same batch size, `written`, in each of six settings. There are `ranks` ranks, and the gradients of `accumulate` backward passes are added up before each step. Write `effective_batch(setting, written, ranks, accumulate)`, which returns how many samples go into one step of the optimizer. `setting` is one of
#
# - `"ddp"`, `"fabric"`, `"accelerate"`: a `DataLoader(..., batch_size=written)` on every rank. (Fabric and Accelerate wrap the loader but do not change its batch size.)
# - `"accelerate split_batches"`: the same loader with `split_batches=True`, which makes Accelerate divide each batch into equal parts, one per rank [3].
# - `"keras"`: `model.fit(..., batch_size=written)` under a strategy counts the samples of all replicas together. (Keras's optimizers can accumulate too, with `gradient_accumulation_steps`. Again: sum or mean? Keras steps with the *mean* of the accumulated gradients [8], whereas a loop over `backward()` in PyTorch sums them unless you divide the loss.)
# - `"deepspeed train_batch_size"`: DeepSpeed defines this as the samples of one GPU in one backward pass, times the accumulation steps, times the number of GPUs [4].


# %% tags=["exercise"] exercise="13b.effective_batch"
def effective_batch(setting, written, ranks, accumulate):
    """Return how many samples one step of the optimizer has seen."""
    ### BEGIN SOLUTION
    if setting in ("ddp", "fabric", "accelerate"):
        return written * ranks * accumulate  # of one rank, one backward
    if setting in ("accelerate split_batches", "keras"):
        return written * accumulate  # of all ranks, one backward
    return written  # of all ranks, all backward passes
    ### END SOLUTION


# %% tags=["check"]
check("13b.effective_batch")

# %% [markdown]
# Stuck? `hint("13b.effective_batch")`, `solution("13b.effective_batch")`. A batch size of 32 therefore means three different experiments in these six settings. If you move a script to another framework and keep the number, check whether you have changed the experiment, and with it the right learning rate (lesson 05).
#
# ### Exercise 3: what does this mean?
#
# Here are five paragraphs in the style of real documentation.
#
# > **A.** Each accelerator holds a full copy of the variables. After the backward pass, partial sums travel from card to card over the vendor's interconnect without a detour through host memory, and only when every card holds the total does the next batch begin on all devices together. Requires NVIDIA graphics cards.
#
# > **B.** Workers fetch the parameters, process a mini-batch and hand in the gradient by remote procedure call. Gradients are applied in order of arrival: whichever comes first is applied first. A slow worker therefore delays nobody, though its gradient may refer to parameters that have since been replaced.
#
# > **C.** The chief holds all variables. In each round every worker receives them and returns one gradient by remote procedure call. Once all gradients of a round are in, the chief applies their mean and begins the next round.
#
# > **D.** Every island trains on its own for 500 steps with its inner optimizer. Then the weight changes are averaged over all islands, over TCP on CPUs, with the library that PyTorch provides for this case, and an outer optimizer with Nesterov momentum applies them.
#
# > **E.** Start your script with `mpirun`. Gradients that are ready are copied into a fused buffer, and every process computes their averages with whatever collective your site's library picks. `optimizer.step()` returns once the averages have arrived and been applied.
#
# Write `reading()`, which returns a dict with a triple for each of `"A"` to `"E"`:
# 1. when the ranks average: `"sync"`, `"async"`, or `"local"` (each rank does several steps alone in between);
# 2. how: `"all-reduce"` or `"server"`;
# 3. which collective library: `"nccl"`, `"gloo"`, `"mpi"`, or `"none"` if there are no collectives.


# %% tags=["exercise"] exercise="13b.reading"
def reading():
    """Return what the paragraphs A to E say: when, how, and by which library."""
    ### BEGIN SOLUTION
    return {
        "A": ("sync", "all-reduce", "nccl"),
        "B": ("async", "server", "none"),
        "C": ("sync", "server", "none"),
        "D": ("local", "all-reduce", "gloo"),
        "E": ("sync", "all-reduce", "mpi"),
    }
    ### END SOLUTION


# %% tags=["check"]
check("13b.reading")

# %% [markdown]
# Stuck? `hint("13b.reading")`, `solution("13b.reading")`.
#
# ## 8. LocalTensor: ranks to debug with
#
# With DTensor (lesson 10b) a result is spread over processes, and each process can print only its own part. For debugging, PyTorch has a *LocalTensor*: one tensor in one process that holds the parts of *all* ranks. An operation is applied to every part, and a collective is computed from all the parts. The class is in the module `torch.distributed._local_tensor`, whose underscore means that its contents may change. (The cells below ran with PyTorch 2.13.) Process groups use the `fake` backend, which sends nothing.

# %%
from contextlib import contextmanager

import torch.distributed as dist
from torch.distributed._local_tensor import LocalTensor, LocalTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor


@contextmanager
def simulated(ranks):
    """Let this process be so many ranks, for DTensor and collectives."""
    dist.init_process_group("fake", rank=0, world_size=ranks)
    try:
        with LocalTensorMode(ranks):
            yield
    finally:
        dist.destroy_process_group()


# %% [markdown]
# The example multiplies a row of eight ones by a column of the numbers 0 to 7. Both are sharded over four ranks, so rank r has entries 2r and 2r + 1 of each and can multiply them. The product is 28, but DTensor does not add up the ranks' terms until the sum is needed. Until then the product's placement is `Partial`.
#
# **Predict.** What value does rank 3 hold before the terms are added up?

# %%
prediction = None

# %%
with simulated(4):
    mesh = init_device_mesh("cpu", (4,))
    row = distribute_tensor(torch.ones(1, 8), mesh, [Shard(1)])
    column = distribute_tensor(torch.arange(8.0).view(8, 1), mesh, [Shard(0)])
    product = row @ column
    terms, total = product.to_local(), product.full_tensor()

# %%
rank_3 = terms._local_tensors[3].item()
compare(prediction, rank_3)
print(product.placements, terms, sep="\n")

# %% [markdown]
# 13, which is 6 + 7. The output shows the terms of all ranks, one below the other; no single rank could have printed it. If a program used these terms as if they were the sum, you would see that here at once.

# %%
assert rank_3 == 13
assert total.reconcile().item() == 28  # reconcile: the parts are equal, so give me one of them

# %% [markdown]
# Do real ranks compute the same values? The next cell defines one program for the four real ranks and for the simulated ones: a forward and a backward pass through an MLP whose first layer is split by columns and whose second is split by rows.

# %%
# %%px --local
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


def gradient_of_first_layer(ranks):
    """Of an MLP in slices over so many ranks, of which this process is one, or all."""
    torch.manual_seed(0)
    mlp = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8)).double()
    x = torch.ones(4, 16, dtype=torch.float64, requires_grad=True)
    if ranks > 1:
        plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
        parallelize_module(mlp, init_device_mesh("cpu", (ranks,)), plan)
    mlp(x).square().sum().backward()
    return mlp[0].weight.grad


# %%
# %%px
mine = gradient_of_first_layer(world_size).to_local()

# %%
whole = gradient_of_first_layer(1)
for ranks in (4, 16):
    with simulated(ranks):
        gradients = gradient_of_first_layer(ranks).to_local()._local_tensors
    assert len(gradients) == ranks
    together = torch.cat([gradients[r] for r in range(ranks)])
    torch.testing.assert_close(together, whole, rtol=0, atol=1e-12)
    if ranks == 4:
        for r, real in enumerate(cluster.view["mine"]):
            torch.testing.assert_close(gradients[r], real, rtol=0, atol=1e-12)

# %% [markdown]
# Each simulated rank has the same shard as its real counterpart. Put together, the shards of 4 or of 16 ranks are the gradient of one process. ($10^{-12}$ leaves room for a different order of summation.)
#
# Now for a bug: every rank should take part in a collective, but only rank 0 does so:

# %%
# %%px --local
import torch
import torch.distributed as dist


def careless_sum(numbers):
    if dist.get_rank() == 0:
        dist.all_reduce(numbers)
    return numbers


# %% [markdown]
# **Predict.** What does the simulation show: (A) a hang; (B) an error that names the missing ranks; (C) the right sum, as if nothing were wrong? Answer with a letter.

# %%
prediction = None

# %%
with simulated(4):
    parts = LocalTensor({r: torch.tensor([float(r)]) for r in range(4)})
    sums = careless_sum(parts)._local_tensors

# %% tags=["raises-exception", "nbval-ignore-output"]
# %%px --limit 3
careless_sum(torch.tensor([float(rank)]))
dist.barrier()

# %%
answers = [sums[r].item() for r in range(4)]
compare(prediction, "C" if answers == [6.0] * 4 else "other")
print("simulated:", answers)

# %%
assert answers == [6.0] * 4

# %% [markdown]
# It shows the right sum, while the real ranks hang. The simulation runs one program, which asks for its rank once and gets the answer 0. So the simulation shows what the ranks *compute* if all of them do the same thing: shapes, uneven shards, placements, values. It can't show what goes wrong *between* them: a missing or mismatched call, a deadlock, a rank that takes a different branch. `send` and `recv` fail in this mode, because there is no other rank to send to; for them PyTorch has a `LocalRunnerMode`, which has one thread per rank and runs one thread at a time. Nor does the simulation say anything about time or memory, because one process does the work of all ranks and holds all their parts.
#
# ## 9. torchtitan: everything in one configuration
#
# *torchtitan* [9] is the PyTorch project's own program for training large language models. You have already built most of its parts yourself. It combines `fully_shard`, DTensor, pipelining, context and expert parallelism, activation checkpointing and DCP, and its configuration sets how much of each to use. (It is useful only on GPUs, so it isn't installed here. The setting names below are those in its repository in autumn 2026 [10], but they change: until August the batch size was counted in samples, as `local_batch_size` and `global_batch_size`.)
#
# | setting | what it gives you | lesson |
# |---|---|---|
# | `data_parallel_replicate_degree` | replicas whose gradients are averaged as in DDP; together with shards, HSDP | 08; 10b, section 8 |
# | `data_parallel_shard_degree` | `fully_shard`; -1 uses all remaining ranks | 10b, section 7 |
# | `tensor_parallel_degree`, `enable_sequence_parallel` | slices of layers; norms split by tokens | 10b, sections 4 and 5 |
# | `pipeline_parallel_degree`, `pipeline_parallel_schedule` | stages; 1F1B, interleaved, zero bubble | 10 |
# | `context_parallel_degree` | parts of a sequence; keys and values gathered, or Ulysses | 10c |
# | `expert_parallel_degree` | experts spread over ranks that the data, context and tensor degrees already count | 10c |
# | `activation_checkpoint` | none, full or selective | 10, section 5 |
# | `num_tokens_per_microbatch_per_dp_rank`, `num_tokens_per_train_step` | the tokens of one data-parallel rank in one forward pass, and the tokens of all ranks in a whole step; gradient accumulation makes up the difference | 08, section 4 |
# | `checkpoint`, with its `async_mode` | DCP | 12, section 7 |
#
# The number of ranks is the product of all the degrees except the expert degree. In the mesh, the stages are the outermost dimension and the slices are the innermost:


# %%
def arranged(ranks, pipeline=1, replicate=1, shard=-1, context=1, tensor=1):
    """Return the numbers of the ranks as torchtitan arranges them, one dimension a degree."""
    if shard == -1:
        shard = ranks // (pipeline * replicate * context * tensor)
    return torch.arange(ranks).reshape(pipeline, replicate, shard, context, tensor)


# %% [markdown]
# *Published* [11]: for sequences of 131,072 tokens, Llama 3 405B was trained on 16,384 GPUs with 8 slices, 16 parts of a sequence and 16 stages; the remaining factor is the shard degree. (Meta used its own program. The degrees have the same meanings there, but the order of the dimensions differs, as you will see.)
#
# **Predict.** What is the shard degree? And over how many ranks are the weights of one slice of one stage sharded? (Ranks that hold different tokens of the same sequence use the same weights.) Write `[degree, ranks]`.

# %%
prediction = None

# %%
llama = arranged(16_384, pipeline=16, context=16, tensor=8)
degree, same_weights = llama.shape[2], llama[0, 0, :, :, 0].flatten()
compare(prediction, [degree, len(same_weights)], source="By the arrangement")
names = ("pipeline", "replicate", "shard", "context", "tensor")
for dimension, name in enumerate(names):
    others = llama.movedim(dimension, 0).flatten(1)[:, 0].tolist()  # rank 0 and its peers
    print(f"{name:10} {len(others):3} ranks: {str(others[:4])[1:-1]}{', ...' * (len(others) > 4)}")

# %% [markdown]
# The shard degree is 8, and the weights are sharded over 8 · 16 = 128 ranks: context parallelism splits the tokens but not the weights, so `fully_shard` uses both dimensions together. The slices, which communicate in every layer, are neighbours on one machine with 8 GPUs. The stages, which communicate least, are farthest apart. Meta's program instead has the shards outermost and the stages inside them: FSDP can gather weights ahead of time, so it suffers least from a high latency [11].
#
# With 32 simulated ranks, PyTorch's own mesh forms the same groups as `arranged`:

# %%
assert (degree, len(same_weights)) == (8, 128)
small = arranged(32, pipeline=2, replicate=2, context=2, tensor=2)
assert small.shape == (2, 2, 2, 2, 2)
with simulated(32):
    mesh = init_device_mesh("cpu", tuple(small.shape), mesh_dim_names=names)
    both = mesh["shard", "context"]._flatten("shard and context")
    groups = [dist.get_process_group_ranks(mesh[name].get_group()) for name in names]
    together = dist.get_process_group_ranks(both.get_group())
assert groups == [small.movedim(d, 0).flatten(1)[:, 0].tolist() for d in range(5)]
assert together == small[0, 0, :, :, 0].flatten().tolist()

# %% [markdown]
# ## Recap

# %%
framework_map()

# %% [markdown]
# | framework | same weights | average | when | collectives | you write |
# |---|---|---|---|---|---|
# | plain | `broadcast` | `all_reduce`, then divide | sync | any backend | everything |
# | DDP | when wrapping | in the backward pass, by buckets | sync | any backend | samples, launch |
# | Fabric | `setup` (DDP inside) | in the backward pass | sync | PyTorch's | your loop |
# | Accelerate | `prepare` (DDP inside) | in the backward pass | sync | PyTorch's | your loop |
# | DeepSpeed | `initialize` | in `engine.backward` | sync | PyTorch's | your loop and settings |
# | Horovod | `broadcast_parameters` | before `step()` | sync | MPI, gloo, NCCL | your loop, with a wrapped optimizer |
# | `MirroredStrategy` | `scope()` | in `apply_gradients`: a sum | sync | TensorFlow's, NCCL | a function for each replica |
# | `ParameterServerStrategy` | live on servers | none | async | none (gRPC) | a coordinator |
# | Ray Train | DDP inside | in the backward pass | sync | PyTorch's | a function for each worker |
#
# Remember two more things. `LocalTensor` shows what simulated ranks compute, but it cannot show a hang. In torchtitan, the number of ranks is the product of all the degrees except the expert degree.
#
# Which should you choose? First of all, the one your colleagues know; after that, the one that puts the fewest lines between you and the three things above. If the model fits on one device, DDP is enough, with Fabric or Accelerate around it if you want the same script on every machine. For a larger model, use FSDP2, either by itself or through Fabric or Accelerate. Horovod's last release dates from 2023 [5]; you will read more Horovod code than you write.
#
# **Break it on purpose.** *Symptom*: after a move from DDP to `tf.distribute`, the loss explodes. *Diagnosis*: `tf.distribute` sums the gradients, but your loss is the mean over one replica, so the learning rate is effectively multiplied by the number of replicas. *Fix*: `compute_average_loss(..., global_batch_size=...)`.
#
# ## References and further reading
#
# 1. Ray, "Ray Train Overview", [docs.ray.io](https://docs.ray.io/en/latest/train/overview.html).
# 2. Meta, *Monarch*, repository meta-pytorch/monarch, [github.com](https://github.com/meta-pytorch/monarch).
# 3. Hugging Face, *Accelerate* documentation, class `DataLoaderConfiguration`, [huggingface.co](https://huggingface.co/docs/accelerate/package_reference/utilities).
# 4. DeepSpeed, "DeepSpeed Configuration JSON", section "Batch Size Related Parameters", [deepspeed.ai](https://www.deepspeed.ai/docs/config-json/).
# 5. A. Sergeev and M. Del Balso, "Horovod: fast and easy distributed deep learning in TensorFlow", arXiv:1802.05799, 2018; release 0.28.1, June 2023, [github.com](https://github.com/horovod/horovod/releases).
# 6. TensorFlow, module `tf.distribute`, [tensorflow.org](https://www.tensorflow.org/api_docs/python/tf/distribute).
# 7. Lightning AI, *Lightning Fabric* documentation, [lightning.ai](https://lightning.ai/docs/fabric/stable/).
# 8. Keras, `keras/src/optimizers/base_optimizer.py`, [github.com](https://github.com/keras-team/keras/blob/master/keras/src/optimizers/base_optimizer.py): the step divides the accumulated sum by the number of steps.
# 9. W. Liang and others, "TorchTitan: One-stop PyTorch native solution for production ready LLM pre-training", *International Conference on Learning Representations*, 2025, arXiv:2410.06511.
# 10. PyTorch, *torchtitan*, `torchtitan/config/parallelism.py` and `training.py` (the settings), `torchtitan/distributed/PARALLELISM_CONTEXT.md` (the mesh) and `torchtitan/models/common/attention/cp_attention.py`, as of autumn 2026, [github.com](https://github.com/pytorch/torchtitan).
# 11. A. Grattafiori and others (Llama Team), "The Llama 3 Herd of Models", arXiv:2407.21783, 2024. Section 3.3.2 and table 4.
