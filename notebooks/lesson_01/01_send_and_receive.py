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
# # 01 Send and receive
#
# **The one idea.** Ranks share nothing, so a number gets from one to another only if one of them *sends* it and the other *receives* it. All other communication, even in the training of the largest networks, is built from these two operations.
#
# **You will be able to**
# - write one program in which each rank plays its part;
# - send Python objects, arrays and tensors, and say what each of these costs;
# - receive a message when you do not know which rank will send it, or how long it will be;
# - recognise a deadlock, explain it, and fix it in three ways;
# - measure your machine's latency and bandwidth, and use them to predict how long a message takes.
#
# **Prerequisites:** lesson 00: `%%px`, errors on ranks, limits and hang reports.
#
# **Time.** The notebook runs in about 15 s (*measured here*: 4 ranks on 2 cores). Allow 120 minutes to work through it, including its four exercises.

# %%
from course_lib.cluster import start_cluster
from course_lib.teaching import check, compare, figures, hint, progress, solution

# %% tags=["nbval-ignore-output"]
cluster = start_cluster(n=4)

# %% [markdown]
# ## 1. One program, many ranks
#
# All ranks run the same program, and an `if` that tests the rank makes them do different things. This style is called *SPMD*: single program, multiple data.
#
# - `rank` is this process's number, from 0 to `world_size - 1`. In mpi4py, it is `comm.rank`.
# - `world_size` is the number of ranks. In mpi4py, it is `comm.size`.
# - `comm` is a *communicator*: a group of ranks that can send each other messages.
#
# **Predict.** What is `role` on ranks 0 to 3 after the next cell? Give a list of four strings.

# %%
prediction = None

# %%
# %%px
role = "server" if rank == 0 else "worker"
if rank == world_size - 1:
    role = "last " + role
print(role)
assert (rank, world_size) == (comm.rank, comm.size)

# %%
compare(prediction, cluster.view["role"])

# %% [markdown]
# The cell reads like one program and runs as four. Make it a habit to ask, at each line, which ranks run it.
#
# SPMD is the usual style, and this course uses it, but it is not the only one. In PyTorch's *Monarch*, a single program, the controller, manages all processes and gives them work, much as this notebook sends its cells to the ranks.
#
# ## 2. The first message
#
# Rank 0 has settings that rank 1 needs. The sender names the destination, and the receiver names the source. Ranks 2 and 3 take no part.

# %%
figures.point_to_point([(0, 1, "settings")], world_size=4, title="Rank 0 sends, rank 1 receives")

# %% [markdown]
# **Predict.** Rank 0 changes its settings *after* it has sent them. Which learning rate does rank 1 end up with?

# %%
prediction = None

# %%
# %%px
settings = None
if rank == 0:
    settings = {"learning rate": 0.1, "layers": [64, 10]}
    comm.send(settings, dest=1)
    settings["learning rate"] = 0.5
elif rank == 1:
    settings = comm.recv(source=0)
print(settings)

# %%
received_rate = cluster.view["settings"][1]["learning rate"]
compare(prediction, received_rate)
assert received_rate == 0.1

# %% [markdown]
# Rank 1 has 0.1, because the message is a copy of the settings as they were when rank 0 sent them. `send` turns the object into bytes (Python calls this *pickling*), the bytes travel, and `recv` makes a new object from them. So you can send almost anything: numbers, lists, dictionaries, whole networks.
#
# `comm.recv` *waits* until the message has arrived. So a rank never has to check whether its data has arrived: once `recv` returns, it has.
#
# ### Exercise 1: pass a token round the ring
#
# A token is a list. It starts on rank 0 and goes round the ring once: from 0 to 1, from 1 to 2, and so on, and from the last rank back to rank 0. Each rank appends its own number and passes the token to its right neighbour.

