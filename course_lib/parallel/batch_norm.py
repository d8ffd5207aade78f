"""Batch normalisation over the samples of all ranks, on CPUs and GPUs.

Each rank alone would normalise by its own shard's mean and variance, and R ranks would no
longer equal one process. Forward: the ranks exchange count, mean and sum of squared deviations
per channel, which combine exactly (Chan, Golub, LeVeque 1983, "Algorithms for computing the
sample variance", The American Statistician 37(3), equation 1.5). Backward: the gradient reaches
every sample through mean and variance, so the gradients of these numbers are exchanged again.

``torch.nn.SyncBatchNorm`` does the same on GPUs and refuses CPUs; this one runs on both.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from .agreement import rank_and_size


class SyncBatchNorm(nn.modules.batchnorm._BatchNorm):
    """Batch normalisation over the batches of all ranks, of any size, even empty.

    Parameters, buffers and ``state_dict`` are those of ``torch.nn.BatchNorm2d``. Without a
    process group, and in ``eval`` mode, it computes what that computes. The gradients of weight
    and bias are this rank's share; gradient sync adds the shares up as it does for any layer.

    Args:
        num_features: channels C of inputs (N, C, ...).
        eps: added to the variance.
        momentum: of the running statistics; None for their plain mean.
        affine: whether there are weight and bias.
        track_running_stats: whether there are running statistics.
        group: process group, the default one if None.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        group: dist.ProcessGroup | None = None,
        **factory: Any,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, **factory)
        self.group = group

    def _check_input_dim(self, inputs: torch.Tensor) -> None:
        if inputs.dim() < 2 or inputs.size(1) != self.num_features:
            raise ValueError(
                f"SyncBatchNorm over {self.num_features} channels takes inputs of shape "
                f"(N, {self.num_features}, ...), not {tuple(inputs.shape)}"
            )

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the normalised inputs, of shape (N, C, ...) and dtype of ``inputs``.

        Raises:
            ValueError: for inputs of another shape; on every rank, if there is not more than
                one value per channel on all ranks together.
        """
        alone = not dist.is_available() or not dist.is_initialized()
        if not self.training or alone:
            return super().forward(inputs)
        self._check_input_dim(inputs)
        wide = inputs.to(torch.promote_types(inputs.dtype, torch.float32))
        count, mean, variance = _statistics(wide, self.group)
        if count <= 1:
            raise ValueError(
                "batch norm in training needs more than one value per channel over all ranks "
                f"together; this rank's inputs have shape {tuple(inputs.shape)}"
            )
        if self.track_running_stats:
            self._update_running_stats(mean, variance, count)
        scale = (variance + self.eps).rsqrt()
        outputs = (wide - _broadcastable(mean, wide)) * _broadcastable(scale, wide)
        if self.affine:
            outputs = outputs * _broadcastable(self.weight, wide) + _broadcastable(self.bias, wide)
        return outputs.to(inputs.dtype)

    @torch.no_grad()
    def _update_running_stats(
        self, mean: torch.Tensor, variance: torch.Tensor, count: torch.Tensor
    ) -> None:
        self.num_batches_tracked += 1
        rate = self.momentum
        if rate is None:
            rate = 1.0 / float(self.num_batches_tracked)
        unbiased = variance * (count / (count - 1))
        self.running_mean.lerp_(mean.to(self.running_mean), rate)
        self.running_var.lerp_(unbiased.to(self.running_var), rate)


def _statistics(
    values: torch.Tensor, group: dist.ProcessGroup | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return count (a number), mean and biased variance (C,) over the values of all ranks."""
    channels = values.size(1)
    rank, size = rank_and_size(group)
    count = values.numel() // channels
    mean = _sum(values) / max(count, 1)
    deviations = _sum((values - _broadcastable(mean, values)).square())
    everyone = values.new_zeros(size, 2 * channels + 1)
    everyone[rank] = torch.cat([mean, deviations, mean.new_tensor([float(count)])])
    everyone = _SumOfRanks.apply(everyone, group)
    means, deviations, counts = everyone.split([channels, channels, 1], dim=1)
    total = counts.sum()
    mean = (counts * means).sum(dim=0) / total
    deviations = (deviations + counts * (means - mean).square()).sum(dim=0)
    return total, mean, deviations / total


class _SumOfRanks(torch.autograd.Function):
    """An all-reduce that autograd goes through: the gradients of all ranks add up alike."""

    @staticmethod
    def forward(ctx: Any, own: torch.Tensor, group: dist.ProcessGroup | None) -> torch.Tensor:
        ctx.group = group
        total = own.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        total = gradient.clone()
        dist.all_reduce(total, group=ctx.group)
        return total, None


def _sum(values: torch.Tensor) -> torch.Tensor:
    """Return the sums over all but the channels, (C,)."""
    return values.transpose(0, 1).flatten(1).sum(dim=1)


def _broadcastable(per_channel: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return (C,) as (1, C, 1, ...), to broadcast against ``like``."""
    return per_channel.view(1, -1, *(1 for _ in range(like.dim() - 2)))


def convert_sync_batch_norm(model: nn.Module, group: dist.ProcessGroup | None = None) -> nn.Module:
    """Replace every ``torch.nn.BatchNorm*d`` in ``model`` by :class:`SyncBatchNorm`.

    Parameters and running statistics are the same tensors as before, so an optimizer made
    earlier stays valid.

    Returns:
        ``model``, or its replacement if it is a batch norm itself.
    """
    converted = {module: _converted(module, group) for module in model.modules()}
    for module in converted:
        for name, child in module._modules.items():
            if child is not None:
                module._modules[name] = converted[child]
    return converted[model]


def _converted(module: nn.Module, group: dist.ProcessGroup | None) -> nn.Module:
    if not isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d):
        return module
    new = SyncBatchNorm.__new__(SyncBatchNorm)
    new.__dict__ = {**module.__dict__, "group": group}
    return new
