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
# # 07 DataParallel
#
# **The one idea.** A single process can drive several devices, with one thread for each. It copies the model to every device, splits the batch among the devices, lets them all work at once, and collects the results on one of them, the *master*. This takes one line of code. But the master does the rest of the work alone, while the other devices wait.
#
# **You will be able to**
# - do the five steps (replicate, scatter, parallel_apply, gather and update) by hand, and show that the gradient equals that of one device;
# - say what `torch.nn.DataParallel` does in every step, and which changes to the model's state it silently loses;
# - count the bytes that pass through the master, and compare them with those of an all-reduce;
# - explain how Python's global lock affects threads, and when it does not matter;
# - say why DataParallel is limited to one machine, and what lesson 08 does instead.
#
# **Prerequisites:** lesson 04, where the gradients of shards add up to the gradient of the batch. For section 5 you also need the all-reduce from lesson 02.
#
# **Time.** The notebook runs in about 15 s (*measured here*: 2 cores). Allow 90 minutes to study it and do its five exercises.

# %%
import copy
import sys

import torch
import torch.nn.functional as F

from course_lib.teaching import check, compare, figures, hint, progress, solution
from course_lib.training.data import load
from course_lib.training.models import MLP
from course_lib.parallel import data_parallel
from course_lib.parallel.data_parallel import Log, virtual_devices

# %% [markdown]
# ## 1. One process, many threads
#
# So far, every rank has been a process. DataParallel has only **one** process, and here that process is the notebook: the cells below run without `%%px`, and you need no cluster until section 6.
#
# A process can have many *threads*. Threads run at the same time and share all memory: when one of them writes, the others see it. DataParallel drives each device, usually a GPU, with a separate thread.
#
# You need no GPU here. A *virtual device* is a thread that computes on the CPU and never touches the memory of another virtual device. Everything that it receives is copied, as it would be for a GPU. (If you have GPUs, the virtual devices are spread over them.) Device 0 is the master.

# %% tags=["nbval-ignore-output"]
own_threads = torch.get_num_threads()  # asked first: the text below says why
devices = virtual_devices(4)
place = devices[0].place  # where the master's tensors live
threads = [device.submit(torch.get_num_threads).result() for device in devices]

print(devices)
print("compute threads: this notebook", torch.get_num_threads(), "- the devices", threads)
assert threads == [1, 1, 1, 1]
assert torch.get_num_threads() == own_threads

# %% [markdown]
# `device.submit(f, x)` makes the device's thread call `f(x)` and immediately returns a *future*. The future's `result()` waits for the call to end and returns its result.
#
# Why one compute thread per device? PyTorch splits a single large operation among several threads, by default as many as there are cores (the environment variable `OMP_NUM_THREADS` changes that). If four devices did this on 2 cores, eight threads would get in each other's way. So each device's thread calls `torch.set_num_threads(1)`. The setting applies only to the thread that makes the call, with one catch: a thread that has not yet computed anything or called `torch.get_num_threads()` adopts the setting of another thread. In the cell above, the notebook called `torch.get_num_threads()` first, so it keeps its own setting.
#
# Next we need 250 real digits and a small network, in float64 so that you can tell rounding errors from mistakes. For comparison we also need the gradient that one device computes from the whole batch.

# %%
training, _ = load("digits")
images, labels = (tensor.to(place) for tensor in training[:250])
images = images.double()

torch.manual_seed(7)
model = MLP(64, (128,)).double().to(place)
alone = copy.deepcopy(model)
loss_alone = F.cross_entropy(alone(images), labels)
loss_alone.backward()
print(f"loss of one device on 250 samples: {loss_alone.item():.4f}")

# %% [markdown]
# ## 2. The five steps by hand
#
# ### Step 1: replicate
#
# Every other device gets a copy of the model. The master's replica is the model itself.


# %%
def worst(one, other):
    """The largest difference between the tensors of two lists."""
    return max((a - b.to(a.device)).abs().max().item() for a, b in zip(one, other, strict=True))


replicas = [model] + [copy.deepcopy(model).to(device.place) for device in devices[1:]]

for replica in replicas:
    assert worst(replica.parameters(), model.parameters()) == 0  # equal to the bit
assert len({next(replica.parameters()).data_ptr() for replica in replicas}) == 4  # apart in memory
print("four replicas, equal to the bit, each in memory of its own")

# %% [markdown]
# ### Step 2: scatter
#
# The batch is cut along its first dimension into one shard per device. `torch.chunk` does this, and `torch.nn.DataParallel` cuts in the same way.
#
# **Predict.** There are 250 samples and 4 devices. How many samples does each device get? Write a list of four numbers.

# %%
prediction = None

