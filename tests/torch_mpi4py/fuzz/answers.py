"""Values as they travel from rank to test: a tensor as its dtype, shape and bytes."""

from __future__ import annotations

from typing import Any

import torch

Packed = tuple[str, tuple[int, ...], bytes] | str


def pack(thing: Any) -> Packed:
    """Return a tensor as dtype, shape and bytes, anything else as its text."""
    if not isinstance(thing, torch.Tensor):
        return str(thing)
    with torch.inference_mode():
        plain = thing.detach().resolve_conj().resolve_neg()
        plain = plain.clone(memory_format=torch.contiguous_format)
        raw = plain.reshape(-1).view(torch.uint8)
        if thing.dtype == torch.bool:
            raw = (raw != 0).to(torch.uint8)  # gloo adds them as bytes
        shape = tuple(thing.shape)
        return str(thing.dtype).removeprefix("torch."), shape, bytes(raw.tolist())


def unpack(packed: Packed) -> Any:
    """Return what was packed."""
    if isinstance(packed, str):
        return packed
    dtype, shape, raw = packed
    memory = torch.frombuffer(bytearray(raw), dtype=torch.uint8) if raw else torch.empty(
        0, dtype=torch.uint8
    )  # fmt: skip
    return memory.view(getattr(torch, dtype)).view(shape)
