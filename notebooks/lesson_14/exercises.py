"""The checks of lesson 14: seconds, speed-up, time to accuracy, bytes. All run in the notebook."""

from __future__ import annotations

from collections.abc import Callable

from course_lib.teaching.exercise import exercise

SYNC_HINTS = [
    "Begin with one bucket: how many seconds does it take with recursive doubling, and how many "
    "with the ring? Which of the two counts? And how many seconds does one byte take, if the "
    "link is sold in bits?",
    "A link of m Mbit/s carries m · 10⁶ / 8 bytes per second; β is the inverse of that. Take the "
    "smaller time for each bucket, and add up these times. If `ranks` is a power of two, "
    "`ranks.bit_length() - 1` is its logarithm to base 2.",
    "```python\n"
    "beta = 8 / (megabits * 1e6)\n"
    "total = 0.0\n"
    "for size in buckets:\n"
    "    doubling = (ranks.bit_length() - 1) * (latency + size * beta)\n"
    "    ring = ...  # 2 (p - 1) messages of size / p bytes\n"
    "    total += ...\n"
    "return total\n"
    "```",
]


@exercise("14.sync_seconds", function="sync_seconds", where="notebook", hints=SYNC_HINTS)
def check_sync_seconds(sync_seconds: Callable) -> str:
    from .judge_predictions import judge_sync

    judge_sync(sync_seconds)
    return "Each message of each bucket pays its latency, and each byte takes eight bits."


SPEED_HINTS = [
    "You need two times to the target: that of one rank and that of many. Each is a number of "
    "steps times the seconds per step.",
    "A step of `one` takes `fixed_seconds + one.batch * sample_seconds`. For a step of `many`, "
    "take the same expression with `many.batch`, multiply it by the number of turns, and add "
    "`sync` if there are several ranks. `-(-a // b)` is a / b rounded up.",
    "```python\n"
    "turns = -(-many.ranks // cores)\n"
    "alone = one.steps * (fixed_seconds + one.batch * sample_seconds)\n"
    "step = turns * ...\n"
    "if many.ranks > 1:\n"
    "    step += ...\n"
    "return alone / (many.steps * step)\n"
    "```",
]


@exercise("14.speed_up", function="speed_up", where="notebook", hints=SPEED_HINTS)
def check_speed_up(speed_up: Callable) -> str:
    from .judge_predictions import judge_speed_up

    judge_speed_up(speed_up)
    return "Your formula counts steps, batch, the fixed part, turns on the cores and messages."


TARGET_HINTS = [
    "Go through the looks in order of time. When do you know the answer?",
    "At the first look whose accuracy is at least the target, return its seconds. You know "
    "that there is none only when the loop is over.",
    "```python\n"
    "for seconds, accuracy in looks:\n"
    "    if ...:\n"
    "        return seconds\n"
    "return None\n"
    "```",
]


@exercise("14.time_to_target", function="time_to_target", where="notebook", hints=TARGET_HINTS)
def check_time_to_target(time_to_target: Callable) -> str:
    from .judge_predictions import judge_time_to_target

    judge_time_to_target(time_to_target)
    return "The first look at the target counts, and a run that never gets there has no time."


BYTES_HINTS = [
    "Find two numbers for each strategy: how many times do the ranks communicate, and how many "
    "bytes do all ranks together send each time?",
    "In a ring all-reduce each of p ranks sends 2 (p - 1) / p times the model. In each update, "
    "one worker receives the parameters from the server and sends a gradient back. Local SGD "
    "has `steps // every` all-reduces.",
    "```python\n"
    'if strategy == "server":\n'
    "    return steps * ...\n"
    'rounds = steps // every if strategy == "local SGD" else steps\n'
    "return rounds * ...\n"
    "```",
]


@exercise("14.bytes_on_links", function="bytes_on_links", where="notebook", hints=BYTES_HINTS)
def check_bytes_on_links(bytes_on_links: Callable) -> str:
    from .judge_predictions import judge_bytes

    judge_bytes(bytes_on_links)
    return "Both directions, all ranks, and only the rounds that take place."
