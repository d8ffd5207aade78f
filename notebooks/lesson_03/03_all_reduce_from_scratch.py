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
# # 03 All-reduce from scratch
#
# **The one idea.** The result of an all-reduce is fixed: every rank ends up with the sum. The messages that produce it are not. Some algorithms need few steps, others move few bytes. Three numbers that you measure on your network tell you which algorithm is fastest for a given array size.
#
# **You will be able to**
# - build five all-reduces from sends and receives: naive, tree, recursive doubling, ring, Rabenseifner;
# - count their steps, messages and bytes, and check the counts against the formulas;
# - predict their running time from latency, bandwidth and the speed of addition, and find the array size at which one algorithm overtakes another;
# - explain why two algorithms may differ in the last digit of their results, and why replicas stay equal all the same;
# - find the fault in a ring all-reduce from a well-known tutorial.
#
# **Prerequisites:** lesson 01 (send, receive, deadlock, α and β) and lesson 02 (what all-reduce, reduce-scatter and all-gather mean).
#
# **Time.** The notebook runs in about 30 s (*measured here*: 4 ranks on 2 cores). Allow 180 minutes to work through it, including its five exercises, preferably in two sittings. There is a place to stop after section 6; in a workshop, the rest is optional.

# %%
from course_lib.cluster import start_cluster
from course_lib.teaching import (
    check,
    compare,
    cost,
    figures,
    hint,
    progress,
    solution,
    yours_or_solution,
)
from rank_by_rank.lesson_03 import choosing
from rank_by_rank.lesson_03.figures import all_reduce_steps

# %% tags=["nbval-ignore-output"]
cluster = start_cluster(n=4)

# %%
# %%px
import time
from functools import partial

from mpi4py import MPI

from torch_mpi4py import Traffic

# %% [markdown]
# ## 1. The task
#
# Every rank has an array. After an all-reduce, every rank's array holds the sum of all arrays, element by element. In this lesson, an all-reduce is a function of a communicator `comm` and a NumPy array. It works *in place*: the result replaces the contents of the array that you pass, as in `dist.all_reduce`.
#
# A wrong all-reduce often gives the right sum in some cases: on four ranks, for lengths that divide evenly, or on rank 0 alone. So before we write the first all-reduce, here is the test that every one in this lesson must pass. The numbers are small integers, so sums are exact, and "equal" means `==`.


# %%
# %%px
def is_exact(all_reduce, comm, lengths=(0, 1, 3, 8, 1001)):
    for length in lengths:
        array = (comm.rank + 1) * np.arange(length)
        all_reduce(comm, array)
        everyones = sum(range(1, comm.size + 1)) * np.arange(length)
        if not np.array_equal(array, everyones):
            return False
    return True


assert not is_exact(lambda comm, array: None, comm), "a test must be able to fail"
assert is_exact(lambda comm, array: comm.Allreduce(MPI.IN_PLACE, array), comm)

# %% [markdown]
# Three of the lengths, 0, 1 and 3, are smaller than the number of ranks. If you split such a short array into one part per rank, some parts are empty. Code that splits arrays should be tested with empty parts.
#
# ## 2. Naive: everyone to a root, root to everyone
#
# Rank 0 receives the arrays of the other ranks, one after another, and adds each to its own. Then it sends the sum to the other ranks, again one after another.


# %%
# %%px
def all_reduce_naive(comm, array):
    if comm.rank != 0:
        comm.Send(array, dest=0)
        comm.Recv(array, source=0)
        return
    received = np.empty_like(array)
    for source in range(1, comm.size):
        comm.Recv(received, source=source)
        array += received
    for dest in range(1, comm.size):
        comm.Send(array, dest=dest)


assert is_exact(all_reduce_naive, comm)

# %% [markdown]
# The next picture shows one grid per step, with a row for each rank and a column for each quarter of the array (we will need the quarters later). Each quarter has four slots, one for each rank. A slot is coloured once that rank's numbers have been added. When all four are coloured, the quarter holds the sum, Σ. A thick frame marks data that has just arrived.

# %%
all_reduce_steps("naive")

# %% [markdown]
# **Predict.** The array has 1,024 numbers of 8 bytes each. How many bytes does rank 0 send, and how many does rank 1? Give a list of two numbers.

# %%
prediction = None


# %%
# %%px
def traffic_of(all_reduce, length):
    array = (comm.rank + 1) * np.arange(length)
    with Traffic() as traffic:
        all_reduce(comm, array)
    return traffic


naive = traffic_of(all_reduce_naive, 1024)
print(f"sent: {naive.sent.messages} messages, {naive.sent.bytes:,} bytes")
sent = naive.sent.bytes

# %%
compare(prediction, cluster.view["sent"][:2])

# %%
# %%px
assert naive.sent.messages == naive.received.messages == (3 if rank == 0 else 1)
assert naive.sent.bytes == naive.received.bytes == 8192 * naive.sent.messages

# %% [markdown]
# `Traffic` is the course's *traffic meter*. It counts the messages that your code sends and receives, and their bytes. The counts are exact, not estimates.
#
# With p ranks, rank 0 sends and receives p - 1 times as much as each of the others, which spend most of their time waiting: 2 (p - 1) messages go through rank 0, one after another. With 4 ranks that may be acceptable. With 1,000 it is hopeless, because each extra rank makes all ranks wait for two more messages.
#
# ## 3. Tree: add in pairs
#
# Rank 0 need not do all the adding. In the first step, rank 1 sends to rank 0 and, *at the same time*, rank 3 sends to rank 2. In the second step, rank 2, which now holds the sum of two arrays, sends to rank 0. The result goes back the same way.

# %%
all_reduce_steps("tree")


# %%
# %%px
def all_reduce_tree(comm, array):
    rank, received = comm.rank, np.empty_like(array)
    distances = [2**level for level in range((comm.size - 1).bit_length())]  # 1, 2, 4, ...
    for distance in distances:
        if rank % (2 * distance) == distance:
            comm.Send(array, dest=rank - distance)
        elif rank % (2 * distance) == 0 and rank + distance < comm.size:
            comm.Recv(received, source=rank + distance)
            array += received
    for distance in reversed(distances):
        if rank % (2 * distance) == distance:
            comm.Recv(array, source=rank - distance)
        elif rank % (2 * distance) == 0 and rank + distance < comm.size:
            comm.Send(array, dest=rank + distance)


