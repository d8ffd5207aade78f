"""What distributed training must equal, computed in one process.

Each step has one shard of data per rank; the serial loss is the mean over the shards. All is
float64: only the order of additions differs between one process and many, and the tolerance
of 1e-10 leaves room for that and for nothing else.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

STEPS = 4
ROWS = 6
INPUTS = 12
CLASSES = 4
TOLERANCE = 1e-10


def shard(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return inputs (ROWS, INPUTS) and class labels (ROWS,) of one rank in one step."""
    generator = torch.Generator(torch.get_default_device()).manual_seed(1000 * step + rank)
    inputs = torch.randn(ROWS, INPUTS, generator=generator, dtype=torch.float64)
    return inputs, torch.randint(CLASSES, (ROWS,), generator=generator)


def mlp(seed: int = 1, width: int = 16) -> nn.Sequential:
    """Return a network with three linear layers."""
    torch.manual_seed(seed)
    layers = (nn.Linear(INPUTS, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
    return nn.Sequential(*layers, nn.Linear(width, CLASSES)).double()


class TiedAndFrozen(nn.Module):
    """One parameter used twice, and one that is not trained."""

    def __init__(self, seed: int = 1) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.first = nn.Linear(INPUTS, INPUTS).double()
        self.second = nn.Linear(INPUTS, INPUTS).double()
        self.second.weight = self.first.weight
        self.frozen = nn.Parameter(torch.randn(INPUTS).double(), requires_grad=False)
        self.head = nn.Linear(INPUTS, CLASSES).double()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.head(self.second(torch.tanh(self.first(inputs * self.frozen))))


class TwoHeads(nn.Module):
    """A network that uses only one of its two heads at a time."""

    def __init__(self, seed: int = 1) -> None:
        super().__init__()
        self.trunk = mlp(seed)
        self.heads = nn.ModuleList([nn.Linear(CLASSES, CLASSES) for _ in range(2)]).double()

    def forward(self, inputs: torch.Tensor, head: int = 0) -> torch.Tensor:
        return self.heads[head](self.trunk(inputs))


def loss_of(model: nn.Module, step: int, rank: int, *arguments) -> torch.Tensor:
    """Return the mean cross-entropy over one rank's shard."""
    inputs, labels = shard(step, rank)
    return nn.functional.cross_entropy(model(inputs, *arguments), labels)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    """Return the optimiser of most cases; its momentum remembers a wrong step."""
    # foreach, the default on GPUs, refuses parameters of which some are DTensors.
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=False)


def train_serially(
    model: nn.Module,
    size: int,
    *,
    optimiser: Callable[[nn.Module], torch.optim.Optimizer] = sgd,
    arguments: Callable[[int, int], tuple] = lambda step, rank: (),
    steps: int = STEPS,
) -> nn.Module:
    """Train ``model`` on the shards of all ``size`` ranks in this process and return it."""
    optimizer = optimiser(model)
    for step in range(steps):
        optimizer.zero_grad()
        losses = [loss_of(model, step, rank, *arguments(step, rank)) for rank in range(size)]
        (sum(losses) / size).backward()
        optimizer.step()
    return model


def train_rank(
    model: nn.Module,
    rank: int,
    *,
    optimizer: torch.optim.Optimizer | None = None,
    arguments: Callable[[int, int], tuple] = lambda step, rank: (),
    steps: int = STEPS,
) -> None:
    """Train one rank's replica on its own shards."""
    optimizer = optimizer or sgd(model)
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(model, step, rank, *arguments(step, rank)).backward()
        optimizer.step()


def equal_parameters(
    actual: nn.Module, expected: nn.Module, tolerance: float = TOLERANCE, moved_from=None
) -> None:
    """Raise unless all parameters agree, and training moved the trained ones."""
    wanted = dict(expected.named_parameters())
    found = dict(actual.named_parameters())
    assert found.keys() == wanted.keys()
    for name, value in found.items():
        value = value.full_tensor() if hasattr(value, "full_tensor") else value
        torch.testing.assert_close(
            value.detach(), wanted[name].detach(), rtol=tolerance, atol=tolerance, msg=name
        )
    start = dict((moved_from or mlp()).named_parameters()) if moved_from is not None else {}
    for name, before in start.items():
        assert not before.requires_grad or not torch.equal(before, wanted[name]), f"{name} idle"
