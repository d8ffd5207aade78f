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
# # 00 Start here
#
# **The one idea.** One notebook drives several processes, called *ranks*, that all run the same cell at the same time, each with memory of its own. Everything in this course, from a single message to training a network on many machines, is ranks that compute apart and talk to each other.
#
# **You will be able to**
# - start ranks from a notebook, run a cell on all of them, and tell them apart;
# - read what you see when a rank raises an error, and when a rank waits for ever;
# - get the ranks back in step afterwards, with your variables;
# - watch four ranks train one network together, and say what was gained and what was not.
#
# **You need first** Python, some NumPy or PyTorch, and a rough idea of how a network is trained. Nothing about parallel computing. A word you have forgotten later on is in the [glossary](../notebooks/glossary.md).
#
# **Time.** The notebook runs in about 25 s (*measured here*: 4 ranks on 2 cores). Allow 45 minutes to study it with its three exercises.

# %% [markdown]
# ## 1. Start four ranks
#
# Click into the next cell and press *Shift + Enter*. It starts four processes, which takes a few seconds.

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
from rank_by_rank.lesson_00.figures import labelled_images

# %% tags=["nbval-ignore-output"]
cluster = start_cluster(n=4)

# %% [markdown]
# Each line is one process, with a *process id* (pid) that your operating system knows it by.
#
# - **rank**: its number. Four ranks are numbered 0, 1, 2, 3.
# - **device**: where its tensors live: the processor (`cpu`), or a graphics card, if there is one.
# - **threads**: how many threads it computes with. One each: the ranks on a machine share its cores.
# - **MPI library**: what carries messages between the ranks. MPI, the *Message Passing Interface*, is a standard from 1994 that every supercomputer speaks, and your laptop as well.
# - **host**: the machine it runs on. On a laptop it is the same for all; lessons run unchanged when it is not.
#
# The number of ranks is the *world size*. How many cores has this machine, where the notebook runs, for the ranks that are on it?

# %% tags=["nbval-ignore-output"]
import os

cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
print(f"{cores} cores on this machine")

# %% [markdown]
# ## 2. One cell, four ranks
#
# A cell that begins with `%%px` runs on all ranks; without it, a cell runs in this notebook, as ever. The ranks know a few names from the start: `rank`, `world_size`, `comm` (for messages), `np` (NumPy), `torch` and `dist` (`torch.distributed`).

# %%
# %%px
print(f"I am rank {rank} of {world_size}")

# %% [markdown]
# The same line ran four times. In which order they ran nobody knows: the output is *shown* in rank order so that you can read it. The value of a last line is shown as well:

# %%
# %%px
rank**2

# %% [markdown]
# **Predict.** First, this notebook sets `treasure = "of the notebook"`. Then every rank sets a `treasure` of its own. What does the notebook's `treasure` hold afterwards? Write it in place of `None`, as a string. Writing it down first is worth it: you will do so in every lesson.

# %%
treasure = "of the notebook"
prediction = None

# %%
# %%px
treasure = 10 * rank
print(treasure)

# %%
compare(prediction, treasure)

# %% [markdown]
# Five processes, five variables called `treasure`. No process can look into the memory of another one, not even on the same machine. All they can do is send messages.
#
# `cluster.view` is the notebook's own line to the ranks. It fetches a variable from all of them, or gives one to all:

# %%
everyones_treasure = cluster.view["treasure"]
print(everyones_treasure)
assert everyones_treasure == [0, 10, 20, 30]

cluster.view["message"] = "the notebook says hello"

# %%
# %%px
print(message)
assert message == "the notebook says hello"

# %% [markdown]
# Lines that begin with `assert` do nothing if what they claim is true, and stop the notebook if it is not. They are how this course keeps itself honest: every claim is checked on every rank.
#
# ### Exercise 1: who are my neighbours?
#
# Think of the ranks as sitting round a table: rank 1 on the right of rank 0, and so on, and rank 0 on the right of the last one.

# %%
figures.who_sends_to_whom(
    [(0, 1), (1, 2), (2, 3), (3, 0)], title="each rank to its right neighbour"
)

# %% [markdown]
# Write `neighbours(rank, world_size)`. It returns two numbers: the rank on the left, and the rank on the right. It has to work for any number of ranks. Fill in the function (delete the line that raises `NotImplementedError`), run the cell, then run the check below it.


