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
# # 10 Models in stages
#
# **The one idea.** If a model is too large for one device, you can cut it between its layers: each rank holds some of the layers and passes their output to the next rank. The batch goes through in small pieces, one after another, as on an assembly line; otherwise the ranks would spend most of their time waiting for each other.
#
# **You will be able to**
# - cut a transformer into stages, train it on four ranks, and measure by how much its weights differ from those of a single process;
# - write GPipe and 1F1B yourself, and run them with `torch.distributed.pipelining`;
# - predict how long ranks are idle, and how many activations they hold;
# - trade memory against computation, layer by layer: keep all activations, recompute all of them, or choose which to keep;
# - read the diagrams of interleaved and zero-bubble schedules, and say why PipeDream keeps several versions of its weights;
# - combine a pipeline with data parallelism on a 2 x 2 mesh.
#
# **Prerequisites:** lesson 04 (the backward pass through a graph) and lesson 08 (DDP).
#
# **Time.** The notebook runs in about 40 s (*measured here*: 4 ranks on 2 cores). Allow 160 minutes, including the three exercises; the end of section 4 is a good place for a break.

# %%
from course_lib.cluster import start_cluster
from course_lib.teaching import check, compare, hint, solution, yours_or_solution
from rank_by_rank.lesson_10 import pipeline_schedules as schedules
from rank_by_rank.lesson_10.figures import pipeline

# %% tags=["nbval-ignore-output"]
cluster = start_cluster(n=4)

# %% [markdown]
# The model is a small transformer with 8 blocks. It reads the 8 rows of a digit as 8 tokens. (Lesson 10b takes a block apart. Here you only need to know that the input and the output of a block have 64 numbers per token.) Large language models are cut in the same way because they have the same parts, only larger: an embedding, many identical blocks and a classifier over words. Our model computes in float64, so a mistake can't hide among rounding errors.

# %%
# %%px
import time
from datetime import timedelta

import torch_mpi4py  # lets torch.distributed talk through MPI
from torch import nn
from torch.nn import functional as F
from torch_mpi4py import MPI, Traffic
from torch_mpi4py.tools.clocks import clock_offsets

from course_lib.parallel.invariants import assert_replicas_equal
from course_lib.training import data
from course_lib.training.models import parameter_count
from course_lib.training.transformer import Transformer
from rank_by_rank.lesson_10 import pipeline_schedules as schedules
from rank_by_rank.lesson_10.pipeline_schedules import Placed, Task

if not dist.is_initialized():
    dist.init_process_group("mpi4py", init_method="mpi://", timeout=timedelta(seconds=30))
training, _, _ = data.load_available("digits")


# %%
# %%px
def new_model():
    """The same weights on every rank, and in every call."""
    torch.manual_seed(0)
    return Transformer(size=8, width=64, heads=4, depth=8).double()


def batch(step, part=0, parts=1):
    """Part number `part` of `parts` of the 64 samples of this step."""
    images, labels = training[64 * step : 64 * (step + 1)]
    return images.double().chunk(parts)[part], labels.chunk(parts)[part]


# %% [markdown]
# ## 1. Stages
#
# A *stage* is a run of consecutive layers on one rank. The first stage also has the embedding, and the last one the classifier.


# %%
# %%px
class Stage(nn.Module):
    """Stage number `number` of `stages` of a model; the model's own parameters, not copies."""

    def __init__(self, model, number, stages):
        super().__init__()
        count = len(model.blocks) // stages
        self.first, self.last = number == 0, number == stages - 1
        self.blocks = model.blocks[count * number : count * (number + 1)]
        if self.first:
            self.embedding, self.position = model.embedding, model.position
        if self.last:
            self.norm, self.classifier = model.norm, model.classifier

    def forward(self, x):
        if self.first:
            x = self.embedding(x.squeeze(1)) + self.position
        for block in self.blocks:
            x = block(x)
        return self.classifier(self.norm(x).mean(dim=1)) if self.last else x


# %%
# %%px
model = new_model()
stage = Stage(model, rank, world_size)
share = parameter_count(stage) / parameter_count(model)
images, _ = batch(0)
x = images
for number in range(world_size):
    x = Stage(model, number, world_size)(x)
assert torch.equal(x, model(images)), "one stage after the other is the model"
print(f"rank {rank} has {parameter_count(stage):,} of {parameter_count(model):,} parameters")

# %% [markdown]
# So each rank needs about a quarter of the memory for weights, gradients and optimizer state. In the forward pass only *activations*, the outputs of layers, travel from rank to rank, and in the backward pass only their gradients. The output of a block has samples · tokens · width numbers, here 64 · 8 · 64. Stages have an advantage here: the traffic does not grow with the number of weights, and each rank talks to at most two neighbours. (Section 3 counts the traffic.)
#
# **Predict.** The batch of 64 goes forward through ranks 0, 1, 2, 3, and its gradient goes back through 3, 2, 1, 0. For what fraction of the time are the four ranks idle, on average? Write a number from 0 to 1.

# %%
prediction = None

# %%
one_batch = schedules.times(schedules.gpipe(4, 1), {"F": 1, "B": 2})
compare(prediction, schedules.bubble(one_batch), within=0.01, source="By the schedule")
pipeline(one_batch, "One batch through four stages")

# %% [markdown]
# The ranks are idle for three quarters of the time: one works while three wait. (In the code, F is a forward pass and B a backward pass. B is drawn twice as long as F because the backward pass has two matrix products for each one in the forward pass: the output's gradient times the weights gives the input's gradient, and the output's gradient times the input gives the weights' gradient.) You pay for four devices, and training is no faster than on one. But at least the model fits. This is called *naive model parallelism*.
#
# ## 2. Micro-batches
#
# Cut the batch into M *micro-batches*, and let rank 0 begin the second one as soon as it has passed on the first. The loss is a mean over samples, so the loss of the batch is the mean of the losses of M equal micro-batches. You divide each loss by M, and the gradients add up (lesson 04). Nothing is approximated: the optimizer takes one step, after all micro-batches. This is *GPipe* (*published* [1]):

# %%
filled = schedules.times(schedules.gpipe(4, 8), {"F": 1, "B": 2})
pipeline(filled, "GPipe, four stages, eight micro-batches")

