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
# # 14 Capstone
#
# **The one idea.** Whoever can predict a speed-up has understood it. You choose how to train a given model on a given network, write down first how many times as fast it will be, and then find out, in a report of one page.
#
# **You will be able to**
# - predict the *time to a target accuracy*: how many steps, times how long a step;
# - choose a strategy for a network by numbers, and say where your prediction was off;
# - hand in a report that others can check: prediction, measurement, timeline, traffic, accuracy.
#
# **You need first** lessons 05, 06 and 08; lesson 09 for asynchronous strategies, lesson 10 for the pipeline.
#
# **Time.** The notebook runs in about 40 s (*measured here*: 4 ranks on 2 cores). Allow 120 minutes to study it with its four exercises, and 60 minutes more for a project of your own.

# %%
from course_lib.cluster import start_cluster
from course_lib.teaching import check, compare, hint, solution
from notebooks.lesson_14 import costs
from notebooks.lesson_14.figures import two_parts
from notebooks.lesson_14.journal import Journal
from notebooks.lesson_14.report import Result, rubric, write_report
from notebooks.lesson_14.tasks import STRATEGIES, TASKS, Plan

# %% tags=["nbval-ignore-output"]
cluster = start_cluster(n=4)

# %%
# %%px
from datetime import timedelta

import torch_mpi4py  # lets torch.distributed talk through MPI

from course_lib.parallel.gradient_sync import sync_gradients
from notebooks.lesson_14 import strategies, training
from notebooks.lesson_14.strategies import average_weights
from notebooks.lesson_14.tasks import TASKS, Plan

if not dist.is_initialized():
    dist.init_process_group("mpi4py", init_method="mpi://", timeout=timedelta(seconds=30))

# %% [markdown]
# ## 1. The rules
#
# There are three tasks. Each gives you a model, a data set with a target accuracy on its test set, a device for each rank, and a link between the ranks.

# %% tags=["nbval-ignore-output"]
for task in TASKS.values():
    print(f"{task.name}: {task.in_words()}")
    targets = ", ".join(f"{name} {target:.0%}" for name, target in task.targets.items())
    print(f"   target {targets}; one rank: batch {task.batch}, learning rate {task.rate}")

# %% [markdown]
# A *simulated device* computes a sample in 1.5 ms and needs 4 ms a step besides. It is made by sleeping: forward and backward are real, and what is left of the device's time is slept away. So four ranks compute at the same time on two cores as well, as long as the real computing is much shorter than the device's. The link is lesson 06's emulated one: each message takes at least its latency plus its bytes over the bandwidth. Gradients, messages and waiting are real.
#
# The *time to accuracy* is the training time until the test accuracy is first seen at the target. Looking takes place every few hundred samples, and the clock stands still meanwhile. The *speed-up* of a plan is the time to accuracy of one rank divided by that of the plan's ranks. (Not the time of an epoch: lesson 05 has shown that a larger batch learns less from one.)
#
# 1. Choose a plan: a strategy, the batch of each rank, a learning rate.
# 2. Predict its speed-up, and write it into the *journal*.
# 3. Run it, and have the report written.
#
# These strategies are ready; one of your own may be better.

# %%
for name, what in STRATEGIES.items():
    print(f"{name:13} {what}")

# %% [markdown]
# ## 2. What a speed-up is made of
#
# If one rank takes $N_1$ steps of $T_1$ seconds to the target, and R ranks take $N_R$ of $T_R$, then
#
# $$S = \frac{N_1 T_1}{N_R T_R} = \frac{N_1}{N_R} \cdot \frac{T_1}{T_R}.$$
#
# The first factor is about learning: it is R if a step with R times the samples is worth R steps, and rarely more. The second is about machines: with the same batch on each rank it is 1 at best, if communication costs nothing. Both are mostly below that, and they can be predicted separately.

# %%
two_parts()

