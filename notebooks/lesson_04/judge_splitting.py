"""Judges means of gradients, in which each usual mistake gives another vector.

The judges of those exercises of lesson 04 that run on the ranks.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from course_lib.teaching.distributed_log import observe_distributed
from course_lib.teaching.exercise import WrongAnswer
from course_lib.teaching.judges.collective_calls import judge_collectives, need_one_all_reduce
from course_lib.teaching.judges.formulas import name_the_mistake
from course_lib.teaching.judges.messages import all_waited
from course_lib.teaching.message_log import Observation

LENGTH = 6


def observe_with_input_kept(function, inputs_of, ranks: list[int] | None) -> Observation:
    """Observe ``function(gradient, other, group)``; each result says whether its input is intact.

    ``inputs_of(rank, p)`` returns gradient and other of a rank in a group of p.
    """

    def call(group):
        gradient, other = inputs_of(dist.get_rank(group), dist.get_world_size(group))
        before = gradient.clone()
        result = function(gradient, other, group)
        return result, torch.equal(gradient, before)

    return observe_distributed(call, ranks=ranks)


def _need_one_all_reduce(seen: Observation, p: int) -> None:
    need_one_all_reduce(seen.logs[0], p=p, length=LENGTH)


def _results(seen: Observation, p: int) -> list[torch.Tensor]:
    judge_collectives(seen)
    all_waited(seen)  # or the result is whatever happened to have arrived by then
    vectors = []
    for rank, (result, unchanged) in enumerate(seen.results[:p]):
        if not unchanged:
            raise WrongAnswer("changes-its-input", rank=rank)
        if not isinstance(result, torch.Tensor) or tuple(result.shape) != (LENGTH,):
            shape = tuple(result.shape) if isinstance(result, torch.Tensor) else repr(result)
            raise WrongAnswer("wrong-shape", rank=rank, shape=shape, length=LENGTH)
        if result.dtype != torch.float64:
            raise WrongAnswer("loses-digits: by the dtype", rank=rank, dtype=result.dtype)
        vectors.append(result.double())
    return vectors


def _all(vectors: list[torch.Tensor], wanted, rtol: float = 1e-10) -> bool:
    """``wanted``: one vector for all ranks, or a list with one each."""
    each = wanted if isinstance(wanted, list) else [wanted] * len(vectors)
    return all(
        torch.allclose(v, w, rtol=rtol, atol=1e-10) for v, w in zip(vectors, each, strict=True)
    )


# ---- the mean over uneven shards --------------------------------------------------------------


def _uneven_shards(p: int, first: float) -> tuple[list[torch.Tensor], list[int]]:
    gradients = [torch.arange(LENGTH).double() * (r + first) - 3 * r for r in range(p)]
    return gradients, [2**r for r in range(p)]


def observe_mean_gradient(mean_gradient, ranks: list[int] | None, first: float) -> Observation:
    """``first``: the factor of the first rank's gradient."""

    def inputs_of(rank: int, p: int) -> tuple[torch.Tensor, int]:
        gradients, samples = _uneven_shards(p, first)
        return gradients[rank], samples[rank]

    return observe_with_input_kept(mean_gradient, inputs_of, ranks)


def judge_mean_gradient(seen: Observation, p: int, first: float) -> None:
    vectors = _results(seen, p)
    gradients, samples = _uneven_shards(p, first)
    total = sum(samples)
    weighted = sum(n * g for n, g in zip(samples, gradients, strict=True))
    mistakes = {
        "not-weighted": sum(gradients) / total,
        "mean-of-means": sum(gradients) / p,
        "sum-of-means": sum(gradients),
        "sum-not-mean": weighted,
        "divided-by-ranks": weighted / p,
        "own-count": [weighted / n for n in samples],
        "own-count-of-the-mean": [weighted / p / n for n in samples],
        "divides-by-samples": sum(g / n for n, g in zip(samples, gradients, strict=True)) / total,
        "samples-of-a-mean-rank": weighted / total * p,
        "own-gradient": gradients,
    }
    if not _all(vectors, weighted / total):
        told = {"p": p, "total": total, "samples": samples}
        told |= {"last": p - 1, "heavier": samples[-1]}
        name_the_mistake(mistakes, lambda wanted: _all(vectors, wanted), **told)
        if _all(vectors[:1], weighted / total):
            if any(event.call == "reduce" for event in seen.logs[0]):
                raise WrongAnswer("only-rank-0: by reduce")
            raise WrongAnswer("only-rank-0")
        if _all(vectors, weighted / total, rtol=1e-5):
            raise WrongAnswer("loses-digits")
        raise WrongAnswer(
            "wrong-value", given=vectors[0].tolist(), wanted=(weighted / total).tolist()
        )
    _need_one_all_reduce(seen, p)


