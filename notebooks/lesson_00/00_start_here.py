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
# **The one idea.** One notebook drives several processes, called *ranks*. They all run the same cell at the same time, and each has its own memory. Everything in this course, from a single message to training a network on many machines, comes down to ranks that compute separately and communicate with each other.
#
# **You will be able to**
# - start ranks from a notebook, run a cell on all of them, and tell them apart;
# - read the output when a rank raises an error, and when a rank hangs;
# - bring the ranks back in step afterwards without losing your variables;
# - train one network on four ranks, and say what you gain by it and what you do not.
#
# **Prerequisites:** Python, some NumPy or PyTorch, and a rough idea of how a network is trained. You need no knowledge of parallel computing. If you forget a term later, look it up in the [glossary](../notebooks/glossary.md).
#
# **Time.** The notebook runs in about 25 s (*measured here*: 4 ranks on 2 cores). Allow 45 minutes to work through it, including its three exercises.

# %% [markdown]
# ## 1. Start four ranks
#
# Click in the next cell and press *Shift + Enter*. The cell starts four processes, which takes a few seconds.

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
# Each line describes one process, which your operating system identifies by its *process id* (pid).
#
# - **rank**: the number of the process. Four ranks are numbered 0, 1, 2 and 3.
# - **device**: the place where its tensors are stored, which is either the CPU (`cpu`) or a GPU.
# - **threads**: the number of threads that it computes with. Here each rank has one, because the ranks on one machine share its cores.
# - **MPI library**: the library that carries messages between ranks. MPI (*Message Passing Interface*) has been a standard since 1994. It runs on every supercomputer, and on your laptop too.
# - **host**: the machine that it runs on. On a laptop, all ranks run on the same host. The lessons also run unchanged on several hosts.
#
# The number of ranks is the *world size*. The next cell shows how many cores the ranks can use on the machine that runs this notebook.

# %% tags=["nbval-ignore-output"]
import os

cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
print(f"{cores} cores on this machine")

# %% [markdown]
# ## 2. One cell, four ranks
#
# A cell that begins with `%%px` runs on all ranks. Any other cell runs in the notebook's own process, as usual. A few names are defined on the ranks from the start: `rank`, `world_size`, `comm` (for messages), `np` (NumPy), `torch` and `dist` (`torch.distributed`).

# %%
# %%px
print(f"I am rank {rank} of {world_size}")

# %% [markdown]
# The same line ran four times. The ranks may have run it in any order; the output is *shown* in rank order to make it easier to read. The value of a cell's last line is shown too:

# %%
# %%px
rank**2

# %% [markdown]
# **Predict.** First this notebook sets `treasure = "of the notebook"`, and then each rank sets its own `treasure`. What is the value of the notebook's `treasure` afterwards? Replace `None` with your answer, as a string. Writing down a prediction before you run a cell is worth the effort, and every lesson asks you to do so.

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
# There are five processes and five variables called `treasure`. No process can read the memory of another, not even on the same machine. Processes can only send each other messages.
#
# `cluster.view` is the notebook's own connection to the ranks. Use it to fetch a variable from all of them, or to set one on all of them:

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
# A line that begins with `assert` does nothing if its claim is true, and stops the notebook if it is false. The course uses such lines to check its own claims, on every rank.
#
# ### Exercise 1: who are my neighbours?
#
# Imagine that the ranks are sitting round a table. Rank 1 is to the right of rank 0, rank 2 to the right of rank 1, and so on. Rank 0 is to the right of the last rank.

# %%
figures.who_sends_to_whom(
    [(0, 1), (1, 2), (2, 3), (3, 0)], title="each rank to its right neighbour"
)

# %% [markdown]
# Write `neighbours(rank, world_size)`, which returns two numbers: the rank to the left and the rank to the right. The function must work for any number of ranks. Fill in its body (delete the line that raises `NotImplementedError`), run the cell, and then run the check below.


# %% tags=["exercise"] exercise="00.neighbours"
def neighbours(rank, world_size):
    """Return (left, right): the ranks beside this one, round the table."""
    ### BEGIN SOLUTION
    return (rank - 1) % world_size, (rank + 1) % world_size
    ### END SOLUTION


