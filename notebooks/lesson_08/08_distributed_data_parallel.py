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
# # 08 DistributedDataParallel
#
# **The one idea.** With `DistributedDataParallel` (DDP), one line of code replaces the synchronous SGD that you wrote by hand. DDP starts the all-reduce of the last layers' gradients while those of the first layers are still being computed.
#
# **You will be able to**
# - turn a one-process training loop into a loop for many ranks, and prove that both compute the same result;
# - say what DDP sends and when, and observe its hooks, buckets, overlap and buffers;
# - avoid the usual mistakes: a sampler that never reshuffles, padded test sets, uneven inputs, unused parameters, batch norm, `module.`;
# - save bytes with `no_sync`, communication hooks and 8-bit gradients, measure how many you save, and carry rounding errors over to the next step;
# - launch the same training with `torchrun` and with `mpiexec`, and choose between DataParallel, DDP and your own loop.
#
# **Prerequisites:** lesson 05 (synchronous SGD by hand). Lesson 07 (DataParallel) helps with section 11.
#
# **Time.** The notebook runs in about 40 s (*measured here*: 4 ranks on 2 cores). Allow 220 minutes, in two sittings, to study it and do its five exercises. Sections 1 to 6 stand on their own (about 120 minutes). You can skip section 11 and, in a workshop, the part of section 7 after its first table.

# %%
from course_lib.cluster import start_cluster
from course_lib.teaching import check, compare, figures, hint, progress, solution
from rank_by_rank.lesson_08.figures import distances_to_minimum

# %% tags=["nbval-ignore-output"]
cluster = start_cluster(n=4)

# %% [markdown]
# Most networks in this lesson are small enough to stay on the CPU, even if you have GPUs. Results that agree "to the last bit" therefore do so on every machine. The text points out what is different on GPUs.

# %%
# %%px
from datetime import timedelta

import torch_mpi4py  # lets torch.distributed talk through MPI
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from course_lib.parallel.gradient_sync import sync_gradients
from course_lib.parallel.initial_weights import sync_initial_weights
from course_lib.parallel.invariants import assert_matches_serial, assert_replicas_equal
from course_lib.parallel.invariants import assert_weights_moved, snapshot
from course_lib.training import data, models

if not dist.is_initialized():
    dist.init_process_group("mpi4py", init_method="mpi://", timeout=timedelta(seconds=30))
training, test, _ = data.load_available("digits", size=28)

# %% [markdown]
# ## 1. One line
#
# This is the training loop of lesson 05. Each rank takes its part of the batch, 32 images. A loop for a single process would look the same, but without the call to `sync`.


# %%
# %%px
def lenet(seed):
    torch.manual_seed(seed)
    return models.LeNet()


def part_of_batch(step, part, parts):
    """Part number `part` of `parts`, 32 samples each, of the batch of this step."""
    chosen = torch.arange(32) + 32 * (step * parts + part)
    return training[chosen % len(training)]


# %%
# %%px
def train(model, steps, sync=None, group=None):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(steps):
        images, labels = part_of_batch(step, dist.get_rank(group), dist.get_world_size(group))
        loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        if sync is not None:
            sync(model, group)
        optimizer.step()


# %% [markdown]
# If you synchronise by hand, you need two calls, one before the first step and one in each step. With DDP you wrap the model, and the loop needs no extra line. Note the seeds: every rank begins with *different* weights.

# %%
# %%px
by_hand = lenet(seed=rank)
sync_initial_weights(by_hand)
train(by_hand, 20, sync=sync_gradients)

by_ddp = DDP(lenet(seed=rank))
before = snapshot(by_ddp)
train(by_ddp, 20)

assert_replicas_equal(by_hand)
assert_replicas_equal(by_ddp)
assert_weights_moved(by_ddp, before)

# %% [markdown]
# The model trained by hand is the same on all ranks, and so is the one trained with DDP. Are the two also equal to each other?
#
# **Predict.** After 20 steps on **two** ranks, what is the largest difference between a weight trained by hand and the same weight trained with DDP? The cell creates two groups, one of ranks 0 and 1 and the other of ranks 2 and 3, and each group trains on its own.

# %%
prediction = None


# %%
# %%px
def largest_difference(one, other):
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return max((a - b).abs().max().item() for a, b in pairs)


groups_of_two = [dist.new_group([0, 1]), dist.new_group([2, 3])]
pair = groups_of_two[rank // 2]

hand_2 = lenet(seed=0)
train(hand_2, 20, sync=sync_gradients, group=pair)
ddp_2 = DDP(lenet(seed=0), process_group=pair, bucket_cap_mb=0.01)  # several messages, not one
train(ddp_2, 20, group=pair)
difference = largest_difference(hand_2, ddp_2)
print(difference)

# %%
compare(prediction, cluster.view["difference"][0])
assert cluster.view["difference"] == [0] * 4

# %% [markdown]
# The difference is not just small: it is zero. Two numbers have only one sum, $a + b = b + a$, even in floating point. Our own code divides the sum by 2, whereas DDP divides each gradient before adding; halving is exact either way. So on two ranks *every* correct synchronisation gives the same bits.
#
# On four ranks the sum depends on the order of addition: $(a+b)+(c+d)$ and $((a+b)+c)+d$ can differ in the last bits. An all-reduce may add in any order, and the order may even depend on the size of the message. To fix the order, we synchronise in a third way: gather all gradients and add them one after another, starting with rank 0's.
#
# **Predict.** On four ranks and after 20 steps, what is the order of magnitude of the largest difference between weights trained with DDP and weights trained with gradients added in rank order? A float32 rounding error is about $6 \cdot 10^{-8}$ of the rounded number, and the weights are about 0.1. Write a power of ten, such as `1e-3`, or 0.

# %%
prediction = None


# %%
# %%px
def sync_in_rank_order(model, group):
    for parameter in model.parameters():
        everyone = [torch.empty_like(parameter) for _ in range(world_size)]
        dist.all_gather(everyone, parameter.grad, group=group)
        parameter.grad = sum(everyone) / world_size  # ((a + b) + c) + d


in_order = lenet(seed=0)
train(in_order, 20, sync=sync_in_rank_order)
assert_replicas_equal(in_order)
differences = [largest_difference(other, by_ddp) for other in (by_hand, in_order)]

# %% tags=["nbval-ignore-output"]
by_hand_and_ddp, in_order_and_ddp = cluster.view["differences"][0]
compare(prediction, in_order_and_ddp, within=10)
assert max(max(pair) for pair in cluster.view["differences"]) < 1e-4
print(f"by hand against DDP: {by_hand_and_ddp:.1g}")

# %% [markdown]
# On one Linux machine this course's backend adds in rank order itself, so the difference is 0, and the model trained by hand agrees with the DDP model bit for bit, too. In other cases (such as several machines or gloo) the order is up to the library, and no standard guarantees it. Then each gradient may be off by one or two rounding errors, and these accumulate over 20 steps with momentum, typically to about $10^{-8}$. We allow $10^{-4}$, a thousandth of a weight; a real mistake, such as a forgotten division, changes the weights by 0.1 or more.
#
# So far, we have compared the ranks with each other, and DDP with our own loop. The third comparison is the one that counts: *R ranks equal one process with the whole batch*. We make it in float64, where rounding errors are about $10^{-16}$, too small to hide a mistake. Rank 0 also trains a model alone, on the whole batch of 128 images. We allow $10^{-12}$, which leaves room for ten thousand rounding errors and is far below the effect of any real mistake.

# %%
# %%px
replica = DDP(lenet(seed=rank).double())
serial = lenet(seed=0).double()
optimizers = [torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9) for m in (replica, serial)]


def step_on(model, optimizer, images, labels):
    optimizer.zero_grad()
    F.cross_entropy(model(images.double()), labels).backward()
    optimizer.step()


for step in range(5):
    step_on(replica, optimizers[0], *part_of_batch(step, rank, world_size))
    if rank == 0:
        parts = [part_of_batch(step, r, world_size) for r in range(world_size)]
        step_on(serial, optimizers[1], *(torch.cat(column) for column in zip(*parts, strict=True)))
assert_matches_serial(replica.module, serial, rtol=0, atol=1e-12)

# %% [markdown]
# Why did all ranks start with equal weights? DDP's constructor compares the shapes of all parameters across the ranks, and then broadcasts the parameters and buffers of rank 0. The *traffic meter* of lesson 03 shows this. It counts how often each collective was called (including calls from C++, such as DDP's), and how many bytes the rank *handed over*. It cannot see what a library sends inside a collective.

# %%
# %%px
from torch_mpi4py import Traffic

with Traffic() as traffic:
    wrapped = DDP(lenet(seed=rank))
calls, handed_over = traffic.collectives["broadcast"]
print(f"{calls} broadcasts, {handed_over:,} bytes handed over")
assert handed_over == 0 if rank > 0 else handed_over >= 4 * models.parameter_count(wrapped)
assert_replicas_equal(wrapped)

# %% [markdown]
# Rank 0 sends, and the others receive. Rank 0 hands over the 61,706 parameters at 4 bytes each, plus 304 bytes for the shapes.
#
# ## 2. Under the hood
#
# ### Gradients come in reverse
#
# The backward pass begins at the loss, so the *last* layer's gradients are ready first. Autograd lets you attach a *hook* to each parameter. A hook is a function that is called as soon as that parameter's gradient is complete.
#
# **Predict.** LeNet has five layers with weights: `features.0`, `features.3`, `classifier.1`, `classifier.3` and `classifier.5`. Which layer's gradient is ready *last*?

# %%
prediction = None

# %%
# %%px
network, ready = lenet(seed=0), []
for name, parameter in network.named_parameters():
    parameter.register_post_accumulate_grad_hook(lambda _, name=name: ready.append(name))
images, labels = part_of_batch(0, rank, world_size)
F.cross_entropy(network(images), labels).backward()

layers = list(dict.fromkeys(name.rpartition(".")[0] for name in ready))
if rank == 0:
    print(" -> ".join(layers))

# %%
layers = cluster.view["layers"][0]
compare(prediction, layers[-1])
assert layers == ["classifier.5", "classifier.3", "classifier.1", "features.3", "features.0"]

