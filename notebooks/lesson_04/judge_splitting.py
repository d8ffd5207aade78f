"""R gradients have one right mean, and a usual mistake gives one other vector.

The judges of the exercises of lesson 04 that run on the ranks.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from course_lib.teaching.distributed_log import observe_distributed
from course_lib.teaching.exercise import WrongAnswer
from course_lib.teaching.judges.collective_calls import judge_collectives, need_one_all_reduce
from course_lib.teaching.judges.messages import all_waited
from course_lib.teaching.message_log import Observation

LENGTH = 6


def observe_with_input_kept(function, inputs_of, ranks: list[int] | None) -> Observation:
    """Observe ``function(gradient, other, group)``; results come with "is the input unchanged".

    ``inputs_of(rank, p)`` returns gradient and other of a rank in a group of p.
    """

    def call(group):
        gradient, other = inputs_of(dist.get_rank(group), dist.get_world_size(group))
        before = gradient.clone()
        result = function(gradient, other, group)
        return result, torch.equal(gradient, before)

    return observe_distributed(call, ranks=ranks)


def _need_one_all_reduce(seen: Observation, p: int) -> None:
    need_one_all_reduce(
        seen.logs[0],
        f"brings every rank the gradients of all others: {p} times {LENGTH} numbers, where an "
        "all-reduce brings their sum",
    )


def _results(seen: Observation, p: int) -> list[torch.Tensor]:
    judge_collectives(seen)
    all_waited(seen)  # or what is returned is what happened to have come by then
    vectors = []
    for rank, (result, unchanged) in enumerate(seen.results[:p]):
        if not unchanged:
            raise WrongAnswer(
                "changes-its-input",
                f"on rank {rank} `gradient` is not what it was before the call. An all-reduce "
                "works in place: give it a tensor of your own",
            )
        if not isinstance(result, torch.Tensor) or tuple(result.shape) != (LENGTH,):
            shape = tuple(result.shape) if isinstance(result, torch.Tensor) else repr(result)
            raise WrongAnswer(
                "wrong-shape",
                f"rank {rank} returned {shape}, not a tensor of shape ({LENGTH},) like `gradient`",
            )
        if result.dtype != torch.float64:
            raise WrongAnswer(
                "loses-digits",
                f"`gradient` is of float64, and rank {rank} returned {result.dtype}",
            )
        vectors.append(result.double())
    return vectors


def _all(vectors: list[torch.Tensor], wanted, rtol: float = 1e-10) -> bool:
    """``wanted``: one vector for all ranks, or a list with one each."""
    each = wanted if isinstance(wanted, list) else [wanted] * len(vectors)
    return all(
        torch.allclose(v, w, rtol=rtol, atol=1e-10) for v, w in zip(vectors, each, strict=True)
    )


# ---- the mean over uneven shards --------------------------------------------------------------


def _uneven_shards(p: int) -> tuple[list[torch.Tensor], list[int]]:
    gradients = [torch.arange(LENGTH).double() * (r + 1) - 3 * r for r in range(p)]
    return gradients, [2**r for r in range(p)]


def observe_mean_gradient(mean_gradient, ranks: list[int] | None) -> Observation:
    def inputs_of(rank: int, p: int) -> tuple[torch.Tensor, int]:
        gradients, samples = _uneven_shards(p)
        return gradients[rank], samples[rank]

    return observe_with_input_kept(mean_gradient, inputs_of, ranks)


def judge_mean_gradient(seen: Observation, p: int) -> None:
    vectors = _results(seen, p)
    gradients, samples = _uneven_shards(p)
    total = sum(samples)
    weighted = sum(n * g for n, g in zip(samples, gradients, strict=True))
    mistakes = {
        "not-weighted": (
            sum(gradients) / total,
            "the ranks' means are added up as they are, and divided by the number of all samples. "
            "First make each rank's mean a sum: multiply it by the rank's own `samples`",
        ),
        "mean-of-means": (
            sum(gradients) / p,
            f"it is the plain mean over the ranks. The ranks have {samples} samples, so a sample "
            f"of rank 0 then counts {samples[-1]} times as much as one of rank {p - 1}",
        ),
        "sum-of-means": (
            sum(gradients),
            f"it is the sum of the {p} ranks' means: it is not weighted, and {p} ranks take about "
            f"{p} times the step of one",
        ),
        "sum-not-mean": (
            weighted,
            f"it is the gradient of the *sum* over all {total} samples. The mean is asked for: "
            "divide by the number of all samples",
        ),
        "divided-by-ranks": (
            weighted / p,
            f"the weighted sum is right, but it is divided by the number of ranks, {p}, not by "
            f"that of all samples, {total}",
        ),
        "own-count": (
            [weighted / n for n in samples],
            "each rank divides the sum by its *own* number of samples, so that the ranks go on "
            f"with different gradients. All {total} samples count",
        ),
        "own-count-of-the-mean": (
            [weighted / p / n for n in samples],
            "the ranks' sums are averaged over the ranks, and each rank divides by its *own* "
            f"number of samples. Neither is wanted: divide their sum by all {total} samples",
        ),
        "divides-by-samples": (
            sum(g / n for n, g in zip(samples, gradients, strict=True)) / total,
            "each rank's mean is divided by its number of samples once more. A sum is a mean "
            "*times* the number of samples",
        ),
        "samples-of-a-mean-rank": (
            weighted / total * p,
            f"it is {p} times too long: divided by the mean number of samples of a rank. All "
            f"{total} samples count",
        ),
        "own-gradient": (
            gradients,
            "each rank returned what it was given: what came of the collective is not in it",
        ),
    }
    if not _all(vectors, weighted / total):
        for name, (candidate, explanation) in mistakes.items():
            if _all(vectors, candidate):
                raise WrongAnswer(name, explanation)
        if _all(vectors[:1], weighted / total):
            raise WrongAnswer("only-rank-0", _only_rank_0(seen))
        if _all(vectors, weighted / total, rtol=1e-5):
            raise WrongAnswer(
                "loses-digits",
                "it is right to about seven digits only: somewhere float64 becomes float32",
            )
        raise WrongAnswer(
            "wrong-value",
            f"rank 0 returned {vectors[0].tolist()}, and the mean over all samples has the "
            f"gradient {(weighted / total).tolist()}",
        )
    _need_one_all_reduce(seen, p)


def _only_rank_0(seen: Observation) -> str:
    told = "rank 0 returned the right mean, but others did not"
    if any(event.call == "reduce" for event in seen.logs[0]):
        return f"{told}. `dist.reduce` leaves the sum with one rank, `dist.all_reduce` with all"
    return f"{told}, though all hold the sum: every rank has to divide and return it"


# ---- clipping ---------------------------------------------------------------------------------

# The largest norm allowed, by case: one where clipping shortens the mean, one where the ranks'
# own gradients are long but cancel, one where everything is short.
CLIPPING_CASES = {"long": 2.0, "cancelling": 11.0, "short": 50.0}


def _gradients(case: str, p: int) -> list[torch.Tensor]:
    base = torch.tensor([3.0, 0.0, 0.0, 4.0, 0.0, 0.0]).double()  # of norm 5
    if case != "cancelling":
        return [base * (r + 1) for r in range(p)]
    side = torch.tensor([0.0, 12.0, 0.0, 0.0, 0.0, 0.0]).double()
    times = [(1 + r // 2) * (-1) ** r for r in range(p)]  # 1, -1, 2, -2, ...
    if p % 2:
        times[-1] = 0
    return [0.5 * base + t * side for t in times]


def _shortened(vector: torch.Tensor, largest: float) -> torch.Tensor:
    return vector * min(1.0, largest / vector.norm().item())


def observe_clipped_mean(clipped_mean, case: str, ranks: list[int] | None) -> Observation:
    def inputs_of(rank: int, p: int) -> tuple[torch.Tensor, float]:
        return _gradients(case, p)[rank], CLIPPING_CASES[case]

    return observe_with_input_kept(clipped_mean, inputs_of, ranks)


def judge_clipped_mean(seen: Observation, case: str, p: int) -> None:
    gradients, largest = _gradients(case, p), CLIPPING_CASES[case]
    norms = [gradient.norm().item() for gradient in gradients]
    silent = [rank for rank in range(p) if not seen.logs[rank]]
    if silent and silent == [rank for rank in range(p) if norms[rank] <= largest]:
        raise WrongAnswer(
            "returns-early",
            f"the ranks' gradients have norms {[round(n, 1) for n in norms]}, and {largest:g} is "
            f"allowed: {'all' if len(silent) == p else 'some'} ranks return before the "
            "all-reduce. The others' gradients belong to the mean all the same, and a rank whose "
            "gradient is long waits for ever for one that has gone",
        )
    vectors = _results(seen, p)
    total, mean = sum(gradients), sum(gradients) / p
    # `clip_grad_norm_` adds 1e-6 to the norm that it divides by.
    if _all(vectors, _shortened(mean, largest), rtol=1e-6):
        return _need_one_all_reduce(seen, p)
    mean_norm = sum(norms) / p
    told = f"the ranks' gradients have norms {[round(n, 1) for n in norms]}, their mean has norm "
    told += f"{mean.norm():.3g}, and {largest:g} is allowed"
    by_own_norm = [mean * min(1.0, largest / norm) for norm in norms]
    mistakes = {
        "clips-before-averaging": (
            sum(_shortened(gradient, largest) for gradient in gradients) / p,
            "Every rank clips its own gradient, and the clipped ones are averaged. One process "
            "would clip the mean. Average first",
        ),
        "no-clipping": (mean, "The mean is right, but it is not shortened"),
        "scales-small-ones-up": (
            mean * largest / mean.norm(),
            "A gradient that is short enough is made longer. It has to stay as it is",
        ),
        "sum-not-mean": (_shortened(total, largest), "It clips the sum of the gradients"),
        "clips-the-sum": (
            _shortened(total, largest) / p,
            "It clips the sum, and divides by the number of ranks after that. Divide first",
        ),
        "own-norm": (
            by_own_norm,
            "Each rank shortens the mean by the norm of its *own* gradient, so that the ranks go "
            "on with different gradients",
        ),
        "mean-of-norms": (
            mean * min(1.0, largest / mean_norm),
            "It takes the mean of the ranks' norms for the norm of the mean",
        ),
        "clips-values": (
            mean.clamp(-largest, largest),
            f"It cuts off each number of the mean at {largest:g}, which changes its direction. "
            "Clipping by the norm multiplies all of them with the same factor",
        ),
        "forgets-the-limit": (
            mean / mean.norm(),
            f"What is too long is shortened to length 1, not to {largest:g}",
        ),
        "squared-norm": (
            mean * min(1.0, largest / mean.square().sum().item()),
            "It takes the squared norm for the norm: a root is missing",
        ),
        "magnitudes-for-norm": (
            mean * min(1.0, largest / mean.abs().sum().item()),
            "It takes the sum of the magnitudes for the norm. That is the root of the sum of "
            "squares, `mean.norm()`",
        ),
        "largest-for-norm": (
            mean * min(1.0, largest / mean.abs().max().item()),
            "It takes the largest magnitude for the norm. That is the root of the sum of squares, "
            "`mean.norm()`",
        ),
    }
    for name, (candidate, explanation) in mistakes.items():
        # As above: a mistake may be made by means of `clip_grad_norm_` too.
        if _all(vectors, candidate, rtol=1e-6):
            raise WrongAnswer(name, f"{told}. {explanation}")
    raise WrongAnswer(
        "wrong-value",
        f"{told}. Rank 0 returned {vectors[0].tolist()}, and it should be "
        f"{_shortened(mean, largest).tolist()}",
    )
