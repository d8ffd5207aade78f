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
# **The one idea.** You have understood a speed-up when you can predict it. In this lesson you choose how to train a given model on a given network, and predict the speed-up over one rank. Then you measure the speed-up, and hand in a one-page report.
#
# **You will be able to**
# - predict the *time to a target accuracy*: the number of steps times the time per step;
# - compare with one rank at its best, and tell a speed-up from luck;
# - use numbers to choose a strategy for a network, and say where your prediction was off;
# - hand in a report that others can check: prediction, measurement, timeline, traffic, accuracy.
#
# **Prerequisites:** lessons 05, 06 and 08; lesson 09 for asynchronous strategies, lesson 10 for the pipeline.
#
# **Time.** The notebook runs in about 120 s (*measured here*: 4 ranks on 2 cores, with other programs running). Allow 120 minutes to work through it and its four exercises, plus 60 minutes for a project of your own.

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
# There are three tasks. Each task specifies a model, a data set, a target for the test accuracy, a device for each rank, and a link between the ranks.

# %% tags=["nbval-ignore-output"]
for task in TASKS.values():
    print(f"{task.name}: {task.in_words()}")
    targets = ", ".join(f"{name} {target:.0%}" for name, target in task.targets.items())
    print(f"   target {targets}; one rank: batch {task.batch}")

# %% [markdown]
# A *simulated device* takes 2 ms per sample, plus 8 ms per step. The rank really computes the forward and backward passes, and then sleeps for the rest of the simulated time. So four ranks work at the same time even on two cores, as long as the real computation takes much less time than the simulated one. The link is the emulated one from lesson 06: each message takes at least the latency plus its size divided by the bandwidth. Gradients, messages and waiting are real.
#
# The *time to accuracy* is the number of steps until the target accuracy is first seen on the test set, times the seconds per step. We test the model after every fourth step, whether on one rank or on many, and stop the clock meanwhile; each of these tests is called a look. The *speed-up* of a plan is the time to accuracy of one rank divided by that of the plan. (We don't compare the time per epoch, because with a larger batch the model learns less in an epoch, as lesson 05 showed.) Three rules keep the speed-up honest:
#
# - **What we look at.** We test one replica as it is: rank 0's, or the stages of a pipeline put together. The mean of four replicas is a better model than any of them. So a plan that needs this mean to reach the target has to compute it over the link, while the clock runs.
# - **The baseline.** The learning rate of the one-rank run is tuned in the same way as a plan's, over the same set of rates. Many published speed-ups break this rule: the new method was tuned, but the old one was not [3, 4, 6]. The effect of a better learning rate is then credited to the ranks.
# - **Luck.** The same training may take twice as many steps with another seed. So the number of steps is the median over five seeds, for one rank and for many; the seconds per step are measured with the first seed only.
#
# This is what you do:
#
# 1. Choose a plan: a strategy, a batch size for each rank, and a learning rate.
# 2. Predict its speed-up, and write the prediction into the *journal*.
# 3. Run the plan, and let the notebook write the report.
#
# The strategies below are ready to use, but one of your own may be better. With `"alone"`, no rank ever sends anything; compare your plan with it to see what communication is worth.

# %%
for name, what in STRATEGIES.items():
    print(f"{name:13} {what}")

