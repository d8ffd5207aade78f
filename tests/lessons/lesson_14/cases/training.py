"""Every strategy trains what it claims to, moves the bytes it claims to, and takes its time."""

from __future__ import annotations

import contextlib
import copy
import dataclasses

import torch
import torch.distributed as dist
from rank_by_rank.lesson_14 import costs, strategies, training
from rank_by_rank.lesson_14.tasks import STRATEGIES, TASKS, Plan
from torch_mpi4py import Traffic, emulated_link

from course_lib.parallel.invariants import assert_matches_serial, assert_replicas_equal
from course_lib.training import models
from course_lib.training.loops import accuracy
from tests.parallel.cases.toys import error_on_all_ranks, from_all_ranks

STEPS, BATCH, RATE = 5, 8, 0.2
TASK = dataclasses.replace(TASKS["B"], most_steps=40)
MODEL_BYTES = 307_240


def worker_of(rank: int, size: int, paced: bool = False) -> training.Worker:
    images = torch.zeros(1, 1, 8, 8)
    return training.Worker(TASK, training.new_model(TASK, images), RATE, rank, size, paced)


def batches(size: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    together = BATCH * size
    samples, _, _ = training.load(TASK)
    return [samples[torch.arange(n * together, (n + 1) * together)] for n in range(STEPS)]


def trained(name: str, rank: int, size: int, **options) -> tuple[training.Worker, Traffic]:
    """A worker after some steps of a strategy, and what it sent."""
    worker = worker_of(rank, size)
    step = strategies.READY[name](worker, **options)
    own = slice(None) if name == "pipeline" else slice(BATCH * rank, BATCH * (rank + 1))
    with Traffic() as traffic:
        for images, labels in batches(size):
            step(images[own], labels[own])
    return worker, traffic


def alone(size: int) -> torch.nn.Module:
    worker = worker_of(0, 1)
    step = strategies.READY["alone"](worker)
    for images, labels in batches(size):
        step(images, labels)
    return worker.model


def case_synchronous_strategies_equal_one_process(rank, size):
    serial = alone(size)
    for name, options, calls in (
        ("per layer", {}, 4 * STEPS),
        ("flattened", {}, STEPS),
        ("overlapped", {"bucket_bytes": 100_000}, None),
    ):
        worker, traffic = trained(name, rank, size, **options)
        assert_replicas_equal(worker.model)
        assert_matches_serial(worker.model, serial, rtol=0, atol=1e-5)
        assert models.checksum(worker.model) != models.checksum(worker_of(0, 1).model)
        if calls is not None:
            assert traffic.collectives["all_reduce"].messages == calls, name
        assert traffic.collectives["all_reduce"].bytes >= STEPS * MODEL_BYTES


def case_compressed_sends_half_the_bytes_and_stays_close(rank, size):
    worker, traffic = trained("compressed", rank, size, bucket_bytes=10**9)
    assert_replicas_equal(worker.model)
    # bfloat16 has 8 bits of a number: five steps of 0.2 may go astray by some thousandths
    assert_matches_serial(worker.model, alone(size), rtol=0, atol=5e-3)
    assert traffic.collectives["all_reduce"].bytes == STEPS * MODEL_BYTES // 2


def case_local_sgd_averages_periodically(rank, size):
    worker, traffic = trained("local SGD", rank, size, every=STEPS)
    assert_replicas_equal(worker.model)
    assert traffic.collectives["all_reduce"].messages == 1
    own, _ = trained("local SGD", rank, size, every=STEPS + 1)
    assert len(set(from_all_ranks(models.checksum(own.model)))) == size
    for mean, parameter in zip(worker.model.parameters(), own.model.parameters(), strict=True):
        total = parameter.detach().clone()
        dist.all_reduce(total)
        torch.testing.assert_close(mean.detach(), total / size)


def case_a_pipeline_trains_each_stage_on_its_rank(rank, size):
    worker, traffic = trained("pipeline", rank, size, micro_batches=4)
    serial = alone(size)
    assert sorted(set(worker.owners)) != [0], "the model is cut"
    for owner, parameter, whole in zip(
        worker.owners, worker.model.parameters(), serial.parameters(), strict=True
    ):
        if owner == rank:
            torch.testing.assert_close(parameter, whole, rtol=0, atol=1e-5)
    assert traffic.sent.messages == STEPS * 4 * ((rank > 0) + (rank < size - 1))


def case_rehearsal_takes_as_many_steps_as_the_run(rank, size):
    task = dataclasses.replace(TASK, targets={"digits": 0.8}, latency=0.01, megabits=400)
    plan = Plan("flattened", batch=16, rate=0.4)
    rehearsed, run = training.rehearse(task, plan), training.train(task, plan)
    assert rehearsed.reached is not None
    assert run.reached is not None
    assert rehearsed.seeds == run.seeds
    assert len(set(run.seeds)) > 1, "seeds differ"
    assert run.seeds[0] == run.reached.steps
    assert rehearsed.checksum == run.checksum
    one_rate = dataclasses.replace(task, rates=(0.4,))
    assert training.rehearse_rates(one_rate, plan) == {0.4: run.steps}
    (steps,) = training.pilot(one_rate, 16 * size).values()
    assert steps is not None
    assert abs(steps - run.steps) <= 4  # roundings
    least = task.baseline_step + costs.sync_seconds([MODEL_BYTES], size, 0.01, 400)
    assert run.step_seconds >= least
    assert run.calls == run.looks[-1].steps
    assert from_all_ranks(run.looks) == [run.looks] * size
    assert run.shown is not None
    assert run.shown[0] == rank
    kinds = {event.kind for event in run.shown[1]}
    assert kinds == {"section", "all_reduce"}


def case_step_takes_at_least_the_devices_time(rank, size):
    plan = Plan("alone", TASK.batch, 0.1)
    run = training.train_alone(dataclasses.replace(TASK, most_steps=8), plan)
    assert run.looks[-1].steps == 8
    assert run.step_seconds >= TASK.baseline_step


def case_each_stage_takes_its_share_of_the_device_time(rank, size):
    task = dataclasses.replace(TASK, most_steps=4, latency=0.0, megabits=1e6)
    pipe = training.train(task, Plan("pipeline", 64, 0.1, {"micro_batches": 4}))
    # Each rank computes 64 samples on its stage, and pays what a step takes besides, once.
    assert pipe.step_seconds >= task.fixed_seconds + 64 * task.sample_seconds / size


def case_server_run_counts_the_steps_of_all_workers(rank, size):
    task = dataclasses.replace(TASK, targets={"digits": 0.3})
    run = training.rehearse(task, Plan("asynchronous", batch=16, rate=0.1))
    assert run.reached is run.looks[-1], "it stops at the target"
    assert [look.steps for look in run.looks] == [*range(4, run.looks[-1].steps + 1, 4)]
    assert from_all_ranks(run.looks) == [run.looks] * size
    sent = from_all_ranks(run.sent)
    exact = costs.bytes_on_links("server", run.looks[-1].steps, size, MODEL_BYTES)
    assert (
        exact <= sum(sent) <= exact + 10 * MODEL_BYTES
    )  # greetings, and gradients that came too late


def case_run_ends_at_the_step_limit(rank, size):
    task = dataclasses.replace(TASK, targets={"digits": 1.1})
    run = training.rehearse(task, Plan("local SGD", batch=8, rate=0.01, options={"every": 4}))
    assert run.reached is None
    assert run.looks[-1].steps == 40
    assert run.looks[-1].samples == 40 * 8 * size
    assert run.calls == run.looks[-1].steps // 4


def case_evaluation_uses_one_replica_not_the_mean(rank, size):
    task = dataclasses.replace(TASK, targets={"digits": 1.1})
    test = training.load(task)[1]
    models_of = {}

    def keeps(worker):
        models_of.setdefault("mine", worker.model)  # of the first seed, whose run is returned
        return strategies.alone(worker)

    with added("keeps", keeps):
        run = training.rehearse(task, Plan("keeps", 16, 0.4))
    own = from_all_ranks(accuracy(models_of["mine"], test))
    assert len(set(own)) > 1, "replicas differ"
    assert run.looks[-1].accuracy == own[0]
    assert (run.calls, run.messages) == (0, 0)
    mean = copy.deepcopy(models_of["mine"])
    strategies.average_weights(mean)
    assert accuracy(mean, test) != own[0], "a mean would have told something else"


def case_ranks_without_messages_take_as_long_as_one(rank, size):
    task = dataclasses.replace(TASK, targets={"digits": 1.1}, most_steps=8, latency=1.0)
    run = training.train(task, Plan("local SGD", 16, 0.4, {"every": 100_000}))
    assert (run.calls, run.messages) == (0, 0)
    assert task.baseline_step <= run.step_seconds < task.latency, "no look went over the link"
    assert run.shown is not None


def case_averaging_takes_time_on_the_link(rank, size):
    task = dataclasses.replace(TASK, targets={"digits": 1.1}, most_steps=8)
    run = training.train(task, Plan("local SGD", 16, 0.4, {"every": 8}))
    once = costs.sync_seconds([MODEL_BYTES], size, task.latency, task.megabits)
    assert run.calls == 1
    assert run.looks[-1].seconds >= 8 * task.baseline_step + once
    assert "all_reduce" in {event.kind for event in run.shown[1]}, "the timeline shows it"


@contextlib.contextmanager
def added(name, strategy):
    """A strategy of a learner's own."""
    STRATEGIES[name], strategies.READY[name] = "mine", strategy
    try:
        yield
    finally:
        del STRATEGIES[name], strategies.READY[name]


def case_custom_strategy_trains_and_missing_one_raises(rank, size):
    with added("mine", strategies.READY["flattened"]):
        mine = training.rehearse(TASK, Plan("mine", 8, 0.1))
        del strategies.READY["mine"]
        message = error_on_all_ranks(ValueError, training.rehearse, TASK, Plan("mine", 8, 0.1))
        strategies.READY["mine"] = strategies.alone
    assert "the ranks have no strategy 'mine', only alone, per layer" in message
    assert mine.checksum == training.rehearse(TASK, Plan("flattened", 8, 0.1)).checksum


def case_strategy_without_a_step_raises(rank, size):
    with added("forgetful", lambda worker: None):
        message = error_on_all_ranks(TypeError, training.rehearse, TASK, Plan("forgetful", 8, 0.1))
    assert "the strategy 'forgetful' returned None" in message
    assert "the function of one step" in message


def case_evaluations_are_not_timed(rank, size):
    task = dataclasses.replace(TASK, targets={"digits": 1.1}, most_steps=8)
    plan = Plan("flattened", batch=8, rate=0.1)
    with emulated_link(0.1):
        run = training.rehearse(task, plan)
    # Two latencies a step. A look after four steps takes three collectives: 0.6 s on this link.
    assert 0.2 <= run.step_seconds < 0.35
    assert run.calls == run.looks[-1].steps == 8