assert is_exact(all_reduce_tree, comm)

# %% [markdown]
# Each step doubles the number of ranks whose numbers are in rank 0's sum. So it takes lg p steps to complete the sum, and another lg p to send it back. (lg p is the logarithm to base 2: the number of times you have to double 1 to reach p. If p is not a power of two, we round it up.)
#
# Is that true? Four ranks are too few to tell. `rehearse` runs a function on as many ranks as you like: they share one process and take turns. It counts the *steps*, that is, the messages in the longest chain in which each message has to wait for the one before. A rehearsal says nothing about time, but its counts are exact.
#
# **Predict.** How many steps do the naive algorithm and the tree take on 64 ranks? Give a list of two numbers.

# %%
prediction = None

# %%
# %%px
from rank_by_rank.lesson_03.rehearsal import rehearse


def steps_of(all_reduce, p):
    return rehearse(all_reduce, [(np.ones(p),) for _ in range(p)]).steps


with_64 = [steps_of(all_reduce_naive, 64), steps_of(all_reduce_tree, 64)]
print(with_64)

# %%
compare(prediction, cluster.view["with_64"][0])
assert cluster.view["with_64"][0] == [2 * (64 - 1), 2 * 6]

# %% [markdown]
# The naive algorithm does take 2 (p - 1) steps, and the tree 2 lg p. On 1,024 ranks, that would be 2,046 and 20 steps.
#
# ## 4. Recursive doubling: why should any rank wait?
#
# In a tree, half of the ranks are idle after the first step, and by the time the sum is complete, all but one are. In recursive doubling, every rank works in every step: *partners* swap what they hold, and each adds what it receives. In the first step the partners are neighbours, in the second they are ranks at distance 2, in the third at distance 4. After each step, a rank holds the sum over twice as many ranks as before.

# %%
all_reduce_steps("recursive doubling")


# %%
# %%px
def all_reduce_doubling(comm, array):
    received, distance = np.empty_like(array), 1
    while distance < comm.size:
        partner = comm.rank ^ distance
        comm.Sendrecv(array, dest=partner, recvbuf=received, source=partner)
        array += received
        distance *= 2


assert is_exact(all_reduce_doubling, comm)

# %% [markdown]
# `^` is *exclusive or*: it flips one bit of the rank. At distance 1 the partners are 0 and 1, and 2 and 3. At distance 2 they are 0 and 2, and 1 and 3. `Sendrecv` sends and receives at the same time, so two partners cannot deadlock.
#
# Recursive doubling takes lg p steps, half as many as the tree, because nothing has to be sent back. But each step still moves the whole array.
#
# Recursive doubling has a weakness. **Predict.** On a communicator of three ranks, what do you get: (A) the right sum, (B) a wrong sum, (C) an error? Write `"A"`, `"B"` or `"C"`.

# %%
prediction = None

# %%
# %%px
trio = comm.Split(color=0 if rank < 3 else 1, key=rank)  # ranks 0, 1, 2, and rank 3 on its own
trio.timeout = 1.0  # seconds
outcome = "took no part"
if rank < 3:
    try:
        outcome = "the right sum" if is_exact(all_reduce_doubling, trio, [8]) else "a wrong sum"
    except Exception:
        outcome = "an error"
print(outcome)

# %%
outcomes = cluster.view["outcome"]
compare(prediction, {"the right sum": "A", "a wrong sum": "B", "an error": "C"}[outcomes[1]])
assert outcomes == ["an error"] * 3 + ["took no part"]

# %% [markdown]
# Rank 1's second partner would be 1 ^ 2 = 3, and rank 2's first partner would be 2 ^ 1 = 3, but there is no rank 3. Rank 0 waited for rank 2 until the time-out of one second passed. The naive algorithm and the tree have no problem with three ranks:

# %%
# %%px
trio = comm.Split(color=0 if rank < 3 else 1, key=rank)
assert is_exact(all_reduce_naive, trio)
assert is_exact(all_reduce_tree, trio)

# %% [markdown]
# The usual remedy is to *fold*: each rank beyond the largest power of two first gives its numbers to another rank and stands aside. You will build this in exercise 4, when you know all five algorithms.
#
# ## 5. Ring: move each number no more than needed
#
# An algorithm that moves whole arrays moves too much. The first and the last number of rank 0's array need not travel together, and need not be added by the same rank. The ring splits the array into p *chunks* and starts each chunk at a different rank. In every step, each rank sends one chunk to its right neighbour and, at the same time, receives another from its left neighbour.

# %%
figures.who_sends_to_whom([(0, 1), (1, 2), (2, 3), (3, 0)], title="Each rank sends to its right")

# %% [markdown]
# 1. **Reduce-scatter**, p - 1 steps. A chunk collects numbers on its way round: each rank adds its own numbers and passes the chunk on. In the end, each rank holds one finished chunk of the sum.
# 2. **All-gather**, p - 1 steps. The finished chunks go round the ring once more, and each rank keeps a copy of every chunk.
#
# You know the invariant from lesson 02: a reduce-scatter followed by an all-gather is an all-reduce. Follow chunk 0, the first column. It starts at rank 0, is complete at rank 3 after step 3, and has reached all ranks after step 6.

# %%
all_reduce_steps("ring")


# %%
# %%px
def all_reduce_ring(comm, array):
    p, rank = comm.size, comm.rank
    left, right = (rank - 1) % p, (rank + 1) % p
    chunks = np.array_split(array, p)  # views: what is added to a chunk is added to the array
    for step in range(p - 1):  # reduce-scatter
        outgoing, mine = chunks[(rank - step) % p], chunks[(rank - step - 1) % p]
        received = np.empty_like(mine)
        comm.Sendrecv(outgoing, dest=right, recvbuf=received, source=left)
        mine += received
    for step in range(p - 1):  # all-gather
        outgoing, incoming = chunks[(rank + 1 - step) % p], chunks[(rank - step) % p]
        comm.Sendrecv(outgoing, dest=right, recvbuf=incoming, source=left)


assert is_exact(all_reduce_ring, comm)
assert is_exact(all_reduce_ring, comm.Split(color=0 if rank < 3 else 1, key=rank))

# %% [markdown]
# The `%` closes the ring: rank 3's right neighbour is (3 + 1) % 4 = 0. In each step after the first, a rank sends the chunk that reached it in the step before, so the chunk number goes down by one from step to step.
#
# **Predict.** The array is n = 8,192 bytes long. How many bytes does *each* rank send if there are four ranks? And if there are 64? Give a list of two numbers.

