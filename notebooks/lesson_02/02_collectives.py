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
# **The one idea.** A *collective* is one call that every rank of a group makes together, and it is fully described by who ends up with what. How the messages travel is left to the library, and that freedom is what makes collectives fast.
#
# **You will be able to**
# - name the nine collectives that deep learning uses, and say for each who holds what before and after;
# - call each of them from mpi4py and from `torch.distributed`;
# - build broadcast and scatter from `send` and `recv`, and say what a library does better;
# - make sub-groups, and tell a rank in the world from a rank in a group;
# - recognise mismatched collectives, both those that hang and, worse, those that do not.
#
# **You need first** lesson 01: ranks, `send` and `recv`, deadlock.
#
# **Time.** The notebook runs in about 20 s (*measured here*: 4 ranks on 2 cores). Allow 120 minutes to study it and do its five exercises. A workshop can leave out section 8, which is history.

# %%
from course_lib.cluster import start_cluster
from course_lib.teaching import check, compare, figures, hint, progress, solution

# %% tags=["nbval-ignore-output"]
cluster = start_cluster(n=4)

# %% [markdown]
# The names `rank`, `world_size`, `comm`, `np`, `torch` and `dist` (`torch.distributed`) are already there on every rank. `comm` is mpi4py's communicator over all ranks. For `torch.distributed` you make a *process group*: the same ranks, under PyTorch's interface. Here it runs on MPI too.

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
# In the pictures, each row is a rank and each block is data. A block's colour and letter say *whose* data it is: A is rank 0's, B is rank 1's, and so on. The left side shows what the ranks hold before the call, and the right side what they hold after it.

# %%
figures.collective("broadcast")

# %% [markdown]
# The *root* is the rank that gives. Every rank makes the same call and names the same root. A rank does not say whether it sends or receives, because that follows from its rank.
#
# **Predict.** Each rank writes a note of its own. Then all call `comm.bcast(note, root=2)`. What does rank 0 hold afterwards? Write it between quotes in place of `None`.

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
# Rank 2's note is everywhere, and what the others passed in was ignored. `bcast` (lower case) takes any Python object and pickles it, as `send` did in lesson 01.
#
# `torch.distributed` works on tensors *in place*. The tensor that you pass is the buffer to send from on the root, and the buffer to receive into on all other ranks. So it must have the right shape and dtype everywhere *before* the call.

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
# Write `broadcast(comm, value, root)`. It returns the root's value on every rank. Use only `comm.send` and `comm.recv`. It must work for any root and for any number of ranks, so use `root` and `comm.size`. Send no more than a broadcast needs: no rank needs anything twice.


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
# Stuck? `hint("02.broadcast")` gives one hint at a time, and `solution("02.broadcast")` shows a worked solution. You may also go on: no later cell needs your function.
#
# In the simplest way, the root sends to each of the others in turn.

# %%
figures.who_sends_to_whom([(0, 1), (0, 2), (0, 3)], title="root sends to all")

# %% [markdown]
# With `p` ranks the root sends `p - 1` messages one after another, and the others mostly wait. A *tree* needs the same `p - 1` messages, but ranks that already have the data help to send it: with 8 ranks, 3 rounds are enough instead of 7. The result is the same, so callers notice only that it is faster. Lesson 03 builds such trees.

# %%
figures.point_to_point(
    [(0, 1, "A", 0, 1), (0, 2, "A", 1, 2), (1, 3, "A", 1, 2)],
    [(1, 0, 1, "recv"), (2, 0, 2, "recv"), (3, 0, 2, "recv")],
    title="A tree: two rounds for four ranks",
)

# %% [markdown]
# ## 2. Scatter and gather: deal out, collect
#
# *Scatter* cuts the root's data into one part per rank and deals the parts out in rank order. *Gather* is the reverse.

# %%
figures.collective("scatter")

# %%
figures.collective("gather")