# %% [markdown]
# The table shows what each strategy does in a step, and what you can set in its `options`, as in `Plan("local SGD", 16, 0.4, {"every": 4})`:
#
# | strategy | option (default) | in a step, in addition to the computation |
# |---|---|---|
# | alone | | nothing |
# | per layer | | one all-reduce per tensor, one after the other |
# | flattened | | a single all-reduce of all bytes |
# | overlapped | `bucket_bytes` (4,000): starting with the last layer, tensors are collected until they add up to this many bytes | one all-reduce per bucket, one after the other; each begins as soon as the backward pass has filled its bucket (this pass takes two thirds of the samples' time) |
# | compressed | `bucket_bytes`, as above | the same as overlapped, with half the bytes on the link |
# | local SGD | `every` (8): the number of steps that each rank takes by itself before the weights are averaged | a single all-reduce of all bytes after every `every`-th step, nothing after the other steps |
# | asynchronous | | rank 0 is the server and does not compute. A worker fetches all the weights in one message and sends its gradient in another; each update by a worker counts as a step. The number of steps depends on timing and cannot be counted without the clock, so we run only one seed; the looks take place while the clock runs |
# | pipeline | `micro_batches` (4): the number of parts into which each batch is split; they go through the stages one after the other | activations go to the next stage, gradients come back. A stage takes a quarter of each sample's time, plus the 8 ms |
#
# `batch` counts the samples that *each* rank takes in a step. A pipeline's ranks share one batch, so a batch size of 64 for a pipeline corresponds to 16 for the other strategies.
#
# ## 2. The two factors of a speed-up
#
# If one rank needs $N_1$ steps of $T_1$ seconds to reach the target, and $R$ ranks need $N_R$ steps of $T_R$ seconds, then the speed-up is
#
# $$S = \frac{N_1 T_1}{N_R T_R} = \frac{N_1}{N_R} \cdot \frac{T_1}{T_R}.$$
#
# The first factor is about learning: it is $R$ if a step with $R$ times the samples is worth $R$ steps, and rarely larger. The second is about machines: with the same batch size on each rank it is 1 if communication costs nothing, and never larger. Both factors usually fall short of these values, and you can predict each of them separately.

# %%
two_parts()

# %% [markdown]
# ### Exercise 1: what synchronising costs
#
# Links are sold in megabits per second (1 Mbit is 10⁶ bits, and a byte is 8 bits). An all-reduce of $n$ bytes over $p$ ranks takes the smaller of
#
# $$\lg p\,(\alpha + n\beta) \quad\text{(recursive doubling)} \qquad\text{and}\qquad 2\,(p-1)\,\Big(\alpha + \frac{n}{p}\beta\Big) \quad\text{(ring)},$$
#
# where α is the latency in seconds, β the seconds per byte, and lg the logarithm to base 2; $p$ is a power of two. Write `sync_seconds(buckets, ranks, latency, megabits)`, which returns the number of seconds it takes to synchronise all the buckets of a gradient, with one all-reduce after the other. `buckets` lists the size of each bucket in bytes.
#
# (Why these two? The emulated link computes its delays from them, and any number of ranks can run them. Rabenseifner's algorithm, which beats the ring in lesson 03 if $p$ is a power of two, takes $2 \lg p\,\alpha + 2\,\frac{p-1}{p}\,n\beta$. With four ranks that is less than recursive doubling only above $4\,\alpha/\beta$ bytes: 250 kB on the links of tasks A and C, 500 kB on that of B. The gradients in tasks A, C and B take up 38, 106 and 307 kB, so Rabenseifner's algorithm would change nothing. The only exception is task C with CIFAR-10, where the gradients take up 307 kB and this algorithm would save 4%.)


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
# Three numbers describe a way to train: `ranks`, `batch` (the samples that *each* rank takes in a step) and `steps` (the number of steps to the target). In each step a rank computes for `fixed_seconds`, plus `sample_seconds` for each of its samples. At most `cores` ranks compute at the same time; if there are more ranks, they take turns. If there are several ranks, they synchronise for `sync` seconds in each step, once all of them have finished computing. A single rank does not synchronise, even if it is passed as `many`.
#
# Write `speed_up(one, many, sample_seconds, fixed_seconds, sync, cores)`, which returns the speed-up: the seconds that `one` takes to reach the target, divided by the seconds that `many` takes. Both have the attributes `ranks`, `batch` and `steps`.


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
# Task A is a small MLP with 9,610 parameters in four tensors, so its gradients take up 38,440 bytes. The link has a latency of 5 ms and a bandwidth of 100 Mbit/s, that is, 12.5 MB/s.
#
# **Which strategy?** The computation in a step takes 8 + 16 · 2 = 40 ms. A separate all-reduce for each tensor costs the latency of four all-reduces; a single one for all tensors costs the latency of one. Your first formula says how long each way takes. (If one of your two functions is missing or not yet right, `yours_or_solution` uses the worked solution, and says so.)

