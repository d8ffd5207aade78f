"""A mixture of experts whose experts are spread over the ranks of a group; see experts.py."""

import copy

import torch
import torch.distributed as dist
from torch import nn

EXPERTS, CHOICES, WIDTH = 8, 2, 32


class Classifier(nn.Module):
    """Classify images, each of which is one token for a mixture of experts."""

    def __init__(self, pixels: int, team: dist.ProcessGroup, classes: int = 10) -> None:
        super().__init__()
        self.embedding = nn.Linear(pixels, WIDTH)
        self.layer = Mixture(team)
        self.classifier = nn.Linear(WIDTH, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits (N, classes) for images (N, 1, height, width)."""
        x = torch.tanh(self.embedding(images.flatten(1)))
        return self.classifier(x + self.layer(x))

    def with_all_experts(self) -> "Classifier":
        """Return a copy that computes alone, with the experts of all ranks of the team."""
        own = {name: tensor.cpu() for name, tensor in self.layer.experts.state_dict().items()}
        everyones: list = [None] * dist.get_world_size(self.layer.team)
        dist.all_gather_object(everyones, own, group=self.layer.team)
        team, self.layer.team = self.layer.team, None
        whole = copy.deepcopy(self)  # a process group cannot be copied
        self.layer.team = team
        experts = [copy.deepcopy(whole.layer.experts) for _ in everyones]
        for some, state in zip(experts, everyones, strict=True):
            some.load_state_dict(state)
        whole.layer.experts = nn.ModuleList(expert for some in experts for expert in some)
        return whole


class Mixture(nn.Module):
    """The output of a token is the weighted mean of those of its experts.

    ``team``: the ranks that hold the experts together, equally many each; None if they are all
    here, and nothing is sent.
    """

    def __init__(self, team: dist.ProcessGroup) -> None:
        super().__init__()
        self.team: dist.ProcessGroup | None = team
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)
        every = [
            nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))
            for _ in range(EXPERTS)
        ]
        count = EXPERTS // team.size()
        self.experts = nn.ModuleList(every[team.rank() * count :][:count])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return (tokens, width) for (tokens, width); every rank of the team calls it."""
        logits = self.router(x)
        chosen = logits.topk(CHOICES, -1).indices
        weights = logits.gather(-1, chosen).softmax(-1)
        order = chosen.flatten().argsort(stable=True)  # copies by their experts
        counts = torch.bincount(chosen.flatten(), minlength=EXPERTS)
        done = self._by_experts(x[order // CHOICES], counts)
        copies = _put(done, order).view(len(x), CHOICES, WIDTH)
        return (weights[..., None] * copies).sum(1)

    def _by_experts(self, rows: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """Return the experts' outputs for rows, of which ``counts`` go to each in turn."""
        if self.team is None:
            parts = rows.split(counts.tolist())
            return torch.cat([e(part) for e, part in zip(self.experts, parts, strict=True)])
        counts = counts.view(self.team.size(), -1)
        theirs = torch.empty_like(counts)  # from each rank, for each expert here
        dist.all_to_all_single(theirs, counts, group=self.team)
        sending, receiving = counts.sum(1).tolist(), theirs.sum(1).tolist()
        arrived = _Send.apply(rows, sending, receiving, self.team)
        own = torch.arange(theirs.shape[1], device=rows.device).repeat(len(theirs))
        order = own.repeat_interleave(theirs.flatten()).argsort(stable=True)
        parts = arrived[order].split(theirs.sum(0).tolist())
        done = torch.cat([e(part) for e, part in zip(self.experts, parts, strict=True)])
        return _Send.apply(_put(done, order), receiving, sending, self.team)


class _Send(torch.autograd.Function):
    """Send ``sending[j]`` rows to rank j, receive ``receiving[j]``; gradients go the other way."""

    @staticmethod
    def forward(ctx, rows, sending, receiving, team):
        ctx.way_back = receiving, sending, team
        arrived = rows.new_empty(sum(receiving), rows.shape[1])
        dist.all_to_all_single(arrived, rows.contiguous(), receiving, sending, group=team)
        return arrived

    @staticmethod
    def backward(ctx, gradient):
        return _Send.apply(gradient, *ctx.way_back), None, None, None


def _put(rows: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Return rows in another order: row i at places[i]."""
    return torch.zeros_like(rows).index_copy(0, places, rows)