# %% [markdown]
# ### Buckets
#
# While the gradient of `features.0` is still being computed, that of `classifier.5` could already be on its way. But the 84 · 10 numbers of that gradient make a short message, and every message has a start-up cost, however short it is. So DDP collects gradients in *buckets*. It goes through the parameters in the order in which their gradients arrive, and closes a bucket as soon as it holds `bucket_cap_mb` mebibytes. When the last gradient of a bucket is ready, DDP sends the bucket.
#
# With a *communication hook* you can observe or replace what DDP does with a full bucket. The hook below records what is in the bucket, and then runs the same all-reduce as DDP.


# %%
# %%px
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks


def watched(model, **options):
    """Return DDP of the model, and a list of what happens in its backward passes."""
    events, names = [], {parameter: name for name, parameter in model.named_parameters()}

    def note_bucket(group, bucket):
        content = [names[parameter] for parameter in bucket.parameters()]
        events.append(("bucket", content, bucket.buffer().nbytes))
        return default_hooks.allreduce_hook(group, bucket)

    for parameter, name in names.items():
        parameter.register_post_accumulate_grad_hook(
            lambda _, name=name: events.append(("ready", [name], 0))
        )
    ddp = DDP(model, **options)
    ddp.register_comm_hook(None, note_bucket)
    return ddp, events


# %% [markdown]
# **Predict.** `bucket_cap_mb=0.01` is 10,486 bytes. In the order above, the layers' parameters take 3,400, then 40,656, 192,480, 9,664 and 624 bytes. How many buckets will DDP make for these five layers?

# %%
prediction = None

# %%
# %%px
bucketed, events = watched(lenet(seed=0), bucket_cap_mb=0.01)
for step in range(2):
    events.clear()
    images, labels = part_of_batch(step, rank, world_size)
    F.cross_entropy(bucketed(images), labels).backward()
    sent = [event for event in events if event[0] == "bucket"]
    if rank == 0:
        print(f"step {step}: {len(sent)} bucket(s)")
if rank == 0:
    for kind, names, nbytes in events:
        what = "ready " if kind == "ready" else f"SEND   {nbytes} bytes:"
        print(" ", what, ", ".join(names))

# %%
compare(prediction, len(cluster.view["sent"][0]))

# %%
# %%px
assert len(sent) == 3
order = [name for kind, names, _ in events if kind == "ready" for name in names]
assert [name for _, names, _ in sent for name in names] == order, "buckets follow the gradients"
for index, (kind, names, _) in enumerate(events):
    if kind == "bucket":  # each leaves directly after the last of its gradients
        assert events[index - 1][1][0] in names
assert sum(nbytes for _, _, nbytes in sent) == 4 * models.parameter_count(bucketed)

# %% [markdown]
# Note two things. First, there was only *one* bucket in step 0. DDP did not know the order yet, so it waited for all gradients, recorded the order in which they arrived, and cut the buckets for all later steps (in rank 0's order, so that the buckets are the same on all ranks). Second, from step 1 on, two of the three `SEND` lines are in the *middle* of the list: these buckets leave before the backward pass ends.
#
# By default, buckets hold 25 MiB, which suits large networks. Only the first is limited to 1 MiB, so that communication starts early; all of LeNet fits into this one bucket. If you set a size, even `bucket_cap_mb=25`, it applies to the first bucket as well. Buckets take memory on top of the gradients, unless you set `gradient_as_bucket_view=True`: then the `.grad` of each parameter is a view into its bucket instead of a copy.
#
# ### Overlap
#
# How much time does sending early save? On this machine it saves little, because the CPU cores compute *and* carry the messages. On a cluster, network cards carry the messages, and we now emulate that case. The model has six layers. The backward pass of each layer takes 6 ms, during which the CPU does *nothing* (it sleeps). A *link* takes one bucket at a time and moves 50 MB/s. Everything else is real: DDP, its hooks, its buckets and the all-reduce.


# %%
# %%px
import time
from concurrent.futures import ThreadPoolExecutor


class Pause(torch.autograd.Function):
    """Pass x on; in backward, take 6 ms."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(0.006)
        return gradient


class SlowLinear(nn.Linear):
    def forward(self, x):
        return Pause.apply(super().forward(x))


def slow_network():
    return nn.Sequential(*(SlowLinear(256, 256, bias=False) for _ in range(6)))


# %% [markdown]
# A hook must return a *future*, which will later hold the averaged bucket. Here, a single thread plays the part of the link: it runs the all-reduce, waits for as long as the bytes would take to travel, and then sets the future's result.


# %%
# %%px
def over_slow_link(names, sent):
    link = ThreadPoolExecutor(1)  # one bucket after the other

    def hook(group, bucket):
        future, label = torch.futures.Future(), "+".join(names[p] for p in bucket.parameters())

        def transfer():
            start, tensor = time.perf_counter(), bucket.buffer()
            dist.all_reduce(tensor)
            time.sleep(tensor.nbytes / 50e6)
            sent.append((label, start, time.perf_counter()))
            future.set_result(tensor / world_size)

        link.submit(transfer)
        return future

    return hook


# %% [markdown]
# The gradient of each layer has 256 · 256 numbers, or 262,144 bytes, which take 5.2 ms on the link.
#
# **Predict.** How many milliseconds does a backward pass take, all-reduce included, (a) with a single bucket for everything and (b) with a bucket for each layer? Write `[a, b]`.

# %%
prediction = None


# %%
# %%px
def backward_passes(bucket_cap_mb, passes=8):
    """Return the fastest of a few backward passes: its seconds, gradients and buckets."""
    network, ready, sent, found = slow_network(), [], [], []
    names = {parameter: str(1 + i) for i, parameter in enumerate(network.parameters())}
    for parameter in names:
        parameter.register_post_accumulate_grad_hook(
            lambda p: ready.append((names[p], time.perf_counter()))
        )
    ddp = DDP(network, bucket_cap_mb=bucket_cap_mb)
    ddp.register_comm_hook(None, over_slow_link(names, sent))
    for _ in range(passes):
        loss = ddp(torch.ones(4, 256)).sum()
        dist.barrier()
        ready.clear(), sent.clear()
        start = time.perf_counter()
        loss.backward()
        seconds = time.perf_counter() - start
        times = (
            [(name, t - start) for name, t in ready],
            [(b, s - start, e - start) for b, s, e in sent],
        )
        found.append((seconds, *times))
    return min(found[2:])


# %%
# %%px
def hidden(run):
    """Seconds that a pass is shorter than its computing and its sending one after the other."""
    seconds, gradients, buckets = run
    computing, sending = gradients[-1][1], sum(end - start for _, start, end in buckets)
    return computing + sending - seconds


one_bucket = backward_passes(bucket_cap_mb=25)
per_layer = backward_passes(bucket_cap_mb=0.25)

# %% tags=["nbval-ignore-output"]
one_bucket, per_layer = cluster.view["one_bucket"][0], cluster.view["per_layer"][0]
measured = [round(1e3 * seconds) for seconds, *_ in (one_bucket, per_layer)]
compare(prediction, measured, within=0.2, unit="ms")

# %%
# %%px
assert (len(one_bucket[2]), len(per_layer[2])) == (1, 6)
assert one_bucket[0] > 6 * 0.006 + 6 * 262144 / 50e6, "nothing can overlap"
assert hidden(one_bucket) <= 0 < hidden(per_layer), "only many buckets overlap with computing"

# %% tags=["nbval-ignore-output"]
figures.buckets(
    {
        "One bucket for everything": figures.Backward(*one_bucket[1:]),
        "A bucket per layer": figures.Backward(*per_layer[1:]),
    },
    title="Six layers, backward and all-reduce (rank 0)",
)

# %% [markdown]
# (a) Sending starts only when computing is done: 6 · 6 + 6 · 5.2 = 67 ms (*predicted*), plus a little for the all-reduce itself. (b) All but the last bucket travel while layers are being computed: 6 · 6 + 5.2 = 41 ms (*predicted*). In the figure, the number in a block is that of the layer; each hatched block is a bucket, labelled with its layers.
#
# We assert only that computing and sending overlap in (b) but not in (a): pass (a) takes at least as long as its computing and its sending together, and pass (b) takes less than its own computing and sending together. Which of the two passes is *shorter* depends on your machine and your network. Each bucket is a real all-reduce. If an all-reduce takes a long time, because the cores are busy or the ranks are on several machines, six small ones can cost more than their overlap saves. Then (b) is no longer the faster one.
#
# *Published*: Li and others measured the speed-up from overlap on 32 GPUs: 38.0% for ResNet50 and 35.2% for BERT with NCCL, 26.8% and 21.5% with gloo [1]. Why not always use a bucket per layer? Because each bucket also has a start-up cost. Lesson 06 plots the time of the backward pass against the bucket size.
#
# ### Buffers
#
# A *buffer* is a part of a model's state that has no gradient, such as batch norm's running mean and variance. Averaging gradients does not keep buffers equal across the ranks. So DDP broadcasts rank 0's buffers at the start of each forward pass.
#
# **Predict.** Every rank sets the running mean of a batch norm layer to its own rank number. What is the running mean on rank 3 after one forward pass? (The layer is in evaluation mode, so that the pass itself does not change the mean.)

# %%
prediction = None

# %%
# %%px
norm = DDP(nn.BatchNorm1d(2)).eval()
norm.module.running_mean.fill_(rank)
norm(torch.ones(1, 2))
running_mean = norm.module.running_mean[0].item()
print(running_mean)

# %%
compare(prediction, cluster.view["running_mean"][3])
assert cluster.view["running_mean"] == [0.0] * 4

# %% [markdown]
# Rank 3 now holds rank 0's value. So in training, the running statistics come from rank 0's part of the data alone; those of the other ranks are overwritten. With `forward_sync_buffers=False` each rank keeps its own statistics, and they differ. (Before PyTorch 2.13 the option was `broadcast_buffers=False`, which also skips the broadcast in the constructor.) Section 8 shows a better way: statistics of the whole batch.
#
# ## 3. Who sees which sample
#
# `DistributedSampler` deals out the samples like cards: with `p` ranks, rank `r` gets the samples at positions `r`, `r + p`, `r + 2p` and so on.
#
# **Predict.** The sampler deals out 10 samples to 4 ranks, without shuffling. Which samples does rank 3 get? Write a list.

# %%
prediction = None

# %%
# %%px
from torch.utils.data import DataLoader, DistributedSampler

mine = list(DistributedSampler(range(10), shuffle=False))  # asks the process group who I am
print(mine)
everyone = [None] * world_size
dist.all_gather_object(everyone, mine)

# %%
compare(prediction, cluster.view["mine"][3])
assert cluster.view["everyone"] == [[[0, 4, 8], [1, 5, 9], [2, 6, 0], [3, 7, 1]]] * 4

# %% [markdown]
# Four ranks can't share 10 samples evenly, and all of them must take the same number of steps. So the sampler *pads*: samples 0 and 1 are used twice. With `drop_last=True` it leaves two samples out instead. Neither matters much in training, but both distort a measured accuracy. In exercise 2 you correct the accuracy for padding.
#
# **Predict.** Now the sampler shuffles 1,000 samples, and we loop over it three times, once per epoch. In how many *different* orders does rank 0 see its samples: 1, 2 or 3?

# %%
prediction = None

# %%
# %%px
sampler = DistributedSampler(range(1000), shuffle=True, seed=0)
without = [list(sampler)[:5] for epoch in range(3)]
orders = len({tuple(order) for order in without})

with_set_epoch = []
for epoch in range(3):
    sampler.set_epoch(epoch)
    with_set_epoch.append(list(sampler)[:5])
if rank == 0:
    print("without set_epoch:", *without)
    print("with set_epoch:   ", *with_set_epoch)

# %%
compare(prediction, cluster.view["orders"][0])
assert cluster.view["orders"] == [1] * 4
assert all(len(set(map(tuple, orders))) == 3 for orders in cluster.view["with_set_epoch"])

# %% [markdown]
# Rank 0 sees the same order three times. The ranks must agree on the shuffle without communicating, so each rank seeds its generator with the same number, `seed + epoch`. Only you can tell the sampler which epoch it is. If you forget, there is no error and no warning, but every epoch has the same batches, and training is a little worse than it could be.
#
# ### Exercise 1: repair an epoch loop
#
# ```python
# def train_epochs(loader, sampler, epochs, step):
#     for epoch in range(epochs):
#         for batch in loader:
#             step(batch)
# ```
#
# Rewrite this function so that every epoch has its own order, and the ranks together still see all samples in each epoch.


# %% tags=["exercise"] exercise="08.train_epochs"
def train_epochs(loader, sampler, epochs, step):
    """Call step(batch) for each batch of each epoch; sampler is the loader's DistributedSampler."""
    ### BEGIN SOLUTION
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for batch in loader:
            step(batch)
    ### END SOLUTION


