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
# # 12 When a rank dies
#
# **The one idea.** In synchronous training every living replica is a complete copy of the training state, so a death costs one replica and not the run. A checkpoint is for the day when too many replicas die: it must contain everything that the next step depends on, and the file must be complete.
#
# **You will be able to**
# - notice the death of a rank, shrink to the survivors, continue from the same weights, and measure what the death has changed;
# - say how batch size and learning rate change with one rank fewer;
# - write a checkpoint that contains everything that the next step depends on, and say what each part of it is for;
# - save a sharded model from all ranks at once while training continues, and load it on fewer ranks;
# - choose how often to save, with four ranks and with a hundred thousand;
# - use `torchrun --max-restarts`, and say how it differs from shrinking;
# - read a hang report and name the bug;
# - stop a rank in the middle of a cell, look inside it, and find where a wrong number comes from.
#
# **Prerequisites:** lesson 05 (synchronous SGD) and lesson 08 (DDP). Lesson 10b is needed only for the second half of section 7.
#
# **Time.** The notebook runs in about 45 s (*measured here*: 4 ranks on 2 cores). Allow 180 minutes for reading it and solving its six exercises. You can leave out sections 8, 9 and 11, because the rest does not depend on them.

# %%
from course_lib.cluster import start_cluster
from course_lib.teaching import check, compare, figures, hint, solution, yours_or_solution
from rank_by_rank.lesson_12.figures import loss_across_deaths, saving_interval

# %% tags=["nbval-ignore-output"]
cluster = start_cluster(n=4)

# %% [markdown]
# ## 1. How often does something break?
#
# A laptop hardly ever breaks. A server fails every few years, and so does a GPU. Let $T_\text{life}$ be the mean *lifetime* of one rank: the mean time until it fails. $R$ ranks fail $R$ times as often, so the mean time to the next failure of the whole job is $T_\text{fail} = T_\text{life} / R$. (This assumes that ranks fail independently, and that a failed rank is replaced.)
#
# *Published*: Meta counted 419 unexpected interruptions in 54 days of training Llama 3 on 16,384 GPUs [1].
#
# **Predict.** On average, how many hours passed between two interruptions? And what lifetime, in years, does this imply for a single GPU? Write `[hours, years]`.

# %%
prediction = None

# %%
hours_to_next = 54 * 24 / 419
lifetime_hours = hours_to_next * 16_384
lifetimes = [round(hours_to_next, 1), round(lifetime_hours / (24 * 365), 1)]
compare(prediction, lifetimes, within=0.1, source="By the published numbers")

# %% [markdown]
# The lifetime is nearly six years for one GPU together with its share of everything else, because the 419 interruptions had all kinds of causes, including network, software and hosts. The GPUs themselves, including their memory, caused 58.7% of them [1], which implies a lifetime of about ten years for a GPU alone. Such a GPU is reliable, but with sixteen thousand of them something fails every three hours. The lifetime of nearly six years gives these times to the next failure (*predicted*):

# %%
for ranks in (4, 1_000, 10_000, 100_000):
    hours = lifetime_hours / ranks
    print(f"{ranks:7,} ranks: {hours:9.1f} hours")

# %% [markdown]
# A training run of several weeks on $10^4$ ranks sees hundreds of deaths, and on $10^5$ ranks there is one every half hour. Pressing *restart* by hand is then no longer an option.
#
# ## 2. A training run to break
#
# We train a small network on the digits with DDP. Two choices let you *prove* something later:
#
# - all numbers are float64, with a relative rounding error of $10^{-16}$;
# - the batch of step $t$ depends only on $t$, not on the number of ranks. It has 96 samples, which 4, 3, 2 or 1 ranks can share evenly.

# %%
# %%px
import os
import signal
import time
from datetime import timedelta

import torch_mpi4py as mpi  # lets torch.distributed talk through MPI
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from course_lib.parallel.invariants import assert_matches_serial, assert_replicas_equal
from course_lib.training import data
from course_lib.training.loops import batches
from course_lib.teaching import yours_or_solution
from rank_by_rank.lesson_12.survivors import unwrapped

if not dist.is_initialized():
    dist.init_process_group("mpi4py", init_method="mpi://", timeout=timedelta(seconds=30))
training, test = data.load("digits")

# %%
# %%px
BATCH, STEPS_PER_EPOCH = 96, 14