# %%
prediction = None

# %%
# %%px
ring = traffic_of(all_reduce_ring, 1024)
print(f"sent: {ring.sent.messages} messages, {ring.sent.bytes:,} bytes")

sent_by_each = [ring.sent.bytes]
sent_by_each.append(
    rehearse(all_reduce_ring, [(np.ones(1024),) for _ in range(64)]).bytes_sent(rank)
)

# %%
compare(prediction, cluster.view["sent_by_each"][0])

# %%
# %%px
assert ring.sent.messages == 2 * (world_size - 1)
assert ring.sent.bytes == 2 * (world_size - 1) * 8192 // world_size
assert set(ring.sent.by_peer) == {(rank + 1) % world_size}, "to the right neighbour alone"

# %% [markdown]
# A rank sends 2 (p - 1) messages of n/p bytes each, in total $2\,\frac{p-1}{p}\,n$ bytes (*measured here* on four ranks, counted in a rehearsal of 64). That is less than 2 n, **no matter how many ranks there are**. It has been proved that no all-reduce made of messages between ranks can do better: its *busiest* rank has to send at least this many bytes [1]. This is what made the ring famous. The price is the number of steps: 2 (p - 1), as many as in the naive algorithm.
#
# To compare the ring with the naive algorithm, look at the two matrices below. They show how much each rank sent to every other rank.

# %%
# %%px
by_naive, by_ring = naive.matrix(), ring.matrix()

# %%
figures.traffic(cluster.view["by_naive"][0], title="Naive")

# %%
figures.traffic(cluster.view["by_ring"][0], title="Ring")

# %% [markdown]
# Both matrices add up to the same number of bytes. But in the naive algorithm all bytes go to or from rank 0, while the ring spreads them over four links that work at the same time.
#
# ### Exercise 1: all-gather round a ring
#
# Each half of the ring is useful on its own, and fully sharded training (lesson 10b) is built from both. The all-gather is the easier half. Write `all_gather(comm, chunk)`. Every rank has a chunk, and all chunks have the same length. Each rank returns a new array, which contains the chunks of ranks 0, 1, ..., p - 1 in this order. The chunks go round the ring: each rank sends p - 1 messages of one chunk each to its neighbour.


# %% tags=["exercise"] exercise="03.all_gather"
# %%px
def all_gather(comm, chunk):
    """Return the chunks of all ranks, in rank order, as one array."""
    ### BEGIN SOLUTION
    p, rank = comm.size, comm.rank
    left, right = (rank - 1) % p, (rank + 1) % p
    chunks = np.empty((p, len(chunk)), dtype=chunk.dtype)
    chunks[rank] = chunk
    for step in range(p - 1):
        outgoing, incoming = chunks[(rank - step) % p], chunks[(rank - step - 1) % p]
        comm.Sendrecv(outgoing, dest=right, recvbuf=incoming, source=left)
    return chunks.reshape(-1)
    ### END SOLUTION


# %% tags=["check"]
check("03.all_gather")

# %% [markdown]
# Stuck? `hint("03.all_gather")` gives one hint at a time, and `solution("03.all_gather")` shows a worked solution. You can also move on: no later cell needs your function.
#
# ### Exercise 2: reduce-scatter round a ring
#
# Now the other half. Write `reduce_scatter(comm, array)`. It **returns** this rank's chunk of the sum, in a new array, and does not change `array`, which may have any length. Split it into chunks as `np.array_split(array, comm.size)` does.
#
# Note one difference: the ring above leaves chunk r + 1 on rank r, but here, as in MPI, rank r must return **chunk r**. Which chunk must each rank send first?
#
# Each rank may send only to its neighbour, and no more bytes than necessary: the check counts them.


# %% tags=["exercise"] exercise="03.reduce_scatter"
# %%px
def reduce_scatter(comm, array):
    """Return chunk r of the sum of all ranks' arrays on rank r."""
    ### BEGIN SOLUTION
    p, rank = comm.size, comm.rank
    left, right = (rank - 1) % p, (rank + 1) % p
    chunks = np.array_split(array.copy(), p)
    for step in range(p - 1):
        outgoing, mine = chunks[(rank - step - 1) % p], chunks[(rank - step - 2) % p]
        received = np.empty_like(mine)
        comm.Sendrecv(outgoing, dest=right, recvbuf=received, source=left)
        mine += received
    return chunks[rank]
    ### END SOLUTION


# %% tags=["check"]
check("03.reduce_scatter")

# %% [markdown]
# Stuck? `hint("03.reduce_scatter")`, `solution("03.reduce_scatter")`.
#
# ## 6. Break it on purpose: a published ring
#
# PyTorch's own tutorial on distributed programs used to end with a ring all-reduce that ran without an error but never produced the sum. The bug was reported in December 2019 and fixed in June 2020 [2]. Here is the same algorithm in the style of this lesson. Whole arrays are meant to travel round the ring, and `total` is meant to accumulate the sum. Two buffers take turns: in each step, one is sent and the other receives.


# %%
# %%px
def published_ring(comm, array, result):
    left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    one, other = np.zeros_like(array), np.zeros_like(array)
    total = array.copy()
    for step in range(comm.size - 1):
        if step % 2 == 0:
            request = comm.Isend(one, dest=right)
            comm.Recv(other, source=left)
            total += result
        else:
            request = comm.Isend(other, dest=right)
            comm.Recv(one, source=left)
            total += array
        request.wait()
    result[:] = total


# %% [markdown]
# **Predict.** The ranks hold 1, 2, 3 and 4, and `result` starts as 0 on each. What are the four results? Give a list.

# %%
prediction = None

# %%
# %%px
result = np.zeros(1, dtype=int)
published_ring(comm, np.array([rank + 1]), result)
result = int(result[0])
print(result)

# %%
compare(prediction, cluster.view["result"])
assert cluster.view["result"] == [2, 4, 6, 8], "twice its own number, and nothing of anybody else's"