# %% [markdown]
# The share of time in which the ranks are idle is called the *bubble*. Let K be the number of stages and $T_\text{micro}$ the time that one stage takes for the forward and backward passes of one micro-batch. Every rank works for M $T_\text{micro}$. It also waits three times: before its first forward pass it waits for the earlier stages, after its last forward pass for the later ones, and after its last backward pass for the earlier ones again. On every rank these waits add up to K - 1 times $T_\text{micro}$, so the whole step takes (M + K - 1) $T_\text{micro}$, and
#
# $$\text{bubble} = \frac{(M + K - 1)\,T_\text{micro} - M\,T_\text{micro}}{(M + K - 1)\,T_\text{micro}} = \frac{K - 1}{M + K - 1}.$$

# %%
for micro_batches in (1, 2, 4, 8, 16, 32):
    drawn = schedules.bubble(schedules.times(schedules.gpipe(4, micro_batches), {"F": 1, "B": 2}))
    formula = 3 / (micro_batches + 3)
    print(f"M = {micro_batches:2}: {drawn:6.1%} by the schedule, {formula:6.1%} by the formula")
    assert abs(drawn - formula) < 1e-12

# %% [markdown]
# ### Exercise 1: how many micro-batches
#
# Write `micro_batches_for(stages, most)`, which returns the smallest number of micro-batches for which the bubble is at most the fraction `most` of the time (0 < `most` < 1).


# %% tags=["exercise"] exercise="10.micro_batches_for"
def micro_batches_for(stages, most):
    """Return the smallest M for which the bubble of so many stages is at most this fraction."""
    ### BEGIN SOLUTION
    micro_batches = 1
    while (stages - 1) / (micro_batches + stages - 1) > most:
        micro_batches += 1
    return micro_batches
    ### END SOLUTION


# %% tags=["check"]
check("10.micro_batches_for")

# %% [markdown]
# Stuck? `hint("10.micro_batches_for")`, `solution("10.micro_batches_for")`.
#
# ## 3. GPipe by hand
#
# A rank does two things with micro-batch m: a forward pass, with the activations from the previous rank, and a backward pass, with the gradient from the next rank. In between it has to hold what autograd needs: the input and the output of the stage. Sends must not block (hence `isend`), or two neighbours that send to each other would deadlock (lesson 01). To draw a figure we record each task: `Task("F", m)` names the forward pass of micro-batch m, and `Placed` adds the times at which it began and ended.


# %%
# %%px
ahead = clock_offsets(comm)[rank].offset  # of this rank's clock against rank 0's, by messages


def now():
    return time.perf_counter() - ahead


# %%
# %%px
class Pipe:
    """What one rank does in a step of a pipeline over the ranks `members`."""

    def __init__(self, stage, micro_batches, members, shape=(8, 64)):
        self.stage, self.micro_batches, self.shape = stage, micro_batches, shape
        number = members.index(rank)
        self.before = members[number - 1] if number else None
        self.after = members[number + 1] if number + 1 < len(members) else None
        self.held, self.sent, self.losses, self.placed = {}, [], [], []

    def receive(self, source):
        x = torch.empty(len(self.micro_batches[0][1]), *self.shape, dtype=torch.float64)
        dist.recv(x, source)
        return x

    def forward(self, m):
        images, labels = self.micro_batches[m]
        x = images if self.before is None else self.receive(self.before).requires_grad_()
        start = now()
        y = self.stage(x)
        if self.after is None:
            y = F.cross_entropy(y, labels) / len(self.micro_batches)
            self.losses.append(y.item())
        self.placed.append((Task("F", m), start, now()))
        if self.after is not None:
            self.sent.append(dist.isend(y.detach(), self.after))
        self.held[m] = x, y

    def backward(self, m):
        gradient = None if self.after is None else self.receive(self.after)
        start = now()
        x, y = self.held.pop(m)
        y.backward(gradient)
        self.placed.append((Task("B", m), start, now()))
        if self.before is not None:
            self.sent.append(dist.isend(x.grad, self.before))

    def end(self):
        for work in self.sent:
            work.wait()


# %%
# %%px
def gpipe(pipe):
    """One step, all forwards first."""
    numbers = range(len(pipe.micro_batches))
    for m in numbers:
        pipe.forward(m)
    for m in numbers:
        pipe.backward(m)
    pipe.end()


# %% [markdown]
# **Predict.** We take three steps of SGD with momentum on 4 ranks with 8 micro-batches, and the same steps on one process with whole batches. By how much, at most, do the weights differ? (A) Not at all. (B) By less than $10^{-12}$. (C) By about $10^{-3}$, because the gradients of small batches are noisier.

# %%
prediction = None


# %%
# %%px
def sgd(module):
    return torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)


def micro_batches(step, count=8, part=0, parts=1):
    images, labels = batch(step, part, parts)
    return list(zip(images.chunk(count), labels.chunk(count), strict=True))


serial = new_model()
serial_sgd = sgd(serial)
serial_losses = []
for step in range(3):
    images, labels = batch(step)
    loss = F.cross_entropy(serial(images), labels)
    serial_sgd.zero_grad()
    loss.backward()
    serial_sgd.step()
    serial_losses.append(loss.item())


# %%
# %%px
def train(run, everyone):
    """Return this rank's stage after three steps by `run`, and the last rank's losses."""
    own = Stage(new_model(), everyone.index(rank), len(everyone))
    optimizer, losses = sgd(own), []
    for step in range(3):
        pipe = Pipe(own, micro_batches(step), everyone)
        optimizer.zero_grad()
        run(pipe)
        optimizer.step()
        losses.append(sum(pipe.losses))
    return own, losses


def largest_difference(own, number, stages):
    """Between a stage's parameters and those of the serial model."""
    pairs = zip(own.parameters(), Stage(serial, number, stages).parameters(), strict=True)
    return max((a - b).abs().max().item() for a, b in pairs)


ranks = list(range(world_size))
by_gpipe, gpipe_losses = train(gpipe, ranks)
apart = comm.allreduce(largest_difference(by_gpipe, rank, world_size), op=MPI.MAX)
gpipe_losses = comm.bcast(gpipe_losses, root=world_size - 1)

# %%
apart = cluster.view["apart"][0]
compare(prediction, "A" if apart == 0 else "B" if apart < 1e-12 else "C")

# %% [markdown]
# They differ only by rounding: the order of the additions is different, and in float64 the rounding error of numbers around 1 is about $10^{-16}$. (With batch norm the answer would be C, because it computes its means over a micro-batch. Transformers use layer norm, which normalises each token by itself.)