def network():
    torch.manual_seed(0)
    layers = (nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    return nn.Sequential(nn.Flatten(), *layers).double()


def batch_of_step(step):
    """The numbers of the samples of this step's batch, whoever computes it."""
    epoch, within = divmod(step, STEPS_PER_EPOCH)
    return next(batches(len(training), BATCH, seed=epoch, first=within))


def my_share(step):
    """This rank's part of the batch, among the ranks that there are *now*."""
    images, labels = training[batch_of_step(step)[dist.get_rank() :: dist.get_world_size()]]
    return images.double(), labels


# %% [markdown]
# Next comes a function for one step, which also records the loss. A step's loss is the mean over the whole batch, so the ranks add up their shares of it. They do this *before* the update; section 5 says why.


# %%
# %%px
def train_step(ddp, optimizer, step):
    images, labels = my_share(step)
    optimizer.zero_grad()
    loss = F.cross_entropy(ddp(images), labels)
    loss.backward()  # DDP averages the gradients
    total = loss.detach() / dist.get_world_size()
    dist.all_reduce(total)
    losses[step] = total.item()
    optimizer.step()


def dies_in_backward(gradient):
    os.kill(os.getpid(), signal.SIGKILL)  # at once: nothing is tidied up, nobody is told


# %% [markdown]
# For later comparison, a single process trains on the same batches for 42 undisturbed steps.

# %%
# %%px
serial, serial_losses = network(), []
optimizer = torch.optim.SGD(serial.parameters(), lr=0.1, momentum=0.9)
for step in range(42):
    images, labels = training[batch_of_step(step)]
    optimizer.zero_grad()
    loss = F.cross_entropy(serial(images.double()), labels)
    loss.backward()
    optimizer.step()
    serial_losses.append(loss.item())
assert serial_losses[-1] < 0.5 * serial_losses[0], "it learns"

# %% [markdown]
# There is one thing that people remember too late: **before anything breaks, save something.** The program `scripts/elastic.py` trains on all ranks and writes a checkpoint every few steps. Here it runs 20 of its 40 steps on our four ranks, and leaves a checkpoint behind. It also runs all 40 steps in one go, and the notebook keeps the *checksum* of the weights (16 digits, which agree only if all bits are equal). Section 7 needs the checkpoint and the checksum. (If you go back from section 7 to an earlier cell, run the notebook again from section 2 onwards.)

# %%
folder = str(cluster.shared_folder())  # all ranks see it; the kernel's end removes it
cluster.view["folder"] = folder

# %%
# %%px
import runpy
from pathlib import Path

from course_lib.places import SCRIPTS

script = SCRIPTS / "elastic.py"
elastic = runpy.run_path(str(script))  # its functions, by name

undisturbed = elastic["train"](Path(folder, "undisturbed.pt"), steps=40, every=40)
halfway = elastic["train"](Path(folder, "run.pt"), steps=20, every=5)
assert undisturbed["checksum"] != halfway["checksum"]

# %%
undisturbed_checksum = cluster.view["undisturbed"][0]["checksum"]

# %% [markdown]
# ## 3. A rank dies
#
# In step 12 rank 2 kills itself in the *middle* of the backward pass, with `SIGKILL`, the signal that no program can catch. The same happens if the system runs out of memory and kills a process, or if a machine loses power. Because `bucket_cap_mb` is tiny, DDP sends the gradients in two messages. Rank 2 sends the first one before it dies; it never sends the second.
#
# **Predict.** What will the other three ranks do: (A) wait for 30 s, their group's deadline; (B) get an error at once; or (C) carry on with wrong gradients? Answer with a letter.

# %%
prediction = None

# %% tags=["raises-exception", "nbval-ignore-output"]
# %%px
model, losses, step = network(), {}, 0
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
ddp = DDP(model, bucket_cap_mb=0.001)
while step < 26:
    if step == 12:
        comm.barrier()  # so that all have done step 11
    if rank == 2 and step == 12:
        model[1].weight.register_hook(dies_in_backward)  # its gradient is the last to be ready
    train_step(ddp, optimizer, step)
    step += 1

# %% [markdown]
# They get an error at once: `RankFailedError`, which names the dead rank. How do they know? The launcher, here `mpiexec`, supervises the processes of a job. The operating system tells the launcher that a child process has died, and the launcher tells the other ranks. An MPI with *fault tolerance* turns this into an error, where a plain MPI would end all ranks. If a whole machine dies, its connections break, or its *heartbeat*, a message that only says "I am alive", fails to arrive. (The extension for this is ULFM, *user-level failure mitigation* [2]. Open MPI implements it, but no MPI standard contains it yet, not even 5.0. As of June 2026, two of its parts have passed the MPI Forum's final vote for a later version: revoking a communicator, and asking which ranks have failed. Shrinking and agreeing have not [6].)
#
# What do the survivors still have? Ask them; rank 2 can no longer answer. `cluster.shrink()` makes a new world of the ranks that are alive. They are renumbered from 0 without a gap, and keep all their variables.

# %%
cluster.shrink()
compare(prediction, "B", source="In the report above")

# %%
# %%px
print(f"{step} steps done, {len(losses)} losses remembered, rank {rank} of {world_size}")
assert (world_size, step, len(losses)) == (3, 12, 12)
assert_replicas_equal(model)
momentum = [state["momentum_buffer"] for state in optimizer.state.values()]
assert_replicas_equal({str(index): tensor for index, tensor in enumerate(momentum)})

# %% [markdown]
# Nothing is lost except the work on one batch. The replicas are equal bit for bit, momentum included, because the failed step was never completed: some gradients had already been averaged and some had not, but `optimizer.step()` runs only once all of them have been. So discard the gradients (`zero_grad` in `train_step` does this), wrap the model again, and repeat step 12. (First `unwrapped` removes the old DDP's hooks from the model, because they belong to a group that contains a dead rank.) `my_share` already divides the batch among the three ranks of the new world.
#
# **Predict.** Over the first 20 steps, what will be the largest difference between the losses of this run and those of the undisturbed single process? Write the order of magnitude, such as `1e-3`.

# %%
prediction = None

# %%
# %%px
ddp = DDP(unwrapped(ddp), bucket_cap_mb=0.001)
while step < 20:
    train_step(ddp, optimizer, step)
    step += 1
assert_replicas_equal(model)
far = max(abs(losses[step] - serial_losses[step]) for step in range(20))

# %% tags=["nbval-ignore-output"]
far = cluster.view["far"][0]
compare(prediction, far, within=10)
assert 0 < far < 1e-10

# %% [markdown]
# They differ by rounding errors only. (The limit of $10^{-10}$ leaves room for the rounding errors of 20 steps; a batch that is left out or used twice causes a difference of $10^{-3}$ or more.)
#
# ## 4. What changes with one rank fewer
#
# We kept the *global* batch of 96, so each survivor now takes 32 samples instead of 24. That is one of three options:
#
# | with R - 1 ranks | batch | learning rate | the run |
# |---|---|---|---|
# | keep the global batch | the same | the same | as if no rank had died; a step takes R/(R - 1) times as long |
# | keep the batch per rank | (R - 1)/R of the old one | (R - 1)/R of the old one (linear rule, lesson 05) | a different run, about as good; a step takes as long as before, but an epoch has more steps |
# | keep R shares, leave one out | (R - 1)/R of the old one | the same, with gradients *divided by R all the same* | a bug: the gradient is too small, and the dead rank's samples are never seen |
#
# Keeping the global batch needs memory for larger shares, or gradient accumulation. The shares also have to be equally large, or be weighted (lesson 04).
#
# **Predict.** Suppose we had kept 24 samples per rank. If four ranks trained with a learning rate of 0.1, at what rate should three ranks continue? And how many steps does an epoch of 1,437 samples then have, if the remainder is dropped? Write `[rate, steps]`.

# %%
prediction = None

# %%
rate, steps = 0.1 * (3 * 24) / (4 * 24), 1437 // (3 * 24)
compare(prediction, [rate, steps], within=1e-9, source="By the rule")
before, after = 0.1 * (1437 // 96), rate * steps
print(f"learning rate times steps in an epoch: before {before:.3g}, after {after:.3g}")

# %% [markdown]
# The last line shows why the rule is linear: over an epoch the weights move by about as much as before.
#
# ### Exercise 1: the rest of the epoch
#
# In the middle of an epoch there is one more question: *who* takes the samples that are left? `DistributedSampler` gave each of R ranks its own list. No survivor has the dead rank's list, and a new sampler for R - 1 ranks would begin the epoch again.
#
# Write `rest_of_epoch`. The list `order` contains the samples of this epoch in the order in which *all ranks together* go through them. The first `done` of them were processed before the death. Now there are `world_size` ranks. Return the list of samples that this rank still has to process, and leave `order` as it is. Every remaining sample must be processed exactly once, and the k-th samples of all ranks together must be the k-th group of `world_size` samples among those that are left.


# %% tags=["exercise"] exercise="12.rest_of_epoch"
def rest_of_epoch(order, done, rank, world_size):
    """Return the samples that this rank still has to do in this epoch, a list."""
    ### BEGIN SOLUTION
    return order[done:][rank::world_size]
    ### END SOLUTION


# %% tags=["check"]
check("12.rest_of_epoch")

# %% [markdown]
# Stuck? `hint("12.rest_of_epoch")`, `solution("12.rest_of_epoch")`.
#
# ## 5. A death at a worse moment
#
# We were lucky: all survivors were at the same step. Now let a rank die while it *sends* its part of the last all-reduce. Some of the others have received everything they need, so they finish the step and update their weights; the rest get the error. The survivors are then no longer replicas of each other.
#
# **Predict.** By how many steps can two survivors differ at most?

# %%
prediction = None

# %%
compare(prediction, 1, source="By the argument below")

# %% [markdown]
# By one: a rank that is ahead needs all others for its next all-reduce, and the dead rank will not take part. So the survivors have to compare how many steps each has done, and those that are behind take over the state of one that is ahead: weights, buffers (such as batch norm's averages) *and* momentum. (This is also why `train_step` adds up the losses before the update: otherwise a rank could have made the update without knowing the loss of the step.)
#
# ### Exercise 2: go on
#
# Write `go_on`, which every survivor calls after the shrink. Each survivor passes its own plain `model` (which also has a buffer), its `optimizer`, the number of steps that it has done, and the group of the survivors. The function returns the model, wrapped in DDP over that group, and the number of the next step, which must be the same on all ranks. In the check one survivor is a step ahead of the others, and you do not know which.


# %% tags=["exercise"] exercise="12.go_on"
# %%px
from torch.nn.parallel import DistributedDataParallel as DDP


def go_on(model, optimizer, steps_done, group):
    """Make the survivors equal to the one furthest on; return (ddp, next_step)."""
    ### BEGIN SOLUTION
    steps = [0] * dist.get_world_size(group)
    dist.all_gather_object(steps, steps_done, group=group)
    furthest = steps.index(max(steps))
    state = [model.state_dict(), optimizer.state_dict()]
    dist.broadcast_object_list(state, group=group, group_src=furthest)
    model.load_state_dict(state[0])
    optimizer.load_state_dict(state[1])
    return DDP(model, process_group=group), max(steps)
    ### END SOLUTION


# %% tags=["check"]
check("12.go_on")

# %% [markdown]
# Stuck? `hint("12.go_on")`, `solution("12.go_on")`.
#
# With this function a training loop can survive a death without anyone at the keyboard. `mpi.shrink()` does on the ranks what `cluster.shrink()` did from the notebook; then the loop calls your `go_on`, or the worked solution if yours is missing or not right yet. `noted` records when each action starts and ends.

# %%
# %%px
import json
from contextlib import contextmanager

from torch_mpi4py.tools.clocks import clock_offsets

ahead = clock_offsets(comm)[rank].offset  # of this rank's clock against rank 0's, by messages
spans = []  # (what, start, end), in seconds of rank 0's clock


def now():
    return time.perf_counter() - ahead


@contextmanager
def noted(what):
    started = now()
    try:
        yield
        spans.append((what, started, now()))
    except mpi.CommunicationError:
        spans.append(("waits in vain", started, now()))
        raise


def dies_and_tells(gradient):
    Path(folder, "last_words.json").write_text(json.dumps([spans, now()]))
    os.kill(os.getpid(), signal.SIGKILL)


# %%
# %%px
my_go_on = yours_or_solution("12.go_on")


def train_whoever_dies(model, optimizer, step, last):
    ddp = DDP(model, bucket_cap_mb=0.001)
    while step < last:
        try:
            with noted("step"):
                train_step(ddp, optimizer, step)
            step += 1
        except mpi.CommunicationError:
            with noted("shrink"):
                mpi.shrink()
            with noted("catch up, wrap"):
                ddp, step = my_go_on(unwrapped(ddp), optimizer, step, dist.group.WORLD)
    return step


# %% [markdown]
# Three ranks continue from step 20. In step 26 the new rank 1 dies, and the other two finish all 42 steps.
#
# **Predict.** How many milliseconds pass between the death and the end of the survivors' next complete step?

# %%
prediction = None


# %% tags=["nbval-ignore-output", "raises-exception"]
# %%px
def arm(step):
    """Let rank 1 die in the backward pass of this step, and not before."""
    passes = iter(range(20, step + 1))
    model[1].weight.register_hook(lambda g: dies_and_tells(g) if next(passes) == step else None)


if rank == 1:
    arm(26)
step = train_whoever_dies(unwrapped(ddp), optimizer, step, last=42)

# %% [markdown]
# The cell reports that rank 1 died; the other ranks finished the cell. Now the notebook has to adopt the new world too:

# %%
cluster.shrink()
assert len(cluster) == 2

# %%
# %%px
assert (world_size, step) == (2, 42)
assert_replicas_equal(model)
assert_matches_serial(model, serial, rtol=0, atol=1e-10)
everyones = [None] * world_size
dist.all_gather_object(everyones, losses)
curve = [next(seen[s] for seen in everyones if s in seen) for s in range(42)]
assert max(abs(a - b) for a, b in zip(curve, serial_losses, strict=True)) < 1e-10

# %% [markdown]
# After two deaths and 42 steps, the weights equal those of the undisturbed single process to within $10^{-10}$, as above. The next figure shows what the survivors did around the second death, and what the dead rank recorded last; all times come from this run.

# %% tags=["nbval-ignore-output"]
import json
from pathlib import Path

last_words, died = json.loads(Path(folder, "last_words.json").read_text())
survivors = cluster.view["spans"]
noticed = min(end for spans in survivors for what, _, end in spans if what == "waits in vain")
back = min(end for what, start, end in survivors[0] if what == "step" and start > died)
compare(prediction, round(1e3 * (back - died)), within=0.5, unit="ms")
assert died < noticed < back < died + 10, "generous, as the machine may be busy"
print(f"measured here: noticed after {1e3 * (noticed - died):.0f} ms")

# %% tags=["nbval-ignore-output"]
begin, end = died - 0.01, back + 0.01
lanes = {
    rank: [(what, max(a, begin), min(b, end)) for what, a, b in spans if b > begin and a < end]
    for rank, spans in enumerate((survivors[0], last_words, survivors[1]))
}
lanes = {r: [s for s in spans if s[0] != "waits in vain"] for r, spans in lanes.items()}
figures.timeline(
    lanes,
    start=begin,
    end=end,
    marks={"rank 1 dies": died, "noticed": noticed},
    ends={1: died},
    moves={"shrink", "catch up, wrap"},
    title="Detection, shrink, going on",
    alt="Timeline of three ranks. All do steps. Rank 1 dies, and its lane is empty from there. "
    "Ranks 0 and 2 wait, notice it, shrink, catch up and wrap the model, and do steps again.",
)

# %% [markdown]
# Ranks 0 and 2 wait for the rest of the gradients (hatched) until they learn that rank 1 is dead; then they shrink, and carry on with their steps. Most of the time goes into detecting the death and shrinking, which together take tens of milliseconds, or several hundred if the cores are busy, as in the stored run. And what does the loss look like over all 42 steps?

# %% tags=["nbval-ignore-output"]
serial_losses, curve = cluster.view["serial_losses"][0], cluster.view["curve"][0]
loss_across_deaths(curve, serial_losses, {12: 2, 26: 1}, ranks=4)

# %% [markdown]
# The points lie on the line of the single process. The loss curve alone does not show that half of the ranks are gone.
#
# ## 6. What a checkpoint must hold
#
# Shrinking needs a survivor. After a power cut, or when a job's time is up, only a file helps. What has to be in it? *Everything that the next step depends on.* To find out what that is, we leave out one part after another. The following training run has all the usual parts: weights, momentum, a learning-rate schedule, a place in the order of the samples, and dropout, which draws random numbers (separately on each rank).


# %%
# %%px
import copy


class Run:
    """A training that can be asked for all of its state, and be given it back."""

    def __init__(self):
        torch.manual_seed(rank)  # dropout differs from rank to rank
        layers = (nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 10))
        self.ddp = DDP(nn.Sequential(nn.Flatten(), *layers).double())
        self.optimizer = torch.optim.SGD(self.ddp.parameters(), lr=0.1, momentum=0.9)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 15, gamma=0.5)
        self.step = 0

    def train(self, last):
        for step in range(self.step, last):
            images, labels = my_share(step)
            self.optimizer.zero_grad()
            F.cross_entropy(self.ddp(images), labels).backward()
            self.optimizer.step()
            self.scheduler.step()
        self.step = last