# %%
figures.point_to_point(
    [
        (0, 1, "[0]", 0, 1),
        (1, 2, "[0, 1]", 1, 2),
        (2, 3, "[0, 1, 2]", 2, 3),
        (3, 0, "[0, 1, 2, 3]", 3, 4.5),
    ],
    title="Once round the ring",
)

# %% [markdown]
# Write `ring_pass(comm, token)`. Rank 0 is given the token, and the others are given `None`. Rank 0 returns the token that came home; every other rank returns the token that it passed on. Take the number of ranks from `comm.size`, because the check also runs your function on fewer ranks. Use the `comm` that is passed to your function, because the check counts its messages.


# %% tags=["exercise"] exercise="01.ring_pass"
# %%px
def ring_pass(comm, token):
    """Pass the token once round all ranks; return it as it left, on rank 0 as it came home."""
    ### BEGIN SOLUTION
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    if comm.rank == 0:
        comm.send([*token, 0], dest=right)
        return comm.recv(source=left)
    token = [*comm.recv(source=left), comm.rank]
    comm.send(token, dest=right)
    return token
    ### END SOLUTION


# %% tags=["check"]
check("01.ring_pass")

# %% [markdown]
# Stuck? `hint("01.ring_pass")` gives one hint at a time, and `solution("01.ring_pass")` shows a worked solution. You can also move on: no later cell needs your function.
#
# ## 3. Objects or buffers
#
# Pickling is convenient, but it has a cost: the sender turns the object into bytes, and the receiver builds a new object from these bytes. For arrays, mpi4py has a second set of methods, whose names begin with a capital letter: `Send` and `Recv`. `Send` reads the array's memory directly, and `Recv` writes the message directly into memory *provided by the receiver*.

# %%
# %%px
numbers = np.arange(4.0) if rank == 0 else np.zeros(4)
if rank == 0:
    comm.Send(numbers, dest=1)
elif rank == 1:
    comm.Recv(numbers, source=0)  # into `numbers`; nothing is returned
print(numbers)
assert rank > 1 or numbers.tolist() == [0, 1, 2, 3]

# %% [markdown]
# How much does this matter? A single message is over too quickly to be timed, so let two ranks play *ping-pong*: rank 0 sends, rank 1 sends back, and half the round-trip time is the time of one message. We keep the fastest of many rounds, because other work on your machine can only make a round slower.

# %%
# %%px
import time
from functools import partial


def seconds_per_message(send, receive, rounds=50):
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        for action in (send, receive) if rank == 0 else (receive, send):
            action()
        times.append((time.perf_counter() - start) / 2)
    return min(times)  # of the round that nothing disturbed


# %% [markdown]
# **Predict.** For an array of 8 MB, by what factor is `send` slower than `Send`?

# %%
prediction = None

# %%
# %%px
seconds = {}
if rank < 2:
    other = 1 - rank
    for length in (1, 1000, 1_000_000):  # float64 numbers of 8 bytes each
        array, buffer = np.ones(length), np.empty(length)
        pickled = seconds_per_message(
            partial(comm.send, array, dest=other), partial(comm.recv, source=other)
        )
        buffered = seconds_per_message(
            partial(comm.Send, array, dest=other), partial(comm.Recv, buffer, source=other)
        )
        seconds[8 * length] = pickled, buffered

# %% tags=["nbval-ignore-output"]
for size, (pickled, buffered) in cluster.view["seconds"][0].items():
    print(f"{size:9,} bytes: send {pickled * 1e6:7.1f} us, Send {buffered * 1e6:7.1f} us")
compare(prediction, pickled / buffered, within=0.3)

# %% [markdown]
# The times are *measured here*, in microseconds (us). With small messages, `send` is slower because pickling itself takes time. With large ones, it is slower because of extra copies, each into new memory that the operating system first has to provide. A rule of thumb: **lower case for objects, upper case for arrays**. In a training loop, always use the upper-case methods, or tensors, which come next.
#
# ## 4. Tensors: `torch.distributed`
#
# PyTorch has its own interface, `torch.distributed`, imported here as `dist`. A *backend* does the work underneath; in this course, the backend uses MPI. The ranks first form a *process group*.

