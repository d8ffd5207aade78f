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
# **The one idea.** You have understood a speed-up when you can predict it. You choose how to train a given model on a given network, write down first how many times as fast it will be, and then find out, in a report of one page.
#
# **You will be able to**
# - predict the *time to a target accuracy*: how many steps, times how long a step;
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
# A *simulated device* computes a sample in 2 ms and needs 8 ms a step besides. It is made by sleeping: forward and backward are real, and what is left of the device's time is slept away. So four ranks compute at the same time on two cores as well, as long as the real computing is much shorter than the device's. The link is lesson 06's emulated one: each message takes at least its latency plus its bytes over the bandwidth. Gradients, messages and waiting are real.
#
# The *time to accuracy* is the number of steps until the test accuracy is first seen at the target, times the seconds of a step. Looking takes place after every fourth step, of one rank as of many, and the clock stands still meanwhile. The *speed-up* of a plan is the time to accuracy of one rank divided by that of the plan's ranks. (Not the time of an epoch: lesson 05 has shown that a larger batch learns less from one.) Three rules keep it honest:
#
# - **What is looked at.** One replica, as it is: rank 0's, or the stages of a pipeline put together. A mean of four replicas is a better model than each of them, so a plan that needs that mean to reach the target has to make it itself, on the clock and over the link.
# - **The baseline.** One rank gets the best of the learning rates that the plans may choose from, found in the same way. To tune the new method and leave the old one as it was is one of the commonest faults of published speed-ups [3, 4, 6]: the learning rate is then measured along with the ranks.
# - **Luck.** The same training may take twice the steps with another seed. So the steps are the median of five seeds, for one rank as for many; the seconds of a step are measured on the clock, with the first of them.
#
# What you do:
#
# 1. Choose a plan: a strategy, the batch of each rank, a learning rate.
# 2. Predict its speed-up, and write it into the *journal*.
# 3. Run it, and have the report written.
#
# These strategies are ready; one of your own may be better. With `"alone"` no rank ever sends anything: try what communicating is worth against that.

# %%
for name, what in STRATEGIES.items():
    print(f"{name:13} {what}")

# %% [markdown]
# What each of them does in a step, and what you can tell it by `options`, such as `Plan("local SGD", 16, 0.4, {"every": 4})`:
#
# | strategy | option (default) | in a step, besides computing |
# |---|---|---|
# | alone | | nothing |
# | per layer | | an all-reduce for each tensor, one after the other |
# | flattened | | one all-reduce of all bytes |
# | overlapped | `bucket_bytes` (4,000): from the last layer on, tensors are collected until they have so many bytes | an all-reduce for each bucket, one after the other; each begins as soon as backward, two thirds of the samples' time, has filled its bucket |
# | compressed | `bucket_bytes`, as above | the same with half the bytes on the link |
# | local SGD | `every` (8): steps that each rank takes by itself before the weights are averaged | one all-reduce of all bytes after every `every`-th step, nothing after the others |
# | asynchronous | | rank 0 serves and does not compute. A worker fetches all weights and sends a gradient, one message each; a step is the update of one worker. Its steps depend on the clock, so it has one seed, and is looked at while the clock runs |
# | pipeline | `micro_batches` (4): parts of a batch that go through the stages one after the other | activations to the next stage, gradients back. A stage takes a quarter of each sample's time, and the 8 ms |
#
# `batch` counts the samples that *each* rank takes in a step. A pipeline's ranks have one batch together, so its 64 are what 16 are to the others.
#
# ## 2. What a speed-up is made of
#
# If one rank takes $N_1$ steps of $T_1$ seconds to the target, and $R$ ranks take $N_R$ of $T_R$, then
#
# $$S = \frac{N_1 T_1}{N_R T_R} = \frac{N_1}{N_R} \cdot \frac{T_1}{T_R}.$$
#
# The first factor is about learning: it is $R$ if a step with $R$ times the samples is worth $R$ steps, and rarely more. The second is about machines: with the same batch on each rank it is 1 at best, if communication costs nothing. Both are mostly below that, and they can be predicted separately.

# %%
two_parts()

