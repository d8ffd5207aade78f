"""The weights after a few steps show which common mistake a training step makes.

The judges of those exercises of lesson 05 that run on the ranks. Models are small and in float64,
so the result of a mistake differs clearly from the right one.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple
from unittest.mock import patch

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from course_lib.teaching.distributed_log import observe_distributed
from course_lib.teaching.exercise import WrongAnswer
from course_lib.teaching.judges.collective_calls import judge_collectives, need_one_all_reduce
from course_lib.teaching.judges.failures import in_one_line, judge_errors, need_training_mode
from course_lib.teaching.judges.formulas import name_the_mistake
from course_lib.teaching.judges.messages import all_waited
from course_lib.teaching.message_log import Observation


def flat(tensors) -> torch.Tensor:
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


def _all_close(vectors: Sequence[torch.Tensor], wanted) -> bool:
    each = wanted if isinstance(wanted, list) else [wanted] * len(vectors)
    # float64, numbers up to some hundreds, a few steps: rounding stays below 1e-12.
    pairs = zip(vectors, each, strict=True)
    return all(torch.allclose(v, w, rtol=1e-9, atol=1e-9) for v, w in pairs)


# ---- gradient sync with one collective --------------------------------------------------------


def _with_gradients(rank: int) -> nn.Module:
    """A model with a frozen bias; every other gradient encodes its rank and its place.

    The last layer's bias may learn, but has no gradient: the loss did not use it. Float32 cannot
    represent the gradients exactly.
    """
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2)).double()
    model[0].bias.requires_grad_(False)
    for index, parameter in enumerate(model.parameters()):
        parameter.data.fill_(7 * rank)  # averaging the weights changes them
        if index in (0, 2):
            places = torch.arange(parameter.numel()).double().view_as(parameter)
            parameter.grad = (rank + 1) ** 2 * (places + 10 * index + 2.0**-23)
    return model


def _gradient(rank: int) -> torch.Tensor:
    return flat(p.grad for p in _with_gradients(rank).parameters() if p.grad is not None)


def observe_sync(sync_gradients, ranks: list[int] | None) -> Observation:
    def call(group):
        model = _with_gradients(dist.get_rank(group))
        with _other_order_of_sets(dist.get_rank(group)):
            sync_gradients(model, group)
        parameters = list(model.parameters())
        frozen_alone = parameters[1].grad is None and parameters[3].grad is None
        gradients = [parameters[0].grad, parameters[2].grad]
        lost = any(gradient is None for gradient in gradients)
        return None if lost else flat(gradients), flat(parameters), frozen_alone

    return observe_distributed(call, ranks=ranks)


def _other_order_of_sets(rank: int) -> AbstractContextManager:
    """Give sets of tensors a different order on odd ranks; by default, addresses decide."""

    def hashed(tensor: torch.Tensor) -> int:
        place = tensor.numel() if rank % 2 else 8 - tensor.numel()
        return (id(tensor) << 8) + place  # Python keeps a set of a few in a table of 8 places

    return patch.object(torch.Tensor, "__hash__", hashed)


def judge_sync(seen: Observation, p: int) -> None:
    for error in seen.errors:
        if isinstance(error, (AttributeError, TypeError)) and "None" in str(error):
            raise WrongAnswer("stumbles-over-frozen", error=in_one_line(error)) from error
    judge_errors(seen.errors)
    if not any(seen.logs):
        raise WrongAnswer("no-communication")
    judge_collectives(seen)
    all_waited(seen)  # otherwise the gradients hold whatever had arrived by then
    if any(result[0] is None for result in seen.results[:p]):
        raise WrongAnswer("no-gradient")
    given = [gradients for gradients, _, _ in seen.results[:p]]
    weights = [weights for _, weights, _ in seen.results[:p]]
    if not _all_close(weights, [torch.full_like(w, 7 * r) for r, w in enumerate(weights)]):
        raise WrongAnswer("averages-weights")
    own = [_gradient(rank) for rank in range(p)]
    if _all_close(given, own) and p > 1:
        raise WrongAnswer("not-copied-back")
    if _all_close(given, sum(own)) and p > 1:
        raise WrongAnswer("sum-not-mean", p=p)
    mean = sum(own) / p
    if not _all_close(given, mean):
        _explain_gradients(given, own, seen.logs[0])
        raise WrongAnswer("wrong-value", given=given[0].tolist(), wanted=mean.tolist())
    if not all(alone for _, _, alone in seen.results[:p]):
        raise WrongAnswer("wakes-frozen")
    need_one_all_reduce(seen.logs[0])


def _explain_gradients(given: list[torch.Tensor], own: list[torch.Tensor], calls: list) -> None:
    p, mean = len(given), sum(own) / len(own)
    if p > 1 and _all_close(given, mean / p):
        raise WrongAnswer("divides-twice", p=p)
    if _all_close(given[:1], mean):
        if any(call.call == "reduce" for call in calls):
            raise WrongAnswer("only-rank-0: by reduce")
        raise WrongAnswer("only-rank-0")
    if all(torch.allclose(gradients, mean, rtol=1e-6) for gradients in given):
        raise WrongAnswer("loses-digits", given=given[0].tolist(), wanted=mean.tolist())
    mixed = sum(_swapped(g, 6) if rank % 2 else g for rank, g in enumerate(own)) / p
    if p > 1 and _all_close(given, [_swapped(mixed, 4) if r % 2 else mixed for r in range(p)]):
        raise WrongAnswer("order-differs")
    if all(torch.isin(gradients, mean).all() for gradients in given):
        raise WrongAnswer("wrong-place", given=given[0].tolist(), wanted=mean.tolist())


def _swapped(flat: torch.Tensor, first: int) -> torch.Tensor:
    return torch.cat([flat[first:], flat[:first]])


# ---- a training step to fix -------------------------------------------------------------------

STEPS, SHARE = 3, 5  # a share of 4 would be as large as the number of ranks


def _task(p: int = 1) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """A linear model, and the batches of p ranks and all steps."""
    generator = torch.Generator().manual_seed(5)
    model = nn.Linear(3, 4).double()
    for parameter in model.parameters():
        nn.init.normal_(parameter, generator=generator)
    images = torch.randn(STEPS, p, SHARE, 3, generator=generator, dtype=torch.float64)
    labels = torch.randint(4, (STEPS, p, SHARE), generator=generator)
    return model, images, labels


def _sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)


def _sgd_without_momentum(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.5)


def _adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.1)


def observe_train_step(train_step, ranks: list[int] | None, make_optimizer=_sgd) -> Observation:
    def call(group):
        rank = dist.get_rank(group)
        model, images, labels = _task(dist.get_world_size(group))
        optimizer = make_optimizer(model)
        before = images.clone(), labels.clone()
        losses = [
            train_step(model, optimizer, images[step, rank], labels[step, rank], group)
            for step in range(STEPS)
        ]
        intact = all(map(torch.equal, before, (images, labels)))
        return flat(model.parameters()), losses, model.training, intact

    return observe_distributed(call, ranks=ranks)


class _SerialRuns(NamedTuple):
    """Weights after right steps and after common mistakes; losses before and after each step."""

    right: torch.Tensor
    mistakes: dict[str, torch.Tensor | list]
    before: list[float]
    after: list[float]


def _serial_runs(p: int, make_optimizer=_sgd) -> _SerialRuns:
    later: list[float] = []

    def train(choose, *, scale=1.0, clear=True, make=make_optimizer) -> tuple[torch.Tensor, list]:
        model, images, labels = _task(p)
        optimizer, losses = make(model), []
        later.clear()
        for step in range(STEPS):
            loss = F.cross_entropy(model(choose(images[step])), choose(labels[step]))
            losses.append(loss.item())
            if clear:
                optimizer.zero_grad()
            (scale * loss).backward()
            optimizer.step()
            later.append(F.cross_entropy(model(choose(images[step])), choose(labels[step])).item())
        return flat(model.parameters()), losses

    def whole(tensor):
        return tensor.flatten(0, 1)

    right, losses = train(whole)
    after = list(later)
    alone = [train(lambda tensor, r=r: tensor[r])[0] for r in range(p)]
    mistakes: dict[str, torch.Tensor | list] = {
        "steps-before-sync": alone,
        "only-rank-0s-data": alone[0],
        "sum-not-mean": train(whole, scale=p)[0],
        "divides-twice": train(whole, scale=1 / p)[0],
        "forgets-to-clear": train(whole, clear=False)[0],
        "goes-round-the-optimizer": train(whole, make=_sgd_without_momentum)[0],
    }
    return _SerialRuns(right, mistakes, losses, after)


def judge_train_step(seen: Observation, p: int) -> None:
    judge_collectives(seen)
    all_waited(seen)
    vectors = [weights for weights, *_ in seen.results[:p]]
    right, mistakes, whole, after = _serial_runs(p)
    if not _all_close(vectors, right):
        equal = _all_close(vectors, vectors[0])
        if not equal and all((call.nbytes or 0) <= 8 for log in seen.logs for call in log):
            raise WrongAnswer("averages-the-loss")
        name_the_mistake(mistakes, lambda wanted: _all_close(vectors, wanted), p=p)
        start = flat(_task()[0].parameters())
        if _all_close(vectors, start):
            raise WrongAnswer("makes-no-step")
        if not equal:
            raise WrongAnswer("ranks-differ")
        raise WrongAnswer("wrong-value", given=_first(vectors[0]), wanted=_first(right))
    _judge_losses([losses for _, losses, *_ in seen.results[:p]], whole, after)
    need_training_mode(all(training for _, _, training, _ in seen.results[:p]))
    if not all(intact for *_, intact in seen.results[:p]):
        raise WrongAnswer("changes-its-input")


def _first(numbers: torch.Tensor) -> str:
    """Return the first few of many numbers, in the form in which a learner sees them."""
    return ", ".join(f"{number:.4g}" for number in numbers[:4].tolist())


def judge_adam(train_step) -> None:
    """Judge once more, with an optimizer whose step is not in proportion to the gradient."""
    seen = observe_train_step(train_step, None, _adam)
    judge_collectives(seen)
    right = _serial_runs(len(seen.results), _adam).right
    if not _all_close([weights for weights, *_ in seen.results], right):
        raise WrongAnswer("averages-weights")


def _judge_losses(given: list, whole: list[float], after: list[float]) -> None:
    p = len(given)
    for rank, losses in enumerate(given):
        if not all(isinstance(loss, float) for loss in losses):
            kind = type(losses[0]).__name__
            raise WrongAnswer("loss-not-a-number", kind=kind)
        if _near(losses, whole):
            continue
        if _near(losses, [p * loss for loss in whole]):
            raise WrongAnswer("loss-is-a-sum", wanted=whole[0], given=losses[0])
        if _near(losses, after):
            raise WrongAnswer("loss-after-the-step", wanted=whole[0], given=losses[0])
        if len({round(own[0], 9) for own in given}) > 1:
            raise WrongAnswer("own-loss-only", rank=rank, given=losses[0], wanted=whole[0])
        step = next(
            i
            for i, pair in enumerate(zip(losses, whole, strict=True))
            if abs(pair[0] - pair[1]) >= 1e-9
        )
        raise WrongAnswer("wrong-loss", step=step + 1, wanted=whole[step], given=losses[step])


def _near(losses: list, wanted: list) -> bool:
    return all(abs(a - b) < 1e-9 for a, b in zip(losses, wanted, strict=True))


# ---- back from a checkpoint -------------------------------------------------------------------


LATER_RATE = 0.25  # rank 0's learning rate has been lowered since the start


def _interrupted() -> tuple[nn.Module, torch.optim.Optimizer]:
    """Rank 0's model and optimizer after a few steps; new ones on every other rank."""
    rank = dist.get_rank()
    model = _task()[0]
    # State that is not a parameter, like the running mean of batch normalisation.
    model.register_buffer("batches_seen", torch.tensor(float(7 * rank + 2)))
    if rank != 0:
        for parameter in model.parameters():
            nn.init.constant_(parameter, float(rank))
        return model, _sgd(model)
    optimizer = _sgd(model)
    for step in range(2):
        _step(model, optimizer, step)
    optimizer.param_groups[0]["lr"] = LATER_RATE
    return model, optimizer


