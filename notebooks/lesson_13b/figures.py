"""The figure of lesson 13b: which framework builds on which."""

from __future__ import annotations

from course_lib.teaching.figures.figure import WIDTH, Drawing, Figure
from course_lib.teaching.figures.palette import INK, RULE, SOFT_INK, blend

__all__ = ["framework_map"]

_ROW, _HIGH, _TOP = 54, 44, 14
_BLUE, _ORANGE, _GREEN = "#0072B2", "#E69F00", "#009E73"
# Words, left, width, first row, last row, colour. A box rests on those that it calls.
_BOXES = (
    ("Fabric", 12, 76, 0, 0, _GREEN),
    ("Accelerate", 92, 88, 0, 0, _GREEN),
    ("Ray Train", 184, 84, 0, 0, _GREEN),
    ("DDP, FSDP2", 12, 256, 1, 1, _BLUE),
    ("DeepSpeed", 272, 92, 0, 1, _GREEN),
    ("torch.distributed", 12, 352, 2, 2, _BLUE),
    ("NCCL, gloo, MPI", 12, 352, 3, 3, SOFT_INK),
    ("Horovod", 372, 90, 0, 2, _GREEN),
    ("NCCL, gloo, MPI", 372, 90, 3, 3, SOFT_INK),
    ("tf.distribute", 470, 94, 0, 2, _ORANGE),
    ("NCCL, gRPC", 470, 94, 3, 3, SOFT_INK),
)


def framework_map() -> Figure:
    """Draw the frameworks as boxes, each above what it calls."""
    bottom = _TOP + 4 * _ROW
    drawing = Drawing(WIDTH, bottom + 28)
    for words, left, width, first, last, colour in _BOXES:
        top = _TOP + first * _ROW
        height = (last - first) * _ROW + _HIGH
        drawing.rectangle(
            left, top, width, height, fill=blend(colour, "#FFFFFF", 0.82), stroke=colour
        )
        lines = words.split(", ") if width < 100 and ", " in words else [words]
        for number, line in enumerate(lines):
            shift = 14 * (number - (len(lines) - 1) / 2)
            size = 14 if len(lines) == 1 else 12
            drawing.text(left + width / 2, top + height / 2 + shift, line, size=size, fill=INK)
    drawing.line(12, bottom - 2, WIDTH - 12, bottom - 2, stroke=RULE, width=1)
    words = "Each box calls the one below it. Lowest: who moves the bytes."
    drawing.text(12, bottom + 14, words, size=13, fill=SOFT_INK, anchor="start")
    return drawing.finish(
        "A map of frameworks. Fabric, Accelerate and Ray Train stand on DDP and FSDP2. These and "
        "DeepSpeed stand on torch.distributed, which stands on NCCL, gloo or MPI. Horovod stands "
        "directly on NCCL, gloo or MPI, and tf.distribute on NCCL and gRPC."
    )