# %% [markdown]
# In this lesson, part `i` of rank `r`'s data is the number `10 r + i`. So 31 is D1: part 1 of rank 3. You can tell from every number where it came from.
#
# **Predict.** Rank 1 is the root and scatters `[10, 11, 12, 13]`. What do ranks 0 to 3 get? Write a list of four numbers.

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
# The root deals a part to itself as well: rank 1 keeps 11. Only the root's list counts, so the others pass `None`.
#
# A scatter followed by a gather must give back the original data. That is an *invariant*: something that holds whatever the numbers are. The lessons check themselves with such invariants.

# %%
# %%px
collected = comm.gather(mine, root=1)
print(collected)
assert collected == (parts if rank == 1 else None)

# %% [markdown]
# Now the same in `torch.distributed`. The root hands over a list of tensors, and the others pass none. Every rank provides the tensor to receive into.

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
# Write `scatter(comm, parts, root)`, where `parts` is a list with one object per rank on the root, and `None` elsewhere. Every rank returns its own part. Again, use only `comm.send` and `comm.recv`, for any root and any number of ranks. The check also counts the bytes: do not send a rank what it does not need.


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
# *Reduce* combines the data of all ranks, element by element, into one result on the root. *All-reduce* leaves the result with every rank. The usual operation is the sum; there are also maximum, minimum and product. In the pictures, a block striped in all colours is a sum over all ranks.

# %%
figures.collective("reduce")

# %%
figures.collective("all_reduce", world_size=3)

# %% [markdown]
# **Predict.** Three ranks hold 1, 2 and 3. They all-reduce with the sum. What do the three hold afterwards? And what does rank 3 hold, which has 4 and does not take part? Write a list of four numbers.

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
# All three hold 6, and rank 3's number did not change. `Split` made a communicator of three ranks; section 6 explains it. Here is the same in `torch.distributed`, again in place:

# %%
# %%px
group_of_three = dist.new_group([0, 1, 2])  # every rank makes this call, members or not
tensor = torch.tensor([rank + 1, 10 * (rank + 1)])
if rank < 3:
    dist.all_reduce(tensor, op=dist.ReduceOp.SUM, group=group_of_three)
print(tensor)
assert tensor.tolist() == ([6, 60] if rank < 3 else [4, 40])

# %% [markdown]
# All-reduce is the heart of this course: if every rank holds the sum of all ranks' gradients, that is data-parallel training (lesson 05).
#
# Reduce looks like half of it, but there is one difference to watch. After `comm.reduce`, the ranks other than the root hold `None`. `dist.reduce` works in place, and what it leaves in the other ranks' tensors is *not defined*. It may be the old values or half-finished sums. Never read them.

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
# The ranks hold different amounts of data: rank 0 has 1 value, rank 1 has 2, and so on. Write `global_mean(values, group)`, where `values` is a one-dimensional float64 tensor of any length. Every rank returns the mean over *all* values of *all* ranks of the group, as a Python float.
#
# Your budget is **one** collective call of `torch.distributed`, and every rank may send no more than 16 bytes of its own. Pass `group=group` to the call: a library function must not assume that it is used on the whole world.


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
# Stuck? `hint("02.global_mean")`, `solution("02.global_mean")`. Lesson 04 has the same trap, with gradients as the values.
#
# ## 4. All-gather, reduce-scatter, all-to-all
#
# In the next three collectives all ranks are equal, and there is no root. *All-gather* is a gather whose result every rank gets.

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
# *Reduce-scatter* adds up like an all-reduce, but rank r keeps only part r of the sum.

# %%
figures.collective("reduce_scatter")

# %% [markdown]
# **Predict.** Each rank r holds `[10 r, 10 r + 1, 10 r + 2, 10 r + 3]`. What is rank 2's part of the sum? Write one number.

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
# **Predict.** Every rank r passes in `[10 r, 10 r + 1, 10 r + 2, 10 r + 3]`. What does rank 3 end up with? Write a list of four numbers.

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
# A part may be more than one number. `all_to_all_single` cuts a tensor along its *first* dimension. If the tensor has as many rows as there are ranks, row r goes to rank r. The rows that arrive are stored in the other tensor, in the order of the ranks they came from.

