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
# # 02 Collectives
#
# **The one idea.** A *collective* is a call that all ranks of a group make together, and it is fully described by which rank ends up with which data. How the messages travel is left to the library, and that freedom makes collectives fast.
#
# **You will be able to**
# - name the nine collectives that deep learning uses, and say which rank holds what before and after each of them;
# - call each of them in mpi4py and in `torch.distributed`;
# - build broadcast and scatter from `send` and `recv`, and explain what a library does better;
# - make sub-groups, and distinguish a rank's number in the world from its number in a group;
# - recognise mismatched collectives: those that hang and, worse, those that do not.
#
# **Prerequisites:** lesson 01: ranks, `send` and `recv`, deadlock.
#
# **Time.** The notebook runs in about 20 s (*measured here*: 4 ranks on 2 cores). Allow 120 minutes to work through it, including its five exercises. A workshop can leave out section 8, which is history.

# %%
from course_lib.cluster import start_cluster
from course_lib.teaching import check, compare, figures, hint, progress, solution

# %% tags=["nbval-ignore-output"]
cluster = start_cluster(n=4)

# %% [markdown]
# The names `rank`, `world_size`, `comm`, `np`, `torch` and `dist` (`torch.distributed`) are already defined on every rank. `comm` is mpi4py's communicator over all ranks. For `torch.distributed`, you make a *process group*, which here contains the same ranks and also runs on MPI, but has PyTorch's interface.

# %%
# %%px
from datetime import timedelta

from mpi4py import MPI

import torch_mpi4py  # makes the backend "mpi4py" known to torch.distributed

if not dist.is_initialized():
    dist.init_process_group("mpi4py", init_method="mpi://", timeout=timedelta(seconds=30))
assert (dist.get_rank(), dist.get_world_size()) == (rank, world_size) == (comm.rank, comm.size)

# %% [markdown]
# ## 1. Broadcast: one gives to all
#
# In the pictures, each row is a rank and each block is data. A block's colour and letter show *whose* data it is: A is rank 0's, B is rank 1's, and so on. The left side shows what the ranks hold before the call; the right side shows what they hold after it.

# %%
figures.collective("broadcast")

# %% [markdown]
# The *root* is the rank that gives its data to the others. Every rank makes the same call and names the same root. No rank has to say whether it sends or receives, because that follows from its number.
#
# **Predict.** Each rank writes its own note. Then all ranks call `comm.bcast(note, root=2)`. What does rank 0 hold afterwards? Replace `None` with your answer, as a string.

# %%
prediction = None

# %%
# %%px
note = f"note of rank {rank}"
note = comm.bcast(note, root=2)
print(note)

# %%
notes = cluster.view["note"]
compare(prediction, notes[0])
assert notes == ["note of rank 2"] * 4

# %% [markdown]
# Every rank now has rank 2's note, and the notes that the others passed in were ignored. `bcast` (lower case) takes any Python object and pickles it, as `send` did in lesson 01.
#
# `torch.distributed` works on tensors *in place*. On the root, the tensor that you pass is the buffer to send from; on all other ranks, it is the buffer to receive into. So the tensor must have the right shape and dtype on every rank *before* the call.

# %%
# %%px
tensor = torch.full((3,), rank)
dist.broadcast(tensor, src=2)
print(tensor)
assert tensor.tolist() == [2, 2, 2]

# %% [markdown]
# This is how replicas of a network get the same initial weights: lesson 05 broadcasts them from rank 0.
#
# ### Exercise 1: build broadcast from send and recv
#
# Write `broadcast(comm, value, root)`, which returns the root's value on every rank. Use only `comm.send` and `comm.recv`. The function must work for any root and any number of ranks, so use `root` and `comm.size`. Send no more messages than necessary: no rank needs the value twice.


# %% tags=["exercise"] exercise="02.broadcast"
# %%px
def broadcast(comm, value, root):
    """Return the root's value on every rank of comm, by send and recv alone."""
    ### BEGIN SOLUTION
    if comm.rank != root:
        return comm.recv(source=root)
    for dest in range(comm.size):
        if dest != root:
            comm.send(value, dest=dest)
    return value
    ### END SOLUTION


# %% tags=["check"]
check("02.broadcast")

# %% [markdown]
# Stuck? `hint("02.broadcast")` gives one hint at a time, and `solution("02.broadcast")` shows a worked solution. You can also move on: no later cell needs your function.
#
# In the simplest version, the root sends to each of the others in turn.