# %% tags=["check"]
check("08.train_epochs")

# %% [markdown]
# Stuck? `hint("08.train_epochs")`, `solution("08.train_epochs")`.
#
# ### Exercise 2: accuracy over a padded test set
#
# A test set of `samples` samples was dealt out by `DistributedSampler(..., shuffle=False)`, and each rank has tested its share, padding included. `right` is a tensor of booleans that says whether this rank's first, second, ... sample was classified correctly. Write `global_accuracy(right, samples, group)`: on every rank it returns the fraction of the test set that was classified correctly, as a float, with each sample counted once. The budget is one all-reduce of at most 16 bytes.


# %% tags=["exercise"] exercise="08.global_accuracy"
# %%px
def global_accuracy(right, samples, group):
    """Return the accuracy over the whole test set, on every rank of group."""
    ### BEGIN SOLUTION
    p, r = dist.get_world_size(group), dist.get_rank(group)
    real = r + p * torch.arange(len(right)) < samples
    count = (right & real).sum()
    dist.all_reduce(count, group=group)
    return count.item() / samples
    ### END SOLUTION


# %% tags=["check"]
check("08.global_accuracy")

# %% [markdown]
# Stuck? `hint("08.global_accuracy")`, `solution("08.global_accuracy")`.
#
# ## 4. Accumulate first, then communicate once
#
# If a batch does not fit into memory, you split it into *micro-batches*. `backward()` *adds* to `.grad`, so four small backward passes give the gradient of one large batch. Normally, DDP runs an all-reduce in each of the four. Inside a `with ddp.no_sync():` block it puts the all-reduce off until the next backward pass outside the block.
#
# **Predict.** LeNet fits in one bucket, and there are four micro-batches. How many all-reduces are there (a) without `no_sync()` and (b) with the first three micro-batches inside it? Write `[a, b]`.

# %%
prediction = None

# %%
# %%px
from contextlib import nullcontext


def accumulated_step(ddp, keep_quiet):
    ddp.zero_grad()
    for micro in range(4):
        images, labels = part_of_batch(micro, rank, world_size)
        quiet = keep_quiet and micro < 3
        with ddp.no_sync() if quiet else nullcontext():
            loss = F.cross_entropy(ddp(images.double()), labels) / 4  # the mean of four means
            loss.backward()


# %%
# %%px
ddp, rounds, volumes, gradients = DDP(lenet(seed=0).double()), [], [], []
accumulated_step(ddp, keep_quiet=False)  # once before: the first step cuts the buckets
for keep_quiet in (False, True):
    with Traffic() as traffic:
        accumulated_step(ddp, keep_quiet)
    rounds.append(traffic.collectives["all_reduce"].messages)
    volumes.append(traffic.collectives["all_reduce"].bytes)
    gradients.append(torch.cat([p.grad.flatten() for p in ddp.parameters()]))
if rank == 0:
    print(f"all-reduces: {rounds}, bytes handed over: {volumes}")
assert torch.allclose(*gradients, rtol=0, atol=1e-14), "the same gradient"

# %%
compare(prediction, cluster.view["rounds"][0])
assert cluster.view["rounds"][0] == [4, 1]
assert cluster.view["volumes"][0] == [4 * 8 * 61_706, 8 * 61_706], "8 bytes a number"

# %% [markdown]
# The gradient is the same, with a quarter of the rounds and a quarter of the bytes handed over. There are two traps. The forward and the backward pass must *both* be inside `no_sync()`, because DDP decides in the forward pass whether the backward pass will communicate. And you must divide the loss by the number of micro-batches, or the step is four times too large. Between micro-batches the replicas' gradients differ; that is fine as long as no rank takes an optimizer step.
#
# ### Exercise 3: accumulation on a budget
#
# Write `accumulate(ddp, optimizer, loss_function, batches)`, which takes one optimizer step over all `batches`, a list of `(inputs, targets)` of equal length. `loss_function(outputs, targets)` returns the mean over the samples. The budget is one round of all-reduce, no matter how many batches there are, and memory can hold only one batch at a time. Your function will be called more than once.


# %% tags=["exercise"] exercise="08.accumulate"
# %%px
def accumulate(ddp, optimizer, loss_function, batches):
    """Make one optimizer step by the mean gradient over all batches, with one all-reduce round."""
    ### BEGIN SOLUTION
    optimizer.zero_grad()
    *first, (last_inputs, last_targets) = batches
    with ddp.no_sync():
        for inputs, targets in first:
            (loss_function(ddp(inputs), targets) / len(batches)).backward()
    (loss_function(ddp(last_inputs), last_targets) / len(batches)).backward()
    optimizer.step()
    ### END SOLUTION


# %% tags=["check"]
check("08.accumulate")

# %% [markdown]
# Stuck? `hint("08.accumulate")`, `solution("08.accumulate")`.
#
# ## 5. When one rank has more batches
#
# **Break it on purpose.** Without a sampler that pads, ranks can have different numbers of batches. Here rank `r` has `r + 1` batches. The group's time-out is 3 s, so you need not wait long.
#
# **Predict.** All ranks complete step 1. How many ranks get stuck in step 2?

# %%
prediction = None


# %%
# %%px
def uneven_steps(ddp):
    """Train on rank + 1 batches, and return how many of them were finished."""
    optimizer, done = torch.optim.SGD(ddp.parameters(), lr=0.05), 0
    for step in range(rank + 1):
        images, labels = part_of_batch(step, rank, world_size)
        optimizer.zero_grad()
        F.cross_entropy(ddp(images), labels).backward()
        optimizer.step()
        done += 1
    return done


# %%
# %%px
impatient = dist.new_group(timeout=timedelta(seconds=3))
ddp, error = DDP(lenet(seed=0), process_group=impatient), None
try:
    uneven_steps(ddp)
except RuntimeError as raised:
    error = type(raised).__name__
stuck = int(error is not None)
print("waited in vain" if stuck else "finished, and noticed nothing")

# %%
compare(prediction, sum(cluster.view["stuck"]))
assert cluster.view["stuck"] == [0, 1, 1, 1]

# %% [markdown]
# - **Symptom.** Training hangs at the end of the first epoch, never earlier.
# - **Diagnosis.** Ranks 1 to 3 wait in an all-reduce; rank 0 has left the loop. Print `len(loader)` on every rank.
# - **Fix.** Give all ranks the same number of batches (a sampler that pads, or `drop_last`). If you can't know the number in advance, use `join()`.
#
# Inside `with ddp.join():` a rank that has no more batches keeps *answering*: it contributes zeros to the other ranks' all-reduces until all ranks have finished. At the end it receives the weights of a rank that had the most batches.

# %%
# %%px
ddp = DDP(lenet(seed=0))
with ddp.join():
    done = uneven_steps(ddp)
print(f"batches of its own: {done}")
assert done == rank + 1
assert_replicas_equal(ddp.module)

# %% [markdown]
# In step 4 only rank 3 has a batch, and its gradient is still divided by 4: the mean is taken over 4 ranks, 3 of which sent zeros. `join(divide_by_initial_world_size=False)` divides by the number of ranks that still have data. For several modules and optimizers at once, use `torch.distributed.algorithms.Join`.
#
# ## 6. Parameters that are not used
#
# **Break it on purpose.** This network has two heads and uses one of them per step. DDP sends a bucket when *all* gradients in it are ready, but those of the unused head never are.


# %%
# %%px
class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(64, 32)
        self.heads = nn.ModuleList([nn.Linear(32, 10), nn.Linear(32, 10)])

    def forward(self, x, head):
        return self.heads[head](torch.relu(self.body(x)))