# %%
# %%px
def state_of(run):
    parts = {
        "model": run.ddp.module.state_dict(),
        "optimizer": run.optimizer.state_dict(),
        "schedule": run.scheduler.state_dict(),
        "place in the data": run.step,
        "random generators": torch.get_rng_state(),
    }
    return copy.deepcopy(parts)  # on disk it would be a copy anyway


def resume(parts):
    """Return a fresh run that goes on from those parts of a state that are there."""
    run = Run()
    if "model" in parts:
        run.ddp.module.load_state_dict(parts["model"])
    if "optimizer" in parts:
        run.optimizer.load_state_dict(parts["optimizer"])
    if "schedule" in parts:
        run.scheduler.load_state_dict(parts["schedule"])
    run.step = parts.get("place in the data", 0)
    if "random generators" in parts:
        torch.set_rng_state(parts["random generators"])
    return run


# %% [markdown]
# The cell below takes 20 steps, copies the state, and takes 20 more without interruption. Then it repeats the last 20 steps from the copy, once with everything, and five times with a different part left out each time.
#
# **Predict.** In how many of the five cases do the weights differ from those of the uninterrupted run?

# %%
prediction = None


# %%
# %%px
def flat(run):
    return nn.utils.parameters_to_vector(run.ddp.parameters()).detach()


