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
# # 09 Asynchronous SGD
#
# **The one idea.** One rank, the *parameter server*, holds the weights. The other ranks, its workers, fetch the weights, compute a gradient, hand it in and carry on, without waiting for each other. The price is that gradients are *stale*: while a worker computes, the others' gradients change the weights.
#
# **You will be able to**
# - write a parameter server and its worker with `send` and `recv`, and say what each role holds and why;
# - predict how stale gradients are on average, and prove the formula;
# - tell when staleness ruins training, and rescue training by dividing the learning rate by the staleness or by bounding the staleness;
# - predict when asynchronous training is faster than synchronous training, and when it is not;
# - test an asynchronous program even though every run is different.
#
# **Prerequisites:** lesson 01 (`send`, `recv`, any source) and lesson 05 (synchronous SGD).
#
# **Time.** The notebook runs in about 25 s (*measured here*: 4 ranks on 2 cores). Allow 180 minutes to study it and do its five exercises; in a workshop you can stop after section 7 and read the recap.

# %%
from course_lib.cluster import start_cluster
from course_lib.teaching import (
    check,
    compare,
    figures,
    hint,
    progress,
    solution,
    yours_or_solution,
)
from rank_by_rank.lesson_09.figures import histogram, sequence

# %% tags=["nbval-ignore-output"]
cluster = start_cluster(n=4, init_process_group=True)

# %% [markdown]
# ## 1. Who holds what
#
# In lesson 05 every rank did everything: it computed a gradient, took part in an all-reduce, and made the same update as all the others. The price was that in every step all ranks waited for the slowest. Here the work is divided: rank 0 is the **server**, and ranks 1, 2 and 3 are **workers**.
#
# | | server | worker | why |
# |---|---|---|---|
# | model | yes | yes | the server's weights are *the* weights, and it measures accuracy with them; a worker needs a copy to compute with |
# | optimizer | yes | no | momentum (like Adam's moments) accumulates over the server's updates |
# | training data | no | yes | only workers compute gradients |
# | version number | yes | no | it counts updates, and only the server makes updates |
#
# Each message has a latency. So all weights travel as one vector, and so does the whole gradient, no matter how many layers there are.

# %%
# %%px
import time
from collections import Counter

import torch.nn.functional as F
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from course_lib.training.data import load
from course_lib.training.loops import accuracy
from course_lib.training.models import MLP

training, test = load("digits")
torch.manual_seed(0)
model = MLP(inputs=64, hidden=(64,), classes=10)
initial = parameters_to_vector(model.parameters()).detach().clone()
n = len(initial)
print(f"{n} parameters, {4 * n} bytes")
assert comm.allgather(initial.sum().item()) == [initial.sum().item()] * world_size


# %% [markdown]
# A worker needs two functions, one to draw its next batch and one to compute a gradient. The seed of a batch depends only on the worker and the step, so that you can draw *the same* batch again later. The gradient function first loads the given parameters into the model, and it appends the loss to the gradient.


# %%
# %%px
def batch_of(worker, step, size=32):
    """The batch that this worker draws in this step of its own: images and labels."""
    generator = torch.Generator().manual_seed(10_000 * worker + step)
    return training[torch.randint(len(training), (size,), generator=generator)]


def gradient_and_loss(parameters, batch):
    """Gradient at these parameters, and behind it the loss: one vector of n + 1 numbers."""
    vector_to_parameters(parameters, model.parameters())
    images, labels = batch
    loss = F.cross_entropy(model(images), labels)
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    return torch.cat([parameters_to_vector(gradients), loss.detach().view(1)])


# %% [markdown]
# ## 2. The handshake
#
# A worker never sends a gradient unannounced, because the server may be busy with another worker. It knocks first, as in the handshake of lesson 01:
#
# 1. worker to server: **hello** (with the number of gradients that it has computed so far: 0 means "I am new");
# 2. server to worker: **ready**, "I am ready for you" (or "we are done, go home");
# 3. worker to server: **gradient**, with the loss in the same message;
# 4. server to worker: the new **parameters**, after the update. The worker then computes the next gradient.
#
# A new worker skips step 3. The server takes the next hello *from any source*, first come, first served, and serves one worker at a time. Each of the four messages has its own tag.


# %%
# %%px
HELLO, READY, GRADIENT, PARAMETERS = 1, 2, 3, 4


def server(parameters, optimizer, updates):
    """Serve whoever comes until so many updates are made. Returns (worker, computed at, loss)."""
    version, fetched, log, gone_home = 0, {}, [], 0
    hello, received = torch.zeros(1), torch.zeros(n + 1)
    while gone_home < world_size - 1:
        worker = dist.recv(hello, tag=HELLO)  # no source named: from whoever comes first
        go_on = version < updates
        dist.send(torch.tensor([float(go_on)]), worker, tag=READY)
        if not go_on:
            gone_home += 1
            continue
        if hello > 0:  # it brings a gradient
            dist.recv(received, worker, tag=GRADIENT)
            parameters.grad = received[:n]
            optimizer.step()
            log.append((worker, fetched[worker], received[n].item()))
            version += 1
        dist.send(parameters, worker, tag=PARAMETERS)
        fetched[worker] = version
    return log


# %% [markdown]
# The optimizer updates a single tensor, the vector of all parameters. `fetched[worker]` records the *version* of the parameters that this worker received: version v means "after v updates". The function for the workers is shorter. Its argument `pace` is the minimum time, in seconds, that a gradient takes. It lets us simulate a larger network or a slower machine, so two cores are enough to see everything.


# %%
# %%px
def worker(pace):
    """Fetch, compute, hand in, until the server sends us home. Returns the gradients computed."""
    parameters, ready = torch.zeros(n), torch.zeros(1)
    message, step = None, 0
    while True:
        dist.send(torch.tensor([float(step)]), 0, tag=HELLO)
        dist.recv(ready, 0, tag=READY)
        if not ready:
            return step
        if step > 0:
            dist.send(message, 0, tag=GRADIENT)
        dist.recv(parameters, 0, tag=PARAMETERS)
        begun = time.perf_counter()
        message = gradient_and_loss(parameters, batch_of(rank, step))
        time.sleep(max(0, pace - (time.perf_counter() - begun)))
        step += 1


# %% [markdown]
# **Predict.** Three workers hand in gradients until the server has made nine updates. How many messages are sent in all, from the first hello to the last "go home"? Count in the two functions how many messages belong to an update, to a worker's start and to its end. Write one number.

# %%
prediction = None

# %%
# %%px
from torch_mpi4py import Traffic
from torch_mpi4py.tools.clocks import clock_offsets
from rank_by_rank.lesson_09.message_recording import recorded_messages

names = {HELLO: "hello", READY: "ready", GRADIENT: "gradient", PARAMETERS: "parameters"}
parameters = initial.clone()
optimizer = torch.optim.SGD([parameters], lr=0.1)
ahead = clock_offsets(comm)[rank].offset  # of this rank's clock against rank 0's, by messages
comm.barrier()
# The first writes down every dist.send and dist.recv; the second counts what really went out.
with recorded_messages(names, ahead=ahead) as events, Traffic() as traffic:
    if rank == 0:
        log = server(parameters, optimizer, updates=9)
    else:
        computed = worker(pace=0.03 if rank == 3 else 0.01)

