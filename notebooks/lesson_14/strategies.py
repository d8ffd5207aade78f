"""Strategies: functions that take a worker and return the function of one training step.

A worker has a model, an optimizer, and ``compute(images, labels)``, which runs forward and backward
on its device. A strategy decides which rank sends what to which other rank, and when.
"""

# No `from __future__ import annotations`: DDP reads the annotations of its hook.
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import nn

from course_lib.parallel.gradient_sync import sync_gradients

if TYPE_CHECKING:
    from .training import Worker

Step = Callable[[torch.Tensor, torch.Tensor], None]

__all__ = ["READY", "average_weights"]


def alone(worker: "Worker") -> Step:
    """No messages: the baseline, or every rank by itself."""

    def step(images: torch.Tensor, labels: torch.Tensor) -> None:
        worker.optimizer.zero_grad()
        worker.compute(images, labels)
        worker.optimizer.step()

    return step


def per_layer(worker: "Worker") -> Step:
    """Synchronous SGD with an all-reduce for each parameter tensor."""

    def step(images: torch.Tensor, labels: torch.Tensor) -> None:
        worker.optimizer.zero_grad()
        worker.compute(images, labels)
        for parameter in worker.model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= worker.ranks
        worker.optimizer.step()

    return step


def flattened(worker: "Worker") -> Step:
    """Synchronous SGD with one all-reduce for everything."""

    def step(images: torch.Tensor, labels: torch.Tensor) -> None:
        worker.optimizer.zero_grad()
        worker.compute(images, labels)
        sync_gradients(worker.model)
        worker.optimizer.step()

    return step


def overlapped(worker: "Worker", bucket_bytes: int) -> Step:
    """Synchronous SGD by DDP: a bucket leaves as soon as backward has filled it."""
    worker.forward = nn.parallel.DistributedDataParallel(
        worker.model, bucket_cap_mb=bucket_bytes / 2**20
    )
    return alone(worker)


def compressed(worker: "Worker", bucket_bytes: int) -> Step:
    """The same as overlapped, with gradients sent as bfloat16, two bytes per number."""
    step = overlapped(worker, bucket_bytes)
    worker.forward.register_comm_hook(None, _as_bfloat16)
    return step


def _as_bfloat16(_: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    # torch's own bf16 hook refuses the CPU.
    small = bucket.buffer().to(torch.bfloat16) / dist.get_world_size()
    work = dist.all_reduce(small, async_op=True)

    def back(future: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
        return bucket.buffer().copy_(future.value()[0])

    return work.get_future().then(back)


@torch.no_grad()
def average_weights(model: nn.Module) -> None:
    """Replace all weights by their means over the ranks, in one all-reduce."""
    vector = nn.utils.parameters_to_vector(model.parameters())
    dist.all_reduce(vector)
    nn.utils.vector_to_parameters(vector / dist.get_world_size(), model.parameters())


def local_sgd(worker: "Worker", every: int) -> Step:
    """Separate steps on each rank, and after ``every`` of them the mean of all ranks' weights."""
    own_step, done = alone(worker), 0

    def step(images: torch.Tensor, labels: torch.Tensor) -> None:
        nonlocal done
        own_step(images, labels)
        done += 1
        if done % every == 0:
            average_weights(worker.model)

    return step


def pipeline(worker: "Worker", micro_batches: int) -> Step:
    """GPipe: a stage of the model on each rank, first all forwards, then all backwards."""
    worker.cut_into_stages()
    first, last = worker.rank == 0, worker.rank == worker.ranks - 1

    def step(images: torch.Tensor, labels: torch.Tensor) -> None:
        worker.optimizer.zero_grad()
        held, sent = [], []
        for x, y in zip(images.chunk(micro_batches), labels.chunk(micro_batches), strict=True):
            if not first:
                x = worker.receive(x, worker.rank - 1)
            out = worker.forward_stage(x)
            if last:
                out = worker.loss(out, y) * len(y) / len(labels)
            else:
                sent.append(dist.isend(out.detach(), worker.rank + 1))
            held.append((x, out))
        for x, out in held:
            gradient = None if last else worker.receive_like(out, worker.rank + 1)
            worker.backward_stage(out, gradient, len(x))
            if not first:
                sent.append(dist.isend(x.grad, worker.rank - 1))
        for work in sent:
            work.wait()
        worker.optimizer.step()

    return step


READY: dict[str, Callable[..., Step]] = {
    "alone": alone,
    "per layer": per_layer,
    "flattened": flattened,
    "overlapped": overlapped,
    "compressed": compressed,
    "local SGD": local_sgd,
    "pipeline": pipeline,
}
"""The strategies by the name that a plan gives; put your own here."""