# %% tags=["check"]
check("00.neighbours")

# %% [markdown]
# If you are stuck, run `hint("00.neighbours")` in a new cell. There are three hints, and each gives more away than the one before. `solution("00.neighbours")` shows a worked solution. You can also skip an exercise: a later cell that needs your function will then use the worked solution. `progress()` shows how many exercises you have solved, tried and skipped in each lesson.

# %% tags=["nbval-ignore-output"]
progress()

# %% [markdown]
# ## 3. When a rank raises an error
#
# **Predict.** Rank 2 raises an error in the next cell. How many of the four ranks print "nothing happened to me"?

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
# Read the output from the top. It begins with the lines that the other ranks printed. Below them is the traceback of the rank that failed, with the failing line marked. The last line says what became of the other ranks. If several ranks fail, the first traceback is that of the rank that failed on its own, and each rank that failed as a result gets one line.
#
# An error ends the cell but not the rank: rank 2 is still running and has kept all its variables.

# %%
# %%px
print("still here, my treasure is", treasure)
assert treasure == 10 * rank

# %% [markdown]
# ## 4. When a rank hangs
#
# When ranks communicate, they sometimes have to wait for each other. `comm.allreduce(x)` adds up every rank's `x` and gives the sum to every rank, so all ranks must take part.

# %%
# %%px
total = comm.allreduce(10 * rank)
print(total)
assert total == 0 + 10 + 20 + 30

# %% [markdown]
# Rank 3 does not take part in the next all-reduce. With plain MPI, the other ranks would wait indefinitely, and so would you. Here, each cell has a *limit*, which is 60 s unless you set a different one. In the next cell, `--limit 2` sets it to 2 s, so you do not have to wait long.
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
# This is a *hang report*. It has one row for each rank, which says whether the rank had finished, was computing, or was waiting. If it was waiting, the row also says in which call, on which line of which cell, and for how long. The sentence below the table explains what probably went wrong.
#
# - **Symptom.** Nothing happens until the cell's limit has passed.
# - **Diagnosis.** The waiting ranks are not at fault. Look for the rank that *finished*: it never made the call in which the others are waiting.
# - **Fix.** All ranks must make the call. Here, move it out of the `if`.
#
# When ranks are pulled out of a call, some messages may have arrived and others not. The connections between the ranks were therefore renewed, as the line above the report says. Your variables are still there, and you can simply carry on:

# %%
# %%px
total = comm.allreduce(1)
print(f"{total} ranks took part; my treasure is {treasure}")
assert (total, treasure) == (world_size, 10 * rank)

# %% [markdown]
# You can also press the notebook's stop button (■) while a cell is running. This interrupts the ranks too, and shows the same report. If a cell really needs longer, give it more time with `%%px --limit 300`, or set `cluster.limit = 300` for all cells. If you ever want to begin again, `cluster.restart()` starts fresh ranks with no variables.
#
# ## 5. A first taste: four ranks train one network
#
# The data set contains 1,797 digits, written by 13 people in the 1990s and scaled down to images of 8 × 8 pixels. Of these, 1,437 are for training and 360 for testing. The data set comes with the course, so nothing has to be downloaded.

# %%
# %%px --local
from course_lib.training import data
from rank_by_rank.lesson_00 import training_loop as loops

training, test = data.load("digits")
assert (training.images.shape, len(test)) == ((1437, 1, 8, 8), 360)

# %%
labelled_images(training.images[:10], training.labels[:10])

# %% [markdown]
# The network has two convolutional layers and one linear layer. With `--local`, the next cell runs in the notebook as well as on the ranks. The notebook is the fifth process; it will train alone, for comparison. The random number generator has a fixed *seed*, so every process gets the same initial weights.

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
# **One process first.** Each step takes 128 images (a *batch*), works out how the network's error (the *loss*) changes with each weight (the *gradient*), and changes every weight slightly to reduce the loss. Training goes through all images eight times: eight *epochs*. This takes about ten seconds on a small machine.

