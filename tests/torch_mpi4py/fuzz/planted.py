"""Defects put into the backend of a worker, to see that the fuzzer finds such ones."""

from __future__ import annotations

from typing import Any

import torch
from torch_mpi4py.group import collectives, work


def bool_from_another_root() -> None:
    """A broadcast of bool comes from another rank than the root."""
    broadcast = collectives.broadcast

    def planted(tensor: torch.Tensor, root: int, rank: int) -> Any:
        return broadcast(
            tensor, 1 - root if tensor.dtype == torch.bool and root < 2 else root, rank
        )

    collectives.broadcast = planted


def order_of_strided_outputs() -> None:
    """An all_gather into strided tensors fills them the wrong way round."""
    all_gather = collectives.all_gather

    def planted(outputs: list[torch.Tensor], source: torch.Tensor, rank: int) -> Any:
        strided = not outputs[0].is_contiguous()
        return all_gather(outputs[::-1] if strided else outputs, source, rank)

    collectives.all_gather = planted


def no_wait() -> None:
    """The handle on an asynchronous collective does not wait."""
    work.CollectiveWork.wait = lambda self, timeout=None: True


def average_of_bfloat16() -> None:
    """An average of bfloat16 is a sum."""
    scale_after = collectives.scale_after

    def planted(host: torch.Tensor, how: Any, size: int) -> None:
        if host.dtype != how.wire_dtype or how.untouched or how.wire_dtype != torch.float32:
            scale_after(host, how, size)

    collectives.scale_after = planted


PLANTED = {
    plant.__name__: plant
    for plant in (bool_from_another_root, order_of_strided_outputs, no_wait, average_of_bfloat16)
}