messages = comm.allreduce(traffic.sent.messages)
nbytes = comm.allreduce(traffic.sent.bytes)
gradients = comm.allreduce(0 if rank == 0 else computed)
began = comm.allreduce(int(rank > 0 and computed > 0))  # 3, unless one came after the end
assert rank == 0 or set(traffic.sent.by_peer) == {0}, "workers never talk to each other"

# %% tags=["nbval-ignore-output"]
compare(prediction, cluster.view["messages"][0])

# %%
# %%px
assert messages == 4 * 9 + 3 * began + 2 * 3
assert nbytes == 9 * 4 * (n + 1) + (9 + began) * 4 * n + 2 * 4 * (9 + began + 3)
assert gradients == 9 + began, "the last one of each is computed, and found to be too late"

# %% [markdown]
# There are 4 · 9 + 3 · 3 + 2 · 3 = 51 messages: four for each update, three for each worker's start and two for its end. The traffic meter of lesson 03 has counted them, and the bytes agree as well. The last three gradients were computed for nothing, because the workers did not yet know that training was over.
#
# The next figure is drawn from the recorded calls. Time runs downwards. Where a column is hatched, that rank was waiting, nearly always in a `recv`. Worker 3 is deliberately slower, by a factor of three.

# %% tags=["nbval-ignore-output"]
sequence(
    [event for events in cluster.view["events"] for event in events],
    roles={0: "server", 1: "worker 1", 2: "worker 2", 3: "worker 3"},
    title="Nine updates, as they happened",
)

# %% [markdown]
# Follow one worker from hello to hello. Then look for two hellos close together: the second worker has to wait until the server has finished with the first. Finally, find the place where worker 3 receives parameters. How often do the others' gradients change the server's weights before worker 3 hands in the gradient computed at these parameters? That number is the *staleness* of this gradient, and the rest of the lesson is about staleness.
#
# The server spends most of its time waiting. Remember this: with more workers it will be different (section 8).
#
# ### Exercise 1: the worker's side of the handshake
#
# Write `work(compute, parameters, rounds, group)`. The server is rank 0 of `group`. In each of `rounds` rounds the worker
#
# 1. calls `compute(parameters)`, which returns a gradient with the loss appended;
# 2. says hello: sends the tensor `[1.0]` with tag 1;
# 3. waits for the server to be ready: receives one number with tag 2;
# 4. sends the result of `compute`, as one message with tag 3;
# 5. receives the new parameters, tag 4, into the tensor `parameters`.
#
# It returns the list of losses, as Python floats. Use `dist.send` and `dist.recv` with `group=group`. In the check, ranks 1, 2 and 3 run your function, and rank 0 runs a server.


# %% tags=["exercise"] exercise="09.work"
# %%px
def work(compute, parameters, rounds, group):
    """Compute, knock, hand in and fetch, so many times; return the losses."""
    ### BEGIN SOLUTION
    losses, ready = [], torch.zeros(1)
    for _ in range(rounds):
        message = compute(parameters)
        dist.send(torch.ones(1), 0, group=group, tag=1)
        dist.recv(ready, 0, group=group, tag=2)
        dist.send(message, 0, group=group, tag=3)
        dist.recv(parameters, 0, group=group, tag=4)
        losses.append(message[-1].item())
    return losses
    ### END SOLUTION


# %% tags=["check"]
check("09.work")

# %% [markdown]
# Stuck? `hint("09.work")`, `solution("09.work")`.
#
# ### Exercise 2: the server's side, fair to all
#
# Write `serve(parameters, update, rounds, group)`, rank 0's part of the same conversation. The workers send `rounds` gradients *in all*, in any order. For each of them
#
# 1. receive a hello (tag 1) from any source;
# 2. answer ready: send `[1.0]` (tag 2) to that worker;
# 3. receive the gradient and the loss from that worker (tag 3; `len(parameters) + 1` numbers);
# 4. call `update(parameters, gradient)`, which changes `parameters` in place; give it the gradient without the loss;
# 5. send `parameters` to that worker (tag 4).
#
# Return a list of the workers in the order in which you served them.
#
# One of the workers in the check is a straggler: it does not say hello until the others have finished.


# %% tags=["exercise"] exercise="09.serve"
# %%px
def serve(parameters, update, rounds, group):
    """Serve so many gradients, whoever brings them; return the workers in that order."""
    ### BEGIN SOLUTION
    served = []
    hello, message = torch.zeros(1), torch.zeros(len(parameters) + 1)
    for _ in range(rounds):
        worker = dist.recv(hello, group=group, tag=1)
        dist.send(torch.ones(1), worker, group=group, tag=2)
        dist.recv(message, worker, group=group, tag=3)
        update(parameters, message[:-1])
        dist.send(parameters, worker, group=group, tag=4)
        served.append(worker)
    return served
    ### END SOLUTION


# %% tags=["check"]
check("09.serve")

# %% [markdown]
# Stuck? `hint("09.serve")`, `solution("09.serve")`.
#
# ## 3. How stale is a gradient?
#
# A worker fetches the parameters at version f, computes a gradient, and hands it in when the server has reached version v. The **staleness** of the gradient is s = v - f: the number of updates in between, all made with other workers' gradients. In synchronous SGD, s is always 0.
#
# **Predict.** Three equally fast workers hand in gradients for 300 updates. What is the mean staleness?

# %%
prediction = None


# %%
# %%px
def train(updates, pace, lr=0.1, momentum=0.0):
    """One asynchronous run from the initial parameters; what the server returns, and the time."""
    parameters.copy_(initial)
    comm.barrier()
    begun = time.perf_counter()
    if rank == 0:
        result = server(
            parameters, torch.optim.SGD([parameters], lr=lr, momentum=momentum), updates
        )
    else:
        result = worker(pace)
    return result, time.perf_counter() - begun


log, seconds = train(updates=300, pace=0.006)
if rank == 0:
    alike = [version - fetched for version, (_, fetched, _) in enumerate(log)]
    mean = sum(alike) / len(alike)
    last = {worker: version + 1 for version, (worker, _, _) in enumerate(log)}
    first = {worker: fetched for worker, fetched, _ in reversed(log)}
    assert sum(alike) == sum(last.values()) - sum(first.values()) - len(log)

# %% tags=["nbval-ignore-output"]
alike = cluster.view.client[0]["alike"]
compare(prediction, sum(alike) / len(alike), within=0.05)
assert sum(alike) <= 2 * 300 - 3

# %% [markdown]
# It is very nearly 2, the number of workers W minus 1. While a worker computes, each of the others hands in one gradient.
#
# That argument assumes that the workers are equally fast. What if worker 3 is a *straggler* and takes four times as long?
#
# **Predict.** What is the mean staleness with the straggler: (A) smaller than 2, (B) about 2, or (C) larger? Answer with a letter.