# %%
# %%px
inputs = torch.ones(4, 64)
ddp, found = DDP(TwoHeads()), None
ddp(inputs, head=0).sum().backward()  # no complaint
try:
    ddp(inputs, head=0)
except RuntimeError as error:
    found = error
assert found is not None, "it is noticed at the *next* forward"
if rank == 0:
    print(str(found).split(". You can")[0])
    print(next(line for line in str(found).splitlines() if "indices" in line))

# %% [markdown]
# - **Symptom.** The error above appears one step late: the first backward pass ended without sending its bucket, so the gradients of that step were never averaged.
# - **Diagnosis.** Parameters 4 and 5 are `heads.1.weight` and `heads.1.bias`. The usual causes are a head or layer behind an `if`, a part frozen after wrapping, or an output that the loss does not use.
# - **Fix.** It is best to remove parameters that are never used, or to freeze them (`requires_grad_(False)` before wrapping). If different steps use different parameters, set `find_unused_parameters=True`: after each forward pass, DDP walks the graph and marks as ready all parameters that it can't reach.
#
# **Predict.** What does the fix cost? A step of this network normally takes one all-reduce, for its single bucket. How many does it take with `find_unused_parameters=True`?

# %%
prediction = None

# %%
# %%px
ddp = DDP(TwoHeads(), find_unused_parameters=True)
for _ in range(2):
    ddp.zero_grad()
    with Traffic() as traffic:
        ddp(inputs, head=rank % 2).sum().backward()  # even ranks use head 0, odd ones head 1
with_unused = tuple(traffic.collectives["all_reduce"])  # calls, bytes handed over
if rank == 0:
    print("{} all-reduces, {:,} bytes handed over".format(*with_unused))
gradients = {name: p.grad for name, p in ddp.module.named_parameters()}
assert_replicas_equal(gradients)  # both heads, on all ranks: a mean in which some sent zeros

# %%
calls, handed_over = cluster.view["with_unused"][0]
compare(prediction, calls)
assert (calls, handed_over) == (2, 10_960 + 4 * 6)

# %% [markdown]
# It takes two: one for the bucket of 10,960 bytes, and one for a small vector that has 4 bytes for each of the 6 parameters. From this vector the ranks learn which parameters *any* rank used. The option is off by default because this all-reduce and the walk through the graph take time. If every iteration uses the same parameters, set `static_graph=True`: DDP then looks for the unused ones only once.
#
# ### A place to stop
#
# You can now wrap a model, prove that it trains as it would in one process, see when its buckets leave, feed it the right samples, and fix the three most common mistakes. Most programs use no more of DDP than this. If time is short, read sections 9 and 10 (saving, launching) next. Sections 7, 8 and 11 cover sending fewer bytes, batch norm, and how DDP compares with the alternatives.
#
# ## 7. Fewer bytes: communication hooks
#
# A communication hook decides what is handed to the all-reduce. We use three of PyTorch's hooks:
#
# - `fp16_compress_hook` hands over float16: half the bytes, and 11 significant bits instead of 24.
# - `bf16_compress_hook` hands over bfloat16: also half the bytes, and 8 significant bits, but the range of float32. (PyTorch demands CUDA if you register this hook directly, so the cell below wraps it in a function of its own.)
# - *PowerSGD* [2] treats a layer's gradient as a matrix of $n \times m$ numbers. The ranks sum only two thin matrices, $n \times r$ and $m \times r$, whose product approximates the gradient. PowerSGD keeps the error of this approximation, and adds it to the next step's gradient (*error feedback*).
#
# The network is an MLP with layers 64 → 256 → 256 → 10. Its weight matrices have 256 × 64, 256 × 256 and 10 × 256 numbers, and it has 522 biases. We use PowerSGD with rank $r = 2$; it sends the biases uncompressed.
#
# **Predict.** In float32, 340,008 bytes per step are handed to the all-reduce. How many bytes does PowerSGD hand over? (The biases take 522 · 4 bytes. An $n \times m$ weight matrix takes $(n + m) \cdot 2 \cdot 4$.)

# %%
prediction = None

# %%
# %%px
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as powersgd

digits, digits_test = data.load("digits")


def bfloat16(state, bucket):
    return default_hooks.bf16_compress_hook(state, bucket)


def power_sgd():
    # Two plain steps first: DDP cuts its buckets after the first one.
    return powersgd.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2)


# %%
# %%px
def train_with_hook(state, hook, steps=60):
    torch.manual_seed(0)
    # On the GPU if there is one: PyTorch's PowerSGD then takes no tensors of the host.
    ddp, losses = DDP(models.MLP(64, (256, 256)).to(device)), []
    ddp.register_comm_hook(state, hook)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
    for step in range(steps):
        chosen = (torch.arange(32) + 32 * (step * world_size + rank)) % len(digits)
        outputs = ddp(digits.images[chosen].to(device))
        loss = F.cross_entropy(outputs, digits.labels[chosen].to(device))
        optimizer.zero_grad()
        with Traffic() as traffic:
            loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return ddp.module, losses, traffic.collectives["all_reduce"]  # of the last step


# %%
# %%px
from course_lib.training.loops import accuracy

hooks = {
    "float32": (None, default_hooks.allreduce_hook),
    "float16": (None, default_hooks.fp16_compress_hook),
    "bfloat16": (None, bfloat16),
    "PowerSGD": (power_sgd(), powersgd.powerSGD_hook),
}
results = {}
for name, (state, hook) in hooks.items():
    model, losses, (calls, handed_over) = train_with_hook(state, hook)
    assert_replicas_equal(model)
    results[name] = losses, calls, handed_over, accuracy(model, digits_test)
    assert results[name][-1] > 0.9, "each of them learns"