# %%
figures.who_sends_to_whom([(0, 1), (0, 2), (0, 3)], title="root sends to all")

# %% [markdown]
# With `p` ranks, the root sends `p - 1` messages one after another, and the others mostly wait. A *tree* needs the same `p - 1` messages, but ranks that already have the data help to send it: with 8 ranks, the broadcast takes 3 rounds instead of 7. The result is the same; the caller notices only that the call is faster. Lesson 03 builds such trees.

# %%
figures.point_to_point(
    [(0, 1, "A", 0, 1), (0, 2, "A", 1, 2), (1, 3, "A", 1, 2)],
    [(1, 0, 1, "recv"), (2, 0, 2, "recv"), (3, 0, 2, "recv")],
    title="A tree: two rounds for four ranks",
)

# %% [markdown]
# ## 2. Scatter and gather: deal out, collect
#
# *Scatter* splits the root's data into one part per rank and deals out the parts in rank order. *Gather* is the reverse.

# %%
figures.collective("scatter")

# %%
figures.collective("gather")

# %% [markdown]
# In this lesson, part `i` of rank `r`'s data is the number `10 r + i`. So 31 is D1: part 1 of rank 3's data. Each number shows where it came from.
#
# **Predict.** Rank 1 is the root and scatters `[10, 11, 12, 13]`. What do ranks 0 to 3 get? Give a list of four numbers.

# %%
prediction = None

# %%
# %%px
parts = [10 * rank + i for i in range(world_size)]
mine = comm.scatter(parts if rank == 1 else None, root=1)
print(mine)

# %%
compare(prediction, cluster.view["mine"])
assert cluster.view["mine"] == [10, 11, 12, 13]

# %% [markdown]
# The root gives itself a part too: rank 1 keeps 11. Only the root's list counts, so the others pass `None`.
#
# A scatter followed by a gather must give back the original data. This is an *invariant*: a statement that holds whatever the numbers are. The lessons use such invariants to check their results.

# %%
# %%px
collected = comm.gather(mine, root=1)
print(collected)
assert collected == (parts if rank == 1 else None)

# %% [markdown]
# Now the same in `torch.distributed`. The root passes a list of tensors, and the others pass `None`. Every rank provides a tensor to receive into.

# %%
# %%px
part = torch.zeros(1, dtype=torch.int64)
dist.scatter(part, list(torch.tensor(parts).split(1)) if rank == 1 else None, src=1)

collected = [torch.zeros_like(part) for _ in range(world_size)] if rank == 1 else None
dist.gather(part, collected, dst=1)
print(part.item(), collected)
assert part.item() == 10 + rank
assert rank != 1 or torch.cat(collected).tolist() == parts

# %% [markdown]
# ### Exercise 2: build scatter from send and recv
#
# Write `scatter(comm, parts, root)`. On the root, `parts` is a list with one object per rank; on every other rank, it is `None`. Each rank returns its own part. Again, use only `comm.send` and `comm.recv`, and support any root and any number of ranks. The check also counts bytes, so do not send a rank data that it does not need.


# %% tags=["exercise"] exercise="02.scatter"
# %%px
def scatter(comm, parts, root):
    """Return part r of the root's list on rank r of comm, by send and recv alone."""
    ### BEGIN SOLUTION
    if comm.rank != root:
        return comm.recv(source=root)
    for dest, part in enumerate(parts):
        if dest != root:
            comm.send(part, dest=dest)
    return parts[root]
    ### END SOLUTION


# %% tags=["check"]
check("02.scatter")

# %% [markdown]
# Stuck? `hint("02.scatter")`, `solution("02.scatter")`.
#
# ## 3. Reduce and all-reduce: add up
#
# *Reduce* combines the data of all ranks, element by element, into one result on the root. *All-reduce* gives the result to every rank. The usual operation is the sum; others are maximum, minimum and product. In the pictures, a block striped in all colours is a sum over all ranks.

# %%
figures.collective("reduce")

# %%
figures.collective("all_reduce", world_size=3)

# %% [markdown]
# **Predict.** Ranks 0, 1 and 2 hold 1, 2 and 3, and sum these numbers with an all-reduce. Rank 3 holds 4 and does not take part. What does each rank hold afterwards? Give a list of four numbers.

# %%
prediction = None

# %%
# %%px
trio = comm.Split(color=0 if rank < 3 else 1, key=rank)  # ranks 0, 1, 2 - and rank 3 on its own
total = rank + 1
if rank < 3:
    total = trio.allreduce(total)
print(total)