# %% [markdown]
# ### Exercise 1: what synchronising costs
#
# A link is sold in megabits a second (1 Mbit = 10⁶ bit, 8 bits are a byte). On it an all-reduce of $n$ bytes over $p$ ranks takes the smaller of
#
# $$\lg p\,(\alpha + n\beta) \quad\text{(recursive doubling)} \qquad\text{and}\qquad 2\,(p-1)\,\Big(\alpha + \frac{n}{p}\beta\Big) \quad\text{(ring)},$$
#
# with α for the latency in seconds, β for the seconds a byte takes, and lg for the logarithm to base 2; $p$ is a power of two. Write `sync_seconds(buckets, ranks, latency, megabits)`: the seconds of synchronising gradients that leave in buckets, one all-reduce after the other. `buckets` is a list of their bytes.
#
# (Why these two? They are what the emulated link charges for, and any number of ranks can do them. Rabenseifner's algorithm, which beats the ring in lesson 03 if $p$ is a power of two, takes $2 \lg p\,\alpha + 2\,\frac{p-1}{p}\,n\beta$. With four ranks that is less than recursive doubling only above $4\,\alpha/\beta$ bytes: 250 kB on the links of tasks A and C, 500 kB on that of B. Their models have 38, 106 and 307 kB, so it would change nothing. Only with CIFAR-10, 307 kB in task C, would it gain, by 4 %.)


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
# A way to train is described by three numbers: `ranks`, `batch` (samples that *each* rank takes in a step) and `steps` (until the target). A rank computes a step in `fixed_seconds`, plus `sample_seconds` for each of its samples. At most `cores` ranks compute at the same time: if there are more ranks, they compute in turns. When all have computed, several ranks synchronise for `sync` seconds in each step; a single one, also as `many`, has nobody to do that with.
#
# Write `speed_up(one, many, sample_seconds, fixed_seconds, sync, cores)`: how many times as fast `many` reach the target as `one` rank. `one` and `many` have the attributes `ranks`, `batch` and `steps`.


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
# Task A is a small MLP: 9,610 parameters in four tensors, so gradients of 38,440 bytes. The link has 5 ms and 100 Mbit/s, 12.5 MB/s.
#
# **Which strategy?** A step computes for 8 + 16 · 2 = 40 ms. An all-reduce of each tensor by itself pays the latency four times, one of all of them once. Your formulas say how much that is. (If one is not written, or not yet right, `yours_or_solution` takes the worked solution, and says so.)

# %%
my_sync, my_speed_up = yours_or_solution("14.sync_seconds"), yours_or_solution("14.speed_up")
task_a = TASKS["A"]
tensors = [32_768, 512, 5_120, 40]
per_layer_a = my_sync(tensors, 4, task_a.latency, task_a.megabits)
at_once_a = my_sync([sum(tensors)], 4, task_a.latency, task_a.megabits)
print(f"per layer {1e3 * per_layer_a:.0f} ms, flattened {1e3 * at_once_a:.0f} ms")

# %% [markdown]
# So flattened: a step will take 40 + 16 = 56 ms.
#
# **How many steps?** No formula knows. But a step of four ranks with 16 samples each is a step of one process with 64 samples (lesson 04), so one process can find out, without link and device, in a moment. This is a *pilot*: it tries four learning rates with five seeds each, and the ranks share the work. One rank with batch 16 gets the same pilot.

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
# Look at the rows. At 0.1 a step of 64 samples is worth hardly more than one of 16: both follow the same path, with little noise to average away. The larger batch pays at rates at which the small one has become noisy. (The linear rule of lesson 05, four times the rate for four times the batch, is where a search may begin; a pilot decides.)
#
# **Predict.** With the best rate of each, 40 ms for a step of one rank and 56 ms for one of four: what will be the speed-up? Write a number.

# %%
prediction = None

# %% tags=["nbval-ignore-output"]
one_a, many_a = costs.Run(1, 16, steps_a), costs.Run(4, 16, steps_four_a)
device = task_a.sample_seconds, task_a.fixed_seconds  # the same in all tasks
predicted_a = my_speed_up(one_a, many_a, *device, at_once_a, cores=4)
compare(prediction, predicted_a, within=0.05, source="By the formula")

# %% [markdown]
# Had the baseline been left at the rate 0.1, with which many a tutorial begins, the very same run would be sold as

# %% tags=["nbval-ignore-output"]
untuned_a = costs.Run(1, 16, pilots_a[16][0.1])
print(f"{my_speed_up(untuned_a, many_a, *device, at_once_a, cores=4):.2f} times as fast")
assert pilots_a[16][0.1] > 1.5 * steps_a

# %% [markdown]
# Most of that is the learning rate, which needs no second rank.
#
# Now the prediction is written down, before the run. The journal seals each line together with the line before (a *hash chain*): a number that is changed later breaks the seal, and the report says so. Only what was written before the first run of a plan counts.