# %%
prediction = None

# %%
# %%px
log, seconds = train(updates=300, pace=0.016 if rank == 3 else 0.004)
if rank == 0:
    straggler = [version - fetched for version, (_, fetched, _) in enumerate(log)]
    mean = sum(straggler) / len(straggler)
    share = Counter(worker for worker, _, _ in log)
    last = {worker: version + 1 for version, (worker, _, _) in enumerate(log)}
    first = {worker: fetched for worker, fetched, _ in reversed(log)}
    assert sum(straggler) == sum(last.values()) - sum(first.values()) - len(log)

# %% tags=["nbval-ignore-output"]
straggler = cluster.view.client[0]["straggler"]
mean = sum(straggler) / len(straggler)
compare(prediction, "A" if mean < 1.8 else "B" if mean < 2.2 else "C")
assert sum(straggler) <= 2 * 300 - 3
histogram(
    {
        "three alike": cluster.view.client[0]["alike"],
        "a straggler": straggler,
    },
    predicted=2,
    title="Staleness of 300 gradients, measured here",
)

# %% [markdown]
# Again it is about 2. The distribution has changed, but the mean has not. Here is why. A worker fetches new parameters as soon as its gradient has been used. So the staleness of a gradient is the number of updates between this worker's previous update and this one. Suppose that worker $i$ makes the updates with the numbers $a < b < ... < l_i$. Its second gradient then has staleness $b - a - 1$, its third the next gap minus 1, and so on: the sum *telescopes*. Only two numbers are left: $f_i$, the first version that the worker fetched, and $l_i$, the version that its last update produced. Over all $W$ workers and $N$ updates:
#
# $$\text{mean staleness} = \frac{1}{N}\sum_{i=1}^{W} (l_i - f_i) - 1$$
#
# This formula is exact, and the cells above assert it with integers. If all workers work from beginning to end, every $l_i$ is about $N$ and every $f_i$ about 0. So the mean is about **W - 1**, no matter how slow any of them is. It is largest if the last W updates come from W different workers: (W - 1)(1 - W/(2N)), here 1.99. It is much smaller only if a worker stopped early or started late.
#
# The straggler changes only *whose* gradients are stale: its own are old when they arrive, and those of the others are fresher.
#
# ### Exercise 3: staleness from the order
#
# You know only the order in which the server served its workers: `order[v]` is the worker whose gradient made update v (from 0). Every worker fetched version 0 before the first update, and fetches again right after each of its own updates. Write `staleness(order)`, which returns a list with the staleness of each gradient. This function runs in the notebook, not on the ranks.


# %% tags=["exercise"] exercise="09.staleness"
def staleness(order):
    """Return the staleness of each gradient, given whose it was."""
    ### BEGIN SOLUTION
    fetched, result = {}, []
    for version, worker in enumerate(order):
        result.append(version - fetched.get(worker, 0))
        fetched[worker] = version + 1
    return result
    ### END SOLUTION


# %% tags=["check"]
check("09.staleness")

# %% [markdown]
# Stuck? `hint("09.staleness")`, `solution("09.staleness")`.
#
# ## 4. Is it correct? The replay
#
# Every run is different, so how can you test such a program? One observation helps: chance decides the *order*, and nothing else. The order says whose gradient made which update, and at which version it was computed. Given the order, everything is determined, and one process can repeat the whole run: it keeps every version of the parameters, computes each gradient at the recorded version on the recorded worker's next batch, and updates in the recorded order.
#
# **Predict.** After 300 updates, how far apart are the parameters of the real run with its four processes and those of the replay in one process? Write the largest difference in any parameter.

# %%
prediction = None


# %%
# %%px
def replay(vector, optimizer, order, rate=lambda base, staleness: base):
    """Do the work of a server and its workers in one process, in this order. Returns the losses."""
    versions, steps, losses = [vector.clone()], Counter(), []
    base = optimizer.param_groups[0]["lr"]
    for version, (worker, computed_at) in enumerate(order):
        batch = batch_of(worker, steps[worker])
        message = gradient_and_loss(versions[computed_at].clone(), batch)
        steps[worker] += 1
        vector.grad = message[:n]
        optimizer.param_groups[0]["lr"] = rate(base, version - computed_at)
        optimizer.step()
        versions.append(vector.clone())
        losses.append(message[n].item())
    return losses


log, seconds = train(updates=300, pace=0.0, momentum=0.5)
if rank == 0:
    again = initial.clone()
    optimizer = torch.optim.SGD([again], lr=0.1, momentum=0.5)
    losses = replay(again, optimizer, [entry[:2] for entry in log])
    difference = (again - parameters).abs().max().item()
    same_losses = losses == [loss for _, _, loss in log]
    assert not torch.equal(parameters, initial), "they have moved"

# %%
compare(prediction, cluster.view.client[0]["difference"])
assert cluster.view.client[0]["difference"] == 0
assert cluster.view.client[0]["same_losses"]

# %% [markdown]
# Not a single bit differs. The difference would not be 0 if the server had confused two workers' gradients, if a receive had overwritten parameters while they were in use, or if a message had been applied twice. A falling loss would not have revealed any of this: SGD trains in spite of many such mistakes.
#
# ## 5. The library's server
#
# The server above fits on a page, but in real use there are more questions: what if a worker dies, or the models differ? `course_lib.parallel.parameter_server` uses the same protocol and handles such cases. It also offers several *modes* of waiting, and it records everything. Its protocol differs in one point: a worker sends its gradient without knocking first (the server takes one message at a time anyway), and knocks only for the parameters.


# %%
# %%px
from itertools import count

from course_lib.parallel import parameter_server as ps


def fresh_model():
    torch.manual_seed(0)
    return MLP(inputs=64, hidden=(64,), classes=10)


def batches_of(worker):
    return (batch_of(worker, step) for step in count())


def run(updates, pace=0.0, mode=None, rate=ps.constant, lr=0.1, momentum=0.0):
    """One run of the library's server and workers; the server's or the worker's record."""
    mine = fresh_model()
    if rank == 0:
        optimizer = torch.optim.SGD(mine.parameters(), lr=lr, momentum=momentum)
        stop = ps.Stop(steps=updates)
        return ps.Server(mine, optimizer, mode=mode, rate=rate, stop=stop, snapshots=5).run()
    return ps.Worker(mine, F.cross_entropy, batches_of(rank), step_seconds=pace).run()


# %%
# %%px
with Traffic() as traffic:
    record = run(updates=60, pace=0.03 if rank == 3 else 0.01, momentum=0.9)
if rank == 0:
    in_and_out = traffic.sent.bytes + traffic.received.bytes
    per_update = in_and_out / record.version
    assert 2 * 4 * n <= per_update < 1.2 * 2 * 4 * n, "a gradient in, parameters out"
    mine = fresh_model()
    optimizer = torch.optim.SGD(mine.parameters(), lr=0.1, momentum=0.9)
    batches = {worker: batches_of(worker) for worker in record.workers}
    again = ps.replay(record, mine, optimizer, F.cross_entropy, batches)
    assert torch.equal(again, record.final)
    assert not torch.equal(again, record.initial)
    print(f"{record.mode}, {record.version} updates: replayed bit for bit")