# %%
compare(prediction, cluster.view["total"])
assert cluster.view["total"] == [1 + 2 + 3] * 3 + [4]

# %% [markdown]
# Ranks 0, 1 and 2 all hold 6, and rank 3's number did not change. `Split` made a communicator of these three ranks; section 6 explains how. Here is the same all-reduce in `torch.distributed`, again in place:

# %%
# %%px
group_of_three = dist.new_group([0, 1, 2])  # every rank makes this call, members or not
tensor = torch.tensor([rank + 1, 10 * (rank + 1)])
if rank < 3:
    dist.all_reduce(tensor, op=dist.ReduceOp.SUM, group=group_of_three)
print(tensor)
assert tensor.tolist() == ([6, 60] if rank < 3 else [4, 40])

# %% [markdown]
# All-reduce is at the heart of this course: giving every rank the sum of all ranks' gradients is what makes data-parallel training work (lesson 05).
#
# Reduce looks like half of an all-reduce, but there is a trap. `comm.reduce` returns `None` on every rank except the root. `dist.reduce` works in place, and afterwards the contents of the other ranks' tensors are undefined: they may be the old values or partial sums. Never read them.

# %%
# %%px
largest = comm.reduce(rank**2, op=MPI.MAX, root=0)
tensor = torch.tensor([rank + 1])
dist.reduce(tensor, dst=0)
print(largest, tensor.item() if rank == 0 else "(undefined here)")
assert largest == (9 if rank == 0 else None)
assert rank != 0 or tensor.item() == 1 + 2 + 3 + 4

# %% [markdown]
# ### Exercise 3: one mean over unequal shares
#
# The ranks have different amounts of data: rank 0 holds 1 value, rank 1 holds 2, and so on. Write `global_mean(values, group)`, where `values` is a one-dimensional float64 tensor of any length. On every rank, the function returns the mean over *all* values of *all* ranks in the group, as a Python float.
#
# You may make **one** `torch.distributed` collective call, to which each rank may contribute no more than 16 bytes. Pass `group=group` to the call: a library function must not assume that its caller means the whole world.


# %% tags=["exercise"] exercise="02.global_mean"
# %%px
def global_mean(values, group):
    """Return the mean of all ranks' values on every rank of the group."""
    ### BEGIN SOLUTION
    sum_and_count = torch.stack([values.sum(), torch.tensor(len(values), dtype=torch.float64)])
    dist.all_reduce(sum_and_count, group=group)
    total, count = sum_and_count.tolist()
    return total / count
    ### END SOLUTION


# %% tags=["check"]
check("02.global_mean")

# %% [markdown]
# Stuck? `hint("02.global_mean")`, `solution("02.global_mean")`. Lesson 04 sets the same trap, with gradients as the values.
#
# ## 4. All-gather, reduce-scatter, all-to-all
#
# In the next three collectives, all ranks are equal and there is no root. *All-gather* is a gather whose result goes to every rank.

# %%
figures.collective("all_gather")

# %%
# %%px
everyones = comm.allgather(10 * rank)
gathered = [torch.zeros(1, dtype=torch.int64) for _ in range(world_size)]
dist.all_gather(gathered, torch.tensor([10 * rank]))
print(everyones, torch.cat(gathered).tolist())
assert everyones == torch.cat(gathered).tolist() == [0, 10, 20, 30]

# %% [markdown]
# *Reduce-scatter* adds up the data as an all-reduce does, but rank r keeps only part r of the sum.

# %%
figures.collective("reduce_scatter")

# %% [markdown]
# **Predict.** Each rank r holds `[10 r, 10 r + 1, 10 r + 2, 10 r + 3]`. What is rank 2's part of the sum? Give one number.

# %%
prediction = None

# %%
# %%px
parts = [10 * rank + i for i in range(world_size)]
sendbuf, recvbuf = np.array(parts), np.zeros(1, dtype=int)
comm.Reduce_scatter_block(sendbuf, recvbuf)  # upper case: buffers, as with Send and Recv
my_sum = int(recvbuf[0])
print(my_sum)

# %%
everyones_sum = cluster.view["my_sum"]
compare(prediction, everyones_sum[2])
assert everyones_sum == [sum(10 * r + part for r in range(4)) for part in range(4)]

# %% [markdown]
# Part 2 of the sum, A2 + B2 + C2 + D2, is 2 + 12 + 22 + 32 = 68. Now the same in `torch.distributed`, with the invariant that lesson 03 is built on: **a reduce-scatter followed by an all-gather is an all-reduce**.

