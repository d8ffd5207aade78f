"""The checks of lesson 11: the roofline, a rank's share of a file, and the late rank.

All four run in the notebook.
"""

from __future__ import annotations

from collections.abc import Callable

from course_lib.teaching.exercise import exercise

# Each check imports its judges when it is called: a notebook's kernel imports this module too.

INTENSITY_HINTS = [
    "Two counts and a division. How many multiplications and additions make one output, and how "
    "many outputs are there? Which four arrays are moved?",
    "Operations: 2 · batch · inputs · outputs. Numbers moved: batch · inputs for the input, "
    "inputs · outputs weights, outputs biases, and batch · outputs for the output. Each number has "
    "`size` bytes.",
    "```python\n"
    "flops = 2 * batch * inputs * outputs\n"
    "numbers = batch * inputs + ...  # weights, bias, output\n"
    "return flops / (size * numbers)\n"
    "```",
]


@exercise(
    "11.linear_intensity", function="linear_intensity", where="notebook", hints=INTENSITY_HINTS
)
def check_linear_intensity(linear_intensity: Callable) -> str:
    from .judge_roofline import judge_intensity

    judge_intensity(linear_intensity)
    return "Operations divided by bytes, for any batch size and any size of number."


LEAST_HINTS = [
    "Take one layer first. How long would its arithmetic alone take, and how long its traffic "
    "alone? Which of the two does it have to wait for?",
    "A layer takes at least max(FLOP / peak, bytes / bandwidth). Layers run one after another.",
    "```python\n"
    "total = 0\n"
    "for flops, moved in layers:\n"
    "    total += ...  # the larger of two times\n"
    "return total\n"
    "```",
]


@exercise("11.least_seconds", function="least_seconds", where="notebook", hints=LEAST_HINTS)
def check_least_seconds(least_seconds: Callable) -> str:
    from .judge_roofline import judge_least

    judge_least(least_seconds)
    return "Each layer waits for the slower of arithmetic and memory."


SHARE_HINTS = [
    "Start with the samples: which one is this rank's first, and which is the first after its "
    "share? Then find the bytes: where in the file do these two begin?",
    "`file.seek(starts[first])`, then `file.read(starts[last] - starts[first])` is the whole "
    "share. Sample i begins in this block at `starts[i] - starts[first]`.",
    "```python\n"
    "n = len(starts) - 1\n"
    "first, last = n * rank // world_size, n * (rank + 1) // world_size\n"
    "begin = starts[first]\n"
    "file.seek(begin)\n"
    "block = file.read(starts[last] - begin)\n"
    "return [block[... - begin : ... - begin] for i in range(first, last)]\n"
    "```",
]


@exercise("11.read_share", function="read_share", where="notebook", hints=SHARE_HINTS)
def check_read_share(read_share: Callable) -> str:
    from .judge_reads import judge_read_share

    judge_read_share(read_share)
    return "Every rank gets its samples with one read, and reads nothing else."


CULPRIT_HINTS = [
    "Work in two steps. For each rank add up its time in `sync`, and take the rank with the "
    "least. Then, on that rank alone, add up self time by name.",
    "Self time: go through the spans in order of their start (of two that start together, take the "
    "longer one first), and keep a stack of the spans that are still open. Add a span's length to "
    "the self time of its own name, and subtract it from the self time of the innermost open span. "
    "Leave out the spans inside `sync`, and at the end `sync` itself.",
    "```python\n"
    "self_time, around = {}, []\n"
    "for name, start, end in sorted(spans, key=lambda span: (span[1], -span[2])):\n"
    "    while around and around[-1][1] <= start:\n"
    "        around.pop()\n"
    "    self_time[name] = self_time.get(name, 0) + ...\n"
    "    if around:\n"
    "        self_time[around[-1][0]] -= ...\n"
    "    around.append((name, end))\n"
    "del self_time['sync']\n"
    "```",
]


@exercise("11.culprit", function="culprit", where="notebook", hints=CULPRIT_HINTS)
def check_culprit(culprit: Callable) -> str:
    from .judge_culprit import judge_culprit

    judge_culprit(culprit)
    return "It finds the rank that waits least, and what that rank does, in a dozen traces."
