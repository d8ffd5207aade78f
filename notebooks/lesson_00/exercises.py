"""The first three exercises ask the two questions of every distributed program.

Who am I among the others, and what have the others got? The checks of lesson 00.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from course_lib.teaching.exercise import WrongAnswer, exercise
from course_lib.teaching.judges.failures import judge_errors, not_attempted, own_error

if TYPE_CHECKING:
    from course_lib.teaching.message_log import Observation

# ---- neighbours -------------------------------------------------------------------------------

NEIGHBOURS_HINTS = [
    "For most ranks the left neighbour is `rank - 1` and the right one `rank + 1`. For which two "
    "ranks is that wrong?",
    "Rank 0 has the last rank, `world_size - 1`, on its left. The last rank has rank 0 on its "
    "right. You can use an `if` for each, or the remainder of a division: `%` in Python.",
    "`(rank + 1) % world_size` is 0 for the last rank and `rank + 1` for all others. In Python "
    "`-1 % 4` is 3, so the same works on the left. Return the left one first.",
]


@exercise("00.neighbours", function="neighbours", where="notebook", hints=NEIGHBOURS_HINTS)
def check_neighbours(neighbours: Callable) -> str:
    for world_size in (4, 3, 7, 2, 1):
        for rank in [*range(1, world_size - 1), 0, world_size - 1]:
            left, right = (rank - 1) % world_size, (rank + 1) % world_size
            _judge_neighbours(neighbours(rank, world_size), (left, right), rank, world_size)
    return "Right for 1, 2, 3, 4 and 7 ranks."


def _judge_neighbours(given, wanted: tuple[int, int], rank: int, world_size: int) -> None:
    asked = f"for rank {rank} of {world_size}"
    if given == wanted:
        return
    if not isinstance(given, (tuple, list)) or len(given) != 2:
        raise WrongAnswer(
            "not-two-numbers",
            f"{asked} it returned {given!r}, not two numbers: `return left, right`",
        )
    given = tuple(given)
    if given == wanted:
        return
    if given == wanted[::-1]:
        raise WrongAnswer(
            "left-and-right-swapped", f"{asked} it returned {given}: the left one comes first"
        )
    outside = [number for number in given if not 0 <= number < world_size]
    if outside and world_size == 4:
        raise WrongAnswer(
            "falls-off-the-end",
            f"{asked} it returned {given}, but there is no rank {outside[0]}. The ranks sit round "
            "a table: go on at the other end",
        )
    if world_size != 4:
        raise WrongAnswer(
            "size-is-fixed",
            f"right for 4 ranks, but {asked} it returned {given}, not {wanted}. Use `world_size`",
        )
    raise WrongAnswer("wrong-value", f"{asked} it returned {given}, not {wanted}")


# ---- my share ---------------------------------------------------------------------------------

MY_SHARE_HINTS = [
    "Try it with 10 samples and 4 ranks, on paper: two ranks get 3 samples, two get 2. Deal them "
    "out like cards: who gets sample 0, who gets sample 1, and who gets sample 4?",
    "Dealt out like cards, rank 0 gets samples 0, 4, 8, and rank 1 gets 1, 5, 9. Every "
    "`world_size`-th sample, beginning with number `rank`.",
    "`range(start, stop, step)` counts in steps. `list(range(rank, ..., ...))` is all you need.",
]


@exercise("00.my_share", function="my_share", where="notebook", hints=MY_SHARE_HINTS)
def check_my_share(my_share: Callable) -> str:
    for samples, world_size in ((8, 4), (10, 4), (1437, 4), (7, 3), (2, 4), (5, 1)):
        shares = [my_share(samples, rank, world_size) for rank in range(world_size)]
        _judge_shares(shares, samples, world_size)
    return "Every sample has exactly one rank, and no rank has two more than another."


def _judge_shares(shares: list, samples: int, world_size: int) -> None:
    asked = f"{samples} samples on {world_size} ranks"
    for rank, share in enumerate(shares):
        if not isinstance(share, (list, range)):
            raise WrongAnswer(
                "not-a-list", f"{asked}: rank {rank} got {share!r}, which is not a list of numbers"
            )
    sizes = [len(share) for share in shares]
    wanted = Counter(range(samples))
    dealt = Counter(number for share in shares for number in share)
    strange = sorted(set(dealt) - set(wanted))
    if strange:
        raise WrongAnswer(
            "no-such-sample",
            f"{asked}: somebody gets sample {strange[-1]}, but they go from 0 to {samples - 1}",
        )
    if world_size > 1 and all(size == samples for size in sizes):
        raise WrongAnswer("everyone-gets-all", f"{asked}: every rank gets all of them")
    twice = sorted(number for number, times in dealt.items() if times > 1)
    if twice:
        owners = [rank for rank, share in enumerate(shares) if twice[0] in share]
        raise WrongAnswer(
            "given-twice", f"{asked}: sample {twice[0]} belongs to more than one rank: {owners}"
        )
    missing = sorted(set(wanted) - set(dealt))
    if missing and len(missing) == samples % world_size:
        raise WrongAnswer(
            "drops-the-rest",
            f"{asked}: nobody gets {_some(missing)}. {samples} divided by {world_size} leaves "
            f"a remainder of {samples % world_size}; these belong to somebody too",
        )
    if missing:
        raise WrongAnswer("left-out", f"{asked}: nobody gets {_some(missing)}")
    if max(sizes) - min(sizes) > 1:
        raise WrongAnswer(
            "uneven",
            f"{asked}: the ranks get {sizes} samples. All samples are there, but one rank may "
            "only have one more than another, or the others wait for it",
        )


def _some(numbers: list[int]) -> str:
    if len(numbers) == 1:
        return f"sample {numbers[0]}"
    return f"samples {', '.join(map(str, numbers[:3]))}{' ...' if len(numbers) > 3 else ''}"


# ---- one accuracy from all --------------------------------------------------------------------

GLOBAL_ACCURACY_HINTS = [
    "Two ranks: one has 1 right out of 1, the other 0 right out of 9. The accuracy over all is "
    "1/10. The mean of the two accuracies would be 1/2. What do you have to add up?",
    "Add up the right answers of all ranks, and add up the totals of all ranks. Divide after "
    "that, not before.",
    "`comm.allreduce(right)` is the number of right answers on all ranks. You need one more "
    "call, and a division.",
]


@exercise(
    "00.global_accuracy", function="global_accuracy", where="engines", hints=GLOBAL_ACCURACY_HINTS
)
def check_global_accuracy(global_accuracy: Callable) -> str:
    # Imported here: the notebook's kernel imports this module too, and is no rank.
    from torch_mpi4py import world

    from course_lib.teaching.message_log import observe

    comm = world()
    # No two sums or means of these are equal, for any number of ranks from 2 on.
    papers = [(3 * rank + 1, 10 * rank * rank + 7) for rank in range(comm.size)]
    _judge_accuracy(observe(global_accuracy, comm, *papers[comm.rank]), papers)
    return "Right on every rank, though the shares differ in size."


def _judge_accuracy(seen: Observation, papers: list[tuple[int, int]]) -> None:
    not_attempted(seen.errors)
    if seen.hung:
        raise WrongAnswer(
            "not-everyone-takes-part",
            "it hangs: some ranks call `comm.allreduce` and some do not. All have to",
        )
    failed = own_error(seen.errors)
    if failed is not None and "NoneType" in str(failed[1]):
        raise WrongAnswer(
            "only-the-root-knows",
            f"rank {failed[0]} raised {failed[1]}: after a reduce only one rank has the sum",
        ) from failed[1]
    judge_errors(seen.errors)
    right, total = (sum(column) for column in zip(*papers, strict=True))
    mistakes = {
        "mean-of-accuracies": (
            [sum(r / t for r, t in papers) / len(papers)] * len(papers),
            "it returns the mean of the ranks' accuracies. A rank with few papers then counts as "
            "much as one with many. Add up first, divide afterwards",
        ),
        "sum-of-accuracies": (
            [sum(r / t for r, t in papers)] * len(papers),
            "it returns the sum of the ranks' accuracies",
        ),
        "own-share-only": (
            [r / t for r, t in papers],
            "every rank returns the accuracy of its own share. What the others have, it can only "
            "learn by `comm.allreduce`",
        ),
        "own-total": (
            [right / t for _, t in papers],
            "the right answers are added up, but divided by this rank's own total",
        ),
        "a-count": ([right] * len(papers), "it returns how many are right, not what fraction"),
    }
    for name, (values, explanation) in mistakes.items():
        if len(papers) > 1 and _all_close(seen.results, values):
            raise WrongAnswer(name, explanation)
    silent = [rank for rank, result in enumerate(seen.results) if result is None]
    if silent:
        raise WrongAnswer(
            "only-the-root-knows", f"rank {silent[0]} returns None. Every rank needs the accuracy"
        )
    if not _all_close(seen.results, [right / total] * len(papers)):
        raise WrongAnswer(
            "wrong-value", f"the ranks returned {seen.results}, the accuracy is {right / total:.4f}"
        )


def _all_close(given: list, wanted: list[float]) -> bool:
    return all(
        isinstance(g, (int, float)) and math.isclose(g, w, rel_tol=1e-9)
        for g, w in zip(given, wanted, strict=True)
    )
