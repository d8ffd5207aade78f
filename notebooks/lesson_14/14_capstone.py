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
# **The one idea.** You have understood a speed-up when you can predict it. You choose how to train a given model on a given network, and first write down how many times as fast it will be. Then you find out, and hand in a report of one page.
#
# **You will be able to**
# - predict the *time to a target accuracy*: the number of steps times the time of a step;
# - compare with one rank at its best, and tell a speed-up from luck;
# - choose a strategy for a network by numbers, and say where your prediction was off;
# - hand in a report that others can check: prediction, measurement, timeline, traffic, accuracy.
#
# **You need first** lessons 05, 06 and 08; lesson 09 for asynchronous strategies, lesson 10 for the pipeline.
#
# **Time.** The notebook runs in about 120 s (*measured here*: 4 ranks on 2 cores, beside other programs). Allow 120 minutes to study it with its four exercises, and 60 minutes more for a project of your own.

# %%
from course_lib.cluster import start_cluster
from course_lib.teaching import check, compare, hint, solution, yours_or_solution
from rank_by_rank.lesson_14 import costs
from rank_by_rank.lesson_14.figures import two_parts
from rank_by_rank.lesson_14.journal import Journal
from rank_by_rank.lesson_14.report import Result, rubric, write_report
from rank_by_rank.lesson_14.tasks import STRATEGIES, TASKS, Plan, best_rate

# %% tags=["nbval-ignore-output"]
cluster = start_cluster(n=4)

# %%
# %%px
from datetime import timedelta

import torch_mpi4py  # lets torch.distributed talk through MPI

from course_lib.parallel.gradient_sync import sync_gradients
from rank_by_rank.lesson_14 import strategies, training
from rank_by_rank.lesson_14.strategies import average_weights
from rank_by_rank.lesson_14.tasks import TASKS, Plan

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
    print(f"   target {targets}; one rank: batch {task.batch}")

# %% [markdown]
# A *simulated device* computes a sample in 2 ms and needs 8 ms a step besides. Forward and backward are real, and the rank sleeps for the rest of the device's time. So four ranks compute at the same time even on two cores, as long as the real computing takes much less time than the device's. The link is lesson 06's emulated one: each message takes at least its latency plus its bytes over the bandwidth. Gradients, messages and waiting are real.
#
# The *time to accuracy* is the number of steps until the test accuracy is first seen at the target, times the seconds of a step. The accuracy is looked at after every fourth step, for one rank and for many, and the clock stops meanwhile. The *speed-up* of a plan is the time to accuracy of one rank divided by that of the plan's ranks. (It is not the time of an epoch: lesson 05 showed that a larger batch learns less from one.) Three rules keep it honest:
#
# - **What is looked at.** One replica, as it is: rank 0's, or the stages of a pipeline put together. A mean of four replicas is a better model than each of them. So a plan that needs that mean to reach the target has to make it itself, on the clock and over the link.
# - **The baseline.** One rank gets the best of the learning rates that the plans may choose from, found in the same way. It is one of the most common faults of published speed-ups to tune only the new method and not the old one [3, 4, 6]: then the effect of the learning rate is counted as that of the ranks.
# - **Luck.** The same training may take twice the steps with another seed. So the steps are the median of five seeds, for one rank and for many; the seconds of a step are measured on the clock, with the first of them.
#
# This is what you do:
#
# 1. Choose a plan: a strategy, the batch of each rank, a learning rate.
# 2. Predict its speed-up, and write it into the *journal*.
# 3. Run it, and let the notebook write the report.
#
# These strategies are ready; one of your own may be better. With `"alone"` no rank ever sends anything: compare with it to see what communicating is worth.

# %%
for name, what in STRATEGIES.items():
    print(f"{name:13} {what}")

