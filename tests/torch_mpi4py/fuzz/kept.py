"""Programs that found a defect once, each by the name of the defect."""

from __future__ import annotations

from .program import Collective, Fail, Fill, Message, Program, Slot, Wait

PAIR = ((0, 1),)
SMALL = Fill(0, -2, 1, 5)

KEPT: dict[str, Program] = {
    "a receive into a tensor without dimensions": Program(
        2, (Slot(shape=()),), PAIR, (Message(0, source=0, target=1, fill=SMALL),)
    ),
    "a broadcast into a strided parameter": Program(
        2,
        (Slot(layout="strided", kind="parameter"),),
        PAIR,
        (Collective("broadcast", fill=SMALL),),
    ),
    "a second collective on a strided tensor before a wait for the first": Program(
        2,
        (Slot(layout="strided"),),
        PAIR,
        (Collective("all_reduce", mode="async", fill=SMALL), Collective("all_gather"), Wait(0)),
    ),
}

FAILING: dict[str, Program] = {
    "a rank leaves by sys.exit() and the others wait for it": Program(
        2, (Slot(),), PAIR, (Fail("exits", 0),)
    ),
    "a rank comes late to init_process_group": Program(
        2, (Slot(),), PAIR, (Fail("starts late", 0),)
    ),
}