# %% [markdown]
# ### Exercise 1: what synchronising costs
#
# A link is sold in megabits a second (1 Mbit = 10⁶ bit, 8 bits are a byte). On it an all-reduce of $n$ bytes over $p$ ranks takes the smaller of
#
# $$\lg p\,(\alpha + n\beta) \quad\text{(recursive doubling)} \qquad\text{and}\qquad 2\,(p-1)\,\Big(\alpha + \frac{n}{p}\beta\Big) \quad\text{(ring)},$$
#
# with α for the latency in seconds, β for the seconds a byte takes, and lg for the logarithm to base 2; p is a power of two. Write `sync_seconds(buckets, ranks, latency, megabits)`: the seconds of synchronising gradients that leave in buckets, one all-reduce after the other. `buckets` is a list of their bytes.


# %% tags=["exercise"] exercise="14.sync_seconds"
def sync_seconds(buckets, ranks, latency, megabits):
    """Return the seconds of one all-reduce for each bucket, of so many bytes."""
    ### BEGIN SOLUTION
    beta = 8 / (megabits * 1e6)
    total = 0.0
    for size in buckets:
        doubling = (ranks.bit_length() - 1) * (latency + size * beta)
        ring = 2 * (ranks - 1) * (latency + size / ranks * beta)
        total += min(doubling, ring)
    return total
    ### END SOLUTION


# %% tags=["check"]
check("14.sync_seconds")

# %% [markdown]
# Stuck? `hint("14.sync_seconds")`, `solution("14.sync_seconds")`.
#
# ### Exercise 2: the speed-up to a target
#
# A way to train is described by three numbers: `ranks`, `batch` (samples that *each* rank takes in a step) and `steps` (until the target). To compute a step takes a rank `fixed_seconds`, and `sample_seconds` for each of its samples. At most `cores` ranks compute at the same time: if there are more ranks, they compute in turns. When all have computed, several ranks synchronise for `sync` seconds.
#
# Write `speed_up(one, many, sample_seconds, fixed_seconds, sync, cores)`: how many times as fast `many` reach the target as `one` rank. `one` and `many` have the attributes `ranks`, `batch` and `steps`.