# %%
torch.set_num_threads(1)  # like each of the ranks
network = make_network()
optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9)
one = loops.train(network, optimizer, training, test, epochs=8, batch_size=128)
one_test_accuracy = one.accuracy[-1]

# %% [markdown]
# **Now four ranks.** The recipe for one step:
#
# 1. every rank takes *its share* of the batch, 32 of the 128 images;
# 2. every rank works out the gradient for its share;
# 3. the four gradients are added up, and every rank gets the sum;
# 4. every rank updates its weights with the same sum, so all four copies of the network stay the same.

# %%
figures.collective("all_reduce")

# %% [markdown]
# This picture shows step 3: each row is a rank, and the block on its left is the rank's gradient. Afterwards, every rank holds the sum of all four. In code, this takes one call, `dist.all_reduce`. In the next cell, the lines before this call join all the network's gradients into one long tensor, and the lines after it split that tensor up again. The call needs a *process group*, which says which ranks take part. `init_process_group` creates the default group, which contains all ranks.

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
# The next cell defines one epoch of training. Two lines, marked `# <-`, distinguish it from training in one process. (The `all_reduce` at the end only adds up the losses, so that they can be printed.) Each rank sums the losses of its share and divides the sum by the size of the *whole* batch, so the four ranks' losses add up to the mean over the batch.

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
# **Predict.** The four ranks do the same work as the one process: 1,437 images, eight times. What fraction of that process's time will they take on your machine? (0.25 would mean four times as fast. Remember how many cores you have.)

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
# We compare the *fastest* of the eight epochs in each run, because other work on your machine can only make an epoch slower.


# %% tags=["nbval-ignore-output"]
from itertools import pairwise


def fastest_epoch(run):
    return min(after - before for before, after in pairwise([0, *run.seconds]))


four = cluster.view["four"][0]
compare(prediction, fastest_epoch(four) / fastest_epoch(one), within=0.2)

# %% [markdown]
# ### Did it work?
#
# On its own, a falling loss curve proves little. So each rank checks three claims: all four copies of the network are the same *to the last bit*; they differ from the initial network; and the loss fell to less than a tenth of its value in the first epoch.

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
# The notebook then checks that the four ranks learned what the one process learned. Both runs add up the same numbers, but in different orders. Each sum is rounded to about 7 digits, so the losses of the two runs drift slightly apart over the 96 steps. We allow a difference of 0.01.
#
# The lower bound on the accuracy comes from two simpler methods. On these 360 images, guessing has an accuracy of 0.10, and a linear classifier reaches 0.95 to 0.98 (*measured* while the lesson was written). If a network with convolutions reached less than 0.95, something would be wrong.

# %%
largest = max(abs(a - b) for a, b in zip(one.loss, four.loss, strict=True))
assert largest < 0.01, f"the losses differ by {largest}"
assert four.accuracy[-1] > 0.95
assert abs(one_test_accuracy - four.accuracy[-1]) < 0.02
print("the losses of one process and of four ranks agree to 0.01, in every epoch")

# %% tags=["nbval-ignore-output"]
print(f"Test accuracy: {four.accuracy[-1]:.3f} (four ranks), {one_test_accuracy:.3f} (one process)")

# %% [markdown]
# ### What was gained, and what was not?
#
# Plotted against epochs, the two curves lie on top of each other: the ranks did not learn *better*. They did the same computation, split four ways.

# %% tags=["nbval-ignore-output"]
figures.curves({"one process": one, "four ranks": four}, title="Over the epochs")

# %% [markdown]
# Plotted against time, the curves may differ:

# %% tags=["nbval-ignore-output"]
figures.curves(
    {"one process": one, "four ranks": four},
    x="seconds",
    xlabel="training time (s)",
    title="Over the clock",
)