# %%
pairs = zip(images.chunk(4), devices, strict=True)
shards = [shard.to(device.place, copy=True) for shard, device in pairs]
sizes = [len(shard) for shard in shards]
compare(prediction, sizes)

# %% [markdown]
# Each shard but the last has 250 / 4 samples, rounded *up*; the last one gets the rest. That looks harmless. Now try 9 samples:

# %%
few = [len(shard) for shard in torch.arange(9).chunk(4)]
print("9 samples:", few)
assert (sizes, few) == ([63, 63, 63, 61], [3, 3, 3])

# %% [markdown]
# There are three shards for four devices, and the fourth device has nothing to do. `DataParallel` accepts this: it scatters the samples first, and then makes only as many replicas as there are shards.
#
# ### Exercise 1: deal out evenly
#
# Write `scatter_evenly(batch, p)`, which returns a list of `p` tensors: the shards of `batch` in order, each in its own memory. No two shards may differ in size by more than one sample. If there are fewer samples than devices, the last shards are empty.


# %% tags=["exercise"] exercise="07.scatter"
import torch


def scatter_evenly(batch, p):
    """Return p shards of the batch, in order and apart in memory, as equal as can be."""
    ### BEGIN SOLUTION
    size, rest = divmod(len(batch), p)
    sizes = [size + 1] * rest + [size] * (p - rest)
    return [shard.clone() for shard in torch.split(batch, sizes)]
    ### END SOLUTION


# %% tags=["check"]
check("07.scatter")

# %% [markdown]
# Stuck? `hint("07.scatter")` gives one hint at a time, and `solution("07.scatter")` shows a worked solution. No later cell needs your function.
#
# ### Step 3: parallel_apply
#
# Each thread calls its replica on its shard. The notebook first submits all calls and only then waits for the results. This order is what makes the step parallel.

# %%
calls = zip(devices, replicas, shards, strict=True)
futures = [device.submit(replica, shard) for device, replica, shard in calls]
outputs = [future.result() for future in futures]
print([tuple(output.shape) for output in outputs])
assert [len(output) for output in outputs] == sizes

# %% [markdown]
# ### Step 4: gather, and the loss
#
# The outputs are copied to the master and concatenated in order. Only the master holds the labels, so it computes the loss of the *whole* batch.

# %%
gathered = torch.cat([output.detach().to(place) for output in outputs]).requires_grad_()
loss = F.cross_entropy(gathered, labels)
print(f"loss on the master: {loss.item():.4f}")
assert worst([gathered], [alone(images)]) < 1e-12
assert abs(loss.item() - loss_alone.item()) < 1e-12

# %% [markdown]
# ### Backward
#
# The gradient goes back along the same path. Each forward step has a mirror image:
#
# | forward | backward |
# |---|---|
# | gather: join the outputs | split the gradient of the outputs |
# | parallel_apply: the forward pass in all replicas | the backward pass in all replicas, at the same time |
# | scatter: split the inputs | nothing: the gradient of the inputs is not needed |
# | replicate: copy the parameters | *add up* the gradients of the copies |
#
# The last row is the rule from lesson 04: a value that is used several times receives the sum of the gradients from all its uses.
#
# The backward pass uses up the graph, so the next cell fails if you run it twice, with the error *backward through the graph a second time*. To run the cell again, repeat the whole step, starting with the cell in section 1 that creates the model.

# %%
loss.backward()  # on the master: from the loss to the gathered outputs
calls = zip(devices, outputs, gathered.grad.chunk(4), strict=True)
futures = [d.submit(output.backward, part.to(d.place, copy=True)) for d, output, part in calls]
for future in futures:
    future.result()

for replica in replicas[1:]:
    for own, other in zip(model.parameters(), replica.parameters(), strict=True):
        own.grad += other.grad.to(place)

difference = worst([p.grad for p in model.parameters()], [p.grad for p in alone.parameters()])
assert difference < 1e-12
print("the gradient is that of one device, to 1e-12")

# %% [markdown]
# The gradients of 63 + 63 + 63 + 61 samples were added up without any weighting, and the result is right. The loss was a mean over all 250 samples *before* anything was differentiated, so each output's gradient already contains the factor 1/250.
#
# With GPUs you call `loss.backward()` once. Autograd has a thread for each GPU, and runs the backward passes of all replicas at the same time [4]. On the CPU it uses only the caller's thread. So this lesson cuts the graph at the gather and lets every device run the backward pass of its own part.
#
# ### Exercise 2: one loss from all shards
#
# Instead of sending its outputs to the master, every device could compute the mean loss of its own shard and send only this number. Write `mean_loss(losses, sizes)`: `losses` is a list of scalar tensors with the mean loss of each device's shard, and `sizes` lists the number of samples in each shard. Return the mean over all samples, as a tensor on which `backward()` works. A shard may be empty; its mean is then 0/0, which is `nan`.