# %% [markdown]
# The table says what each of them does in a step, and what you can set by `options`, such as `Plan("local SGD", 16, 0.4, {"every": 4})`:
#
# | strategy | option (default) | in a step, besides computing |
# |---|---|---|
# | alone | | nothing |
# | per layer | | an all-reduce for each tensor, one after the other |
# | flattened | | one all-reduce of all bytes |
# | overlapped | `bucket_bytes` (4,000): from the last layer on, tensors are collected until they have this many bytes | an all-reduce for each bucket, one after the other; each begins as soon as backward, two thirds of the samples' time, has filled its bucket |
# | compressed | `bucket_bytes`, as above | the same with half the bytes on the link |
# | local SGD | `every` (8): steps that each rank takes by itself before the weights are averaged | one all-reduce of all bytes after every `every`-th step, nothing after the others |
# | asynchronous | | rank 0 serves and does not compute. A worker fetches all weights and sends a gradient, one message each; a step is the update of one worker. Its steps depend on the clock, so it has only one seed, and the looks take place while the clock runs |
# | pipeline | `micro_batches` (4): parts of a batch that go through the stages one after the other | activations to the next stage, gradients back. A stage takes a quarter of each sample's time, and the 8 ms |
#
# `batch` counts the samples that *each* rank takes in a step. A pipeline's ranks share one batch, so a batch of 64 there corresponds to 16 in the others.
#
# ## 2. What a speed-up is made of
#
# If one rank takes $N_1$ steps of $T_1$ seconds to the target, and $R$ ranks take $N_R$ steps of $T_R$ seconds, then
#
# $$S = \frac{N_1 T_1}{N_R T_R} = \frac{N_1}{N_R} \cdot \frac{T_1}{T_R}.$$
#
# The first factor is about learning: it is $R$ if a step with $R$ times the samples is worth $R$ steps, and rarely more. The second is about machines: with the same batch on each rank it is 1 at best, if communication costs nothing. Both are usually smaller, and you can predict them separately.

# %%
two_parts()

# %% [markdown]
# ### Exercise 1: what synchronising costs
#
# Links are sold in megabits a second (1 Mbit = 10⁶ bit, 8 bits are a byte). An all-reduce of $n$ bytes over $p$ ranks takes the smaller of
#
# $$\lg p\,(\alpha + n\beta) \quad\text{(recursive doubling)} \qquad\text{and}\qquad 2\,(p-1)\,\Big(\alpha + \frac{n}{p}\beta\Big) \quad\text{(ring)},$$
#
# where α is the latency in seconds, β the seconds that a byte takes, and lg the logarithm to base 2; $p$ is a power of two. Write `sync_seconds(buckets, ranks, latency, megabits)`: it returns the seconds that it takes to synchronise gradients that leave in buckets, one all-reduce after the other. `buckets` is a list of their bytes.
#
# (Why these two? The emulated link charges for them, and any number of ranks can run them. Rabenseifner's algorithm, which beats the ring in lesson 03 if $p$ is a power of two, takes $2 \lg p\,\alpha + 2\,\frac{p-1}{p}\,n\beta$. With four ranks that is less than recursive doubling only above $4\,\alpha/\beta$ bytes: 250 kB on the links of tasks A and C, 500 kB on that of B. The models of A, C and B have 38, 106 and 307 kB, so it would change nothing. Only with CIFAR-10, 307 kB in task C, would it gain, by 4 %.)


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
# A way to train is described by three numbers: `ranks`, `batch` (samples that *each* rank takes in a step) and `steps` (until the target). A rank computes a step in `fixed_seconds`, plus `sample_seconds` for each of its samples. At most `cores` ranks compute at the same time: if there are more ranks, they compute in turns. When all have computed, several ranks synchronise for `sync` seconds in each step. A single rank, also as `many`, does not synchronise.
#
# Write `speed_up(one, many, sample_seconds, fixed_seconds, sync, cores)`: it returns how many times as fast `many` reach the target as `one` does. `one` and `many` have the attributes `ranks`, `batch` and `steps`.


