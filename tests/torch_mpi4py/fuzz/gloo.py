"""What gloo can't do, and where its result is undefined: there only the model counts.

Each line says why. Where gloo is left out its ranks get the values that the model has, so that the
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
    is_complex,
    is_floating,
)

# Of others: "Invalid scalar type".
KNOWN_DTYPES = ("float32", "float64", "float16", "bfloat16", "int8", "uint8", "int32", "int64",
                "bool", "complex64", "complex128")  # fmt: skip
SPLITS = ("all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single")
SCATTERS = ("scatter", "reduce_scatter", "reduce_scatter_tensor")


def can(program: Program, step: Any) -> bool:
    """Return whether gloo gives a defined result for a step."""
    if isinstance(step, Collective):
        return step.kind == "barrier" or _collective(step, program.slots[step.slot])
    if isinstance(step, Coalesced):
        return all(
            _collective(item, program.slots[item.slot])
            and _is_dense(program.slots[item.slot])
            and (item.kind != "all_reduce" or _torch_may_write(program.slots[item.slot], step.grad))
            for item in step.items
        )
    if isinstance(step, Differentiable):
        return _differentiable(program, step)
    if isinstance(step, Message):
        return _message(step, program.slots[step.slot])
    if isinstance(step, Batch):
        return all(_message(each, program.slots[each.slot]) for each in step.messages)
    if isinstance(step, Mismatch):
        return False  # gloo compares no calls: it hangs, or adds what does not fit
    if isinstance(step, Callback):
        # Two callbacks occupy the only two threads that could sum.
        return not step.nested and program.slots[step.slot].layout != "strided"
    if isinstance(step, Wrong):
        # Gloo writes every element to the same place. It fails on averages and on bitwise
        # operations, on one rank first, and sometimes only in the next call.
        return step.kind not in ("expanded", "average_of_bool", "bitwise_of_floats")
    return True


def _collective(step: Collective, slot: Slot) -> bool:
    if slot.dtype not in KNOWN_DTYPES:
        return False
    if step.kind == "gather" and is_complex(slot.dtype):
        return False  # "Invalid scalar type"
    if step.op == "PREMUL_SUM":
        return False  # "Cannot use ReduceOp.PREMUL_SUM with Gloo"
    if step.op == "AVG" and not (is_floating(slot.dtype) or is_complex(slot.dtype)):
        return False  # "result type Float can't be cast to the desired output type Int"
    if step.op == "AVG" and slot.kind != "plain":
        return False  # it divides with autograd live, and outside of inference mode
    if step.kind == "reduce" and step.mode == "async":
        return False  # other ranks than the root have undefined values until they are given some
    if step.kind == "all_to_all" and step.rows:
        return False  # "invalid tensor size at index 1": all parts have one size
    functional = step.mode in ("functional", "late")
    if functional and step.kind in SPLITS and is_complex(slot.dtype):
        return False  # "Invalid scalar type"
    if step.kind in SPLITS and (step.out in ("stacked", "strided") or not slot.shape):
        return False  # it takes the ranks' parts one behind the other only
    if step.kind in SCATTERS and not functional:
        # It writes in the order of memory, and with autograd live.
        return _is_dense(slot) and slot.kind == "plain" and step.out in ("plain", "offset", "part")
    # It takes the elements in the order of memory, gaps and all.
    return (
        functional
        or slot.layout != "strided"
        or step.kind not in ("all_reduce", "broadcast", "reduce")
    )


def _torch_may_write(slot: Slot, grad: str) -> bool:
    """Return whether torch may copy into a slot, as gloo does with coalesced results."""
    if slot.kind == "inference":
        return grad == "inference"
    return slot.kind == "plain" or grad != "enabled"


def _is_dense(slot: Slot) -> bool:
    return slot.layout in ("plain", "offset", "part")


def _message(step: Message, slot: Slot) -> bool:
    if not _is_dense(slot):
        return False  # "input tensor has to be contiguous"
    # An empty message from any source has no sender.
    return 0 not in slot.shape or step.receive in ("recv", "irecv")


def _differentiable(program: Program, step: Differentiable) -> bool:
    if step.kind.startswith("funcol"):
        return True
    ranks = program.groups[step.group]
    if ranks != tuple(range(len(ranks))):
        return False  # torch takes ranks of the group for ranks of the world
    return step.slot.layout == "plain" or step.kind not in ("scatter", "all_to_all_single")