# %% tags=["exercise"] exercise="14.speed_up"
def speed_up(one, many, sample_seconds, fixed_seconds, sync, cores):
    """Return the time to the target of one rank, divided by that of many."""
    ### BEGIN SOLUTION
    turns = -(-many.ranks // cores)  # rounded up
    alone = one.steps * (fixed_seconds + one.batch * sample_seconds)
    compute = turns * (fixed_seconds + many.batch * sample_seconds)
    return alone / (many.steps * (compute + sync))
    ### END SOLUTION


# %% tags=["check"]
check("14.speed_up")

# %% [markdown]
# Stuck? `hint("14.speed_up")`, `solution("14.speed_up")`.
#
# ## 3. First solved example: task A, flattened
#
# Task A is a small MLP: 9,610 parameters in four tensors, so gradients of 38,440 bytes. The link has 5 ms and 100 Mbit/s, 12.5 MB/s.
#
# **Which strategy?** A step computes for 4 + 16 · 1.5 = 28 ms. An all-reduce of each tensor by itself pays the latency four times, one of all of them once:

# %%
task_a = TASKS["A"]
tensors = [32_768, 512, 5_120, 40]
per_layer_a = costs.sync_seconds(tensors, 4, task_a.latency, task_a.megabits)
at_once_a = costs.sync_seconds([sum(tensors)], 4, task_a.latency, task_a.megabits)
print(f"per layer {1e3 * per_layer_a:.0f} ms, flattened {1e3 * at_once_a:.0f} ms")

# %% [markdown]
# So flattened: a step will take 28 + 16 = 44 ms.
#
# **How many steps?** No formula knows. But a step of four ranks with 16 samples each is a step of one rank with 64 samples (lesson 04), so one rank can find out, without link and device, in a moment. Four ranks can try four learning rates at a time: a *pilot*.

# %%
# %%px
task_a = TASKS["A"]
RATES = [0.1, 0.2, 0.4, 0.8]
pilot_a = training.train_alone(task_a, Plan("alone", batch=64, rate=RATES[rank]), paced=False)
steps_a = pilot_a.reached.steps if pilot_a.reached else None
if rank == 0:
    baseline_a = training.train_alone(task_a, paced=False).reached.steps

# %% tags=["nbval-ignore-output"]
baseline_a = cluster.view.pull("baseline_a", targets=0, block=True)
print(f"one rank, batch 16: {baseline_a} steps")
for rate, steps_a in zip(cluster.view["RATES"][0], cluster.view["steps_a"], strict=True):
    print(f"batch 64, rate {rate}: {steps_a} steps")

# %% [markdown]
# With the rate of the small batch, four times the samples save only a third of the steps. With four times the rate, the linear rule of lesson 05, they save three fourths.
#
# **Predict.** The step counts that you see above, 28 ms for a step of one rank, 44 ms for one of four: what will be the speed-up with the rate 0.4? Write a number.

# %%
prediction = None

# %% tags=["nbval-ignore-output"]
many_a = costs.Run(ranks=4, batch=16, steps=cluster.view["steps_a"][2])
one_a = costs.Run(ranks=1, batch=16, steps=baseline_a)
predicted_a = costs.speed_up(
    one_a, many_a, task_a.sample_seconds, task_a.fixed_seconds, at_once_a, cores=4
)
compare(prediction, predicted_a, within=0.05, source="By the formula")

# %% [markdown]
# Now it is written down, before the run. The journal seals each line together with the line before (a *hash chain*): a number that is changed later breaks the seal, and the report says so. Only what was written before the first run of a plan counts.

# %% tags=["nbval-ignore-output"]
journal = Journal.for_examples()
plan_a = Plan("flattened", batch=16, rate=0.4)
why = "a pilot gave the steps; 28 ms of computing and one all-reduce of 16 ms a step"
journal.predict("A", plan_a, round(predicted_a, 2), why=why)
cluster.view["plan_a"] = plan_a

# %% [markdown]
# A strategy is a function that makes, of a `worker`, the function for one step. The worker has a model, an optimizer, and `compute(images, labels)`: forward and backward on its device. This is the whole of the strategy "flattened":


# %%
# %%px
def flattened(worker):
    def step(images, labels):
        worker.optimizer.zero_grad()
        worker.compute(images, labels)
        sync_gradients(worker.model)  # one all-reduce, then the mean
        worker.optimizer.step()

    return step


strategies.READY["flattened"] = flattened

# %% [markdown]
# `train_alone` runs the baseline on rank 0; `train` runs the plan on all ranks, over the link. Afterwards each rank holds what it has measured.

# %%
# %%px
alone_a = training.train_alone(TASKS["A"]) if rank == 0 else None
ours_a = training.train(TASKS["A"], plan_a)
assert len(set(comm.allgather(ours_a.checksum))) == 1, "replicas are equal to the bit"
assert ours_a.calls == ours_a.looks[-1].steps, "one all-reduce a step"

# %%
alone_a = cluster.view["alone_a"][0]
ours_a = cluster.view["ours_a"]
assert abs(ours_a[0].reached.steps - many_a.steps) <= 8, "as in the pilot, up to roundings"
assert alone_a.step_seconds >= 0.028, "no step is faster than its device"
assert ours_a[0].step_seconds >= 0.028 + at_once_a, "and its link"

# %% tags=["nbval-ignore-output"]
result_a = Result.of("A", alone_a, ours_a)
learned = "The steps were right; a step is longer than predicted, for sleepers wake up late."
report_a = write_report(journal, result_a, learned=learned, author="solved example 1")
report_a

# %% [markdown]
# Read it from top to bottom: what was predicted, what was measured, and the two factors. The number of steps was predicted by the pilot: four ranks are one rank with batch 64, up to roundings. So whatever the prediction is off comes from the length of a step. The timeline shows it: after each block of work all ranks wait for the all-reduce, longer than they should by what it takes to wake up; on a busy machine by more.
#
# ## 4. When is the target reached?
#
# ### Exercise 3: time to accuracy
#
# `looks` is a list of pairs (seconds, accuracy), in the order of time. Write `time_to_target(looks, target)`: the seconds at which the accuracy was first seen at the target or above it, or `None`.


# %% tags=["exercise"] exercise="14.time_to_target"
def time_to_target(looks, target):
    """Return the seconds of the first look that shows the target, or None."""
    ### BEGIN SOLUTION
    for seconds, accuracy in looks:
        if accuracy >= target:
            return seconds
    return None
    ### END SOLUTION


# %% tags=["check"]
check("14.time_to_target")

# %% [markdown]
# Stuck? `hint("14.time_to_target")`, `solution("14.time_to_target")`.
#
# One look is one measurement, and accuracies jump up and down from look to look. A target that is met by luck at one look is met; that is the rule for both sides. Whoever compares methods in earnest repeats runs with several seeds, and says how far they lie apart.
#
# ## 5. Second solved example: task B, local SGD
#
# Task B has a larger model, 85,002 parameters or 340,008 bytes, and a link of 30 ms and 25 Mbit/s.
#
# **Predict.** What does one all-reduce of all gradients take, in ms, and does synchronous SGD with four ranks pay if a step computes for 28 ms? Write `(ms, True)` or `(ms, False)`.

# %%
prediction = None

# %%
task_b = TASKS["B"]
at_once_b = costs.sync_seconds([340_008], 4, task_b.latency, task_b.megabits)
pays = at_once_b / 0.028 < 4 - 1
compare(prediction, (round(1e3 * at_once_b), pays), within=0.05, source="By the formula")

# %%
print(f"synchronising / computing: {at_once_b / 0.028:.1f}")
assert not pays

# %% [markdown]
# Synchronising takes ten times as long as computing, and more than three times does not pay (lesson 06). Sending half as many bytes would not help enough, either. So talk less often: *local SGD* (lesson 09) lets each rank take `every` steps by itself, and then averages the weights. With every 16 steps, a step costs 28 ms and a sixteenth of an all-reduce.


# %%
# %%px
def local_sgd(worker, every):
    done = 0

    def step(images, labels):
        nonlocal done
        worker.optimizer.zero_grad()
        worker.compute(images, labels)
        worker.optimizer.step()
        done += 1
        if done % every == 0:
            average_weights(worker.model)  # one all-reduce

    return step


strategies.READY["local SGD"] = local_sgd

# %% [markdown]
# **How many steps?** This time no single process can tell; the four ranks have to. A *rehearsal* is the run itself, without link and device. It is not cheating: what it tells is one of the two factors, and how long a step takes is still to be predicted. (On a real cluster you would rehearse on one node, or on a part of the data.)

# %% tags=["nbval-ignore-output"]
plan_b = Plan("local SGD", batch=16, rate=0.4, options={"every": 16})
cluster.view["plan_b"] = plan_b

# %%
# %%px
steps_b = training.rehearse(TASKS["B"], plan_b).reached.steps
if rank == 0:
    baseline_b = training.train_alone(TASKS["B"], paced=False).reached.steps
if rank == 1:
    together_b = training.train_alone(TASKS["B"], Plan("alone", 64, 0.4), paced=False).reached.steps

# %% tags=["nbval-ignore-output"]
baseline_b = cluster.view.pull("baseline_b", targets=0, block=True)
steps_b = cluster.view["steps_b"][0]
print(f"one rank, batch 16: {baseline_b} steps; local SGD on four: {steps_b} steps")

# %% [markdown]
# **Predict.** With the steps that you see above, the speed-up is (A) above 2.5; (B) between 1 and 2.5; (C) below 1. Write a letter.

# %%
prediction = None

# %% tags=["nbval-ignore-output"]
one_b, many_b = costs.Run(1, 16, baseline_b), costs.Run(4, 16, steps_b)
sync_b = at_once_b / 16
predicted_b = costs.speed_up(
    one_b, many_b, task_b.sample_seconds, task_b.fixed_seconds, sync_b, cores=4
)
print(f"{baseline_b} steps of 28 ms, or {steps_b} of {28 + 1e3 * sync_b:.0f} ms: {predicted_b:.2f}")
compare(
    prediction, "A" if predicted_b > 2.5 else "B" if predicted_b > 1 else "C", source="Predicted"
)
why = f"rehearsed: {steps_b} steps; 28 ms of computing, a sixteenth of 278 ms"
journal.predict("B", plan_b, round(predicted_b, 2), why=why)

# %%
# %%px
alone_b = training.train_alone(TASKS["B"]) if rank == 0 else None
ours_b = training.train(TASKS["B"], plan_b)
assert ours_b.calls == ours_b.looks[-1].steps // 16, "one all-reduce in 16 steps"

# %%
alone_b, ours_b = cluster.view["alone_b"][0], cluster.view["ours_b"]
last_b = ours_b[0].looks[-1]
assert ours_b[0].reached.steps == steps_b, "as many as in the rehearsal"
assert last_b.seconds >= last_b.steps * 0.028 + ours_b[0].calls * at_once_b
assert last_b.seconds < last_b.steps * (0.028 + at_once_b), "less than synchronous SGD would take"

# %% tags=["nbval-ignore-output"]
result_b = Result.of("B", alone_b, ours_b)
learned = "A step by oneself is worth less than one together; on this link it costs far less, too."
write_report(journal, result_b, learned=learned, author="solved example 2")

# %% [markdown]
# And synchronous SGD? Rank 1 has run its pilot, with batch 64 and the same rate, beside the rehearsal.

# %%
together_b = cluster.view.pull("together_b", targets=1, block=True)
synchronous_b = costs.Run(4, 16, together_b)
other_b = costs.speed_up(
    one_b, synchronous_b, task_b.sample_seconds, task_b.fixed_seconds, at_once_b, cores=4
)
assert together_b < steps_b, "a step together is worth more than a step by oneself"
assert other_b < 0.5, "but it would have been slower than one rank"
print(f"synchronous: {together_b} steps of 306 ms, {other_b:.2f} times as fast (predicted)")

# %% [markdown]
# Fewer steps, each of them ten times as long: four ranks would have been slower than one. No strategy is best everywhere; numbers decide.
#
# ### Exercise 4: the bytes
#
# Where the provider charges for traffic, bytes are money. Count those that cross all links together until the target is reached. `model_bytes` is the size of all parameters, and so of all gradients.
#
# - `"synchronous"`: in each of `steps` steps one all-reduce round the ring. There each of p ranks sends $2\,(p-1)/p$ of the model;
# - `"local SGD"`: the same after every `every` steps, none for the steps that are left over;
# - `"server"`: for each of `steps` updates a worker fetches the parameters and sends a gradient.
#
# Write `bytes_on_links(strategy, steps, ranks, model_bytes, every)`.


# %% tags=["exercise"] exercise="14.bytes_on_links"
def bytes_on_links(strategy, steps, ranks, model_bytes, every):
    """Return the bytes that all ranks together send."""
    ### BEGIN SOLUTION
    if strategy == "server":
        return steps * 2 * model_bytes
    rounds = steps // every if strategy == "local SGD" else steps
    return rounds * 2 * (ranks - 1) * model_bytes
    ### END SOLUTION


# %% tags=["check"]
check("14.bytes_on_links")

# %% [markdown]
# Stuck? `hint("14.bytes_on_links")`, `solution("14.bytes_on_links")`.
#
# ## 6. Your project: task C
#
# Task C takes Fashion-MNIST, CIFAR-10 or MNIST if your `COURSE_DATA` has one of them (in this order), else the digits, all with 14 × 14 pixels. Nothing is downloaded here; `course_lib.training.data.load("fashion_mnist")`, in one process, fetches it once. (The course was built where there was a part of MNIST; the targets of Fashion-MNIST and CIFAR-10 are estimates that nobody has run.)
#
# Plan, and do as the examples did: a pilot or a rehearsal for the steps, a formula for the seconds. Take any strategy of section 1, or add one of your own to `strategies.READY`, in a `%%px` cell. Change this cell, and run it; each further plan is one more report. (The plan that stands here is not a good one: work out why.)

# %% tags=["nbval-ignore-output"]
my_plan = Plan("per layer", batch=16, rate=0.4)
my_prediction = None  # how many times as fast as one rank?
my_reason = ""
my_journal = Journal()
my_journal.predict("C", my_plan, my_prediction, why=my_reason)
cluster.view["my_plan"] = my_plan

# %%
# %%px --limit 120
alone_c = training.train_alone(TASKS["C"]) if rank == 0 else None
ours_c = training.train(TASKS["C"], my_plan)

# %% [markdown]
# Look at the numbers first, then say in a sentence or two where your prediction was off, and why. Each time that this cell runs, a new report is written; nothing is overwritten. The files are in the folder `capstone` of your workspace: hand in the PDF or the HTML, and the journal.

# %% tags=["nbval-ignore-output"]
my_result = Result.of("C", cluster.view["alone_c"][0], cluster.view["ours_c"])
write_report(my_journal, my_result, learned="", author="")

# %% [markdown]
# Then look back at your prediction. The line "reading" says which usual mistake it looks like, for the strategies that have a formula. (If you have not predicted, there is no such line.) The usual reasons why a prediction is off:
#
# | what was forgotten | what the report shows |
# |---|---|
# | communication | the second factor is far below 1 |
# | that a larger batch changes the number of steps | the first factor is not R |
# | the part of a step that is not divided (Amdahl) | work that does not shrink with the batch |
# | bits and bytes | waits eight times as long as predicted |
# | a latency for each bucket | many short waits instead of one |
# | the way back | twice the traffic, and twice the wait |
# | that ranks share cores | work in turns, steps longer on all ranks |
# | $p$ in $2(p-1)/p$ | small, systematic differences in the bytes |
#
# ## Break it on purpose: a prediction that was improved later
#
# **Symptom.** A report shows a prediction that is right to three digits. Somebody has opened the journal in an editor, and changed a number:

# %% tags=["nbval-ignore-output"]
import shutil
import tempfile
from pathlib import Path

with tempfile.TemporaryDirectory() as folder:
    path = Path(shutil.copy(journal.folder / "journal.jsonl", folder))
    path.write_text(path.read_text().replace('"speed_up": ', '"speed_up": 1'))
    forged = Journal(folder).broken_from()
print(f"the seals are broken from line {forged} on")
assert forged == 1
assert journal.broken_from() is None

# %% [markdown]
# **Diagnosis.** Each line's seal is a checksum (SHA-256) of its text and the seal of the line before; the report of such a journal says from which line on the seals do not fit. (Whoever works out *all* seals anew escapes it. An instructor who wants to be sure has the seals written down before the runs.) **Fix.** Make another plan, and predict anew: a miss that is explained earns all marks.
#
# ## For instructors: a rubric
#
# Twenty points. The same text is `notebooks/lesson_14/rubric.md`.

# %%
from IPython.display import Markdown

Markdown(rubric())

# %% [markdown]
# ## Recap
#
# | | what to remember |
# |---|---|
# | the aim | time to a target accuracy, against one rank with the same model, data and clock |
# | speed-up | $(N_1/N_R) \cdot (T_1/T_R)$: fewer steps, times longer ones |
# | steps | of a larger batch: a pilot in one process; of other strategies: a rehearsal |
# | seconds of a step | computing, what cannot be divided, and every message's latency and bytes |
# | a fast link | synchronous, in few messages or with overlap |
# | a slow link | talk less often, and pay in steps |
# | a prediction | counts if it was written before the run, and teaches most where it was wrong |
#
# This was the last lesson. Take a training of your own, predict what more ranks would bring it, and find out.
#
# ## References and further reading
#
# 1. C. Coleman, D. Narayanan, D. Kang and others, "DAWNBench: An End-to-End Deep Learning Benchmark and Competition", workshop on ML systems at *NIPS* 2017. Time to accuracy as the measure, and optimisations that spoil each other.
# 2. C. Coleman, D. Kang, D. Narayanan and others, "Analysis of DAWNBench, a Time-to-Accuracy Machine Learning Performance Benchmark", arXiv:1806.01427, 2018. How much the measure varies from run to run.
# 3. T. Hoefler and R. Belli, "Scientific Benchmarking of Parallel Computing Systems: Twelve ways to tell the masses when reporting performance results", *Proceedings of the International Conference for High Performance Computing, Networking, Storage and Analysis* (SC15), 2015. What a report has to say so that others can believe it.
# 4. C. J. Shallue, J. Lee, J. Antognini, J. Sohl-Dickstein, R. Frostig and G. E. Dahl, "Measuring the Effects of Data Parallelism on Neural Network Training", *Journal of Machine Learning Research* 20(112), 1–49, 2019. Steps to a target against the batch, for many models.
# 5. S. U. Stich, "Local SGD Converges Fast and Communicates Little", *International Conference on Learning Representations*, 2019.