# %%
assert apart < 1e-12
pairs = zip(cluster.view["gpipe_losses"][0], cluster.view["serial_losses"][0], strict=True)
assert all(abs(a - b) < 1e-12 for a, b in pairs)

# %% [markdown]
# What about the traffic? Each rank sends activations to the next rank and gradients to the previous one. In each direction it sends as many numbers as a block's output has (section 1), and nothing else:

# %%
# %%px
pipe = Pipe(Stage(new_model(), rank, world_size), micro_batches(0), ranks)
with Traffic() as traffic:
    gpipe(pipe)
sent = {peer: count.bytes for peer, count in traffic.sent.by_peer.items()}
each_way = 64 * 8 * 64 * 8  # samples, tokens, width, and 8 bytes a number
assert sent == {peer: each_way for peer in (rank - 1, rank + 1) if peer in ranks}
if rank == 1:
    ring = 2 * 3 / 4 * 8 * parameter_count(model)
    print(f"rank 1 sent {sum(sent.values()):,} bytes; a ring all-reduce of gradients: {ring:,.0f}")

# %% [markdown]
# ## 4. Is the formula true?
#
# Computing times vary with the load on the machine, and four ranks on fewer cores slow each other down. Sleeping has neither problem. So these stages sleep: 50 ms in a forward pass, 100 ms in a backward pass. They pass on only one number per sample, because the formula assumes that messages take no time. Everything else is as before.
#
# **Predict.** With four stages and eight micro-batches, how many seconds does a step take?

# %%
prediction = None


# %%
# %%px
class Sleep(torch.autograd.Function):
    """Let through what comes, after a while; in backward after twice as long."""

    @staticmethod
    def forward(ctx, x, seconds):
        ctx.seconds = seconds
        time.sleep(seconds)
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(2 * ctx.seconds)
        return gradient, None


class SleepingStage(nn.Module):
    def __init__(self, seconds=0.05):
        super().__init__()
        self.weight = nn.Parameter(torch.ones((), dtype=torch.float64))
        self.seconds = seconds

    def forward(self, x):
        x = x.reshape(len(x), -1)[:, :1] if rank == 0 else x
        y = Sleep.apply(x * self.weight, self.seconds)
        return y.expand(-1, 10) if rank == world_size - 1 else y


def timed_step(run, stage, shape):
    """Return what this rank did when, and the seconds of the step on all ranks."""
    pipe = Pipe(stage, micro_batches(0), ranks, shape)
    comm.barrier()
    run(pipe)
    first, last = pipe.placed[0][1], pipe.placed[-1][2]
    return pipe.placed, comm.allreduce(last, op=MPI.MAX) - comm.allreduce(first, op=MPI.MIN)


planned = schedules.times(schedules.gpipe(4, 8), {"F": 0.05, "B": 0.1})
planned_s = max(one.end for lane in planned for one in lane)
asleep, seconds = timed_step(gpipe, SleepingStage(), (1,))
for _ in range(10):  # what else the machine does can only make a step longer
    if seconds < 1.01 * planned_s:
        break
    again = timed_step(gpipe, SleepingStage(), (1,))
    asleep, seconds = min((asleep, seconds), again, key=lambda found: found[1])

# %% tags=["nbval-ignore-output"]
compare(prediction, cluster.view["seconds"][0], within=0.1, unit="s")
measured = [[schedules.Placed(*one) for one in lane] for lane in cluster.view["asleep"]]
print(f"bubble: {schedules.bubble(measured):.3f} measured here, {3 / 11:.3f} predicted")
assert abs(schedules.bubble(measured) - 3 / 11) < 0.05 * 3 / 11

# %% tags=["nbval-ignore-output"]
pipeline(
    measured,
    "GPipe with stages that sleep",
    measured=True,
    alt="Measured timeline of GPipe with sleeping stages: forwards in a staircase from rank 0 to "
    "rank 3, then backwards in a staircase from rank 3 to rank 0, like the figure above.",
)

# %% [markdown]
# The step takes (8 + 3) · 150 ms = 1.65 s, within a few per cent. Now we run the real stages on your machine, and draw the fastest of eight steps. The tasks take only a few milliseconds here, so the messages and Python's own overhead matter. Your four ranks also have to share the cores: "busy" may mean that a rank is waiting for a core, and with fewer than four cores the four stages cannot all compute at the same time. Look for the staircases, and don't expect the bubble that the formula predicts.

# %% tags=["nbval-ignore-output"]
# %%px
torch.set_num_threads(1)
own = Stage(new_model(), rank, world_size)
tries = [timed_step(gpipe, own, (8, 64)) for _ in range(8)]
real, _ = min(tries, key=lambda found: found[1])  # the quickest

# %% tags=["nbval-ignore-output"]
pipeline(
    [[schedules.Placed(*one) for one in lane] for lane in cluster.view["real"]],
    "GPipe with the transformer's stages",
    measured=True,
    alt="Measured timeline of GPipe with the stages of the transformer: the same staircases, with "
    "tasks of uneven length.",
)

# %% [markdown]
# ## 5. One forward, one backward
#
# The more micro-batches there are, the smaller the bubble is. But GPipe holds the activations of all M of them until the first backward pass begins. *1F1B* (one forward, one backward; *published* [3, 5]) begins the backward passes as early as it can: on the last stage, right after the first forward pass. Stage r first does K - 1 - r forward passes, and from then on alternates between one forward and one backward pass.

# %%
turns = schedules.times(schedules.one_f_one_b(4, 8), {"F": 1, "B": 2})
pipeline(turns, "1F1B, four stages, eight micro-batches")

# %% [markdown]
# The bubble is the same as in GPipe, with the same staircases at the start and the end. So what does 1F1B gain?
#
# ### Exercise 2: the order of 1F1B
#
# Write `order(number, stages, micro_batches)`, which returns the list of tasks of stage `number`, as pairs such as `("F", 0)` and `("B", 0)`. First the stage does K - 1 - `number` forward passes (or all of them, if there are fewer). Then it alternates between one forward and one backward pass until all forward passes are done. Then it does the remaining backward passes. You can read the order off the figure.