# %% [markdown]
# A fair comparison needs one more run. The single process used one thread, on one core. With several threads, PyTorch can use all cores from one process. How long does training take then?

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
# Those are the times on your machine (*measured here*). On a quiet machine with 2 cores, four ranks were 1.4 to 1.6 times as fast as one thread, and two threads were 1.5 to 1.9 times as fast (*measured* while the lesson was written). With other programs running on the same machine, four ranks fell to 0.7 times the speed of one thread. The conclusions:
#
# - Four ranks on two cores are not four times as fast. They cannot be more than twice as fast, and they lose some of that to sending messages and to taking turns on two cores. The busier your machine is, the more they lose.
# - Here, threads in one process do as well or better. So on one small machine you would not need ranks at all.
# - But threads share one memory, so they cannot reach beyond one machine. Ranks share nothing and communicate only by messages, so nearly the same code runs on eight machines with one rank per GPU. That is what this course is about.
#
# Lesson 06 shows when more ranks pay off, by how much, and how to tell in advance. The lessons up to 08 explain everything in this first taste: 02 and 03 cover `all_reduce`, 04 why the gradients may be added, 05 the training loop, and 08 PyTorch's own version of it.
#
# ### Exercise 2: my share
#
# Above, `batch[rank::world_size]` split a batch into shares. Write `my_share(samples, rank, world_size)`, which returns the list of this rank's samples. The samples are numbered from 0 to `samples - 1`. Each sample must belong to exactly one rank, and the sizes of any two shares may differ by at most one. You may choose which samples go to which rank.


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
# Rank 0 marked all the test papers alone; that is, it tested the network on all 360 images while the others waited. It would be better if each rank marked its own share and the ranks then combined their results. But the shares may differ in size.
#
# Write `global_accuracy(comm, right, total)`, where `right` is the number of correct answers among the `total` papers that this rank marked. On every rank, the function returns the accuracy over *all* ranks' papers, as a number from 0 to 1. `comm.allreduce(x)` gives every rank the sum of `x` over all ranks.


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
# With your two functions, the four ranks mark the 360 papers together and get the same accuracy as rank 0 did alone. (`yours_or_solution` returns your function, or the worked solution if yours is missing or not yet right.)

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
# | run a cell on all ranks | `%%px` on its first line | each rank runs it with its own variables |
# | run it in the notebook too | `%%px --local` | five processes run it |
# | run it on some ranks | `%%px --targets 0` | only rank 0 runs it |
# | read a variable of every rank | `cluster.view["x"]` | a list with every rank's `x` |
# | find out what went wrong | read the output from the top | the error that caused the others is shown above them |
# | end a cell that hangs | wait for its limit (`%%px --limit 5`), or press ■ | a report of what every rank was doing; your variables are kept |
# | see what the ranks are doing, at any time | `cluster.report()` | the same report |
# | begin again | `cluster.restart()` | fresh ranks, with no variables |
# | see what you have done | `progress()` | exercises solved, tried and skipped, in all lessons |
#
# The ranks end when you shut down the notebook's kernel. If you only *restart* the kernel and run `start_cluster` again within 10 s, the ranks will be as you left them.
#
# **Break it on purpose.** Give each rank different initial weights: in the cell that trains the four ranks, write `network[0].bias.data += 0.1 * rank` below `network = make_network()`, and run the cell again. *Symptom:* none. The printed loss still falls, and no error is raised. *Diagnosis:* run the cell that compares each rank's copy with rank 0's. It fails. *Fix:* give all ranks the same initial weights; the same updates then keep them equal. Without this comparison, you would not have noticed the mistake.
#
# **Next:** lesson 01, Send and receive. How does one rank get a number to another?
#
# **Further reading**
# - Message Passing Interface Forum, *MPI: A Message-Passing Interface Standard, Version 5.0*, 2025. <https://www.mpi-forum.org/docs/>
# - E. Alpaydin and C. Kaynak, *Optical Recognition of Handwritten Digits*, UCI Machine Learning Repository, 1998. <https://doi.org/10.24432/C50P49> (The images in this lesson are the test set of this collection, as included in scikit-learn.)
# - S. Li, Y. Zhao, R. Varma, O. Salpekar, P. Noordhuis, T. Li, A. Paszke, J. Smith, B. Vaughan, P. Damania and S. Chintala, *PyTorch Distributed: Experiences on Accelerating Data Parallel Training*, Proceedings of the VLDB Endowment 13(12), 3005-3018, 2020. <https://doi.org/10.14778/3415478.3415530>