# %%
# %%px
full = 4 * models.parameter_count(model)
thin = sum(sum(p.shape) for p in model.parameters() if p.dim() == 2)  # n + m of each weight
predicted = {"float32": full, "float16": full // 2, "bfloat16": full // 2}
predicted["PowerSGD"] = 4 * 522 + 8 * thin
measured = {name: handed_over for name, (_, _, handed_over, _) in results.items()}
assert measured == predicted
assert [calls for _, calls, _, _ in results.values()] == [1, 1, 1, 3]

# %%
results, predicted = cluster.view["results"][0], cluster.view["predicted"][0]
compare(prediction, results["PowerSGD"][2])

# %% tags=["nbval-ignore-output"]
names = ["float32", "float16", "bfloat16", "PowerSGD"]
print("          all-    bytes handed over per step   test")
print("hook      reduces  predicted   measured here   saved   accuracy")
for name in names:
    _, calls, handed_over, right = results[name]
    saved = 1 - handed_over / results["float32"][2]
    row = f"{name:8} {calls:8} {predicted[name]:10,} {handed_over:15,}"
    print(f"{row} {saved:7.0%} {right:10.3f}")
figures.curves(
    {name: {"loss": results[name][0]} for name in names},
    ["loss"],
    xlabel="step",
    title="What compression does to the loss (rank 0)",
)

# %% [markdown]
# PowerSGD hands over 10,872 bytes instead of 340,008, which saves 97%, and the network learns nearly as well *here*, on an easy task. (In the figure, you cannot tell the curves for float16 and bfloat16 from the one for float32.) PowerSGD needs some extra computing, and three all-reduces instead of one, so it is worthwhile on slow links and for wide layers. Always compare the accuracy on your own task.
#
# ### What travels
#
# Handing over fewer bytes does not always mean that fewer bytes travel. The MPI standard has no arithmetic for float16 or bfloat16 (some libraries offer it as an extension, such as MPICH from version 5 on). So this course's backend widens these numbers to float32 before MPI adds them up, and the two 16-bit hooks do not make any message shorter here. (NCCL, between GPUs, adds float16 directly.) To make fewer bytes travel here, a hook must do the sending itself. The next hook uses the ring of lesson 03, which consists of `send` and `recv` calls, so the meter can count its bytes exactly.


# %%
# %%px
def sum_round_a_ring(numbers, group):
    """Sum a vector over the group in place: reduce-scatter, then all-gather, chunk by chunk."""
    p, r = dist.get_world_size(group), dist.get_rank(group)
    left, right = (dist.get_global_rank(group, (r + side) % p) for side in (-1, 1))
    chunks = numbers.tensor_split(p)
    for step in range(2 * (p - 1)):
        mine, theirs = chunks[(r - step) % p], chunks[(r - step - 1) % p]
        received = torch.empty_like(theirs)
        sending = dist.isend(mine, right, group=group)
        dist.recv(received, left, group=group)
        sending.wait()
        theirs.copy_(theirs + received if step < p - 1 else received)


def over_ring(state, bucket):
    """A hook that sends a bucket itself; state is the dtype that travels, and the group."""
    dtype, group = state
    numbers = (bucket.buffer() / dist.get_world_size(group)).to(dtype)
    sum_round_a_ring(numbers, group)
    future = torch.futures.Future()
    future.set_result(bucket.buffer().copy_(numbers))
    return future


# %% [markdown]
# In a ring all-reduce, each of $p$ ranks sends $2\frac{p-1}{p}$ times the size of the vector.
#
# **Predict.** Four ranks average 85,002 numbers in float16 round a ring. How many bytes do the four send in total in one backward pass?

# %%
prediction = None


# %%
# %%px
def backward_over_ring(dtype):
    """One backward pass: its gradient as one vector, and the messages."""
    torch.manual_seed(0)
    ddp = DDP(models.MLP(64, (256, 256)))
    ddp.register_comm_hook((dtype, dist.group.WORLD), over_ring)
    chosen = torch.arange(32) + 32 * rank
    loss = F.cross_entropy(ddp(digits.images[chosen]), digits.labels[chosen])
    with Traffic() as traffic:
        loss.backward()
    return torch.cat([p.grad.flatten() for p in ddp.parameters()]), traffic


# %%
# %%px
travelled, numbers = {}, models.parameter_count(model)
exact, _ = backward_over_ring(torch.float64)
for dtype, error in ((torch.float32, 1e-6), (torch.float16, 1e-2), (torch.bfloat16, 5e-2)):
    gradient, traffic = backward_over_ring(dtype)
    assert_replicas_equal({"gradient": gradient})
    assert (gradient - exact).norm() < error * exact.norm(), "a few roundings of this dtype"
    assert "all_reduce" not in traffic.collectives
    assert set(traffic.sent.by_peer) == {(rank + 1) % world_size}, "to the right neighbour alone"
    assert traffic.sent.messages == 2 * (world_size - 1)
    travelled[str(dtype)] = comm.allreduce(traffic.sent.bytes)
    assert travelled[str(dtype)] == 2 * (world_size - 1) * dtype.itemsize * numbers
if rank == 0:
    for dtype, nbytes in travelled.items():
        print(f"{dtype:15} {nbytes:9,} bytes sent by all ranks together")

# %%
compare(prediction, cluster.view["travelled"][0]["torch.float16"])

# %% [markdown]
# Now only half the bytes travel (*measured here*). The formula *predicts* $2\,(p-1)$ times the size of the vector for all ranks together, and is right to the byte. A hook also lets you choose the algorithm. The hook above has a price: it waits until the ring is done, so nothing overlaps.
#
# ### Exercise 4: a hook in bfloat16
#
# bfloat16 has the range of float32 (float16 overflows above 65,504) but only 8 significant bits. Write a hook `bfloat16_hook(group, bucket)` that averages a bucket in bfloat16; it will be registered with `ddp.register_comm_hook(group, bfloat16_hook)`. The hook hands two bytes per number to a single all-reduce, and returns a future of the mean over the group, in float32. It must not wait for the all-reduce, or nothing will overlap.
#
# This is how to make the future. An all-reduce with `async_op=True` returns a handle, and `handle.get_future()` returns the future of its result. `future.then(f)` derives another future from it: once the first one is done, `f` is called with it, and whatever `f` returns is the value of the second. The `value()` of a collective's future is a *list* of tensors; here it has just one:

# %%
# %%px
handle = dist.all_reduce(torch.full((2,), float(rank)), async_op=True)
halves = handle.get_future().then(lambda done: done.value()[0] / 2)
print(halves.wait())  # only here somebody waits
assert halves.wait().tolist() == [3, 3]


# %% tags=["exercise"] exercise="08.bfloat16_hook"
# %%px
def bfloat16_hook(group, bucket):
    """Average the bucket over group in bfloat16; return a future of a float32 tensor."""
    ### BEGIN SOLUTION
    gradient = bucket.buffer()
    compressed = gradient.to(torch.bfloat16) / dist.get_world_size(group)
    work = dist.all_reduce(compressed, group=group, async_op=True)
    return work.get_future().then(lambda done: gradient.copy_(done.value()[0]))
    ### END SOLUTION


# %% tags=["check"]
check("08.bfloat16_hook")

# %% [markdown]
# Stuck? `hint("08.bfloat16_hook")`, `solution("08.bfloat16_hook")`.
#
# ### Eight bits, and error feedback
#
# How few bits does a number need? In eight bits you can store 255 levels, from -127 to 127: divide a vector by its largest absolute value, multiply by 127, and round. Every number below half a level, a 254th of the largest value, becomes zero. A weight whose gradient is that small in every step never moves.
#
# Error feedback is older than PowerSGD, and was invented for such schemes [7]: the part of a vector that rounding leaves out is added to the vector of the next step. The class below rounds with or without error feedback. Its messages have 4 bytes for the scale and 1 byte per number.


# %%
# %%px
class Rounding:
    """Rounds vectors to 8 bits, and knows by name what each has left out."""

    def __init__(self, feedback):
        self.feedback, self.left_out = feedback, {}

    def message(self, numbers, name):
        if self.feedback:
            numbers = numbers + self.left_out.get(name, 0)
        scale = (numbers.abs().max() / 127).clamp_min(1e-30)
        levels = (numbers / scale).round().to(torch.int8)
        self.left_out[name] = numbers - scale * levels
        return torch.cat([scale.view(1).view(torch.int8), levels])


def opened(message):
    return message[:4].view(torch.float32) * message[4:]


# %% [markdown]
# **Predict.** A gradient has two numbers, 1 and 0.003, and is the same in each of 1,000 steps. Add up everything that is sent for the *second* number: what is the sum without and with feedback? Write `[without, with]`.

# %%
prediction = None

# %%
# %%px
sums = {}
for feedback in (False, True):
    rounding = Rounding(feedback)
    messages = [rounding.message(torch.tensor([1, 0.003]), "both") for _ in range(1000)]
    sums[feedback] = sum(map(opened, messages))[1].item()

# %%
without, with_feedback = (cluster.view["sums"][0][feedback] for feedback in (False, True))
compare(prediction, [without, round(with_feedback, 2)], within=0.01)
assert without == 0
assert abs(with_feedback - 1000 * 0.003) < 1 / 127, "all but what is left out now"

# %% [markdown]
# Without feedback, zero is sent for the second number in all thousand steps. With feedback, the left-out part grows from step to step, and as soon as it exceeds half a level, a whole level is sent. After every step, the sum of everything sent is the sum of the gradients minus the one vector that is left out at that moment.
#
# ### The mean in eight bits
#
# Each rank has its own scale, so you cannot simply add the integers. A ring would have to decode, add and round at every hop. So here every rank sends its r-th chunk straight to rank r. Rank r decodes these chunks, adds them up, rounds the sum once, and sends the result to all ranks. Numbers are rounded twice, before the first message and before the second, and the left-out part is kept both times.


# %%
# %%px
def swap(messages):
    """Send message number r to rank r; return what all ranks sent to this one, in rank order."""
    received = [torch.empty_like(messages[rank]) for _ in messages]
    received[rank] = messages[rank]
    others = [r for r in range(world_size) if r != rank]
    transfers = [dist.P2POp(dist.isend, messages[r], r) for r in others]
    transfers += [dist.P2POp(dist.irecv, received[r], r) for r in others]
    for work in dist.batch_isend_irecv(transfers):
        work.wait()
    return received


def mean_in_8_bits(gradient, rounding):
    chunks = (gradient / world_size).chunk(world_size)
    parts = swap([rounding.message(chunk, r) for r, chunk in enumerate(chunks)])
    summed = rounding.message(sum(map(opened, parts)), "sum")
    return torch.cat([opened(message) for message in swap([summed] * world_size)])


# %% [markdown]
# Rounding matters most when the ranks' gradients are large and nearly cancel in the mean. To show this, the samples here are sorted: rank 0 has the digits 0 to 2, rank 3 has the digits 7 to 9, and each rank's gradient favours its own digits. The model is one layer of 64 · 10 weights. A small weight decay ensures that there is exactly one minimum, so we can measure the distance to it. Every step uses all samples, so rounding is the only noise.


# %%
# %%px
sorted_digits = digits.labels[:1436].argsort(stable=True)
pixels, classes = digits.images[sorted_digits].flatten(1), digits.labels[sorted_digits]


def gradient_of(weights, part, parts):
    x, labels = pixels.chunk(parts)[part], classes.chunk(parts)[part]
    slopes = torch.softmax(x @ weights.view(64, 10), 1)
    slopes[torch.arange(len(x)), labels] -= 1
    return (x.T @ slopes / len(x)).flatten() + 0.01 * weights


def descend(mean_gradient, steps=400):
    """Return the weights after each step of gradient descent with momentum."""
    weights, velocity, path = torch.zeros(640), torch.zeros(640), []
    for _ in range(steps):
        velocity = 0.9 * velocity + mean_gradient(weights)
        weights = weights - 0.2 * velocity
        path.append(weights)
    return path


# %% [markdown]
# **Predict.** After 400 steps in float32, the distance from the weights to the minimum is about a millionth of the minimum's norm. How close do the weights come in 8 bits? (A) Just as close, with and without feedback. (B) Without feedback they stay a few per cent away; with it they come much closer. (C) They stay a few per cent away, with and without feedback, because 8 bits are too coarse. Answer with a letter.

# %%
prediction = None


# %%
# %%px
def mean_in_float32(weights):
    gradient = gradient_of(weights, rank, world_size)
    dist.all_reduce(gradient)
    return gradient / world_size


def descend_in_8_bits(feedback):
    rounding = Rounding(feedback)
    return descend(lambda w: mean_in_8_bits(gradient_of(w, rank, world_size), rounding))


# %%
# %%px
alone = descend(lambda w: gradient_of(w, 0, 1), 800) if rank == 0 else [None]
minimum = comm.bcast(alone[-1])
paths = {
    "float32": descend(mean_in_float32),
    "8 bits, without feedback": descend_in_8_bits(False),
    "8 bits, with feedback": descend_in_8_bits(True),
}
distances = {}
for name, path in paths.items():
    assert_replicas_equal({"weights": path[-1]})
    distances[name] = [((w - minimum).norm() / minimum.norm()).item() for w in path]

# %%
names = ["float32", "8 bits, without feedback", "8 bits, with feedback"]
distances = {name: cluster.view["distances"][0][name] for name in names}
exact, without, with_feedback = (path[-1] for path in distances.values())
far, near = without > 0.01, with_feedback < without / 30
compare(prediction, {(True, True): "B", (True, False): "C"}.get((far, near), "A"))
assert exact < 1e-5
assert far
assert near

# %% tags=["nbval-ignore-output"]
print("distance to the minimum, as a part of its length (measured here)")
for name, path in distances.items():
    print(f"{name:26} {path[49]:.1e} after 50 steps, {path[-1]:.1e} after 400")
distances_to_minimum(
    distances,
    alt="Distance to the minimum over 400 steps, logarithmic. Float32 falls all the way. 8 bits "
    "without feedback follow it for a while, then stay high. 8 bits with feedback follow it for "
    "longer, and end far lower.",
)

# %% [markdown]
# Near the minimum, the mean gradient is small, but each rank's own gradient is not, and it sets that rank's scale. The rounding errors therefore stay as large as they were, and soon exceed the mean. Without feedback, nearly the same errors come back in every step. They push the weights to a point a few per cent away from the minimum. With feedback, the errors of many steps do not add up: at any time, only one vector of left-out parts is missing. That vector does not become smaller, so these weights do not reach the minimum exactly either; the remaining distance shrinks with the learning rate. In both 8-bit runs the replicas are equal bit for bit, because all ranks decode the same messages.
#
# How many bytes travel? Each of $p$ ranks sends $2\,(p-1)$ messages. Each message contains one $p$-th of the numbers, at one byte per number, and 4 bytes for the scale. Apart from the scales, that is a quarter of the bytes that a ring sends in float32, for any $p$.

# %%
# %%px
with Traffic() as traffic:
    mean_in_8_bits(gradient_of(minimum, rank, world_size), Rounding(True))
assert traffic.sent.messages == 2 * (world_size - 1)
assert traffic.sent.bytes == 2 * (world_size - 1) * (640 // world_size + 4)
with Traffic() as traffic_of_ring:
    sum_round_a_ring(gradient_of(minimum, rank, world_size), dist.group.WORLD)
assert traffic_of_ring.sent.bytes == 2 * (world_size - 1) * 640 // world_size * 4
if rank == 0:
    print(f"{traffic.sent.bytes} bytes sent in 8 bits, {traffic_of_ring.sent.bytes} in float32")

# %% [markdown]
# The price is memory: each rank keeps the left-out parts, which amount to one vector and a $p$-th of another. They belong in the checkpoint (section 9). If you write this as a DDP hook, beware of two traps. First, DDP rebuilds its buckets after the first step, so start compressing only after that, as PowerSGD does above. Second, a part that was left out at one learning rate is applied at the rate of the next step; Karimireddy and others therefore multiply by the rate first and then round [8].
#
# *Published*: Seide and others trained speech models with 1 bit per number and feedback, with almost no loss of accuracy; without feedback the training diverged [7]. Karimireddy and others give convex problems in which SGD with only the signs of the gradient never reaches the minimum. They also prove that SGD with feedback converges as fast as plain SGD for many compression schemes [8].
#
# ### Mixed precision
#
# Computing is cheaper in 16 bits as well, especially on GPUs. *Mixed precision* computes the layers' products in float16 or bfloat16, and keeps weights, gradients and the optimizer state in float32. `torch.autocast` does this for everything computed inside its `with` block.
#
# float16 has a trap: its smallest positive number is $6 \cdot 10^{-8}$, so smaller gradients become zero. A `GradScaler` multiplies the loss by a large factor before the backward pass and divides the gradients by it before the step. If a gradient has overflowed, the scaler skips the step and reduces the factor. With DDP, all ranks skip together, because the all-reduce carries the overflow to all of them. bfloat16 has the range of float32 and needs no scaler. The cell below uses float16 if there is a GPU, and bfloat16 on the CPU.
#
# **Predict.** If all layers compute in 16 bits, how many bytes per number of the gradient does DDP hand to its all-reduce?

# %%
prediction = None

# %%
# %%px
half = torch.float16 if device.type == "cuda" else torch.bfloat16


def mixed_step(ddp, optimizer, scaler, images, labels, mixed):
    with torch.autocast(device.type, half, enabled=mixed):  # forward and loss, not backward
        outputs = ddp(images.to(device))
        loss = F.cross_entropy(outputs, labels.to(device))
    optimizer.zero_grad()
    with Traffic() as traffic:
        scaler.scale(loss).backward()
    scaler.step(optimizer)  # without a scale it is optimizer.step()
    scaler.update()
    return loss.item(), outputs.dtype, traffic.collectives["all_reduce"].bytes


# %%
# %%px
def train_mixed(mixed, steps=60):
    torch.manual_seed(0)
    ddp, losses = DDP(models.MLP(64, (256, 256)).to(device)), []
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler(device.type, enabled=mixed and half is torch.float16)
    for step in range(steps):
        chosen = (torch.arange(32) + 32 * (step * world_size + rank)) % len(digits)
        batch = digits.images[chosen], digits.labels[chosen]
        loss, computed_in, handed_over = mixed_step(ddp, optimizer, scaler, *batch, mixed)
        losses.append(loss)
    return ddp.module, losses, computed_in, handed_over


# %%
# %%px
in_full, full_losses, *_ = train_mixed(mixed=False)
in_half, half_losses, computed_in, handed_over = train_mixed(mixed=True)
bytes_per_number = handed_over / models.parameter_count(in_half)

assert_replicas_equal(in_half)
assert computed_in is half, "the last layer's outputs"
assert {p.dtype for p in in_half.parameters()} == {torch.float32}, "the weights are not"
last_ten = [sum(losses[-10:]) / 10 for losses in (full_losses, half_losses)]
assert abs(last_ten[0] - last_ten[1]) < 0.05, "the loss of the last ten steps"
accuracies = [accuracy(model.cpu(), digits_test) for model in (in_full, in_half)]
assert abs(accuracies[0] - accuracies[1]) < 0.03

# %%
compare(prediction, cluster.view["bytes_per_number"][0])
assert cluster.view["bytes_per_number"] == [4.0] * 4

# %% tags=["nbval-ignore-output"]
losses, accuracies = cluster.view["last_ten"][0], cluster.view["accuracies"][0]
print("computed in   loss of rank 0, last ten steps   test accuracy")
for name, loss, right in zip(("float32", "16 bits"), losses, accuracies, strict=True):
    print(f"{name:11} {loss:32.3f} {right:15.3f}")

# %% [markdown]
# It is still 4: autocast changes the dtype in which layers compute, but not the dtype of the gradients. Both runs reach nearly the same loss and accuracy. *Here* we allow a difference of 0.05 in the loss and 0.03 in the accuracy, because with 8 significant bits each product is rounded by up to 0.4%. To send fewer bytes as well, add one of the hooks above. Whether mixed precision is *faster* depends on the processor: it saves time if the processor has units for 16-bit products, and costs time if it has none. Mixed precision with float32 weights and loss scaling was introduced by Micikevicius and others [6].
#
# ## 8. Batch norm over all ranks
#
# Batch norm uses the mean and variance of the *batch*, and each rank has only a part of the batch. So with batch norm, R ranks do not equal one process (lesson 04). PyTorch's `SyncBatchNorm` exchanges the statistics, but only between GPUs:

# %%
# %%px
norm = nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32)))
message = None
try:
    norm(torch.ones(4, 64))
