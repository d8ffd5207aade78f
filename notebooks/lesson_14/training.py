"""Trains to a target accuracy on a simulated device and an emulated link, and measures the time.

Model, data, gradients and messages are real. Two things are simulated. The *device*: forward and
backward take at least the task's seconds, because the rank sleeps for the rest of them, so ranks
that share a core still work at the same time. And the *link*, by ``emulated_link``. The clock is
stopped while the test accuracy is measured. One replica is tested as it is: rank 0's, or the stages
of a pipeline put together. The mean of several replicas would be a better model, but a strategy
that wants it has to compute it, which takes time on the link.

With the same strategy, one seed may take twice as many steps as another. So the run with the first
of ``SEEDS`` is timed and gives the seconds per step; the runs with all seeds (the others without
the clock) give the number of steps.

Every function is called on all ranks together, except ``train_alone``, which runs on one.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import cache, partial
from itertools import count, islice, pairwise
from typing import Any

import torch
import torch.distributed as dist
from rank_by_rank.lesson_14 import strategies
from rank_by_rank.lesson_14.tasks import Look, Measured, Plan, Task, median, moment
from torch import nn
from torch.nn import functional as F
from torch_mpi4py import Traffic, emulated_link, world
from torch_mpi4py.board.event_board import Event
from torch_mpi4py.log.events import events, mark, section
from torch_mpi4py.tools.clocks import clock_offsets

from course_lib.parallel.parameter_server import Asynchronous, Server, Stop
from course_lib.parallel.parameter_server import Worker as Computer
from course_lib.training import data, models
from course_lib.training.data import DataSet
from course_lib.training.loops import accuracy, batches

__all__ = ["Worker", "load", "pilot", "rehearse", "rehearse_rates", "train", "train_alone"]

_MOST_TRAINING, _MOST_TEST = 16_384, 1_000  # of a large data set: enough for these targets
SEEDS = (14, 15, 16, 17, 18)

# The first optimizer of a process imports torch._dynamo, which takes a second.
torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)


def load(task: Task) -> tuple[DataSet, DataSet, str]:
    """Return training set, test set and name of the first of the task's data sets on disk.

    Nothing is downloaded. Only a part of a large data set is used.
    """
    return _load(tuple(task.targets), task.size)


@cache
def _load(names: tuple[str, ...], size: int) -> tuple[DataSet, DataSet, str]:
    training, test, name = data.load_available(*names, size=size)
    return _part(training, _MOST_TRAINING), _part(test, _MOST_TEST), name


def _part(samples: DataSet, most: int) -> DataSet:
    # Copies: a part of a tensor would keep all of it in memory.
    return DataSet(samples.images[:most].clone(), samples.labels[:most].clone())


def new_model(task: Task, images: torch.Tensor, seed: int = SEEDS[0]) -> nn.Module:
    """Return the task's network, with the same weights on every rank and in every call."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        hidden = 1024 if task.network == "wide MLP" else 128
        return models.MLP(images[0].numel(), (hidden,))


