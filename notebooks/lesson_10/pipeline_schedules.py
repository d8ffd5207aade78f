"""Pipeline schedules: the order in which ranks compute, and how long that takes.

The model is cut into *stages*, and a batch into *micro-batches*. A schedule lists
the tasks of each rank in order; :func:`times` says when each :class:`Task` runs if it begins as
soon as its rank is free and its inputs are there. Nothing here communicates: programs follow
these schedules, and figures show them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

__all__ = [
    "Placed",
    "Schedule",
    "Task",
    "bubble",
    "gpipe",
    "in_flight",
    "interleaved",
    "one_f_one_b",
    "seconds_of",
    "times",
    "zero_bubble",
]


class Task(NamedTuple):
    """What a rank does for one micro-batch.

    Attributes:
        kind: "F", forward; "B", backward; "W", the half of backward that makes the gradients of
            the weights, if a schedule splits backward. "B" is then the half for the inputs.
        micro_batch: number of the micro-batch, from 0 on.
        chunk: which of this rank's stages; 0, unless the rank has several.
    """

    kind: str
    micro_batch: int
    chunk: int = 0


class Placed(NamedTuple):
    """A task with the times at which it begins and ends."""

    task: Task
    start: float
    end: float


Schedule: TypeAlias = list[list[Task]]
"""For each rank its tasks, in order."""


def gpipe(stages: int, micro_batches: int) -> Schedule:
    """Return GPipe's schedule: all forwards, then all backwards.

    Source: Huang and others, "GPipe: Efficient Training of Giant Neural Networks using Pipeline
    Parallelism", NeurIPS 2019.
    """
    _require(stages, micro_batches)
    numbers = range(micro_batches)
    return [[Task("F", m) for m in numbers] + [Task("B", m) for m in numbers]] * stages


def one_f_one_b(stages: int, micro_batches: int) -> Schedule:
    """Return 1F1B with a flush: just enough forwards to fill the pipeline, then each in turn.

    Source: Narayanan and others, "Memory-Efficient Pipeline-Parallel DNN Training", ICML 2021,
    as "PipeDream-Flush".
    """
    _require(stages, micro_batches)
    schedule = []
    for rank in range(stages):
        ahead = min(micro_batches, stages - 1 - rank)
        tasks = [Task("F", m) for m in range(ahead)]
        for m in range(ahead, micro_batches):
            tasks += [Task("F", m), Task("B", m - ahead)]
        schedule.append(tasks + [Task("B", m) for m in range(micro_batches - ahead, micro_batches)])
    return schedule


def interleaved(ranks: int, chunks: int, micro_batches: int) -> Schedule:
    """Return 1F1B with several stages on each rank: rank r has stages r, r + ranks, ...

    Source: Narayanan and others, "Efficient Large-Scale Language Model Training on GPU Clusters
    Using Megatron-LM", SC 2021, section 2.2.

    Raises:
        ValueError: unless the number of micro-batches is a multiple of the number of ranks.
    """
    _require(ranks, micro_batches)
    if chunks < 1 or micro_batches % ranks:
        raise ValueError(
            f"{micro_batches} micro-batches in {chunks} chunks: there must be at least one chunk, "
            f"and a multiple of {ranks} micro-batches, as many as ranks"
        )
    total = micro_batches * chunks

    def task(kind: str, index: int) -> Task:
        turn, within = divmod(index, ranks * chunks)
        chunk, number = divmod(within, ranks)
        return Task(kind, turn * ranks + number, chunk if kind == "F" else chunks - 1 - chunk)

    schedule = []
    for rank in range(ranks):
        ahead = min(total, 2 * (ranks - 1 - rank) + (chunks - 1) * ranks)
        tasks = [task("F", index) for index in range(ahead)]
        for index in range(ahead, total):
            tasks += [task("F", index), task("B", index - ahead)]
        schedule.append(tasks + [task("B", index) for index in range(total - ahead, total)])
    return schedule


def zero_bubble(stages: int, micro_batches: int) -> Schedule:
    """Return ZB-H1: 1F1B with backward in two halves, of which "W" fills idle time.

    "B" computes the gradient of the inputs, for which the previous rank waits; "W" computes that of
    the weights, for which no rank waits. Rank r puts each W off by r micro-batches: that fills its
    idle time at the end, and no rank holds more micro-batches than there are stages. With tasks of
    equal length and at least as many micro-batches as stages K, M of them take 3 M + K - 1.

    Source: Qi and others, "Zero Bubble Pipeline Parallelism", ICLR 2024, section 2.1.
    """
    schedule = []
    for rank, tasks in enumerate(one_f_one_b(stages, micro_batches)):
        halves: list[Task] = []
        for task in tasks:
            halves.append(task)
            if task.kind == "B" and task.micro_batch >= rank:
                halves.append(Task("W", task.micro_batch - rank))
        left = range(max(0, micro_batches - rank), micro_batches)
        schedule.append(halves + [Task("W", m) for m in left])
    return schedule


def times(
    schedule: Schedule, seconds: Mapping[str, float], message_s: float = 0.0
) -> list[list[Placed]]:
    """Return when each rank does each of its tasks.

    Args:
        schedule: for each rank its tasks, in order.
        seconds: how long a task of a kind takes, such as ``{"F": 1, "B": 2}``.
        message_s: how long a message between two ranks takes.

    Raises:
        ValueError: if the ranks would wait for each other indefinitely.
    """
    ranks = len(schedule)
    last = ranks * (1 + max(task.chunk for tasks in schedule for task in tasks)) - 1
    ended: dict[tuple[str, int, int], float] = {}  # (kind, micro-batch, stage)
    placed: list[list[Placed]] = [[] for _ in schedule]
    waiting = [list(tasks) for tasks in schedule]
    while any(waiting):
        moved = False
        for rank, tasks in enumerate(waiting):
            while tasks:
                ready = _ready_at(tasks[0], tasks[0].chunk * ranks + rank, last, ended, message_s)
                if ready is None:
                    break
                task = tasks.pop(0)
                free = placed[rank][-1].end if placed[rank] else 0.0
                start = max(free, ready)
                placed[rank].append(Placed(task, start, start + seconds[task.kind]))
                stage = task.chunk * ranks + rank
                ended[task.kind, task.micro_batch, stage] = placed[rank][-1].end
                moved = True
        if not moved:
            stuck = [f"rank {rank} at {tasks[0]}" for rank, tasks in enumerate(waiting) if tasks]
            raise ValueError(f"the ranks wait for each other: {', '.join(stuck)}")
    return placed


def _ready_at(
    task: Task, stage: int, last: int, ended: dict[tuple[str, int, int], float], message_s: float
) -> float | None:
    """Return when all inputs of a task are there, or None if that is not known yet."""
    m = task.micro_batch
    if task.kind == "F":
        needs = [("F", m, stage - 1, message_s)] if stage else []
    elif task.kind == "B":
        needs = [("F", m, stage, 0.0)]
        needs += [("B", m, stage + 1, message_s)] if stage < last else []
    else:
        needs = [("B", m, stage, 0.0)]
    ready = 0.0
    for kind, number, where, on_the_way in needs:
        if (kind, number, where) not in ended:
            return None
        ready = max(ready, ended[kind, number, where] + on_the_way)
    return ready


def seconds_of(placed: Sequence[Sequence[Placed]]) -> float:
    """Return the time from the start of the first task on any rank to the end of the last."""
    tasks = [one for rank in placed for one in rank]
    return max(one.end for one in tasks) - min(one.start for one in tasks)


def bubble(placed: Sequence[Sequence[Placed]]) -> float:
    """Return the share of all ranks' time, from the first task to the last, that is idle."""
    busy = sum(one.end - one.start for rank in placed for one in rank)
    return 1 - busy / (seconds_of(placed) * len(placed))


def in_flight(tasks: Sequence[Task]) -> int:
    """Return the largest number of micro-batches whose activations a rank holds at once.

    It holds them from F to B. If the schedule has "W", it holds them until W, which also needs the
    inputs of the layers.
    """
    last = "W" if any(task.kind == "W" for task in tasks) else "B"
    held = most = 0
    for task in tasks:
        held += {"F": 1, last: -1}.get(task.kind, 0)
        most = max(most, held)
    return most


def _require(ranks: int, micro_batches: int) -> None:
    if ranks < 1 or micro_batches < 1:
        raise ValueError(f"{ranks} ranks and {micro_batches} micro-batches: at least one of each")
