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
# # 06 When does it pay?
#
# **The one idea.** R ranks need R times fewer steps, but in every step they must also synchronise. R ranks are faster than one exactly when synchronising takes less than R − 1 times as long as computing, and you can measure or predict both times before you buy the machines.
#
# **You will be able to**
# - predict the speed-up of R ranks from two measured times, and work out how many ranks it takes to gain anything;
# - find out how slow a network may be before R ranks no longer pay, and move this boundary with fewer messages, buckets and overlap;
# - say what a straggler costs, and why strong scaling has a limit;
# - interpret a published efficiency, reproduce it from hardware figures, and say what breaks at 10,000 ranks.
#
# **Prerequisites:** lesson 05 (synchronous SGD). Lesson 03 explains the all-reduce formulas that you use here.
#
# **Time.** The notebook runs in about 30 s (*measured here*: 4 ranks on 2 cores). Allow 210 minutes, in two sittings, to study it and do its five exercises. Sections 1 to 7 stand on their own (about 120 minutes); the rest is optional.

# %%
from course_lib.cluster import start_cluster
from course_lib.teaching import check, compare, cost, figures, hint, progress, solution
from rank_by_rank.lesson_06 import scaling

# %% tags=["nbval-ignore-output"]
cluster = start_cluster(n=4)

# %%
# %%px
import statistics
import time
from datetime import timedelta
from functools import partial

import torch_mpi4py
from torch import nn
from torch.nn import functional as F

from course_lib.parallel.gradient_sync import sync_gradients
from course_lib.training import data, models

if not dist.is_initialized():
    dist.init_process_group("mpi4py", init_method="mpi://", timeout=timedelta(seconds=30))