# %%
# %%px
from datetime import timedelta

import torch_mpi4py  # makes the backend "mpi4py" known

if not dist.is_initialized():
    dist.init_process_group("mpi4py", init_method="mpi://", timeout=timedelta(seconds=30))
assert (dist.get_rank(), dist.get_world_size()) == (rank, world_size)

# %% [markdown]
# Here is the classic first program: rank 0 adds 1 to a tensor of zeros and sends it to rank 1.
#
# **Predict.** What do ranks 0 to 3 hold at the end? Give a list of four lists.

# %%
prediction = None

# %%
# %%px
message = torch.zeros(2)
if rank == 0:
    message += 1
    dist.send(message, dst=1)
elif rank == 1:
    dist.recv(message, src=0)
print(message)

# %%
messages = [message.tolist() for message in cluster.view["message"]]
compare(prediction, messages)
assert messages == [[1, 1], [1, 1], [0, 0], [0, 0]]

# %% [markdown]
# `dist.send` and `dist.recv` work like `Send` and `Recv`: the receiver provides the memory. Only the bytes travel: the message does *not* carry the shape or dtype of the tensor, so both ranks have to know them beforehand.
#
# What if the ranks disagree? Rank 0 sends two float32 numbers, and rank 1 provides room for only one.

# %%
# %%px
if rank == 0:
    dist.send(torch.ones(2), dst=1)
elif rank == 1:
    try:
        dist.recv(torch.zeros(1), src=0)
    except torch_mpi4py.CommunicationError as error:
        print(error)

# %% [markdown]
# You get a clear error. But a message that *fits* is not checked any further.
#
# **Predict.** Rank 0 sends `[1., 1.]` as float32. Rank 1 receives into two int32 numbers. What happens: (A) there is an error; (B) rank 1 holds `[1, 1]`; (C) rank 1 holds something else? Answer `"A"`, `"B"` or `"C"`.

# %%
prediction = None

# %%
# %%px
received = torch.zeros(2, dtype=torch.int32)
if rank == 0:
    dist.send(torch.ones(2), dst=1)
elif rank == 1:
    dist.recv(received, src=0)
    print(received)

# %%
received = cluster.view["received"][1].tolist()
compare(prediction, {"[1, 1]": "B"}.get(str(received), "C"))

# %%
# %%px --targets 1
assert torch.equal(received.view(torch.float32), torch.ones(2)), "the same bits"

# %% [markdown]
# There was no error. Rank 1 holds 1065353216 twice: the bits of the float 1.0, read as an integer. A number of either type takes 4 bytes, so the message fitted. As long as the message fits, a wrong dtype or a transposed shape causes no error: **the receiver needs a tensor of the right shape and dtype, and you have to make sure of that yourself.** If the shape can vary, send it first.
#
# ## 5. Blocking and non-blocking
#
# `send` and `recv` are *blocking*: they return only when you may use the memory again. `isend` and `irecv` only *start* the transfer and return a handle at once. You carry on with other work, and call `wait()` on the handle when you need the result. In between, the memory belongs to the transfer: do not read a tensor that is being received, and do not change one that is being sent.
#
# In the next cell, rank 1 starts to receive before it tells rank 0 to go ahead, so the message cannot have arrived at first.
#
# **Predict.** What does rank 1's tensor hold before `wait()`, and what does it hold afterwards? Give a list of two numbers.

# %%
prediction = None

# %%
# %%px
values = []
tensor = torch.zeros(1)
if rank == 1:
    work = dist.irecv(tensor, src=0)
    values.append(tensor.item())  # only to show it: never read it before wait()
    comm.send("go ahead", dest=0)
    work.wait()
    values.append(tensor.item())
elif rank == 0:
    comm.recv(source=1)
    dist.isend(torch.tensor([7.0]), dst=1).wait()
print(values)

