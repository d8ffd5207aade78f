"""What gloo can't do, and where its result is undefined: there a program is compared with the model.

Each line says why. Where gloo is left out the rank gets the value that the model has, so that the
steps after it are comparable again.
"""

from __future__ import annotations

from typing import Any

from .program import (
    Batch,
    Callback,
    Coalesced,
    Collective,
    Differentiable,
    Message,
    Mismatch,
    Program,
    Slot,
    Wrong,
)

REDUCES = ("float32", "float64", "float16", "bfloat16", "int8", "uint8", "int32", "int64", "bool")


def can(program: Program, step: Any) -> bool:
    """Return whether gloo gives a defined result for a step."""
    if isinstance(step, Collective):
        slot = program.slots[step.slot]
        return step.kind == "barrier" or _collective(step, slot)
    if isinstance(step, Coalesced):
        return all(_collective(item, program.slots[item.slot]) for item in step.items)
    if isinstance(step, Differentiable):
        return True
    if isinstance(step, Message):
        return _moves(program.slots[step.slot])
    if isinstance(step, Batch):
        return all(_moves(program.slots[message.slot]) for message in step.messages)
    if isinstance(step, Mismatch):
        return False  # gloo does not compare calls: it hangs or adds what does not fit
    return True


def _collective(step: Collective, slot: Slot) -> bool:
    return True


def _moves(slot: Slot) -> bool:
    return True
