"""Small models with every kind of tensor that is easily forgotten."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

FEATURES = 6
CLASSES = 3


class Toy(nn.Module):
    """A tied, a frozen and an unused parameter, and buffers of three dtypes; float64."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.first = nn.Linear(FEATURES, FEATURES)
        self.second = nn.Linear(FEATURES, FEATURES)
        self.second.weight = self.first.weight
        self.frozen = nn.Parameter(torch.randn(FEATURES), requires_grad=False)
        self.unused = nn.Parameter(torch.randn(2))
        self.head = nn.Linear(FEATURES, CLASSES)
        self.register_buffer("mask", torch.rand(3) > 0.5)  # 3 bytes: what follows is unaligned
        self.register_buffer("count", torch.tensor(seed))
        self.register_buffer("scale", torch.rand(1), persistent=False)
        self.double()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.second(torch.tanh(self.first(inputs * self.frozen)))
        return self.head(torch.tanh(hidden))


def samples(count: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Return inputs float64 (count, FEATURES) and labels int64 (count,)."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, FEATURES, generator=generator, dtype=torch.float64)
    return inputs, torch.randint(CLASSES, (count,), generator=generator)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    """Return an optimizer whose momentum remembers a wrong step."""
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)


def backward(model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Set the gradients of the mean cross-entropy and return it."""
    model.zero_grad()
    loss = F.cross_entropy(model(inputs), labels)
    loss.backward()
    return loss


def from_all_ranks(value: object) -> list:
    """Return every rank's ``value``."""
    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def error_on_all_ranks(kind: type[Exception], function, *arguments, **options) -> str:
    """Return the message of the error that every rank must raise, the same on each."""
    message = None
    try:
        function(*arguments, **options)
    except kind as error:
        message = str(error)
    messages = from_all_ranks(message)
    assert None not in messages, f"not every rank raised {kind.__name__}: {messages}"
    assert len(set(messages)) == 1, f"the ranks tell different stories: {messages}"
    return messages[0]
