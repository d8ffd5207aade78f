"""A wrong gradient is recognised by working out what each usual mistake gives.

The judges of the exercises of lesson 04 that run in the notebook. Inputs are small whole
numbers, or float64, so that right and wrong are far apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import nn

from course_lib.teaching.exercise import WrongAnswer

# ---- backward by hand -------------------------------------------------------------------------

# (w, b, x, y): with the ReLU open, closed, open with a negative error, closed.
POINTS = ((2, 1, 3, 4), (1, -5, 2, 3), (-1, 2, -3, 7), (3, 2, -4, 2))


def judge_gradients(gradients: Callable) -> None:
    for point in POINTS:
        _judge_point(gradients(*point), point)
    _judge_by_hand(gradients)


def _judge_point(given, point) -> None:
    w, b, x, y = point
    asked = f"for w = {w:g}, b = {b:g}, x = {x:g}, y = {y:g}"
    if not isinstance(given, (tuple, list)) or len(given) != 3:
        raise WrongAnswer(
            "not-three-numbers",
            f"{asked} it returned {given!r}; return three numbers: the loss, the derivative by w, "
            "the derivative by b",
        )
    loss, d_w, d_b = (float(number) for number in given)
    u = w * x + b
    e = max(u, 0) - y
    open_ = u > 0
    d_u = 2 * e * open_
    wanted = (e * e + w * w, d_u * x + 2 * w, d_u)
    if (loss, d_w, d_b) == wanted:
        return
    if not math.isclose(loss, wanted[0], rel_tol=1e-9):
        raise WrongAnswer(
            "wrong-loss", f"{asked} the loss is {wanted[0]:g}, and it returned {loss:g}"
        )
    if all(
        math.isclose(a, b, rel_tol=1e-3, abs_tol=1e-3) for a, b in zip(given, wanted, strict=True)
    ):
        raise WrongAnswer(
            "not-exact",
            f"{asked} it returned {d_w!r} and {d_b!r}, close to {wanted[1]:g} and {wanted[2]:g} "
            "but not equal. Go back step by step with the chain rule: that is exact, and a "
            "difference quotient is not",
        )
    if (d_w, d_b) == (2 * e * x + 2 * w, 2 * e) and not open_:
        raise WrongAnswer(
            "forgets-the-relu",
            f"{asked} u is {u:g}, so the ReLU gives 0 whatever w and b are, a little more or less: "
            "nothing may come back through it",
        )
    if (d_b, d_w) == wanted[1:]:
        raise WrongAnswer(
            "outputs-swapped",
            f"{asked} it returned {d_w:g} and {d_b:g}: the derivative by w comes before that by b",
        )
    if (d_w, d_b) == (d_u * x + w, d_u):
        raise WrongAnswer(
            "forgets-the-two",
            f"{asked} the derivative by w is {wanted[1]:g}, and it returned {d_w:g}. The "
            "derivative of w² is 2w",
        )
    if (d_w, d_b) == (d_u * x, d_u):
        raise WrongAnswer(
            "forgets-a-path",
            f"{asked} the derivative by w is {wanted[1]:g}, and it returned {d_w:g}. w occurs "
            "twice in the loss: add what comes back on both ways",
        )
    if (d_w, d_b) == (2 * w, d_u) or (d_w, d_b) == (d_u + 2 * w, d_u):
        raise WrongAnswer(
            "forgets-a-factor",
            f"{asked} the derivative by w is {wanted[1]:g}, and it returned {d_w:g}. The local "
            f"derivative of w · x by w is x, here {x:g}",
        )
    if (d_w, d_b) == (e * open_ * x + 2 * w, e * open_) or d_b == e * open_:
        raise WrongAnswer(
            "forgets-the-two",
            f"{asked} the derivative by b is {wanted[2]:g}, and it returned {d_b:g}: half of it. "
            "The derivative of e² is 2e",
        )
    if d_b == -wanted[2] and d_b != 0:
        raise WrongAnswer(
            "wrong-sign",
            f"{asked} the derivative by b is {wanted[2]:g}, and it returned {d_b:g}. e is h − y, "
            "not y − h",
        )
    raise WrongAnswer(
        "wrong-value",
        f"{asked} the derivatives by w and b are {wanted[1]:g} and {wanted[2]:g}, and it returned "
        f"{d_w:g} and {d_b:g}",
    )


def _judge_by_hand(gradients: Callable) -> None:
    code = getattr(getattr(gradients, "function", gradients), "__code__", None)
    used = set(code.co_names) & {"torch", "grad", "backward", "autograd"} if code else set()
    if used:
        raise WrongAnswer(
            "uses-autograd",
            f"right, but it uses `{sorted(used)[0]}`: this exercise is about doing by hand what "
            "that does for you",
        )


# ---- gradient accumulation --------------------------------------------------------------------

SAMPLES, MOST = 10, 4


class _Recording(nn.Module):
    """A linear model that remembers how many samples it was given at a time.

    Attributes:
        sizes: by call.
        graphs: how many calls had not been gone back through yet, at the worst moment.
    """

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2, bias=False, dtype=torch.float64)
        self.layer.weight.data = torch.tensor([[1.0, -2.0, 3.0], [0.0, 1.0, -1.0]]).double()
        self.sizes: list[int] = []
        self.graphs = self._open = 0

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.sizes.append(len(inputs))
        outputs = self.layer(inputs)
        if outputs.requires_grad:
            self._open += 1
            self.graphs = max(self.graphs, self._open)
            outputs.register_hook(self._gone_back)
        return outputs

    def _gone_back(self, gradient: torch.Tensor) -> None:
        self._open -= 1


def judge_accumulation(accumulate: Callable) -> None:
    generator = torch.Generator().manual_seed(4)
    images = torch.randint(-3, 4, (SAMPLES, 3), generator=generator).double()
    labels = torch.randint(-3, 4, (SAMPLES, 2), generator=generator).double()
    model, loss_function = _Recording(), nn.MSELoss()
    before = model.layer.weight.detach().clone()
    stale = torch.full_like(before, 100.0)

    def gradient(chosen: slice) -> torch.Tensor:
        loss = loss_function(model.layer(images[chosen]), labels[chosen])
        return torch.autograd.grad(loss, model.layer.weight)[0]

    pieces = [slice(start, start + MOST) for start in range(0, SAMPLES, MOST)]
    parts = [gradient(piece) for piece in pieces]
    wanted = gradient(slice(None))
    model.layer.weight.grad = stale.clone()  # of an earlier step
    accumulate(model, loss_function, images, labels, MOST)
    given = model.layer.weight.grad
    if not torch.equal(model.layer.weight, before):
        raise WrongAnswer("changes-the-weights", "the weights changed; only gradients may")
    if given is None or not model.sizes:
        raise WrongAnswer("no-gradient", "there is no gradient in `parameter.grad` afterwards")
    if max(model.sizes) > MOST:
        raise WrongAnswer(
            "too-many-at-once",
            f"the model was given {max(model.sizes)} samples at once; at most {MOST} are allowed",
        )
    _judge_sum(given, wanted, parts, stale)
    if model.graphs > 1:
        raise WrongAnswer(
            "keeps-all-graphs",
            f"the gradient is right, but one `backward` goes back through {model.graphs} pieces. "
            "So what each of them computed is kept until then, and takes as much memory as the "
            "whole batch. Call `backward` after each piece",
        )
    if len(model.sizes) > len(pieces):
        raise WrongAnswer(
            "too-many-pieces",
            f"the gradient is right, but the model was called {len(model.sizes)} times for "
            f"{SAMPLES} samples; with {MOST} at a time, {len(pieces)} times are enough",
        )


def _judge_sum(given, wanted, parts, stale) -> None:
    def equal(candidate: torch.Tensor) -> bool:
        return torch.allclose(given, candidate, rtol=1e-10, atol=1e-10)

    if equal(wanted):
        return
    if equal(wanted + stale):
        raise WrongAnswer(
            "keeps-old-gradients",
            "the gradient of an earlier step is still in there: it was not cleared at the start",
        )
    if equal(sum(parts)) or equal(sum(parts) + stale):
        raise WrongAnswer(
            "sum-of-means",
            f"it is the sum of the {len(parts)} pieces' mean gradients, about {len(parts)} times "
            "too long. Weigh each piece",
        )
    if equal(sum(parts) / len(parts)):
        raise WrongAnswer(
            "pieces-weighted-evenly",
            f"the pieces have {MOST}, {MOST} and {SAMPLES - 2 * MOST} samples, but count the same. "
            "The weight of a piece is its number of samples divided by that of the batch",
        )
    if equal(parts[-1]) or equal(parts[-1] * (SAMPLES - 2 * MOST) / SAMPLES):
        raise WrongAnswer(
            "clears-in-between",
            "only the last piece's gradient is left: the gradients are cleared before each piece, "
            "not once",
        )
    if equal(sum(parts[:-1]) * MOST / SAMPLES) or equal(sum(parts[:-1]) / (len(parts) - 1)):
        raise WrongAnswer(
            "forgets-the-rest",
            f"the last {SAMPLES - 2 * MOST} samples are missing: {MOST} does not divide {SAMPLES}",
        )
    raise WrongAnswer("wrong-value", "the gradient is not that of the mean loss over all samples")
