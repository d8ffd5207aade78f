"""What one event costs, alone and inside of an operation."""

from __future__ import annotations

from statistics import median

from benchmarks.report import Section, Target, microseconds, table

WANTED_SECONDS = 2e-6


def section(measured: dict) -> Section:
    """Return table and target of what ``benchmarks.event_log`` measured."""
    alone, operation = measured["alone"], measured["all_reduce"]
    extra = [on - off for on, off in zip(operation["on"], operation["off"], strict=True)]
    lines = [
        "## The event log",
        "",
        f"{measured['ranks']} ranks. Microseconds: median (quartiles). What each contains:",
        "",
        "- one event: the line that called is looked up, the record is packed into the board, and "
        "its end is packed when it ends. That is what the log itself costs, and what the target "
        "is about;",
        "- one section: an event, the context manager around it (less an empty `with` block), and "
        "its name;",
        "- an all_reduce with the log on against one with the log off, in turns: an event, a "
        "search through the deeper stack of the call, the group's and the call's descriptions "
        "looked up, and the end passed through the task. It is the small difference of two large "
        "numbers, and no event of its own.",
        "",
        *table(
            ["what", "us"],
            [
                ["one event", microseconds(alone["event"])],
                ["one section, `with section(...)`", microseconds(alone["section"])],
                ["all_reduce of 4 B, log on", microseconds(operation["on"])],
                ["all_reduce of 4 B, log off", microseconds(operation["off"])],
                ["their difference, turn by turn", microseconds(extra)],
            ],
        ),
    ]
    got = median(alone["event"])
    target = Target(
        "event log, one event (opened and closed, with its call site)",
        f"<= {1e6 * WANTED_SECONDS:g} us",
        f"{1e6 * got:.2f} us",
        f"{1e6 * min(alone['event']):.2f} us",
        got <= WANTED_SECONDS,
        "most of it is Python: finding the line that called, and packing the record",
    )
    return Section(lines, [target])