# ---- clipping ---------------------------------------------------------------------------------

# The largest norm allowed, by case: one where clipping shortens the mean, one where the ranks'
# own gradients are long but cancel, one where everything is short, and one where all are zero.
# Divided by a number of ranks, the first must not be 1, nor may float32 hold what it gives.
CLIPPING_CASES = {"long": 2.2, "cancelling": 11.0, "short": 50.0, "zero": 1.0}


def _gradients(case: str, p: int) -> list[torch.Tensor]:
    base = torch.tensor([3.0, 0.0, 0.0, 4.0, 0.0, 0.0]).double()  # of norm 5
    if case == "zero":
        return [0.0 * base] * p
    if case != "cancelling":
        return [base * (r + 1) for r in range(p)]
    side = torch.tensor([0.0, 12.0, 0.0, 0.0, 0.0, 0.0]).double()
    times = [(1 + r // 2) * (-1) ** r for r in range(p)]  # 1, -1, 2, -2, ...
    if p % 2:
        times[-1] = 0
    # Their norms differ on two ranks, too: else the mean of the norms would be each rank's own.
    return [r / max(p - 1, 1) * base + t * side for r, t in enumerate(times)]


def _shortened(vector: torch.Tensor, largest: float, added: float = 0.0) -> torch.Tensor:
    norm = vector.norm().item() + added
    return vector * largest / norm if norm > largest else vector


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
            norms=[round(n, 1) for n in norms],
            largest=largest,
            count=len(silent),
            p=p,
        )
    vectors = _results(seen, p)
    total, mean = sum(gradients), sum(gradients) / p
    # `clip_grad_norm_` adds 1e-6 to the norm that it divides by, and `renorm` 1e-7.
    if any(_all(vectors, _shortened(mean, largest, added)) for added in (0.0, 1e-6, 1e-7)):
        return _need_one_all_reduce(seen, p)
    if case == "zero":
        raise WrongAnswer("divides-by-the-norm-of-zero", given=vectors[0].tolist())
    told = {
        "norms": [round(n, 1) for n in norms],
        "mean_norm": mean.norm().item(),
        "largest": largest,
    }
    if _all(vectors, sum(_shortened(gradient, largest, 1e-6) for gradient in gradients) / p):
        raise WrongAnswer("clips-before-averaging", **told)
    if _all(vectors, _shortened(mean, largest), rtol=1e-6):
        raise WrongAnswer("loses-digits")
    mean_norm = sum(norms) / p
    by_own_norm = [mean * min(1.0, largest / norm) for norm in norms]
    mistakes = {
        "clips-before-averaging": sum(_shortened(gradient, largest) for gradient in gradients) / p,
        "no-clipping": mean,
        "scales-small-ones-up": mean * largest / mean.norm(),
        "sum-not-mean": _shortened(total, largest),
        "clips-the-sum": _shortened(total, largest) / p,
        "own-norm": by_own_norm,
        "mean-of-norms": mean * min(1.0, largest / mean_norm),
        "clips-values": mean.clamp(-largest, largest),
        "forgets-the-limit": mean / mean.norm(),
        "squared-norm": mean * min(1.0, largest / mean.square().sum().item()),
        "magnitudes-for-norm": mean * min(1.0, largest / mean.abs().sum().item()),
        "largest-for-norm": mean * min(1.0, largest / mean.abs().max().item()),
    }
    # As above, because a mistake may involve `clip_grad_norm_` too.
    name_the_mistake(mistakes, lambda wanted: _all(vectors, wanted, rtol=1e-6), **told)
    given, wanted = vectors[0].tolist(), _shortened(mean, largest).tolist()
    raise WrongAnswer("wrong-value", given=given, wanted=wanted, **told)
