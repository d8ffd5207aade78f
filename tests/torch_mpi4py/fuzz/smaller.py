"""Leaves single steps and slots out of a program, which Hypothesis can't always do by choices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from .printer import slots_of
from .program import Batch, Callback, Coalesced, Destroy, Fail, NewGroup, Program, Threads, Wait


def smallest(program: Program, goes_wrong: Callable[[Program], bool]) -> Program:
    """Return a part of a program that goes wrong, of which nothing more can be left out."""
    again = True
    while again:
        again = False
        for part in parts(program):
            if goes_wrong(part):
                program, again = part, True
                break
    return program


def parts(program: Program) -> Iterator[Program]:
    """Yield what is left without each step and those that need it, and without unused slots."""
    for place in reversed(range(len(program.steps))):
        yield without(program, place)
    used = set(program.lost).union(*(_slots(step) for step in program.steps))
    unused = [slot for slot in range(len(program.slots)) if slot not in used]
    if unused and len(unused) < len(program.slots):
        yield without_slot(program, unused[-1])


def without(program: Program, place: int) -> Program:
    """Return a program without a step, and without those that make no sense without it."""
    gone = {place}
    step = program.steps[place]
    group = step.group if isinstance(step, NewGroup) else None
    for later in range(place + 1, len(program.steps)):
        step = program.steps[later]
        refers = isinstance(step, (Wait, Callback)) and step.step in gone
        if refers or (group is not None and group in _groups(step)):
            gone.add(later)
    if isinstance(program.steps[place], (Wait, Destroy, Fail)):
        return program  # what it ends goes on, and nothing says when it is over
    left = [index for index in range(len(program.steps)) if index not in gone]
    moved = {old: new for new, old in enumerate(left)}
    steps = tuple(_moved(program.steps[old], moved, old) for old in left)
    alive = tuple(each for each in program.alive if each != group)
    return replace(program, steps=steps, alive=alive)


def without_slot(program: Program, slot: int) -> Program:
    """Return a program without a slot that no step uses."""

    def moved(step: Any) -> Any:
        if isinstance(step, Coalesced):
            return replace(step, items=tuple(map(moved, step.items)))
        if isinstance(step, Batch):
            return replace(step, messages=tuple(map(moved, step.messages)))
        if isinstance(step, Threads):
            branches = tuple(tuple(map(moved, branch)) for branch in step.branches)
            return Threads(branches)
        here = getattr(step, "slot", None)
        return replace(step, slot=here - 1) if isinstance(here, int) and here > slot else step

    slots = program.slots[:slot] + program.slots[slot + 1 :]
    lost = tuple(each - (each > slot) for each in program.lost)
    return replace(program, slots=slots, lost=lost, steps=tuple(map(moved, program.steps)))


def _moved(step: Any, moved: dict[int, int], old: int) -> Any:
    """Return a step that refers to others by their new numbers."""
    if isinstance(step, (Wait, Callback)):
        return replace(step, step=moved[step.step])
    if isinstance(step, Threads):
        shift = 1000 * (moved[old] - old)
        branches = tuple(
            tuple(
                replace(each, step=each.step + shift) if isinstance(each, Wait) else each
                for each in branch
            )
            for branch in step.branches
        )
        return Threads(branches)
    return step


def _groups(step: Any) -> set[int]:
    if isinstance(step, Threads):
        return {each.group for branch in step.branches for each in branch if hasattr(each, "group")}
    return {step.group} if hasattr(step, "group") else set()


def _slots(step: Any) -> set[int]:
    if isinstance(step, Threads):
        return {slot for branch in step.branches for each in branch for slot in slots_of(each)}
    return set(slots_of(step))