# %% tags=["exercise"] exercise="10.order"
def order(number, stages, micro_batches):
    """Return the tasks of a stage under 1F1B, as ("F", m) and ("B", m)."""
    ### BEGIN SOLUTION
    ahead = min(stages - 1 - number, micro_batches)
    tasks = [("F", m) for m in range(ahead)]
    for m in range(ahead, micro_batches):
        tasks += [("F", m), ("B", m - ahead)]
    return tasks + [("B", m) for m in range(micro_batches - ahead, micro_batches)]
    ### END SOLUTION


# %% tags=["check"]
check("10.order")

# %% [markdown]
# Stuck? `hint("10.order")`, `solution("10.order")`.
#
# Now the ranks follow your list. (The notebook calls your function for each of the four ranks and sends them the lists. If your function is missing or wrong, `yours_or_solution` uses the worked solution.)

# %%
my_order = yours_or_solution("10.order")
cluster.view["orders"] = [my_order(number, 4, 8) for number in range(4)]


# %%
# %%px
def one_f_one_b(pipe):
    """One step of eight micro-batches, in the order that your function gives."""
    for kind, m in orders[rank]:
        if kind == "F":
            pipe.forward(m)
        else:
            pipe.backward(m)
    pipe.end()


# %% [markdown]
# To find out how many bytes autograd keeps for the backward pass, we use `saved_tensors_hooks`, which calls a function for each tensor that autograd saves.


# %%
# %%px
class CountingPipe(Pipe):
    """Counts the bytes of activations that are held, without the weights."""

    held_bytes = most_bytes = 0

    def forward(self, m):
        weights = {p.untyped_storage().data_ptr() for p in self.stage.parameters()}
        kept = {}

        def note(tensor):
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in weights:
                kept[storage.data_ptr()] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            super().forward(m)
        self.bytes_of = {**getattr(self, "bytes_of", {}), m: sum(kept.values())}
        self.held_bytes += self.bytes_of[m]
        self.most_bytes = max(self.most_bytes, self.held_bytes)

    def backward(self, m):
        super().backward(m)
        self.held_bytes -= self.bytes_of[m]


# %% [markdown]
# **Predict.** With eight micro-batches, rank 0 holds more bytes of activations under GPipe than under 1F1B. By what factor? And by what factor on rank 3? Write a list of two numbers.

# %%
prediction = None

# %%
# %%px
most = {}
for name, run in (("gpipe", gpipe), ("1f1b", one_f_one_b)):
    pipe = CountingPipe(Stage(new_model(), rank, world_size), micro_batches(0), ranks)
    run(pipe)
    most[name] = pipe.most_bytes
    assert pipe.held_bytes == 0
by_turns, _ = train(one_f_one_b, ranks)
assert largest_difference(by_turns, rank, world_size) < 1e-12

# %%
held = cluster.view["most"]
ratios = [one["gpipe"] / one["1f1b"] for one in held]
compare(prediction, [ratios[0], ratios[3]], within=0.01)
for number, one in enumerate(held):
    print(f"rank {number}: {one['gpipe']:11,} bytes under GPipe, {one['1f1b']:11,} under 1F1B")

# %% [markdown]
# Rank r holds K - r micro-batches instead of M, and the last rank only one. So with 1F1B, memory no longer limits the number of micro-batches, and you can use more of them to make the bubble smaller. The weights are the same up to rounding; only the order of the tasks has changed.

# %%
assert ratios == [8 / 4, 8 / 3, 8 / 2, 8 / 1]

# %% [markdown]
# ### Checkpointing
#
# There is another way to save memory: a block keeps only its input, and computes the rest again when the backward pass reaches the block. This is called *activation checkpointing* [2]. It costs one extra forward pass for each backward pass, but takes only a small part of the memory.
#
# **Predict.** A forward pass takes one unit of computation and a backward pass two, as in the figures. By what factor does checkpointing increase the computation in a step? Write a number.

# %%
prediction = None

# %%
# %%px
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop
from torch.utils.flop_counter import FlopCounterMode


class Checkpointed(nn.Module):
    """A block that keeps its input only, and counts the bytes of that."""

    kept_bytes = 0

    def __init__(self, block):
        super().__init__()
        self.block = block

    def forward(self, x):
        if x.requires_grad:
            Checkpointed.kept_bytes += x.nbytes
        return checkpoint(self.block, x, use_reentrant=False)


plain, thrifty = (Stage(new_model(), rank, world_size) for _ in range(2))
thrifty.blocks = nn.ModuleList(Checkpointed(block) for block in thrifty.blocks)
gradients, per_micro_batch = [], []
for own in (plain, thrifty):
    pipe = CountingPipe(own, micro_batches(0), ranks)
    one_f_one_b(pipe)
    gradients.append([p.grad for p in own.parameters()])
    per_micro_batch.append(pipe.bytes_of[0])
assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))
per_micro_batch[1] += Checkpointed.kept_bytes // 8

# %% [markdown]
# `FlopCounterMode` counts the floating-point operations of the matrix products in both passes:


