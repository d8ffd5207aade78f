"""The first three exercises ask the two questions of every distributed program.

Who am I among the others, and what have the others got? The checks of lesson 00.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from course_lib.teaching.exercise import WrongAnswer, as_mistake, exercise
from course_lib.teaching.judges.failures import (
    in_one_line,
    judge_errors,
    not_attempted,
    own_error,
)
from course_lib.teaching.judges.formulas import plain

if TYPE_CHECKING:
    from torch_mpi4py import GuardedComm

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
            asked = f"for rank {rank} of {world_size}"
            wanted = (rank - 1) % world_size, (rank + 1) % world_size
            given = _called(neighbours, (rank, world_size), asked)
            _judge_neighbours(given, wanted, asked, world_size)
    return "Right for 1, 2, 3, 4 and 7 ranks."


def _called(function: Callable, arguments: tuple, asked: str) -> Any:
    """Return what the function returns, in Python's own lists and numbers.

    What it raises is told together with what it was asked for: the learner did not call it.
    """
    try:
        return plain(function(*arguments))
    except NotImplementedError:
        raise
    except Exception as error:
        explanation = f"{asked} your function raised {in_one_line(error)}"
        raise WrongAnswer("it-raises", explanation) from error


def _judge_neighbours(given, wanted: tuple[int, int], asked: str, world_size: int) -> None:
    numbers = isinstance(given, (tuple, list)) and all(isinstance(n, (int, float)) for n in given)
    if not numbers or len(given) != 2:
        raise WrongAnswer(
            "not-two-numbers",
            f"{asked} it returned {given!r}, not two numbers: `return left, right`",
        )
    given = tuple(given)
    if given == wanted:
        return
    if world_size == 1:
        raise WrongAnswer(
            "alone-at-the-table",
            f"right for 2 ranks and more, but {asked} it returned {given}, not {wanted}: a rank "
            "that sits alone is its own neighbour on both sides. With `%` that is no special case",
        )
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
    for samples in (8, 10, 1437, 2):
        _judge_shares(my_share, samples, 4)
    with as_mistake(
        "size-is-fixed",
        "on 4 ranks it is right, but not on another number of them. Use `world_size`",
    ):
        _judge_shares(my_share, 7, 3)
        _judge_shares(my_share, 5, 1)
    return "Every sample has exactly one rank, and no rank has two more than another."


def _judge_shares(my_share: Callable, samples: int, world_size: int) -> None:
    asked = f"{samples} samples on {world_size} ranks"

    def ask() -> list:
        return [
            _called(my_share, (samples, rank, world_size), f"for rank {rank}, with {asked},")
            for rank in range(world_size)
        ]

    shares = ask()
    for rank, share in enumerate(shares):
        if not _is_list_of_numbers(share):
            raise WrongAnswer(
                "not-a-list",
                f"{asked}: rank {rank} got {share!r}, which is not a list of whole numbers",
            )
    if list(map(sorted, ask())) != list(map(sorted, shares)):
        raise WrongAnswer(
            "another-share-each-time",
            f"{asked}: asked a second time, it deals them out differently. Each rank calls it on "
            "its own, so all have to come to the same deal: no chance, or the same seed for all",
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
        if len(owners) == 1:
            raise WrongAnswer(
                "given-twice", f"{asked}: rank {owners[0]} has sample {twice[0]} more than once"
            )
        raise WrongAnswer(
            "given-twice", f"{asked}: sample {twice[0]} belongs to more than one rank: {owners}"
        )
    missing = sorted(set(wanted) - set(dealt))
    rest = samples % world_size
    if missing and missing == [*range(samples - rest, samples)]:
        raise WrongAnswer(
            "drops-the-rest",
            f"{asked}: nobody gets {_some(missing)}. {samples} divided by {world_size} leaves "
            f"a remainder of {rest}; {_these(rest)} to somebody too",
        )
    if missing:
        raise WrongAnswer("left-out", f"{asked}: nobody gets {_some(missing)}")
    if max(sizes) - min(sizes) > 1:
        raise WrongAnswer(
            "uneven",
            f"{asked}: the ranks get {sizes} samples. All samples are there, but one rank may "
            "only have one more than another, or the others wait for it",
        )


def _is_list_of_numbers(share) -> bool:
    whole = isinstance(share, (list, tuple, range)) and all(isinstance(n, int) for n in share)
    return whole and not any(isinstance(n, bool) for n in share)


def _these(count: int) -> str:
    return "it belongs" if count == 1 else "these belong"


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

    from course_lib.teaching.judges.rank_groups import with_fewer_ranks
    from course_lib.teaching.message_log import observe

    def judge(comm: GuardedComm) -> None:
        # No two sums or means of these are equal, for any number of ranks from 2 on.
        papers = [(3 * rank + 1, 10 * rank * rank + 7) for rank in range(comm.size)]
        _judge_accuracy(observe(global_accuracy, comm, *papers[comm.rank]), papers)

    with_fewer_ranks(world(), judge)
    return "Right on every rank, though the shares differ in size."


def _judge_accuracy(seen: Observation, papers: list[tuple[int, int]]) -> None:
    not_attempted(seen.errors)
    if seen.hung:
        _judge_hang(seen)
    failed = own_error(seen.errors)
    if failed is not None and "NoneType" in str(failed[1]):
        raise WrongAnswer(
            "only-the-root-knows",
            f"rank {failed[0]} raised {failed[1]}: after a reduce only one rank has the sum",
        ) from failed[1]
    judge_errors(seen.errors)
    silent = [rank for rank, result in enumerate(seen.results) if result is None]
    if len(silent) == len(papers):
        raise WrongAnswer("returns-nothing", "every rank returned None; each needs the accuracy")
    if silent:
        raise WrongAnswer(
            "only-the-root-knows", f"rank {silent[0]} returns None. Every rank needs the accuracy"
        )
    p, (right, total) = len(papers), (sum(column) for column in zip(*papers, strict=True))
    given = [plain(result) for result in seen.results]
    accuracy = right / total
    if _all_close(given, [accuracy] * p):
        return
    mistakes = {
        "mean-of-accuracies": (
            [sum(r / t for r, t in papers) / p] * p,
            "it returns the mean of the ranks' accuracies. A rank with few papers then counts as "
            "much as one with many. Add up first, divide afterwards",
        ),
        "sum-of-accuracies": (
            [sum(r / t for r, t in papers)] * p,
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
        "own-total-times-ranks": (
            [right / (t * p) for _, t in papers],
            "it divides by this rank's total times the number of ranks, as if all had as many "
            "papers. Add up the totals, too",
        ),
        "divides-by-the-ranks": (
            [right / p] * p,
            "it returns right answers per rank. Divide by the papers of all ranks",
        ),
        "a-count": ([right] * p, "it returns how many are right, not what fraction"),
        "a-percentage": (
            [100 * accuracy] * p,
            f"it returns {100 * accuracy:.4g}, the accuracy in per cent. A number from 0 to 1 is "
            f"asked for: {accuracy:.4f}",
        ),
        "upside-down": (
            [total / right] * p,
            "it divides all papers by the right ones. The right ones are the part, all papers the "
            "whole",
        ),
        "rounds-down": (
            [0.0] * p,
            "it returns 0 on all ranks: `//` rounds down to a whole number. Divide by `/`",
        ),
    }
    for name, (values, explanation) in mistakes.items():
        if p > 1 and _all_close(given, values):
            raise WrongAnswer(name, explanation)
    told = ", ".join(map(str, given))
    raise WrongAnswer("wrong-value", f"the ranks returned {told}; the accuracy is {accuracy:.6g}")


def _judge_hang(seen: Observation) -> None:
    from course_lib.teaching.judges.messages import judge_hang

    failed = own_error(seen.errors)
    if failed is None and all(event.kind == "collective" for event in seen.stuck().values()):
        raise WrongAnswer(
            "not-everyone-takes-part",
            "it hangs: some ranks call `comm.allreduce` and some do not. All have to",
        )
    judge_hang(seen)


def _all_close(given: list, wanted: list[float]) -> bool:
    # Who sums in float32, as tensors do unless told otherwise, is off by 1e-7 or so; no mistake
    # above comes within 1e-2 of the accuracy.
    return all(
        isinstance(g, (int, float)) and math.isclose(g, w, rel_tol=1e-6)
        for g, w in zip(given, wanted, strict=True)
    )