# %%
# %%px
tensor = torch.tensor(parts)
my_sum = torch.zeros(1, dtype=torch.int64)
dist.reduce_scatter(my_sum, list(tensor.split(1)))
all_sums = [torch.zeros(1, dtype=torch.int64) for _ in range(world_size)]
dist.all_gather(all_sums, my_sum)

dist.all_reduce(tensor)
print(torch.cat(all_sums).tolist(), tensor.tolist())
assert torch.equal(torch.cat(all_sums), tensor)

# %% [markdown]
# In an *all-to-all*, part r of every rank's data goes to rank r. Look at the colours: rows become columns.

# %%
figures.collective("all_to_all")

# %% [markdown]
# **Predict.** Each rank r passes in `[10 r, 10 r + 1, 10 r + 2, 10 r + 3]`. What does rank 3 have in the end? Give a list of four numbers.

# %%
prediction = None

# %%
# %%px
exchanged = comm.alltoall(parts)
print(exchanged)

tensor, back = torch.zeros(4, dtype=torch.int64), torch.zeros(4, dtype=torch.int64)
dist.all_to_all_single(tensor, torch.tensor(parts))
assert tensor.tolist() == exchanged
dist.all_to_all_single(back, tensor)
assert back.tolist() == parts, "an all-to-all undoes itself"

# %%
exchanged = cluster.view["exchanged"]
compare(prediction, exchanged[3])
assert exchanged == [[10 * source + part for source in range(4)] for part in range(4)]

# %% [markdown]
# A part may consist of more than one number. `all_to_all_single` cuts a tensor along its *first* dimension. If the tensor has as many rows as there are ranks, row r goes to rank r. The rows that arrive are stored in the output tensor, in the order of the ranks that sent them.

# %%
# %%px
to_all = torch.tensor([[10 * rank + i, -(10 * rank + i)] for i in range(world_size)])
from_all = torch.empty_like(to_all)
dist.all_to_all_single(from_all, to_all)
print(from_all.tolist())
assert from_all[:, 0].tolist() == [10 * source + rank for source in range(world_size)]
assert torch.equal(from_all[:, 1], -from_all[:, 0]), "the pairs have stayed together"

# %% [markdown]
# `all_to_all_single` expects the rows to lie in memory one after the other. In a transposed or permuted tensor they do not; `.contiguous()` makes a copy in which they do. (NCCL rejects a tensor that is not contiguous. This course's backend makes the copy for you.)
#
# In *mixture-of-experts* models, a layer consists of many small networks, the experts, which are spread over the ranks, and each token uses a few of them. An all-to-all moves the tokens to their experts. It can also transpose a matrix that is too large for one machine. In the next exercise, you will transpose a small one in this way.
#
# ### Exercise 4: transpose a matrix that is spread over the ranks
#
# A square matrix of `n` rows is spread over the `p` ranks of `group`, and `p` divides `n`. Each rank holds a block of `n / p` rows, as a tensor of shape `(n / p, n)`. Write `transpose(rows, group)`, which returns, on every rank, that rank's block of `n / p` rows *of the transposed matrix*. Use one `dist.all_to_all_single` and no other communication. No rank may collect the whole matrix.

# %%
figures.collective("all_to_all", world_size=3)


# %% tags=["exercise"] exercise="02.transpose"
# %%px
def transpose(rows, group):
    """Return this rank's block of rows of the transposed matrix."""
    ### BEGIN SOLUTION
    b, p = len(rows), dist.get_world_size(group)
    blocks = rows.reshape(b, p, b).permute(1, 2, 0).contiguous()  # block r, already transposed
    received = torch.empty_like(blocks)
    dist.all_to_all_single(received, blocks, group=group)
    return received.permute(1, 0, 2).reshape(b, p * b)  # lay the received blocks side by side
    ### END SOLUTION


# %% tags=["check"]
check("02.transpose")

# %% [markdown]
# Stuck? `hint("02.transpose")`, `solution("02.transpose")`.
#
# ## 5. Barrier: wait for all
#
# The last collective moves no data at all.

# %%
figures.collective("barrier")

# %% [markdown]
# **Predict.** All ranks start together. Rank r then works for `0.1 r` seconds (here it sleeps, to imitate unequal work) and enters a barrier. How many seconds does rank 0 wait there?

# %%
prediction = None

# %%
# %%px
import time