# %% [markdown]
# The result should be 10 on every rank.
#
# - **Symptom.** There is no error and no hang. Messages of the right size go round, and the result has the right shape and a plausible magnitude. A network trained with this function even learns: each replica follows its own gradient, doubled, and ignores those of the others.
# - **Diagnosis.** A short test would have found the fault: an input whose sum is known, and an `assert` on *all* ranks. `is_exact`, at the top of this lesson, is such a test.
# - **Fix.** You write it:
#
# ### Exercise 3: fix the published ring
#
# Write `mended_ring(comm, array)`. It **returns** the sum in a new array and does not change `array`. Keep the idea: in each of p - 1 steps, every rank sends a whole array to its neighbour and adds the one that it receives. Ask yourself two questions: *what* travels, and *what* is added?


# %% tags=["exercise"] exercise="03.mended_ring"
# %%px
def mended_ring(comm, array):
    """Return the sum of all ranks' arrays, by passing them round the ring."""
    ### BEGIN SOLUTION
    left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    outgoing, incoming = array.copy(), np.empty_like(array)
    total = array.copy()
    for _ in range(comm.size - 1):
        request = comm.Isend(outgoing, dest=right)
        comm.Recv(incoming, source=left)
        request.wait()
        total += incoming
        outgoing, incoming = incoming, outgoing
    return total
    ### END SOLUTION


# %% tags=["check"]
check("03.mended_ring")

# %% [markdown]
# Stuck? `hint("03.mended_ring")`, `solution("03.mended_ring")`.
#
# The fixed ring gives the right sum, but it is not what people call a *ring all-reduce*. Each rank sends (p - 1) n bytes, which is p/2 times as many as necessary: 2 (p - 1)/p n are enough.
#
# ### A place to stop
#
# You have built the all-reduce that most training runs use for large gradients. You have shown that the number of bytes that each rank sends hardly grows with the number of ranks, and you have found the fault in a published ring. That is enough to go on to lesson 04. The second half (sections 7 to 12) is more demanding. It covers an algorithm with few steps *and* few bytes, the running times of all five algorithms, the array sizes at which one overtakes another, and the reason why their results may differ in the last digit. A workshop may skip this half.
#
# ## 7. Rabenseifner: few steps *and* few bytes
#
# Recursive doubling takes few steps, and the ring moves few bytes. Can one algorithm do both? Rolf Rabenseifner found a way [3]. Partners are at distance 1, 2, 4, ..., as in recursive doubling. But in each step the two partners halve the part of the array on which they work, and each adds up only *its* half. After lg p steps, every rank holds 1/p of the sum. This is a reduce-scatter by *recursive halving*. The same steps in reverse, copying instead of adding, make up the all-gather.

# %%
all_reduce_steps("rabenseifner")


# %%
# %%px
def all_reduce_rabenseifner(comm, array):
    part, distance, path = array, 1, []
    while distance < comm.size:  # reduce-scatter by halving
        partner = comm.rank ^ distance
        lower, upper = np.array_split(part, 2)
        keep, give = (upper, lower) if comm.rank & distance else (lower, upper)
        received = np.empty_like(keep)
        comm.Sendrecv(give, dest=partner, recvbuf=received, source=partner)
        keep += received
        path.append((partner, keep, give))
        part, distance = keep, 2 * distance
    for partner, keep, give in reversed(path):  # all-gather by doubling
        comm.Sendrecv(keep, dest=partner, recvbuf=give, source=partner)


assert is_exact(all_reduce_rabenseifner, comm)

# %% [markdown]
# `comm.rank & distance` tests one bit of the rank. This bit is set in one of the two partners and not in the other, so one keeps the upper half and the other the lower half. Like recursive doubling, the algorithm works only if the number of ranks is a power of two. Otherwise, fold first.

# %% [markdown]
# ### Exercise 4: any number of ranks
#
# Recursive doubling failed on three ranks (section 4). Now fix that. Write `sum_over_all(comm, array)`, which uses recursive doubling and works for any number p of ranks. It **returns** the sum in a new array and does not change `array`.
#
# The usual way is to *fold*. Let m be the largest power of two that is not larger than p. Each of the p - m extra ranks first gives its numbers to another rank and stands aside. The remaining m ranks do recursive doubling, and then send the result to the ranks that stood aside. So lg m + 2 steps are enough, or lg p if p is a power of two.
#
# The check rehearses your function on 1 to 8 ranks, although you have only four running. The rehearsal is strict: a `Send` always waits for its receiver, as it does in MPI for large messages.


# %% tags=["exercise"] exercise="03.any_world_size"
# %%px
def sum_over_all(comm, array):
    """Return the sum of all ranks' arrays on every rank, for any number of ranks."""
    ### BEGIN SOLUTION
    rank, p = comm.rank, comm.size
    m = 2 ** (p.bit_length() - 1)
    total, received = array.copy(), np.empty_like(array)
    if rank >= m:  # stand aside
        comm.Send(total, dest=rank - m)
        comm.Recv(total, source=rank - m)
        return total
    stands_aside = rank + m < p  # is there somebody who does so for me?
    if stands_aside:
        comm.Recv(received, source=rank + m)
        total += received
    distance = 1
    while distance < m:
        partner = rank ^ distance
        comm.Sendrecv(total, dest=partner, recvbuf=received, source=partner)
        total += received
        distance *= 2
    if stands_aside:
        comm.Send(total, dest=rank + m)
    return total
    ### END SOLUTION


# %% tags=["check"]
check("03.any_world_size")

# %% [markdown]
# Stuck? `hint("03.any_world_size")`, `solution("03.any_world_size")`. Of the five exercises, this one has the most cases to consider.
#
# ## 8. Count them all
#
# **Predict.** Each of the five algorithms sums arrays of 8,192 bytes on four ranks. What is the largest number of bytes that any one rank sends in any of them? Give a number.

# %%
prediction = None

# %%
# %%px
ours = {
    "naive": all_reduce_naive,
    "tree": all_reduce_tree,
    "recursive doubling": all_reduce_doubling,
    "ring": all_reduce_ring,
    "Rabenseifner": all_reduce_rabenseifner,
}
counted = {}
for name, all_reduce in ours.items():
    traffic = traffic_of(all_reduce, 1024)
    counted[name] = traffic.sent.messages, traffic.sent.bytes

# %%
counted = cluster.view["counted"]
print("                    messages sent   bytes sent by rank 0, 1, 2, 3     by all   formula")
for name in cost.ALGORITHMS:
    messages, sent = zip(*(on_rank[name] for on_rank in counted), strict=True)
    predicted = cost.cost(name, 4, 8192)
    assert (sum(messages), sum(sent)) == (predicted.messages_total, predicted.bytes_total)
    each = " ".join(f"{count:6,}" for count in sent)
    print(f"{name:18} {messages!s:>14}   {each} {sum(sent):12,} {predicted.bytes_total:9,.0f}")