# %%
# %%px
def operations(blocks):
    x = torch.ones(8, 8, 64, dtype=torch.float64, requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        nn.Sequential(*blocks)(x).sum().backward()
    return counter.get_total_flops()


with set_checkpoint_early_stop(False):
    full = operations(thrifty.blocks) / operations(plain.blocks)
stopped_early = operations(thrifty.blocks) / operations(plain.blocks)

# %%
compare(prediction, cluster.view["full"][0], within=0.01)
print(f"PyTorch's default: {cluster.view['stopped_early'][0]:.3f}")
for number, (whole, less) in enumerate(cluster.view["per_micro_batch"]):
    print(f"rank {number}: {whole:9,} bytes a micro-batch, {less:8,} with checkpointing")
    assert less < whole / 5

# %% [markdown]
# By that count the factor is (1 + 1 + 2)/(1 + 2), which is a third more computation. PyTorch does better: it stops the second forward pass as soon as it has everything that the backward pass needs, and the output of a block's last layer is not needed. That layer accounts for a third of the block's matrix products, which leaves a factor of 11/9. The gradients are equal to the last bit, because the second forward pass does the same as the first. (With dropout, `checkpoint` also restores the state of the random generator.)

# %%
assert all(abs(full - 4 / 3) < 1e-9 for full in cluster.view["full"])

# %% [markdown]
# ### Selective recomputation
#
# Some activations are more expensive to recompute than others. Nearly all the arithmetic of a block is in its matrix products and in attention. Layer norms, GELU and sums cost little, yet their outputs take half of the memory. *Selective recomputation* keeps the outputs that are expensive to compute for their size, and recomputes the others [8]. In PyTorch, a function called the policy decides for each operation. This policy keeps the outputs of all matrix products and of attention:

# %%
# %%px
from functools import partial

from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

aten = torch.ops.aten
EXPENSIVE = {aten.mm.default, aten.addmm.default, aten.bmm.default}
EXPENSIVE.add(aten._scaled_dot_product_flash_attention_for_cpu.default)


def keep_products(context, operation, *arguments, **named):
    keep = operation in EXPENSIVE
    return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE


class Selective(Checkpointed):
    def forward(self, x):
        contexts = partial(create_selective_checkpoint_contexts, keep_products)
        return checkpoint(self.block, x, use_reentrant=False, context_fn=contexts)


# %% [markdown]
# `saved_tensors_hooks` does not see what a policy keeps. So we measure all three variants in another way: we record every piece of memory that an operation allocates in the forward pass, and check which pieces are still in use afterwards.


# %%
# %%px
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Allocations(TorchDispatchMode):
    """Notes the memory of all tensors that operations give out, without keeping it alive."""

    def __init__(self):
        super().__init__()
        self.noted = {}

    def __torch_dispatch__(self, operation, types, arguments=(), named=None):
        given_out = operation(*arguments, **(named or {}))
        for tensor in tree_leaves(given_out):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                self.noted[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        return given_out

    def in_use(self):
        return sum(nbytes for memory, nbytes in self.noted.values() if not memory.expired())


# %%
# %%px
def kept_by(blocks):
    """Bytes that stay in use after forward of one micro-batch, without weights."""
    x = torch.ones(8, 8, 64, dtype=torch.float64, requires_grad=True)
    with Allocations() as allocations:
        y = nn.Sequential(*blocks)(x)  # as long as y lives, so does what its backward needs
    weights = {p.untyped_storage()._cdata for p in blocks.parameters()}
    for memory in weights & allocations.noted.keys():  # a transposed weight is no new memory
        del allocations.noted[memory]
    assert y.requires_grad
    return allocations.in_use()


# %% [markdown]
# Let one unit be the size of a block's output: 8 · 8 · 64 numbers of 8 bytes. Without checkpointing a block keeps slightly more than 16 units; with checkpointing it keeps 1 (its output, which is the next block's input).
#
# **Predict.** How many units does a block keep under this policy? Count its output and its products (queries, keys, values, attention, `out`, `down`, and `up`, which is four times as wide). And by what factor does the policy increase the arithmetic of a step's matrix products, compared with a step without checkpointing? Write `[units, factor]`.

# %%
prediction = None

# %%
# %%px
ways = {"all is kept": lambda block: block}
ways |= {"checkpointing": Checkpointed, "selective": Selective}
found, gradients = {}, {}
for way, wrap in ways.items():
    own = Stage(new_model(), rank, world_size)
    own.blocks = nn.ModuleList(wrap(block) for block in own.blocks)
    one_f_one_b(Pipe(own, micro_batches(0), ranks))  # a real step, of all ranks
    gradients[way] = [p.grad for p in own.parameters()]
    units = kept_by(own.blocks) / (8 * 8 * 64 * 8) / len(own.blocks)
    found[way] = units, operations(own.blocks) / operations(plain.blocks)
for others in gradients.values():
    assert all(map(torch.equal, others, gradients["all is kept"])), "to the bit"

# %%
found = cluster.view["found"][0]
compare(prediction, [round(found["selective"][0]), round(found["selective"][1], 2)])
print("                 units a block   products, times (measured here, on each rank)")
for way, (units, times) in found.items():
    print(f"{way:16} {units:13.2f} {times:10.2f}")

# %% [markdown]
# With this policy a block keeps about two thirds of the bytes that it keeps without checkpointing, and computes no product twice. (The hundredths come from the norms' means and deviations, and from the sums in attention's softmax. `FlopCounterMode` does not count attention on a CPU; the policy keeps its output, so it is not recomputed either.) `checkpoint` with a policy also does a second forward pass, but it takes the stored outputs of the products instead of computing them again. All three ways give gradients that are equal bit for bit.
#
# A policy can keep less. Nothing in the backward pass needs the output of `down`; without it 10 units are left, and still no product is computed twice. torchtitan (lesson 13b) goes further and recomputes every second product [10].

# %%
for units_of in cluster.view["found"]:
    assert units_of["all is kept"] == (16 + 2 / 16, 1)
    assert units_of["checkpointing"] == (1, 11 / 9)
    assert units_of["selective"] == (11 + 1 / 16, 1)

# %% [markdown]
# What do large training runs do? (*Published*.) Megatron-LM recomputes only the middle of attention: scores, softmax and dropout, whose memory grows with the square of the sequence length. Together with sequence parallelism (lesson 10b), this divided the memory for activations by five and saved over 90% of the extra time of full checkpointing [8]. FlashAttention (lesson 10c) recomputes scores and softmax inside every attention layer. DeepSeek-V3 recomputes its norms, the up-projections of its attention and the outputs of its experts' activation function, and uses 8 bits to store many of the activations that are kept [7]. Llama 3 405B was trained on sequences of 8,192 tokens without any checkpointing: shards, stages, slices and the early release of tensors saved enough memory [9].

# %% [markdown]
# ## 6. With torch.distributed.pipelining
#
# PyTorch provides both schedules, and others. You supply your stage, its index and the loss; PyTorch works out the shapes, the sends and the receives.

# %%
# %%px
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

differences = []
for schedule_class in (ScheduleGPipe, Schedule1F1B):
    own = Stage(new_model(), rank, world_size)
    optimizer = sgd(own)
    torch_stage = PipelineStage(own, rank, world_size, torch.device("cpu"))
    schedule = schedule_class(torch_stage, n_microbatches=8, loss_fn=F.cross_entropy)
    for step in range(3):
        images, labels = batch(step)
        optimizer.zero_grad()
        if rank == 0:
            schedule.step(images)
        else:
            schedule.step(target=labels if rank == world_size - 1 else None)
        optimizer.step()
    differences.append(largest_difference(own, rank, world_size))
assert max(differences) < 1e-12

# %% [markdown]
# Two of the library's schedules ran three steps each on the course's own backend, and both ended with the same weights as one process.
#
# ## 7. Smaller bubbles
#
# **Interleaving** [3]. Give each rank several short stages instead of one long one: with two on each of four ranks, rank 0 has the first and the fifth eighth of the layers. The pipeline then fills in half the time. With V stages on each rank, the bubble is (K - 1)/(V M + K - 1). The price is more messages: activations cross V K - 1 boundaries between stages instead of K - 1, a little more than V times as many. There are also more micro-batches in flight.

# %%
half = {"F": 0.5, "B": 1}
pipeline(
    schedules.times(schedules.interleaved(4, 2, 8), half), "Interleaved, two stages on each rank"
)

# %%
for v in (1, 2, 4):
    placed = schedules.times(schedules.interleaved(4, v, 8), {"F": 1 / v, "B": 2 / v})
    messages = 2 * 8 * (v * 4 - 1)  # forward and back, for each micro-batch, at each border
    print(f"V = {v}: {schedules.bubble(placed):5.1%} bubble, {messages} messages a step")
    assert abs(schedules.bubble(placed) - 3 / (8 * v + 3)) < 1e-12

# %% [markdown]
# (The darker boxes belong to a rank's second stage.) In the library this is `ScheduleInterleaved1F1B`, which takes a list of stages. Here it runs on our ranks, with two stages of one block each:

# %%
# %%px
from torch.distributed.pipelining import ScheduleInterleaved1F1B

numbers = [rank, rank + world_size]
chunks = nn.ModuleList(Stage(new_model(), number, 8) for number in numbers)
optimizer = sgd(chunks)
schedule = ScheduleInterleaved1F1B(
    [
        PipelineStage(chunk, number, 8, torch.device("cpu"))
        for chunk, number in zip(chunks, numbers, strict=True)
    ],
    n_microbatches=8,
    loss_fn=F.cross_entropy,
)
for step in range(3):
    images, labels = batch(step)
    optimizer.zero_grad()
    schedule.step(*([images] if rank == 0 else []), target=labels if rank == 3 else None)
    optimizer.step()
for chunk, number in zip(chunks, numbers, strict=True):
    assert largest_difference(chunk, number, 8) < 1e-12

# %% [markdown]
# **Zero bubble** [4]. The backward pass computes two things: the gradient of the stage's input, which the previous rank is waiting for, and the gradients of the stage's weights, which no rank needs before the optimizer's step. So we cut the backward pass in two. We name the halves as the authors do: in this part, B is the half for the input alone, and W the half for the weights. (In all other figures B is the whole backward pass.) B is done as early as before. W is put off until the rank would be idle.
#
# **Predict.** If F, B and W take one unit each, a step of 1F1B takes 3 (M + K - 1) = 33 units for K = 4 and M = 8. What is the smallest number of units that a step can take if W fills the gaps? (Each rank has 24 units of work, and rank 3 cannot begin at once.) Write a number.

# %%
prediction = None

# %%
together = schedules.times(schedules.one_f_one_b(4, 8), {"F": 1, "B": 2})
halves = schedules.times(schedules.zero_bubble(4, 8), {"F": 1, "B": 1, "W": 1})
compare(prediction, schedules.seconds_of(halves), source="By the schedule")
pipeline(halves, "ZB-H1, backward in two halves", holds=True, against=("1F1B", together))

# %% [markdown]
# It takes 3 M + K - 1 = 27 units. This schedule is *ZB-H1* (the first of the zero-bubble schedules that the authors designed by hand; *published* [4]). All F and B come in the same order as in 1F1B. Rank r puts each W off by r micro-batches: rank 0 does each W right after its B, whereas rank 3 does its last three at the end, when it would otherwise be idle.
#
# Why not leave every W to the end? W needs the layers' inputs from the forward pass, so a rank has to hold a micro-batch from its F until its W. To the right of each row, the figure gives the largest number of micro-batches that the rank holds at once: always K. (Each micro-batch is counted as a whole, although part of it can be freed after B.) Under 1F1B rank r held K - r, so the later ranks now need more memory, but no rank holds more than rank 0 did before. With every W at the end each rank would hold M, as under GPipe:

# %%
for micro_batches in (8, 16):
    flushed = schedules.one_f_one_b(4, micro_batches)
    h1 = schedules.zero_bubble(4, micro_batches)
    late = [sorted(tasks, key=lambda task: task.kind == "W") for tasks in h1]
    print(f"M = {micro_batches}")
    for name, schedule in (("1F1B", flushed), ("ZB-H1", h1), ("all W at the end", late)):
        backward = 2 if schedule is flushed else 1
        placed = schedules.times(schedule, {"F": 1, "B": backward, "W": 1})
        holds = [schedules.in_flight(tasks) for tasks in schedule]
        print(f"  {name:16} {schedules.seconds_of(placed):g} units, the ranks hold {holds}")
    assert {schedules.in_flight(tasks) for tasks in h1} == {4}

# %% [markdown]
# To remove the last K - 1 units, ranks have to run further ahead, which takes twice the memory (ZB-H2), and the optimizer's step must not wait for all ranks [4]. Other schedules cut the stages differently. *ZB-V* [4] gives each rank two short stages: the model runs from the first rank to the last and back, in the shape of a V. If F, B and W take equally long, it has almost no bubble and needs no more memory than 1F1B. *DualPipe* [7] feeds micro-batches in from both ends, which takes two copies of the weights, and hides the messages of one direction behind the computation of the other.
#
# In PyTorch, `ScheduleInterleavedZeroBubble` with one stage on each rank follows the order of ZB-H1. There are also `ScheduleZBVZeroBubble` and `ScheduleDualPipeV`, a DualPipe whose stages are placed as in ZB-V [6].
#
# ### PipeDream: no bubble, but several versions of the weights
#
# **PipeDream** [5] never waits for a batch to be complete. It takes a step after each backward pass and carries on, so no rank is idle once the pipeline is full. But now the weights change between the forward and the backward pass of a micro-batch. How does autograd react? Here is a stage with two micro-batches in flight:

# %%
# %%px
stage = Stage(new_model(), 1, 4)  # one from the middle, on every rank
optimizer = sgd(stage)
inputs = [torch.ones(8, 8, 64, dtype=torch.float64, requires_grad=True) for _ in range(2)]
first, second = map(stage, inputs)
first.square().sum().backward()
optimizer.step()
refusal = ""
try:
    second.square().sum().backward()
except RuntimeError as error:
    refusal = str(error).partition(": ")[0]
assert refusal.endswith("modified by an inplace operation")
if rank == 0:
    print(refusal)

# %% [markdown]
# Autograd raises an error, because the gradient of the input needs the weights that the forward pass used, and the optimizer has changed them. So PipeDream keeps, for each micro-batch in flight, the *version* of the weights that its forward pass used (*weight stashing*). In PyTorch, the forward pass can compute with a copy; the gradient flows through the copy to the weights themselves.


# %%
# %%px
class Versioned(nn.Module):
    """A stage whose forward uses a copy of the weights, which lives until its backward."""

    def __init__(self, stage):
        super().__init__()
        self.stage = stage

    def forward(self, x):
        copies = {name: p.clone() for name, p in self.stage.named_parameters()}
        return torch.func.functional_call(self.stage, copies, (x,))


# %%
# %%px
class SteppingPipe(Pipe):
    """Takes a step after each backward, and notes the age of the weights in it, in steps."""

    def __init__(self, stage, micro_batches, members):
        super().__init__(Versioned(stage), micro_batches, members)
        self.optimizer, self.steps, self.ages = sgd(stage), 0, []
        self.version_of, self.most_versions = {}, 0

    def forward(self, m):
        super().forward(m)
        self.version_of[m] = self.steps
        self.most_versions = max(self.most_versions, len(set(self.version_of.values())))

    def backward(self, m):
        super().backward(m)
        self.ages.append(self.steps - self.version_of.pop(m))
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.steps += 1


# %% [markdown]
# **Predict.** In 1F1B order, with eight micro-batches, what is the largest number of different versions that rank 0 holds at once? And rank 3? Write a list of two numbers.

# %%
prediction = None

# %%
# %%px
pipe = SteppingPipe(Stage(new_model(), rank, world_size), micro_batches(0), ranks)
one_f_one_b(pipe)
versions, ages = pipe.most_versions, pipe.ages

# %%
versions = cluster.view["versions"]
compare(prediction, [versions[0], versions[3]])
for number, (count, ages) in enumerate(zip(versions, cluster.view["ages"], strict=True)):
    print(f"rank {number}: versions {count}; ages of the weights in its eight backwards: {ages}")

# %% [markdown]
# Rank r holds K - r versions, one for each micro-batch in flight. So the price is memory again. The gradients are also stale, as in lesson 09, by K - 1 - r steps on rank r. With GPipe, and with 1F1B and a *flush* (all ranks wait for the end of the batch before the step), the result is that of one process, up to rounding. That is why these two schedules are used in practice.

# %%
assert versions == [4, 3, 2, 1]
for number, ages in enumerate(cluster.view["ages"]):
    assert ages == [min(m, 3 - number) for m in range(8)]

# %% [markdown]
# ## 8. The slowest stage sets the pace
#
# So far we assumed that all stages take equally long. If one stage takes twice as long, the others wait for it every time.
#
# ### Exercise 3: where to cut
#
# `costs` lists the time of each layer in seconds, in order. Write `cut(costs, stages)`, which returns a list with the number of layers in each stage, chosen so that the slowest stage is as fast as possible. (If the embedding or the classifier is large, the stages need unequal numbers of layers.) Every stage gets at least one layer. `costs` has at most 12 layers, so you can try all possible cuts; `itertools.combinations` generates them.


# %% tags=["exercise"] exercise="10.cut"
def cut(costs, stages):
    """Return the number of layers of each stage, so that the slowest stage is fastest."""
    ### BEGIN SOLUTION
    from itertools import combinations, pairwise

    def slowest(ends):
        edges = [0, *ends, len(costs)]
        return max(sum(costs[a:b]) for a, b in pairwise(edges))

    ends = min(combinations(range(1, len(costs)), stages - 1), key=slowest)
    edges = [0, *ends, len(costs)]
    return [b - a for a, b in pairwise(edges)]
    ### END SOLUTION


# %% tags=["check"]
check("10.cut")

# %% [markdown]
# Stuck? `hint("10.cut")`, `solution("10.cut")`.
#
# Try your function on stages that sleep: for each unit of cost, 10 ms in a forward pass and 20 ms in a backward pass. There are eight layers: the first embeds and the last classifies, so these two cost more.

# %%
my_cut = yours_or_solution("10.cut")
costs = [3, 1, 1, 1, 1, 1, 1, 3]
cuts = {"equal": [2, 2, 2, 2], "yours": my_cut(costs, 4)}
cost_of = {}
for name, numbers in cuts.items():
    layers = iter(costs)
    cost_of[name] = [sum(next(layers) for _ in range(number)) for number in numbers]
    print(f"{name:5}: {numbers} layers, stages that cost {cost_of[name]}")
cluster.view["cost_of"] = cost_of

# %% [markdown]
# **Predict.** With GPipe and eight micro-batches, a step takes longer with two layers on each rank than with your cut. By what factor? Write a number.

# %%
prediction = None

# %%
# %%px
seconds_with = {}
for name, stage_costs in cost_of.items():
    uneven = SleepingStage(0.01 * stage_costs[rank])
    tries = [timed_step(gpipe, uneven, (1,))[1] for _ in range(3)]
    seconds_with[name] = min(tries)  # what else the machine does can only make a step longer

# %% tags=["nbval-ignore-output"]
equal, yours = (cluster.view["seconds_with"][0][name] for name in ("equal", "yours"))
compare(prediction, equal / yours, within=0.1)
print(f"{equal:.2f} s with equal numbers, {yours:.2f} s with your cut")
assert equal > 0.99 * 0.03 * (12 + 7 * 4)

# %% [markdown]
# The first micro-batch passes through all stages, which takes the sum of their costs, 12 units. After that, the slowest stage sets the pace: with two layers on each rank it costs 4 units, so each of the other seven micro-batches adds 4, and a step takes 12 + 7 · 4 = 40 units of 30 ms. With your cut the slowest stage costs 3 units, and a step takes 12 + 7 · 3 = 33, about a sixth less.
#
# ## 9. Data and pipeline: a 2 x 2 mesh
#
# Now we have two pipelines of two stages: ranks 0 and 1, and ranks 2 and 3. Each pipeline takes half of the batch. Ranks with the same stage (0 and 2, and 1 and 3) average their gradients at the end of the step, as in lesson 05. A *device mesh* is an array of ranks, here two rows ("data") of two ("stage"); `init_device_mesh` creates it, with a group for each row and each column.

# %%
# %%px
from torch.distributed.device_mesh import init_device_mesh

mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "stage"))
members = dist.get_process_group_ranks(mesh["stage"].get_group())
number, replica = members.index(rank), mesh["data"].get_local_rank()
own = Stage(new_model(), number, 2)
optimizer = sgd(own)
for step in range(3):
    pipe = Pipe(own, micro_batches(step, 4, replica, 2), members)
    optimizer.zero_grad()
    gpipe(pipe)
    for p in own.parameters():
        dist.all_reduce(p.grad, group=mesh["data"].get_group())
        p.grad /= 2
    optimizer.step()
