"""Defects that are known and not yet corrected, which programs therefore avoid.

Each is a word that stands in :data:`KNOWN` while its defect is there; empty when all are corrected.
"""

from __future__ import annotations

from .program import REDUCED_WIDER, Slot

KNOWN: frozenset[str] = frozenset()


def excludes(kind: str, slot: Slot, mode: str, grad: str) -> bool:
    """Return whether a step on a slot would run into a known defect."""
    if "0-dim receive" in KNOWN and kind == "message" and not slot.shape:
        return True
    # What is staged is written by torch, and so is what several outputs are made of.
    staged = slot.layout not in ("plain", "offset", "part") or slot.dtype in REDUCED_WIDER
    if "autograd" in KNOWN and kind.startswith("nn.") and 0 in slot.shape:
        return True
    if "autograd" in KNOWN and (slot.kind != "plain" or grad == "inference"):
        return True
    return "chain" in KNOWN and mode == "async" and staged
