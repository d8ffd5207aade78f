"""Measures the cost of one call, cold, as in a real program, and what the event log adds to it.

A benchmark that calls all_reduce in a loop keeps its code in the caches. In :func:`cold` no call is
repeated: ``turns`` are single calls that alternate, ``step`` are single calls between which each
rank trains LeNet for a step, which takes milliseconds and empties the caches. Turns of 1 MiB do so
in part: their data push code out of a core's own cache, which costs the call with more code more. A
barrier of raw MPI comes before each call, so that no waiting is timed.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from benchmarks import report
from benchmarks.backend import step_of
from benchmarks.report import MIB, Section, Table, Target, compared, extra, ratio, size, target
from benchmarks.running import Call, all_reduces, in_turns, rounds, take_turns, timed, world
from course_lib.training.models import LeNet

if TYPE_CHECKING:
    from torch_mpi4py import MPI

TURNS = {4: 2000, MIB: 600}  # of each size
STEPS = {4: 250}
IMAGES = 64
LOOP = 5000
EVENT_TURNS = 21
ON_OFF_TURNS = 15


def cold() -> dict:
    """Measure single calls of all_reduce and of raw MPI on both ranks."""
    comm = world()
    step = step_of(LeNet(), torch.randn(IMAGES, 1, 28, 28), torch.randint(10, (IMAGES,)))
    found = {
        name: [
            {"bytes": count, "samples": alternating(comm, count, turns, between)}
            for count, turns in sizes.items()
        ]
        for name, sizes, between in (("turns", TURNS, None), ("step", STEPS, step))
    }
    return {"ranks": dist.get_world_size(), "images": IMAGES, **found}


def alternating(
    comm: MPI.Intracomm, count: int, turns: int, between: Call | None
) -> dict[str, list[float]]:
    """Return samples of both variants, which take turns, ``between`` being called before each."""
    variants = all_reduces(comm, count)
    samples: dict[str, list[float]] = {name: [] for name in variants}
    for name in in_turns(list(variants), rounds(turns)):
        if between:
            between()
        samples[name].append(timed(comm, variants[name], 1, warm=0))
    return {name: found[len(found) // 10 :] for name, found in samples.items()}


def cold_section(measured: dict) -> Section:
    """Return table and targets of :func:`cold`."""
    after = f"after a LeNet step, {measured['images']} images"
    names = {"turns": "alternating", "step": after}
    rows = [row | {"when": names[when]} for when in names for row in measured[when]]
    columns = {
        "when": report.key("when"),
        "size": size,
        **report.each({"ours": "torch_mpi4py", "raw": "raw MPI"}, report.microseconds),
        "difference of medians": report.over("ours", "raw", ".0f", extra),
    }
    about = (
        f"{measured['ranks']} ranks call all_reduce and raw MPI.Allreduce on the same buffer. "
        "The two calls alternate. Times in microseconds: median (quartiles)."
    )
    targets = [cold_target(row, "alternating, no warm-up calls", 15) for row in measured["turns"]]
    targets += [
        cold_target(row, "in the middle of a training step", 100) for row in measured["step"]
    ]
    return Section("Single calls", [about, Table(columns, rows)], targets)


def cold_target(row: dict, where: str, most: int) -> Target:
    """Return the time of a single call relative to raw MPI."""
    wanted, of = ("<= 1.15x", ratio) if row["bytes"] >= MIB else (f"<= +{most} us", extra)
    what = f"all_reduce over raw MPI, {size(row)}, {where}"
    cause = "Python's code and objects are no longer in the caches"
    return compared(what, wanted, row, "ours", "raw", cause, of)


# ---- the event log ----------------------------------------------------------------------


def event_log() -> dict:
    """Measure an event and a section in a loop, and an all_reduce with the log on and off.

    An event is opened and closed with the call site looked up as from a program's own line.
    """
    from torch_mpi4py.log import events

    log, comm = events.log, world()
    names = ("default", "send", "float32", "(1,)")
    group, kind, dtype, shape = (log.string(name) for name in names)

    def event() -> None:
        site = events.call_site(2)
        log.end(log.begin(kind, group, 1, site, dtype, shape, peer=1, tag=0, size=4))

    def block(manager: Callable) -> None:
        with manager("forward"):
            pass

    def each_of_a_loop(call: Call) -> float:
        start = perf_counter()
        for _ in range(LOOP):
            call()
        return (perf_counter() - start) / LOOP

    alone: dict[str, list[float]] = {"event": [], "section": []}
    for _ in range(rounds(EVENT_TURNS)):
        alone["event"].append(each_of_a_loop(event))
        section, empty = (
            each_of_a_loop(partial(block, it)) for it in (events.section, nullcontext)
        )
        alone["section"].append(section - empty)
    tensor = torch.zeros(1)

    def all_reduce(enabled: bool) -> None:
        log.enabled = enabled
        dist.all_reduce(tensor)

    variants: dict[str, Call] = {"on": lambda: all_reduce(True), "off": lambda: all_reduce(False)}
    operation = take_turns(comm, variants, ON_OFF_TURNS, 200)
    log.enabled = True
    return {"ranks": dist.get_world_size(), "alone": alone, "all_reduce": operation}


def event_section(measured: dict) -> Section:
    """Return table and target of :func:`event_log`."""
    alone, both = measured["alone"], measured["all_reduce"]
    rows = {
        "one event": alone["event"],
        "one section, `with section(...)`": alone["section"],
        "all_reduce of 4 B, log on": both["on"],
        "all_reduce of 4 B, log off": both["off"],
    }
    difference = [on - off for on, off in zip(both["on"], both["off"], strict=True)]
    rows["their difference per turn"] = difference
    parts = [
        f"On {measured['ranks']} ranks, in microseconds: median (quartiles). The rows mean:",
        "- One event: the log looks up the calling line and packs a record into the board when the "
        "event begins, and completes the record when the event ends. This is the cost of the log "
        "itself, and the target applies to this row.\n"
        "- One section: an event, its name, and the context manager around it, minus the time of "
        "an empty `with` block.\n"
        "- The difference between an all_reduce with the log on and one with it off in the same "
        "turn: besides the event, it includes the search through a deeper stack, looking up the "
        "descriptions of the group and the call, and passing the event's end through the task. It "
        "is a small difference between two large numbers.",
        Table({"what": str, "us": lambda what: report.microseconds(rows[what])}, rows),
    ]
    got, fastest = (1e6 * of(alone["event"]) for of in (median, min))
    what = "event log, one event (opened and closed, with its call site)"
    cause = "most of it is Python, which finds the calling line and packs the record"
    met = target(what, "<= 2 us", got, fastest, "{:.2f} us", cause)
    return Section("The event log", parts, [met])
