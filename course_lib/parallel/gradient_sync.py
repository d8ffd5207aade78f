"""The mean of the replicas' gradients is the gradient of the whole batch.

Call after ``backward`` and before ``optimizer.step``. With a loss that is a mean over the
samples and batches of one size on all ranks, every replica then holds the gradient of the
mean over all of them. ("sum" leaves the division out, for losses that are sums.)

Beside the gradients a few more numbers travel in the same all-reduce: for each parameter how
many ranks have a gradient of it, and each rank's fingerprint of all that it trains. So ranks
agree on unused parameters and notice different models without another message.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from .gradient_message import Reduction, forget_layout, layout_of
from .replica import place_in, unwrap

__all__ = ["sync_gradients", "sync_gradients_per_parameter"]


def sync_gradients(
    model: nn.Module, group: dist.ProcessGroup | None = None, reduction: Reduction = "mean"
) -> None:
    """Replace every gradient by its mean (or sum) over the ranks: one flattened all-reduce.

    (One for each dtype and device, if parameters are of several.) Frozen parameters are left
    alone, tied ones averaged once. A parameter without a gradient on some ranks, because they
    did not use it, counts as zeros there and gets the result everywhere; without a gradient on
    all ranks it keeps none, so that the optimizer skips it as it would in one process. The flat
    tensor, as large as all gradients, is kept for the next call while the model lives.

    Args:
        model: after ``backward``; the same architecture on every rank.
        group: process group, the default one if None.
        reduction: "mean" or "sum" over the ranks.

    Raises:
        TypeError: on every rank, if a gradient is sparse on any.
        ValueError: on every rank, if the ranks' trainable parameters differ in name, shape or
            dtype, or ``reduction`` differs or is something else; on this rank, if it is not in
            the group.
        MismatchError: (backend mpi4py) on every rank instead, if what travels first differs in
            its number of elements or dtype.
    """
    _sync(model, group, reduction, apart=False)


def sync_gradients_per_parameter(
    model: nn.Module, group: dist.ProcessGroup | None = None, reduction: Reduction = "mean"
) -> None:
    """Do as :func:`sync_gradients`, with one all-reduce per parameter.

    The sums are the same; each message pays its latency.
    """
    _sync(model, group, reduction, apart=True)


@torch.no_grad()
def _sync(
    model: nn.Module, group: dist.ProcessGroup | None, reduction: Reduction, apart: bool
) -> None:
    model = unwrap(model)
    layout = layout_of(model, *place_in(group), reduction, apart, group)
    for message in layout:
        message.write()
        try:
            dist.all_reduce(message.flat, group=group)
        except BaseException:
            forget_layout(model)
            raise
        present = message.read()
        if reduction == "mean":
            message.flat.div_(message.size)
        elif reduction != "sum":
            raise ValueError(f"reduction must be 'mean' or 'sum', not {reduction!r}")
        message.take_over(present)
