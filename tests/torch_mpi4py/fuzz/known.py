"""Defects that are known and not yet corrected, which programs therefore avoid.

Each is a word that stands in :data:`KNOWN` while its defect is there; empty when all are corrected.
"""

from __future__ import annotations

from .program import REDUCED_WIDER, Slot

KNOWN: frozenset[str] = frozenset(
    {
        "0-dim receive",  # IndexError
        "autograd",  # results are written with autograd live
        "chain",  # a second asynchronous collective on a staged tensor reads it too early
        "local",  # names of groups made with use_local_synchronization recur
        "nested",  # then() in then() waits for itself
        "brief",  # a wait that times out ends the group
        "exits",  # the others wait for a rank that has left by sys.exit() until their time-out
        "starts late",  # a rank that comes late to init_process_group keeps all from ending
    }
)


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