# %%
compare(prediction, cluster.view["values"][1])
assert cluster.view["values"][1] == [0.0, 7.0]

# %% [markdown]
# In mpi4py, the corresponding calls are `comm.isend` and `comm.irecv`, or `comm.Isend` and `comm.Irecv`. They return a *request*, which has a `wait()` method.
#
# ## 6. Tags: which message is it?
#
# Two messages from one rank to another arrive in the order in which they were sent: they never overtake each other. To let the receiver choose between messages, give them *tags*, which are whole numbers of your choice. A receive with a tag accepts the first message with that tag.
#
# **Predict.** Rank 0 sends a weight with tag 1 and then a gradient with tag 2. Rank 1 receives tag 2 first. What does it get? Answer with a string.

# %%
prediction = None

# %%
# %%px
first = second = None
if rank == 0:
    comm.send("weight", dest=1, tag=1)
    comm.send("gradient", dest=1, tag=2)
elif rank == 1:
    first = comm.recv(source=0, tag=2)
    second = comm.recv(source=0, tag=1)
    print(first, "before", second)

# %%
compare(prediction, cluster.view["first"][1])
assert (cluster.view["first"][1], cluster.view["second"][1]) == ("gradient", "weight")

# %% [markdown]
# Without a tag, `recv` accepts a message with any tag, so here it would have received the weight first. `torch.distributed` has tags as well: `dist.send(tensor, dst=1, tag=2)`. NCCL, the backend for NVIDIA GPUs, does not support them: it distinguishes messages between two ranks only by their order.
#
# ## 7. Any source: first come, first served
#
# A server with many workers does not know which of them will be ready next. It receives from `MPI.ANY_SOURCE`, and then finds the sender's rank in the *status*.

# %% tags=["nbval-ignore-output"]
# %%px
from mpi4py import MPI

if rank == 0:
    status = MPI.Status()
    for _ in range(world_size - 1):
        greeting = comm.recv(source=MPI.ANY_SOURCE, status=status)
        print(f"{greeting!r} from rank {status.source}")
else:
    comm.send(f"hello, I am {rank}", dest=0)

# %% [markdown]
# Run this cell a few times. The order may change, because it depends on which ranks send first. Use `ANY_SOURCE` only where the order does not matter.
#
# In `torch.distributed`, leave out the source, and `recv` returns the sender's rank. (NCCL does not support this: with NCCL, a receive must name its source.)

# %%
# %%px
if rank == 0:
    senders, tensor = [], torch.zeros(1)
    for _ in range(world_size - 1):
        senders.append(dist.recv(tensor))
        assert tensor.item() == 10 * senders[-1]
    print(sorted(senders))
else:
    dist.send(torch.tensor([10.0 * rank]), dst=0)

# %% [markdown]
# ### Probe: look before you receive
#
# What if you do not know how *long* the message will be? `Probe` waits until a message has arrived, but does not receive it. The status gives the message's source and length, so you can provide memory of the right size. In the receive that follows, name the source, because by then a message from another rank may have arrived too.

# %%
# %%px
lengths = {}
if rank == 0:
    for _ in range(world_size - 1):
        comm.Probe(source=MPI.ANY_SOURCE, status=status)
        sender, length = status.source, status.Get_count(MPI.DOUBLE)
        numbers = np.empty(length)
        comm.Recv(numbers, source=sender)
        assert np.all(numbers == sender)
        lengths[sender] = length
else:
    comm.Send(np.full(100 * rank, float(rank)), dest=0)
print(sorted(lengths.items()))
assert rank != 0 or lengths == {source: 100 * source for source in range(1, world_size)}

# %% [markdown]
# ### Exercise 2: handshake
#
# Rank 0 is a server, and the other ranks are workers. Each worker has a large payload for the server, such as a gradient. The following protocol, which uses lower-case `send` and `recv`, keeps the server from being flooded:
#
# 1. the worker sends `"hello"`;
# 2. when it is this worker's turn, the server answers `"I am ready for you"`;
# 3. only then does the worker send its payload, which the server receives before it turns to the next worker.