# %%
my_sync, my_speed_up = yours_or_solution("14.sync_seconds"), yours_or_solution("14.speed_up")
task_a = TASKS["A"]
tensors = [32_768, 512, 5_120, 40]
per_layer_a = my_sync(tensors, 4, task_a.latency, task_a.megabits)
at_once_a = my_sync([sum(tensors)], 4, task_a.latency, task_a.megabits)
print(f"per layer {1e3 * per_layer_a:.0f} ms, flattened {1e3 * at_once_a:.0f} ms")

# %% [markdown]
# So we choose "flattened": a step will take 40 + 16 = 56 ms.
#
# **How many steps?** No formula gives this number. But a step of four ranks with 16 samples each equals a step of one process with 64 samples (lesson 04). So a single process can count the steps quickly, without the link and the device. This is a *pilot*: it tries four learning rates with five seeds each, and the ranks divide these 20 runs among themselves. We run the same pilot for one rank with batch size 16.

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
# Compare the rows. At a rate of 0.1, a step with 64 samples is worth hardly more than a step with 16: both follow the same path, with little noise to average away. The larger batch pays off at rates that are too high for the noisy gradients of the small one. (You may begin a search with the linear rule of lesson 05, four times the rate for four times the batch size, but let a pilot decide.)
#
# **Predict.** Each side uses its best rate. A step takes 40 ms on one rank and 56 ms on four. What will the speed-up be? Write a number.

# %%
prediction = None

# %% tags=["nbval-ignore-output"]
one_a, many_a = costs.Run(1, 16, steps_a), costs.Run(4, 16, steps_four_a)
device = task_a.sample_seconds, task_a.fixed_seconds  # the same in all tasks
predicted_a = my_speed_up(one_a, many_a, *device, at_once_a, cores=4)
compare(prediction, predicted_a, within=0.05, source="By the formula")

# %% [markdown]
# Suppose that the baseline had kept the rate of 0.1, with which many tutorials begin. The same run would then have been reported as:

# %% tags=["nbval-ignore-output"]
untuned_a = costs.Run(1, 16, pilots_a[16][0.1])
print(f"{my_speed_up(untuned_a, many_a, *device, at_once_a, cores=4):.2f} times as fast")
assert pilots_a[16][0.1] > 1.5 * steps_a

# %% [markdown]
# Most of that comes from the learning rate, which you can change without a second rank.
#
# Now we write down the prediction, before the run. The journal puts a seal on each line: a checksum that also covers the seal of the previous line (a *hash chain*). If a number is changed later, the seal breaks, and the report says so. A prediction counts only if it was written before the plan's first run.

# %% tags=["nbval-ignore-output"]
journal = Journal.for_examples()
plan_a = Plan("flattened", batch=16, rate=rate_four_a)
why = "a pilot gave the steps; 40 ms of computing and one all-reduce of 16 ms a step"
journal.predict("A", plan_a, round(predicted_a, 2), why=why)
cluster.view["plan_a"] = plan_a

# %% [markdown]
# A strategy is a function: it takes a `worker` and returns the function that does one step. The worker has a model, an optimizer, and a method `compute(images, labels)`, which runs the forward and backward passes on the worker's device. Here is the whole of the strategy "flattened":


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
# `train_alone` runs the baseline on rank 0; `train` runs the plan on all ranks, over the link. Afterwards each rank holds its own measurements.

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
# Read the report from top to bottom: the prediction, the measurement, the steps of each seed, and the two factors. The pilot predicted the number of steps correctly, because four ranks equal one process with batch size 64, up to rounding. So the prediction is off only because a step takes longer than predicted. The timeline shows where the time goes: after each block of work, all ranks wait for the all-reduce. They wait longer than predicted because a sleeping process takes time to wake up, and longer still on a busy machine.
#
# ## 4. When is the target reached?
#
# ### Exercise 3: time to accuracy
#
# `looks` is a list of pairs (seconds, accuracy), in order of time. Write `time_to_target(looks, target)`, which returns the time in seconds of the first look whose accuracy is at or above the target. It returns `None` if there is no such look, as when `looks` is empty.


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
# Try your function on the two runs of task A: after how many seconds did each run reach the target accuracy?