# %% tags=["nbval-ignore-output"]
journal = Journal.for_examples()
plan_a = Plan("flattened", batch=16, rate=rate_four_a)
why = "a pilot gave the steps; 40 ms of computing and one all-reduce of 16 ms a step"
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
# Read it from top to bottom: what was predicted, what was measured, the steps of each seed, and the two factors. The number of steps was predicted by the pilot: four ranks are one process with batch 64, up to roundings. So whatever the prediction is off comes from the length of a step. The timeline shows it: after each block of work all ranks wait for the all-reduce, longer than they should by what it takes to wake up; on a busy machine by more.
#
# ## 4. When is the target reached?
#
# ### Exercise 3: time to accuracy
#
# `looks` is a list of pairs (seconds, accuracy), in the order of time. Write `time_to_target(looks, target)`: the seconds at which the accuracy was first seen at the target or above it, or `None`, also if nothing has been looked at yet.


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
# Try it on the run that you have just made: when was its target seen, on the clock?

# %% tags=["nbval-ignore-output"]
my_time = yours_or_solution("14.time_to_target")
for name, run in (("one rank", alone_a), ("flattened", ours_a[0])):
    seconds = my_time([(look.seconds, look.accuracy) for look in run.looks], run.target)
    print(f"{name}: {seconds:.2f} s with the first seed, {run.seconds:.2f} s for the median")
    assert seconds == run.reached.seconds

# %% [markdown]
# One look is one measurement, and accuracies jump up and down from look to look. A target that is met by luck at one look is met. That is why both sides look equally often, and why five seeds are run: the row "seeds" of the report says how far they lie apart. A difference that is smaller than that is none.
#
# ## 5. Second solved example: task B, local SGD
#
# Task B has a wider model, one hidden layer of 1,024: 76,810 parameters or 307,240 bytes. Its link has 20 ms and 50 Mbit/s.
#
# **Predict.** What does one all-reduce of all gradients take, in ms, and can synchronous SGD with four ranks pay if a step computes for 40 ms? Write `(ms, True)` or `(ms, False)`.

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
# Synchronising takes three and a half times as long as computing. Even if four ranks needed a fourth of the steps, more than three times would not pay (lesson 06), and they rarely do. Sending half as many bytes would not help enough, either. So talk less often: *local SGD* (lesson 09) lets each rank take `every` steps by itself, and then averages the weights. With every 8 steps, a step costs 40 ms and an eighth of an all-reduce.


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
# **How many steps?** This time no single process can tell; the four ranks have to. A *rehearsal* is the run itself, without link and device. It is not cheating: what it tells is one of the two factors, and how long a step takes is still to be predicted. (On a real cluster you would rehearse on one node, or on a part of the data.) Beside it, the pilots of one rank and of synchronous SGD:

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
# **Predict.** With the steps that you see above, and the rate 0.8 for local SGD, the speed-up is (A) above 2; (B) between 1 and 2; (C) below 1. Write a letter.

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
# About as many steps, each of them more than four times as long as one of a single rank: four ranks would have been slower than one. No strategy is best everywhere; numbers decide.
#
# **Predict.** If talking seldom is good, why talk at all? `"alone"` is local SGD without the averages: 40 ms a step, no byte on the link. In steps to the target it will be (A) about as good as local SGD; (B) about as good as one rank; (C) four times as good as one rank. Write a letter.

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
# Four ranks that never speak are one rank, and three more whose work is lost. Now suppose that each look took the mean of all four models, with the clock standing still: these ranks would be at the target after 96 steps of 40 ms (*measured here*, at the rate 0.4), ahead of every plan in this lesson, by communication that the clock does not see. Ask of each speed-up that you read what went on while the clock stood still.
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
# So what would the two ways of task B cost, if the provider charged for every megabyte?

# %% tags=["nbval-ignore-output"]
my_bytes = yours_or_solution("14.bytes_on_links")
local_bytes = my_bytes("local SGD", steps_local_b, 4, 307_240, 8)
synchronous_bytes = my_bytes("synchronous", steps_sync_b, 4, 307_240, 8)
print(f"local SGD {local_bytes / 1e6:.0f} MB, synchronous {synchronous_bytes / 1e6:.0f} MB")
assert local_bytes < synchronous_bytes / 4