# %% tags=["nbval-ignore-output"]
record = cluster.view.client[0]["record"]
for worker, waited in record.waiting.items():
    part = [gradient.staleness for gradient in record.gradients if gradient.worker == worker]
    print(
        f"worker {worker}: {len(part)} gradients used, mean staleness {sum(part) / len(part):.1f}, "
        f"waited {1e3 * sum(waited) / len(waited):.2f} ms for parameters on average"
    )
print(f"messages waiting when the server took one up: at most {max(record.queue_lengths)}")
per_update = cluster.view.client[0]["per_update"]
print(f"bytes in and out of the server: {per_update:,.0f} an update; 2 n numbers are 38,480")

# %% [markdown]
# (*Measured here*.) For every gradient the record shows which worker computed it and at which version, how stale it was, when it arrived and when it was served.
#
# ## 6. What staleness does to training
#
# A stale gradient is the right gradient at the wrong place. If the steps are small, the weights have hardly moved, and staleness does not matter. If the steps are large, the gradient can point in the wrong direction.
#
# To see this without the influence of chance, we simulate the *order*: a seeded generator decides which of W workers comes next, and the `replay` above does the rest. So you can have 32 workers on 2 cores, and every run gives the same result. Each rank simulates a different number of workers.


# %%
# %%px
import random


def random_order(workers, updates, seed):
    """(worker, computed at) for each update: any worker may come next, all equally likely."""
    generator, fetched, order = random.Random(seed), Counter(), []
    for version in range(updates):
        worker = generator.randrange(workers)
        order.append((worker, fetched[worker]))
        fetched[worker] = version + 1
    return order


def simulate(workers, lr, rate=lambda base, staleness: base, seed=0):
    """Mean loss of each ten of 300 simulated asynchronous updates, as a list."""
    vector = initial.clone()
    optimizer = torch.optim.SGD([vector], lr=lr)
    losses = replay(vector, optimizer, random_order(workers, 300, seed), rate)
    return [sum(losses[i : i + 10]) / 10 for i in range(0, 300, 10)]


# %% [markdown]
# **Predict.** One worker trains well with a learning rate of 0.5. With which of W = 1, 4, 16 and 32 workers does training at this rate still go well? (Guessing gives a loss of ln 10, which is 2.3.) Write a list like `[1, 4]`.

# %%
prediction = None

# %% tags=["nbval-ignore-output"]
# %%px
workers = [1, 4, 16, 32][rank]
small, large = simulate(workers, lr=0.05), simulate(workers, lr=0.5)
print(f"W = {workers:2}: loss {small[-1]:.2f} with rate 0.05, {large[-1]:.2f} with rate 0.5")
curves_of_this_rank = workers, small, large

# %% tags=["nbval-ignore-output"]
runs = {
    f"W = {w}": {
        "updates": range(10, 301, 10),
        "loss, rate 0.05": small,
        "loss, rate 0.5": large,
    }
    for w, small, large in cluster.view["curves_of_this_rank"]
}
still_train = [w for w, _, large in cluster.view["curves_of_this_rank"] if large[-1] < 0.3]
compare(prediction, still_train, source="Simulated")
ends = [(small[-1], large[-1]) for _, small, large in cluster.view["curves_of_this_rank"]]
assert all(small < 1.2 for small, _ in ends), "a small rate: everyone gets somewhere"
assert ends[0][1] < 0.3 > ends[1][1], "a large rate: few workers are fine"
assert ends[2][1] > 1.0 < ends[3][1], "many are not"
figures.curves(
    runs,
    ["loss, rate 0.05", "loss, rate 0.5"],
    x="updates",
    xlabel="updates",
    title="Simulated order of updates: loss for two learning rates",
)

# %% [markdown]
# With the small rate, training works for every W. With more workers it starts a little later, because in about the first W updates every gradient still comes from the initial weights. With the large rate, training fails for 16 and 32 workers: their loss is no better than guessing.
#
# Theory says the same. Take a loss with one weight w and curvature h, (h/2) w². A step with a gradient of staleness s is w(t + 1) = w(t) - λ h w(t - s), where λ is the learning rate. Without staleness, w shrinks to 0 as long as λ < 2/h. With staleness s it does so only if λ < (2/h) sin(π / (4s + 2)), which for larger s is about (π/2) / (h s): **the largest stable rate falls like 1/s**. The next cell tests this bound:


# %%
from math import pi, sin


def shrinks(rate, staleness, steps=20_000):
    """Whether w becomes small in w(t + 1) = w(t) - rate * w(t - staleness)."""
    w = [1.0] * (staleness + 1)
    for _ in range(steps):
        w.append(w[-1] - rate * w[-1 - staleness])
    return max(map(abs, w[-200:])) < 1


for s in (0, 1, 3, 15, 31):
    largest = 2 * sin(pi / (4 * s + 2))
    print(f"staleness {s:2}: stable below {largest:.3f}")
    assert shrinks(0.95 * largest, s)
    assert not shrinks(1.05 * largest, s)

# %% [markdown]
# So let the rate depend on the staleness. Zhang and others *published* [5] the simplest rule: for a gradient of staleness s, divide the rate by s.
#
# ### Exercise 4: the learning rate over staleness
#
# Write `rate_for(base, staleness)`, which returns the rate for a gradient of this staleness. A fresh gradient gets the rate `base`; make sure that your function handles this case.


# %% tags=["exercise"] exercise="09.rate_for"
def rate_for(base, staleness):
    """Return the learning rate for a gradient of this staleness."""
    ### BEGIN SOLUTION
    return base / max(1, staleness)
    ### END SOLUTION


# %% tags=["check"]
check("09.rate_for")

# %% [markdown]
# Stuck? `hint("09.rate_for")`, `solution("09.rate_for")`.
#
# **Predict.** With 32 workers and a mean staleness of about 28, a constant rate of 0.5 is hopeless. What will the loss be after 300 updates if the rate is divided by the staleness? Write a number.

# %%
prediction = None

# %%
my_rate = yours_or_solution("09.rate_for")  # your function, or the worked solution
cluster.view["rates"] = [my_rate(0.5, s) for s in range(300)]

# %% tags=["nbval-ignore-output"]
# %%px
constant = simulate(32, lr=0.5, seed=rank)
rescued = simulate(32, lr=0.5, seed=rank, rate=lambda base, s: rates[s])
print(f"order {rank}: constant rate {constant[-1]:.2f}, rate over staleness {rescued[-1]:.2f}")