# %%
# %%px
to_all = torch.tensor([[10 * rank + i, -(10 * rank + i)] for i in range(world_size)])
from_all = torch.empty_like(to_all)
dist.all_to_all_single(from_all, to_all)
print(from_all.tolist())
assert from_all[:, 0].tolist() == [10 * source + rank for source in range(world_size)]
assert torch.equal(from_all[:, 1], -from_all[:, 0]), "the pairs have stayed together"

# %% [markdown]
# The rows should lie in memory one after the other. Those of a transposed or permuted tensor do not; `.contiguous()` makes a copy whose rows do. (NCCL refuses a tensor that is not contiguous. This course's backend makes the copy for you.)
#
# In *mixture-of-experts* models, a layer consists of many small networks, spread over the ranks, and each token uses a few of them. All-to-all moves the tokens to their experts. It also transposes matrices that are too large for one machine, and you do that now.
#
# ### Exercise 4: transpose a matrix that is spread over the ranks
#
# A square matrix of `n` rows is spread over the `p` ranks of `group`, and `p` divides `n`. Each rank holds a block of `n / p` rows, as a tensor of shape `(n / p, n)`. Write `transpose(rows, group)`: every rank returns its block of `n / p` rows *of the transposed matrix*. Use one `dist.all_to_all_single` and no other communication. No rank may collect the whole matrix.

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
# **Predict.** All ranks start together. Rank r then works for `0.1 r` seconds (here it sleeps instead, to imitate unequal work) and enters a barrier. How many seconds does rank 0 wait there?

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
# Rank 0 waits for the slowest rank: 0.1 · 3 = 0.3 s. Every collective in which a rank needs something from all the others waits like this, so one slow rank slows down all ranks (lesson 06 measures it).
#
# You rarely need a barrier. Where data flows, ranks already wait for it. The other collectives are *not* barriers: the standard leaves open whether a broadcast's root may go on before any rank has received. Good uses of a barrier are before taking the time, as above, and in "rank 0 downloads the data set, the others wait".

# %%
# %%px
dist.barrier()

# %% [markdown]
# ## 6. Sub-groups
#
# A collective concerns the ranks of one *group*. In mpi4py, a group with its own message space is a communicator, and `comm.Split(color, key)` cuts one communicator into several. Ranks that name the same colour come together, ordered by their key. Here four ranks become a grid of 2 × 2.
#
# | | column 0 | column 1 |
# |---|---|---|
# | **row 0** | rank 0 | rank 1 |
# | **row 1** | rank 2 | rank 3 |
#
# **Predict.** Each rank holds its own rank number. Each row sums these numbers, and then each column does. What are rank 3's two sums? Write a list of two numbers.

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
# The ranks have new numbers: world rank 3 is rank 1 of its row. Lesson 10 trains on such a grid, with the batch split along one side and the model along the other.
#
# In `torch.distributed`, `dist.new_group(ranks)` makes a group. Two rules differ from MPI's. First, **every** rank of the world calls it, members or not, and in the same order. Second, `src` and `dst` name **world** ranks, even inside a group. Newer programs use `group_src` and `group_dst` instead, which name the rank in the group.

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
# The first rule exists because all ranks have to agree on a new group. With many thousands of ranks, that takes a long time. With `dist.new_group(ranks, use_local_synchronization=True)` only the members agree, and the others need not call it. The price is that a rank in several groups must make them in the same order as the other members do, or they wait for each other. (PyTorch's documentation says that the MPI built into PyTorch cannot do this; this course's backend can.)

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
# A collective works if all ranks of the group call the *same* collectives in the *same* order, with arguments that fit together. Nothing forces them to. Three things can happen when they do not, and the first is the worst.
#
# ### A wrong answer, and no error
#
# **Predict.** Rank r holds `loss = r + 1` and `count = 100 (r + 1)`. The even ranks first sum the loss and then the count; the odd ranks do it the other way round. What does rank 0 get as the sum of the losses? It ought to be 10.

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
# The first call of each rank met the first call of the others: 1 + 200 + 3 + 400 = 604. Both tensors had the same shape and dtype, so no library could notice. In practice this happens when ranks go through a dictionary or a list of files in different orders.
#
# Shapes can also disagree without an error. The next cell uses *gloo*, PyTorch's own backend for CPUs, on a group of ranks 0 and 1. Rank 0 holds 2 rows of 3, and rank 1 holds 3 rows of 2.