# %% tags=["exercise"] exercise="00.neighbours"
def neighbours(rank, world_size):
    """Return (left, right): the ranks beside this one, round the table."""
    ### BEGIN SOLUTION
    return (rank - 1) % world_size, (rank + 1) % world_size
    ### END SOLUTION


# %% tags=["check"]
check("00.neighbours")

# %% [markdown]
# If you are stuck, run `hint("00.neighbours")` in a new cell: there are three hints, each one stronger. `solution("00.neighbours")` shows a worked solution. You may also skip an exercise: a later cell that uses your function takes the worked solution if there is none. `progress()` keeps account: for every lesson it shows how many exercises you have solved, and which you have tried or skipped.

# %% tags=["nbval-ignore-output"]
progress()

# %% [markdown]
# ## 3. When a rank raises an error
#
# **Predict.** Rank 2 raises an error in the next cell. How many of the four ranks print their line?

# %%
prediction = None

# %% tags=["raises-exception"]
# %%px
survived = False
if rank == 2:
    raise ValueError("rank 2 does not like this cell")
survived = True
print("nothing happened to me")

# %%
compare(prediction, sum(cluster.view["survived"]))

# %% [markdown]
# Read it from the top: first what the others printed, then which rank failed, with its own traceback and the line marked, then one line about everyone else. If several ranks fail, the one that failed by itself is shown first; those that only failed because of it get a line.
#
# An error ends a cell. It does not end a rank: rank 2 is there, and remembers everything.

# %%
# %%px
print("still here, my treasure is", treasure)
assert treasure == 10 * rank

# %% [markdown]
# ## 4. When a rank waits for ever
#
# Ranks that talk can also wait for each other. `comm.allreduce(x)` adds up everybody's `x` and gives the sum to everybody, so it needs everybody to take part.

# %%
# %%px
total = comm.allreduce(10 * rank)
print(total)
assert total == 0 + 10 + 20 + 30

# %% [markdown]
# In the next cell rank 3 does not take part. With plain MPI the others would now wait for ever, and so would you. Here a cell has a *limit*: 60 s, unless you say otherwise. `--limit 2` makes it 2 s, so that you need not wait long.
#
# **Predict.** How many ranks do not finish?

# %%
prediction = None

# %% tags=["raises-exception", "nbval-ignore-output"]
# %%px --limit 2
finished = False
if rank != 3:
    comm.allreduce(1)
finished = True

# %%
compare(prediction, cluster.view["finished"].count(False))

# %% [markdown]
# This is a *hang report*. It has one row for each rank: whether it had finished, was computing, or was waiting; if it was waiting, then in which call, in which line of which cell, and for how long. The sentence below the table says what that means.
#
# - **Symptom.** The cell stands still until its limit has passed.
# - **Diagnosis.** The ranks that wait are innocent. Look for the one that *finished*: it was not where the others were.
# - **Fix.** All ranks have to make the call. Here: take it out of the `if`.
#
# When ranks are pulled out of a call, nobody can be sure which messages have arrived. So the connections between the ranks were made afresh; the line above the report says so. Your variables stayed, and you simply go on:

# %%
# %%px
total = comm.allreduce(1)
print(f"{total} ranks took part; my treasure is {treasure}")
assert (total, treasure) == (world_size, 10 * rank)

# %% [markdown]
# You can also press the notebook's stop button (■) while a cell runs: it reaches the ranks too, and shows the same report. A cell that honestly needs longer gets more time with `%%px --limit 300`, or every cell with `cluster.limit = 300`. And `cluster.restart()` starts fresh ranks, without variables, should you ever want to begin again.
#
# ## 5. A first taste: four ranks train one network
#
# Here are 1,797 digits, written by 13 people in the 1990s and scaled down to 8 × 8 pixels: 1,437 to train on, and 360 set apart to test with. They come with the course, so nothing is downloaded.

# %%
# %%px --local
from course_lib.training import data
from rank_by_rank.lesson_00 import training_loop as loops

training, test = data.load("digits")
assert (training.images.shape, len(test)) == ((1437, 1, 8, 8), 360)

# %%
labelled_images(training.images[:10], training.labels[:10])

# %% [markdown]
# The network has two layers of convolutions and one linear layer. `--local` makes the notebook run the cell as well, as a fifth process: it will train alone, for comparison. The fixed *seed* gives everyone the same initial weights.

# %%
# %%px --local
import torch
from torch import nn