training, _, _ = data.load_available("digits", size=28)
groups_of_two = [dist.new_group([0, 1]), dist.new_group([2, 3])]
pair = groups_of_two[rank // 2]

# %% [markdown]
# ## 1. Two times and one condition
#
# An *epoch* is one pass over a data set of $N$ samples. In each step, one rank processes $B$ samples and *computes* for $T_\text{comp}$ seconds: forward pass, backward pass and update. So
#
# $$T_\text{epoch}(1) = \frac{N}{B}\, T_\text{comp} .$$
#
# $R$ ranks process $B$ samples *each*, $R B$ in a step, so they need $R$ times fewer steps. But now each step also *synchronises* the gradients, which takes $T_\text{sync}$ seconds:
#
# $$T_\text{epoch}(R) = \frac{N}{R B}\, (T_\text{comp} + T_\text{sync}) .$$
#
# Using $R$ ranks pays if $T_\text{epoch}(R) < T_\text{epoch}(1)$. Divide both sides by $\frac{N}{RB} T_\text{comp}$, and $N$ and $B$ drop out:
#
# $$1 + \frac{T_\text{sync}}{T_\text{comp}} < R \qquad\Longleftrightarrow\qquad \frac{T_\text{sync}}{T_\text{comp}} < R - 1 .$$
#
# The *speed-up* is $S = T_\text{epoch}(1) / T_\text{epoch}(R) = R\, /\, (1 + T_\text{sync}/T_\text{comp})$, and the *efficiency* is $S/R$.
#
# **Predict.** Computing takes 20 ms, and synchronising takes 30 ms. What is the speed-up with (a) 2 and (b) 4 ranks, if $T_\text{sync}$ is the same for both? Write `[a, b]`.

# %%
prediction = None

# %%
speed_ups = [round(scaling.speed_up(ranks, 0.020, 0.030), 3) for ranks in (2, 4)]
compare(prediction, speed_ups, within=0.01, source="By the formula")
pays = [scaling.pays(ranks, 0.020, 0.030) for ranks in (2, 4)]
assert pays == [speed_up > 1 for speed_up in speed_ups]

# %% [markdown]
# Two ranks are *slower* than one; four are faster. This answers the question "Why is it slower with more workers?" The answer has a surprising consequence: sometimes the cure is to add even more workers.
#
# Two warnings. First, epochs are not the goal: with $R B$ samples per step there are fewer updates, and lesson 05 showed what that does to learning. Second, $T_\text{sync}$ grows with $R$: slowly with a good algorithm, quickly with a bad one.
#
# ### Exercise 1: how long an epoch takes
#
# Write `epoch_seconds(samples, batch, comp, sync, ranks)`, which returns how many seconds an epoch over `samples` samples takes. Each of the `ranks` ranks processes `batch` samples per step; `comp` and `sync` are $T_\text{comp}$ and $T_\text{sync}$ in seconds.


# %% tags=["exercise"] exercise="06.epoch_seconds"
def epoch_seconds(samples, batch, comp, sync, ranks):
    """Return the seconds of an epoch; one rank alone does not synchronise."""
    ### BEGIN SOLUTION
    steps = samples / (ranks * batch)
    return steps * (comp + (sync if ranks > 1 else 0))
    ### END SOLUTION


# %% tags=["check"]
check("06.epoch_seconds")

# %% [markdown]
# Stuck? `hint("06.epoch_seconds")`, `solution("06.epoch_seconds")`.
#
# ### Exercise 2: the fewest ranks that pay
#
# `sync_of` is a function: `sync_of(ranks)` is $T_\text{sync}$ in seconds for that many ranks. Write `fewest_ranks(comp, sync_of, most)`. It returns the smallest number of ranks, from 2 to `most` inclusive, with which an epoch takes less time than on one rank, or `None` if there is no such number.


# %% tags=["exercise"] exercise="06.fewest_ranks"
def fewest_ranks(comp, sync_of, most):
    """Return the smallest R in 2, ..., most that pays, None if none does."""
    ### BEGIN SOLUTION
    for ranks in range(2, most + 1):
        if sync_of(ranks) / comp < ranks - 1:
            return ranks
    return None
    ### END SOLUTION


# %% tags=["check"]
check("06.fewest_ranks")

# %% [markdown]
# Stuck? `hint("06.fewest_ranks")`, `solution("06.fewest_ranks")`.
#
# ## 2. Measure both, predict, run
#
# We take three networks and two batch sizes. For each combination, we measure $T_\text{comp}$ and $T_\text{sync}$ separately, predict the speed-up of two ranks, and run real training steps on one rank and on two.
#
# A speed-up is a *ratio* of two times, and the speed of a shared machine varies from moment to moment. If you measure all steps of one process today and all steps of two ranks tomorrow, you compare two days. We therefore measure in 25 *rounds*. Each round takes four measurements in quick succession (computing on one rank, computing on both, synchronising, and a whole step on both) and gives its own ratio. A disturbance that lasts longer than a round slows all four measurements and cancels out of the ratio. A shorter one spoils a single round, and the median ignores it.
#
# A barrier before each measurement keeps the wait for a late rank out of the synchronisation time. For two ranks, $T_\text{comp}$ is measured until both are done, because the slower one sets the pace.


# %%
# %%px
def seconds_of(action, group=None, repeats=15):
    """The median time of action, in seconds; the ranks of a group start together."""
    found = []
    for _ in range(repeats):
        if group is not None:
            dist.barrier(group)
        start = time.perf_counter()
        action()
        found.append(time.perf_counter() - start)
    return statistics.median(found)


# %%
# %%px
def training_step(model, batch, group=None):
    """One step on `batch` samples; with a group, gradients are averaged over it."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    images, labels = training[torch.arange(batch) + rank * batch]

    def step():
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        if group is not None:
            sync_gradients(model, group)
        optimizer.step()

    return step


# %%
# %%px
NETWORKS = {
    "one layer": lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 10)),
    "LeNet": models.LeNet,
    "wide MLP": lambda: models.MLP(784, (512, 512)),
}


def rounds_of(model, batch, rounds=25):
    """For each round: T_comp of rank 0 alone and of the pair, T_sync, a step of the pair (s)."""

    def until_both_are_done():
        step()
        dist.barrier(pair)

    step, step_together = training_step(model, batch), training_step(model, batch, pair)
    step(), step_together()  # the first step is always slow
    found = []
    for _ in range(rounds):
        dist.barrier(pair)
        alone = seconds_of(step, repeats=1) if rank == 0 else None
        actions = until_both_are_done, partial(sync_gradients, model, pair), step_together
        found.append((alone, *(seconds_of(action, pair, repeats=1) for action in actions)))
    return found


# %%
# %%px
measured = []
if rank < 2:
    for name, make in NETWORKS.items():
        for batch in (8, 128):
            model = make()
            measured.append((name, models.parameter_count(model), batch, rounds_of(model, batch)))

# %% [markdown]
# **Predict.** Which combination has the *largest* ratio $T_\text{sync}/T_\text{comp}$, and therefore gains the least? Write the network's name and the batch size, such as `("LeNet", 8)`.

# %%
prediction = None

# %% tags=["nbval-ignore-output"]
from rank_by_rank.lesson_06 import two_ranks

two_against_one = [two_ranks.Gain.of(*found) for found in cluster.view["measured"][0]]
print(two_ranks.table(two_against_one))
largest = max(two_against_one, key=lambda gain: gain.ratio)
compare(prediction, (largest.network, largest.batch))

# %% tags=["nbval-ignore-output"]
two_ranks.picture(two_against_one)

# %% [markdown]
# All times are *measured here*, each the median of 25 rounds. Two speed-ups are *predicted* from them. $S_1 = 2 / (1 + T_\text{sync}/T_\text{comp})$ is the formula of section 1. It assumes that $T_\text{comp}$ is the same for one rank and for two, and the table shows that it is not: two ranks on one machine share its memory and caches, the slower rank sets the pace, and a busy machine does not always have two free cores. The second formula uses both measured values: a step on two ranks takes $T_\text{comp}(2) + T_\text{sync}$, and
#
# $$S_2 = \frac{2\, T_\text{comp}(1)}{T_\text{comp}(2) + T_\text{sync}} .$$
#
# The line in the picture is $S_2$. It falls below 1 where a step on two ranks takes more than twice as long as a step on one. The bars span the middle half of the rounds. The line ignores two effects. In training there is no barrier before the synchronisation, which therefore includes the wait for a late rank (section 6): this moves points below the line. And $T_\text{comp}(2)$ and $T_\text{sync}$ were each measured until both ranks were done, whereas a whole step waits only once: this moves points above the line. The shorter the steps, the more both effects matter.
#
# What matters is how much a rank computes *for each number that it sends*. A batch of 128 needs more computing than a batch of 8, and its gradient is no larger. A convolution uses each of its weights at every pixel. A linear layer uses each of its weights once per sample, so wide linear layers gain the least. That is why VGG-16, with its large linear layers, is the exception in section 8.
#
# We assert nothing about these speed-ups, because they depend on what else your machine is doing. On a busy machine the times are longer and the bars wider, and $S_1$ assumes two free cores that do not exist; $S_2$ takes this into account.
#
# More ranks than cores cannot help. Most of the experiments below therefore replace computing with sleeping. Sleeping ranks do not compete for a core, so four of them can sleep at the same time on *any* machine. Everything else is real.
#
# ## 3. A slow network, and the boundary
#
# Inside one machine, communication is fast. A `with emulated_link(latency, bandwidth)` block slows it down: inside the block, each message takes at least `latency` seconds plus its size in bytes divided by `bandwidth`, and a collective of `dist` takes as long as the best simple algorithm would on such links. Let $\alpha$ be the latency in seconds, $\beta$ the seconds per byte (1/bandwidth), and $n$ the number of bytes on each of $p$ ranks. The time of an all-reduce is then the smaller of
#
# $$\lceil\lg p\rceil\,(\alpha + n\beta) \quad\text{(recursive doubling)} \qquad\text{and}\qquad 2\,(p-1)\,\Big(\alpha + \frac{n}{p}\beta\Big) \quad\text{(ring)},$$
#
# where $p$ is a power of two and $\lg$ is the logarithm to base 2. (You build both algorithms in lesson 03. Here, $p = R$, the number of ranks.)


# %%
def sync_seconds(ranks, size_bytes, latency, bandwidth):
    """T_sync of one all-reduce, predicted, in seconds."""
    link = cost.Link(latency, bandwidth)
    algorithms = ("recursive doubling", "ring")
    return min(cost.cost(name, ranks, size_bytes).seconds(link) for name in algorithms)


GRADIENT_BYTES = 4 * 61_706  # LeNet
LATENCY, COMP = 0.0001, 0.010

# %% [markdown]
# The experiment uses LeNet's gradient of 246,824 bytes, 10 ms of computing and a latency of 0.1 ms.
#
# **Predict.** At what bandwidth, in MB/s, are *four* ranks just as fast as one? ($T_\text{sync} = (R-1)\, T_\text{comp}$ = 30 ms; use the formula for the ring.)

# %%
prediction = None


# %%
def boundary_of(ranks):
    """Return the bandwidth at which T_sync is (R - 1) T_comp, by halving an interval."""
    slow, fast = 1e6, 1e9
    while fast - slow > 1:
        middle = (slow + fast) / 2
        late = sync_seconds(ranks, GRADIENT_BYTES, LATENCY, middle) > (ranks - 1) * COMP
        slow, fast = (middle, fast) if late else (slow, middle)
    return fast


boundary_2, boundary_4 = boundary_of(2), boundary_of(4)
compare(prediction, boundary_4 / 1e6, within=0.1, unit="MB/s", source="By the formula")

# %% [markdown]
# You can also solve this by hand. With the ring, four ranks break even at $6\,(\alpha + \frac n 4 \beta) = 3\,T_\text{comp}$, so $1/\beta = \frac n 2 / (T_\text{comp} - 2\alpha)$. With two ranks, each sends its whole gradient once, so they break even at $\alpha + n\beta = T_\text{comp}$.

# %%
assert abs(boundary_4 - GRADIENT_BYTES / 2 / (COMP - 2 * LATENCY)) <= 1  # byte/s
assert abs(boundary_2 - GRADIENT_BYTES / (COMP - LATENCY)) <= 1

# %% [markdown]
# Now for the experiment. For each bandwidth we measure $T_\text{sync}$ by itself, and then whole steps.

# %%
# %%px
from torch_mpi4py import emulated_link

gradient = torch.zeros(61_706)


def compute():
    time.sleep(0.010)


def epochs_over(bandwidth, group):
    """Seconds of T_sync, and of a step, on a link of this bandwidth (bytes/s)."""

    def step():
        compute()
        dist.all_reduce(gradient, group=group)

    with emulated_link(latency=0.0001, bandwidth=bandwidth):
        sync = seconds_of(lambda: dist.all_reduce(gradient, group=group), group, repeats=5)
        return sync, seconds_of(step, repeats=5)


# %%
# %%px
bandwidths = [3e6, 6e6, 12e6, 24e6, 48e6, 96e6]
comp = seconds_of(compute, repeats=20)
with_2 = [epochs_over(bandwidth, pair) for bandwidth in bandwidths]
with_4 = [epochs_over(bandwidth, dist.group.WORLD) for bandwidth in bandwidths]
assert comp >= 0.010

# %% tags=["nbval-ignore-output"]
from rank_by_rank.lesson_06.figures import where_it_pays

comp, bandwidths = cluster.view["comp"][0], cluster.view["bandwidths"][0]
sync_and_step = {2: cluster.view["with_2"][0], 4: cluster.view["with_4"][0]}
speed_up = {r: [r * comp / step for _, step in pairs] for r, pairs in sync_and_step.items()}


def predicted_speed_up(ranks, bandwidth):
    sync = sync_seconds(ranks, GRADIENT_BYTES, LATENCY, bandwidth)
    return scaling.speed_up(ranks, COMP, sync)


where_it_pays(bandwidths, speed_up, predicted_speed_up)

# %% [markdown]
# Where do the measured points cross 1, and what is the measured $T_\text{sync}/T_\text{comp}$ there? We interpolate between the points on either side of the crossing.

# %% tags=["nbval-ignore-output"]
import numpy as np

for ranks, boundary in ((2, boundary_2), (4, boundary_4)):
    ratios = np.array([sync / comp for sync, _ in sync_and_step[ranks]])
    gains = np.log(speed_up[ranks])  # they rise with the bandwidth
    ratio = np.exp(np.interp(0.0, gains, np.log(ratios)))
    bandwidth = np.exp(np.interp(0.0, gains, np.log(bandwidths)))
    print(
        f"{ranks} ranks: boundary at {bandwidth / 1e6:.1f} MB/s (predicted {boundary / 1e6:.1f}), "
        f"T_sync / T_comp = {ratio:.2f} there (predicted {ranks - 1})"
    )
    formula = [sync_seconds(ranks, GRADIENT_BYTES, LATENCY, each) for each in bandwidths]
    least = [COMP + seconds for seconds in formula]  # no overlap so far, and no short cut
    assert all(step >= bound for (_, step), bound in zip(sync_and_step[ranks], least, strict=True))
assert max(speed_up[ranks][0] for ranks in (2, 4)) < 1, "on the slowest link nobody gains"
assert ratios[-1] > 1 or speed_up[4][-1] > 1, "a third of the ratio at the boundary pays"

# %% [markdown]
# So the *ratio* decides: two ranks begin to pay at a ratio near 1 and four at a ratio near 3 (*measured here*), as the formula predicts. The *bandwidth* at these crossings is higher than predicted, because a real step takes longer than the formula says and a faster link has to make up for that. The same extra millisecond matters more to two ranks, which have 10 ms to synchronise, than to four, which have 30.
#
# We assert only three things. No step was faster than the formula allows. On the slowest link, neither two nor four ranks gain. On the fastest link, four ranks gain if $T_\text{sync}$ there is at most $T_\text{comp}$, a third of what the boundary allows. If your ranks are on several machines, the real network's time is added to that of the emulated link. If the real network is slow, perhaps no point reaches the boundary.
#
# The two crossings are *predicted* at 13 MB/s for four ranks and 25 MB/s for two. Between these bandwidths, two ranks lose and four win. So "we tried it with two machines and it was slower" does not mean that more machines will never pay.
#
# ## 4. Fewer messages
#
# $T_\text{sync}$ has two parts: a latency for each message, and the time that the bytes take. The model dictates the number of bytes; the number of messages is up to you. Here are two ways to average a model's gradients.


# %%
# %%px
def sync_per_parameter(model):
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= world_size


def sync_flattened(model):
    gradients = [parameter.grad for parameter in model.parameters()]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat)
    flat /= world_size
    parts = flat.split([gradient.numel() for gradient in gradients])
    for gradient, part in zip(gradients, parts, strict=True):
        gradient.copy_(part.view_as(gradient))


# %% [markdown]
# LeNet has ten parameter tensors: the weights and biases of five layers. The link has a latency of 2 ms, as between two towns, and a bandwidth of 100 MB/s.
#
# **Predict.** By what factor is the first way slower than the second? Write a number.

# %%
prediction = None

# %%
# %%px
from torch_mpi4py import Traffic

times, calls, volumes, results = [], [], [], []
for sync in (sync_per_parameter, sync_flattened):
    model = models.LeNet()
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 4.0 * rank)  # whole numbers: exact sums
    with Traffic() as traffic:
        sync(model)
    calls.append(traffic.collectives["all_reduce"].messages)
    volumes.append(traffic.collectives["all_reduce"].bytes)  # handed over
    results.append(torch.cat([parameter.grad.flatten() for parameter in model.parameters()]))
    with emulated_link(latency=0.002, bandwidth=100e6):
        times.append(seconds_of(partial(sync, model), dist.group.WORLD, repeats=5))

assert all(torch.equal(found, torch.full_like(found, 6.0)) for found in results), "the mean"
assert calls == [10, 1]
assert volumes[0] == volumes[1] == 4 * 61_706

# %% tags=["nbval-ignore-output"]
times = cluster.view["times"][0]
sizes = [4 * n for n in (150, 6, 2400, 16, 48000, 120, 10080, 84, 840, 10)]
predicted = [
    sum(sync_seconds(4, size, 0.002, 100e6) for size in sizes),
    sync_seconds(4, sum(sizes), 0.002, 100e6),
]
compare(prediction, times[0] / times[1], within=0.2)
assert times[0] > times[1]
for way, a, b in zip(("per parameter", "flattened"), predicted, times, strict=True):
    print(f"{way:14} predicted {1e3 * a:5.1f} ms, measured here {1e3 * b:5.1f} ms")

# %% [markdown]
# The bytes are the same and the result is the same to the last bit, but there is one message instead of ten. So is one large message best? Only if there is nothing else to do in the meantime.
#
# To do something else in the meantime, call the all-reduce with `async_op=True`: the call returns a *handle* at once. Until `handle.wait()` has returned, the tensor belongs to the all-reduce, so neither read nor change it.

# %%
# %%px
tensor = torch.full((3,), float(rank))
handle = dist.all_reduce(tensor, async_op=True)  # asked for, not done
squares = [i * i for i in range(1000)]  # something else
handle.wait()
assert tensor.tolist() == [6, 6, 6]

# %% [markdown]
# ### Exercise 3: buckets that leave during backward
#
# The backward pass computes the *last* parameter's gradient first. The all-reduce of that gradient could begin while the other gradients are still being computed. To act on each gradient in time, attach a *hook* to each parameter with `parameter.register_post_accumulate_grad_hook(hook)`: autograd calls `hook(parameter)` as soon as `parameter.grad` is complete.
#
# Write `bucketed_sync(parameters, bucket_bytes, group)`. It attaches hooks to all parameters and collects the gradients in the order in which they arrive. As soon as the collected gradients have `bucket_bytes` bytes or more, it flattens them and sends them in one all-reduce while the backward pass continues. It returns a function `finish()`, to be called after each backward pass: `finish` sends what is left, waits for everything, and writes the *means* over the ranks into the gradients. Your function must work for more than one backward pass.


# %% tags=["exercise"] exercise="06.bucketed_sync"
# %%px
def bucketed_sync(parameters, bucket_bytes, group):
    """Average gradients over group in buckets, from hooks; return finish()."""
    ### BEGIN SOLUTION
    waiting, sent = [], []

    def send():
        flat = torch.cat([p.grad.flatten() for p in waiting])
        handle = dist.all_reduce(flat, group=group, async_op=True)
        sent.append((handle, flat, list(waiting)))
        waiting.clear()

    def hook(parameter):
        waiting.append(parameter)
        if sum(p.nbytes for p in waiting) >= bucket_bytes:
            send()

    def finish():
        if waiting:
            send()
        for handle, flat, members in sent:
            handle.wait()
            flat /= dist.get_world_size(group)
            parts = flat.split([p.numel() for p in members])
            for parameter, part in zip(members, parts, strict=True):
                parameter.grad.copy_(part.view_as(parameter))
        sent.clear()

    for parameter in parameters:
        parameter.register_post_accumulate_grad_hook(hook)
    return finish
    ### END SOLUTION


# %% tags=["check"]
check("06.bucketed_sync")

# %% [markdown]
# Stuck? `hint("06.bucketed_sync")`, `solution("06.bucketed_sync")`.
#
# Your version need not handle a parameter that a rank did not use. On that rank the parameter's hook is not called, so the rank's buckets differ from those of the other ranks, and all ranks wait for each other indefinitely. The course's `BucketedGradientSync` fixes the contents of the buckets in advance, as DistributedDataParallel does; we use it from here on.
#
# ## 5. Overlap
#
# To see overlap, take six layers with 1 MiB of gradients each. The backward pass of each layer takes 10 ms, during which the rank only sleeps. The link has a latency of 1 ms and a bandwidth of 300 MB/s. Hooks, buckets and all-reduces are real.


# %%
# %%px
class Pause(torch.autograd.Function):
    """Pass x on; in backward, take some seconds."""

    @staticmethod
    def forward(ctx, x, seconds):
        ctx.seconds = seconds
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(ctx.seconds)
        return gradient, None


class SlowLinear(nn.Linear):
    def __init__(self, width, seconds):
        super().__init__(width, width, bias=False)
        self.seconds = seconds

    def forward(self, x):
        return Pause.apply(super().forward(x), self.seconds)


# %% [markdown]
# The event log of `torch_mpi4py` records when each all-reduce was requested and when it finished; the hooks below record when each gradient was ready.


# %%
# %%px
from torch_mpi4py.log.events import events, mark
from course_lib.parallel.bucketed_sync import BucketedGradientSync


def on_link(sent, start):
    """A group runs one all-reduce after another, so one that has to queue begins later."""
    spans, free = [], 0.0
    for number, (asked, done) in enumerate(sorted(sent)):
        label = str(len(sent) - number) if len(sent) > 1 else "all"
        spans.append((label, max(asked - start, free), done - start))
        free = done - start
    return spans


# %%
# %%px
def watched_backward(network, finish, passes=8):
    """Return the fastest of some passes: seconds, gradients ready, all-reduces under way."""
    ready, found = [], []
    for layer, parameter in enumerate(network.parameters(), 1):
        parameter.register_post_accumulate_grad_hook(
            lambda _, layer=layer: ready.append((str(layer), time.perf_counter()))
        )
    for _ in range(passes):
        loss = network(torch.ones(1, network[0].in_features)).sum()
        dist.barrier()
        ready.clear()
        begin, start = mark(), time.perf_counter()
        loss.backward()
        finish()
        seconds = time.perf_counter() - start
        sent = [(e.start, e.end) for e in events(begin) if e.kind == "all_reduce"]
        found.append((seconds, [(name, t - start) for name, t in ready], on_link(sent, start)))
    return min(found)


# %% [markdown]
# We compare three ways to send the gradients: (a) flattened, after the backward pass; (b) one bucket per layer, after the backward pass; (c) one bucket per layer, during the backward pass.
#
# **Predict.** On this link, an all-reduce of 1 MiB takes about 9 ms, and one of 6 MiB about 38 ms. How many milliseconds do the backward pass and the all-reduces take together in each of the three cases? Write `[a, b, c]`.

# %%
prediction = None


# %%
# %%px
def slow_network(layers, width, seconds):
    return nn.Sequential(*(SlowLinear(width, seconds) for _ in range(layers)))


# %%
# %%px
with emulated_link(latency=0.001, bandwidth=300e6):
    network = slow_network(6, 512, 0.010)
    flattened = watched_backward(network, lambda: sync_flattened(network))
    ways = [flattened]
    for overlap in (False, True):
        network = slow_network(6, 512, 0.010)
        sync = BucketedGradientSync(network, bucket_bytes=2**20, overlap=overlap)
        ways.append(watched_backward(network, sync.finish))


# %%
# %%px
def hidden(way):
    """Seconds that a pass is shorter than its computing and its sending one after the other."""
    seconds, ready, sent = way
    computing, sending = ready[-1][1], sum(end - start for _, start, end in sent)
    return computing + sending - seconds


assert [len(sent) for _, _, sent in ways] == [1, 6, 6]
assert max(hidden(way) for way in ways[:2]) <= 0 < hidden(ways[2]), "only the third overlaps"

# %% tags=["nbval-ignore-output"]
ways = cluster.view["ways"][0]
n, link = 2**20, (0.001, 300e6)
each, all_at_once = sync_seconds(4, n, *link), sync_seconds(4, 6 * n, *link)
predicted = [0.060 + all_at_once, 0.060 + 6 * each, 0.060 + each]
compare(prediction, [round(1e3 * seconds) for seconds, *_ in ways], within=0.15, unit="ms")
print("predicted:", [round(1e3 * seconds) for seconds in predicted], "ms")
assert all(way[0] >= least for way, least in zip(ways, predicted, strict=True)), "no short cut"

# %% tags=["nbval-ignore-output"]
figures.buckets(
    {
        "Flattened, afterwards": figures.Backward(*ways[0][1:]),
        "Per layer, afterwards": figures.Backward(*ways[1][1:]),
        "Per layer, overlapped": figures.Backward(*ways[2][1:]),
    },
    title="The same backward pass three times (rank 0)",
)

# %% [markdown]
# Solid blocks are layers, and hatched blocks are their buckets on the link. Buckets alone make the step slower. An all-reduce of 1 MiB uses recursive doubling, which is cheaper at that size; one of 6 MiB uses the ring. Together, the six small all-reduces pay twice as many latencies as the large one and send a third more bytes, and the extra bytes cost more than the extra latencies. Buckets *with overlap* are best: everything except the last bucket is hidden behind computing. What is not hidden is *exposed* communication, and only that counts as $T_\text{sync}$ in the formula of section 1.
#
# *Published* [1]: on 32 GPUs, overlap brought a speed-up of 38.0% (ResNet50) and 35.2% (BERT) with NCCL, and of 26.8% and 21.5% with gloo. We read each of these numbers as the fraction of a step's time that overlap saved. How large can this fraction be at best? The backward pass takes about two thirds of the computing time. If the backward pass takes $b$, the forward pass $b/2$ and communication $c$, then overlap saves $\min(b, c)$ of $\frac32 b + c$: at most 40%, at $c = b$.

# %%
gains = [scaling.largest_overlap_gain(0.5, 1.0, c) for c in (0.25, 0.5, 1.0, 2.0, 4.0)]
print("at most:", *(f"{gain:.0%}" for gain in gains))
assert max(gains) == 0.4
published = [0.380, 0.352, 0.268, 0.215]
assert max(published) < 0.4, "all of them possible"

# %% [markdown]
# ### How large should a bucket be?
#
# Small buckets leave early, but each one pays the latency. Large buckets pay it less often, but leave late, and the last one is exposed. So there must be a best size in between. Take 24 layers of 256 KiB and 3 ms each, a link with a latency of 1.5 ms and a bandwidth of 300 MB/s, and buckets of 1, 2, 4, 8 and 24 layers.
#
# `backward_with_buckets` predicts the time: a bucket leaves when its last gradient is ready and the previous bucket has arrived.
#
# **Predict.** Which of these sizes is best? Write the number of layers per bucket.

# %%
prediction = None

# %%
# %%px
curve = {}
with emulated_link(latency=0.0015, bandwidth=300e6):
    for layers in (1, 2, 4, 8, 24):
        network = slow_network(24, 256, 0.003)
        sync = BucketedGradientSync(network, bucket_bytes=layers * 2**18)
        seconds, *_ = watched_backward(network, sync.finish, passes=3)
        curve[layers] = seconds, [(len(bucket.names), bucket.nbytes) for bucket in sync.buckets]
        sync.remove()
assert [len(buckets) for _, buckets in curve.values()] == [24, 12, 6, 4, 2]


# %% tags=["nbval-ignore-output"]
curve = cluster.view["curve"][0]


def predicted_backward(buckets):
    layers, sizes = zip(*buckets, strict=True)
    seconds = [0.003 * number for number in layers]
    return scaling.backward_with_buckets(
        seconds, sizes, 0, lambda n: sync_seconds(4, n, 0.0015, 300e6)
    ).seconds


predicted = [predicted_backward(buckets) for _, buckets in curve.values()]
compare(prediction, min(curve, key=lambda layers: curve[layers][0]))
print("predicted best:", list(curve)[int(np.argmin(predicted))])
assert all(curve[layers][0] >= least for layers, least in zip(curve, predicted, strict=True))

# %% tags=["nbval-ignore-output"]
figures.measured_and_predicted(
    [layers * 2**18 for layers in curve],
    [seconds for seconds, _ in curve.values()],
    predicted,
    xlabel="bucket size (bytes)",
    ylabel="time (seconds)",
    title="Backward and all-reduce, 24 layers of 256 KiB",
)

# %% [markdown]
# The curve is a valley, as predicted. (`BucketedGradientSync` closes its first bucket at 1 MiB at the latest, so that something leaves early; DistributedDataParallel does the same by default. The prediction is for exactly these buckets.) The points lie above the line because the formula leaves two things out: a sleep always lasts a little longer than requested, and every message also costs real time. The smallest buckets need the most messages, so their points are furthest from the line. Where real messages are slow, because the cores are busy or the ranks are on several machines, the valley moves to the right or disappears.
#
# The default bucket size of DistributedDataParallel is 25 MiB, chosen for models with hundreds of MiB of parameters. The best size depends on the model and the link, so measure it.
#
# ## 6. Stragglers
#
# In every step, synchronous SGD waits for the slowest rank. Even when all ranks are equally fast *on average*, one of them is the slowest in any given step, because of garbage collection, another user, or a longer sentence in the batch.
#
# Suppose that a step takes 5 ms plus a random delay, exponentially distributed with a mean of 5 ms and drawn separately for each rank and step. The mean is 10 ms for every rank. The mean of the *slowest* of $R$ ranks is $5 + 5\,H_R$ ms with $H_R = 1 + \frac12 + \dots + \frac1R$: on average, the shortest of the $R$ delays ends after $1/R$ of the mean, the next after another $1/(R-1)$, and so on.
#
# **Predict.** How many milliseconds does a step take on average with four ranks, not counting the all-reduce? Write a number.

# %%
prediction = None

# %%
# %%px
from torch_mpi4py.tools.clocks import clock_offsets

STEPS = 80
generator = np.random.default_rng(seed=48)
delays = generator.exponential(0.005, size=(STEPS, world_size))  # the same on every rank
number = torch.zeros(1)
ahead = clock_offsets(comm)[rank].offset  # of this rank's clock against rank 0's, by messages


def steps_with_stragglers(members, group):
    """Return seconds for all steps, and when this rank computed and waited."""
    spans = []
    dist.barrier(group)
    start = time.perf_counter()
    for step in range(STEPS):
        begin = time.perf_counter()
        time.sleep(0.005 + delays[step, rank])
        computed = time.perf_counter()
        dist.all_reduce(number, group=group)
        spans.append((begin - ahead, computed - ahead, time.perf_counter() - ahead))
    return time.perf_counter() - start, spans


# %%
# %%px
alone = dist.new_group([0]), dist.new_group([1]), dist.new_group([2]), dist.new_group([3])
stragglers = {}
for group in (alone[rank], pair, dist.group.WORLD):
    members = dist.get_process_group_ranks(group)
    seconds, spans = steps_with_stragglers(members, group)
    slowest = 0.005 + delays[:, members].max(axis=1)
    # No step ends before its slowest rank; 5% for ranks that left the barrier before us.
    assert seconds >= 0.95 * slowest.sum()
    stragglers[len(members)] = seconds / STEPS, slowest.mean()
assert stragglers[1][1] < stragglers[2][1] < stragglers[4][1]
assert slowest.sum() > 1.3 * (0.005 + delays).sum(axis=0).max(), "meeting in each step costs"

# %% tags=["nbval-ignore-output"]
stragglers = cluster.view["stragglers"][0]
compare(prediction, 1e3 * stragglers[4][0], within=0.15, unit="ms")
print("ranks   measured here   slowest of those drawn   expected (ms)")
for ranks, (seconds, drawn) in stragglers.items():
    expected = scaling.expected_slowest_exponential(ranks, 0.005, 0.005)
    print(f"{ranks:5} {1e3 * seconds:13.1f} {1e3 * drawn:21.1f} {1e3 * expected:17.1f}")

# %% tags=["nbval-ignore-output"]
everyones = cluster.view["spans"]
first, last = min(lane[0][0] for lane in everyones), max(lane[7][2] for lane in everyones)
lanes = [
    [figures.Busy("", begin, computed) for begin, computed, _ in lane[:8]] for lane in everyones
]
figures.timeline(
    lanes,
    start=first,
    end=last,
    title="Eight steps: who computes, who waits for the slowest",
    alt="Timeline of four ranks over eight steps: in each step all begin together, each computes "
    "for a different time, and all but the slowest are idle until the slowest is done.",
)

# %% [markdown]
# During the hatched time you pay for an idle rank. Here a waiting rank sleeps and leaves its core to other programs: 4 s of waiting take 0.04 s of CPU time. A rank that waits inside plain MPI spins and occupies the whole core; a GPU that waits in NCCL is just as busy. Neither does any useful work.
#
# The time axis needs one clock, and we use that of rank 0. Round-trip messages measured how far the clock of every other rank is `ahead` of it. Within one machine, the clocks agree and `ahead` is only the error of that measurement, a few microseconds. Between machines, whose clocks start at boot, it can be days.
#
# Compare two sums over the 80 steps: the sum of each step's longest time is more than 40% larger than the sum of any single rank's times. If the ranks met less often, fast and slow steps would even out. That is one reason why asynchronous SGD (lesson 09) and local SGD exist.
#
# What happens with many ranks? The next figure is *predicted*, for three kinds of steps with the same mean of 10 ms: steps of constant length, steps with normally distributed times (the bell curve) and a standard deviation of 1 ms, and steps with the exponential delays above.

# %%
from rank_by_rank.lesson_06.figures import slowest_of_many

many = [2**k for k in range(17)]
bell = [scaling.expected_slowest_normal(r, 0.010, 0.001) / 0.010 for r in many]
exponential = [scaling.expected_slowest_exponential(r, 0.005, 0.005) / 0.010 for r in many]
assert 1.3 < bell[many.index(1024)] < 1.35
assert exponential[many.index(1024)] > 4
slowest_of_many(many, {"exponential delays": exponential, "bell curve": bell})

# %% [markdown]
# Rare long delays hurt; small fluctuations hardly matter. The slowest rank's time grows like $\ln R$ with exponential delays and like $\sqrt{2 \ln R}$ with the normal distribution, and neither ever stops growing. A rank that is *always* slow is a different case: it simply sets the pace.
#
# ### Exercise 4: what waiting costs
#
# `times[step][rank]` is the time in seconds for which that rank computed in that step. All ranks begin a step together, and the step ends when the slowest rank is done. Write `waiting_share(times)`, which returns the fraction of all the ranks' time that is spent waiting.


# %% tags=["exercise"] exercise="06.waiting_share"
def waiting_share(times):
    """Return the waiting of all ranks over the time of all ranks, between 0 and 1."""
    ### BEGIN SOLUTION
    ranks = len(times[0])
    spent = ranks * sum(max(step) for step in times)
    computed = sum(sum(step) for step in times)
    return (spent - computed) / spent
    ### END SOLUTION


# %% tags=["check"]
check("06.waiting_share")

# %% [markdown]
# Stuck? `hint("06.waiting_share")`, `solution("06.waiting_share")`.
#
# ## 7. Strong and weak scaling
#
# So far the batch per rank was fixed, and the work in a step grew with $R$: this is *weak scaling*. If the batch of *all* ranks together is fixed at $B$ instead, so that learning stays the same, each rank gets $B/R$ samples: this is *strong scaling*. The computing time then shrinks, and everything that does not shrink begins to show.
#
# Let a step on $b$ samples take $2 + 0.25\, b$ milliseconds. The 2 ms are a fixed cost of every step, such as the time to launch each layer. With $B = 64$ a step takes 18 ms. The link has a latency of 0.5 ms and a bandwidth of 100 MB/s, and the gradient is that of LeNet.
#
# **Predict.** What is the speed-up of four ranks with (a) weak and (b) strong scaling? ($T_\text{sync}$ is 2 · (0.5 + 2.5) = 6 ms.) Write `[a, b]`.

# %%
prediction = None


# %%
# %%px
def scaled_step(samples, group):
    def step():
        time.sleep(0.002 + 0.00025 * samples)
        dist.all_reduce(gradient, group=group)

    return step


weak, strong = [], []
with emulated_link(latency=0.0005, bandwidth=100e6):
    for ranks, group in ((1, alone[rank]), (2, pair), (4, dist.group.WORLD)):
        dist.barrier()
        weak.append(ranks * 64 / seconds_of(scaled_step(64, group), repeats=11))
        strong.append(64 / seconds_of(scaled_step(64 // ranks, group), repeats=11))

# %% tags=["nbval-ignore-output"]
rates = {"weak": cluster.view["weak"][0], "strong": cluster.view["strong"][0]}
gains = {kind: [rate / values[0] for rate in values] for kind, values in rates.items()}
compare(prediction, [round(gains[kind][2], 2) for kind in ("weak", "strong")], within=0.15)
assert rates["weak"][2] > rates["strong"][2], "samples a second"


def comp_of(samples):
    return 0.002 + 0.00025 * samples


def sync_of(ranks):
    return sync_seconds(ranks, GRADIENT_BYTES, 0.0005, 100e6)


some = [1, 2, 4, 8, 16, 32, 64]
by_scaling = {
    "weak": [point.speed_up for point in scaling.weak_scaling(some, 64, comp_of, sync_of)],
    "strong": [point.speed_up for point in scaling.strong_scaling(some, 64, comp_of, sync_of)],
}
for kind, values in gains.items():
    by_formula = by_scaling[kind][some.index(4)]
    print(f"{kind} scaling, 4 ranks: speed-up {values[2]:.2f}, predicted {by_formula:.2f}")
# %% tags=["nbval-ignore-output"]
not_measured = [float("nan")] * (len(some) - 3)
figures.measured_and_predicted(
    some,
    {kind: values + not_measured for kind, values in gains.items()},
    by_scaling,
    xlabel="ranks R",
    ylabel="speed-up over 1 rank",
    title="Weak scaling goes on, strong scaling ends",
)

# %%
best = some[int(np.argmax(by_scaling["strong"]))]
print("strong scaling is best at", best, "ranks: speed-up", round(max(by_scaling["strong"]), 2))
assert best < 64
assert max(by_scaling["strong"]) < 2

# %% [markdown]
# Two laws describe strong and weak scaling without communication. Let $s$ be the fraction of the time that is spent on work that the ranks cannot share.
#
# - **Amdahl**: the problem has a fixed size. The fraction $s$ of *one* rank's time does not shrink, so the speed-up is $1 / (s + \frac{1-s}{R})$ and never exceeds $1/s$, which is 18/2 = 9 here.
# - **Gustafson**: the problem grows with $R$. The fraction $s$ of the *parallel* run's time goes to work that is not shared, so the speed-up is $s + (1-s)R$ and grows without limit.
#
# The laws do not contradict each other: one describes strong scaling, the other weak scaling.
#
# Mind the *baseline*. Gustafson's baseline is one rank that does the part $s$ once and the other part $R$ times. Our baseline is one rank that takes $R$ steps for the same samples and spends the 2 ms in each of them. On 2, 4 and 8 ranks, weak scaling without communication gives speed-ups of exactly 2, 4 and 8 against our baseline, whereas Gustafson's law gives 1.89, 3.67 and 7.22. These are answers to two different questions.

# %%
s = 0.002 / 0.018
print("ranks   Amdahl   strong scaling   Gustafson   weak scaling   (all predicted)")
for ranks, one, other in zip(some, by_scaling["strong"], by_scaling["weak"], strict=True):
    laws = scaling.amdahl(ranks, s), scaling.gustafson(ranks, s)
    print(f"{ranks:5} {laws[0]:8.2f} {one:16.2f} {laws[1]:11.2f} {other:14.2f}")
assert abs(scaling.amdahl_limit(s) - 9) < 1e-12
assert all(
    scaling.amdahl(r, s) > 2 * one
    for r, one in zip(some[3:], by_scaling["strong"][3:], strict=True)
)

# %% [markdown]
# Strong scaling stays far below Amdahl's law because communication does not shrink with $R$: it grows. You can see this from the speed-ups alone, measured or, as here, predicted. From each speed-up $S$, compute the $s$ that Amdahl's law would need to explain it (Karp and Flatt [6]): $s = (1/S - 1/R) / (1 - 1/R)$. If $s$ *grows* with $R$, the loss is due to communication and not to serial work. (If $s$ is above 1, the ranks together are slower than one.)

# %%
apparent = [
    scaling.serial_fraction(r, gain)
    for r, gain in zip(some[1:], by_scaling["strong"][1:], strict=True)
]
print("apparent serial fraction:", *(f"{value:.2f}" for value in apparent), "(predicted)")
assert apparent == sorted(apparent)
assert apparent[0] > s

# %% [markdown]
# ### A place to stop
#
# You can now measure $T_\text{comp}$ and $T_\text{sync}$, predict from them when more ranks pay, and move the boundary with a larger batch, fewer messages and overlap. You know what stragglers cost and why strong scaling has a limit. That is enough for daily work, and you may go on to lesson 07. The rest of this lesson applies such formulas to published runs on hundreds of GPUs, and then to 100,000 ranks. The recap is at the end.
#
# ## 8. Far beyond this machine
#
# Can such formulas say anything about hundreds of GPUs? We predict the efficiency of large runs from published hardware figures, and compare it with the published efficiency.
#
# ### Exercise 5: read an efficiency
#
# A paper reports samples per second: `base_rate` on `base_ranks` ranks (the *baseline*, not always one rank), and `rate` on `ranks` ranks. Write `read_efficiency(base_ranks, base_rate, ranks, rate)`. It returns two numbers: the efficiency relative to the baseline, as a fraction, and the ratio $T_\text{sync}/T_\text{comp}$ that this efficiency implies if the baseline itself loses nothing.


# %% tags=["exercise"] exercise="06.read_efficiency"
def read_efficiency(base_ranks, base_rate, ranks, rate):
    """Return (efficiency, T_sync / T_comp)."""
    ### BEGIN SOLUTION
    efficiency = (rate / ranks) / (base_rate / base_ranks)
    return efficiency, 1 / efficiency - 1
    ### END SOLUTION


# %% tags=["check"]
check("06.read_efficiency")

# %% [markdown]
# Stuck? `hint("06.read_efficiency")`, `solution("06.read_efficiency")`.
#
# ### Published runs
#
# We use two sets of runs. Goyal and others [2] trained ResNet-50 on up to 352 GPUs, with an efficiency of about 90% on 256. *Horovod* [3] is a library that brought the ring all-reduce to users of TensorFlow and PyTorch. On 512 GPUs, its benchmarks reached efficiencies of about 90% for Inception V3 and ResNet-101, and 68% for VGG-16.
#
# First, some terms. With *RoCE*, the network card of one machine reads and writes the memory of another over Ethernet, without involving the CPUs. The *leader* of a machine is the rank that talks to other machines. A *fusion buffer* is Horovod's name for a bucket. To *fold* is to let some ranks stand aside when the number of ranks is not a power of two, as in lesson 03. Where the sources say nothing, we had to make assumptions:

# %%
from IPython.display import Markdown

from rank_by_rank.lesson_06 import published_runs

Markdown(published_runs.assumptions_table())

# %% [markdown]
# We use the model of section 1, with the formula for an all-reduce as $T_\text{sync}$. The efficiency is then
#
# $$\frac{T_\text{comp}}{T_\text{comp} + T_\text{exposed}} .$$
#
# Without any fitted parameter, the model gives two bounds. For the lower bound, nothing overlaps: $T_\text{exposed} = T_\text{sync}$. For the upper bound, the backward pass, which takes two thirds of the computing time, hides as much as it can: $T_\text{exposed} = \max(0,\, T_\text{sync} - \frac23 T_\text{comp})$. For a value in between, we need *one* fitted parameter: the $f$ in $T_\text{exposed} = f\, T_\text{sync}$. We fit it to the three runs on 16 GPUs. `reproduce()`, which you call below, does no more than this.
#
# **Predict.** The model leaves out four things: stragglers, input, contention and protocol overhead. Are its predictions for the other runs therefore (A) too high in every case, (B) too low in every case, or (C) too high in some cases and too low in others? Answer A, B or C.

# %%
prediction = None

# %%
reproduced = published_runs.reproduce()
others = [row for row in reproduced if not row.fitted]
too_good = [row.error > 0 for row in others]
answer = "A" if all(too_good) else "C" if any(too_good) else "B"
compare(prediction, answer, source="Predicted against published")
assert all(row.within_bounds for row in reproduced), "published values lie between the bounds"
assert len(others) == 8
assert max(row.error for row in others) < 0.12

# %%
from rank_by_rank.lesson_06.figures import efficiencies

names = [row.run.name.replace("Horovod, ", "").replace("Goyal et al., ", "") for row in reproduced]
efficiencies(
    [
        (name, row.run.published, row.low, row.predicted, row.high)
        for name, row in zip(names, reproduced, strict=True)
    ],
    title="Published and predicted efficiencies",
    alt="Eleven published efficiencies from 68% to 94%, each inside the bar from no overlap to "
    "perfect overlap; the predicted ones lie to the right of the published ones by 2 to 12 "
    "points, except for VGG-16 on 16 GPUs. VGG-16 on 512 GPUs is furthest off.",
)

# %%
Markdown(published_runs.reproduced_table())

# %% [markdown]
# All eight predictions are too high: seven by 2 to 6 percentage points, and **VGG-16 on 512 GPUs by 12, where the model says 79.9% and the published value is 68%**. This miss teaches more than another hit would. VGG-16 sends 552 MB per step, three times as much as ResNet-101, so the effects that we left out matter most there: the line rate is never reached, and a ring of 512 GPUs waits for its slowest card in each of 1,022 steps. A model whose error grows with the load is good enough to rank designs, but do not trust it for the last 10%.
#
# The model does worse on the overlap gains of section 5. From each published gain, we can work out how long synchronising must have taken. Only for ResNet-50 with NCCL are there enough published numbers to predict the gain, and the prediction is less than half of the published value:

# %%
Markdown(published_runs.gains_table())

# %% [markdown]
# A formula based on the line rate tells you what is possible, not what happens. The paper that reports these gains also claims "near-linear scalability using 256 GPUs" [1], but gives no number; the second table above shows the range of efficiencies that the formula allows.
#
# ### To 10,000 and 100,000 ranks
#
# We take ResNet-50 as above, with 32 samples per rank, 8 ranks per node and 50 Gbit/s per node. A *flat ring* goes through all ranks; an all-reduce with *two levels* sums inside each node first.
#
# Two effects appear that you do not see on a small machine. First, past a *critical batch*, more samples per step hardly save any steps [4]; for ImageNet, the paper puts the limit in the tens of thousands of samples, and we take 20,000. Second, machines fail. One published run had 419 interruptions in 54 days on 16,384 GPUs [5]. We scale this rate to our number of ranks; each interruption costs a restart and the steps since the last checkpoint.
#
# Three formulas give the efficiency that remains when only the batch, only the ring's latency or only failures are taken into account; `limits()` finds the $R$ at which one half remains. With $B$ samples per rank and the critical batch $B_c$:
#
# - the batch: only the fraction $1 / (1 + R B / B_c)$ of the samples counts;
# - the latency of a flat ring: the fraction $T_\text{comp} / (T_\text{comp} + 2 (R - 1)\, \alpha)$ of a step is computing;
# - failures: the fraction $1 - \delta/\tau - \tau/(2\,T_\text{fail}) - \rho/T_\text{fail}$ of the time remains. On average, there is one failure every $T_\text{fail}$ seconds. A checkpoint takes $\delta$ = 10 s and is written every $\tau = \sqrt{2\,\delta\,T_\text{fail}}$ seconds. Each failure costs half of such an interval, which has to be repeated, and a restart of $\rho$ = 300 s (lesson 12).
#
# **Predict.** As $R$ grows, what halves the efficiency *first*: (A) the latency of the ring, (B) the batch, or (C) failures? Answer A, B or C.

# %%
prediction = None

# %%
from rank_by_rank.lesson_06 import extrapolation
from rank_by_rank.lesson_06.figures import what_breaks_first

job = extrapolation.Job(
    batch=32,
    comp_seconds=0.192,  # T_comp of Goyal's baseline
    gradient_bytes=102e6,
    inside=cost.Link(5e-6, 20e9),
    between=cost.Link(10e-6, cost.bytes_per_second(50)),
)
order = extrapolation.limits(job)
letters = {"latency": "A", "batch": "B", "failures": "C"}
compare(prediction, letters[order[0][0].split()[0]], source="By the formulas")
for what, ranks in order:
    print(f"{what}: half of the efficiency is lost at {ranks:,} ranks (predicted)")

# %%
assert [what.split()[0] for what, _ in order] == ["batch", "latency", "failures"]
Markdown(extrapolation.extrapolated_table(job, (8, 256, 2_048, 10_000, 100_000)))

# %%
what_breaks_first([extrapolation.extrapolate(job, 8 * 2**k) for k in range(15)])

# %% [markdown]
# The "useful" column is the product of the efficiency of a step, the fraction of the samples that count, and the availability.
#
# 1. **The batch** breaks first, at several hundred ranks. This has nothing to do with networks: 10,000 ranks with 32 samples each take steps of 320,000 samples, and almost all of these samples are wasted. Large runs therefore give each rank few samples, or use ranks to split the model as well as the data.
# 2. **The ring's latency** breaks next: $2(R-1)\alpha$ is 0.2 s at 10,000 ranks, as long as the computing in a step. Trees and two-level algorithms do not have this problem.
# 3. **Failures** come last here: one every five hours at 10,000 ranks, two an hour at 100,000. They are the subject of lesson 12.
#
# Each limit is considered by itself, with everything else unchanged. The inputs are uncertain too: the failure rate, for example, comes from a single run. So trust the *order*, not the digits. (At 10,000 and 100,000 ranks, the two-level all-reduce takes longer in the table than in the picture: 1,250 and 12,500 nodes are not powers of two, so Rabenseifner's algorithm has to fold.)

# %% [markdown]
# ### Where the formulas are wrong: shared links
#
# The formulas treat each message as if it had the whole path to itself. On a cluster, however, the ranks of a node share one network card. So we run the all-reduce schedules of lesson 03 on a modelled network, in simulated time. Every rank is a simulated process that sends and receives step by step. A link that several messages cross at once gives each an equal share of its bandwidth. (This is a *discrete-event simulation*; nothing is sent.) A node has 8 ranks. The link between any two of them has a bandwidth of 100 GB/s and a latency of 3 µs; all 8 share one card with a bandwidth of 12.5 GB/s and a latency of 10 µs.
#
# **Predict.** In recursive doubling, each rank exchanges its whole tensor with a partner at distance 1, 2, 4, 8, ... From distance 8 on, all 8 ranks of a node send through its card at the same time. By what factor does this slow down a large message? Write a number.

# %%
prediction = None

# %%
from rank_by_rank.lesson_06.extrapolation import Hierarchy
from rank_by_rank.lesson_06.figures import simulated_beside_formula
from rank_by_rank.lesson_06.network_simulation import Network, simulate, simulated_table

inside, between = cost.Link(3e-6, 100e9), cost.Link(10e-6, 12.5e9)
nodes = [1, 2, 4, 8, 16, 32, 64]
simulated = {
    name: [simulate(name, Network.nodes(Hierarchy(h, 8, inside, between)), 2**26) for h in nodes]
    for name in ("recursive doubling", "ring", "Rabenseifner")
}
compare(prediction, simulated["recursive doubling"][-1].most_at_once[1], source="Simulated")
simulated_beside_formula(simulated, title="64 MiB, 8 ranks share each node's card")

# %%
free = Network(4096, cost.Link(10e-6, 12.5e9))  # every rank has a link of its own
agreeing = simulate("tree", free, 2**26)
assert abs(agreeing.factor - 1) < 1e-9
assert simulated["ring"][-1].factor < 1.001  # one message at a time on each card
assert simulated["recursive doubling"][-1].factor > 4
scattered = simulate(
    "ring", Network.nodes(Hierarchy(16, 8, inside, between), scattered=True), 2**26
)
assert scattered.factor > 6  # neighbours in different nodes: 8 messages on each card
Markdown(simulated_table([agreeing, *(runs[-1] for runs in simulated.values()), scattered]))

# %% [markdown]
# Without contention, simulation and formula agree to nine digits: here for the tree on 4,096 ranks, and in the course's tests for all five algorithms. (A ring of 512 ranks sends half a million messages in identical steps. So only the first steps are simulated, and the others are assumed to take the same time.)
#
# With contention, recursive doubling is several times slower than its formula. The ring does not slow down at all, *provided that neighbours in the ring are in the same node*. In that case, only one message leaves each node at any time, and only one enters it. If you deal the ranks out to the nodes like cards, the ring takes almost seven times as long. Rabenseifner's algorithm does well here because its large messages, those at distances 1, 2 and 4, stay inside nodes. At 16 and 32 ranks it is even *faster* than its formula, which assumes that every message travels between nodes. Because so much depends on where the ranks are, libraries look at the topology before they choose an algorithm.

# %% [markdown]
# ## 9. The calculator
#
# Change one setting at a time: ranks, model size, batch, seconds per sample, latency, bandwidth. (If you are only viewing the notebook, without running it, you see a still picture for ResNet-50 at 10 Gbit/s.) Try VGG-16 (138 million parameters, 7.6 ms per sample): what bandwidth do 64 ranks need to reach an efficiency of 80%? What changes if the batch is four times as large?

# %%
from rank_by_rank.lesson_06.calculator import calculator

calculator(parameters=25.6e6, batch=32, sample_seconds=0.006, latency=20e-6, bandwidth=1.25e9)

# %% [markdown]
# ## Break it on purpose: a clock that is stopped too early
#
# **Symptom.** You measure $T_\text{sync}$ with `async_op=True`, and the result is far too short for this network:

# %%
# %%px
with emulated_link(latency=0.001, bandwidth=5e6):
    dist.barrier()
    start = time.perf_counter()
    handle = dist.all_reduce(gradient, async_op=True)
    too_early = time.perf_counter() - start
    handle.wait()
    right = time.perf_counter() - start
assert right > 0.080  # 6 (1 + 12.3) ms predicted
assert too_early < right / 2

# %% tags=["nbval-ignore-output"]
too_early, right = cluster.view["too_early"][0], cluster.view["right"][0]
print(f"without waiting {1e3 * too_early:.2f} ms, with waiting {1e3 * right:.1f} ms")

# %% [markdown]
# **Diagnosis.** An asynchronous call returns as soon as the work is requested, not when it is done. On GPUs every call behaves like this, computation included: without `torch.cuda.synchronize()` you measure only how long the request takes. The opposite mistake is to start the clock without a barrier. Then "$T_\text{sync}$" includes the wait for a late rank, and you blame a fast network for a slow data loader.
#
# **Fix.** Call a barrier, start the clock, call the all-reduce, *wait for it*, stop the clock; repeat, and take the median.
#
# ## Recap
#
# | | what to remember |
# |---|---|
# | it pays if | $T_\text{sync}/T_\text{comp} < R - 1$ |
# | speed-up | $R / (1 + T_\text{sync}/T_\text{comp})$, with the *exposed* $T_\text{sync}$ |
# | ratio | falls as the batch grows; lower for convolutions than for wide linear layers |
# | flattened instead of per parameter | same bytes, fewer latencies |
# | buckets with overlap | all but the last are hidden; this saves at most 40% of a step |
# | bucket size | too small: latency adds up; too large: the last bucket is late. Measure it |
# | stragglers | a step takes as long as its slowest rank; with exponential delays, the longest delay grows on average as $H_R$ |
# | strong scaling, Amdahl | fixed problem; the speed-up never exceeds $1/s$ |
# | weak scaling, Gustafson | growing problem; the speed-up keeps growing, and so does the batch |
# | a published efficiency | per rank, relative to the authors' baseline |
# | what breaks first | the batch, then the ring's latency, then failures |
#
# **Next:** lesson 07 looks at another way to use several devices, DataParallel, and at the extra work that its master does.
#
# ## References and further reading
#
# 1. S. Li, Y. Zhao, R. Varma and others, "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", *Proceedings of the VLDB Endowment* 13(12), 3005–3018, 2020. Buckets and overlap in sections 3.2.2 and 3.2.3, gains in section 5.1.
# 2. P. Goyal and others, "Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour", arXiv:1706.02677, 2017.
# 3. A. Sergeev and M. Del Balso, "Horovod: fast and easy distributed deep learning in TensorFlow", arXiv:1802.05799, 2018, and the benchmarks in Horovod's documentation.
# 4. S. McCandlish, J. Kaplan, D. Amodei and the OpenAI Dota Team, "An Empirical Model of Large-Batch Training", arXiv:1812.06162, 2018.
# 5. Llama Team, "The Llama 3 Herd of Models", arXiv:2407.21783, 2024, section 3.3.4.
# 6. G. M. Amdahl, "Validity of the single processor approach to achieving large scale computing capabilities", *AFIPS Conference Proceedings* 30, 483–485, 1967; J. L. Gustafson, "Reevaluating Amdahl's law", *Communications of the ACM* 31(5), 532–533, 1988; A. H. Karp and H. P. Flatt, "Measuring parallel processor performance", *Communications of the ACM* 33(5), 539–543, 1990.
# 7. R. Thakur, R. Rabenseifner and W. Gropp, "Optimization of Collective Communication Operations in MPICH", *International Journal of High Performance Computing Applications* 19(1), 49–66, 2005.
# 8. H. A. David and H. N. Nagaraja, *Order Statistics*, 3rd edition, Wiley, 2003.