def _step(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    """One step with a gradient that is the same on every rank."""
    for index, parameter in enumerate(model.parameters()):
        places = torch.arange(parameter.numel()).double().view_as(parameter)
        parameter.grad = torch.cos(places + index + step)
    optimizer.step()


def observe_restore(sync_from_root) -> Observation:
    model, optimizer = _interrupted()

    def call(group):
        sync_from_root(model, optimizer, group)
        weights, buffer = flat(model.parameters()), model.batches_seen.item()
        _step(model, optimizer, 2)
        return weights, flat(model.parameters()), buffer

    return observe_distributed(call)


def judge_restore(seen: Observation) -> None:
    try:
        judge_collectives(seen)
    except WrongAnswer as error:
        if error.mistake != "it-hangs" or not 0 < min(map(len, seen.logs)) < len(seen.logs[0]):
            raise
        wrong = WrongAnswer("it-hangs: in a loop over what a rank has", hang=error)
        raise wrong from error.__cause__
    weights, after, buffers = zip(*seen.results, strict=True)
    restored, ways = _ways_to_go_on(len(seen.results))
    if not _all_close(weights, restored):
        if _all_close(weights[:1], restored):
            raise WrongAnswer("weights-differ")
        raise WrongAnswer("spoils-the-checkpoint")
    gone = [next((way for way in ways if _all_close([one], ways[way])), None) for one in after]
    if None in gone:
        rank, wanted = gone.index(None), ways["all", LATER_RATE]
        raise WrongAnswer(
            "wrong-value", rank=rank, given=_first(after[rank]), wanted=_first(wanted)
        )
    _judge_ways(gone)
    _judge_buffers(buffers)


def _ways_to_go_on(p: int) -> tuple[torch.Tensor, dict[tuple[str, float], torch.Tensor]]:
    """Return the weights of the checkpoint, and those one step later by momentum and rate."""
    shares = {"all": 1.0, "none": 0.0, "averaged": 1 / p}
    ways = {}
    for momentum, share in shares.items():
        for rate in (LATER_RATE, 0.5):
            model = _task()[0]
            optimizer = _sgd(model)
            for step in range(2):
                _step(model, optimizer, step)
            restored = flat(model.parameters())
            for state in optimizer.state.values():
                state["momentum_buffer"] *= share
            optimizer.param_groups[0]["lr"] = rate
            _step(model, optimizer, 2)
            ways[momentum, rate] = flat(model.parameters())
    return restored, ways


def _judge_ways(gone: list[tuple[str, float]]) -> None:
    """Raise unless every rank has gone on with all of the momentum and rank 0's rate."""
    momenta, rates = zip(*gone, strict=True)
    if set(momenta[1:]) == {"none"} and momenta[0] == "all":
        raise WrongAnswer("weights-only")
    if set(momenta) == {"none"}:
        raise WrongAnswer("momentum-lost")
    if set(momenta) == {"averaged"}:
        raise WrongAnswer("momentum-averaged", p=len(gone))
    if set(momenta) != {"all"}:
        raise WrongAnswer("momentum-differs")
    other = next((rank for rank, rate in enumerate(rates) if rate != LATER_RATE), None)
    if other is not None:
        raise WrongAnswer("rate-lost", rank=other, rate=rates[other], lowered=LATER_RATE)


def _judge_buffers(buffers: tuple[float, ...]) -> None:
    other = next((rank for rank, value in enumerate(buffers) if value != 2), None)
    if other is not None:
        raise WrongAnswer("forgets-the-buffers", rank=other)