def make_network():
    torch.manual_seed(0)
    first, second = nn.Conv2d(1, 64, 3, padding=1), nn.Conv2d(64, 128, 3, padding=1)
    return nn.Sequential(
        *(first, nn.ReLU(), second, nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(128 * 4 * 4, 10)),
    )


# %% [markdown]
# **One process first.** Each step takes 128 images (a *batch*), works out in which direction each weight should move (the *gradient*), and moves all weights a little. Eight times through all images, called eight *epochs*; that takes about ten seconds on a small machine.

# %%
torch.set_num_threads(1)  # like each of the ranks
network = make_network()
optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9)
one = loops.train(network, optimizer, training, test, epochs=8, batch_size=128)
one_test_accuracy = one.accuracy[-1]

# %% [markdown]
# **Now four ranks.** The recipe for one step:
#
# 1. every rank takes *its share* of the batch: 32 images of the 128;
# 2. every rank works out the gradient for its share;
# 3. the four gradients are added up, and everybody gets the sum;
# 4. every rank moves its weights by the same sum, so all four copies of the network stay the same.

# %%
figures.collective("all_reduce")

# %% [markdown]
# This is step 3, as a picture: a row is a rank, a block is its gradient. Afterwards everybody holds the sum of all four. In code, it takes one call, `dist.all_reduce`; the lines around it join all gradients of the network into one long tensor and take it apart again. The call needs a *process group*, which says who takes part. `init_process_group` makes the default one, of all ranks.

# %%
# %%px
from datetime import timedelta

import torch_mpi4py  # lets torch.distributed talk through MPI

if not dist.is_initialized():
    dist.init_process_group("mpi4py", init_method="mpi://", timeout=timedelta(seconds=30))


def add_up_gradients(network):
    gradients = [parameter.grad for parameter in network.parameters()]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat)  # the sum over all ranks, on all ranks
    parts = flat.split([gradient.numel() for gradient in gradients])
    for gradient, part in zip(gradients, parts, strict=True):
        gradient.copy_(part.view_as(gradient))


# %% [markdown]
# One time through the images. The two lines marked `# <-` are all that is different from training alone. The loss is the sum over the share divided by the size of the *whole* batch, so that the four sums make the mean over the batch.

# %%
# %%px
import torch.nn.functional as F


def train_one_epoch(network, optimizer, epoch):
    sum_of_losses = torch.zeros(())
    for batch in loops.batches(len(training), 128, seed=epoch):
        images, labels = training[batch[rank::world_size]]  # <- this rank's share of the batch
        loss = F.cross_entropy(network(images), labels, reduction="sum") / len(batch)
        optimizer.zero_grad()
        loss.backward()
        add_up_gradients(network)  # <- the same gradient for everyone
        optimizer.step()
        sum_of_losses += loss.detach() * len(batch)
    dist.all_reduce(sum_of_losses)
    return sum_of_losses.item() / len(training)


# %% [markdown]
# **Predict.** The four ranks do the same work as the one process, 1,437 images eight times. What fraction of its time will they need on your machine? (0.25 would be four times as fast. Mind how many cores there are.)

# %%
prediction = None

# %% tags=["nbval-ignore-output"]
# %%px
import time

from rank_by_rank.lesson_00.training_loop import History

network = make_network()
initial = nn.utils.parameters_to_vector(network.parameters()).detach().clone()
optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9)
four = History()
for epoch in range(8):
    start = time.perf_counter()
    loss = train_one_epoch(network, optimizer, epoch)
    seconds = time.perf_counter() - start
    accuracy = loops.accuracy(network, test) if rank == 0 else 0.0  # rank 0 marks the papers
    four.record(loss=loss, accuracy=accuracy, seconds=seconds, samples=len(training))
print(f"loss {four.loss[0]:.2f} in the first epoch, {four.loss[-1]:.3f} in the last")

# %% [markdown]
# We compare the *fastest* of the eight epochs of each run: whatever else your machine does at the time, it can only make an epoch slower.


# %% tags=["nbval-ignore-output"]
from itertools import pairwise


def fastest_epoch(run):
    return min(after - before for before, after in pairwise([0, *run.seconds]))


four = cluster.view["four"][0]
compare(prediction, fastest_epoch(four) / fastest_epoch(one), within=0.2)

# %% [markdown]
# ### Is it true?
#
# A curve that goes down proves little. These claims are stronger, and each rank checks them: all four copies of the network are the same *to the last bit*; they are not the ones we began with; and the loss fell.

