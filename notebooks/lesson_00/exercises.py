"""The checks of lesson 00.

Its exercises ask the two questions of every distributed program: which rank am I, and what do
the other ranks have?
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from course_lib.teaching.exercise import WrongAnswer, as_mistake, exercise
from course_lib.teaching.judges.failures import (
    in_one_line,
    judge_errors,
    not_attempted,
    own_error,
)
from course_lib.teaching.judges.formulas import name_the_mistake, plain
from course_lib.teaching.judges.trials import second_call

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
    "`-1 % 4` is 3, so the same works on the left. Return the left neighbour first.",
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

    An exception is reported with what was asked, because the learner did not make the call.
    """
    try:
        return plain(function(*arguments))
    except NotImplementedError:
        raise
    except Exception as error:
        raise WrongAnswer("it-raises", asked=asked, error=in_one_line(error)) from error


def _judge_neighbours(given, wanted: tuple[int, int], asked: str, world_size: int) -> None:
    numbers = isinstance(given, (tuple, list)) and all(isinstance(n, (int, float)) for n in given)
    if not numbers or len(given) != 2:
        raise WrongAnswer("not-two-numbers", asked=asked, given=repr(given))
    given = tuple(given)
    if given == wanted:
        if not all(isinstance(n, int) for n in given):
            raise WrongAnswer("not-two-numbers: not whole", asked=asked, given=given)
        return
    if world_size == 1:
        raise WrongAnswer("alone-at-the-table", asked=asked, given=given, wanted=wanted)
    if given == wanted[::-1]:
        raise WrongAnswer("left-and-right-swapped", asked=asked, given=given)
    outside = [number for number in given if not 0 <= number < world_size]
    if outside and world_size == 4:
        raise WrongAnswer("falls-off-the-end", asked=asked, given=given, outside=outside[0])
    if world_size != 4:
        raise WrongAnswer("size-is-fixed", asked=asked, given=given, wanted=wanted)
    raise WrongAnswer("wrong-value", asked=asked, given=given, wanted=wanted)


# ---- my share ---------------------------------------------------------------------------------

MY_SHARE_HINTS = [
    "Try it on paper, with 10 samples and 4 ranks: two ranks get 3 samples each, and two get 2. "
    "Deal the samples out like cards: which rank gets sample 0, which sample 1, which sample 4?",
    "If you deal them out like cards, rank 0 gets samples 0, 4, 8, and rank 1 gets 1, 5, 9. A "
    "rank gets every `world_size`-th sample, beginning with sample number `rank`.",
    "`range(start, stop, step)` counts in steps. `list(range(rank, ..., ...))` is all you need.",
]


@exercise("00.my_share", function="my_share", where="notebook", hints=MY_SHARE_HINTS)
def check_my_share(my_share: Callable) -> str:
    for samples in (8, 10, 1437, 2):
        _judge_shares(my_share, samples, 4)
    with as_mistake("size-is-fixed"):
        _judge_shares(my_share, 7, 3)
        _judge_shares(my_share, 5, 1)
    return (
        "Every sample belongs to exactly one rank, and any two shares differ by at most one sample."
    )


def _judge_shares(my_share: Callable, samples: int, world_size: int) -> None:
    asked = f"{samples} samples on {world_size} ranks"

    def ask(ranks: Iterable[int]) -> list:
        shares = {
            rank: _called(my_share, (samples, rank, world_size), f"for rank {rank}, with {asked},")
            for rank in ranks
        }
        return [shares[rank] for rank in range(world_size)]

    shares = ask(range(world_size))
    for rank, share in enumerate(shares):
        if not _is_list_of_numbers(share):
            raise WrongAnswer("not-a-list", asked=asked, rank=rank, share=repr(share))
    # Ask again in the opposite order: real ranks make their calls in no fixed order.
    if list(map(sorted, ask(reversed(range(world_size))))) != list(map(sorted, shares)):
        raise WrongAnswer("another-share-each-time", asked=asked)
    sizes = [len(share) for share in shares]
    wanted = Counter(range(samples))
    dealt = Counter(number for share in shares for number in share)
    strange = sorted(set(dealt) - set(wanted))
    if strange:
        raise WrongAnswer("no-such-sample", asked=asked, sample=strange[-1], last=samples - 1)
    if world_size > 1 and all(size == samples for size in sizes):
        raise WrongAnswer("everyone-gets-all", asked=asked)
    twice = sorted(number for number, times in dealt.items() if times > 1)
    if twice:
        owners = [rank for rank, share in enumerate(shares) if twice[0] in share]
        if len(owners) == 1:
            raise WrongAnswer(
                "given-twice: to one rank", asked=asked, rank=owners[0], sample=twice[0]
            )
        raise WrongAnswer("given-twice", asked=asked, sample=twice[0], owners=owners)
    missing = sorted(set(wanted) - set(dealt))
    rest = samples % world_size
    if missing and missing == [*range(samples - rest, samples)]:
        raise WrongAnswer(
            "drops-the-rest",
            asked=asked,
            missing=_some(missing),
            samples=samples,
            world_size=world_size,
            rest=rest,
        )
    if missing:
        raise WrongAnswer("left-out", asked=asked, missing=_some(missing))
    if max(sizes) - min(sizes) > 1:
        raise WrongAnswer("uneven", asked=asked, sizes=sizes)