# %% tags=["nbval-ignore-output"]
constant, rescued = cluster.view["constant"], cluster.view["rescued"]
compare(prediction, sum(losses[-1] for losses in rescued) / 4, within=0.3, source="Simulated")
assert min(losses[-1] for losses in constant) > 1.2, "guessing, or worse"
assert max(losses[-1] for losses in rescued) < 0.9
updates = range(10, 301, 10)
figures.curves(
    {
        f"order {r}": {
            "updates": updates,
            "loss, constant rate": constant[r],
            "loss, rate over s": rescued[r],
        }
        for r in range(4)
    },
    ["loss, constant rate", "loss, rate over s"],
    x="updates",
    xlabel="updates",
    title="32 simulated workers, rate 0.5: loss in four random orders",
)

# %% [markdown]
# In all four orders, the rule rescues the run. There is no magic in this: the mean rate is now about 0.5 / 28, and a single worker with a rate of 0.5 still does better. If the rate was already small enough, dividing it further only makes training slower; try `simulate(32, lr=0.05, rate=...)`. The rule is a safety net for rates that were tuned with fewer workers.
#
# ## 7. Bounded staleness
#
# Another remedy is to forbid large staleness. With *bounded staleness* (*published* as "stale synchronous parallel" [4]) every worker has a clock, which counts its gradients. A worker whose clock is more than b ahead of the slowest worker's has to wait. With b = 0 training is nearly synchronous; with b = infinity it is asynchronous.
#
# How stale can a gradient then be? While one worker computes, another can go from b gradients behind it to b + 1 ahead, which is 2b + 1 updates. There are W - 1 other workers, so s is at most (W - 1)(2b + 1), which is 6 for b = 1 and three workers.
#
# **Predict.** Worker 3 takes six times as long as the others, and b = 1. What is the largest lead, in gradients, that a fast worker can have over worker 3 at the end?

# %%
prediction = None

# %%
# %%px
bounded = run(updates=60, pace=0.03 if rank == 3 else 0.005, mode=ps.BoundedStaleness(1))
free = run(updates=60, pace=0.03 if rank == 3 else 0.005)
if rank == 0:
    steps = bounded.steps_by_worker.values()
    ahead = max(steps) - min(steps)
    assert max(bounded.staleness) <= 6
    assert bounded.version == free.version == 60

# %% tags=["nbval-ignore-output"]
bounded, free = (cluster.view.client[0][name] for name in ("bounded", "free"))
compare(prediction, cluster.view.client[0]["ahead"])
assert cluster.view.client[0]["ahead"] <= 2
for name, record in (("bounded", bounded), ("free", free)):
    print(
        f"{name:8} gradients by worker {record.steps_by_worker}, staleness at most "
        f"{max(record.staleness):2}, {record.seconds:.2f} s"
    )
histogram({"bounded, b = 1": bounded.staleness, "free": free.staleness})

# %% [markdown]
# Only a worker that is at most 1 ahead may *start* a gradient, so no worker ends more than 2 ahead. The bound holds, but it has a price: the fast workers now go at the straggler's pace. A bound helps if a worker is slow *now and then*, but not if it is always slow.
#
# ## 8. One server for everyone: the bottleneck
#
# Let the same server do *synchronous* SGD: it receives a gradient of n numbers from each of W workers, adds the gradients up, and sends the mean back to each worker. So in every step 2 W n numbers go in or out of one process, on any network. In a ring all-reduce among the p = W workers, every rank sends 2 (p - 1)/p · n numbers and receives as many: less than 4 n in and out, no matter how many workers there are.
#
# **Predict.** A gradient takes 16 MiB. With 1, 2 and 3 workers, 32, 64 and 96 MiB pass through the server in each step. If a step takes time t with 1 worker, how many times t does it take with 3?

# %%
prediction = None


# %%
# %%px
def through_the_server(vector, group):
    """Give everyone the sum of the other ranks' vectors, by way of rank 0 of the group."""
    if dist.get_rank(group) > 0:
        dist.send(vector, 0, group=group)
        dist.recv(vector, 0, group=group)
        return
    vector.zero_()
    received = torch.empty_like(vector)
    for worker in range(1, dist.get_world_size(group)):
        dist.recv(received, worker, group=group)
        vector += received
    for worker in range(1, dist.get_world_size(group)):
        dist.send(vector, worker, group=group)


# %% [markdown]
# First we count the bytes. The meter cannot look inside the library's all-reduce, so here we use the ring from lesson 03, which consists of sends and receives. The meter's `matrix()` shows how much each rank sent to every other rank.

# %%
# %%px
from course_lib.parallel.all_reduces import all_reduce_ring

n_bytes = 4 * 2**22


def messages_of(sum_up, members, W):
    """Sum 1 + ... + W over these ranks, in a group of their own; who sent how much to whom."""
    group, numbers = dist.new_group(members), torch.full((2**22,), float(rank))
    with Traffic() as traffic:
        if rank in members:
            sum_up(numbers, group=group)
    assert rank not in members or numbers.eq(W * (W + 1) / 2).all()
    return traffic.matrix()


stars = [messages_of(through_the_server, range(W + 1), W) for W in (1, 2, 3)]
rings = [messages_of(all_reduce_ring, range(1, W + 1), W) for W in (1, 2, 3)]
for W, star, ring in zip((1, 2, 3), stars, rings, strict=True):
    assert star.bytes[0].sum() == star.bytes[:, 0].sum() == W * n_bytes, "in and out of rank 0"
    assert star.bytes.sum() == 2 * W * n_bytes, "and nothing else"
    assert ring.bytes.sum() == 2 * (W - 1) * n_bytes
    # The chunks differ by one number where W does not divide them.
    assert abs(ring.bytes[1 : W + 1].sum(axis=1) - 2 * (W - 1) / W * n_bytes).max() <= 4 * 2

# %%
figures.traffic(cluster.view["stars"][0][2], title="Three workers, through the server")

# %%
figures.traffic(cluster.view["rings"][0][2], title="Three workers, round a ring")

# %% [markdown]
# Both methods give the same sum, and the bytes *measured here* match those *predicted* exactly. In the *star*, the first figure, all bytes are in a single row and a single column, the server's. The ring has no server, moves fewer bytes in total, and spreads them evenly. Next we measure times, using the library's own all-reduce.


# %%
# %%px
def best_time(function, group):
    """Seconds until all ranks are through: the fastest call of half a second, not the first."""
    found, go_on = [], torch.ones(1)
    while go_on:
        dist.barrier(group)
        begun = time.perf_counter()
        function()
        dist.barrier(group)
        found.append(time.perf_counter() - begun)
        go_on.fill_(sum(found) < 0.5)
        dist.broadcast(go_on, group=group, group_src=0)  # one clock decides for all
    return min(found[1:] or found)  # over a slow network there may be one call only


# %%
# %%px
def wait_for_all():
    """A barrier that leaves the cores to those who work; comm.barrier() itself keeps one busy."""
    all_are_here = comm.Ibarrier()
    while not all_are_here.Test():
        time.sleep(0.001)