# %% [markdown]
# ## 6. Your project: task C
#
# Task C takes Fashion-MNIST, CIFAR-10 or MNIST if your `COURSE_DATA` has one of them (in this order), else the digits, all with 14 × 14 pixels. Nothing is downloaded here; `course_lib.training.data.load("fashion_mnist")`, in one process, fetches it once. (The course was built where there was a part of MNIST; the targets of Fashion-MNIST and CIFAR-10 are estimates that have not been run.)
#
# Its model is an MLP with one hidden layer of 128. From a grey image of 14 × 14 it has four tensors of 100,352, 512, 5,120 and 40 bytes, together 106,024. (Three colours, as in CIFAR-10: 301,056 bytes in the first, 306,728 in all.) Its link has 10 ms and 50 Mbit/s. This is what you have:

# %% tags=["nbval-ignore-output"]
# %%px --targets 0
training_c, test_c, name_c = training.load(TASKS["C"])
model_c = training.new_model(TASKS["C"], training_c.images)
print(f"{name_c}: {len(training_c)} images for training, {len(test_c)} for tests")
print("bytes of each tensor:", [parameter.nbytes for parameter in model_c.parameters()])

# %% [markdown]
# Plan, and do as the examples did: a pilot or a rehearsal for the steps, a formula for the seconds. The baseline's pilot is made here; make the plan's in a cell of your own.

# %%
# %%px --limit 120
pilot_c = training.pilot(TASKS["C"], 16)

# %% tags=["nbval-ignore-output"]
pilot_c = cluster.view["pilot_c"][0]
rate_c, steps_c = best_rate(pilot_c)
print(f"one rank, batch 16: {pilot_c}, so {steps_c} steps at the rate {rate_c}")
cluster.view["rate_c"] = rate_c

# %% [markdown]
# Take any strategy of section 1, or add one of your own: its name and a line on it to `STRATEGIES` here, its function to `strategies.READY` in a `%%px` cell. Change this cell, and run it; each further plan is one more report. (The plan that stands here is not a good one: work out why.)

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
# Look at the numbers first, then say in a sentence or two where your prediction was off, and why. Each time that this cell runs, a new report is written; nothing is overwritten. The files are in the folder `capstone` of your workspace: hand in the PDF or the HTML, and the journal.

# %% tags=["nbval-ignore-output"]
my_result = Result.of("C", my_plan, cluster.view["alone_c"][0], cluster.view["ours_c"])
write_report(my_journal, my_result, learned="", author="")

# %% [markdown]
# Then look back at your prediction. The line "reading" says which usual mistake it looks like, for the strategies that have a formula. (If you have not predicted, there is no such line.) The usual reasons why a prediction is off:
#
# | what was forgotten | what the report shows |
# |---|---|
# | communication | the second factor is far below 1 |
# | that a larger batch changes the number of steps | the first factor is not $R$ |
# | that one rank has a best learning rate, too | the first factor is far below $R$ |
# | that two seeds differ | "seeds": the medians are nearer than the seeds |
# | the part of a step that is not divided (Amdahl) | work that does not shrink with the batch |
# | bits and bytes | waits eight times as long as predicted |
# | a latency for each bucket | many short waits instead of one |
# | the way back | twice the traffic, and twice the wait |
# | that ranks share cores | work in turns, steps longer on all ranks |
# | $p$ in $2(p-1)/p$ | small, systematic differences in the bytes |
#
# ## Break it on purpose: a prediction that was improved later
#
# **Symptom.** A report shows a prediction that is right to three digits. Its author has opened the journal in an editor, and changed a number:

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
# **Diagnosis.** Each line's seal is a checksum (SHA-256) of its text and the seal of the line before; the report of such a journal says from which line on the seals do not fit. (To work out *all* seals again escapes it. An instructor who wants to be sure has the seals written down before the runs.) **Fix.** Make another plan, and predict again: a miss that is explained earns all marks.
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
# | the clock | runs for everything that the model which is looked at needs |
# | steps of one seed | are luck; the median of several is a measurement |
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
# 4. C. J. Shallue, J. Lee, J. Antognini, J. Sohl-Dickstein, R. Frostig and G. E. Dahl, "Measuring the Effects of Data Parallelism on Neural Network Training", *Journal of Machine Learning Research* 20(112), 1–49, 2019. Steps to a target against the batch, for many models, each batch with a learning rate of its own.
# 5. S. U. Stich, "Local SGD Converges Fast and Communicates Little", *International Conference on Learning Representations*, 2019.
# 6. D. H. Bailey, "Twelve Ways to Fool the Masses When Giving Performance Results on Parallel Computers", *Supercomputing Review* 4(8), 54–55, 1991. Two of them compare with slow code.