start = time.perf_counter()
comm.barrier()
time.sleep(0.1 * rank)
arrived = time.perf_counter()
comm.barrier()
left = time.perf_counter()
waited, in_all = left - arrived, left - start

# %% tags=["nbval-ignore-output"]
compare(prediction, cluster.view["waited"][0], within=0.2, unit="s")
assert min(cluster.view["in_all"]) > 0.1 * 3 - 0.01, "nobody leaves before the last has arrived"

# %% [markdown]
# Rank 0 waits for the slowest rank: 0.1 · 3 = 0.3 s. The wait is the same in every collective in which a rank needs something from all the others, so one slow rank slows down all the others (lesson 06 measures this).
#
# You rarely need a barrier, because ranks already wait for the data they receive. The other collectives are *not* barriers: the standard leaves open whether the root of a broadcast may go on before any rank has received the data. A barrier is useful before you start a clock, as above, and when the other ranks have to wait while rank 0 downloads a data set.

# %%
# %%px
dist.barrier()

# %% [markdown]
# ## 6. Sub-groups
#
# A collective involves the ranks of one *group*. In mpi4py, a communicator is a group whose messages are kept apart from those of all other groups, and `comm.Split(color, key)` splits one communicator into several. Ranks that pass the same colour end up in the same communicator, ordered by their key. Here, four ranks form a 2 × 2 grid.
#
# | | column 0 | column 1 |
# |---|---|---|
# | **row 0** | rank 0 | rank 1 |
# | **row 1** | rank 2 | rank 3 |
#
# **Predict.** Each row sums the rank numbers of its two ranks, and so does each column. Which two sums does rank 3 get? Give a list of two numbers, with the row's sum first.

# %%
prediction = None

# %%
# %%px
my_row, my_column = divmod(rank, 2)
row = comm.Split(color=my_row, key=rank)
column = comm.Split(color=my_column, key=rank)
sums = [row.allreduce(rank), column.allreduce(rank)]
print(f"row {my_row}: rank {row.rank} of {row.size}; column {my_column}: {column.rank}; {sums}")
assert row.allreduce(sums[1]) == comm.allreduce(rank)  # rows of column sums: everything

# %%
compare(prediction, cluster.view["sums"][3])
assert cluster.view["sums"] == [[1, 2], [1, 4], [5, 2], [5, 4]]

# %% [markdown]
# The ranks have new numbers: world rank 3 is rank 1 in its row. Lesson 10 trains on such a grid, with the batch split along one side and the model along the other.
#
# In `torch.distributed`, you make a group with `dist.new_group(ranks)`. Two rules differ from those of MPI. First, **every** rank of the world has to make this call, whether it is a member or not, and all ranks must create their groups in the same order. Second, `src` and `dst` are **world** ranks, even within a group. Newer programs use `group_src` and `group_dst` instead, which are ranks within the group.

# %%
# %%px
rows = [dist.new_group([0, 1]), dist.new_group([2, 3])]  # both on all four ranks
tensor = torch.tensor([rank])
dist.broadcast(tensor, src=2 * my_row, group=rows[my_row])  # the world's rank, not the row's
print(tensor.item(), "from the first of row", my_row)
assert tensor.item() == 2 * my_row
assert dist.get_group_rank(rows[my_row], rank) == row.rank

tensor = torch.tensor([rank])
dist.broadcast(tensor, group_src=1, group=rows[my_row])  # the second of my row
assert tensor.item() == 2 * my_row + 1

# %% [markdown]
# The first rule exists because all ranks have to agree on a new group. With many thousands of ranks, this takes a long time. With `dist.new_group(ranks, use_local_synchronization=True)`, only the members have to agree, and the other ranks need not make the call. In return, a rank that belongs to several groups must create them in the same order as the other members do; otherwise, the ranks will wait for each other. (According to PyTorch's documentation, PyTorch's own MPI backend does not support this option; this course's backend does.)

# %%
# %%px
if rank in (1, 2):
    middle = dist.new_group([1, 2], use_local_synchronization=True)  # ranks 0 and 3 do not call it
    tensor = torch.tensor([rank])
    dist.all_reduce(tensor, group=middle)
    assert tensor.item() == 3

# %% [markdown]
# ## 7. When the ranks disagree
#
# Collectives work only if all ranks of the group call the *same* collectives in the *same* order, with matching arguments. Nothing enforces this. If the ranks' calls differ, three things can happen, and the first is the worst.
#
# ### A wrong answer, and no error
#
# **Predict.** Rank r holds `loss = r + 1` and `count = 100 (r + 1)`. The even ranks sum the loss first and then the count; the odd ranks do it the other way round. What does rank 0 get as the sum of the losses? (The correct sum is 10.)