# %%
figures.point_to_point(
    [
        (1, 0, "hello", 0, 0.7),
        (2, 0, "hello", 0.1, 1.0),
        (0, 1, "ready", 1.3, 2.2),
        (1, 0, "payload", 2.3, 3.3),
        (0, 2, "ready", 3.5, 4.5),
        (2, 0, "payload", 4.6, 5.6),
    ],
    [(2, 0.2, 4.5, "waits")],
    title="One worker at a time",
)

# %% [markdown]
# Write `handshake(comm, payload)`. The server serves the workers in the order in which they say hello. On the server, the function returns a dictionary that maps each worker's rank to its payload; on the workers, it returns `None`. Lesson 09 builds a parameter server on this handshake.


# %% tags=["exercise"] exercise="01.handshake"
# %%px
def handshake(comm, payload):
    """Return {worker: payload} on rank 0, by hello, "I am ready for you", payload."""
    ### BEGIN SOLUTION
    if comm.rank != 0:
        comm.send("hello", dest=0)
        assert comm.recv(source=0) == "I am ready for you"
        comm.send(payload, dest=0)
        return None
    payloads, status = {}, MPI.Status()
    for _ in range(comm.size - 1):
        comm.recv(source=MPI.ANY_SOURCE, status=status)
        worker = status.source
        comm.send("I am ready for you", dest=worker)
        payloads[worker] = comm.recv(source=worker)
    return payloads
    ### END SOLUTION


# %% tags=["check"]
check("01.handshake")

# %% [markdown]
# Stuck? `hint("01.handshake")`, `solution("01.handshake")`.
#
# ## 8. Deadlock
#
# Ranks 0 and 1 want to swap their numbers. Both receive first and send afterwards.
#
# **Predict.** Which ranks do not finish the next cell? Give a list of ranks. (`--limit 2` ends the cell after 2 s.)

# %%
prediction = None

# %% tags=["raises-exception", "nbval-ignore-output"]
# %%px --limit 2
swapped = False
if rank < 2:
    number = comm.recv(source=1 - rank)
    comm.send(rank, dest=1 - rank)
swapped = True

# %%
compare(prediction, [r for r in cluster.ids if not cluster.view["swapped"][r]])

# %%
figures.point_to_point(
    [],
    [(0, 0, None, "recv from 1"), (1, 0, None, "recv from 0")],
    title="Each waits for the other",
)

# %% [markdown]
# Read the report. Ranks 0 and 1 are both waiting in a `recv`, on the same line, each for the other. Ranks 2 and 3 had nothing to do and finished. Ranks 0 and 1 would each send after receiving, but neither ever receives anything. A circle of ranks, each waiting for the next, is called a *deadlock*. Neither rank's calls are wrong in themselves, and a faster computer would not help. The order of the calls has to change.
#
# The ranks have been freed and brought back in step, and their variables have been kept, so you can fix the program at once.
#
# **Fix 1: take turns.** One of the two sends first, and the other receives first. With more ranks, the even ones send first.

# %%
# %%px
if rank % 2 == 0:
    comm.send(rank, dest=rank + 1)
    number = comm.recv(source=rank + 1)
else:
    number = comm.recv(source=rank - 1)
    comm.send(rank, dest=rank - 1)
print(number)
assert number == (rank + 1 if rank % 2 == 0 else rank - 1)

# %% [markdown]
# **Fix 2: do not wait.** Start the send, receive, and then wait for the send to finish.

# %%
# %%px
partner = rank + 1 if rank % 2 == 0 else rank - 1
work = dist.isend(torch.tensor([rank]), dst=partner)
number = torch.zeros(1, dtype=torch.int64)
dist.recv(number, src=partner)
work.wait()
print(number.item())
assert number.item() == partner