whole_run = Run()
whole_run.train(20)
saved = state_of(whole_run)
whole_run.train(40)

off = {}
for left_out in ("nothing", *saved):
    parts = {name: part for name, part in copy.deepcopy(saved).items() if name != left_out}
    resumed = resume(parts)
    resumed.train(resumed.step + 20)  # from step 0 again, if the place was lost
    off[left_out] = (flat(resumed) - flat(whole_run)).abs().max().item()
assert off.pop("nothing") == 0, "to the last bit"

# %% tags=["nbval-ignore-output"]
off = cluster.view["off"][0]
compare(prediction, sum(difference > 0 for difference in off.values()))
assert min(off.values()) > 1e-6
print("left out               largest difference of a weight after 20 more steps (measured here)")
for left_out, difference in sorted(off.items(), key=lambda entry: -entry[1]):
    print(f"{left_out:20} {difference:8.2g}")

# %% [markdown]
# All five matter, but you would notice only one of the omissions: without the model, the loss jumps back to where it began. Without momentum, schedule, place or generators the loss continues nearly as before, but it belongs to a different run. Such a run may see samples twice in an epoch, return to a larger learning rate, or be impossible to reproduce when you look for a bug.
#
# | part | without it |
# |---|---|
# | model (parameters *and* buffers) | training begins again |
# | optimizer | momentum, or Adam's averages, restart at zero: the first steps have the wrong size |
# | schedule | the warm-up, or the large learning rate of the beginning, comes again |
# | place in the data: epoch, step, seed of the order | some samples come twice, others never |
# | random generators *of every rank* | different dropout masks and augmentations; no exact repetition |
#
# With mixed precision, also save the gradient scaler's state; if your own data loader has a buffer, save that too. In sharded training (lesson 10b) every rank saves a part; section 7 shows how.
#
# ### Exercise 3: the file is there, or it is not
#
# A process may well die halfway through writing a checkpoint, for instance because the disk is full. Write `save_whole(path, write)`, which ensures that there is always a whole file at `path`: the old one, until the new one is complete. `write(file)` writes everything to an open binary file; if it raises an error, `save_whole` must raise one too. `path` is a `pathlib.Path`.
#
# You may need three calls. `os.replace(a, b)` renames file `a` to `b` and replaces any file that was there; other programs see either the old file or the new one. Data that a program has written may still be in one of two buffers on its way to the disk: `file.flush()` passes the data from the program to the system, and `os.fsync(file.fileno())` waits until the system has put it on the disk. Without these two calls the rename can reach the disk before the contents do, and after a power cut you find an empty file.


# %% tags=["exercise"] exercise="12.save_whole"
import os


def save_whole(path, write):
    """Replace the file at path by what write(file) writes; never leave less than a whole file."""
    ### BEGIN SOLUTION
    beside = path.with_name(path.name + ".partial")
    with open(beside, "wb") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)
    ### END SOLUTION


# %% tags=["check"]
check("12.save_whole")

# %% [markdown]
# Stuck? `hint("12.save_whole")`, `solution("12.save_whole")`. The course's `save_checkpoint` in `course_lib.training.checkpoint` writes its file in this way, saves all five parts with every rank's generators, and tells all ranks if rank 0 could not write.
#
# ## 7. Restart
#
# Four ranks wrote the checkpoint in section 2, after 20 of 40 steps. Now two ranks are left. Can they continue exactly as the four would have?

# %%
# %%px
from course_lib.training.checkpoint import CheckpointError

refused = None
try:
    elastic["train"](Path(folder, "run.pt"), steps=40, every=5)
except CheckpointError as error:
    refused = str(error.__cause__)
assert refused is not None
if rank == 0:
    print(refused)

# %% [markdown]
# No: the file contains the states of four ranks' random generators, and two ranks can't draw the random numbers of four. With `load_checkpoint(..., restore_generators=False)` they could continue, but with different dropout masks. For the masks of the undisturbed run we need four ranks. So discard the survivors, and start again:

# %% tags=["nbval-ignore-output"]
cluster.restart()
cluster.view["folder"] = folder

# %% [markdown]
# Everything on the ranks is gone: variables, functions, imports. That is why a training run that has to survive should be a *program in a file* with its state in another file, not a collection of cells. The program finds the checkpoint and continues by itself.
#
# **Predict.** At the end, in how many of the 16 digits will its checksum differ from that of the undisturbed run?

# %%
prediction = None

# %%
# %%px
import runpy
from datetime import timedelta
from pathlib import Path

from course_lib.places import SCRIPTS
import torch_mpi4py

if not dist.is_initialized():
    dist.init_process_group("mpi4py", init_method="mpi://", timeout=timedelta(seconds=30))
script = SCRIPTS / "elastic.py"
elastic = runpy.run_path(str(script))
resumed = elastic["train"](Path(folder, "run.pt"), steps=40, every=5)
print(f"began with step {resumed['began_with_step']}")
assert resumed["began_with_step"] == 20

# %%
pairs = zip(cluster.view["resumed"][0]["checksum"], undisturbed_checksum, strict=True)
differing = sum(one != other for one, other in pairs)
compare(prediction, differing)

# %% [markdown]
# In none. Half of the steps were done by processes that no longer exist, yet every bit is the same.

# %%
assert differing == 0

# %% [markdown]
# ### Checkpoints of shards
#
# So far every rank had everything. With `fully_shard` (lesson 10b) a rank has only its shards of the weights and the optimizer state. A death then destroys the only copy of some shards, and the survivors cannot continue without a checkpoint. Nor does any rank have the whole model, so none can write it without gathering it first. With `torch.distributed.checkpoint`, *DCP* for short, every rank writes its own shards [10].


# %%
# %%px
import shutil
import threading

import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves
from torch_mpi4py import Traffic

from course_lib.training import data

training, _ = data.load("digits")


# %%
# %%px
def sharded(mesh):
    """Return a model and its optimizer in shards over the ranks of the mesh."""
    torch.manual_seed(0)
    layers = (nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
    model = fully_shard(nn.Sequential(nn.Flatten(), *layers), mesh=mesh)
    return model, torch.optim.Adam(model.parameters(), lr=1e-3)


def train_shards(model, optimizer, steps):
    for step in steps:
        chosen = (96 * step + torch.arange(rank, 96, world_size)) % len(training)
        images, labels = training[chosen]
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()


# %%
# %%px
def state_of_shards(model, optimizer):
    """Return the names and this rank's shards, with DTensors that know which part they are."""
    return dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))