# %% tags=["exercise"] exercise="14.speed_up"
def speed_up(one, many, sample_seconds, fixed_seconds, sync, cores):
    """Return the time to the target of one rank, divided by that of many."""
    ### BEGIN SOLUTION
    turns = -(-many.ranks // cores)  # rounded up
    alone = one.steps * (fixed_seconds + one.batch * sample_seconds)
    step = turns * (fixed_seconds + many.batch * sample_seconds)
    if many.ranks > 1:
        step += sync
    return alone / (many.steps * step)
    ### END SOLUTION


# %% tags=["check"]
check("14.speed_up")

# %% [markdown]
# Stuck? `hint("14.speed_up")`, `solution("14.speed_up")`.
#
# ## 3. First solved example: task A, flattened
#
# Task A is a small MLP. It has 9,610 parameters in four tensors, so its gradients have 38,440 bytes. The link has a latency of 5 ms and 100 Mbit/s, or 12.5 MB/s.
#
# **Which strategy?** A step computes for 8 + 16 · 2 = 40 ms. An all-reduce of each tensor by itself pays the latency four times, and one of all of them pays it once. Your formulas say how much that is. (If one is not written, or not yet right, `yours_or_solution` takes the worked solution, and says so.)

# %%
my_sync, my_speed_up = yours_or_solution("14.sync_seconds"), yours_or_solution("14.speed_up")
task_a = TASKS["A"]
tensors = [32_768, 512, 5_120, 40]
per_layer_a = my_sync(tensors, 4, task_a.latency, task_a.megabits)
at_once_a = my_sync([sum(tensors)], 4, task_a.latency, task_a.megabits)
print(f"per layer {1e3 * per_layer_a:.0f} ms, flattened {1e3 * at_once_a:.0f} ms")

# %% [markdown]
# So we choose flattened: a step will take 40 + 16 = 56 ms.
#
# **How many steps?** No formula can say. But a step of four ranks with 16 samples each equals a step of one process with 64 samples (lesson 04). So one process can find out quickly, without link and device. This is a *pilot*: it tries four learning rates with five seeds each, and the ranks share the work. One rank with batch 16 gets the same pilot.

# %%
# %%px
pilots_a = {batch: training.pilot(TASKS["A"], batch) for batch in (16, 64)}

# %% tags=["nbval-ignore-output"]
pilots_a = cluster.view["pilots_a"][0]
for rate in task_a.rates:
    print(f"rate {rate}: {pilots_a[16][rate]} steps of 16 samples, {pilots_a[64][rate]} of 64")
(rate_a, steps_a), (rate_four_a, steps_four_a) = best_rate(pilots_a[16]), best_rate(pilots_a[64])
print(f"one rank: {steps_a} at {rate_a}; four ranks: {steps_four_a} at {rate_four_a}")
cluster.view["rate_a"] = rate_a

# %% [markdown]
# Look at the rows. At 0.1 a step of 64 samples is worth hardly more than one of 16: both follow the same path, with little noise to average away. The larger batch pays at rates at which the small one has become noisy. (You may begin a search with the linear rule of lesson 05, four times the rate for four times the batch; a pilot decides.)
#
# **Predict.** Each side has its best rate. A step takes 40 ms on one rank and 56 ms on four. What will be the speed-up? Write a number.

# %%
prediction = None

# %% tags=["nbval-ignore-output"]
one_a, many_a = costs.Run(1, 16, steps_a), costs.Run(4, 16, steps_four_a)
device = task_a.sample_seconds, task_a.fixed_seconds  # the same in all tasks
predicted_a = my_speed_up(one_a, many_a, *device, at_once_a, cores=4)
compare(prediction, predicted_a, within=0.05, source="By the formula")

# %% [markdown]
# If the baseline had kept the rate 0.1, where many tutorials begin, the same run would be reported as

# %% tags=["nbval-ignore-output"]
untuned_a = costs.Run(1, 16, pilots_a[16][0.1])
print(f"{my_speed_up(untuned_a, many_a, *device, at_once_a, cores=4):.2f} times as fast")
assert pilots_a[16][0.1] > 1.5 * steps_a

# %% [markdown]
# Most of that is the learning rate, which needs no second rank.
#
# Now we write down the prediction, before the run. The journal seals each line together with the line before it (a *hash chain*). If a number is changed later, the seal breaks, and the report says so. Only predictions written before the first run of a plan count.

# %% tags=["nbval-ignore-output"]
journal = Journal.for_examples()
plan_a = Plan("flattened", batch=16, rate=rate_four_a)
why = "a pilot gave the steps; 40 ms of computing and one all-reduce of 16 ms a step"
journal.predict("A", plan_a, round(predicted_a, 2), why=why)
cluster.view["plan_a"] = plan_a

# %% [markdown]
# A strategy is a function that takes a `worker` and returns the function for one step. The worker has a model, an optimizer, and `compute(images, labels)`: forward and backward on its device. This is the whole strategy "flattened":


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
# `train_alone` runs the baseline on rank 0; `train` runs the plan on all ranks, over the link. Afterwards each rank holds its measurements.

# %%
# %%px
alone_a = training.train_alone(TASKS["A"], Plan("alone", 16, rate_a)) if rank == 0 else None
ours_a = training.train(TASKS["A"], plan_a)
assert len(set(comm.allgather(ours_a.checksum))) == 1, "replicas are equal to the bit"
assert ours_a.calls == ours_a.looks[-1].steps, "one all-reduce a step"

# %%
alone_a, ours_a = cluster.view["alone_a"][0], cluster.view["ours_a"]
assert abs(alone_a.steps - steps_a) <= 16, "as in the pilot, up to roundings"
assert abs(ours_a[0].steps - steps_four_a) <= 16, "as in the pilot, too"
assert alone_a.step_seconds >= 0.040, "no step is faster than its device"
assert ours_a[0].step_seconds >= 0.040 + at_once_a, "and its link"

# %% tags=["nbval-ignore-output"]
result_a = Result.of("A", plan_a, alone_a, ours_a)
learned = "The steps were right; a step is longer than predicted, for sleepers wake up late."
report_a = write_report(journal, result_a, learned=learned, author="solved example 1")
report_a

# %% [markdown]
# Read it from top to bottom: the prediction, the measurement, the steps of each seed, and the two factors. The pilot predicted the number of steps, because four ranks equal one process with batch 64, up to rounding. So the whole error of the prediction comes from the length of a step. The timeline shows it: after each block of work all ranks wait for the all-reduce. They wait longer than predicted by the time that it takes to wake up, and on a busy machine longer still.
#
# ## 4. When is the target reached?
#
# ### Exercise 3: time to accuracy
#
# `looks` is a list of pairs (seconds, accuracy), in the order of time. Write `time_to_target(looks, target)`: it returns the seconds of the first look whose accuracy is at the target or above it. It returns `None` if there is no such look, or no look at all.


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
# Try it on the run that you have just made: when, on the clock, was the target first seen?

# %% tags=["nbval-ignore-output"]
my_time = yours_or_solution("14.time_to_target")
for name, run in (("one rank", alone_a), ("flattened", ours_a[0])):
    seconds = my_time([(look.seconds, look.accuracy) for look in run.looks], run.target)
    print(f"{name}: {seconds:.2f} s with the first seed, {run.seconds:.2f} s for the median")
    assert seconds == run.reached.seconds

# %% [markdown]
# One look is one measurement, and accuracies go up and down from look to look. A target counts as met even if one look meets it by luck. That is why both sides look equally often, and why we run five seeds. The row "seeds" of the report says how far they are apart. A difference smaller than that means nothing.
#
# ## 5. Second solved example: task B, local SGD
#
# Task B has a wider model with one hidden layer of 1,024: 76,810 parameters or 307,240 bytes. Its link has a latency of 20 ms and 50 Mbit/s.
#
# **Predict.** How many ms does one all-reduce of all gradients take, and can synchronous SGD with four ranks pay if a step computes for 40 ms? Write `(ms, True)` or `(ms, False)`.

# %%
prediction = None

# %%
task_b = TASKS["B"]
at_once_b = my_sync([307_240], 4, task_b.latency, task_b.megabits)
pays = at_once_b / 0.040 < 4 - 1
compare(prediction, (round(1e3 * at_once_b), pays), within=0.05, source="By the formula")

# %%
print(f"synchronising / computing: {at_once_b / 0.040:.1f}")
assert not pays

# %% [markdown]
# Synchronising takes three and a half times as long as computing. Four ranks rarely need only a fourth of the steps, and even then a ratio above three does not pay (lesson 06). Sending half as many bytes would not help enough, either. So communicate less often: *local SGD* (lesson 09) lets each rank take `every` steps by itself, and then averages the weights. With `every` = 8, a step costs 40 ms and an eighth of an all-reduce.


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
# **How many steps?** This time a single process cannot find out; the four ranks have to. A *rehearsal* is the run itself, without link and device. It is not cheating: it gives only one of the two factors, and you still have to predict how long a step takes. (On a real cluster you would rehearse on one node, or on a part of the data.) The cell also runs the pilots of one rank and of synchronous SGD:

# %% tags=["nbval-ignore-output"]
plan_b = Plan("local SGD", batch=16, rate=0.8, options={"every": 8})
cluster.view["plan_b"] = plan_b

# %%
# %%px
pilots_b = {batch: training.pilot(TASKS["B"], batch) for batch in (16, 64)}
rehearsed_b = training.rehearse_rates(TASKS["B"], plan_b, rates=(0.4, 0.8))

# %% tags=["nbval-ignore-output"]
pilots_b, rehearsed_b = cluster.view["pilots_b"][0], cluster.view["rehearsed_b"][0]
rate_b, steps_b = best_rate(pilots_b[16])
print(f"one rank, batch 16: {steps_b} steps at the rate {rate_b}")
for rate, steps in rehearsed_b.items():
    print(f"local SGD on four, rate {rate}: {steps} steps")
steps_local_b = rehearsed_b[plan_b.rate]
cluster.view["rate_b"] = rate_b

# %% [markdown]
# **Predict.** With the steps above, and the rate 0.8 for local SGD, the speed-up is (A) above 2; (B) between 1 and 2; (C) below 1. Write a letter.

# %%
prediction = None

# %% tags=["nbval-ignore-output"]
one_b, many_b = costs.Run(1, 16, steps_b), costs.Run(4, 16, steps_local_b)
sync_b = at_once_b / 8
predicted_b = my_speed_up(one_b, many_b, *device, sync_b, cores=4)
print(
    f"{steps_b} steps of 40 ms, or {steps_local_b} of {40 + 1e3 * sync_b:.0f} ms: {predicted_b:.2f}"
)
compare(prediction, "A" if predicted_b > 2 else "B" if predicted_b > 1 else "C", source="Predicted")
why = f"rehearsed: {steps_local_b} steps; 40 ms of computing, an eighth of {1e3 * at_once_b:.0f} ms"
journal.predict("B", plan_b, round(predicted_b, 2), why=why)

# %%
# %%px
alone_b = training.train_alone(TASKS["B"], Plan("alone", 16, rate_b)) if rank == 0 else None
ours_b = training.train(TASKS["B"], plan_b)
assert ours_b.calls == ours_b.looks[-1].steps // 8, "one all-reduce in 8 steps"

# %%
alone_b, ours_b = cluster.view["alone_b"][0], cluster.view["ours_b"]
last_b = ours_b[0].looks[-1]
assert ours_b[0].steps == steps_local_b, "as many as in the rehearsal"
assert last_b.seconds >= last_b.steps * 0.040 + ours_b[0].calls * at_once_b
assert last_b.seconds < last_b.steps * (0.040 + at_once_b), "less than synchronous SGD would take"

# %% tags=["nbval-ignore-output"]
result_b = Result.of("B", plan_b, alone_b, ours_b)
learned = "A step by oneself is worth less than one together; on this link it costs far less, too."
write_report(journal, result_b, learned=learned, author="solved example 2")

# %% [markdown]
# And synchronous SGD, at its best rate?

# %% tags=["nbval-ignore-output"]
rate_sync_b, steps_sync_b = best_rate(pilots_b[64])
synchronous_b = costs.Run(4, 16, steps_sync_b)
other_b = my_speed_up(one_b, synchronous_b, *device, at_once_b, cores=4)
assert other_b < 0.8, "it would have been slower than one rank"
print(f"synchronous: {steps_sync_b} steps of {40 + 1e3 * at_once_b:.0f} ms at the rate ", end="")
print(f"{rate_sync_b}, {other_b:.2f} times as fast (predicted)")

# %% [markdown]
# It needs about as many steps, and each takes more than four times as long as a step of a single rank. So four ranks would have been slower than one. No strategy is best everywhere; numbers decide.
#
# **Predict.** If it is good to communicate rarely, why communicate at all? `"alone"` is local SGD without the averages: 40 ms a step, and no byte on the link. In steps to the target it will be (A) about as good as local SGD; (B) about as good as one rank; (C) four times as good as one rank. Write a letter.

# %%
prediction = None

# %%
# %%px
silent_b = training.rehearse(TASKS["B"], Plan("alone", 16, rate_b))

# %% tags=["nbval-ignore-output"]
silent_b = cluster.view["silent_b"][0]
silent = silent_b.steps
choices = {"A": steps_local_b, "B": steps_b, "C": steps_b / 4}
nearest = min(choices, key=lambda letter: abs(choices[letter] - silent))
compare(prediction, nearest, source="Rehearsed")
print(f"{silent} steps with nothing exchanged (seeds: {silent_b.seeds}); one rank: {steps_b}")

# %% [markdown]
# Four ranks that never communicate are one rank, and three more whose work is lost. Now suppose that each look took the mean of all four models while the clock stopped. These ranks would reach the target after 96 steps of 40 ms (*measured here*, at the rate 0.4), ahead of every plan in this lesson, by communication that the clock does not see. Whenever you read of a speed-up, ask what happened while the clock stopped.
#
# ### Exercise 4: the bytes
#
# If the provider charges for traffic, bytes cost money. Count the bytes that cross all links together until the target is reached. `model_bytes` is the size of all parameters, and so of all gradients.
#
# - `"synchronous"`: in each of `steps` steps one all-reduce round the ring, in which each of p ranks sends $2\,(p-1)/p$ of the model;
# - `"local SGD"`: the same after every `every` steps, and none for the remaining steps;
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
# What would the two strategies of task B cost if the provider charged for every megabyte?

# %% tags=["nbval-ignore-output"]
my_bytes = yours_or_solution("14.bytes_on_links")
local_bytes = my_bytes("local SGD", steps_local_b, 4, 307_240, 8)
synchronous_bytes = my_bytes("synchronous", steps_sync_b, 4, 307_240, 8)
print(f"local SGD {local_bytes / 1e6:.0f} MB, synchronous {synchronous_bytes / 1e6:.0f} MB")
assert local_bytes < synchronous_bytes / 4

# %% [markdown]
# ## 6. Your project: task C
#
# Task C uses Fashion-MNIST, CIFAR-10 or MNIST if your `COURSE_DATA` has one of them (in this order), and otherwise the digits, all with 14 × 14 pixels. Nothing is downloaded here; `course_lib.training.data.load("fashion_mnist")`, in one process, fetches it once. (Only a part of MNIST was available when the course was built; the targets of Fashion-MNIST and CIFAR-10 are estimates that have not been run.)
#
# Its model is an MLP with one hidden layer of 128. For a grey image of 14 × 14 it has four tensors of 100,352, 512, 5,120 and 40 bytes, together 106,024. (With three colours, as in CIFAR-10, the first has 301,056 bytes, and all together 306,728.) Its link has a latency of 10 ms and 50 Mbit/s. The cell prints what you have:

# %% tags=["nbval-ignore-output"]
# %%px --targets 0
training_c, test_c, name_c = training.load(TASKS["C"])
model_c = training.new_model(TASKS["C"], training_c.images)
print(f"{name_c}: {len(training_c)} images for training, {len(test_c)} for tests")
print("bytes of each tensor:", [parameter.nbytes for parameter in model_c.parameters()])

# %% [markdown]
# Make a plan as in the examples: a pilot or a rehearsal for the steps, a formula for the seconds. The next cell runs the baseline's pilot; run the plan's in a cell of your own.

# %%
# %%px --limit 120
pilot_c = training.pilot(TASKS["C"], 16)

# %% tags=["nbval-ignore-output"]
pilot_c = cluster.view["pilot_c"][0]
rate_c, steps_c = best_rate(pilot_c)
print(f"one rank, batch 16: {pilot_c}, so {steps_c} steps at the rate {rate_c}")
cluster.view["rate_c"] = rate_c

# %% [markdown]
# Take any strategy of section 1, or add one of your own: put its name and a line about it into `STRATEGIES` here, and its function into `strategies.READY` in a `%%px` cell. Change this cell, and run it; each further plan makes one more report. (The plan in this cell is not a good one: work out why.)

# %% tags=["nbval-ignore-output"]
my_plan = cluster.view["my_plan"] = None  # if the next line fails, there is no plan
my_plan = Plan("per layer", batch=16, rate=0.4)
my_prediction = None  # how many times as fast as one rank?
my_reason = ""
my_journal = Journal()
my_journal.predict("C", my_plan, my_prediction, why=my_reason)
cluster.view["my_plan"] = my_plan

# %%
# %%px --limit 300
alone_c = ours_c = None  # if training fails, there is no run
alone_c = training.train_alone(TASKS["C"], Plan("alone", 16, rate_c)) if rank == 0 else None
ours_c = training.train(TASKS["C"], my_plan)

# %% [markdown]
# Look at the numbers first. Then say in a sentence or two where your prediction was off, and why. Each time this cell runs, it writes a new report; nothing is overwritten. The files are in the folder `capstone` of your workspace. Hand in the PDF or the HTML, and the journal.

# %% tags=["nbval-ignore-output"]
my_result = Result.of("C", my_plan, cluster.view["alone_c"][0], cluster.view["ours_c"])
write_report(my_journal, my_result, learned="", author="")

# %% [markdown]
# Then look back at your prediction. For the strategies that have a formula, the line "reading" says which common mistake it resembles. (If you have not predicted, there is no such line.) These are the usual reasons why a prediction is off:
#
# | what was forgotten | what the report shows |
# |---|---|
# | communication | the second factor is far below 1 |
# | that a larger batch changes the number of steps | the first factor is not $R$ |
# | that one rank has a best learning rate, too | the first factor is far below $R$ |
# | that two seeds differ | "seeds": the medians are closer together than the seeds |
# | the part of a step that is not divided (Amdahl) | work that does not shrink with the batch |
# | that a byte has 8 bits | waits eight times as long as predicted |
# | a latency for each bucket | many short waits instead of one |
# | the way back | twice the traffic, and twice the wait |
# | that ranks share cores | work in turns, steps longer on all ranks |
# | $p$ in $2(p-1)/p$ | small, systematic differences in the bytes |
#
# ## Break it on purpose: a prediction that was improved later
#
# **Symptom.** A report shows a prediction that is right to three digits. Its author has opened the journal in an editor and changed a number:

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
# **Diagnosis.** Each line's seal is a checksum (SHA-256) of its text and the seal of the line before; the report of such a journal says from which line on the seals do not fit. (It does not detect a journal in which *all* seals were computed again. To be sure, an instructor has the seals written down before the runs.) **Fix.** Make another plan, and predict again: a wrong prediction that is well explained earns all marks.
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
# | the aim | time to a target accuracy, against one rank with the same model, data and clock, at its best learning rate |
# | the clock | runs for everything that is needed for the model whose accuracy counts |
# | steps of one seed | are luck; the median of several is a measurement |
# | speed-up | $(N_1/N_R) \cdot (T_1/T_R)$: fewer steps, times longer ones |
# | steps | for a larger batch, a pilot in one process; for other strategies, a rehearsal |
# | seconds of a step | computing, the part that is not divided, and every message's latency and bytes |
# | a fast link | synchronous, in few messages or with overlap |
# | a slow link | communicate less often, and pay in steps |
# | a prediction | counts if it was written before the run, and teaches most where it was wrong |
#
# This was the last lesson. Take a training run of your own, predict how much faster more ranks would make it, and find out.
#
# ## References and further reading
#
# 1. C. Coleman, D. Narayanan, D. Kang and others, "DAWNBench: An End-to-End Deep Learning Benchmark and Competition", workshop on ML systems at *NIPS* 2017. Time to accuracy as the measure, and optimisations that spoil each other.
# 2. C. Coleman, D. Kang, D. Narayanan and others, "Analysis of DAWNBench, a Time-to-Accuracy Machine Learning Performance Benchmark", arXiv:1806.01427, 2018. How much the measure varies from run to run.
# 3. T. Hoefler and R. Belli, "Scientific Benchmarking of Parallel Computing Systems: Twelve ways to tell the masses when reporting performance results", *Proceedings of the International Conference for High Performance Computing, Networking, Storage and Analysis* (SC15), 2015. What a report has to say so that others can believe it.
# 4. C. J. Shallue, J. Lee, J. Antognini, J. Sohl-Dickstein, R. Frostig and G. E. Dahl, "Measuring the Effects of Data Parallelism on Neural Network Training", *Journal of Machine Learning Research* 20(112), 1–49, 2019. Steps to a target against the batch, for many models, each batch with a learning rate of its own.
# 5. S. U. Stich, "Local SGD Converges Fast and Communicates Little", *International Conference on Learning Representations*, 2019.
# 6. D. H. Bailey, "Twelve Ways to Fool the Masses When Giving Performance Results on Parallel Computers", *Supercomputing Review* 4(8), 54–55, 1991. Two of them compare with slow code.