# %% tags=["exercise"] exercise="07.mean_loss"
def mean_loss(losses, sizes):
    """Return the mean loss over all samples, from the mean and the size of each shard."""
    ### BEGIN SOLUTION
    total = sum(loss * size for loss, size in zip(losses, sizes, strict=True) if size > 0)
    return total / sum(sizes)
    ### END SOLUTION


# %% tags=["check"]
check("07.mean_loss")

# %% [markdown]
# Stuck? `hint("07.mean_loss")`, `solution("07.mean_loss")`.
#
# ### Step 5: update
#
# **Predict.** The optimizer takes its step on the master's model. Do the parameters of the other replicas change? Write `True` or `False`.

# %%
prediction = None

# %%
before = [[own.detach().clone() for own in replica.parameters()] for replica in replicas]
optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
optimizer.step()

pairs = zip(replicas, before, strict=True)
master_moved, *others_moved = (worst(r.parameters(), was) > 0 for r, was in pairs)

# %%
compare(prediction, any(others_moved))
assert master_moved
assert not any(others_moved)

# %% [markdown]
# Only the master's parameters have changed. The replicas are now stale, and nothing will update them: they are discarded, and the next step starts with new copies. This is why every step has to *replicate*, which is DataParallel's most expensive habit.
#
# ### Exercise 3: update the master
#
# Write `update(model, replicas, optimizer)`. The backward pass has run in all replicas; `replicas[0]` is `model` itself. A parameter's `grad` may be `None` on some replicas, because the parameter is frozen or was not used there. The loss was the mean over the whole batch. The optimizer holds the master's parameters; make it take one step with the gradient of the whole batch.


# %% tags=["exercise"] exercise="07.update"
def update(model, replicas, optimizer):
    """Move the master's model by one step, with the gradients of all replicas."""
    ### BEGIN SOLUTION
    for replica in replicas[1:]:
        for own, other in zip(model.parameters(), replica.parameters(), strict=True):
            if other.grad is not None:
                arrived = other.grad.to(own.device)
                own.grad = arrived if own.grad is None else own.grad + arrived
    optimizer.step()
    ### END SOLUTION


# %% tags=["check"]
check("07.update")

# %% [markdown]
# Stuck? `hint("07.update")`, `solution("07.update")`.
#
# ### Is the result always the same?
#
# `course_lib.parallel.data_parallel` provides the same steps as functions, and `data_parallel_step` runs them one after another. We compare thirty steps on four devices with thirty steps on one device, from the same initial weights, with uneven shards and momentum:


