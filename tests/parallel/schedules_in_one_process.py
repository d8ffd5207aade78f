"""Carries out what all ranks do in one process, step by step together, without any messages."""

from __future__ import annotations

import torch
import torch.distributed as dist

from course_lib.parallel.all_reduces import Part
from course_lib.parallel.all_reduces.execution import Arithmetic
from course_lib.parallel.all_reduces.schedules import Schedule


@torch.no_grad()
def run_in_one_process(
    schedule: Schedule,
    tensors: list[torch.Tensor],
    op: dist.ReduceOp = dist.ReduceOp.SUM,
) -> None:
    """Do in place what ranks 0, 1, ... with these tensors would do, step by step together.

    Args:
        schedule: ``schedule(rank, world_size, numel)``, as in ``run_schedule``.
        tensors: one per rank, all of one shape and dtype.
        op: as there.

    Raises:
        ValueError: if the ranks' steps do not fit together: unlike in number, or a message that
            nobody receives, or one expected that nobody sends. Ranks would wait for ever.
    """
    size = len(tensors)
    ranks = [Arithmetic(tensor, op) for tensor in tensors]
    steps = [schedule(rank, size, ranks[rank].data.numel()) for rank in range(size)]
    lengths = [len(own) for own in steps]
    if len(set(lengths)) > 1:
        raise ValueError(f"the ranks have different numbers of steps: {lengths}")
    for index, together in enumerate(zip(*steps, strict=True)):
        on_the_way = {}
        for rank, step in enumerate(together):
            if step.send:
                data = ranks[rank].data[step.send.start : step.send.stop]
                on_the_way[_message(rank, step.send.peer, step.send)] = data.clone()
        for rank, step in enumerate(together):
            into = step.receive
            if not into:
                continue
            received = on_the_way.pop(_message(into.peer, rank, into), None)
            if received is None:
                raise ValueError(f"step {index}: rank {rank} waits for {into}, which never comes")
            part = slice(into.start, into.stop)
            if step.combine:
                ranks[rank].combine(part, received, received_first=into.peer < rank)
            else:
                ranks[rank].data[part] = received
        if on_the_way:
            raise ValueError(f"step {index}: nobody receives {sorted(on_the_way)}")
    for one in ranks:
        one.finish(size)


def _message(sender: int, receiver: int, part: Part) -> tuple[int, int, int, int]:
    return sender, receiver, part.start, part.stop