# %%
# %%px
weights = nn.utils.parameters_to_vector(network.parameters()).detach()
weights_of_rank_0 = weights.clone()
dist.broadcast(weights_of_rank_0, src=0)  # everyone gets rank 0's
assert torch.equal(weights, weights_of_rank_0), "the copies are not the same"
assert not torch.equal(weights, initial), "the weights have not moved"
assert four.loss[-1] < 0.1 * four.loss[0], "the loss did not fall"
print("same weights as rank 0:", torch.equal(weights, weights_of_rank_0))

# %% [markdown]
# And in the notebook: four ranks learned what one process learned. Both add up the same numbers, but in a different order, and a computer rounds each sum to about 7 digits, so the two losses drift apart a little over the 96 steps. We allow 0.01.
#
# The bound for the accuracy: guessing gets 0.10 right, and a linear classifier between 0.95 and 0.98 of these 360 images (*measured* while the lesson was written). With convolutions, less than 0.95 would mean that something is wrong.

# %%
largest = max(abs(a - b) for a, b in zip(one.loss, four.loss, strict=True))
assert largest < 0.01, f"the losses differ by {largest}"
assert four.accuracy[-1] > 0.95
assert abs(one_test_accuracy - four.accuracy[-1]) < 0.02
print("the losses of one process and of four ranks agree to 0.01, in every epoch")

# %% tags=["nbval-ignore-output"]
print(f"Test accuracy: {four.accuracy[-1]:.3f} (four ranks), {one_test_accuracy:.3f} (one process)")

# %% [markdown]
# ### What was gained, and what not?
#
# Drawn over the epochs, the two runs lie on top of each other: the ranks did not learn *better*. It is the same computation, cut into four.

# %% tags=["nbval-ignore-output"]
figures.curves({"one process": one, "four ranks": four}, title="Over the epochs")

# %% [markdown]
# Drawn over the clock, they need not:

# %% tags=["nbval-ignore-output"]
figures.curves(
    {"one process": one, "four ranks": four},
    x="seconds",
    xlabel="training time (s)",
    title="Over the clock",
)

# %% [markdown]
# A fair comparison asks one question more. Your one process computed with a single thread, on a single core. PyTorch can also use all cores from within one process, by threads. How long does it take that way?

# %% tags=["nbval-ignore-output"]
torch.set_num_threads(cores)
network = make_network()
optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9)
threads = loops.train(network, optimizer, training, test, epochs=8, batch_size=128)
torch.set_num_threads(1)
for what, run in {
    "one process, 1 thread": one,
    f"one process, {cores} threads": threads,
    "four ranks, 1 thread each": four,
}.items():
    seconds = fastest_epoch(run)
    speed_up = fastest_epoch(one) / seconds
    print(f"{what:26} {seconds:.3f} s an epoch, {speed_up:.2f} times as fast as one thread")

# %% [markdown]
# Those are the times of your machine (*measured here*). On a quiet machine with 2 cores, four ranks came out 1.4 to 1.5 times as fast as one thread, and two threads 1.5 to 1.8 times (*measured* while the lesson was written); on the same machine with other programs running, four ranks were as slow as 0.7 times one thread. What to take from that:
#
# - Four ranks on two cores are not four times as fast. They cannot be more than twice as fast, and some of that goes into messages, and into four processes taking turns on two cores. The busier your machine is with other things, the worse.
# - Threads in one process do as well or better here. So on one small machine you would not need ranks at all.
# - But threads share one memory, so they end where the machine ends. Ranks share nothing and only send messages. The code above runs unchanged on one rank per graphics card, in eight machines, and that is what this course is about.
#
# When ranks pay, by how much, and how to know beforehand: lesson 06. Everything in this taste gets explained by lesson 08: `all_reduce` in 02 and 03, why the gradients may be added in 04, the training loop in 05, PyTorch's own version of it in 08.
#
# ### Exercise 2: my share
#
# Above, `batch[rank::world_size]` cut a batch into shares. Write `my_share(samples, rank, world_size)`: it returns the list of the sample numbers, out of 0 to `samples - 1`, that belong to this rank. Each sample belongs to exactly one rank, and no rank gets more than one sample more than another. Which samples go to which rank is up to you.


# %% tags=["exercise"] exercise="00.my_share"
def my_share(samples, rank, world_size):
    """Return the list of this rank's samples, out of 0 ... samples - 1."""
    ### BEGIN SOLUTION
    return list(range(rank, samples, world_size))
    ### END SOLUTION


