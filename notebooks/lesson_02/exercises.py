"""The checks of lesson 02.

A collective is right if every rank ends up with the right data and nothing is sent twice. Each
check runs the learner's function on the real ranks, and looks first at what every rank returned,
then at the messages or collectives that it took.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from course_lib.teaching.exercise import as_mistake, exercise
from course_lib.teaching.judges.trials import second_call

if TYPE_CHECKING:
    from torch_mpi4py import GuardedComm

# ---- broadcast and scatter from send and recv -------------------------------------------------

BROADCAST_HINTS = [
    "A rank has one of two roles: the root sends, and every other rank receives. `comm.rank`, "
    "`comm.size` and `root` tell you a rank's role, and the ranks that it communicates with.",
    "On a rank that is not the root, one line is enough: return what `comm.recv(source=root)` "
    "gives. On the root, loop over all ranks and send to each one except yourself.",
    "```python\n"
    "if comm.rank != root:\n"
    "    return comm.recv(source=root)\n"
    "for dest in range(comm.size):\n"
    "    ...  # send, unless dest is the root itself\n"
    "return ...  # the root returns its value too\n"
    "```",
]


@exercise("02.broadcast", function="broadcast", where="engines", hints=BROADCAST_HINTS)
def check_broadcast(broadcast) -> str:
    from torch_mpi4py import world

    from course_lib.teaching.judges.rank_groups import with_fewer_ranks
    from course_lib.teaching.message_log import observe

    from .judge_collectives import judge_broadcast, notes

    comm = world()
    last = comm.size - 1

    def judge(comm: GuardedComm, root: int = 0, values: list | None = None) -> None:
        values = values or notes(comm.size)
        judge_broadcast(observe(broadcast, comm, values[comm.rank], root), root, values)

    with_fewer_ranks(comm, judge)
    for root in (last, min(1, last)):
        with as_mistake("root-is-fixed", root=root):
            judge(comm, root=root)
    judge(comm, values=[(rank, "a pair") for rank in range(comm.size)])
    with as_mistake("empty-value"):
        judge(comm, values=list(range(comm.size)))
    return f"Every rank has the root's value, after {last} messages on {comm.size} ranks."


SCATTER_HINTS = [
    "It is your broadcast with one difference: what the root sends depends on the receiver.",
    "Part r of the list is for rank r. The root's own part needs no message: it is `parts[root]`.",
    "```python\n"
    "if comm.rank != root:\n"
    "    return comm.recv(source=root)\n"
    "for dest, part in enumerate(parts):\n"
    "    ...  # send this part, unless dest is the root itself\n"
    "return parts[root]\n"
    "```",
]


@exercise("02.scatter", function="scatter", where="engines", hints=SCATTER_HINTS)
def check_scatter(scatter) -> str:
    from torch_mpi4py import world

    from course_lib.teaching.judges.rank_groups import with_fewer_ranks

    from .judge_collectives import (
        judge_scatter,
        judge_scatter_of_nothing,
        observe_scatter,
        observe_scatter_of_nothing,
    )

    comm = world()
    last = comm.size - 1

    def judge(comm: GuardedComm, root: int = 0) -> None:
        judge_scatter(observe_scatter(scatter, comm, root), root)

    with_fewer_ranks(comm, judge)
    for root in (last, min(1, last)):
        with as_mistake("root-is-fixed", root=root):
            judge(comm, root=root)
    judge_scatter_of_nothing(observe_scatter_of_nothing(scatter, comm))
    return "Every rank has its part, and no rank was sent anything else."


# ---- a report without a hang ------------------------------------------------------------------

REPORT_HINTS = [
    "Which ranks reach the collective call? All of them must, whatever `comm.rank` is.",
    "Call the collective first, on every rank, outside any `if`. Then let the `if` decide what "
    "each rank returns. Which collective leaves the sum only with the root?",
    "`total = comm.reduce(loss, root=0)` is the whole communication. On the other ranks "
    "`total` is None: do not divide there.",
]


@exercise("02.report", function="report", where="engines", hints=REPORT_HINTS)
def check_report(report) -> str:
    from torch_mpi4py import world

    from course_lib.teaching.judges.rank_groups import with_fewer_ranks
    from course_lib.teaching.message_log import observe

    from .judge_collectives import judge_report

    def judge(comm: GuardedComm, first: float = 4.5) -> None:
        losses = [first + 4 * rank for rank in range(comm.size)]
        judge_report(observe(report, comm, losses[comm.rank]), losses)

    comm = world()
    with_fewer_ranks(comm, judge)
    judge(comm, first=2 - 2 * comm.size)  # these add up to 0
    return "All ranks make the same call, and only the root gets the sum."


# ---- one mean over unequal shares -------------------------------------------------------------

GLOBAL_MEAN_HINTS = [
    "The mean of the ranks' means is wrong when the ranks have different amounts of data. Which "
    "two numbers does every rank need to work out the true mean?",
    "They are the sum of all values and the number of values. Both are sums over the ranks, so "
    "both can travel in one tensor of two numbers.",
    "Build `torch.stack([values.sum(), torch.tensor(len(values), dtype=torch.float64)])`, "
    "all-reduce it with `group=group`, then divide its first number by its second.",
]


@exercise("02.global_mean", function="global_mean", where="engines", hints=GLOBAL_MEAN_HINTS)
def check_global_mean(global_mean) -> str:
    import torch.distributed as dist

    from course_lib.teaching.judges.rank_groups import with_smaller_group

    from .judge_collectives import judge_mean, observe_mean

    p = dist.get_world_size()
    judge_mean(observe_mean(global_mean, None), p)
    with second_call():
        judge_mean(observe_mean(global_mean, None, more=3.0), p, more=3.0)
    with_smaller_group(lambda ranks, p: judge_mean(observe_mean(global_mean, ranks), p))
    if p == 1:
        return "One all-reduce of two numbers."
    for mistake, first in (("count-is-fixed", 2), ("fails-on-no-values", 0)):
        with as_mistake(mistake, first=first):
            judge_mean(observe_mean(global_mean, None, first), p, first)
    return "One all-reduce of two numbers per rank, whatever the shares."


# ---- transpose by all-to-all ------------------------------------------------------------------

TRANSPOSE_HINTS = [
    "Rank r needs the columns that become its rows: from every rank's block, it needs columns "
    "`r * b` to `(r + 1) * b - 1`, where `b = len(rows)`. So cut your block into p pieces along "
    "the columns: piece r is for rank r.",
    "`all_to_all_single` cuts the *first* dimension into p equal parts, and joins what it "
    "receives along the first dimension too, in rank order. Bring your pieces into the shape "
    "`(p, b, b)` and make them contiguous. Each b × b piece has to be transposed as well, "
    "before or after it travels.",
    "```python\n"
    "b, p = len(rows), dist.get_world_size(group)\n"
    "blocks = rows.reshape(b, p, b).permute(1, 2, 0).contiguous()  # (p, b, b), transposed\n"
    "received = torch.empty_like(blocks)\n"
    "dist.all_to_all_single(received, blocks, group=group)\n"
    "```\n"
    "Now `received[s]` came from rank s, and belongs in columns `s * b` to `(s + 1) * b - 1` of "
    "your result.",
]


@exercise("02.transpose", function="transpose", where="engines", hints=TRANSPOSE_HINTS)
def check_transpose(transpose) -> str:
    import torch.distributed as dist

    from course_lib.teaching.judges.rank_groups import with_smaller_group

    from .judge_collectives import judge_transpose, observe_transpose

    def judge(ranks: list[int] | None, p: int, block: int = 2) -> None:
        judge_transpose(observe_transpose(transpose, ranks, p, block), p, block)

    with_smaller_group(judge)
    for rows in (3, 1):
        with as_mistake("block-is-fixed", rows=rows):
            judge(None, dist.get_world_size(), block=rows)
    return "One all-to-all, and every rank holds its rows of the transposed matrix."