def step_times(W):
    """Seconds of one step with W workers, by the server and by all-reduce."""
    with_server, among_workers = dist.new_group(range(W + 1)), dist.new_group(range(1, W + 1))
    numbers = torch.zeros(2**22)
    central = reduced = None
    if rank <= W:
        central = best_time(lambda: through_the_server(numbers, with_server), with_server)
    wait_for_all()
    if 0 < rank <= W:
        reduced = best_time(lambda: dist.all_reduce(numbers, group=among_workers), among_workers)
    wait_for_all()
    return central, reduced


times_of_a_step = [step_times(W) for W in (1, 2, 3)]

# %% tags=["nbval-ignore-output"]
central = [1e3 * server_s for server_s, _ in cluster.view.client[0]["times_of_a_step"]]
reduced = [1e3 * reduce_s for _, reduce_s in cluster.view.client[1]["times_of_a_step"]]
compare(prediction, central[2] / central[0], within=0.3)
print("         MiB in and out (measured here)    ms a step (measured here)")
print("workers  the server   a worker in a ring   by the server   by all-reduce")
stars, rings = cluster.view["stars"][0], cluster.view["rings"][0]
for W in (1, 2, 3):
    star, ring = stars[W - 1].bytes / 2**20, rings[W - 1].bytes / 2**20
    server, worker = star[0].sum() + star[:, 0].sum(), ring[1].sum() + ring[:, 1].sum()
    row = f"{W:7} {server:11.0f} {worker:20.1f}"
    print(f"{row} {central[W - 1]:15.1f} {reduced[W - 1]:15.1f}")
assert central[2] > central[0], "three times the bytes through the same process"
figures.curves(
    {
        "by the server": {"time of a step (ms)": central},
        "by all-reduce": {"time of a step (ms)": reduced},
    },
    ["time of a step (ms)"],
    xlabel="workers",
    title="One step with 16 MiB of gradients, measured here",
)

# %% [markdown]
# (*Measured here*.) The bytes are the same on every machine: with three workers, three times as many go through the server process. The time of a step grows with them. It becomes three times as long if every worker reaches the server in the same way: through memory shared by the ranks of one machine, or through the network card of a server that has a machine to itself.
#
# Two things can make it even longer. If there are more ranks than cores, a rank that waits in MPI keeps a core busy. And if the ranks are on several machines, worker 1 may be on the server's machine, while the others reach it over the network. Then a step with one worker runs at the speed of memory, and a step with three at the speed of the network, so the ratio is larger than 3. (With two ranks on each of two hosts, the ratio was between 6 and 17 when this lesson was written.)
#
# The time of the all-reduce does not have to grow. It does grow here once there are more ranks than cores, but less than 64 MiB goes in and out of each rank, no matter how many ranks there are.
#
# An asynchronous server moves just as many bytes: n numbers in and n out for each gradient, plus a little for the knocking (measured in section 5). Asynchronous training hides the cost of these messages, because workers compute while others are served. But a server that takes t seconds per gradient can serve at most 1/t gradients per second, however many workers there are. Large systems therefore split the parameters among *several* servers [2, 3].
#
# ## 9. The race: time to accuracy
#
# Now for the question that matters: how long does it take to train the network until it classifies 85% of the test digits correctly? Let a gradient take 20 ms on a normal worker and 60 ms on a straggler. There are three workers, and the straggler is worker 3.
#
# Synchronous SGD makes an update from three gradients once the slowest one has arrived: 3 gradients per 60 ms. Asynchronous workers each go at their own pace: 1/20 + 1/20 + 1/60 gradients per ms, or 7 per 60 ms.
#
# **Predict.** Suppose that synchronous and asynchronous SGD learn equally much from each gradient. By what factor is asynchronous SGD faster with the straggler, and by what factor without it? Write a list of two numbers.

# %%
prediction = None

# %%
# %%px
races = {}
for name, mode, slow, updates, lr in (
    ("synchronous", ps.Synchronous(), 0.02, 50, 0.3),
    ("asynchronous", ps.Asynchronous(), 0.02, 180, 0.1),
    ("synchronous, straggler", ps.Synchronous(), 0.06, 50, 0.3),
    ("asynchronous, straggler", ps.Asynchronous(), 0.06, 180, 0.1),
    ("first 2 of 3, straggler", ps.Synchronous(wait_for=2), 0.06, 60, 0.2),
):
    races[name] = run(updates, slow if rank == 3 else 0.02, mode=mode, lr=lr)


# %%
# %%px
def history_of(record):
    """Seconds and test accuracy at the snapshots that the server took of its parameters."""
    mine, history = fresh_model(), {"seconds": [], "accuracy": []}
    for _, seconds, snapshot in record.snapshots:
        ps.load_parameters(mine, snapshot)
        history["seconds"].append(seconds)
        history["accuracy"].append(accuracy(mine, test))
    return history


def time_to(target, history):
    right = [accuracy >= target for accuracy in history["accuracy"]]
    return history["seconds"][right.index(True)]


if rank == 0:
    histories = {name: history_of(record) for name, record in races.items()}
    reached = {name: time_to(0.85, history) for name, history in histories.items()}
    waits, goes_on = races["synchronous, straggler"], races["asynchronous, straggler"]
    assert waits.seconds >= 0.06 * waits.version, "no update without the straggler"
    assert goes_on.seconds < 0.06 * goes_on.version, "updates meanwhile"

# %% tags=["nbval-ignore-output"]
reached, histories = (cluster.view.client[0][name] for name in ("reached", "histories"))
for name, seconds in reached.items():
    print(f"{name:24} {seconds:.2f} s to 85%")
sooner = [
    round(reached[f"synchronous{race}"] / reached[f"asynchronous{race}"], 1)
    for race in (", straggler", "")
]
compare(prediction, sooner, within=0.25)
figures.curves(
    {name: history for name, history in histories.items() if "straggler" in name},
    ["accuracy"],
    x="seconds",
    xlabel="time (seconds)",
    title="Time to accuracy with a straggler, measured here",
)

# %% [markdown]
# (*Measured here.*) The *predicted* factors were 7/3 = 2.3 with the straggler and 1 without. The learning rates are matched by the linear rule of lesson 05: an update with the mean of three gradients uses three times the rate of an update with a single gradient.
#
# The *measured* ratios tend to be larger: 10% to 50% larger when this lesson was written. The prediction counts only gradients and leaves out the waiting. Every synchronous step waits for the slowest worker, even among three equal ones, and for the server, which has to receive three gradients before it can answer. The prediction also assumes that both methods learn equally much from a gradient, which is only roughly true: the moment at which accuracy passes 85% depends on the random order of the updates. So even without a straggler, asynchronous SGD may gain something, but far less than with one. And at larger rates, staleness costs accuracy.
#
# If your machine is busy with other work, the races can end in a different order: a "normal" worker that gets no core becomes a straggler too. If that happens, run the races again. For this reason we assert only the cause of the difference: with the straggler, synchronous SGD made at best one update every 60 ms, and asynchronous SGD made more.
#
# "First 2 of 3" is synchronous SGD with one *backup worker* [6]: the server makes an update as soon as two gradients have arrived, and throws the third one away. No gradient is ever stale, and the update does not wait for the straggler. But the straggler computes for nothing, and its data are never used. That leads to the next section.
#
# ## 10. Is there still an epoch?
#
# An epoch is one pass over the training data: every sample is used once. Suppose that every worker has its own shard of the data. How often is each shard used?
#
# **Predict.** In the asynchronous race with the straggler, what share of the gradients came from worker 3?