# %%
# %%px
gloo_pair = dist.new_group([0, 1], backend="gloo", timeout=timedelta(seconds=30))
if rank < 2:
    matrix = torch.arange(6).reshape((2, 3) if rank == 0 else (3, 2))
    dist.all_reduce(matrix, group=gloo_pair)
    print(matrix.tolist())
    assert matrix.flatten().tolist() == [0, 2, 4, 6, 8, 10]

# %% [markdown]
# Six numbers met six numbers, in the order in which they lie in memory. A 2 × 3 matrix was added to a 3 × 2 matrix, without an error. What if the *number* of elements differs?
#
# **Predict.** Rank 0 broadcasts the 3 numbers `[7, 7, 7]` with gloo, and rank 1 receives into 4 numbers `[0, 0, 0, 0]`. What happens on rank 1: (A) an error, (B) it waits until its deadline, (C) it holds `[7, 7, 7, 7]`, (D) it holds `[7, 7, 7, 0]`? Write a letter, such as `"A"`.

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
# There was no error: rank 1 holds three new numbers and an old one. In a network, the old one would be a weight that was never synchronised.
#
# An all-reduce of 4 numbers with 3 is hardly better. One rank returns with a wrong sum and goes on; the other waits until its deadline of 3 s. (This cell makes a new group for the experiment, because the group cannot be used afterwards.)

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
# Rank 1 now "knows" that the sum is `[4, 11, 33]`. It ought to begin with 1 + 10 = 11, but nothing on rank 1 shows the mistake.
#
# ### An error
#
# This course's backend compares what the ranks ask for *before* any data moves, and says on every rank what differs:

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
# The comparison is one more all-reduce, of 16 bytes, before each call. That takes time, so most libraries leave it out or offer it as a debugging mode. In PyTorch, set `TORCH_DISTRIBUTED_DEBUG=DETAIL` before you start the ranks.
#
# ### A hang
#
# **Break it on purpose.** The `if` below is one of the most common mistakes in distributed programs: only some ranks reach a collective. `--limit 2` ends the cell after 2 s.
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
# Ranks 0, 1 and 2 are stuck. Rank 3, the one at fault, notices nothing. In a notebook of this course the report tells you. In a program of your own each operation has a deadline, and each stuck rank is freed by an exception that ends with the same report. It is a `DeadlineError` where the rank's own time was up, and a `RevokedError` where another rank gave up first. Both are kinds of `CommunicationError`.
#
# - **Symptom.** The program stands still, and the log ends. The waiting ranks use no CPU time, or a whole core each. With plain MPI the program stands still indefinitely.
# - **Diagnosis.** Ask which rank is *not* there, because the ranks that hang are not at fault. In the report, it is the rank that has finished, is computing, or waits in another line. Look for a collective inside `if rank == ...`, or behind an early `return` or `continue`. Look also in loops that run a different number of times on each rank, and after an exception that one rank caught.
# - **Fix.** Move the collective out of the condition, so that all ranks make the same calls. Let the condition decide only what is passed in and what is done with the result.
#
# Ranks that were pulled out of a call no longer agree on what has been sent. So `comm` and the process group were renewed. You must also make any sub-group again, whether or not the line above the report names it. Your variables stay.

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
# This function should return the mean of all ranks' losses on rank 0, and `None` on the others. It hangs.
#
# ```python
# def report(comm, loss):
#     if comm.rank == 0:
#         return comm.allreduce(loss) / comm.size
#     return None
# ```
#
# Rewrite it so that it works, with one collective call per rank. Only rank 0 needs the sum, so choose the collective for that.


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
# By 1992 every maker of parallel computers had its own message-passing library, and programs were tied to machines. In April of that year a workshop in Williamsburg, Virginia, agreed that a standard was needed. About 60 people from 40 organisations worked on it. Their first draft, of November 1992, had no collectives at all. The standard of 1994 had them, and most of this lesson could have been written then [1, 2].
#
# The standard says **what, not how**. It defines who ends up with what. It does not say which messages are sent, in which order numbers are added, or whether a broadcast makes ranks wait for each other. So a library may choose a tree for short messages and a ring for long ones. It may use shared memory inside a machine and special hardware between machines. No program has to change. But floating-point sums depend on the order of the additions, so the results of two libraries, or of two numbers of ranks, may differ in the last digits.