# %% tags=["nbval-ignore-output"]
my_time = yours_or_solution("14.time_to_target")
for name, run in (("one rank", alone_a), ("flattened", ours_a[0])):
    seconds = my_time([(look.seconds, look.accuracy) for look in run.looks], run.target)
    print(f"{name}: {seconds:.2f} s with the first seed, {run.seconds:.2f} s for the median")
    assert seconds == run.reached.seconds

# %% [markdown]
# One look is one measurement, and the accuracy goes up and down from look to look. A single lucky look is enough for the target to count as reached. That is why the baseline and the plan are tested equally often, and why we run five seeds. The report's "seeds" row shows how much the number of steps varies between seeds. If two plans differ by less than that, the difference means nothing.
#
# ## 5. Second solved example: task B, local SGD
#
# Task B has a wider model, with one hidden layer of 1,024 units: 76,810 parameters, or 307,240 bytes. Its link has a latency of 20 ms and a bandwidth of 50 Mbit/s.
#
# **Predict.** How many milliseconds does one all-reduce of all gradients take? And can synchronous SGD with four ranks pay off if the computation in a step takes 40 ms? Write `(ms, True)` or `(ms, False)`.

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
# Synchronising takes three and a half times as long as computing. Four ranks rarely reach a target in a quarter of the steps, and even if they did, they would not pay off at a ratio above three (lesson 06). Nor would it help enough to send half as many bytes. So communicate less often: in *local SGD* (lesson 09), each rank takes `every` steps by itself, and then the ranks average their weights. With `every` = 8, a step costs 40 ms plus an eighth of an all-reduce.


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
# **How many steps?** This time a single process cannot count them; you need all four ranks. A *rehearsal* is the run itself, without the link and the device. That is not cheating: a rehearsal gives you only one of the two factors, and you still have to predict how long a step takes. (On a real cluster you would rehearse on one node, or on part of the data.) The next cells also run the pilots for one rank and for synchronous SGD:

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
# **Predict.** With the numbers of steps above, and a rate of 0.8 for local SGD, what will the speed-up be: (A) above 2; (B) between 1 and 2; (C) below 1? Answer with a letter.

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
# How well would synchronous SGD have done at its best rate?

# %% tags=["nbval-ignore-output"]
rate_sync_b, steps_sync_b = best_rate(pilots_b[64])
synchronous_b = costs.Run(4, 16, steps_sync_b)
other_b = my_speed_up(one_b, synchronous_b, *device, at_once_b, cores=4)
assert other_b < 0.8, "it would have been slower than one rank"
print(f"synchronous: {steps_sync_b} steps of {40 + 1e3 * at_once_b:.0f} ms at the rate ", end="")
print(f"{rate_sync_b}, {other_b:.2f} times as fast (predicted)")

# %% [markdown]
# Synchronous SGD needs about as many steps as local SGD, but each of its steps takes more than four times as long as a step on a single rank. So four ranks would have been slower than one. No strategy is best everywhere; the numbers decide.
#
# **Predict.** If it is good to communicate rarely, why communicate at all? `"alone"` is local SGD without the averaging: 40 ms per step, and not a byte on the link. How many steps will it need to reach the target: (A) about as many as local SGD; (B) about as many as one rank; (C) a quarter as many as one rank? Answer with a letter.

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
# Four ranks that never communicate are no better than one: the work of the other three is lost. Now suppose that each look tested the mean of all four models while the clock was stopped. These ranks would reach the target after 96 steps of 40 ms (*measured here*, at a rate of 0.4), ahead of every plan in this lesson, thanks to communication that the clock does not see. Whenever you read about a speed-up, ask what happened while the clock was stopped.
#
# ### Exercise 4: the bytes
#
# If your provider charges for traffic, bytes cost money. Count all the bytes sent over the links, by all ranks together, until the target is reached. `model_bytes` is the size of all parameters, and therefore of all gradients.
#
# - `"synchronous"`: each of `steps` steps has one ring all-reduce, in which each of p ranks sends $2\,(p-1)/p$ times the model's bytes;
# - `"local SGD"`: the same all-reduce after every `every` steps, and none for any steps left over at the end;
# - `"server"`: for each of `steps` updates, one worker fetches the parameters and sends a gradient.
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
# How many megabytes would you pay for with each of the two strategies in task B?