except ValueError as error:
    message = str(error)
if rank == 0:
    print(message)
assert "GPU" in message

# %% [markdown]
# The course has a version that works on GPUs and CPUs, `course_lib.parallel.batch_norm` (its forward and backward passes follow the equations of lesson 04). On a GPU the cell below uses PyTorch's version.
#
# **Predict.** We run DDP twice, (a) with plain batch norm and (b) with synchronised batch norm, and also one process that has the whole batch. Which of the two DDP runs gives the same gradients as that process, to within $10^{-12}$? Write `"a"`, `"b"`, `"both"` or `"neither"`.

# %%
prediction = None


# %%
# %%px
from course_lib.parallel.batch_norm import convert_sync_batch_norm

convert = (
    nn.SyncBatchNorm.convert_sync_batchnorm if device.type == "cuda" else convert_sync_batch_norm
)


def network_with_norm():
    torch.manual_seed(0)
    layers = nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10)
    return nn.Sequential(*layers).double().to(device)


def gradients_of(model, part, parts):
    chosen = torch.arange(128).chunk(parts)[part]
    images = digits.images[chosen].flatten(1).double().to(device)
    F.cross_entropy(model(images), digits.labels[chosen].to(device)).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


# %%
# %%px
whole = gradients_of(network_with_norm(), 0, 1)
plain = gradients_of(DDP(network_with_norm()), rank, world_size)
synced = gradients_of(DDP(convert(network_with_norm())), rank, world_size)
errors = [(g - whole).abs().max().item() for g in (plain, synced)]
answer = {(False, True): "b", (True, True): "both"}.get(tuple(e < 1e-12 for e in errors), "?")

# %%
compare(prediction, cluster.view["answer"][0])
assert cluster.view["answer"] == ["b"] * 4
assert min(plain for plain, _ in cluster.view["errors"]) > 1e-4

# %% [markdown]
# Convert the model *before* you wrap it, on all ranks. Synchronised batch norm costs one more collective per layer in the forward pass and another in the backward pass. Neither can overlap with computing, because the layer waits for it. With 32 samples per rank, plain batch norm is common and works (Goyal and others chose it deliberately [4]); with 1 or 2 samples its statistics are mostly noise.
#
# ## 9. Save and load
#
# The replicas are equal, so it is enough if one rank writes the checkpoint. There are two traps. The first is a matter of names.
#
# **Predict.** What is the name of the first parameter in `ddp.state_dict()` if its name in the model is `body.weight`?

# %%
prediction = None

# %%
# %%px
ddp = DDP(TwoHeads())
first_name = next(iter(ddp.state_dict()))
print(first_name)
failure = None
try:
    TwoHeads().load_state_dict(ddp.state_dict())
except RuntimeError as error:
    failure = error
assert "Missing key" in str(failure)
keys = TwoHeads().load_state_dict(ddp.module.state_dict())  # this is what to save
assert not keys.missing_keys

# %%
compare(prediction, cluster.view["first_name"][0])

# %% [markdown]
# The wrapper calls the model `module`. Save `ddp.module.state_dict()`, so that a script without DDP can read it. The other trap is timing. While rank 0 is still writing, the other ranks could run ahead and read a file that is missing or half written. That is why `save` below ends with a barrier.
#
# The weights alone are not enough to continue *exactly*: the network below has dropout, and its optimizer has momentum. Everything that the next step depends on must therefore go into the file:


# %%
# %%px
from pathlib import Path


def dropping():
    layers = nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 10)
    ddp = DDP(nn.Sequential(*layers))
    return ddp, torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)


def steps_of(ddp, optimizer, steps):
    for step in steps:
        chosen = (torch.arange(32) + 32 * (step * world_size + rank)) % len(digits)
        optimizer.zero_grad()
        F.cross_entropy(ddp(digits.images[chosen]), digits.labels[chosen]).backward()
        optimizer.step()


# %%
# %%px
def save(path, ddp, optimizer, step):
    states = [None] * world_size
    dist.all_gather_object(states, torch.get_rng_state())  # each rank drops its own units
    if rank == 0:
        model, memory = ddp.module.state_dict(), optimizer.state_dict()
        torch.save({"model": model, "optimizer": memory, "step": step, "rng": states}, path)
    dist.barrier()  # nobody reads before it is written