assert_replicas_equal(own, mesh["data"].get_group())
assert largest_difference(own, number, 2) < 1e-12

# %% [markdown]
# Each weight exists twice, each rank holds half of the model, and the result is that of one process. Should the pipeline or the all-reduce run between machines? Either can. The pipeline sends only a few activations for each micro-batch. The all-reduce moves all gradients, but only once per step, and it can overlap with the last backward passes.
#
# ### Break it on purpose: blocking sends
#
# Replace `dist.isend` with `dist.send` in `Pipe`. First we try this with the sleeping stages, whose messages are 64 bytes long:

# %%
# %%px
from unittest.mock import patch


class BlockingPipe(Pipe):
    def end(self):
        """Nothing is left to wait for."""


with patch.object(dist, "isend", dist.send):  # dist.send stands wherever dist.isend is called
    one_f_one_b(BlockingPipe(SleepingStage(), micro_batches(0), ranks, shape=(1,)))

# %% [markdown]
# It runs. Now we try the transformer's stages, whose messages have 8 · 8 · 64 · 8 bytes:

# %% tags=["raises-exception", "nbval-ignore-output"]
# %%px --limit 4
with patch.object(dist, "isend", dist.send):
    one_f_one_b(BlockingPipe(Stage(new_model(), rank, world_size), micro_batches(0), ranks))