# %% tags=["nbval-ignore-output"]
my_bytes = yours_or_solution("14.bytes_on_links")
local_bytes = my_bytes("local SGD", steps_local_b, 4, 307_240, 8)
synchronous_bytes = my_bytes("synchronous", steps_sync_b, 4, 307_240, 8)
print(f"local SGD {local_bytes / 1e6:.0f} MB, synchronous {synchronous_bytes / 1e6:.0f} MB")
assert local_bytes < synchronous_bytes / 4

# %% [markdown]
# ## 6. Your project: task C
#
# Task C uses the first of Fashion-MNIST, CIFAR-10 and MNIST that it finds in your `COURSE_DATA` folder, or else the digits, all at 14 × 14 pixels. Nothing is downloaded here. To fetch a data set, call, for example, `course_lib.training.data.load("fashion_mnist")` once, in a single process. (Only part of MNIST was available when the course was built; the targets for Fashion-MNIST and CIFAR-10 are estimates that have not been tested with a run.)
#
# The model is an MLP with one hidden layer of 128 units. For a grey image of 14 × 14 pixels it has four tensors, of 100,352, 512, 5,120 and 40 bytes, 106,024 in all. (With three colours, as in CIFAR-10, the first tensor takes up 301,056 bytes, and all four 306,728.) The link has a latency of 10 ms and a bandwidth of 50 Mbit/s. The next cell prints which data set and which tensors you have:

# %% tags=["nbval-ignore-output"]
# %%px --targets 0
training_c, test_c, name_c = training.load(TASKS["C"])
model_c = training.new_model(TASKS["C"], training_c.images)
print(f"{name_c}: {len(training_c)} images for training, {len(test_c)} for tests")
print("bytes of each tensor:", [parameter.nbytes for parameter in model_c.parameters()])

# %% [markdown]
# Make a plan as in the examples, with a pilot or a rehearsal for the number of steps and a formula for the seconds per step. The next cell runs the baseline's pilot; run your plan's pilot in a cell of your own.

# %%
# %%px --limit 120
pilot_c = training.pilot(TASKS["C"], 16)

# %% tags=["nbval-ignore-output"]
pilot_c = cluster.view["pilot_c"][0]
rate_c, steps_c = best_rate(pilot_c)
print(f"one rank, batch 16: {pilot_c}, so {steps_c} steps at the rate {rate_c}")
cluster.view["rate_c"] = rate_c

# %% [markdown]
# Take any strategy from section 1, or add one of your own: put its name and a one-line description into `STRATEGIES` in the notebook, and its function into `strategies.READY` in a `%%px` cell. Then put your plan into the next cell, and run that cell and the two code cells after it. You can do this for as many plans as you like; each gives you another report. (The plan that is in the cell now is not a good one: work out why.)

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
# Run the next cell and look at the numbers first. Then say in `learned`, in a sentence or two, where your prediction was off and why, put your name into `author`, and run the cell again. Each run writes a new report; nothing is overwritten. The files are in the folder `capstone` in your workspace. Hand in the PDF or the HTML file, together with the journal.

# %% tags=["nbval-ignore-output"]
my_result = Result.of("C", my_plan, cluster.view["alone_c"][0], cluster.view["ours_c"])
write_report(my_journal, my_result, learned="", author="")