# %%
prediction = None

# %%
# %%px
if rank == 0:
    steps = races["asynchronous, straggler"].steps_by_worker
    share = steps[3] / sum(steps.values())
    used = races["first 2 of 3, straggler"].steps_by_worker
    assert sum(steps.values()) == 180
    assert 0.06 * steps[3] <= races["asynchronous, straggler"].seconds, "60 ms for each"
    assert sum(used.values()) == 2 * 60

# %% tags=["nbval-ignore-output"]
compare(prediction, cluster.view.client[0]["share"], within=0.3)
print("asynchronous, gradients used by worker:", cluster.view.client[0]["steps"])
print("first 2 of 3, gradients used by worker:", cluster.view.client[0]["used"])

# %% [markdown]
# It is about 1/7: a worker's share of the gradients is its share of the total speed. Suppose that the shards are fixed. After "one epoch" of the server (as many samples as the training set has), the fast workers have used their shards more than once, but the straggler has used less than half of its own. If the shards differ, for example because each worker is a hospital with its own patients, the model is trained mainly on the fast workers' data. With backup workers, the straggler's shard is not used at all.
#
# Three rules help. Count *updates* or samples, never a worker's passes. Make learning-rate schedules follow the server's version. Let workers draw from the whole data set, as `batch_of` did here, or from a common queue of batches.
#
# ## 11. Modern relatives: local SGD and gossip
#
# Parameter servers have become rare for training on a single cluster, where all-reduce is fast and all workers are equally fast. The idea behind them, **communicate less often or with fewer ranks**, is still in use.
#
# In *local SGD* [7], every rank takes H steps alone, and then all ranks average their weights with an all-reduce. There is no server, no staleness, and only 1/H of the communication. With H = 1 it *is* synchronous SGD, because the mean of $w - \lambda g_i$ is $w$ minus $\lambda$ times the mean of $g_i$ ($w$: weights, $\lambda$: learning rate, $g_i$: rank $i$'s gradient).
#
# *DiLoCo* does the same for language models. Its 8 workers represent islands of machines with poor links between them. Each worker takes hundreds of AdamW steps by itself, and then an outer optimizer (Nesterov momentum) applies the mean of the workers' changes (*published* [8]). INTELLECT-1, a model with 10 billion parameters, was trained in this way by machines on three continents (*published* [11]).
#
# In the next cell all four ranks are workers.


# %%
# %%px
from course_lib.parallel.invariants import assert_replicas_equal


def local_sgd(rounds, local_steps, lr=0.2):
    """Everyone steps alone so many times, then all take the mean of their weights."""
    weights = initial.clone()
    for step in range(rounds * local_steps):
        weights -= lr * gradient_and_loss(weights.clone(), batch_of(rank, step))[:n]
        if (step + 1) % local_steps == 0:
            dist.all_reduce(weights)
            weights /= world_size
    return weights


def accuracy_of(weights):
    vector_to_parameters(weights.clone(), model.parameters())
    return accuracy(model, test)


# %% tags=["nbval-ignore-output"]
# %%px
once = local_sgd(rounds=1, local_steps=1)
mean_gradient = gradient_and_loss(initial.clone(), batch_of(rank, 0))[:n]
dist.all_reduce(mean_gradient)
# float32 has 7 digits and the weights are below 1: a few roundings make at most about 1e-6.
torch.testing.assert_close(once, initial - 0.2 * mean_gradient / world_size, rtol=0, atol=1e-6)

every_step, seldom = local_sgd(rounds=64, local_steps=1), local_sgd(rounds=8, local_steps=8)
assert_replicas_equal({"weights": every_step})
assert_replicas_equal({"weights": seldom})
print(f"64 all-reduces: {accuracy_of(every_step):.3f}; 8 all-reduces: {accuracy_of(seldom):.3f}")
assert accuracy_of(seldom) > accuracy_of(every_step) - 0.1 > 0.7

# %% [markdown]
# With an eighth of the messages, the result is hardly worse. (Accuracy is measured on 360 test digits, so a single digit changes it by 0.003.)
#
# With *gossip* [9, 10], no rank ever talks to all the others. In each step ranks meet in pairs, and both ranks of a pair take the mean of their weights. **The mean over all ranks stays exactly what it was**, because the sum of a pair does not change, and the spread never grows. So all ranks converge to that mean, without any collective.


# %%
# %%px
def meet(value, step):
    """In even steps the pairs (0, 1) and (2, 3) take their mean, in odd steps the pair (1, 2)."""
    partner = rank ^ 1 if step % 2 == 0 else {1: 2, 2: 1}.get(rank)
    if partner is None:
        return value
    theirs = torch.empty_like(value)
    sending = dist.isend(value, partner)
    dist.recv(theirs, partner)
    sending.wait()
    return (value + theirs) / 2


value, history = torch.tensor([64.0 * rank]), [64.0 * rank]
for step in range(6):
    value = meet(value, step)
    history.append(value.item())
print(history)
after = np.array(comm.allgather(history))  # row: rank; column: step
assert (after.mean(axis=0) == 96).all(), "halves of whole numbers: exact"
spreads = (after.max(axis=0) - after.min(axis=0)).tolist()
assert spreads == sorted(spreads, reverse=True)
assert spreads[-1] < 192 / 4

# %% [markdown]
# Read the lists column by column: the mean of 0, 64, 128 and 192 is 96, and every later column has the same mean. Now we add training: every rank takes a step alone, and then the pairs meet.

# %% tags=["nbval-ignore-output"]
# %%px
weights = initial.clone()
for step in range(64):
    weights -= 0.2 * gradient_and_loss(weights.clone(), batch_of(rank, step))[:n]
    weights = meet(weights, step)
mean_weights = weights.clone()
dist.all_reduce(mean_weights)
mean_weights /= world_size
apart = ((weights - mean_weights).norm() / mean_weights.norm()).item()
print(f"accuracy {accuracy_of(weights):.2f}; {100 * apart:.1f}% away from the mean of all ranks")
assert accuracy_of(mean_weights) > 0.7
assert 0 < apart < 0.2

# %% [markdown]
# The four models are very similar, but no two are equal. That is the price of gossip: there is no such thing as *the* model until you take the mean.
#
# **These ideas are back.** Training without waiting fell out of use together with the parameter server. It is returning for training across data centres, where an all-reduce takes a long time. *Streaming DiLoCo* synchronises only a part of the parameters at a time, does so while training continues, and sends fewer bits [12]. With *eager updates*, workers do not wait for each other's changes: each worker applies its own at once and those of the others one round late [13]. That is staleness, as in section 3. *NoLoCo* needs no all-reduce at all: each worker averages with one other worker, chosen at random [14]. That is gossip. (All *published*.)
#
# ### Exercise 5: a gossip step that keeps the mean
#
# Write `gossip(value, partner, group)`: exchange the tensor `value` with rank `partner` and return the mean of the two. The partner calls the function with your rank. Do not change `value`. The tensor may be large (1 MiB in the check), so the two ranks must not both begin with a blocking send. Do not use a collective, because the other ranks may not take part.