# %%
prediction = None

# %%
# %%px
loss, count = torch.tensor([rank + 1]), torch.tensor([100 * (rank + 1)])
for tensor in (loss, count) if rank % 2 == 0 else (count, loss):
    dist.all_reduce(tensor)
loss, count = loss.item(), count.item()
print(f"loss {loss}, count {count}")

# %%
compare(prediction, cluster.view["loss"][0])
assert cluster.view["loss"][0] == 1 + 200 + 3 + 400

# %% [markdown]
# Each rank's first call was matched with the first calls of the others: 1 + 200 + 3 + 400 = 604. All the tensors had the same shape and dtype, so no library could notice the mistake. In practice, this happens when ranks iterate over a dictionary or a list of files in different orders.
#
# Shapes can also differ without an error. The next cell uses *gloo*, PyTorch's own backend for CPUs, on a group of ranks 0 and 1. Rank 0 holds 2 rows of 3 numbers, and rank 1 holds 3 rows of 2.

# %%
# %%px
gloo_pair = dist.new_group([0, 1], backend="gloo", timeout=timedelta(seconds=30))
if rank < 2:
    matrix = torch.arange(6).reshape((2, 3) if rank == 0 else (3, 2))
    dist.all_reduce(matrix, group=gloo_pair)
    print(matrix.tolist())
    assert matrix.flatten().tolist() == [0, 2, 4, 6, 8, 10]

# %% [markdown]
# Six numbers were added to six numbers, in the order in which they are stored in memory: a 2 × 3 matrix was added to a 3 × 2 matrix, without an error. What if the *number* of elements differs?
#
# **Predict.** Rank 0 broadcasts the 3 numbers `[7, 7, 7]` with gloo, and rank 1 receives into 4 numbers `[0, 0, 0, 0]`. What does rank 1 do: (A) raise an error, (B) wait until its deadline, (C) end up with `[7, 7, 7, 7]`, or (D) end up with `[7, 7, 7, 0]`? Answer `"A"`, `"B"`, `"C"` or `"D"`.

# %%
prediction = None

# %%
# %%px
if rank < 2:
    received = torch.full((3,), 7) if rank == 0 else torch.zeros(4, dtype=torch.int64)
    dist.broadcast(received, src=0, group=gloo_pair)
    received = received.tolist()
    print(received)

# %%
received = cluster.view.client[1]["received"]
compare(prediction, "C" if received == [7] * 4 else "D")
assert received == [7, 7, 7, 0]

# %% [markdown]
# There was no error: rank 1 holds three new numbers and one old one. In a network, the old number would be a weight that was never synchronised.
#
# The outcome is hardly better if one rank passes 4 numbers to an all-reduce and the other passes 3. One rank returns with a wrong sum and carries on; the other waits until its deadline of 3 s. (The next cell makes a group just for this experiment, because the group cannot be used afterwards.)

# %%
# %%px
pair = dist.new_group([0, 1], backend="gloo", timeout=timedelta(seconds=3))
if rank < 2:
    numbers = torch.tensor([1, 2, 3, 4] if rank == 0 else [10, 20, 30])
    try:
        dist.all_reduce(numbers, group=pair)
        print("returned without an error:", numbers.tolist())
    except RuntimeError:
        print("gave up after 3 s")
    dist.destroy_process_group(pair)

# %% [markdown]
# Rank 1 now holds `[4, 11, 33]` as the sum. The first number should be 1 + 10 = 11, but nothing on rank 1 reveals the mistake.
#
# ### An error
#
# This course's backend compares the ranks' calls *before* any data moves, and reports any difference on every rank:

# %%
# %%px
numbers = torch.tensor([1, 2, 3, 4] if rank == 0 else [10, 20, 30])
found = None
try:
    dist.all_reduce(numbers)
except torch_mpi4py.MismatchError as error:
    found = error
print(found if rank == 0 else "the same message here")
assert found is not None
assert set(comm.allgather(str(found))) == {str(found)}, "every rank is told the same"

# %% [markdown]
# On one machine, the ranks compare their calls through shared memory. Between machines, the comparison takes one more all-reduce, of 16 bytes, before each call. Either way, the comparison costs time, so most libraries leave it out or offer it as a debugging mode. To turn it on in PyTorch, set `TORCH_DISTRIBUTED_DEBUG=DETAIL` before you start the ranks.
#
# ### A hang
#
# **Break it on purpose.** The cell below makes one of the most common mistakes in distributed programs: its `if` lets only some ranks reach a collective. `--limit 2` ends the cell after 2 s.
#
# **Predict.** Rank 3 skips the all-reduce. How many of the four ranks get stuck?