# %% [markdown]
# **Symptom**: the step hangs, and the report shows neighbours that are both in `send`, each to the other. **Diagnosis**: in 1F1B one neighbour sends the next activation while the other sends the previous gradient, and each waits for the other to receive. This is a cycle of sends, as in lesson 01. MPI sends small messages without waiting, so the mistake stays hidden until the batch grows. **Fix**: `isend`, or `batch_isend_irecv` for both directions at once. The ranks are free again and have kept their variables:

# %%
# %%px
again, _ = train(one_f_one_b, ranks)
assert largest_difference(again, rank, world_size) < 1e-12

# %% [markdown]
# ### Which parallelism when, first half
#
# | question | choose |
# |---|---|
# | do the model and its optimizer state fit on one device? | data parallelism, lesson 08 |
# | do they not fit, and is the network between devices slow? | stages: only activations travel |
# | is memory for activations short? | 1F1B rather than GPipe; selective recomputation; checkpointing |
# | is the batch too small for many micro-batches? | interleaving, zero bubble; or slices, lesson 10b |
# | is one layer alone too large, or is memory for the optimizer state short? | slices and shards, lesson 10b |
#
# ## Recap
#
# | | what to remember |
# |---|---|
# | naive | only one of K ranks works at a time |
# | micro-batches | same gradient, bubble (K - 1)/(M + K - 1) |
# | GPipe | holds M micro-batches |
# | 1F1B | the same bubble, holds K - r on stage r |
# | interleaved | bubble (K - 1)/(V M + K - 1), with (V K - 1)/(K - 1) times as many messages |
# | zero bubble | the half of the backward pass that computes the weights' gradients fills the gaps |
# | PipeDream | no flush; K - r versions of weights, gradients K - 1 - r steps old |
# | checkpointing | keeps only inputs; up to a third more computation |
# | selective recomputation | keeps the outputs of matrix products and attention; recomputes the rest, which is cheap |
#
# You can run this lesson's pipeline as a script: `mpiexec -n 4 python scripts/pipeline.py`.
#
# **Next:** lesson 10b cuts through the layers instead of between them.
#
# ## References and further reading
#
# 1. Y. Huang, Y. Cheng, A. Bapna, O. Firat, D. Chen, M. Chen, H. Lee, J. Ngiam, Q. V. Le, Y. Wu and Z. Chen, "GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism", *Advances in Neural Information Processing Systems* 32, 2019.
# 2. T. Chen, B. Xu, C. Zhang and C. Guestrin, "Training Deep Nets with Sublinear Memory Cost", arXiv:1604.06174, 2016.
# 3. D. Narayanan and others, "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", *SC21: International Conference for High Performance Computing, Networking, Storage and Analysis*, 2021, arXiv:2104.04473. Section 2.2 describes 1F1B with a flush, and interleaving.
# 4. P. Qi, X. Wan, G. Huang and M. Lin, "Zero Bubble Pipeline Parallelism", arXiv:2401.10241, 2023, accepted at ICLR 2024.
# 5. D. Narayanan, A. Harlap, A. Phanishayee, V. Seshadri, N. R. Devanur, G. R. Ganger, P. B. Gibbons and M. Zaharia, "PipeDream: Generalized Pipeline Parallelism for DNN Training", *Proceedings of the 27th ACM Symposium on Operating Systems Principles*, 2019. Introduces 1F1B and weight stashing.
# 6. PyTorch, "Pipeline Parallelism", [docs.pytorch.org](https://docs.pytorch.org/docs/stable/distributed.pipelining.html).
# 7. DeepSeek-AI, "DeepSeek-V3 Technical Report", arXiv:2412.19437, 2024. Sections 3.2.1, 3.2.3 and 3.3.3; [the schedule and its memory](https://github.com/deepseek-ai/DualPipe).
# 8. V. A. Korthikanti, J. Casper, S. Lym, L. McAfee, M. Andersch, M. Shoeybi and B. Catanzaro, "Reducing Activation Recomputation in Large Transformer Models", *Proceedings of Machine Learning and Systems* 5, 2023, arXiv:2205.05198. Sections 4 (how many bytes a block keeps) and 5.
# 9. A. Grattafiori and others (Llama Team), "The Llama 3 Herd of Models", arXiv:2407.21783, 2024. Section 3.3.2.
# 10. PyTorch, *torchtitan*, `SelectiveAC` in `torchtitan/distributed/activation_checkpoint.py`, as of August 2026, [github.com](https://github.com/pytorch/torchtitan).