# %% tags=["exercise"] exercise="09.gossip"
# %%px
def gossip(value, partner, group):
    """Return the mean of this rank's value and its partner's."""
    ### BEGIN SOLUTION
    theirs = torch.empty_like(value)
    sending = dist.isend(value, partner, group=group)
    dist.recv(theirs, partner, group=group)
    sending.wait()
    return (value + theirs) / 2
    ### END SOLUTION


# %% tags=["check"]
check("09.gossip")

# %% [markdown]
# Stuck? `hint("09.gossip")`, `solution("09.gossip")`.
#
# ## 12. Break it on purpose
#
# We change one line of the server: it no longer receives hellos from any source, but from workers 1, 2, 3, 1, 2, 3 and so on. The straggler, worker 3, takes 30 ms, and the others take 5 ms.
#
# **Predict.** The server makes 60 updates. How many of the 60 gradients come from worker 3 if the server receives (a) from the workers in turn and (b) from any source? Write `[a, b]`.

# %%
prediction = None

# %%
# %%px
from unittest.mock import patch

turn = iter(range(10**6))
ordinary_recv = dist.recv


def recv_in_turn(tensor, src=None, tag=0, **options):
    if src is None:
        src = 1 + next(turn) % 3
    return ordinary_recv(tensor, src, tag=tag, **options)


pace = 0.03 if rank == 3 else 0.005
fair, fair_seconds = train(60, pace)
with patch.object(dist, "recv", recv_in_turn):
    unfair, unfair_seconds = train(60, pace)
if rank == 0:
    counts = [Counter(entry[0] for entry in log)[3] for log in (unfair, fair)]
    assert unfair_seconds >= 20 * 0.03, "the straggler's pace"

# %% tags=["nbval-ignore-output"]
counts = cluster.view.client[0]["counts"]
compare(prediction, counts)
assert counts[0] == 20
print(f"any source: {cluster.view.client[0]['fair_seconds']:.2f} s")
print(f"in turn:    {cluster.view.client[0]['unfair_seconds']:.2f} s")

# %% [markdown]
# - **Symptom.** Training works, the replay agrees, and the mean staleness is 2, but training is no faster than with synchronous SGD.
# - **Diagnosis.** Every worker has computed exactly as many gradients as the slowest. In a sequence diagram you would see the fast workers wait for a long time in `recv` after sending their hello.
# - **Fix.** Receive from any source, and find out afterwards which worker it was.
#
# ## Recap
#
# | | synchronous, all-reduce | synchronous, server | asynchronous, server | local SGD | gossip |
# |---|---|---|---|---|---|
# | who waits | all for the slowest | all for the slowest | none | all, every H steps | pairs |
# | staleness | 0 | 0 | about W - 1 on average | 0 | 0, but replicas differ |
# | numbers moved per step, for n parameters | 2(p - 1)/p · n out of each rank, and as many in | 2 W n in and out of the server | 2 n per gradient | 1/H of synchronous | n per meeting |
# | same result as one process | yes, up to rounding | yes, up to rounding | no, but the same as a replay of its order, bit for bit | no (yes for H = 1) | no |
# | gradients per second, if worker $i$ takes $t_i$ | $W / \max t_i$ | $W / \max t_i$ | sum of $1/t_i$ | between | between |
#
# - The server holds the weights, the optimizer and the version number; a worker holds a model and data.
# - The mean staleness is about W - 1, no matter how slow any worker is, because the sum telescopes.
# - Stale gradients hurt when the rate times the staleness is large: divide the rate by the staleness, or bound the staleness.
# - Test an asynchronous program by recording the order and replaying it: the results are equal bit for bit.
# - Asynchronous SGD wins where workers differ in speed. Where they do not, synchronous SGD is simpler and just as fast.
#
# **Next:** lesson 10 splits the model instead of the data. You can also go to lesson 12, When a rank dies, which does not need lesson 10. Lesson 11 looks inside a step: hardware and profiles.
#
# ## Further reading
#
# 1. B. Recht, C. Ré, S. Wright and F. Niu, "Hogwild!: A Lock-Free Approach to Parallelizing Stochastic Gradient Descent", *Advances in Neural Information Processing Systems* 24, 2011. No server and no locks: all threads write to the same memory.
# 2. J. Dean and others, "Large Scale Distributed Deep Networks", *Advances in Neural Information Processing Systems* 25, 2012. Asynchronous SGD with the model split over several servers.
# 3. M. Li and others, "Scaling Distributed Machine Learning with the Parameter Server", *11th USENIX Symposium on Operating Systems Design and Implementation*, 583–598, 2014.
# 4. Q. Ho and others, "More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server", *Advances in Neural Information Processing Systems* 26, 2013.
# 5. W. Zhang, S. Gupta, X. Lian and J. Liu, "Staleness-aware Async-SGD for Distributed Deep Learning", arXiv:1511.05950, 2015; *IJCAI* 2016.
# 6. J. Chen, X. Pan, R. Monga, S. Bengio and R. Jozefowicz, "Revisiting Distributed Synchronous SGD", arXiv:1604.00981, 2016. With backup workers, synchronous training was faster and more accurate than asynchronous training.
# 7. S. U. Stich, "Local SGD Converges Fast and Communicates Little", *International Conference on Learning Representations*, 2019.
# 8. A. Douillard and others, "DiLoCo: Distributed Low-Communication Training of Language Models", arXiv:2311.08105, 2023.
# 9. S. Boyd, A. Ghosh, B. Prabhakar and D. Shah, "Randomized gossip algorithms", *IEEE Transactions on Information Theory* 52(6), 2508–2530, 2006.
# 10. X. Lian and others, "Can Decentralized Algorithms Outperform Centralized Algorithms? A Case Study for Decentralized Parallel Stochastic Gradient Descent", *Advances in Neural Information Processing Systems* 30, 2017.
# 11. S. Jaghouar and others, "INTELLECT-1 Technical Report", arXiv:2412.01152, 2024.
# 12. A. Douillard and others, "Streaming DiLoCo with overlapping communication: Towards a Distributed Free Lunch", arXiv:2501.18512, 2025.
# 13. S. Kale, A. Douillard and Y. Donchev, "Eager Updates For Overlapped Communication and Computation in DiLoCo", arXiv:2502.12996, 2025.
# 14. J. Kolehmainen, N. Blagoev, J. Donaghy, O. Ersoy and C. Nies, "NoLoCo: No-all-reduce Low Communication Training Method for Large Models", arXiv:2506.10911, 2025.
