"""Programs that found a defect once, each by the name of the defect."""

from __future__ import annotations

from .program import Fill, Message, Program, Slot

KEPT: dict[str, Program] = {
    "a receive into a tensor without dimensions": Program(
        size=2,
        slots=(Slot(shape=()),),
        groups=((0, 1),),
        steps=(Message(0, source=0, target=1, slot=0, fill=Fill(0, -50, 1, 101)),),
    ),
}
