"""Programs in which something befalls a rank, each in a job of its own.

Whatever it is, all ranks end in time, and the survivors (or all, where none has died) go on.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from hypothesis import strategies as st

from tests import ranks

from . import known, printer
from .builder import Builder
from .compare import Finding
from .program import Callback, Fail, Program, Threads, Wait
from .strategy import part_of, picker

# After these the others wait until the time-out; after all else they are freed long before.
WAITED_FOR = ("late", "missing", "starts late")
KINDS = ("killed", "missing", "late", "raises", "exits", "interrupted", "starts late")
SHORT_SECONDS, LONG_SECONDS = 3.0, 300.0
FREE_SECONDS = 30.0  # how long it may take until all are free: a busy machine stalls for seconds
LIMIT_SECONDS = 100.0


@st.composite
def failing_programs(
    draw: st.DrawFn, sizes: Sequence[int] = (2, 3, 4), kinds: Sequence[str] = KINDS
) -> Program:
    """Return programs in which something befalls one rank."""
    pick = picker(draw)
    builder = Builder(pick, pick(sizes))
    builder.groups.append(tuple(range(builder.size)))
    builder.may_restart = False  # a group of all ranks is made with a longer time-out
    draw(st.lists(part_of(builder, "add_slot"), min_size=1, max_size=4))
    least = pick((1, 4, 8))
    draw(st.lists(part_of(builder, "add_step"), min_size=least, max_size=16))
    builder.pick = pick
    program = builder.finish()
    kinds = [kind for kind in kinds if kind not in known.KNOWN]
    failure = Fail(pick(kinds), pick(range(program.size)))
    return with_step(program, pick(range(len(program.steps) + 1)), failure)


def with_step(program: Program, place: int, step: object) -> Program:
    """Return a program with one more step."""

    def moved(other: object) -> object:
        if isinstance(other, (Wait, Callback)) and other.step >= place:
            return replace(other, step=other.step + (1000 if other.step >= 1000 else 1))
        return other

    later = []
    for other in program.steps[place:]:
        if isinstance(other, Threads):
            other = Threads(
                tuple(
                    tuple(
                        replace(each, step=each.step + 1000) if isinstance(each, Wait) else each
                        for each in branch
                    )
                    for branch in other.branches
                )
            )
        later.append(moved(other))
    return replace(program, steps=(*program.steps[:place], step, *later))


def script(program: Program) -> str:
    """Return the script that the ranks of a program run."""
    waited_for = _failure_of(program).kind in WAITED_FOR
    return printer.failing(program, SHORT_SECONDS if waited_for else LONG_SECONDS)


def _failure_of(program: Program) -> Fail:
    return next(step for step in program.steps if isinstance(step, Fail))


def check(program: Program) -> Finding | None:
    """Run a program in a job of its own and return what is wrong."""
    failure = _failure_of(program)
    with tempfile.TemporaryDirectory(prefix="fuzz") as folder:
        path = Path(folder) / "program.py"
        path.write_text(script(program))
        run = ranks.run(program.size, path, limit=LIMIT_SECONDS)
    wrong = _what_is_wrong(program, failure, run)
    if not wrong:
        return None
    text = f"{failure.kind}, rank {failure.rank}: {wrong}\n{run.output[-12000:]}"
    return Finding("mpi4py", text, f"{failure.kind}: {re.sub('[0-9.]+', 'N', wrong)}")


def _what_is_wrong(program: Program, failure: Fail, run: ranks.Run) -> str:
    if run.returncode is None or "Timeout (" in run.output:
        return "not all ranks ended"
    if "Fatal Python error" in run.output:
        return "a crash"
    struck = re.search("KeyboardInterrupt|interrupted by the user", run.output)
    if failure.kind == "interrupted" and not struck:
        return "nobody was interrupted"
    if run.left_behind:
        return "processes were left behind"
    gone = [failure.rank] if failure.kind in ("killed", "raises", "exits") else []
    for rank in range(program.size):
        if rank in gone:
            continue
        ended = re.search(rf"^rank {rank}: ([0-9.]+) s, ", run.output, re.MULTILINE)
        if ended is None or f"rank {rank} is well" not in run.output:
            return f"rank {rank} could not go on"
        late = SHORT_SECONDS + 2 if failure.kind in WAITED_FOR else 0
        if float(ended[1]) > FREE_SECONDS + late:
            return f"rank {rank} was free only after {ended[1]} s"
    return ""