# %%
def train(model, step, steps=30):
    """Call step(model, optimizer), which returns the loss, and collect the losses."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return [step(model, optimizer).item() for _ in range(steps)]


def on_one(model, optimizer):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    return loss.detach()


def on_four(model, optimizer):
    return data_parallel.data_parallel_step(
        model, F.cross_entropy, optimizer, images, labels, devices
    )


# %%
one, four = copy.deepcopy(alone), copy.deepcopy(alone)
losses_one, losses_four = train(one, on_one), train(four, on_four)
print(f"loss {losses_four[0]:.3f} -> {losses_four[-1]:.3f}")
assert losses_four[-1] < 0.5 * losses_four[0]
assert worst(four.parameters(), alone.parameters()) > 1e-3, "the weights have not moved"
assert worst(four.parameters(), one.parameters()) < 1e-10

# %% [markdown]
# The two runs agree to 1e-10, but not bit for bit. The additions happen in a different order, each step has rounding errors of about 1e-16, and thirty steps with momentum amplify them a little.
#
# **What about float32?** Its *unit roundoff* `u`, the largest relative error of one rounding, is 2 to the power of -24, about 6e-8. If you add `N` terms in a different order, the sum changes by at most about `N u` times its largest partial sum, and usually by far less, because rounding errors have both signs and partly cancel. So for `N` = 250 samples, a difference of less than `250 u` times the largest gradient is rounding (`250 u` is about 1.5e-5). A larger one would point to a mistake.

# %% tags=["nbval-ignore-output"]
images32, u = images.float(), 2.0**-24
for p in (1, 2, 3, 4):
    one, many = (copy.deepcopy(alone).float() for _ in range(2))
    no_step = torch.optim.SGD(many.parameters(), lr=0.0)
    one.zero_grad()
    F.cross_entropy(one(images32), labels).backward()
    data_parallel.data_parallel_step(many, F.cross_entropy, no_step, images32, labels, devices[:p])
    largest = max(parameter.grad.abs().max().item() for parameter in one.parameters())
    off = worst([a.grad for a in many.parameters()], [a.grad for a in one.parameters()]) / largest
    print(f"p = {p}: off by {off / u:5.1f} u")
    assert off < 250 * u

# %% [markdown]
# The differences are usually a few `u`, so they are only rounding.
#
# ## 3. `torch.nn.DataParallel` itself
#
# In PyTorch, all of section 2 is one line: `model = torch.nn.DataParallel(model)`. This wrapper calls functions whose names you already know:
#
# | step | `torch.nn.parallel` | what it does on GPUs |
# |---|---|---|
# | 1 | `replicate(model, devices)` | broadcasts parameters and buffers from the master, as part of the graph, so that the backward pass adds up the gradients |
# | 2 | `scatter(inputs, devices)` | cuts with `torch.chunk` and copies |
# | 3 | `parallel_apply(replicas, inputs)` | starts a new thread for each device, in each step |
# | 4 | `gather(outputs, master)` | copies and joins, as part of the graph |
# | 5 | none | you compute the loss and call `backward()` and `optimizer.step()` yourself, on the master |
#
# These functions are for GPUs: `scatter` accepts CPU tensors but distributes them to GPUs, and `gather` rejects CPU tensors. So the next cell runs them only if there are at least two GPUs; it prints what it ran.

# %% tags=["nbval-ignore-output"]
gpus = torch.cuda.device_count()
theirs = copy.deepcopy(alone)
theirs.zero_grad()
F.cross_entropy(torch.nn.DataParallel(theirs)(images), labels).backward()
assert worst([a.grad for a in theirs.parameters()], [a.grad for a in alone.parameters()]) < 1e-12
if gpus >= 2:
    print(f"ran torch.nn.DataParallel on {gpus} GPUs: the gradient is that of one device")
else:
    print(f"{gpus} GPUs here: torch.nn.DataParallel called the model once, and copied nothing")

# %% [markdown]
# `DataParallel` still works and is still used, but its own documentation recommends DistributedDataParallel instead, even on a single machine [1, 2]. In 2021, PyTorch's developers proposed to keep DataParallel in *maintenance mode* for a year and then remove it, and asked for opinions [3]. DataParallel has not been removed, but since then development has gone into DistributedDataParallel. You learn DataParallel because you will come across it, and because lesson 08 fixes its faults.
#
# ## 4. The steps, timed one by one
#
# Now we use a larger network with 1.1 million parameters, in float32, and 256 samples. A `Log` records when each device was busy.
#
# **Predict.** For what fraction of a step does device 3 wait? Write a number between 0 and 1.

# %%
prediction = None

# %%
batch_256 = [tensor.to(place) for tensor in training[:256]]  # images and labels
torch.manual_seed(7)
large = MLP(64, (1024, 1024)).to(place)
large_optimizer = torch.optim.SGD(large.parameters(), lr=0.05)


def logged_step(devices):
    """One step of the large network on these devices; returns its log."""
    log = Log()
    data_parallel.data_parallel_step(
        large, F.cross_entropy, large_optimizer, *batch_256, devices, log
    )
    return log


# %%
def duration(log):
    return max(span.end for span in log.spans) - min(span.start for span in log.spans)


log = min((logged_step(devices) for _ in range(9)), key=duration)  # the least disturbed one
together = ("forward", "backward")
steps = list(dict.fromkeys(span.label for span in sorted(log.spans, key=lambda span: span.start)))
assert {span.label for span in log.spans if span.device > 0} == set(together)

# %% tags=["nbval-ignore-output"]
print("step          who works     ms   share")
for label in steps:
    who = "all" if label in together else "master"
    ms = 1e3 * log.seconds(label)
    print(f"{label:13} {who:8} {ms:7.2f} {ms / 1e3 / duration(log):6.0%}")

# %% [markdown]
# Only two lines say *all*. Here is the same step as a picture. Device 0 is the master. During the hatched time, you pay for an idle device. (A solid bar begins when the work is submitted, so it includes any wait for a core: here, four devices share 2 cores.)

# %% tags=["nbval-ignore-output"]
lanes = {
    f"device {i}": [(s.label, s.start, s.end) for s in log.spans if s.device == i] for i in range(4)
}
figures.timeline(
    lanes,
    moves=["replicate", "scatter", "gather", "scatter back", "reduce"],
    title="One step of DataParallel on four devices, measured",
    alt="Timeline of four devices, measured: device 0 replicates and scatters while the others "
    "are idle; all run forward; device 0 gathers and works out the loss while the others are "
    "idle; all run backward; device 0 adds up and updates while the others are idle.",
)

# %% tags=["nbval-ignore-output"]
first, last = min(s.start for s in log.spans), max(s.end for s in log.spans)
idle = figures.idle_share(lanes["device 3"], first, last)
compare(prediction, idle, within=0.25)
master_alone = sum(s.end - s.start for s in log.spans if s.label not in together)
assert idle * (last - first) >= master_alone - 1e-9

# %% [markdown]
# The other devices wait while the master works alone. The `assert` checks this, and it holds to the nanosecond because the steps run strictly one after another. On this machine four devices share few cores, so their forward and backward passes are slow, and the master's part looks small. On real GPUs it is the other way round: they compute many times faster than a core, but copying does not speed up to the same extent.
#
# The master's part also *grows*. With `p` devices, the master sends `p - 1` copies of the model and adds `p - 1` gradients to its own, while each device has only `1/p` of the samples to work on.

# %% tags=["nbval-ignore-output"]
print("devices   alone (ms)   all at once (ms)")
for p in (1, 2, 4):
    found = min((logged_step(devices[:p]) for _ in range(5)), key=duration)
    shared = sum(found.seconds(label) for label in together)
    print(f"{p:7} {1e3 * (duration(found) - shared):11.1f} {1e3 * shared:17.1f}")

# %% [markdown]
# ## 5. Bytes through the master
#
# Times depend on the machine; bytes do not. Let `n`, `x` and `y` be the sizes in bytes of all parameters, of the batch of inputs and of the outputs, and let the batch be divisible by `p`. In every step the master
#
# - **sends** the others all parameters, `(p - 1) n`; their shards of the inputs, `(p - 1)/p x`; and their shards of the outputs' gradient, `(p - 1)/p y`;
# - **receives** from them their shards of the outputs, `(p - 1)/p y`, and a gradient from each, `(p - 1) n`.
#
# **Predict.** `n` is about 4.5 MB here, and the images and outputs are small. With 8 devices, how many MB pass through the master in one step, in and out together? Write a number.

# %%
prediction = None

# %%
sixteen = virtual_devices(16)
n = sum(parameter.nbytes for parameter in large.parameters())
x, y = batch_256[0].nbytes, 256 * 10 * 4  # 10 outputs of 4 bytes a sample
counted = {}
for p in (2, 4, 8, 16):
    copied = logged_step(sixteen[:p])
    counted[p] = copied.bytes_out(0) + copied.bytes_in(0)
    assert copied.bytes_out(0) == (p - 1) * n + (p - 1) * (x + y) // p
    assert copied.bytes_in(0) == (p - 1) * n + (p - 1) * y // p
    assert copied.bytes_in(1) + copied.bytes_out(1) == 2 * n + (x + 2 * y) // p

# %%
compare(prediction, round(counted[8] / 1e6), within=0.1, unit="MB")

# %% [markdown]
# The formulas are correct to the byte; we counted the bytes of the tensors that were copied. Here are the bytes of every device for `p` = 4:

# %%
copied = logged_step(devices)
print("device   out (bytes)    in (bytes)")
for i in range(4):
    print(f"{i:6} {copied.bytes_out(i):13,} {copied.bytes_in(i):13,}")
assert copied.bytes_out(0) == 3 * copied.bytes_in(1) == sum(copied.bytes_in(i) for i in (1, 2, 3))
assert copied.bytes_in(0) == 3 * copied.bytes_out(1) == sum(copied.bytes_out(i) for i in (1, 2, 3))

# %% [markdown]
# The master carries as many bytes as the other three together. How does that compare with an all-reduce? In a *ring*, every device sends only to its right neighbour, one `p`-th of the gradient at a time. It takes `p - 1` rounds to add up the parts, and another `p - 1` rounds to pass on the complete sums. Here is the ring, on the same devices:


# %%
def ring_all_reduce(buffers, devices, log):
    """Add up the buffers of all devices, in place; their length is a multiple of p."""
    p = len(devices)
    parts = [buffer.chunk(p) for buffer in buffers]  # views: they look into the buffers
    for step in range(2 * (p - 1)):
        arriving = []
        for r in range(p):
            part = parts[r][(r - step) % p]
            arriving.append(log.move("ring", part, devices[r], devices[(r + 1) % p]))
        for r in range(p):
            part = parts[(r + 1) % p][(r - step) % p]
            if step < p - 1:
                part += arriving[r]
            else:
                part.copy_(arriving[r])


# %%
in_a_ring = {}
numbers = n // 4 + -(n // 4) % 16  # so many that 2, 4, 8 and 16 divide it
for p in (2, 4, 8, 16):
    buffers = [torch.full((numbers,), r + 1.0, device=sixteen[r].place) for r in range(p)]
    copied = Log()
    ring_all_reduce(buffers, sixteen[:p], copied)
    for buffer in buffers:
        assert (buffer == p * (p + 1) // 2).all()  # 1 + 2 + ... + p, exactly, everywhere
    for r in range(p):
        assert copied.bytes_out(r) == copied.bytes_in(r) == 2 * (p - 1) * 4 * numbers // p
    in_a_ring[p] = copied.bytes_out(0) + copied.bytes_in(0)

# %%
print("devices | through the master | through each device of a ring   (MB, in and out)")
for p in counted:
    print(f"{p:7} | {counted[p] / 1e6:18.1f} | {in_a_ring[p] / 1e6:29.1f}")
for p in (64, 256):
    print(f"{p:7} | {2 * (p - 1) * n / 1e6:18.1f} | {4 * (p - 1) * n / p / 1e6:29.1f}   predicted")
assert counted[8] > 3.4 * in_a_ring[8]

# %%
figures.measured_and_predicted(
    list(counted),
    {"master": list(counted.values()), "each device of a ring": list(in_a_ring.values())},
    {
        "master": lambda p: 2 * (p - 1) * n + (p - 1) / p * (x + 2 * y),
        "each device of a ring": lambda p: 4 * (p - 1) / p * n,
    },
    scale="linear",
    xlabel="devices p",
    ylabel="in and out per step (bytes)",
    title="The busiest device",
)

# %% [markdown]
# With 2 devices there is hardly any difference. With more devices, the master's line rises with `p`. The ring's line flattens and never reaches `4 n`, because a ring has no master. You built this ring from `send` and `recv` in lesson 03. Lesson 08 uses a ring too, and there no parameters have to travel during training: replicas that start equal and apply the same gradients stay equal.
#
# Our steps make the copies one by one. Between NVIDIA GPUs, PyTorch does better: it uses NCCL for the parameters and gradients, which then pass from GPU to GPU instead of going to and from the master `p - 1` times. Even then, three faults remain. All parameters travel in every step, although they need not. Nothing travels while the devices compute. And the inputs, outputs, loss and update remain the master's work.
#
# The master also uses more *memory* than the others: it holds the optimizer's state, the whole batch, and all outputs with their gradient. So the master's memory decides how large the batch can be.
#
# ### Exercise 4: count the bytes
#
# Write `master_bytes(model, inputs, outputs, p)`, which returns two integers: the number of bytes that leave the master in one training step, and the number that reach it. `inputs` and `outputs` are the tensors of the whole batch, which is divisible by `p`. Count the model's buffers as well, because a replica needs them. Frozen parameters, with `requires_grad` false, have no gradient.


# %% tags=["exercise"] exercise="07.master_bytes"
def master_bytes(model, inputs, outputs, p):
    """Return (out, in): the bytes that leave and reach the master in one training step."""
    ### BEGIN SOLUTION
    weights = sum(tensor.nbytes for tensor in [*model.parameters(), *model.buffers()])
    trained = sum(tensor.nbytes for tensor in model.parameters() if tensor.requires_grad)
    x, y = (tensor.nbytes * (p - 1) // p for tensor in (inputs, outputs))
    return (p - 1) * weights + x + y, y + (p - 1) * trained
    ### END SOLUTION


# %% tags=["check"]
check("07.master_bytes")

# %% [markdown]
# Stuck? `hint("07.master_bytes")`, `solution("07.master_bytes")`.
#
# ## 6. Threads or processes? The global lock
#
# Python's interpreter has a lock, the *global interpreter lock* or GIL: only the thread that holds it may run Python code. All threads in section 2 share this lock. PyTorch releases it while an operation computes, and acquires it again for the next line of Python.
#
# How much the lock matters therefore depends on the work. To compare threads with processes we need processes: our ranks. The next cells start them and define two jobs, on the ranks and, because of `--local`, in this notebook too.

# %% tags=["nbval-ignore-output"]
from course_lib.cluster import start_cluster

cluster = start_cluster(n=4)

# %%
# %%px --local
import time


def many_small(steps=10_000):
    """10,000 operations on 4 numbers: nearly all of the time is Python and bookkeeping."""
    total = torch.zeros(4)
    for _ in range(steps):
        total = total + 1
    return total


# %%
# %%px --local
def few_large(steps=10):
    """10 products of 512 x 512 matrices: nearly all of the time is arithmetic."""
    total, shift = torch.eye(512), torch.eye(512).roll(1, dims=0)
    for _ in range(steps):
        total = shift @ total
    return total


assert many_small().tolist() == [10_000] * 4
assert torch.equal(few_large(), torch.eye(512).roll(10, dims=0))

# %% [markdown]
# **Predict.** One device does a job alone. Then two devices each do the same job at the same time, on two cores. If the two do not disturb each other, they take as long as one alone, and the factor is 1. If they take turns, the factor is 2. Write a list of two numbers: the factors for `many_small` and `few_large` in two threads.

# %%
prediction = None


# %%
def best_time(work, count):
    """The best of ten: seconds until `count` devices have done `work`, all starting at once."""
    times = []
    for _ in range(10):
        start = time.perf_counter()
        futures = [device.submit(work) for device in devices[:count]]
        done = [future.result() for future in futures]
        times.append(time.perf_counter() - start)
        assert all(torch.equal(each, done[0]) for each in done)
    return min(times)


jobs = (many_small, few_large)
in_threads = {job.__name__: [best_time(job, count) for count in (1, 2)] for job in jobs}

# %% [markdown]
# Now we do the same on ranks, which are processes: first on rank 0 alone, then on ranks 0 and 1 together. A barrier on `pair` makes the two start at the same time.

# %%
# %%px
pair = comm.Split(color=0 if rank < 2 else 1, key=rank)


def best_time(work, everyone):
    times = []
    for _ in range(10):
        if everyone:
            pair.Barrier()
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


# %%
# %%px --targets 0
alone_s = {job.__name__: best_time(job, everyone=False) for job in (many_small, few_large)}

# %%
# %%px --targets 0,1
both_s = {job.__name__: best_time(job, everyone=True) for job in (many_small, few_large)}

# %% tags=["nbval-ignore-output"]
alone_s = cluster.client[0]["alone_s"]
both_s = cluster.client[[0, 1]]["both_s"]
factors = []
print("job          alone (ms)   two threads   two processes")
for name, (one, two) in in_threads.items():
    factors.append(round(two / one, 1))
    processes = max(each[name] for each in both_s) / alone_s[name]
    print(f"{name:12} {1e3 * one:10.0f} {two / one:10.1f} x {processes:13.1f} x")
compare(prediction, factors, within=0.25)
print("the GIL is", "on" if getattr(sys, "_is_gil_enabled", lambda: True)() else "off")

# %% [markdown]
# Compare the factors in the table (*measured here*) with 1 (undisturbed) and 2 (taking turns). With two free cores, the factors of both jobs stay near 1 in processes. So does that of `few_large` in threads: its threads hold the lock for microseconds and compute for milliseconds, so they rarely compete for it. Only `many_small` in threads is far from 1. When this lesson was written, its factor on two cores was between 2.5 and 3.5: **worse than taking turns**. Each of its operations releases the lock and tries to get it back at once. Meanwhile, the other thread has woken up and taken the lock, and the first thread has to wait. Handing over the lock costs more than the work itself. D. Beazley demonstrated this effect in 2010 [5]. (If other programs use your cores, or fewer than two are free, all factors are larger.)
#
# A training step has both kinds of work. On a CPU, or on a GPU with large layers, threads do well. But with smaller layers, a GPU is so fast that the Python thread does nothing but launch operations: each device then has a job like `many_small`. One process with eight threads has one lock for all eight; eight processes have eight locks. After the master, that is the second reason for the design in lesson 08. Python can be built without the lock: as an experiment since version 3.13 (PEP 703 [6]), and as a supported option since 3.14 (PEP 779 [9]). Such a build removes this reason, but not the master.
#
# Does the lock at least make it safe for threads to share data? No. It protects single steps of the interpreter, and `total = total + gradient` takes several.
#
# ### Exercise 5: many threads, one sum
#
# The thread of each device calls `accumulate(shared, compute, lock)`. `compute()` takes a long time and returns the thread's gradient. `shared.read()` returns a copy of the sum so far, and `shared.write(value)` replaces that sum. Write `accumulate`, which adds the thread's gradient to the sum. No gradient may get lost, whatever the other threads are doing, and all threads must be able to compute at the same time. `with lock:` admits only one thread at a time to the indented lines below it.


# %% tags=["exercise"] exercise="07.accumulate"
def accumulate(shared, compute, lock):
    """Add what compute() returns to the shared sum; many threads do so at the same time."""
    ### BEGIN SOLUTION
    gradient = compute()
    with lock:
        shared.write(shared.read() + gradient)
    ### END SOLUTION


# %% tags=["check"]
check("07.accumulate")

# %% [markdown]
# Stuck? `hint("07.accumulate")`, `solution("07.accumulate")`.
#
# Even with a lock, chance decides the *order* of the additions, and so the last bits of the sum. The course's library therefore lets a single thread add up the gradients, in the order of the devices. Two runs then agree bit for bit.
#
# ## 7. Break it on purpose: the lost statistics
#
# If the forward pass changes the state of the model, it changes only that of a replica, and replicas are thrown away. Batch normalisation is such a case: in training it keeps a *running mean* of its inputs in a buffer.
#
# **Predict.** There are 8 samples of one number each: 0, 0, 10, 10, 20, 20, 30, 30. Their mean is 15. Each of four devices gets two samples. What is the running mean in the master's model after the forward pass? (With `momentum=1.0` it is the mean of the last batch.) Write a number.

# %%
prediction = None

# %%
norm = torch.nn.BatchNorm1d(1, momentum=1.0).to(place)
batch = torch.tensor([[0.0], [0.0], [10.0], [10.0], [20.0], [20.0], [30.0], [30.0]], device=place)
norms = data_parallel.replicate(norm, devices)
data_parallel.parallel_apply(norms, data_parallel.scatter(batch, devices), devices)
running_means = [replica.running_mean.item() for replica in norms]

# %%
compare(prediction, norm.running_mean.item())
assert norm.running_mean.item() == running_means[0]
assert running_means == [0, 10, 20, 30]

# %% [markdown]
# - **Symptom.** Accuracy on test data may be worse than the training loss suggests, because evaluation uses the running mean. The effect grows with the number of devices. With `torch.nn.DataParallel`, even a counter in `forward` stays at its initial value [1]. Nothing raises an error.
# - **Diagnosis.** Replica 0 *is* the master's model, so the statistics of device 0 are kept. Those of the others are thrown away with their replicas. Also, each device normalised with the mean of its own two samples, which breaks the identity of lesson 04.
# - **Fix.** Change no state in `forward`; use a normalisation that does not look across samples (`GroupNorm`, `LayerNorm`); or use DistributedDataParallel with SyncBatchNorm (lesson 08), where every replica is kept.
#
# ## 8. Why it cannot leave one machine
#
# Threads share the memory of one process, and a process lives on one machine. `replicate` and `gather` copy within that process: there is no address to send to, no rank and no message. More machines need more processes, and processes need messages: MPI, gloo or NCCL. One process per device is then the natural choice. Each process also has its own GIL, and it can keep its replica instead of receiving a new one in each step. This design is called DistributedDataParallel.
#
# ## Recap
#
# | | DataParallel | what lesson 08 does instead |
# |---|---|---|
# | processes | one, with a thread per device | one per device |
# | replicas | copied again in each step | kept, and stay equal |
# | optimizer | on the master only | in every process; all take the same step |
# | bytes through the busiest device, in and out | `2 (p - 1) n` plus inputs and outputs, copied one by one: grows with `p` | `4 (p - 1)/p n`: less than `4 n` for any `p` |
# | while the master works | the others wait | there is no master |
# | GIL | one for all | one each |
# | state changed in `forward` | kept on device 0 only | kept in every process |
# | machines | one | any number |
# | code to change | one line | about ten lines, and a launcher |
#
# - Invariant: up to rounding, the gradient on the master equals that of one device with the whole batch, even with uneven shards.
# - The loss is a mean over *all* samples, so the gradients of the replicas are added up, not averaged.
# - Update only the master. Changes to replicas are lost.
#
# **Next:** lesson 08 gives every device a process of its own.
#
# ## References and further reading
#
# 1. PyTorch 2.13 documentation, [`torch.nn.DataParallel`](https://docs.pytorch.org/docs/stable/generated/torch.nn.DataParallel.html): one warning recommends DistributedDataParallel, and another lists what is lost in replicas. The source, `torch/nn/parallel/`, is short: read `data_parallel.py` and `replicate.py`.
# 2. PyTorch documentation, "CUDA semantics", section "Use nn.parallel.DistributedDataParallel instead of multiprocessing or nn.DataParallel".
# 3. C. Balioglu, "[POLL][RFC] DataParallel Deprecation", [pytorch issue 65936](https://github.com/pytorch/pytorch/issues/65936), 2021.
# 4. PyTorch documentation, "Autograd mechanics", section "Multithreaded Autograd".
# 5. D. Beazley, "Understanding the Python GIL", PyCon, Atlanta, 2010.
# 6. S. Gross, "PEP 703: Making the Global Interpreter Lock Optional in CPython", 2023.
# 7. S. Li and others, "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", *Proceedings of the VLDB Endowment* 13(12), 3005–3018, 2020. The paper that describes DistributedDataParallel.
# 8. P. Patarasuk and X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", *Journal of Parallel and Distributed Computing* 69(2), 117–124, 2009. The ring and its traffic.
# 9. T. Wouters, M. Page and S. Gross, "PEP 779: Criteria for supported status for free-threaded Python", 2025.