# %%
prediction = None

# %% tags=["raises-exception", "nbval-ignore-output"]
# %%px --limit 2
stuck = True
if rank != 3:
    comm.allreduce(rank)
stuck = False
print("went on, and noticed nothing")

# %%
compare(prediction, sum(cluster.view["stuck"]))

# %% [markdown]
# Ranks 0, 1 and 2 are stuck, while rank 3, which is at fault, notices nothing. In a notebook of this course, the report tells you this. In a program of your own that uses `torch_mpi4py`, every operation has a deadline, and every stuck rank is freed by an exception whose message ends with the same report: a `DeadlineError` if the rank's own time was up, a `RevokedError` if another rank gave up first. Both are kinds of `CommunicationError`.
#
# - **Symptom.** The program hangs, and nothing more is logged. The waiting ranks use either no CPU time or a whole core each. With plain MPI, the program hangs indefinitely.
# - **Diagnosis.** Ask which rank is *not* in the call, because the ranks that hang are not at fault. In the report, this is the rank that has finished, is computing, or is waiting on another line. Look for a collective inside `if rank == ...`, or after an early `return` or `continue`. Also look at loops that run a different number of times on each rank, and at exceptions that only one rank catches.
# - **Fix.** Move the collective out of the condition, so that all ranks make the same calls. The condition should decide only what is passed in and what is done with the result.
#
# Ranks that were pulled out of a call no longer agree on what has been sent. So `comm` and the process group were renewed. You must re-create every sub-group yourself, whether or not the line above the report names it. Your variables are still there.

# %%
# %%px
assert sums == [4 * my_row + 1, 2 * my_column + 2], "variables are still there"
tensor = torch.tensor([1])
dist.all_reduce(tensor)
print(comm.allreduce(1), tensor.item())
assert comm.allreduce(1) == tensor.item() == world_size

# %% [markdown]
# ### Exercise 5: fix a report
#
# This function should return the mean of all ranks' losses on rank 0, and `None` on the others. Instead, it hangs.
#
# ```python
# def report(comm, loss):
#     if comm.rank == 0:
#         return comm.allreduce(loss) / comm.size
#     return None
# ```
#
# Rewrite it so that it works, with one collective call per rank. Only rank 0 needs the sum, so choose the collective accordingly.


# %% tags=["exercise"] exercise="02.report"
# %%px
def report(comm, loss):
    """Return the mean of all ranks' losses on rank 0, and None on the others."""
    ### BEGIN SOLUTION
    total = comm.reduce(loss, root=0)
    return total / comm.size if comm.rank == 0 else None
    ### END SOLUTION


# %% tags=["check"]
check("02.report")

# %% [markdown]
# Stuck? `hint("02.report")`, `solution("02.report")`.
#
# ## 8. How MPI came to deep learning
#
# By 1992, every maker of parallel computers had its own message-passing library, and programs were tied to one maker's machines. In April of that year, a workshop in Williamsburg, Virginia, agreed that a standard was needed. About 60 people from 40 organisations worked on the standard. Their first draft, of November 1992, had no collectives at all. The 1994 standard had them, and most of this lesson could have been written then [1, 2].
#
# The standard says **what, not how**. It defines which rank ends up with which data. It does not define which messages are sent, in what order numbers are added, or whether a broadcast makes ranks wait for one another. So a library is free to use a tree for short messages and a ring for long ones, or shared memory inside a machine and special hardware between machines, and no program has to change. But floating-point sums depend on the order of the additions, so two libraries, or two different numbers of ranks, may give results that differ in the last digits.

# %%
print(0.1 + (0.2 + 0.3), (0.1 + 0.2) + 0.3)
assert 0.1 + (0.2 + 0.3) != (0.1 + 0.2) + 0.3
assert 1 + (2 + 3) == (1 + 2) + 3  # whole numbers are exact: that is why this lesson uses them