# %% tags=["check"]
check("00.my_share")

# %% [markdown]
# Stuck? `hint("00.my_share")`, `solution("00.my_share")`.
#
# ### Exercise 3: one accuracy from four
#
# Rank 0 marked all test papers alone, while the others waited. Better: each rank marks its share, and they put their results together. But the shares may differ in size.
#
# Write `global_accuracy(comm, right, total)`: this rank has `right` correct answers out of `total`. It returns the accuracy over *all* ranks' papers, a number from 0 to 1, on every rank. `comm.allreduce(x)` gives everyone the sum of all ranks' `x`.


# %% tags=["exercise"] exercise="00.global_accuracy"
# %%px
def global_accuracy(comm, right, total):
    """Return the fraction of right answers over all ranks, on every rank."""
    ### BEGIN SOLUTION
    return comm.allreduce(right) / comm.allreduce(total)
    ### END SOLUTION


# %% tags=["check"]
check("00.global_accuracy")

# %% [markdown]
# Stuck? `hint("00.global_accuracy")`, `solution("00.global_accuracy")`.
#
# With your two functions the four ranks mark the 360 papers together, and find what rank 0 found alone. (`yours_or_solution` gives your function, or the worked solution if yours is missing or not right yet.)

# %%
share_of = yours_or_solution("00.my_share")
cluster.view["shares"] = [list(share_of(360, rank, 4)) for rank in range(4)]

# %%
# %%px
from course_lib.teaching import yours_or_solution

accuracy_of_all = yours_or_solution("00.global_accuracy")
images, labels = test[torch.tensor(shares[rank])]
right = int((network(images).argmax(dim=1) == labels).sum())
together = accuracy_of_all(comm, right, len(labels))
assert comm.allreduce(len(labels)) == len(test)
assert abs(together - comm.bcast(four.accuracy[-1], root=0)) < 1e-12
print(f"marked {len(labels)} of {len(test)} papers")

# %% [markdown]
# ## Recap
#
# | You want to | You write | What happens |
# |---|---|---|
# | start ranks | `cluster = start_cluster(n=4)` | four processes, numbered 0 to 3 |
# | run a cell on all ranks | `%%px` in its first line | each rank runs it with variables of its own |
# | run it in the notebook too | `%%px --local` | five processes run it |
# | run it on some ranks | `%%px --targets 0` | only rank 0 runs it |
# | look into the ranks | `cluster.view["x"]` | a list with everyone's `x` |
# | find out what went wrong | read the output from the top | the rank that failed by itself comes first |
# | end a cell that hangs | wait for its limit (`%%px --limit 5`), or press ■ | a report of what every rank was doing; the same variables |
# | look at the ranks at any time | `cluster.report()` | the same report |
# | begin again | `cluster.restart()` | fresh ranks |
# | see what you have done | `progress()` | exercises solved, tried and skipped, of all lessons |
#
# The ranks end when you shut down the notebook's kernel. If you only *restart* the kernel and run `start_cluster` again within 10 s, you find them as you left them.
#
# **Break it on purpose.** Give each rank other initial weights: in the cell that trains the four, write `network[0].bias.data += 0.1 * rank` below `network = make_network()`, and run it again. *Symptom:* none. The loss that it prints falls all the same, and no error is raised. *Diagnosis:* run the cell that compares the copies with rank 0's: it fails. *Fix:* begin with the same weights, then receive the same sums. Without that line you would not have noticed: that is why it is there.
#
# **Next:** lesson 01, Send and receive. How does one rank get a number to another?
#
# **Further reading**
# - Message Passing Interface Forum, *MPI: A Message-Passing Interface Standard, Version 5.0*, 2025. <https://www.mpi-forum.org/docs/>
# - E. Alpaydin, C. Kaynak, *Optical Recognition of Handwritten Digits*, UCI Machine Learning Repository, 1998. <https://doi.org/10.24432/C50P49> (The digits: its test part, as packed in scikit-learn.)
# - S. Li, Y. Zhao, R. Varma, O. Salpekar, P. Noordhuis, T. Li, A. Paszke, J. Smith, B. Vaughan, P. Damania, S. Chintala, *PyTorch Distributed: Experiences on Accelerating Data Parallel Training*, Proceedings of the VLDB Endowment 13(12), 3005-3018, 2020. <https://doi.org/10.14778/3415478.3415530>