# %% [markdown]
# This is how to test a checkpoint: 6 steps in one go must end with the same bits as 3 steps, a restart from the file, and 3 more steps. The module `course_lib.training.checkpoint` saves and loads the same state, and it also makes sure that the file is either complete or not there at all.

# %%
folder = str(cluster.shared_folder())  # all ranks see it; the kernel's end removes it
cluster.view["folder"] = folder

# %%
# %%px
from course_lib.training.checkpoint import load_checkpoint, save_checkpoint

torch.manual_seed(rank)
ddp, optimizer = dropping()
steps_of(ddp, optimizer, range(3))
save(Path(folder, "by_hand.pt"), ddp, optimizer, step=3)
where = {"step": 3, "epoch": 0, "sampler_seed": 0}
save_checkpoint(Path(folder, "library.pt"), model=ddp, optimizer=optimizer, **where)
steps_of(ddp, optimizer, range(3, 6))  # the run that was not interrupted

resumed, its_optimizer = dropping()  # other weights, no momentum, another random state
path = Path(folder, "library.pt")
place = load_checkpoint(path, model=resumed, optimizer=its_optimizer)
steps_of(resumed, its_optimizer, range(place.step, 6))
assert largest_difference(ddp, resumed) == 0

# %% [markdown]
# ### Exercise 5: resume
#
# Write the counterpart of `save` above: `resume(path, ddp, optimizer)`. It is called on every rank with a fresh DDP model and a fresh optimizer. It restores everything that was saved, and returns the number of the step at which to continue. The check tests whether training continues as if it had never stopped.


# %% tags=["exercise"] exercise="08.resume"
# %%px
def resume(path, ddp, optimizer):
    """Restore what save() wrote, on this rank; return the number of the next step."""
    ### BEGIN SOLUTION
    checkpoint = torch.load(path)
    ddp.module.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    torch.set_rng_state(checkpoint["rng"][dist.get_rank()])
    return checkpoint["step"]
    ### END SOLUTION


# %% tags=["check"]
check("08.resume")

# %% [markdown]
# Stuck? `hint("08.resume")`, `solution("08.resume")`. On GPUs add `map_location=device`, or every rank loads its tensors onto the GPU that rank 0 saved them from.
#
# ## 10. Outside a notebook
#
# A training script runs in one process per GPU (or per few cores), and a *launcher* starts these processes. Each process must find out which rank it is:
#
# | | `torchrun` sets | `mpiexec` of Open MPI sets | `srun` of Slurm sets |
# |---|---|---|---|
# | rank in the world | `RANK` | `OMPI_COMM_WORLD_RANK` | `SLURM_PROCID` |
# | world size | `WORLD_SIZE` | `OMPI_COMM_WORLD_SIZE` | `SLURM_NTASKS` |
# | *local rank*: rank within this machine | `LOCAL_RANK` | `OMPI_COMM_WORLD_LOCAL_RANK` | `SLURM_LOCALID` |
# | where the ranks meet | `MASTER_ADDR`, `MASTER_PORT` | MPI knows | you set this |
#
# The rank determines which samples a process takes. The *local* rank determines which GPU it uses: two machines with four GPUs each have ranks 0 to 7, and local ranks 0 to 3 on each machine. `DDP(model.to(gpu), device_ids=[gpu])` then keeps each process on its own GPU. With `torchrun`, you call `dist.init_process_group()`, which reads the variables; with `mpiexec` and this course's backend, you pass `init_method="mpi://"`.
#
# **Predict.** The engines of this notebook were started by `mpiexec`. Which of the two variables `RANK` and `OMPI_COMM_WORLD_RANK` do they have: (A) `RANK`, (B) `OMPI_COMM_WORLD_RANK`, (C) both or (D) neither? Answer with a letter.

# %%
prediction = None

# %% tags=["nbval-ignore-output"]
# %%px
import os

variables = [name for name in ("RANK", "OMPI_COMM_WORLD_RANK") if name in os.environ]
print({name: os.environ[name] for name in variables})

# %% tags=["nbval-ignore-output"]
found = cluster.view["variables"][0]
answers = {(): "D", ("RANK",): "A", ("OMPI_COMM_WORLD_RANK",): "B"}
compare(prediction, answers.get(tuple(found), "C"))
assert "RANK" not in found, "nobody used torchrun"

# %% [markdown]
# (Other MPI libraries use other names, such as `PMI_RANK` in MPICH. So it is better to ask PyTorch: `dist.get_rank()`.)
#
# The file `scripts/ddp.py` contains this lesson's training as a script: LeNet, DDP, and `DistributedSampler` with `set_epoch`, on MNIST if you have it and otherwise on the digits. Its last line of output is the result, with a *checksum* of the weights. The text after the `$` is what you would type in a terminal. (`torchrun` is short for `python -m torch.distributed.run`. The GPUs are hidden so that we can compare results bit for bit.)

# %%
import json
import subprocess
import sys

from course_lib.places import SCRIPTS
from torch_mpi4py import launch

script = SCRIPTS / "ddp.py"
options = ["--epochs", "4", "--steps", "160", "--batch", "16", "--rate", "0.05"]


def terminal(shown, command):
    """Run a command as a terminal would, at most 60 s; show and return its result."""
    print("$", shown, *options)
    command = [*map(str, command), *options, "--no-progress"]
    variables = launch.environment() | {"CUDA_VISIBLE_DEVICES": ""}  # on the processor
    ran = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    result = json.loads(ran.stdout.strip().splitlines()[-1])
    print({name: result[name] for name in ("backend", "data", "accuracy", "checksum")})
    return result


# %% tags=["nbval-ignore-output"]
torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2]
by_torchrun = terminal(
    "torchrun --standalone --nproc-per-node 2 scripts/ddp.py", [*torchrun, script]
)

# %% tags=["nbval-ignore-output"]
by_mpiexec = terminal(
    "mpiexec -n 2 python scripts/ddp.py", launch.mpiexec(2, sys.executable, script)
)

# %% [markdown]
# The two runs used the same script, but different launchers and backends: gloo over TCP, and MPI. (`launch.environment()` only sets environment variables for the ranks, such as those for one thread per rank and for permission to run as root.) Now we run the same training again in the notebook's engines, on ranks 0 and 1:

# %%
# %%px
from torch.utils.data import BatchSampler

from course_lib.training.loops import set_seed_of_rank
from course_lib.training.models import checksum

images_of, _, name = data.load_available("mnist", "digits", size=28)
if rank < 2:
    set_seed_of_rank(0, rank)
    ddp = DDP(models.LeNet(), process_group=pair)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=0.9)
    sampler = DistributedSampler(images_of, 2, rank, seed=0, drop_last=True)
    steps = 0
    for epoch in range(4):
        sampler.set_epoch(epoch)
        for chosen in BatchSampler(sampler, 16, drop_last=True):
            if steps == 160:
                break
            images, labels = images_of[chosen]
            optimizer.zero_grad()
            F.cross_entropy(ddp(images), labels).backward()
            optimizer.step()
            steps += 1
    in_notebook = checksum(ddp.module)

# %% [markdown]
# **Predict.** There were three runs on two ranks each: with `torchrun` over gloo, with `mpiexec` over MPI, and in the notebook. If you compare the final weights to the last bit, how many *different* sets are there?

# %%
prediction = None

# %%
in_notebook = cluster.view.client[0]["in_notebook"]
checksums = {by_torchrun["checksum"], by_mpiexec["checksum"], in_notebook}
compare(prediction, len(checksums))

# %%
assert len(checksums) == 1
assert by_torchrun["backend"] != by_mpiexec["backend"]
assert by_torchrun["accuracy"] > 0.8, "and it has learned something"

# %% [markdown]
# There is only one. With two ranks the order of a sum does not matter, as in section 1. With more ranks, gloo and MPI may add in different orders, so you would compare with a tolerance.
#
# On two machines, you run `torchrun --nnodes 2 --node-rank 0 --master-addr first-host ...` on the first, and the same command with `--node-rank 1` on the second. With MPI you run only one command, `mpiexec --host first-host:4,second-host:4 ...`. You will do this in lesson 13.
#
# ## 11. DataParallel, DDP or by hand?
#
# (You may skip this section. It measures the bytes of lesson 07's master again, and compares them with DDP's.) DataParallel, DDP and the handwritten loop compute the same gradient. We compare them on this machine with LeNet, 32 samples per device and two devices. DataParallel runs in one process with two *virtual devices* (threads, as in lesson 07); the other two run on two ranks. Each time is that of the fastest of 40 steps, because other work on the machine can only make a step slower.


# %%
# %%px
from course_lib.parallel.data_parallel import Log, VirtualDevice, data_parallel_step


def fastest(step, repeats=40):
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


# %%
# %%px
def steps_by(model, sync=None, group=None):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    images, labels = part_of_batch(0, rank % 2, 2)

    def step():
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        if sync is not None:
            sync(model, group)
        optimizer.step()

    return step


# %%
# %%px
def data_parallel(p):
    """One step of DataParallel with p virtual devices, 32 samples each; it can fill a Log."""
    network, devices = lenet(0), [VirtualDevice(i) for i in range(p)]
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    parts = [part_of_batch(0, r, p) for r in range(p)]
    batch = [torch.cat(column) for column in zip(*parts, strict=True)]

    def step(log=None):
        data_parallel_step(network, F.cross_entropy, optimizer, *batch, devices, log)

    return step


# %% [markdown]
# How many bytes go into and out of a device in one step? `Log` counts DataParallel's copies. No meter can see what a library sends inside its all-reduce. To count these bytes as well, we send the gradients through our own ring: with the hook of section 7 for DDP, and with a sync function for the handwritten loop.


# %%
# %%px
def sync_round_a_ring(model, group):
    """Average the gradients as sync_gradients does, but round a ring that the meter sees."""
    gradients = [parameter.grad for parameter in model.parameters()]
    flat = torch.cat([gradient.flatten() for gradient in gradients]) / dist.get_world_size(group)
    sum_round_a_ring(flat, group)
    parts = flat.split([gradient.numel() for gradient in gradients])
    for gradient, part in zip(gradients, parts, strict=True):
        gradient.copy_(part.view_as(gradient))


