"""Compiled programs' ``batch_isend_irecv`` on groups of ours.

``torch.compile`` turns it into one operator, ``batch_p2p_ops`` (PyTorch 2.13), which asks for a
backend object in C++ before it sends. Groups written in Python have none. On them the messages are
started one by one, by the operators for one message, which do not ask.
"""

from __future__ import annotations

import torch
from torch._C import DispatchKey
from torch.distributed.distributed_c10d import _resolve_process_group

from ..log.live_groups import live_groups

_operators = torch.ops._c10d_functional
_library = torch.library.Library("_c10d_functional", "IMPL")


def install() -> None:
    """Route the operator to this module first, if this PyTorch has it."""
    if hasattr(_operators, "batch_p2p_ops"):
        for device in ("CPU", "CUDA"):
            _library.impl("batch_p2p_ops", _batch_p2p_ops, device)


def _batch_p2p_ops(
    op_list: list[str],
    peer_list: list[int],
    tag_list: list[int],
    tensors: list[torch.Tensor],
    group_name: str,
) -> list[torch.Tensor]:
    if _resolve_process_group(group_name) not in live_groups:
        own = _operators.batch_p2p_ops.default._op_dk
        key = DispatchKey.CompositeExplicitAutograd
        return own(key, op_list, peer_list, tag_list, tensors, group_name)
    messages = zip(op_list, tensors, peer_list, tag_list, strict=True)
    return [getattr(_operators, op)(*message, group_name) for op, *message in messages]