class Worker:
    """The model, optimizer and simulated device of one rank, for a strategy to work with.

    Attributes:
        model: the whole model; its weights are the same on all ranks at first.
        optimizer: SGD over the parameters that this rank trains.
        rank, ranks: this rank's number, and how many there are.
        forward: the function that is called with images; a strategy may wrap the model.
        owners: for a model in stages, the rank that trains each parameter; else empty.
    """

    def __init__(
        self, task: Task, model: nn.Module, rate: float, rank: int, ranks: int, paced: bool
    ) -> None:
        self.model, self.rank, self.ranks = model, rank, ranks
        self.optimizer = torch.optim.SGD(model.parameters(), lr=rate)
        self.forward: Any = model
        self.owners: list[int] = []
        self.loss = F.cross_entropy
        self._sample_seconds = task.sample_seconds if paced else 0.0
        self._fixed_seconds = task.fixed_seconds if paced else 0.0
        self._begin = self._length = 0.0  # of the backward pass under way
        self._pace_backward()

    def compute(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        """Forward and backward: a third and two thirds of the device's seconds."""
        begin, whole = time.perf_counter(), len(images) * self._sample_seconds
        loss = self.loss(self.forward(images), labels)
        self._begin = begin + self._fixed_seconds + whole / 3
        self._length = whole * 2 / 3
        _sleep_until(self._begin)
        loss.backward()
        _sleep_until(self._begin + self._length)

    def _pace_backward(self) -> None:
        # Before a strategy adds hooks of its own, so that those find the gradient in its time.
        layers = [
            m for m in self.model.modules() if next(m.parameters(recurse=False), None) is not None
        ]
        for number, layer in enumerate(reversed(layers), 1):
            due = partial(self._wait_in_backward, number / len(layers))
            for parameter in layer.parameters(recurse=False):
                parameter.register_post_accumulate_grad_hook(due)

    def _wait_in_backward(self, share: float, _: torch.Tensor) -> None:
        _sleep_until(self._begin + share * self._length)

    # ---- a model in stages -------------------------------------------------------------------

    def cut_into_stages(self) -> None:
        """Give each rank its part of the model's layers, and its optimizer that part's weights."""
        layers = [m for m in self.model.modules() if not list(m.children())]
        cuts = [round(len(layers) * part / self.ranks) for part in range(self.ranks + 1)]
        stages = [nn.Sequential(*layers[a:b]) for a, b in pairwise(cuts)]
        owner = {id(p): number for number, one in enumerate(stages) for p in one.parameters()}
        self.owners = [owner[id(parameter)] for parameter in self.model.parameters()]
        self._stage, self._before = stages[self.rank], stages[: self.rank]
        own = list(self._stage.parameters())
        self.optimizer = torch.optim.SGD(
            own or [nn.Parameter(torch.zeros(1))], lr=self.optimizer.param_groups[0]["lr"]
        )
        self.optimizer.register_step_pre_hook(self._take_the_fixed_seconds)

    def _take_the_fixed_seconds(self, *_: object) -> None:
        _sleep_until(time.perf_counter() + self._fixed_seconds)

    def receive(self, images: torch.Tensor, source: int) -> torch.Tensor:
        """Return what rank ``source`` made of these images in the stages before this one."""
        with torch.no_grad():
            like = images[:1]
            for stage in self._before:
                like = stage(like)
        x = torch.empty(len(images), *like.shape[1:])
        dist.recv(x, source)
        return x.requires_grad_()

    def receive_like(self, out: torch.Tensor, source: int) -> torch.Tensor:
        """Return the gradient of ``out`` from the stage after this one."""
        gradient = torch.empty_like(out)
        dist.recv(gradient, source)
        return gradient

    def forward_stage(self, x: torch.Tensor) -> torch.Tensor:
        """This rank's stage, forward: its share of a third of the device's seconds."""
        begin = time.perf_counter()
        out = self._stage(x)
        _sleep_until(begin + len(x) * self._sample_seconds / self.ranks / 3)
        return out

    def backward_stage(
        self, out: torch.Tensor, gradient: torch.Tensor | None, samples: int
    ) -> None:
        """This rank's stage, backward: twice as long."""
        begin = time.perf_counter()
        if out.requires_grad:
            out.backward(gradient)
        _sleep_until(begin + samples * self._sample_seconds / self.ranks * 2 / 3)


def _sleep_until(moment: float) -> None:
    while (left := moment - time.perf_counter()) > 0:
        time.sleep(left)


# ---- to the target -------------------------------------------------------------------------------


def train_alone(task: Task, plan: Plan) -> Measured:
    """Train the baseline: this rank alone, on its simulated device, with the plan's batch and rate.

    The plan's strategy and options are ignored.
    """
    return _train_on_the_clock(task, _without_messages(plan), _Alone())


def pilot(task: Task, batch: int) -> dict[float, int | None]:
    """Return the number of steps that one process takes to the target, for each learning rate.

    There is neither link nor device, so a pilot says nothing about the time. The ranks divide the
    runs (one for each rate and seed) among them, and all get the results: the medians over the
    seeds, None if the target is not reached.
    """
    rank, ranks = dist.get_rank(), dist.get_world_size()
    tries = [(rate, seed) for rate in task.rates for seed in SEEDS]
    own = {}
    for rate, seed in tries[rank::ranks]:
        run = _train(task, Plan("alone", batch, rate), _Alone(), seed, paced=False)
        own[rate, seed] = _steps(run)
    found: list[Any] = [None] * ranks
    dist.all_gather_object(found, own)
    steps = {one: number for part in found for one, number in part.items()}
    return {rate: median([steps[rate, seed] for seed in SEEDS]) for rate in task.rates}


def train(task: Task, plan: Plan) -> Measured:
    """Train as ``plan`` says on all ranks, over the task's link, on the simulated devices."""
    if plan.strategy == "asynchronous":
        with emulated_link(task.latency, task.bandwidth):
            return _train_with_server(task, plan, paced=True)
    return _train_on_the_clock(task, plan, _Together())


def rehearse(task: Task, plan: Plan) -> Measured:
    """Train without link and device, which gives the number of steps but not the time."""
    if plan.strategy == "asynchronous":
        return _train_with_server(task, plan, paced=False)
    team = _Together()
    first, *others = (_train(task, plan, team, seed, paced=False) for seed in SEEDS)
    return replace(first, seeds=tuple(map(_steps, [first, *others])))


def rehearse_rates(task: Task, plan: Plan, rates: Sequence[float] = ()) -> dict[float, int | None]:
    """Return the steps of ``plan`` for each of ``rates``, or for each of the task's rates."""
    return {rate: rehearse(task, replace(plan, rate=rate)).steps for rate in rates or task.rates}


def _train_on_the_clock(task: Task, plan: Plan, team: _Alone) -> Measured:
    with emulated_link(task.latency, task.bandwidth) if team.ranks > 1 else nullcontext():
        run = _train(task, plan, team, SEEDS[0], paced=True)
    others = [_steps(_train(task, plan, team, seed, paced=False)) for seed in SEEDS[1:]]
    return replace(run, seeds=(_steps(run), *others))


def _without_messages(plan: Plan) -> Plan:
    return replace(plan, strategy="alone", options={})


def _steps(run: Measured) -> int | None:
    return run.reached.steps if run.reached else None


class _Alone:
    """What happens between the steps of one rank."""

    rank, ranks = 0, 1

    def off_the_clock(self) -> AbstractContextManager:
        return nullcontext()

    def meet(self) -> None:
        pass

    def slowest(self, seconds: float) -> float:
        return seconds

    def accuracy(self, worker: Worker, test: DataSet) -> float:
        return accuracy(worker.model, test)

    def shown(self, events: list[Event]) -> tuple:
        return 0, events, 0.0, 0.0


class _Together(_Alone):
    """What happens between the steps of several ranks; no emulated link delays it."""

    def __init__(self) -> None:
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()

    def off_the_clock(self) -> AbstractContextManager:
        return emulated_link()

    def meet(self) -> None:
        dist.barrier()

    def slowest(self, seconds: float) -> float:
        message = torch.tensor([seconds], dtype=torch.float64)
        dist.all_reduce(message, dist.ReduceOp.MAX)
        return float(message)

    @torch.no_grad()
    def accuracy(self, worker: Worker, test: DataSet) -> float:
        """Of rank 0's replica, or of the stages put together."""
        model = worker.model
        if worker.owners:
            model = copy.deepcopy(model)
            for owner, parameter in zip(worker.owners, model.parameters(), strict=True):
                dist.broadcast(parameter, owner)
        right = accuracy(model, test) if self.rank == 0 else 0.0
        message = torch.tensor([right], dtype=torch.float64)
        dist.broadcast(message, 0)
        return float(message)

    def shown(self, events: list[Event]) -> tuple:
        clock = clock_offsets(world())[self.rank]
        return self.rank, events, clock.offset, clock.residual


def _train(task: Task, plan: Plan, team: _Alone, seed: int, paced: bool) -> Measured:
    began = moment()
    training, test, name = load(task)
    model = new_model(task, training.images, seed)
    worker = Worker(task, model, plan.rate, team.rank, team.ranks, paced)
    step = _step_of(plan, worker)
    parts = 1 if plan.strategy == "pipeline" else team.ranks
    own = slice(plan.batch * team.rank, plan.batch * (team.rank + 1)) if parts > 1 else slice(None)
    source = _batches(training, plan.batch * parts, seed)
    looks, seconds, traffic, shown = [Look(0, 0, 0.0, 0.0)], 0.0, _Total(), None
    shown_at = _shown_at(task, plan) if paced else set()
    while looks[-1].accuracy < task.targets[name] and looks[-1].steps < task.most_steps:
        with team.off_the_clock():
            team.meet()
        first, begin = mark(), time.perf_counter()
        with traffic.counting():
            for images, labels in islice(source, task.look_every):
                with section("step"):
                    step(images[own], labels[own])
        took = time.perf_counter() - begin
        steps = looks[-1].steps + task.look_every
        with team.off_the_clock():
            if steps in shown_at:
                shown = team.shown(events(first))
            seconds += team.slowest(took)
            right = team.accuracy(worker, test)
            looks.append(Look(steps, steps * plan.batch * parts, seconds, right))
    return Measured(
        task=task.name,
        plan=plan,
        data=name,
        ranks=team.ranks,
        target=task.targets[name],
        looks=looks[1:],
        shown=shown,
        checksum=models.checksum(model),
        tensors=tuple(parameter.nbytes for parameter in model.parameters()),
        began=began,
        seeds=(),
        **traffic.as_dict(),
    )


def _step_of(plan: Plan, worker: Worker) -> strategies.Step:
    name = plan.strategy
    if name not in strategies.READY:
        raise ValueError(
            f"the ranks have no strategy {name!r}, only {', '.join(strategies.READY)}: run "
            f"strategies.READY[{name!r}] = its function in a %%px cell"
        )
    step = strategies.READY[name](worker, **plan.options)
    if not callable(step):
        raise TypeError(
            f"the strategy {name!r} returned {step!r}: it has to return the function of one step, "
            "step(images, labels)"
        )
    return step


def _shown_at(task: Task, plan: Plan) -> set[int]:
    """Return the looks after which the timeline's steps end; the last one that takes place counts.

    These are the second look, when everything has been loaded, and the first one after an average
    of the weights.
    """
    seldom, look = int(plan.options.get("every", 0)), task.look_every
    return {2 * look, max(2 * look, -(-seldom // look) * look)}


def _batches(
    training: DataSet, size: int, seed: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield full batches indefinitely, each epoch in a new order, the same on every rank."""
    for epoch in count():
        for chosen in batches(len(training), size, seed=1000 * seed + epoch):
            if len(chosen) == size:
                yield training[chosen]


class _Total:
    """This rank's traffic while the clock ran."""

    def __init__(self) -> None:
        self.calls = self.handed_over = self.sent = self.messages = 0

    @contextmanager
    def counting(self) -> Iterator[None]:
        with Traffic() as traffic:
            yield
        self.calls += sum(one.messages for one in traffic.collectives.values())
        self.handed_over += sum(one.bytes or 0 for one in traffic.collectives.values())
        self.sent += traffic.sent.bytes
        self.messages += traffic.sent.messages

    def as_dict(self) -> dict[str, int]:
        return dict(vars(self))


# ---- a parameter server ----------------------------------------------------------------------


def _train_with_server(task: Task, plan: Plan, paced: bool) -> Measured:
    """Train with rank 0 as the server and all other ranks as workers.

    The clock can't be stopped for ranks that never meet, so the server measures the accuracy while
    its clock runs, which takes a millisecond or two for these networks. The pace of the workers
    decides which gradients are stale, so runs without the clock would say nothing about other
    seeds; there is only one run.
    """
    began = moment()
    training, test, name = load(task)
    model, rank, ranks = new_model(task, training.images), dist.get_rank(), dist.get_world_size()
    looks: list[Look] = []
    first, begin, traffic = mark(), time.perf_counter(), _Total()

    def at_the_target(server: Server) -> bool:
        steps = server.version
        if steps % task.look_every:
            return False
        seconds, right = time.perf_counter() - begin, accuracy(model, test)
        looks.append(Look(steps, steps * plan.batch, seconds, right))
        return right >= task.targets[name]

    with traffic.counting():
        if rank == 0:
            stop = Stop(steps=task.most_steps * (ranks - 1), when=at_the_target)
            optimizer = torch.optim.SGD(model.parameters(), lr=plan.rate)
            Server(model, optimizer, mode=Asynchronous(), stop=stop).run()
        else:
            seconds = task.fixed_seconds + plan.batch * task.sample_seconds if paced else 0.0
            source = _own_batches(training, plan.batch, rank)
            Computer(model, F.cross_entropy, source, step_seconds=seconds).run()
    with emulated_link():
        message = [looks]
        dist.broadcast_object_list(message, 0)
        until = begin + 8 * task.baseline_step
        shown = _Together().shown([event for event in events(first) if event.start < until])
    return Measured(
        task=task.name,
        plan=plan,
        data=name,
        ranks=ranks,
        target=task.targets[name],
        looks=message[0],
        shown=shown,
        checksum=models.checksum(model),
        tensors=tuple(parameter.nbytes for parameter in model.parameters()),
        began=began,
        seeds=(message[0][-1].steps if message[0][-1].accuracy >= task.targets[name] else None,),
        **traffic.as_dict(),
    )


def _own_batches(
    training: DataSet, size: int, rank: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    for epoch in count():
        for chosen in batches(len(training), size, seed=1000 * (SEEDS[0] + rank) + epoch):
            if len(chosen) == size:
                yield training[chosen]