def put_together(state):
    """Return all tensors of a state, whole: for the test alone."""
    tensors = [leaf for leaf in tree_leaves(state) if isinstance(leaf, torch.Tensor)]
    return [t.full_tensor() if isinstance(t, DTensor) else t.clone() for t in tensors]


# %% [markdown]
# `async_save` copies the shards to separate memory and returns; a thread writes the copy while training continues. To show what this means, we use a writer that is as slow as we like: it writes nothing until it is told to.


# %%
# %%px
class HeldBack(dcp.FileSystemWriter):
    """Writes into a folder, but only after go.set()."""

    def __init__(self, path):
        super().__init__(path)
        self.go = threading.Event()

    def write_data(self, plan, planner):
        assert self.go.wait(30)
        return super().write_data(plan, planner)


# %% [markdown]
# First, ten steps on four ranks:

# %%
# %%px
model, optimizer = sharded(init_device_mesh("cpu", (world_size,)))
train_shards(model, optimizer, range(10))

# %% [markdown]
# Then comes `async_save`, then three more steps, and only then does the writer begin to write.
#
# **Predict.** What will be in the files: (A) the state after step 10, (B) the state after step 13, or (C) some of each? Answer with a letter.

# %%
prediction = None

# %%
# %%px
path = Path(folder, "shards")
if rank == 0:
    shutil.rmtree(path, ignore_errors=True)  # if the cell is run again
comm.barrier()
writer, apart = HeldBack(path), dist.new_group()
state = state_of_shards(model, optimizer)
at_the_save = put_together(state)
saving = dcp.async_save(state, storage_writer=writer, process_group=apart)
train_shards(model, optimizer, range(10, 13))
three_steps_on = put_together(state_of_shards(model, optimizer))
unfinished = not saving.done() and not (path / ".metadata").exists()
comm.barrier()  # all have looked
writer.go.set()
saving.result()  # waits, and raises what the thread raised
dist.destroy_process_group(apart)

# %% [markdown]
# Now suppose that ranks 2 and 3 are lost. (Here they merely take no part. After a real death the others would first shrink, as in section 3.) Ranks 0 and 1 build the same model in two shards, and load the checkpoint into it.

# %%
# %%px
two = DeviceMesh("cpu", [0, 1])  # all ranks make it, two are in it
equal_to = None
if rank < 2:
    smaller, its_optimizer = sharded(two)
    parts = state_of_shards(smaller, its_optimizer)  # load fills these in
    dcp.load(parts, checkpoint_id=path, process_group=two.get_group())
    both = {"model_state_dict": parts["model"], "optim_state_dict": parts["optimizer"]}
    set_state_dict(smaller, its_optimizer, **both)
    loaded = put_together(state_of_shards(smaller, its_optimizer))
    candidates = {"A": at_the_save, "B": three_steps_on}
    equal_to = [key for key, whole in candidates.items() if all(map(torch.equal, loaded, whole))]
    assert len(loaded) == len(at_the_save) == 24  # 6 tensors of weights; for each Adam has 3

# %%
found = cluster.view["equal_to"][0]
compare(prediction, found[0] if found else "C")

# %% [markdown]
# A: the weights and the optimizer state are, bit for bit, those after step 10, although there are only half as many ranks. Each tensor was cut in four and is now cut in two. `.metadata` says which file has which part of which tensor, and each rank reads what its own shards need.

# %%
assert cluster.view["equal_to"][:2] == [["A"], ["A"]]
assert cluster.view["unfinished"] == [True] * 4

# %% [markdown]
# What is safe while a save is under way?
#
# - Once `async_save` has returned, you may change the weights and the optimizer state, because the copy has been made. (If you pass your own stager as `async_stager`, it can copy in the background too. Then `async_save` returns an `AsyncSaveResponse`, and you have to wait for its `staging_completion` before the next `optimizer.step()`.)
# - The group that you pass to `async_save` belongs to the writing thread. Hence `dist.new_group()`: in a shared group the thread's calls would mix with those of training. The group needs a backend for CPUs, so if training uses NCCL, create it with `dist.new_group(backend="gloo")`, for example.
# - The checkpoint is not complete until `result()` has returned. Rank 0 writes `.metadata` last, so a folder without it is no checkpoint. Wait for `result()` before you start the next save, end the program or delete the previous checkpoint. And save into a new folder each time: in an old folder, the old `.metadata` would sit beside files that are being overwritten.
#
# **Predict.** The network has 301,066 parameters in float32, and Adam keeps two more numbers for each. How many bytes does each of the four ranks write? And how many would rank 0 have to receive if it wrote everything itself? Write `[written, received]`.

# %%
prediction = None

# %%
# %%px
from torch.distributed.checkpoint.state_dict import StateDictOptions

sizes = {file.name: file.stat().st_size for file in sorted(path.iterdir())}
mine = 3 * sum(p.to_local().nbytes for p in model.parameters())
with Traffic() as plans:
    dcp.save(state, checkpoint_id=Path(folder, "not asynchronous"))
whole_on_rank_0 = StateDictOptions(full_state_dict=True, cpu_offload=True)
with Traffic() as gathering:
    gathered = get_state_dict(model, optimizer, options=whole_on_rank_0)
gathered = sum(leaf.nbytes for leaf in tree_leaves(gathered) if isinstance(leaf, torch.Tensor))
handed = [sum(c.bytes for c in t.collectives.values()) for t in (plans, gathering)]