# %% [markdown]
# Now look back at your prediction. For the strategies that have a formula, the report's "reading" row says which common mistake, if any, would lead to a prediction like yours. (If you made no prediction, there is no such row.) A prediction is usually off for one of these reasons:
#
# | what was forgotten | what the report shows |
# |---|---|
# | communication | the second factor is far below 1 |
# | that a larger batch changes the number of steps | the first factor is not $R$ |
# | that one rank has a best learning rate, too | the first factor is far below $R$ |
# | that seeds differ | in the "seeds" row, the two medians differ by less than the seeds do |
# | the part of a step that is not divided among the ranks (Amdahl) | some work does not shrink with the batch |
# | that a byte has 8 bits | the waits are eight times as long as predicted |
# | a latency for each bucket | there are many short waits instead of one |
# | the way back | the traffic and the waits are twice what was predicted |
# | that ranks share cores | the ranks take turns to compute, and the steps take longer on all of them |
# | the right $p$ in $2(p-1)/p$ | the bytes differ from the prediction by a small constant factor |
#
# ## Break it on purpose: a prediction improved after the run
#
# **Symptom.** A report shows a prediction that is right to three digits. Its author opened the journal in an editor and changed a number:

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
# **Diagnosis.** Each line's seal is a checksum (SHA-256) of the line's text and of the previous line's seal; a report that is written from such a journal says at which line the seals stop matching. (It cannot tell if *all* the seals were recomputed. To rule that out, an instructor collects the seals before the runs.) **Fix.** Make another plan, and predict again: a wrong prediction that is well explained earns full marks.
#
# ## For instructors: a rubric
#
# There are twenty points. The rubric is also in `notebooks/lesson_14/rubric.md`.

# %%
from IPython.display import Markdown

Markdown(rubric())

# %% [markdown]
# ## Recap
#
# | | what to remember |
# |---|---|
# | the aim | time to a target accuracy, compared with one rank that has the same model, data and clock, at its best learning rate |
# | the clock | runs for everything that produces the model whose accuracy counts |
# | the number of steps | with one seed is luck; the median of several seeds is a measurement |
# | speed-up | $(N_1/N_R) \cdot (T_1/T_R)$: fewer steps, but longer ones |
# | to predict the steps | for a larger batch, run a pilot in one process; for other strategies, a rehearsal |
# | to predict the seconds per step | add up the computation, the part that is not divided, and every message's latency and bytes |
# | a fast link | synchronise in few messages, or with overlap |
# | a slow link | communicate less often, and pay with more steps |
# | a prediction | counts if you wrote it before the run, and teaches you most where it was wrong |
#
# This was the last lesson. Take a training run of your own, predict how much faster more ranks would make it, and find out.
#
# ## References and further reading
#
# 1. C. Coleman, D. Narayanan, D. Kang and others, "DAWNBench: An End-to-End Deep Learning Benchmark and Competition", workshop on ML systems at *NIPS* 2017. Uses time to accuracy as the measure, and shows optimisations that interfere with each other.
# 2. C. Coleman, D. Kang, D. Narayanan and others, "Analysis of DAWNBench, a Time-to-Accuracy Machine Learning Performance Benchmark", arXiv:1806.01427, 2018. Shows how much the measure varies from run to run.
# 3. T. Hoefler and R. Belli, "Scientific Benchmarking of Parallel Computing Systems: Twelve ways to tell the masses when reporting performance results", *Proceedings of the International Conference for High Performance Computing, Networking, Storage and Analysis* (SC15), 2015. Says what a report has to contain so that others can trust and repeat its measurements.
# 4. C. J. Shallue, J. Lee, J. Antognini, J. Sohl-Dickstein, R. Frostig and G. E. Dahl, "Measuring the Effects of Data Parallelism on Neural Network Training", *Journal of Machine Learning Research* 20(112), 1–49, 2019. Plots steps to a target against batch size for many models, with a learning rate for each batch size.
# 5. S. U. Stich, "Local SGD Converges Fast and Communicates Little", *International Conference on Learning Representations*, 2019.
# 6. D. H. Bailey, "Twelve Ways to Fool the Masses When Giving Performance Results on Parallel Computers", *Supercomputing Review* 4(8), 54–55, 1991. Two of the twelve ways are comparisons with slow code.
