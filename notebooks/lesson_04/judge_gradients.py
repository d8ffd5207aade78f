"""Recognises a wrong gradient by working out what each usual mistake gives.

The judges of those exercises of lesson 04 that run in the notebook. The inputs are small whole
numbers, or float64, so that right and wrong results are far apart.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

import torch
from torch import nn

from course_lib.teaching.exercise import WrongAnswer
from course_lib.teaching.judges.failures import need_training_mode

# ---- backward by hand -------------------------------------------------------------------------

# (w, b, x, y): with the ReLU open, closed, open with a negative error, closed, and just either;
# the last one has results with many digits, which a float holds exactly.
POINTS = (
    *((2, 1, 3, 4), (1, -5, 2, 3), (-1, 2, -3, 7), (3, 2, -4, 2)),
    *((0.5, 0, 1, 3), (0.5, -1, 1, 2), (0.125, 0.375, 1.5, 2)),
)


def judge_gradients(gradients: Callable) -> None:
    with _autograd_watched() as used:
        for point in POINTS:
            _judge_point(gradients(*point), point)
    if used:
        raise WrongAnswer("uses-autograd", used=used[0])


def _judge_point(given, point) -> None:
    w, b, x, y = point
    asked = f"for w = {w:g}, b = {b:g}, x = {x:g}, y = {y:g}"
    if hasattr(given, "tolist"):  # an array or a tensor of the three
        given = given.tolist()
    if not isinstance(given, (tuple, list)) or len(given) != 3:
        raise WrongAnswer("not-three-numbers", asked=asked, given=repr(given))
    loss, d_w, d_b = (float(number) for number in given)
    u = w * x + b
    e = max(u, 0) - y
    open_ = u > 0
    d_u = 2 * e * open_
    wanted = (e * e + w * w, d_u * x + 2 * w, d_u)
    if (loss, d_w, d_b) == wanted:
        return
    if not math.isclose(loss, wanted[0], rel_tol=1e-9):
        if loss == e * e:
            raise WrongAnswer("wrong-loss: without w²", asked=asked, wanted=wanted[0], loss=loss)
        raise WrongAnswer("wrong-loss", asked=asked, wanted=wanted[0], loss=loss)
    if all(
        math.isclose(a, b, rel_tol=1e-3, abs_tol=1e-3) for a, b in zip(given, wanted, strict=True)
    ):
        raise WrongAnswer(
            "not-exact",
            asked=asked,
            d_w=repr(d_w),
            d_b=repr(d_b),
            wanted_w=wanted[1],
            wanted_b=wanted[2],
        )
    if (d_w, d_b) == (2 * e * x + 2 * w, 2 * e) and not open_:
        raise WrongAnswer("forgets-the-relu", asked=asked, u=u)
    if (d_b, d_w) == wanted[1:]:
        raise WrongAnswer("outputs-swapped", asked=asked, d_w=d_w, d_b=d_b)
    if (d_w, d_b) == (d_u * x + w, d_u):
        raise WrongAnswer("forgets-the-two", asked=asked, wanted_w=wanted[1], d_w=d_w)
    if (d_w, d_b) == (d_u * x, d_u):
        raise WrongAnswer("forgets-a-path", asked=asked, wanted_w=wanted[1], d_w=d_w)
    if d_b == d_u and d_w in (2 * w, d_u + 2 * w, d_u * w + 2 * w):
        raise WrongAnswer("forgets-a-factor", asked=asked, wanted_w=wanted[1], d_w=d_w, x=x)
    if (d_w, d_b) == (e * open_ * x + 2 * w, e * open_) or d_b == e * open_:
        raise WrongAnswer("forgets-the-two: of the error", asked=asked, wanted_b=wanted[2], d_b=d_b)
    if d_b == -wanted[2] and d_b != 0:
        raise WrongAnswer("wrong-sign", asked=asked, wanted_b=wanted[2], d_b=d_b)
    h = max(u, 0)
    if open_ and (d_w, d_b) == (2 * e * h * x + 2 * w, 2 * e * h):
        raise WrongAnswer("relu-times-its-value", asked=asked, wanted_b=wanted[2], d_b=d_b, h=h)
    if open_ and (d_w, d_b) == (2 * w, 0):
        raise WrongAnswer("relu-closed", asked=asked, u=u)
    if open_ and (d_w, d_b) == (2 * x + 2 * w, 2):
        raise WrongAnswer(
            "forgets-the-error", asked=asked, wanted_b=wanted[2], d_b=d_b, twice_e=2 * e
        )
    if d_w == wanted[1] and d_b == d_u * x:
        raise WrongAnswer("b-like-w", asked=asked, wanted_b=wanted[2], d_b=d_b, x=x)
    if d_w == wanted[1] and d_b == d_u + 2 * w:
        raise WrongAnswer("b-like-w: with a penalty", asked=asked, wanted_b=wanted[2], d_b=d_b)
    raise WrongAnswer(
        "wrong-value", asked=asked, wanted_w=wanted[1], wanted_b=wanted[2], d_w=d_w, d_b=d_b
    )


@contextmanager
def _autograd_watched() -> Iterator[list[str]]:
    """Yield a list that fills with the names of the functions of autograd that are called."""
    used: list[str] = []
    originals = {name: getattr(torch.autograd, name) for name in ("backward", "grad")}

    def noted(name: str, *args, **kwargs):
        used.append(name)
        return originals[name](*args, **kwargs)

    watched = {name: functools.partial(noted, name) for name in originals}
    with patch.multiple(torch.autograd, **watched):
        yield used


# ---- gradient accumulation --------------------------------------------------------------------

# How many samples, and how many at a time. With the second, `most` pieces are too large; with the
# fourth there is no rest, and with the last there is no whole piece.
CASES = ((10, 4), (14, 3), (9, 4), (8, 4), (3, 5))


class _Recording(nn.Module):
    """A linear model that remembers how many samples it was given at a time.

    Attributes:
        sizes: by call.
        graphs: the largest number of calls that were waiting for `backward` at one time.
    """

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2, dtype=torch.float64)
        self.layer.weight.data = torch.tensor([[1.0, -2.0, 3.0], [0.0, 1.0, -1.0]]).double()
        self.layer.bias.data = torch.tensor([2.0, -1.0]).double()
        self.sizes: list[int] = []
        self.graphs = self._open = 0

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if inputs.dim() != 2:
            raise WrongAnswer("a-sample-without-a-batch", shape=tuple(inputs.shape))
        self.sizes.append(len(inputs))
        outputs = self.layer(inputs)
        if outputs.requires_grad:
            self._open += 1
            self.graphs = max(self.graphs, self._open)
            outputs.register_hook(self._gone_back)
        return outputs

    def _gone_back(self, gradient: torch.Tensor) -> None:
        self._open -= 1


def judge_accumulation(accumulate: Callable) -> tuple[int, int]:
    """Return into how many pieces it cuts the first case, and how many are enough."""
    first, *_ = [_judge_accumulation(accumulate, samples, most) for samples, most in CASES]
    return first, math.ceil(CASES[0][0] / CASES[0][1])


def _judge_accumulation(accumulate: Callable, samples: int, most: int) -> int:
    generator = torch.Generator().manual_seed(4)
    images = torch.randint(-3, 4, (samples, 3), generator=generator).double()
    labels = torch.randint(-3, 4, (samples, 2), generator=generator).double()
    model, loss_function = _Recording(), nn.MSELoss()
    before = model.layer.weight.detach().clone()
    stale = torch.full_like(before, 100.0)

    def gradient(chosen: slice) -> torch.Tensor:
        loss = loss_function(model.layer(images[chosen]), labels[chosen])
        return torch.autograd.grad(loss, model.layer.weight)[0]

    starts = range(0, samples, most)
    sizes = [min(most, samples - start) for start in starts]
    parts = [gradient(slice(start, start + most)) for start in starts]
    wanted = gradient(slice(None))
    loss = loss_function(model.layer(images), labels)
    wanted_bias = torch.autograd.grad(loss, model.layer.bias)[0]
    model.layer.weight.grad = stale.clone()  # of an earlier step
    model.layer.bias.grad = stale[:, 0].clone()
    batch = images.clone(), labels.clone()
    accumulate(model, loss_function, images, labels, most)
    given = model.layer.weight.grad
    if not torch.equal(model.layer.weight, before):
        raise WrongAnswer("changes-the-weights")
    if given is None or not model.sizes:
        raise WrongAnswer("no-gradient")
    if max(model.sizes) > most:
        raise WrongAnswer("too-many-at-once", given=max(model.sizes), samples=samples, most=most)
    _judge_sum(given, wanted, parts, sizes, most, stale)
    bias = model.layer.bias.grad
    if bias is None or not torch.allclose(bias, wanted_bias, rtol=1e-10, atol=1e-10):
        raise WrongAnswer("first-parameter-only")
    if not all(map(torch.equal, batch, (images, labels))):
        raise WrongAnswer("changes-its-input")
    need_training_mode(model.training)
    if model.graphs > 1:
        raise WrongAnswer("keeps-all-graphs", graphs=model.graphs)
    return len(model.sizes)


def _judge_sum(given, wanted, parts: list, sizes: list[int], most: int, stale) -> None:
    # The numbers are small and whole, so only the divisions round, in float64.
    def equal(candidate: torch.Tensor, tolerance: float = 1e-10) -> bool:
        return torch.allclose(given.double(), candidate, rtol=tolerance, atol=tolerance)

    samples, rest = sum(sizes), sizes[-1]
    sums = [part * size for part, size in zip(parts, sizes, strict=True)]
    if equal(wanted):
        return
    if equal(sum(sums)):
        raise WrongAnswer("sum-not-mean", samples=samples)
    if equal(sum(parts) * most / samples):
        raise WrongAnswer("last-piece-too-heavy", most=most, rest=rest, samples=samples)
    if equal(wanted, 1e-5):
        raise WrongAnswer("loses-digits")
    if equal(wanted + stale):
        raise WrongAnswer("keeps-old-gradients")
    if equal(sum(parts)) or equal(sum(parts) + stale):
        raise WrongAnswer("sum-of-means", count=len(parts))
    if equal(sum(parts) / len(parts)):
        raise WrongAnswer("pieces-weighted-evenly", sizes=", ".join(map(str, sizes)))
    if equal(parts[-1]) or equal(sums[-1] / samples):
        raise WrongAnswer("clears-in-between")
    if equal(sum(sums[:-1]) / samples) or equal(sum(parts[:-1]) / (len(parts) - 1)):
        raise WrongAnswer("forgets-the-rest", rest=rest, most=most, samples=samples)
    raise WrongAnswer("wrong-value", given=_shown(given), wanted=_shown(wanted))


def _shown(numbers: torch.Tensor) -> str:
    return ", ".join(f"{number:.4g}" for number in numbers.flatten().tolist())