# %% [markdown]
# **Fix 3: leave it to the library.** `sendrecv` sends and receives in one call, and two ranks that swap data with it cannot deadlock. For arrays, use `comm.Sendrecv(array, dest=partner, recvbuf=buffer, source=partner)`, with a buffer to receive into.

# %%
# %%px
number = comm.sendrecv(rank, dest=partner, source=partner)
print(number)
assert number == partner

# %% [markdown]
# ### Break it on purpose: a deadlock that waits for a larger model
#
# What if both ranks *send* first? MPI may take a small message from the sender at once and deliver it later (the message is then *buffered*). A large message has to wait for its receiver. The standard says that MPI *may* buffer a message, not that it must.
#
# **Predict.** All ranks send first and receive afterwards, once with 8 numbers (64 bytes) and once with 131,072 (1 MiB). How does each of the two exchanges end? Give a list of two strings, each `"ok"` or `"stuck"`.

# %%
prediction = None

# %%
# %%px
outcome = []
for length in (8, 131_072):
    pair = comm.Split(color=rank // 2)  # a communicator of two ranks, with a deadline of its own
    pair.timeout = 1.0
    array, buffer = np.ones(length), np.zeros(length)
    try:
        pair.Send(array, dest=1 - pair.rank)
        pair.Recv(buffer, source=1 - pair.rank)
        outcome.append("ok")
    except torch_mpi4py.CommunicationError:
        outcome.append("stuck")
print(outcome)

# %%
compare(prediction, cluster.view["outcome"][0])

# %% [markdown]
# - **Symptom.** A program that has run for months hangs after someone has enlarged the network. Or a program runs with one MPI library and hangs with another.
# - **Diagnosis.** All ranks are waiting in a send. The program was always wrong, because it relied on buffering.
# - **Fix.** Use any of the three fixes above. To find sends that rely on buffering, replace `Send` with `Ssend` in a test run. `Ssend` is the *synchronous* send, which always waits for its receiver, so it deadlocks even with small messages.
#
# ### Exercise 3: shift round the ring
#
# Write `shift(comm, array)`. All ranks have NumPy arrays of the same length, and all send them to their right neighbours at the same time. Each rank returns a new array of the same dtype, which holds the data received from its left neighbour. Your function must work for arrays of any size and dtype, and it must not change the array that it is given. Use the upper-case methods, as always for arrays.

# %%
figures.who_sends_to_whom([(0, 1, "A"), (1, 2, "B"), (2, 3, "C"), (3, 0, "D")], title="All at once")


# %% tags=["exercise"] exercise="01.shift"
# %%px
def shift(comm, array):
    """Send the array to the right neighbour and return the array of the left one."""
    ### BEGIN SOLUTION
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    received = np.empty_like(array)
    request = comm.Isend(array, dest=right)
    comm.Recv(received, source=left)
    request.wait()
    return received
    ### END SOLUTION


# %% tags=["check"]
check("01.shift")

# %% [markdown]
# Stuck? `hint("01.shift")`, `solution("01.shift")`. The ring all-reduce in lesson 03 is made up of such shifts.
#
# ## 9. What does a message cost?
#
# The whole course uses one simple model of the time that a message of `n` bytes takes:
#
# $$t(n) = \alpha + \beta n$$
#
# - **α** is the *latency*, in seconds: the time that even an empty message takes;
# - **β** is the time per byte, in seconds; its inverse **1/β** is the *bandwidth*, in bytes per second.
#
# Let us measure both on your machine, again by ping-pong, with messages from 1 byte to 4 MiB.
#
# **Predict.** What is the latency between two ranks on your machine, in microseconds? (For comparison, a function call in Python takes about 0.05 us, and a hard disk access about 10,000 us.)

# %%
prediction = None

# %%
# %%px
sizes = [4**k for k in range(12)]  # bytes: 1, 4, 16, ... 4 MiB
times = []
if rank < 2:
    for size in sizes:
        array, buffer = np.ones(size, dtype=np.uint8), np.empty(size, dtype=np.uint8)
        send = partial(comm.Send, array, dest=other)
        receive = partial(comm.Recv, buffer, source=other)
        times.append(seconds_per_message(send, receive, rounds=100))

# %% [markdown]
# Which straight line fits the points best? The times span a factor of 50 or more. If we minimised the errors in *seconds*, only the largest messages would count, and α could come out as almost anything. So we minimise the *relative* errors: we choose α and β to minimise the sum, over all measured sizes $n_i$ and their times $t_i$, of
#
# $$\left(\frac{\alpha + \beta n_i - t_i}{t_i}\right)^2$$
#
# The expression inside the square is linear in α and β, so this is an ordinary least-squares problem: find the α and β for which $\alpha / t_i + \beta\, n_i / t_i$ is as close to 1 as possible.

# %%
import numpy as np

sizes, times = np.array(cluster.view["sizes"][0]), np.array(cluster.view["times"][0])
rows = np.stack([1 / times, sizes / times], axis=1)
(alpha, beta), *_ = np.linalg.lstsq(rows, np.ones(len(times)))
worst = np.max(np.abs((alpha + beta * sizes - times) / times))
assert alpha > 0
assert beta > 0

# %% tags=["nbval-ignore-output"]
print(f"latency      alpha  = {alpha * 1e6:.1f} us")
print(f"bandwidth   1/beta  = {1 / beta / 1e9:.1f} GB/s")
print(f"the line misses a point by {worst:.0%} at most")
compare(prediction, alpha * 1e6, within=0.5, unit="us")

# %% tags=["nbval-ignore-output"]
figures.measured_and_predicted(
    sizes,
    times,
    lambda n: alpha + beta * n,
    title="Ping-pong between two ranks",
    alt="Time of one message over its size, both axes logarithmic: flat up to some kilobytes, "
    "then rising in proportion to the size. Points: measured; line: alpha + beta n.",
)

# %% [markdown]
# On the left, where the curve is flat, you pay for the message itself; on the right, you pay for its bytes. The two costs are equal at n = α/β bytes. Well below that size, sending twice as much costs almost nothing extra, so it pays to combine small messages. You will meet this idea again as the *buckets* of lesson 08.
#
# The points do not lie exactly on the line. MPI changes its method at certain sizes (it buffers small messages, as you have seen), and large messages do not fit into the CPU cache. Even so, two numbers describe the times from 1 byte to 4 MiB quite well. Do not treat α as a constant of nature: on a machine with other work to do, readers found values between 14 and 75 us within one session. Run the cells again and see how much yours varies.
#
# ### Use the model
#
# **Predict** with the model: the gradient of LeNet, the network of lesson 05, has 61,706 float32 numbers of 4 bytes. How many microseconds does it take to send this gradient from one rank to another? This time, the notebook makes the prediction, so that you can compare yours with it.

# %%
# %%px
needed = None
if rank < 2:
    gradient, buffer = torch.ones(61_706).numpy(), torch.empty(61_706).numpy()
    send = partial(comm.Send, gradient, dest=other)
    needed = seconds_per_message(send, partial(comm.Recv, buffer, source=other))

# %% tags=["nbval-ignore-output"]
n = 4 * 61_706
print(f"equal shares at n = alpha / beta = {alpha / beta:,.0f} bytes")
prediction = float(alpha + beta * n) * 1e6
compare(prediction, cluster.view["needed"][0] * 1e6, within=0.5, unit="us")

# %% [markdown]
# The prediction comes from the fit (*predicted*), and the time of the message is *measured here*. On a quiet machine, expect the two to differ by a factor of up to two or three: in four runs while this lesson was written, the factors were 1.1, 1.8, 2.3 and 2.7. On a busy machine the factor may be larger, because the load may have changed between the fit and the message. Between machines, α and β have other values, but the model is the same. If you measure them on your network, you can predict how long training across it will take. Lessons 03 and 06 show how.
#
# ## 10. Which rank writes first?
#
# Four ranks each append a line to the same file. Nothing determines the order of the lines.

# %% tags=["nbval-ignore-output"]
log = cluster.shared_folder() / "log.txt"  # all ranks see the folder; the kernel's end removes it
cluster.view["log"] = str(log)
# %px with open(log, "a") as file: file.write(f"line of rank {rank}\n")
print(log.read_text())

# %% [markdown]
# The order is a matter of chance. (In a `%%px` cell you never see this, because the output is sorted by rank.) On a cluster, where many ranks write to one log, you may want their lines in order.
#
# ### Exercise 4: write in order, without a barrier
#
# Write `write_in_order(comm, text, write)`. Every rank calls `write(text)` exactly once, with its own text. Messages between the ranks ensure that rank 0 writes first, then rank 1, and so on. Do not use a barrier (a call in which every rank waits for all the others). Do not use `sleep` either, which would leave the order to chance. Send no more than `comm.size - 1` messages in all; you do not need more.


# %% tags=["exercise"] exercise="01.write_in_order"
# %%px
def write_in_order(comm, text, write):
    """Call write(text) once on every rank, in rank order."""
    ### BEGIN SOLUTION
    if comm.rank > 0:
        comm.recv(source=comm.rank - 1)
    write(text)
    if comm.rank < comm.size - 1:
        comm.send("your turn", dest=comm.rank + 1)
    ### END SOLUTION


# %% tags=["check"]
check("01.write_in_order")

# %% [markdown]
# Stuck? `hint("01.write_in_order")`, `solution("01.write_in_order")`.
#
# ## Recap
#
# | | objects (mpi4py) | arrays (mpi4py) | tensors (`torch.distributed`) |
# |---|---|---|---|
# | blocking | `send`, `recv` | `Send`, `Recv` | `dist.send`, `dist.recv` |
# | non-blocking | `isend`, `irecv`, `wait()` | `Isend`, `Irecv`, `wait()` | `dist.isend`, `dist.irecv`, `wait()` |
# | both at once | `sendrecv` | `Sendrecv` | `dist.batch_isend_irecv` |
# | the receiver provides | nothing | memory of the right size and dtype | a tensor of the right shape and dtype |
# | from any rank | `source=MPI.ANY_SOURCE` | the same | leave out `src` |
# | which rank sent it? | `status.source` | `status.source` | the return value of `dist.recv` |
# | how long is it? | no need to know | `Probe`, `status.Get_count` | send the length first |
#
# - Messages with the same tag from one rank to another never overtake each other.
# - If all ranks receive first, they deadlock. If all ranks send first, they deadlock above some message size.
# - A message takes α + βn seconds, so a few large messages cost less than many small ones.
#
# **Next:** lesson 02, Collectives. What can all ranks do together?
#
# **Further reading**
# - Message Passing Interface Forum, *MPI: A Message-Passing Interface Standard, Version 5.0*, 2025, chapter "Point-to-Point Communication". <https://www.mpi-forum.org/docs/>
# - L. Dalcin, Y.-L. L. Fang, *mpi4py: Status Update After 12 Years of Development*, Computing in Science & Engineering 23(4), 47-54, 2021. <https://doi.org/10.1109/MCSE.2021.3083216>
# - S. Arnold, *Writing Distributed Applications with PyTorch*, PyTorch tutorials. <https://docs.pytorch.org/tutorials/intermediate/dist_tuto.html>
# - *Monarch*, <https://github.com/meta-pytorch/monarch>, in which one program drives all processes; and *torchcomms*, <https://github.com/meta-pytorch/torchcomms>, an experimental library that sits below `torch.distributed` and is meant to become its foundation. Both were announced in October 2025.
# - R. W. Hockney, *The communication challenge for MPP: Intel Paragon and Meiko CS-2*, Parallel Computing 20(3), 389-398, 1994. <https://doi.org/10.1016/S0167-8191(06)80021-9> (Latency and bandwidth from a ping-pong.)