# %%
print(0.1 + (0.2 + 0.3), (0.1 + 0.2) + 0.3)
assert 0.1 + (0.2 + 0.3) != (0.1 + 0.2) + 0.3
assert 1 + (2 + 3) == (1 + 2) + 3  # whole numbers are exact: that is why this lesson uses them

# %% [markdown]
# Deep learning reached many machines by two roads. Google's DistBelief of 2012 used *parameter servers*: some machines hold the weights, and workers fetch them and send gradients back whenever they are ready [3] (lesson 09). A year later Coates and others trained networks of a billion parameters on three GPU machines that communicated by MPI (*published* [4]). In 2017 Gibiansky of Baidu explained the *ring all-reduce* to the field [6]. It sums gradients with a traffic per worker that hardly grows with the number of workers, and had been analysed years before for clusters of workstations [5]. The code that came with it was written on MPI. Horovod turned it into a few lines for any training script, with MPI's words: rank, size, all-reduce, broadcast [7]. In the same year Goyal and others trained ResNet-50 on ImageNet in one hour on 256 GPUs (*published* [8]), with all-reduce.
#
# PyTorch's `torch.distributed` offers the same collectives over libraries that learnt from MPI: gloo, and NCCL for NVIDIA's GPUs [9]. It can use MPI itself too, but only if PyTorch was built from source with MPI support. The backend of this course needs no such build.
#
# ## Recap
#
# | collective | mpi4py | `torch.distributed` | who ends up with what |
# |---|---|---|---|
# | broadcast | `bcast`, `Bcast` | `broadcast` | everyone: the root's data |
# | scatter | `scatter`, `Scatter` | `scatter` | rank r: part r of the root's data |
# | gather | `gather`, `Gather` | `gather` | the root: everyone's data |
# | reduce | `reduce`, `Reduce` | `reduce` | the root: the sum |
# | all-gather | `allgather`, `Allgather` | `all_gather` | everyone: everyone's data |
# | reduce-scatter | `Reduce_scatter_block` | `reduce_scatter` | rank r: part r of the sum |
# | all-to-all | `alltoall`, `Alltoall` | `all_to_all_single` | rank r: part r of everyone's data |
# | all-reduce | `allreduce`, `Allreduce` | `all_reduce` | everyone: the sum |
# | barrier | `barrier`, `Barrier` | `barrier` | no rank gets anything; all wait until the last has arrived |
#
# In mpi4py, lower-case calls take any Python object, pickle it, and return the result. Upper-case calls fill buffers in place. `torch.distributed` fills tensors in place.
#
# - Every rank of the group calls the same collectives, in the same order, with arguments that fit together.
# - Remember two invariants: gather undoes scatter, and a reduce-scatter followed by an all-gather is an all-reduce.
# - A rank of a sub-group has two numbers. In `torch.distributed`, `src` and `dst` mean the number in the world.
# - A mismatch may hang, raise an error, or give a wrong answer without an error. Check an invariant.
#
# **Next:** lesson 03 builds all-reduce from `send` and `recv` in five ways, and predicts when each one is fastest.
#
# ## References and further reading
#
# 1. MPI Forum, "MPI: A Message-Passing Interface Standard", *International Journal of Supercomputer Applications* 8(3/4), 1994. The current text is version 5.0 of June 2025, [www.mpi-forum.org/docs](https://www.mpi-forum.org/docs/); its chapter "Collective Communication" defines every collective of this lesson.
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
