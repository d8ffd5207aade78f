"""A training program with a bottleneck to find. Do not read on before you have found it.

The network learns the digits on all ranks, synchronously. One rank prepares its batches differently
from the others: for each batch it recomputes something that it could compute once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.profiler import record_function
from torch_mpi4py.log import events

from course_lib.parallel.gradient_sync import sync_gradients
from course_lib.training import data
from course_lib.training.models import MLP

STEPS, BATCH = 4, 32
SLOW_RANK = 2
_TALL = 1024  # rows of the decomposed matrix: tens of milliseconds for each batch


def train(steps: int = STEPS) -> None:
    """Train for some steps, with a section for each part of a step."""
    torch.manual_seed(0)
    model = MLP(64, (256, 256))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    training, _, _ = data.load_available("digits")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for step in range(steps):
        first = BATCH * (step * ranks + rank)
        with _section("load"):
            images, labels = training[first : first + BATCH]
            images = _prepared(images, training.images, slow=rank == SLOW_RANK)
        with _section("forward"):
            loss = F.cross_entropy(model(images), labels)
        with _section("backward"):
            optimizer.zero_grad()
            loss.backward()
        with _section("sync"):
            sync_gradients(model)
        with _section("update"):
            optimizer.step()


@contextmanager
def _section(name: str) -> Iterator[None]:
    with events.section(name), record_function(name):
        yield


def _prepared(images: torch.Tensor, everything: torch.Tensor, slow: bool) -> torch.Tensor:
    if slow:  # the main directions of the data set: they are the same for every batch
        torch.linalg.svd(everything[:_TALL].flatten(1), full_matrices=True)
    return (images - everything.mean()) / everything.std()
