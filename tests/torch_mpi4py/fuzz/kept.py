"""Programs that found a defect once, each by the name of the defect."""

from __future__ import annotations

from .program import (
    Callback,
    Collective,
    Destroy,
    Fail,
    Fill,
    Late,
    Message,
    NewGroup,
    Program,
    Slot,
    Wait,
)

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
    "a callback that waits for another one": Program(
        2,
        (Slot(), Slot()),
        PAIR,
        (
            Collective("all_reduce", mode="async", fill=SMALL),
            Callback(0, 0, 1, SMALL, nested=True),
            Wait(0),
            Wait(1),
        ),
    ),
    "a wait that times out before a late rank has come": Program(
        2,
        (Slot(),),
        PAIR,
        (Late(1), Collective("all_reduce", mode="async", fill=SMALL), Wait(1, "brief")),
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
    "a group of the same name as an earlier one, and one rank late": Program(
        2,
        (Slot(),),
        ((0, 1), (0, 1), (0, 1)),
        (
            NewGroup(1, (0, 1), local=True),
            Destroy(1),
            Fail("late", 1),
            NewGroup(2, (0, 1), local=True),
        ),
    ),
    "a rank comes late to init_process_group": Program(
        2, (Slot(),), PAIR, (Fail("starts late", 0),)
    ),
}