# %% tags=["nbval-ignore-output"]
sizes, mine, gathered = (cluster.view[name] for name in ("sizes", "mine", "gathered"))
compare(prediction, [sum(mine) // 4, sum(mine) * 3 // 4], within=0.05, source="By the shapes")
for name, size in sizes[0].items():
    print(f"{name:13} {size:9,} bytes")
plans, gathering = cluster.view["handed"][1]
print(f"handed over by rank 1: {plans:,} bytes in dcp.save, {gathering:,} to gather everything,")
print(f"after which rank 0 holds {gathered[0]:,} bytes")

# %%
for number in range(4):
    header = sizes[0][f"__{number}_0.distcp"] - mine[number]
    assert 0 < header < 0.06 * mine[number], "a file is a rank's shards, and a header for each"
    plans, gathering = cluster.view["handed"][number]
    assert mine[number] <= gathering < 1.05 * mine[number], "and padding, up to equal shards"
    assert plans < 0.06 * mine[number], "names and shapes, no weights"
assert sum(mine) == 3 * 4 * 301_066
assert gathered == [sum(mine) + 6 * 4, 0, 0, 0]  # and Adam's number of steps for 6 tensors

# %% [markdown]
# Each rank writes one file, with 12 bytes for each parameter in its quarter of the model, and between 1 and 2 kB of header for each tensor. The ranks exchange only plans of which rank writes what. To gather everything, rank 0 has to receive $(R - 1)/R$ of the state from the other $R - 1$ ranks, and then holds the whole state in its own memory, however many ranks there are. With the 70.55 billion parameters of lesson 10b that is 847 GB in the memory of one rank, and writing them from there takes 7 minutes at 2 GB/s (*assumed*). In shards on 1,024 ranks, each rank writes 0.83 GB at the same time as the others. This takes less than a second if the storage can accept 2 TB/s in total (Llama 3's could, *published* [1]). And if the save is asynchronous, training stops only while the copy in memory is made. Shards and `async_save` therefore shorten the time that training loses in one save ($\delta$ in the next section).

# %% [markdown]
# ## 8. How often to save
#
# If you save rarely, a failure destroys a lot of work. If you save often, saving takes up a lot of time. Let $\delta$ be the time that one save takes, $T_\text{fail}$ the mean time between failures of the whole job (section 1) and $\tau$ the time between saves, all in seconds. Every interval of $\tau$ costs $\delta$ for its save. On average, a failure comes every $T_\text{fail}$ seconds and costs half an interval. The share of time that is lost is therefore about
#
# $$\frac{\delta}{\tau} + \frac{\tau}{2\,T_\text{fail}}, \qquad \text{smallest at} \quad \tau = \sqrt{2\,\delta\,T_\text{fail}}.$$
#
# This is Young's formula [3]; Daly's [4] is more exact when $\tau$ is no longer small compared with $T_\text{fail}$.
#
# ### Exercise 4: the best interval
#
# Write `best_interval(save_s, lifetime_s, ranks)`, which returns the time between saves, in seconds, by Young's formula. One save takes `save_s` seconds, and a single rank lives `lifetime_s` seconds on average.


# %% tags=["exercise"] exercise="12.best_interval"
def best_interval(save_s, lifetime_s, ranks):
    """Return the seconds between saves that lose the least time."""
    ### BEGIN SOLUTION
    between_failures = lifetime_s / ranks
    return (2 * save_s * between_failures) ** 0.5
    ### END SOLUTION


# %% tags=["check"]
check("12.best_interval")

# %% [markdown]
# Stuck? `hint("12.best_interval")`, `solution("12.best_interval")`.
#
# Does the formula hold? Here is a *simulation* of a training run that needs `work` seconds of pure computation, on a machine that fails at random times (exponentially distributed, as for independent failures). After a failure, the restart takes a while, and everything since the last save has to be redone.

# %%
import numpy as np


def share_lost(interval, save_s, between_failures, restart_s, work, seed=0):
    """Simulate one training; return the share of its time that was no progress."""
    chance = np.random.default_rng(seed)
    clock, done, failure = 0.0, 0.0, chance.exponential(between_failures)
    while done < work:
        finished = clock + interval + save_s
        if finished <= failure:
            clock, done = finished, done + interval
        else:
            clock = failure + restart_s
            failure = clock + chance.exponential(between_failures)
    return 1 - done / clock


def share_expected(interval, save_s, between_failures, restart_s):
    """The exact mean: an interval takes (T_fail + restart) (exp((tau + save) / T_fail) - 1)."""
    tries = np.expm1((interval + save_s) / between_failures)
    return 1 - interval / ((between_failures + restart_s) * tries)


# %% [markdown]
# *Assumed*: a save takes 60 s and a restart 5 minutes; lifetimes are as published for Llama 3. The simulated training runs are long: 1,500 times the mean time between failures.
#
# **Predict.** At the best interval, what share of the time is lost with 10,000 ranks, and what share with 100,000? Give two fractions, `[a, b]`.

# %%
prediction = None

# %%
SAVE, RESTART = 60.0, 300.0
lifetime_hours = 54 * 24 / 419 * 16_384  # section 1
my_interval = yours_or_solution("12.best_interval")  # your function, or the worked solution
simulated, formula, best = {}, {}, {}
for ranks in (10_000, 100_000):
    label, between = f"{ranks:,} ranks", lifetime_hours * 3600 / ranks
    settings = (SAVE, between, RESTART)
    best[label] = my_interval(SAVE, lifetime_hours * 3600, ranks)
    intervals = best[label] * np.geomspace(0.1, 6, 10)
    losses = [share_lost(t, *settings, work=1500 * between) for t in intervals]
    simulated[label] = (intervals, losses)
    formula[label] = lambda t, settings=settings: share_expected(t, *settings)
    assert np.allclose(losses, formula[label](intervals), rtol=0.1)
shares = [float(round(formula[label](best[label]), 2)) for label in best]
compare(prediction, shares, within=0.2, source="By the formula")

# %% tags=["nbval-ignore-output"]
saving_interval(simulated, formula, best)

# %% [markdown]
# The points show the simulation, the solid lines the exact mean, and the dashed lines Young's interval. That interval is at the minimum for 10,000 ranks, and still close to it for 100,000. (With 1,500 failures the simulated mean is accurate to about $1/\sqrt{1500}$, or 3%; we allow 10%.)
#
# With 10,000 ranks and a good interval, a tenth of the time is lost. With 100,000 ranks, the same lifetimes and the same 60 s per save, more than a third is lost *at best*. Then something else has to change:
#
# - cheaper saves: save into the memory of a neighbouring machine, or in the background while training continues; with a tenth of $\delta$, saves and repeated work cost about a third as much time;
# - cheaper failures: continue with the survivors (sections 3 to 5), or keep spare machines ready, so that the restart takes seconds;
# - fewer failures: replace parts that fail often.
#
# Although a failure came every three hours, Llama 3's run spent more than 90% of its time on training [1, *published*].
#
# ## 9. By comparison: `torchrun`
#
# `torchrun` starts one process per GPU, and an *agent* on each machine supervises these processes. If one dies, the agent ends *all* of them. With `--max-restarts N` it then starts all of them again, up to N times; the default is 0. Nothing in the processes' memory survives; the program has to find its checkpoint, as `scripts/elastic.py` does. With `--die-at 12`, the last rank of this program kills itself in step 12, once. The program saves every 5 steps.
#
# **Predict.** At which step will the restarted ranks begin?

# %%
prediction = None

# %%
import json
import subprocess
import sys
import time
from pathlib import Path

from course_lib.places import SCRIPTS
from torch_mpi4py import launch

folder = str(cluster.shared_folder())  # a new one
cluster.view["folder"] = folder
script = SCRIPTS / "elastic.py"
torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
torchrun += ["--nproc-per-node", "2", "--max-restarts", "1", str(script)]


def terminal(*options):
    """Run torchrun as a terminal would, at most 90 s; return its result and its complaints."""
    variables = launch.environment() | {"CUDA_VISIBLE_DEVICES": ""}  # on the processor
    command = [*torchrun, *map(str, options)]
    ran = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=90)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return json.loads(ran.stdout.strip().splitlines()[-1]), ran.stderr


# %% tags=["nbval-ignore-output"]
print("$ torchrun --nproc-per-node 2 --max-restarts 1 scripts/elastic.py run2.pt --die-at 12")
started = time.perf_counter()
by_torchrun, complaints = terminal(Path(folder, "run2.pt"), "--die-at", 12)
for line in complaints.splitlines():
    if "exitcode" in line:
        print("the agent says:", line.partition("] ")[2].partition(" of binary")[0])
print(by_torchrun)
print(f"measured here: {time.perf_counter() - started:.1f} s in all")

# %%
compare(prediction, by_torchrun["began_with_step"])

# %% [markdown]
# Steps 10 and 11 were done twice. Is the result still right? Two of our engines run the same training over MPI, without a death. (With two ranks there is only one order of summation, so MPI and gloo give the same bits: lesson 08.)

# %%
assert (by_torchrun["restarts"], by_torchrun["began_with_step"]) == (1, 10)

# %%
# %%px
import runpy
from datetime import timedelta
from pathlib import Path

from course_lib.places import SCRIPTS
import torch_mpi4py

if not dist.is_initialized():
    dist.init_process_group("mpi4py", init_method="mpi://", timeout=timedelta(seconds=30))
elastic = runpy.run_path(str(SCRIPTS / "elastic.py"))

# %%
# %%px
pair = dist.new_group([0, 1])
if rank < 2:
    of_two = elastic["train"](Path(folder, "of_two.pt"), steps=40, every=40, group=pair)

# %%
assert cluster.view.client[0]["of_two"]["checksum"] == by_torchrun["checksum"]

# %% [markdown]
# | | shrink (sections 3 to 5) | `torchrun --max-restarts` |
# |---|---|---|
# | who notices | MPI, which tells every rank | the agent, which watches its child processes |
# | the survivors | keep weights and variables, continue | are ended too |
# | lost | the current step | everything since the last checkpoint, and the time to start again |
# | number of ranks afterwards | one fewer | the same; with `--nnodes 2:4` any from 2 to 4 machines |
# | your program | catches an error, shrinks, catches up | finds a checkpoint when it starts |
# | needs | an MPI with fault tolerance | nothing; works with NCCL and gloo |
#
# One trap, found while this lesson was written: after a restart the agent's store still contains the addresses of the old processes, and PyTorch 2.13 may give these to the new ones, which then can't connect. `course_lib.parallel.launching` stores addresses under a different name after each restart; for your own programs start `torchrun` with `TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1`.
#
# Some frameworks also offer what the first column describes (elastic Horovod keeps the state in memory and continues with the ranks that are left), and large training runs use both methods: survivors for a single death, checkpoints for the rest.
#
# Shrinking is becoming possible on GPUs too. Since version 2.27 NCCL has been able to *shrink* a communicator, and later versions can also *revoke* one [7]; both terms come from ULFM. PyTorch has `torch.distributed.shrink_group`. *torchft* [8] does for DDP and for sharded training what `train_whoever_dies` does here: in each step it asks which replicas are alive, continues with those, and lets a restarted replica fetch the weights from a living one.
#
# ## 10. When nobody dies, and nothing moves
#
# A death is at least noticed. A *hang* is worse: a rank is alive, but does not make the call that the others wait for. In the next cell a send and a receive do not match. `--limit 3` gives the cell 3 s instead of 60.
#
# **Predict.** How many of the four ranks will be waiting after 3 s? And what is the smallest number of ranks on which you must change the code to fix the bug? Write `[waiting, to change]`.

# %%
prediction = None

# %% tags=["raises-exception", "nbval-ignore-output"]
# %%px --limit 3
message = torch.zeros(3)
if rank == 0:
    dist.send(message, dst=1, tag=5)
if rank == 1:
    dist.recv(message, src=0, tag=6)
dist.barrier()
print("done")

# %%
compare(prediction, [4, 1], source="In the report above")

# %% [markdown]
# After 3 s a *hang report* appears, and the ranks are free again. It has one line per rank: what the rank was doing, with which other rank, with what data, and in which line of your cell. Below these lines, it tries to name the bug. Read a report like this:
#
# 1. **Who is not waiting?** If one rank has finished, has raised an error, is computing or is dead, then the others wait for it, directly or through a chain. Follow the chain: 2 waits for 1, 1 waits for 0, 0 waits for 3.
# 2. **Does the chain close?** If every rank waits for another, and the chain forms a circle, it is a *deadlock*.
# 3. **Which two calls were meant for each other?** Compare peer, tag, shape, dtype and line, word by word.
# 4. **Most lines are consequences.** Ranks 2 and 3 wait in a barrier, but they did not cause the hang. To fix it, change the tag on either rank 0 or rank 1 to the other's: the report can't know which tag was meant.
#
# Outside this course you get less help. PyTorch's own groups time out after 10 minutes with NCCL and after 30 with gloo, unless `init_process_group(timeout=...)` says otherwise, and the error names the operation, not the bug. PyTorch's *flight recorder* [9] tells you more: each rank keeps its last collectives in a ring buffer in memory, with sizes, states and lines of code, and writes them to a file after a time-out. A script then compares the ranks' files and asks the same questions as above.
#
# All variables are still there, and the ranks can communicate again:

# %%
# %%px
total = torch.ones(())
dist.all_reduce(total)
assert total == world_size
assert resumed["began_with_step"] == 20

# %% [markdown]
# ### Exercise 5: name the bugs
#
# Here are three reports from four ranks, without the sentence that names the bug.

# %%
from rank_by_rank.lesson_12.hang_reports import BUGS, REPORTS

for name, report in REPORTS.items():
    print(f"report {name}\n{report}\n")
print("possible bugs:", ", ".join(BUGS))

# %% [markdown]
# Write `name_the_bugs`. For each report it returns the bug and the set of ranks whose lines of code you would have to change, for example `{"A": ("deadlock", {0, 1}), ...}`. (If a change on either of two ranks would be enough, name one of them or both.)


# %% tags=["exercise"] exercise="12.name_the_bugs"
def name_the_bugs():
    """Return {"A": (bug, ranks), "B": ..., "C": ...}; ranks is a set of numbers."""
    ### BEGIN SOLUTION
    return {
        "A": ("skipped collective", {2}),
        "B": ("endless loop", {3}),
        "C": ("wrong tag", {0, 1}),
    }
    ### END SOLUTION


# %% tags=["check"]
check("12.name_the_bugs")

# %% [markdown]
# Stuck? `hint("12.name_the_bugs")`, `solution("12.name_the_bugs")`.
#
# ## 11. When nothing stops, and the numbers are wrong
#
# A death is noticed, and a hang is reported. A wrong number is neither noticed nor reported, and an all-reduce carries it to every rank. Here 13 rows are dealt out: ranks 0 to 2 get four each, and rank 3 gets the last one. Each rank scales its columns to mean 0 and standard deviation 1, and computes a gradient. Then the gradients are summed.
#
# **Predict.** The sum turns out to be `nan`, "not a number". On how many ranks is the sum `nan`, and on how many was the rank's own gradient `nan` before the all-reduce? Write `[sum, own]`.

# %%
prediction = None

# %%
# %%px
batch = torch.rand(13, 3, generator=torch.Generator().manual_seed(12))
mine = batch[4 * rank : 4 * (rank + 1)]


def scaled(rows):
    centred = rows - rows.mean(0)
    variance = centred.square().sum(0) / (len(rows) - 1)
    return centred / variance.sqrt()


def gradient_of(rows):
    weights = torch.ones(3, requires_grad=True)
    (scaled(rows) @ weights).square().sum().backward()
    return weights.grad


# %%
# %%px
total = gradient_of(mine)
dist.all_reduce(total)
print(total)

# %%
# %%px
own = gradient_of(mine)
counted = [comm.allreduce(int(one.isnan().any())) for one in (total, own)]

# %%
compare(prediction, cluster.view["counted"][0])

# %% [markdown]
# One rank produced the `nan`, and now every rank has it, so the sum does not show where it came from. Check the numbers before they are mixed: an `assert` before the all-reduce stops the rank whose numbers are wrong, and no other. (For the forward and backward passes there are other tools, such as `torch.autograd.detect_anomaly()`. On a rank they work as in any other process.)

# %% tags=["raises-exception", "nbval-ignore-output"]
# %%px
own = gradient_of(mine)
assert own.isfinite().all(), "my own gradient is not finite"
dist.all_reduce(own)

# %% [markdown]
# Rank 3 raised the error, and the others waited for it until they were freed. `cluster.where()` still shows what each rank was doing when the cell ended. You can call it at any time, even while a cell runs (`%%px --noblock`), hangs, or computes for too long:

# %% tags=["nbval-ignore-output"]
cluster.where()

# %% [markdown]
# **Look inside the rank.** `%pxdebug 3` opens a prompt on rank 3's latest error, as `%debug` does for an error in the notebook. It takes the commands of Python's debugger: `w` shows the call stack, `u` and `d` move up and down in it, `p x` prints `x`, and `q` leaves. Run it in a cell of your own (a prompt waits for input, so this notebook cannot contain it):
#
# ```
# %pxdebug 3
# rank 3 raised AssertionError: my own gradient is not finite
# rank 3> p mine.shape, own
# (torch.Size([1, 3]), tensor([nan, nan, nan]))
# rank 3> q
# ```
#
# **Stop before it happens.** The error came after the mistake: `scaled` had returned long before. A *breakpoint* stops a rank in the middle of its cell. Put `breakpoint()` into any function, either for all ranks or, after an `if`, for one rank. Here it becomes the first line of `scaled`:
#
# ```
#     if rank == 3: breakpoint()
# ```
#
# Run that cell again, and the next. The notebook shows where each rank is, and asks what rank 3 should do. `n` goes to the next line, `s` steps into a call, and `c` continues. The others wait in their all-reduce, and no limit or deadline runs while you look:
#
# ```
# rank  state            what                          where           for
# 0     waiting          all_reduce, SUM of 3 float32  cell 9, line 3  0.6 s
# 1     waiting          all_reduce, SUM of 3 float32  cell 9, line 3  0.6 s
# 2     waiting          all_reduce, SUM of 3 float32  cell 9, line 3  0.6 s
# 3     at a breakpoint                                cell 8, line 7
#
# > cell 8(7)scaled()
# ----> 7     if rank == 3: breakpoint()
#       8     centred = rows - rows.mean(0)
#       9     variance = centred.square().sum(0) / (len(rows) - 1)
#      10     return centred / variance.sqrt()
# rank 3> n
# rank 3> n
# rank 3> p centred
# tensor([[0., 0., 0.]])
# rank 3> n
# rank 3> p variance
# tensor([nan, nan, nan])
# rank 3> p len(rows)
# 1
# ```
#
# If several ranks have stopped, `rank 1` switches to rank 1, `ranks` shows all ranks, and `all n` makes all stopped ranks execute the next line, which is how you step over an all-reduce. With `q`, or the stop button, you end the cell on all ranks.
#
# So a single row has no spread: its variance is 0 divided by 0. But that is only the symptom. If every rank had four rows, there would be no `nan`, and the numbers would still be wrong: each rank would measure with its own ruler, the mean and the spread of its own four rows. One process would use the mean and the spread of all rows. (The same holds for batch norm: see `SyncBatchNorm` in lesson 08.)
#
# ### Exercise 6: one ruler for all
#
# Write `standardise`, which standardises the ranks' rows as a single process with all the rows would: over the rows of all ranks, each column then has mean 0 and standard deviation 1. (For the variance, divide the sum of squares by one less than the number of all rows, as above.) A rank may have one row, or none, and must still take part.


# %% tags=["exercise"] exercise="12.standardise"
# %%px
def standardise(comm, rows):
    """Standardise this rank's rows, (n, 3), by the mean and spread of all ranks' rows."""
    ### BEGIN SOLUTION
    count = comm.allreduce(len(rows))
    centred = rows - comm.allreduce(rows.sum(0)) / count
    variance = comm.allreduce(centred.square().sum(0)) / (count - 1)
    return centred / variance.sqrt()
    ### END SOLUTION


# %% tags=["check"]
check("12.standardise")

# %% [markdown]
# Stuck? `hint("12.standardise")`, `solution("12.standardise")`. If the check finds something that you can't explain, put a `breakpoint()` into your function and run the check again: the ranks stop there too.
#
# ## Recap
#
# | | what to remember |
# |---|---|
# | $T_\text{fail} = T_\text{life}/R$ | the job fails $R$ times as often as one of its $R$ ranks |
# | detection | the launcher notices the death; survivors get `RankFailedError` at once |
# | `cluster.shrink()`, `mpi.shrink()` | a new world made of the survivors; variables stay; ranks get new numbers |
# | going on | all ranks take the step number, weights *and* momentum from the rank that is furthest on; new DDP; batch shared out again |
# | R - 1 ranks | same global batch, same rate; or a smaller batch, rate times (R - 1)/R |
# | checkpoint | model, optimizer, schedule, place in the data, every rank's generators |
# | writing it | to a file beside the old one; flush, `fsync`, rename |
# | shards | `dcp.async_save` with its own group; every rank writes its part; `.metadata` last; loads on any number of ranks |
# | how often | $\tau = \sqrt{2\,\delta\,T_\text{fail}}$ |
# | `torchrun --max-restarts` | all ranks are ended and started again; the program finds its checkpoint |
# | hang report | who is not waiting? does the chain close? which two calls do not match? |
# | a wrong number | check on each rank before numbers are mixed; an all-reduce hides which rank produced it |
# | `cluster.where()`, `%pxdebug 3`, `breakpoint()` | where all ranks are; a rank's latest error; a rank in the middle of its cell |
#
# **Break it on purpose.** *Symptom*: after a death the loss behaves as it should for a few steps, and then the replicas' losses drift apart. *Diagnosis*: call `assert_replicas_equal(model)` after each step. The weights first differ one step after the new DDP was created, so they were equal at first and then updated differently: the momentum was not transferred. *Fix*: broadcast the optimizer's state too. Try it: take `optimizer` out of your `go_on`.
#
# **Next:** lesson 13 runs all this on several machines.
#
# ## References and further reading
#
# 1. A. Grattafiori and others (Llama Team), "The Llama 3 Herd of Models", arXiv:2407.21783, 2024. Section 3.3.4 and table 5: what failed, and how often; section 3.3.1: the storage.
# 2. W. Bland, A. Bouteiller, T. Herault, G. Bosilca and J. Dongarra, "Post-failure recovery of MPI communication capability: Design and rationale", *International Journal of High Performance Computing Applications* 27(3), 244–254, 2013. ULFM: revoke, shrink, agree.
# 3. J. W. Young, "A first order approximation to the optimum checkpoint interval", *Communications of the ACM* 17(9), 530–531, 1974.
# 4. J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", *Future Generation Computer Systems* 22(3), 303–312, 2006.
# 5. PyTorch, "torchrun (Elastic Launch)", [docs.pytorch.org](https://docs.pytorch.org/docs/stable/elastic/run.html); and "Reproducibility", for other reasons why two runs differ.
# 6. MPI Forum, "ULFM Fault Tolerance", slices 1 (revoke), 2 (agree) and 3 (shrink), [mpi-issues 581](https://github.com/mpi-forum/mpi-issues/issues/581), [582](https://github.com/mpi-forum/mpi-issues/issues/582) and [583](https://github.com/mpi-forum/mpi-issues/issues/583).
# 7. NVIDIA, "NCCL User Guide", sections "Shrinking a communicator" and "Fault Tolerance", [docs.nvidia.com](https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/usage/communicators.html).
# 8. PyTorch, [torchft](https://github.com/meta-pytorch/torchft): "Easy Per Step Fault Tolerance for PyTorch".
# 9. PyTorch tutorials, ["Flight Recorder for Debugging Stuck Jobs"](https://docs.pytorch.org/tutorials/prototype/flight_recorder_tutorial.html).
# 10. PyTorch, "Distributed Checkpoint", [docs.pytorch.org](https://docs.pytorch.org/docs/stable/distributed.checkpoint.html). `async_save`, stagers, and loading on another number of ranks.
