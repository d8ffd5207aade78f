"""Collects the operations of a block of ``torch.distributed._coalescing_manager``."""

from __future__ import annotations

import weakref
from types import FrameType, GeneratorType

import torch.distributed as dist


class CoalescingBlock:
    """A block that is open on one thread.

    Args:
        starts: the frame that opened it: that of torch's context manager, a generator.

    Attributes:
        works: the handles on what was issued in the block.
    """

    def __init__(self, starts: FrameType) -> None:
        self.works: list[dist._Work] = []
        # Where an error leaves the block, torch calls nothing, but its generator ends.
        manager = starts.f_back.f_locals.get("self") if starts.f_back is not None else None
        generator = getattr(manager, "gen", None)
        by_torch = isinstance(generator, GeneratorType) and generator.gi_frame is starts
        self._generator = weakref.ref(generator) if by_torch else None

    def is_over(self) -> bool:
        """Return whether the block was left without a call of ``_end_coalescing``."""
        if self._generator is None:  # opened in another way
            return False
        generator = self._generator()
        return generator is None or generator.gi_frame is None