def _is_list_of_numbers(share) -> bool:
    whole = isinstance(share, (list, tuple, range)) and all(isinstance(n, int) for n in share)
    return whole and not any(isinstance(n, bool) for n in share)


def _some(numbers: list[int]) -> str:
    if len(numbers) == 1:
        return f"sample {numbers[0]}"
    return f"samples {', '.join(map(str, numbers[:3]))}{' ...' if len(numbers) > 3 else ''}"


# ---- one accuracy from all --------------------------------------------------------------------

GLOBAL_ACCURACY_HINTS = [
    "Take two ranks: one has 1 right out of 1, the other 0 right out of 9. The accuracy over all "
    "papers is 1/10, but the mean of the two accuracies is 1/2. What do you have to add up?",
    "Add up the right answers of all ranks, and add up the totals of all ranks. Divide after "
    "that, not before.",
    "`comm.allreduce(right)` is the number of right answers on all ranks. You need one more "
    "call, and a division.",
]


@exercise(
    "00.global_accuracy", function="global_accuracy", where="engines", hints=GLOBAL_ACCURACY_HINTS
)
def check_global_accuracy(global_accuracy: Callable) -> str:
    # Imported here, because the notebook's kernel imports this module too, and is not a rank.
    from torch_mpi4py import world

    from course_lib.teaching.judges.rank_groups import with_fewer_ranks
    from course_lib.teaching.message_log import observe

    def judge(comm: GuardedComm) -> None:
        # No two sums or means of these are equal, for any number of ranks above 1.
        papers = [(3 * rank + 1, 10 * rank * rank + 7) for rank in range(comm.size)]
        _judge_accuracy(observe(global_accuracy, comm, *papers[comm.rank]), papers)
        with second_call():
            others = [(rank + 2, 5 * rank + 4) for rank in range(comm.size)]
            _judge_accuracy(observe(global_accuracy, comm, *others[comm.rank]), others)
        with as_mistake("an-empty-share", last=comm.size - 1):
            papers[-1] = (0, 0)
            _judge_accuracy(observe(global_accuracy, comm, *papers[comm.rank]), papers)

    with_fewer_ranks(world(), judge)
    return "Right on every rank, even though the shares differ in size."


def _judge_accuracy(seen: Observation, papers: list[tuple[int, int]]) -> None:
    not_attempted(seen.errors)
    if seen.hung:
        _judge_hang(seen)
    failed = own_error(seen.errors)
    if failed is not None and "NoneType" in str(failed[1]):
        raise WrongAnswer(
            "only-the-root-knows: and divides", rank=failed[0], error=failed[1]
        ) from failed[1]
    judge_errors(seen.errors)
    silent = [rank for rank, result in enumerate(seen.results) if result is None]
    if len(silent) == len(papers):
        raise WrongAnswer("returns-nothing")
    if silent:
        raise WrongAnswer("only-the-root-knows", rank=silent[0])
    to_itself = [rank for rank, peer in seen.sent() if rank == peer]
    if to_itself:
        raise WrongAnswer("sends-to-itself", rank=to_itself[0])
    p, (right, total) = len(papers), (sum(column) for column in zip(*papers, strict=True))
    given = [plain(result) for result in seen.results]
    accuracy = right / total
    if _all_close(given, [accuracy] * p):
        return
    if any(total == 0 for _, total in papers):
        raise WrongAnswer("wrong-value", given=", ".join(map(str, given)), accuracy=accuracy)
    mistakes = {
        "mean-of-accuracies": [sum(r / t for r, t in papers) / p] * p,
        "sum-of-accuracies": [sum(r / t for r, t in papers)] * p,
        "own-share-only": [r / t for r, t in papers],
        "own-total": [right / t for _, t in papers],
        "own-total-times-ranks": [right / (t * p) for _, t in papers],
        "divides-by-the-ranks": [right / p] * p,
        "a-count": [right] * p,
        "a-percentage": [100 * accuracy] * p,
        "upside-down": [total / right] * p,
        "rounds-down": [0.0] * p,
    }
    if p > 1:
        told = {"per_cent": 100 * accuracy, "accuracy": accuracy}
        name_the_mistake(mistakes, lambda values: _all_close(given, values), **told)
    returned = ", ".join(map(str, given))
    raise WrongAnswer("wrong-value", given=returned, accuracy=accuracy)


def _judge_hang(seen: Observation) -> None:
    from course_lib.teaching.judges.messages import judge_hang

    failed = own_error(seen.errors)
    if failed is None and all(event.kind == "collective" for event in seen.stuck().values()):
        raise WrongAnswer("not-everyone-takes-part")
    judge_hang(seen)


def _all_close(given: list, wanted: list[float]) -> bool:
    # Sums in float32, the default dtype of tensors, are off by about 1e-7; no mistake above
    # comes within 1e-2 of the accuracy.
    return all(
        isinstance(g, (int, float)) and math.isclose(g, w, rel_tol=1e-6)
        for g, w in zip(given, wanted, strict=True)
    )
