"""The checks of lesson 03: is the sum right, and is no step and no byte wasted?

All but the check of the crossover rehearse the learner's function on several numbers of ranks,
and then run it on the real ones.
"""

from __future__ import annotations

from collections.abc import Callable

from course_lib.teaching.exercise import exercise

NUMBERS = 40_000  # int64 on the real ranks: 320 kB, too much for MPI to buffer

# ---- recursive doubling for any number of ranks -----------------------------------------------

ANY_HINTS = [
    "There are three parts: the extra ranks hand over their numbers, the other m ranks do "
    "recursive doubling, and then they send the result to the extra ranks. Let the extra ranks "
    "be m, m + 1, .... Then the others keep their rank numbers, and the doubling is that of the "
    "lesson, with m instead of `comm.size`.",
    "`m = 2 ** (comm.size.bit_length() - 1)`. Rank r >= m sends to rank r - m, then receives the "
    "result from it, and returns. If `r + m < comm.size`, rank r < m receives from rank r + m "
    "before the doubling, and sends it the result afterwards. Begin with "
    "`total = array.copy()`.",
    "```python\n"
    "total, received = array.copy(), np.empty_like(array)\n"
    "if comm.rank >= m:\n"
    "    comm.Send(total, dest=comm.rank - m)\n"
    "    comm.Recv(total, source=comm.rank - m)\n"
    "    return total\n"
    "if comm.rank + m < comm.size:\n"
    "    ...  # receive and add\n"
    "...  # recursive doubling while distance < m\n"
    "if comm.rank + m < comm.size:\n"
    "    ...  # send it the result\n"
    "return total\n"
    "```",
]


@exercise("03.any_world_size", function="sum_over_all", where="engines", hints=ANY_HINTS, sure_on=2)
def check_any_world_size(sum_over_all: Callable) -> str:
    from .judge_all_reduces import judge_any_world_size, the_same_for_real
    from .judge_rehearsals import contribution, total

    judge_any_world_size(sum_over_all)
    the_same_for_real(
        sum_over_all, lambda r, p: contribution(r, NUMBERS), lambda r, p: total(p, NUMBERS)
    )
    return "The right sum on 1 to 8 ranks, in lg m steps, plus two if p is not a power of two."


# ---- the two halves of the ring ---------------------------------------------------------------

REDUCE_SCATTER_HINTS = [
    "Take the first loop of the lesson's ring, and run it on a copy of the array. Only the chunk "
    "numbers differ: a chunk that begins its round at rank r ends at rank r - 1. Chunk r must "
    "end at rank r.",
    "So chunk r begins at rank r + 1; in other words, rank r first sends chunk r - 1. In step k "
    "it sends chunk r - 1 - k and adds to chunk r - 2 - k, all modulo p.",
    "```python\n"
    "chunks = np.array_split(array.copy(), p)\n"
    "for step in range(p - 1):\n"
    "    outgoing, mine = chunks[(rank - step - 1) % p], chunks[(rank - step - 2) % p]\n"
    "    received = np.empty_like(mine)\n"
    "    ...  # Sendrecv to the right and from the left, then add\n"
    "return chunks[rank]\n"
    "```",
]


@exercise(
    "03.reduce_scatter",
    function="reduce_scatter",
    where="engines",
    hints=REDUCE_SCATTER_HINTS,
    sure_on=2,
)
def check_reduce_scatter(reduce_scatter: Callable) -> str:
    import numpy as np

    from .judge_all_reduces import judge_reduce_scatter, the_same_for_real
    from .judge_rehearsals import contribution, total

    judge_reduce_scatter(reduce_scatter)
    the_same_for_real(
        reduce_scatter,
        lambda r, p: contribution(r, NUMBERS),
        lambda r, p: np.array_split(total(p, NUMBERS), p)[r],
    )
    return "Rank r has chunk r of the sum, and no rank sent more bytes than necessary."