compare(prediction, max(sent for on_rank in counted for _, sent in on_rank.values()))

# %% [markdown]
# The traffic meter *measured* the messages and the bytes; the "formula" column is *predicted*. The totals agree to the byte. It may seem strange that four of the five algorithms move the same number of bytes **in all**, 6 n. They differ in how evenly these bytes are spread over the ranks, and in how many messages travel at the same time. In the naive algorithm, one rank sends half of all bytes. Only recursive doubling moves more, which is the price of not having to send anything back.
#
# The time depends on the longest path through the messages, that is, the longest chain in which each message has to wait for the one before. For p ranks (a power of two) and n bytes:
#
# | | steps | bytes on the longest path | bytes added on this path |
# |---|---|---|---|
# | naive | 2 (p - 1) | 2 (p - 1) n | (p - 1) n |
# | tree | 2 lg p | 2 lg p · n | lg p · n |
# | recursive doubling | lg p | lg p · n | lg p · n |
# | ring | 2 (p - 1) | 2 (p - 1)/p · n | (p - 1)/p · n |
# | Rabenseifner | 2 lg p | 2 (p - 1)/p · n | (p - 1)/p · n |
#
# A rehearsal of our five functions confirms the number of steps:

# %%
# %%px
for p in (2, 8, 32):
    lg = p.bit_length() - 1
    formula = [2 * (p - 1), 2 * lg, lg, 2 * (p - 1), 2 * lg]
    assert [steps_of(all_reduce, p) for all_reduce in ours.values()] == formula

# %% [markdown]
# `course_lib.parallel.all_reduces` has all five algorithms for PyTorch tensors of any length and dtype, for any operation and any number of ranks. They send the same messages as our functions:

# %%
# %%px
from datetime import timedelta

from course_lib.parallel import all_reduces

if not dist.is_initialized():
    dist.init_process_group("mpi4py", init_method="mpi://", timeout=timedelta(seconds=30))
for name, (messages, sent) in counted.items():
    algorithm = all_reduces.ALGORITHMS[name if name != "Rabenseifner" else "rabenseifner"]
    tensor = (rank + 1) * torch.arange(1024)
    with Traffic() as traffic:
        algorithm.all_reduce(tensor)
    assert torch.equal(tensor, 10 * torch.arange(1024))
    assert (traffic.sent.messages, traffic.sent.bytes) == (messages, sent)

# %% [markdown]
# ## 9. What will it cost? α, β and γ
#
# In lesson 01, a message of n bytes took $\alpha + \beta n$ seconds. An all-reduce needs a third number: γ, the time that additions take, in seconds per byte. So
#
# $$T = \text{steps} \cdot \alpha + \text{bytes on the path} \cdot \beta + \text{bytes added} \cdot \gamma$$
#
# For the ring: $T = 2(p-1)\,\alpha + 2\,\frac{p-1}{p}\,n\,\beta + \frac{p-1}{p}\,n\,\gamma$. This is the *alpha-beta-gamma model* [3]. It assumes that a rank can send to one partner and receive from one partner at the same time, and that different pairs of ranks do not disturb each other.
#
# Let us measure the three numbers. In lesson 01, two ranks played ping-pong while the others slept. In an all-reduce all four ranks are busy, so we measure with all four busy. Each rank swaps messages with the rank at distance p/2. If your ranks are on two machines, these messages cross the network, as the slowest messages of an all-reduce do. We also let all four ranks add at the same time. The time of a round is that of its slowest rank, and we keep the fastest of many rounds.


# %%
# %%px
def seconds_of(action, rounds):
    """Return the time of the slowest rank, in the round that nothing disturbed."""
    times = np.zeros(rounds)
    for i in range(rounds):
        comm.Barrier()
        start = time.perf_counter()
        action()
        times[i] = time.perf_counter() - start
    comm.Allreduce(MPI.IN_PLACE, times, op=MPI.MAX)
    return float(times.min())


