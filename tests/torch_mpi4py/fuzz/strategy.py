"""Hypothesis draws the choices of which the builder makes a program, and so can shrink it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from .builder import Builder
from .program import Program

MOST_STEPS = 40


@st.composite
def programs(draw: st.DrawFn, sizes: Sequence[int] = (1, 2, 3, 4)) -> Program:
    """Return programs for one of these numbers of ranks."""
    pick = picker(draw)
    builder = Builder(pick, pick(sizes))
    builder.groups.append(tuple(range(builder.size)))
    draw(st.lists(part_of(builder, "add_slot"), min_size=1, max_size=6))
    least = pick((1, 5, 12, 25))  # the first lets all steps be left out that do not matter
    draw(st.lists(part_of(builder, "add_step"), min_size=least, max_size=MOST_STEPS))
    builder.pick = pick
    return builder.finish()


@st.composite
def part_of(draw: st.DrawFn, builder: Builder, what: str) -> None:
    """Have the builder add something, by choices that can be left out as one."""
    builder.pick = picker(draw)
    getattr(builder, what)()


def picker(draw: st.DrawFn) -> Any:
    def pick(options: Sequence[Any]) -> Any:
        return options[draw(st.integers(0, len(options) - 1))] if len(options) > 1 else options[0]

    return pick