ALL_GATHER_HINTS = [
    "Make an array with room for p chunks, and put your own chunk in its place. Then, p - 1 "
    "times, send one chunk to the right, straight from its place, and receive another from the "
    "left, straight into its place.",
    "In the first step you send your own chunk, chunk r, and receive your left neighbour's, chunk "
    "r - 1. In the next step you send what you have just received. So in step k you send chunk "
    "r - k and receive chunk r - k - 1, modulo p.",
    "```python\n"
    "chunks = np.empty((p, len(chunk)), dtype=chunk.dtype)\n"
    "chunks[rank] = chunk\n"
    "for step in range(p - 1):\n"
    "    outgoing, incoming = chunks[(rank - step) % p], chunks[...]\n"
    "    comm.Sendrecv(outgoing, dest=right, recvbuf=incoming, source=left)\n"
    "return chunks.reshape(-1)\n"
    "```",
]


@exercise(
    "03.all_gather", function="all_gather", where="engines", hints=ALL_GATHER_HINTS, sure_on=2
)
def check_all_gather(all_gather: Callable) -> str:
    import numpy as np

    from .judge_all_reduces import judge_all_gather, the_same_for_real

    judge_all_gather(all_gather)
    the_same_for_real(
        all_gather,
        lambda r, p: np.full(NUMBERS, r),
        lambda r, p: np.repeat(np.arange(p), NUMBERS),
    )
    return "Every rank has all chunks in order, and sent p - 1 of them."


# ---- the published ring, fixed ----------------------------------------------------------------

MENDED_HINTS = [
    "On one rank, print what arrives in each step. Then look at the two arrays that take turns. "
    "Does any line ever put a rank's numbers into them?",
    "There are two faults. The arrays that travel begin as zeros, but the first one to go out "
    "must be a copy of the rank's own numbers. And you must add what has just *arrived*; the "
    "original adds its result in one step and its own array in the next.",
    "```python\n"
    "outgoing, incoming, total = array.copy(), np.empty_like(array), array.copy()\n"
    "for _ in range(comm.size - 1):\n"
    "    ...  # Isend outgoing to the right, Recv incoming from the left, wait\n"
    "    total += incoming\n"
    "    outgoing, incoming = incoming, outgoing  # send on what has arrived\n"
    "return total\n"
    "```",
]


@exercise("03.mended_ring", function="mended_ring", where="engines", hints=MENDED_HINTS, sure_on=2)
def check_mended_ring(mended_ring: Callable) -> str:
    from .judge_all_reduces import judge_mended_ring, the_same_for_real
    from .judge_rehearsals import contribution, total

    factor = judge_mended_ring(mended_ring)
    the_same_for_real(
        mended_ring, lambda r, p: contribution(r, NUMBERS), lambda r, p: total(p, NUMBERS)
    )
    if factor > 1.01:
        return (
            f"1, 2, 3, 4 add up to 10 on every rank. On 4 ranks, each sends {factor:.3g} times as "
            "many bytes as in a ring that splits the array into chunks."
        )
    return "1, 2, 3, 4 add up to 10 on every rank, and you even split the array into chunks."


# ---- the crossover ----------------------------------------------------------------------------

CROSSOVER_HINTS = [
    "Write down both times from the table in section 8, each as (a number of seconds) + n times "
    "(a number of seconds per byte). These are two straight lines in n. Where do they meet?",
    "The ring takes 2 (p - 1) - lg p more steps, each of which costs alpha. Per byte it saves "
    "(lg p - 2 (p - 1)/p) beta and (lg p - (p - 1)/p) gamma. n* is the extra time of the steps "
    "divided by what is saved per byte.",
    "```python\n"
    "lg = math.log2(p)\n"
    "costs_more = (2 * (p - 1) - lg) * alpha  # seconds\n"
    "saves = (lg - 2 * (p - 1) / p) * beta + ...  # seconds a byte\n"
    "return costs_more / saves  # unless it saves nothing\n"
    "```",
]


@exercise("03.crossover", function="crossover_bytes", where="notebook", hints=CROSSOVER_HINTS)
def check_crossover(crossover_bytes: Callable) -> str:
    from .judge_crossover import judge_crossover

    judge_crossover(crossover_bytes)
    return "That is where the two straight lines meet."