SWAPS = 10  # in a row, because ranks leave the barrier one after another
partner = (rank + world_size // 2) % world_size


def swap(array, received):
    for _ in range(SWAPS):
        comm.Sendrecv(array, dest=partner, recvbuf=received, source=partner)


sizes = [8 * 4**k for k in range(10)]  # bytes: 8, 32, ... 2 MiB
buffers = [(np.zeros(size // 8), np.zeros(size // 8)) for size in sizes]

# %%
# %%px
swapping = [seconds_of(partial(swap, *pair), 30) / SWAPS for pair in buffers]
adding = [seconds_of(partial(np.add, *pair, out=pair[0]), 30) for pair in buffers]

# %% tags=["nbval-ignore-output"]
from rank_by_rank.lesson_03.fit import fit_link

sizes = cluster.view["sizes"][0]
messages = fit_link(sizes, cluster.view["swapping"][0])
additions = fit_link(sizes, cluster.view["adding"][0])
alpha, beta, gamma = messages["alpha"], messages["beta"], additions["beta"]
for name, value, (low, high) in [
    ("alpha", alpha, messages.interval("alpha")),
    ("beta ", beta, messages.interval("beta")),
    ("gamma", gamma, additions.interval("beta")),
]:
    print(f"{name} = {value:.3g} s (95% interval {low:.3g} to {high:.3g})")
print(f"bandwidth {1 / beta / 1e9:.1f} GB/s, additions {1 / gamma / 1e9:.1f} GB/s")
assert min(alpha, beta, gamma) > 0

# %% [markdown]
# α is in seconds per message, β and γ in seconds per byte; all are *measured here*. The intervals come from the fit: they show how well a straight line describes the points. For the reasons given in lesson 01 (buffers and caches), the fit is only rough, and rougher still on a busy machine.
#
# Now for the five algorithms. First, let us predict their times from these three numbers alone.

# %% tags=["nbval-ignore-output"]
link = cost.Link(alpha, 1 / beta, 1 / gamma)
print("predicted, us        8 bytes     32 KiB      2 MiB")
for name in cost.ALGORITHMS:
    predicted = [cost.cost(name, 4, n).seconds(link) for n in (8, 2**15, 2**21)]
    print(f"{name:18}" + "".join(f"{1e6 * seconds:11,.0f}" for seconds in predicted))
assert choosing.cheapest(4, 8, link) == "recursive doubling"

# %% [markdown]
# **Predict.** Which of the five will turn out to be the fastest for 2 MiB when you measure them on your machine? Give its name.

# %%
prediction = None

# %%
# %%px
measured = {
    name: [seconds_of(partial(all_reduce, comm, pair[0]), 20) for pair in buffers]
    for name, all_reduce in ours.items()
}

# %% tags=["nbval-ignore-output"]
measured = {name: cluster.view["measured"][0][name] for name in cost.ALGORITHMS}
compare(prediction, min(measured, key=lambda name: measured[name][-1]))
curves = {name: [cost.cost(name, 4, size).seconds(link) for size in sizes] for name in measured}
figures.measured_and_predicted(
    sizes,
    measured,
    curves,
    xlabel="size of the array (bytes)",
    title="Five all-reduces of 4 ranks",
    alt="Time of five all-reduces over the size of the array, both axes logarithmic. Points: "
    "measured; lines: predicted from alpha, beta and gamma. All are flat up to some kilobytes "
    "and then rise. The line of recursive doubling is lowest on the left; the points of naive and "
    "tree lie well below their lines.",
)

# %% [markdown]
# The points are *measured here*, and the lines are *predicted*. Where a line misses its points, check the model's assumptions:
#
# - In recursive doubling, the ring and Rabenseifner's algorithm, every rank works in every step, as all four did while α was measured. The points of these three are nearer to their lines, although a factor of three in either direction is no surprise.
# - The naive algorithm and the tree are clearly faster than predicted. Most ranks only wait, which leaves the cores to the ranks that work. And MPI buffers small arrays, so their senders need not wait for the receiver. "Links" that share one machine's memory and cores *do* disturb each other.
#
# So on one machine the model is only a rough guide, and you cannot rely on the order that it predicts either: where memory is shared, even the naive algorithm may win for large arrays. The model was made for networks, so let us emulate one.
#
# ## 10. The crossover, predicted and then measured
#
# `emulated_link` makes every message between ranks take at least as long as it would on a link with the latency and the bandwidth that you set. Only the time is emulated; the messages are real. With `one_port=True`, a rank sends one message at a time and receives one at a time, as the model assumes.
#
# When the latency is much larger than everything else, a clock can *count steps*. Let each message take 40 ms, whatever its size. **Predict.** How many latencies does the ring take on four ranks, and how many does Rabenseifner's algorithm take? Give a list of two numbers.

# %%
prediction = None

# %%
# %%px
from torch_mpi4py import emulated_link

latency, tiny = 0.04, np.zeros(8)  # seconds
steps = {}
with emulated_link(latency=latency, bandwidth=1e9, one_port=True):
    for name, all_reduce in ours.items():
        steps[name] = int(seconds_of(partial(all_reduce, comm, tiny), 6) / latency)
print(steps)

# %%
steps = cluster.view["steps"][0]
compare(prediction, [steps["ring"], steps["Rabenseifner"]])
assert [steps[name] for name in cost.ALGORITHMS] == [6, 4, 2, 6, 4]
assert all(steps[name] == cost.cost(name, 4, 64).steps for name in steps)

# %% [markdown]
# The numbers of steps, *measured here* with a clock, agree with the formulas 2 (p - 1), 2 lg p, lg p, 2 (p - 1) and 2 lg p. (`int` cuts off the additional time for computing and for the real messages, which is far less than 40 ms.)
#
# ### Exercise 5: where do they cross?
#
# Recursive doubling takes fewer steps, and the ring moves fewer bytes. So recursive doubling is faster for small arrays, the ring is faster for large ones, and at some size n* they are equally fast. Write `crossover_bytes(p, alpha, beta, gamma)`. For p ranks (p is a power of two), it returns n* in bytes, or `math.inf` if the ring never overtakes. Use the table in section 8. (This function runs in the notebook, not on the ranks.)


# %% tags=["exercise"] exercise="03.crossover"
def crossover_bytes(p, alpha, beta, gamma):
    """Return the bytes at which recursive doubling and the ring take equally long."""
    ### BEGIN SOLUTION
    import math

    lg = math.log2(p)
    fewer_steps = (2 * (p - 1) - lg) * alpha
    more_seconds_a_byte = (lg - 2 * (p - 1) / p) * beta + (lg - (p - 1) / p) * gamma
    return fewer_steps / more_seconds_a_byte if more_seconds_a_byte > 0 else math.inf
    ### END SOLUTION


# %% tags=["check"]
check("03.crossover")

# %% [markdown]
# Stuck? `hint("03.crossover")`, `solution("03.crossover")`.
#
# Now measure the crossover, on an emulated network that is slow enough to show it: 5 ms and 25 MB/s. Additions take almost no time by comparison, so set γ to 0.
#
# **Predict.** With p = 4, α = 5 ms and 1/β = 25 MB/s, at what array size, in bytes, does the ring overtake recursive doubling? Work it out from the table, or call your function.

# %%
prediction = None

# %%
# %%px
long_sizes = [12_800 * 4**k for k in range(5)]  # bytes: 12.8 kB ... 3.3 MB
long_arrays = [np.zeros(size // 8) for size in long_sizes]
on_slow_link = {}
with emulated_link(latency=5e-3, bandwidth=25e6, one_port=True):
    for name, all_reduce in ours.items():
        on_slow_link[name] = [
            seconds_of(partial(all_reduce, comm, array), 3) for array in long_arrays
        ]
fast, slow = on_slow_link["recursive doubling"][0], on_slow_link["naive"][0]
assert fast < slow, "2 steps against 6, for short arrays"
assert on_slow_link["ring"][-1] < on_slow_link["tree"][-1], "1.5 n bytes against 4 n"

# %% tags=["nbval-ignore-output"]
import numpy as np

network = cost.Link(latency=5e-3, bandwidth=25e6)
long_sizes, found = cluster.view["long_sizes"][0], cluster.view["on_slow_link"][0]
found = {name: found[name] for name in cost.ALGORITHMS}
# The logarithm of a ratio is 0 where both are equally fast; between two sizes take a straight line.
ratios = np.log(np.array(found["recursive doubling"]) / np.array(found["ring"]))
crossing = float(np.exp(np.interp(0, ratios, np.log(long_sizes))))
my_crossover = yours_or_solution("03.crossover")  # your function, or the worked solution
expected = my_crossover(4, network.latency, 1 / network.bandwidth, 0)
print(f"the ring overtakes at {expected:,.0f} bytes (predicted), {crossing:,.0f} (measured here)")
compare(prediction, crossing, within=0.5, unit="bytes")

# %% tags=["nbval-ignore-output"]
curves = {name: [cost.cost(name, 4, n).seconds(network) for n in long_sizes] for name in found}
figures.measured_and_predicted(
    long_sizes,
    found,
    curves,
    xlabel="size of the array (bytes)",
    title="Five all-reduces on an emulated link of 5 ms and 25 MB/s",
    alt="Time of five all-reduces on four ranks over the size of the array, both axes logarithmic. "
    "The measured points lie on the predicted lines. On the left recursive doubling is lowest, "
    "then tree and Rabenseifner, then naive and ring; on the right Rabenseifner and ring are "
    "lowest, then recursive doubling, tree and naive. Recursive doubling and ring cross.",
)

# %% [markdown]
# Here the points lie on the lines: three numbers and a table predict the times of five programs. Look at the two ends of the picture first, then at the middle.
#
# - **Short arrays**: all lines are flat, ordered by the number of steps: 2, 4, 4, 6, 6. Recursive doubling wins.
# - **Long arrays**: all lines rise in the same way, ordered by the bytes on the longest path: 1.5 n, 1.5 n, 2 n, 4 n, 6 n. The ring and Rabenseifner's algorithm win.
# - **Between** them the lines cross. Recursive doubling and the ring cross where 4 α = 0.5 n β, that is, at n* = 8 α/β = 1,000,000 bytes. The measured crossing comes somewhat later, because sending the real messages and waking the ranks add to the latency of each step, and the ring takes three times as many steps. The two lines also cross at a very small angle, so a change of one per cent in one of the times moves the crossing by several per cent.
#
# The gradient of LeNet takes up 246,824 bytes, and that of ResNet-50 about 100 MB. So on *this* network LeNet lies to the left of the crossover, and ResNet-50 far to the right.
#
# ## 11. The library's own
#
# **Predict.** By what factor is MPI's own all-reduce faster than the best of our five algorithms, for 8 bytes and for 2 MiB? Give a list of two numbers.

# %%
prediction = None

# %%
# %%px
library = [seconds_of(partial(comm.Allreduce, MPI.IN_PLACE, array), 20) for array, _ in buffers]
with Traffic() as traffic:
    comm.Allreduce(MPI.IN_PLACE, np.zeros(1024))
handed_over = traffic.collectives["Allreduce"].bytes
print(f"messages seen: {traffic.sent.messages}, bytes handed to the library: {handed_over:,}")
assert (traffic.sent.messages, handed_over) == (0, 8192)

# %% tags=["nbval-ignore-output"]
library = np.array(cluster.view["library"][0])
best = np.min(list(measured.values()), axis=0)
faster = best / library
compare(prediction, [round(float(faster[i]), 1) for i in (0, -1)], within=0.3)
figures.measured_and_predicted(
    sizes,
    {"the best of our five": best, "MPI's own": library},
    xlabel="size of the array (bytes)",
    title="The best of ours and the library's own",
    alt="Time of the fastest of our five all-reduces and of MPI's own over the size of the array, "
    "both axes logarithmic, all points measured. MPI's own is lower for short arrays.",
)

# %% [markdown]
# Both lines are *measured here*. For short arrays, the library saves the time that Python takes in each step. For long arrays, this time hardly matters, and NumPy adds as fast as C does. So where all ranks share memory, our algorithms may come close to the library or, on a busy machine, even overtake it. The library has no better formula: it uses the algorithms of this lesson.
#
# You cannot tell from outside which one the library uses. The messages that it sends inside a collective are hidden, so the traffic meter shows only the data that you hand to the collective. Libraries choose an algorithm by the size of the array and the number of ranks. The next cell tabulates this choice for our five.

# %%
columns = {"1 KiB": 2**10, "64 KiB": 2**16, "1 MiB": 2**20, "64 MiB": 2**26}
print("ranks " + "".join(f"{name:>20}" for name in columns))
for p in (4, 6, 8, 12, 1000, 1024):
    chosen = [choosing.cheapest(p, n, network) for n in columns.values()]
    print(f"{p:5} " + "".join(f"{name:>20}" for name in chosen))
assert choosing.cheapest(8, 2**26, network) == "Rabenseifner"
assert choosing.cheapest(6, 2**26, network) == "ring"

# %% [markdown]
# The table shows which of the five is *predicted* to be the fastest on the slow network. For powers of two from four upwards, Rabenseifner's algorithm beats the ring at every size, because it moves the same number of bytes in fewer steps. For other numbers of ranks, folding adds messages of whole arrays. Then the ring wins for long arrays, unless there are so many ranks that its steps cost more than the folding (as with 1,000). Real libraries do much the same (*published*). MPICH used recursive doubling up to 2 KiB and Rabenseifner's algorithm above that. Since version 3.4 it has looked the algorithm up in a table. Unless the table was tuned for the machine, it selects recursive doubling only for the tiniest arrays: those of up to 8 bytes, or with fewer numbers than there are ranks [4]. NCCL chooses between rings and pairs of trees [5].
#
# If Rabenseifner's algorithm is so good, why does everyone know the ring? The formulas leave out some properties of real networks. In a ring, each rank communicates only with its two neighbours, so if neighbours in the ring are neighbours in the network, no two messages share a cable in the same direction. Partners at distance p/2, by contrast, all send across the middle of the network at the same time. The ring also works with any number of ranks. And its chunks can be split into smaller pieces that follow each other, as in a pipeline.
#
# In all five algorithms, the ranks do the adding. In newer networks, the switches can do it. Each rank sends its array of n bytes to a switch, which adds up the arrays and sends the n bytes of the result to all ranks. So a rank sends about n bytes instead of nearly 2 n, and the number of steps does not grow with the number of ranks. NVIDIA calls this SHARP between machines [9] and NVLS (NVLink SHARP) between the GPUs of one machine. NCCL uses both where the hardware supports them.
#
# ## 12. What, not how: the last digit
#
# Why *may* a library choose? The MPI standard defines what an all-reduce does and leaves open how it is done. It assumes that the operation is associative, that is, (a + b) + c = a + (b + c), and that its predefined operations, such as the sum, are commutative as well. Integer addition is both. Floating-point addition is commutative, but only approximately associative.
#
# **Predict.** Each rank has a float32 array of four equal numbers: 100,000,000 on rank 0, 1 on rank 1, -100,000,000 on rank 2, and 1 on rank 3. Each exact sum is 2. What does rank 0 hold after the naive all-reduce, after recursive doubling, and after the ring? Give a list of three lists. (Above 16,777,216, float32 has no odd numbers: 100,000,000 + 1 is 100,000,000.)

# %%
prediction = None

# %%
# %%px
sums = []
for name in ("naive", "recursive doubling", "ring"):
    array = np.full(4, (1e8, 1, -1e8, 1)[rank], dtype=np.float32)
    ours[name](comm, array)
    sums.append(array.tolist())
print(sums)

# %%
compare(prediction, cluster.view["sums"][0])
assert cluster.view["sums"] == [[[1, 1, 1, 1], [0, 0, 0, 0], [1, 0, 1, 0]]] * 4

# %% [markdown]
# There are three answers, and none of them is 2. The ring even gives two different sums of the same four numbers: each chunk starts at a different rank, so its numbers are added in a different order. No algorithm made a mistake. Only the order of the additions differs, and each addition rounds its result.
#
# With gradients the effect is less dramatic, because no huge numbers cancel. But the bits differ.

# %%
# %%px
own = np.random.default_rng(rank).standard_normal(10_000).astype(np.float32)
everyones = np.array(comm.allgather(own), dtype=np.float64)
bound = (world_size - 1) * 2.0**-24 * np.abs(everyones).sum(axis=0)  # 2**-24: half a last digit
results = {}
for name, all_reduce in ours.items():
    array = own.copy()
    all_reduce(comm, array)
    assert len(set(comm.allgather(array.tobytes()))) == 1, "the same bits on all ranks"
    assert np.all(np.abs(array - everyones.sum(axis=0)) <= 1.01 * bound)
    results[name] = array
differ = {name: int(np.sum(array != results["naive"])) for name, array in results.items()}
print(differ)
assert differ["tree"] > 0
assert differ["ring"] > 0

# %% [markdown]
# The output shows, for each algorithm, how many of its 10,000 sums differ from the naive ones, in the last digit or two. Every sum is within the theoretical bound for p - 1 additions: the error of each addition is at most $2^{-24}$ times the sum of the magnitudes. (The factor 1.01 allows for second-order errors.)
#
# The check for equal bits is the important one: **each algorithm gives the same bits to all ranks.** In recursive doubling, each rank adds for itself, but partners add the same two numbers, and a + b = b + a to the last bit. The other four compute each sum once and then copy it. So replicas of a network that start equal stay equal. Lesson 05 builds on this.
#
# If you change the number of ranks, the library, the bucket size or the network, the algorithm may change, and with it the last digit. After a thousand training steps, the weights are then different, but just as good. Do not promise bit-identical results across such changes, and do not test for them. The MPI standard *requires* that an all-reduce gives all ranks the same result, which is what replicas need. It only recommends that the same call, on the same ranks, gives the same result again [6].
#
# ## Recap
#
# | | steps | bytes sent by the busiest rank | any p? | good for |
# |---|---|---|---|---|
# | naive | 2 (p - 1) | (p - 1) n | yes | explanations; two ranks |
# | tree | 2 lg p | lg p · n | yes | short arrays, any p |
# | recursive doubling | lg p | lg p · n | with folding | short arrays |
# | ring | 2 (p - 1) | 2 (p - 1)/p · n | yes | long arrays, any network, any p |
# | Rabenseifner | 2 lg p | 2 (p - 1)/p · n | with folding | long arrays, p a power of two |
#
# - Time ≈ steps · α + bytes on the path · β + bytes added · γ. For short arrays, count steps. For long arrays, count bytes.
# - An all-reduce is a reduce-scatter followed by an all-gather. As long as the ranks do the adding, the busiest rank sends at least 2 (p - 1)/p n bytes.
# - Test with small integers, on all ranks, with lengths that do not divide evenly.
# - All ranks get the same bits. Two algorithms may give different bits.
#
# **Next:** lesson 04 turns to the numbers that are added up, the gradients, and shows why training needs only their sum.
#
# ## References and further reading
#
# 1. P. Patarasuk and X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", *Journal of Parallel and Distributed Computing* 69(2), 117–124, 2009.
# 2. Lyken17, "[Tutorial]: Wrong example of Our Own Ring-Allreduce", [pytorch/pytorch issue 31572](https://github.com/pytorch/pytorch/issues/31572), 2019; fixed by [pytorch/tutorials pull request 1039](https://github.com/pytorch/tutorials/pull/1039), 2020. The function in section 6 does the same, written differently.
# 3. R. Thakur, R. Rabenseifner and W. Gropp, "Optimization of Collective Communication Operations in MPICH", *International Journal of High Performance Computing Applications* 19(1), 49–66, 2005. The table in section 8 is from its section 4; the model is from its section 3.
# 4. MPICH up to version 3.3: parameter `MPIR_CVAR_ALLREDUCE_SHORT_MSG_SIZE`, 2048 bytes; the reasons are in [3]. Newer versions: `src/mpi/coll/coll_selection.json` in [the source of MPICH](https://github.com/pmodels/mpich).
# 5. S. Jeaugey, "Massively Scale Your Deep Learning Training with NCCL 2.4", NVIDIA technical blog, 2019.
# 6. MPI Forum, *MPI: A Message-Passing Interface Standard, Version 5.0*, 2025, chapter "Collective Communication", sections "Reduce" (advice to implementors) and "All-Reduce".
# 7. E. Chan, M. Heimlich, A. Purkayastha and R. van de Geijn, "Collective communication: theory, practice, and experience", *Concurrency and Computation: Practice and Experience* 19(13), 1749–1783, 2007.
# 8. N. J. Higham, *Accuracy and Stability of Numerical Algorithms*, 2nd edition, SIAM, 2002, chapter 4: summation, and how the order of the terms affects the error.
# 9. R. L. Graham and others, "Scalable Hierarchical Aggregation Protocol (SHArP): A Hardware Architecture for Efficient Data Reduction", *First International Workshop on Communication Optimizations in HPC (COMHPC)*, 1–10, 2016.