def moved_by_rank(step, group):
    """Bytes that this rank sends and receives in one step."""
    with Traffic(group) as traffic:
        step()
    return traffic.sent.bytes + traffic.received.bytes


# %%
# %%px
def moved_by_ranks(group):
    """For sync by hand and DDP: the bytes that go out of and into each rank in one step."""
    ddp = DDP(lenet(0), process_group=group)
    ddp.register_comm_hook((torch.float32, group), over_ring)
    ways = {"by hand": steps_by(lenet(0), sync_round_a_ring, group), "DDP": steps_by(ddp)}
    found = {}
    for way, step in ways.items():
        found[way] = [None] * dist.get_world_size(group)
        dist.all_gather_object(found[way], moved_by_rank(step, group), group=group)
    return found


def moved_by_devices(p):
    """The same for DataParallel's devices; and what of the master's are parameters, gradients."""
    data_parallel(p)(log := Log())
    own = log.bytes_of("parameters") + log.bytes_of("gradients")  # all to and from the master
    return [log.bytes_out(device) + log.bytes_in(device) for device in range(p)], own


# %%
# %%px
times = {}
if rank == 0:
    times["one process"] = fastest(steps_by(lenet(0)))
    times["DataParallel"] = fastest(data_parallel(2))
if rank < 2:
    ways = {
        "by hand": steps_by(lenet(0), sync_gradients, pair),
        "DDP": steps_by(DDP(lenet(0), process_group=pair), group=pair),
    }
    for way, step in ways.items():
        times[way] = fastest(step)
        with Traffic(pair) as traffic:
            step()
        calls, handed_over = traffic.collectives["all_reduce"]
        n = 4 * models.parameter_count(lenet(0))
        assert calls == 1
        assert n <= handed_over < 1.01 * n, "by hand a few numbers more, to compare the models"

# %%
# %%px
moved = moved_by_ranks(pair)
if rank == 0:
    moved["DataParallel"], _ = moved_by_devices(2)
    assert moved["by hand"] == moved["DDP"], "the same vector round the same ring"
    assert min(moved["DataParallel"]) > max(moved["DDP"]), "images and outputs travel too"

# %% tags=["nbval-ignore-output"]
times, moved = cluster.view["times"][0], cluster.view["moved"][0]
alone = times.pop("one process")
lines = {"DataParallel": "1", "by hand": "2 + sampler", "DDP": "1 + sampler"}
nodes = {"DataParallel": "one", "by hand": "any", "DDP": "any"}
print(f"one process, 32 samples: {1e3 * alone:.1f} ms a step   (all measured here)")
print("two devices                  KiB out and in of")
print("              lines         device 0   device 1   ms/step   scaling   nodes")
for way in lines:
    kib = [f"{nbytes / 1024:,.0f}" for nbytes in moved[way]]
    scaling = 2 * alone / times[way]
    row = f"{way:13} {lines[way]:12} {kib[0]:>9} {kib[1]:>10} {1e3 * times[way]:9.1f}"
    print(f"{row} {scaling:9.2f}   {nodes[way]}")

# %% [markdown]
# With two devices all three move the same number of bytes of parameters and gradients; DataParallel alone also moves images and outputs, whereas each rank reads its own images and keeps its outputs. With more devices the difference grows. In a ring all-reduce over $p$ ranks, each rank sends and receives $2 \frac{p-1}{p} n$ bytes for $n$ bytes of gradients, *nearly the same for any number of ranks*. DataParallel's master sends the parameters to each of the $p - 1$ others and receives a gradient from each: $2 (p-1)\, n$.
#
# **Predict.** With **four** devices, divide the bytes of parameters and gradients that DataParallel's master moves by the bytes that a DDP rank moves. What is the ratio?

# %%
prediction = None

# %%
# %%px
n, master, one_rank = 4 * models.parameter_count(lenet(0)), {}, {}
for p, group in ((2, pair), (4, dist.group.WORLD)):
    by_rank = moved_by_ranks(group)["DDP"]
    # Where p does not divide the 61,706 numbers, the chunks of the ring differ by one number.
    assert all(abs(nbytes - 2 * 2 * (p - 1) / p * n) <= 2 * 4 for nbytes in by_rank)
    if rank == 0:
        by_device, own = moved_by_devices(p)
        master[p], one_rank[p] = (by_device[0], own), by_rank[0]

# %%
one_rank, master = cluster.view["one_rank"][0], cluster.view["master"][0]
compare(prediction, master[4][1] / one_rank[4], within=0.01)
assert all(abs(master[p][1] / one_rank[p] - p / 2) < 1e-3 for p in master)
print("KiB out and in   master of DataParallel   of these images    rank of    master")
print("(measured here)  in all                   and outputs        DDP        over rank")
for p, (in_all, own) in master.items():
    kib = [f"{nbytes / 1024:,.0f}" for nbytes in (in_all, in_all - own, one_rank[p])]
    print(f"{p} devices        {kib[0]:<24} {kib[1]:<18} {kib[2]:<10} {own / one_rank[p]:.2f}")

# %% [markdown]
# - **Lines**: the number of lines that you add to the loop for one process. DataParallel and DDP wrap the model; by hand you add one call before the loop and one inside it. Ranks need a sampler; DataParallel splits the batch itself.
# - **Bytes**: the handwritten loop and DDP move the same number, and every rank moves as many as any other. With two devices DataParallel moves just as many, apart from the images and outputs. With four devices its master moves twice as many as a DDP rank. With $p$ devices it moves $p/2$ times as many: 4 times with 8 (*predicted*).
# - **Scaling**: samples per second with two devices, divided by those of one process; 2 would be perfect. Each rank has its own interpreter, while DataParallel's threads share one (lesson 07).
# - **Nodes**: threads cannot leave their machine.
#
# PyTorch has recommended DDP for years, even on one machine [3]. In a handwritten loop you see everything, and you can do things that DDP cannot. (Your loop in lesson 06 even overlapped communication with computing.) So writing the loop by hand is good for learning, and for research on synchronisation itself.
#
# ### DDP's neighbours in 2026
#
# - **FSDP2**. DDP holds parameters, gradients and optimizer state on every rank, which is wasteful if they are large. With `torch.distributed.fsdp.fully_shard(module)`, each rank holds only a part of all three: PyTorch all-gathers a layer's parameters just before they are used, and reduce-scatters its gradients as soon as they are computed. You know both collectives from lesson 02; lesson 10b uses them for this purpose. As a rule of thumb, use DDP if the model and its optimizer state fit on one device, and FSDP2 if they do not.
# - **`torch.compile`**. Wrap first, then compile: `torch.compile(DDP(model))`. The compiler's *DDPOptimizer* cuts the graph where the buckets end. If the backward pass were compiled as a whole, it would hand over all gradients only at its end, and nothing would overlap [5].
#
# ## Recap
#
# | | what to remember |
# |---|---|
# | `DDP(model)` | sends rank 0's weights to all; averages gradients with all-reduce in the backward pass; the loop stays the same |
# | buckets | in the order in which gradients arrive, which is the reverse of the forward pass; a full bucket leaves at once |
# | `bucket_cap_mb` | small: many messages, early; large: few messages, late; default: 25 MiB, but 1 MiB for the first bucket |
# | buffers | broadcast from rank 0 at the start of each forward pass |
# | `DistributedSampler` | pads or drops samples; call `set_epoch` |
# | `no_sync()` | put it around the forward *and* backward passes of all micro-batches except the last |
# | `join()` | for uneven numbers of batches |
# | `find_unused_parameters=True` | needed if a step skips parts of the model; costs one more all-reduce |
# | communication hook | returns a future of the mean; can hand over fewer bytes; whether fewer travel depends on the library |
# | 8 bits | a scale and one byte per number; error feedback adds to the next step what rounding left out |
# | mixed precision | `autocast` around the forward pass and the loss; float16 also needs a `GradScaler`; the gradients stay in float32 |
# | SyncBatchNorm | convert the model before wrapping it |
# | checkpoint | rank 0 writes `ddp.module.state_dict()`, the optimizer state, the step and all ranks' random states |
# | `torchrun`, `mpiexec` | one process per GPU; the local rank chooses the GPU |
#
# You can now read every line of the first taste in lesson 00.
#
# **Next:** lesson 09 covers asynchronous SGD with a parameter server, in which ranks no longer wait for each other.
#
# ## References and further reading
#
# 1. S. Li, Y. Zhao, R. Varma and others, "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", *Proceedings of the VLDB Endowment* 13(12), 3005–3018, 2020. The authors of DDP describe how it is built; the overlap numbers are in section 5.1.
# 2. T. Vogels, S. P. Karimireddy and M. Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression for Distributed Optimization", *Advances in Neural Information Processing Systems* 32, 2019.
# 3. PyTorch, "Distributed Data Parallel" (notes) and the reference of `torch.nn.DataParallel`, [docs.pytorch.org](https://docs.pytorch.org/docs/stable/notes/ddp.html).
# 4. P. Goyal and others, "Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour", arXiv:1706.02677, 2017. Section 2.3 says why every rank normalises over its own samples; section 3 lists the traps of distributed SGD, including the scaling of the loss.
# 5. PyTorch, "Frequently Asked Questions" of `torch.compile`, section "Do you support Distributed code?", [docs.pytorch.org](https://docs.pytorch.org/docs/stable/torch.compiler_faq.html).
# 6. P. Micikevicius, S. Narang, J. Alben and others, "Mixed Precision Training", *International Conference on Learning Representations*, 2018, arXiv:1710.03740. Introduces float32 weights with 16-bit products, and loss scaling.
# 7. F. Seide, H. Fu, J. Droppo, G. Li and D. Yu, "1-Bit Stochastic Gradient Descent and its Application to Data-Parallel Distributed Training of Speech DNNs", *Interspeech*, 1058–1062, 2014.
# 8. S. P. Karimireddy, Q. Rebjock, S. U. Stich and M. Jaggi, "Error Feedback Fixes SignSGD and other Gradient Compression Schemes", *International Conference on Machine Learning*, 2019, arXiv:1901.09847.