# %% [markdown]
# Deep learning spread to many machines by two routes. Google's DistBelief, in 2012, used *parameter servers*: some machines hold the weights, and workers fetch them and send gradients back whenever they are ready [3] (lesson 09). A year later, Coates and others trained networks of a billion parameters on three GPU machines that communicated through MPI (*published* [4]). In 2017, Gibiansky of Baidu explained the *ring all-reduce* to the field [6]. In this algorithm, which had been analysed years before for clusters of workstations [5], the traffic per worker hardly grows with the number of workers. Baidu's code was written on top of MPI. Horovod made the ring all-reduce available to any training script, at the cost of a few extra lines, and kept MPI's terms: rank, size, all-reduce, broadcast [7]. In the same year, Goyal and others used all-reduce to train ResNet-50 on ImageNet in one hour on 256 GPUs (*published* [8]).
#
# PyTorch's `torch.distributed` offers the same collectives on top of libraries modelled on MPI: gloo, and NCCL for NVIDIA GPUs [9]. It can also use MPI itself, but only if PyTorch was built from source with MPI support. The backend of this course needs no such build.
#
# ## Recap
#
# | collective | mpi4py | `torch.distributed` | which rank ends up with what |
# |---|---|---|---|
# | broadcast | `bcast`, `Bcast` | `broadcast` | every rank: the root's data |
# | scatter | `scatter`, `Scatter` | `scatter` | rank r: part r of the root's data |
# | gather | `gather`, `Gather` | `gather` | the root: every rank's data |
# | reduce | `reduce`, `Reduce` | `reduce` | the root: the sum |
# | all-gather | `allgather`, `Allgather` | `all_gather` | every rank: every rank's data |
# | reduce-scatter | `Reduce_scatter_block` | `reduce_scatter` | rank r: part r of the sum |
# | all-to-all | `alltoall`, `Alltoall` | `all_to_all_single` | rank r: part r of every rank's data |
# | all-reduce | `allreduce`, `Allreduce` | `all_reduce` | every rank: the sum |
# | barrier | `barrier`, `Barrier` | `barrier` | no rank gets any data; all wait until the last one has arrived |
#
# In mpi4py, lower-case calls take any Python object, pickle it, and return the result. Upper-case calls fill buffers in place. `torch.distributed` fills tensors in place.
#
# - Every rank of the group must call the same collectives, in the same order, with matching arguments.
# - Remember two invariants: a gather undoes a scatter, and a reduce-scatter followed by an all-gather is an all-reduce.
# - A rank in a sub-group has two numbers. In `torch.distributed`, `src` and `dst` are world ranks.
# - A mismatch may cause a hang, an error, or a wrong answer without an error. Check an invariant.
#
# **Next:** lesson 03 builds all-reduce from `send` and `recv` in five ways, and predicts when each one is fastest.
#
# ## References and further reading
#
# 1. MPI Forum, "MPI: A Message-Passing Interface Standard", *International Journal of Supercomputer Applications* 8(3/4), 1994. The current text is version 5.0 of June 2025, [www.mpi-forum.org/docs](https://www.mpi-forum.org/docs/); its chapter "Collective Communication" defines every collective in this lesson.
# 2. MPI Forum, "MPI: A Message-Passing Interface Standard, Version 2.2", 2009, section 1.2, "Background of MPI-1.0": the source of the dates and numbers in section 8.
# 3. J. Dean and others, "Large Scale Distributed Deep Networks", *Advances in Neural Information Processing Systems* 25, 2012.
# 4. A. Coates, B. Huval, T. Wang, D. J. Wu, A. Y. Ng and B. Catanzaro, "Deep learning with COTS HPC systems", *Proceedings of the 30th International Conference on Machine Learning*, PMLR 28(3), 1337–1345, 2013.
# 5. P. Patarasuk and X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", *Journal of Parallel and Distributed Computing* 69(2), 117–124, 2009.
# 6. A. Gibiansky, "Bringing HPC Techniques to Deep Learning", Baidu Research, 2017.
# 7. A. Sergeev and M. Del Balso, "Horovod: fast and easy distributed deep learning in TensorFlow", arXiv:1802.05799, 2018.
# 8. P. Goyal and others, "Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour", arXiv:1706.02677, 2017.
# 9. S. Li and others, "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", *Proceedings of the VLDB Endowment* 13(12), 3005–3018, 2020.
# 10. E. Chan, M. Heimlich, A. Purkayastha and R. van de Geijn, "Collective communication: theory, practice, and experience", *Concurrency and Computation: Practice and Experience* 19(13), 1749–1783, 2007. The clearest account of how collectives are built from one another.
# 11. L. Dalcin and Y.-L. L. Fang, "mpi4py: Status Update After 12 Years of Development", *Computing in Science & Engineering* 23(4), 47–54, 2021.
