"""Fits alpha, beta and gamma to measured times, with a confidence interval for each.

The model is linear, ``seconds = alpha * messages + beta * bytes + gamma * bytes_reduced``, and the
noise of a timing grows with the time. So the fit minimises *relative* errors: weighted least
squares with weights 1/predicted**2, found by iteration. The intervals are those of the linear
model: estimate +- t * standard error, from the weighted covariance matrix and Student's t with
(points - parameters) degrees of freedom. Source: Draper and Smith, "Applied Regression Analysis",
3rd edition, 1998, chapters 5 and 9. The intervals hold for independent errors with no trend. A
change of protocol (from eager to rendezvous) among the points violates this, which shows in
``residuals``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from course_lib.teaching.cost import Link

__all__ = ["Fit", "fit_linear", "fit_link", "student_t_quantile"]

_SWEEPS = 20


@dataclass(frozen=True)
class Fit:
    """Fitted parameters, each with its interval.

    Attributes:
        names: what each parameter is, e.g. ``("alpha", "beta")``.
        values: seconds a unit of its column: s/message, s/byte, s/byte reduced.
        low, high: ends of the confidence interval, same units. Below zero if noise allows it.
        confidence: e.g. 0.95.
        residuals: (measured - predicted) / predicted of each point, no unit.
    """

    names: tuple[str, ...]
    values: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    confidence: float
    residuals: tuple[float, ...]

    def __getitem__(self, name: str) -> float:
        return self.values[self._place(name)]

    def interval(self, name: str) -> tuple[float, float]:
        """Return the ends of the interval of one parameter, in the parameter's unit."""
        place = self._place(name)
        return self.low[place], self.high[place]

    def _place(self, name: str) -> int:
        if name not in self.names:
            raise KeyError(f"{name!r} was not fitted, only {', '.join(self.names)}")
        return self.names.index(name)

    @property
    def relative_error(self) -> float:
        """Root mean square of the residuals, no unit: 0.05 is 5 %."""
        return float(np.sqrt(np.mean(np.square(self.residuals))))

    def link(self) -> Link:
        """Return the fit as a :class:`~course_lib.teaching.cost.Link`.

        A parameter that came out at or below zero counts as zero (a latency of 0 s, an infinite
        rate), because these points cannot tell it from zero.
        """
        known = dict(zip(self.names, self.values, strict=True))
        rate = {name: 1.0 / v if v > 0 else math.inf for name, v in known.items()}
        return Link(
            max(known.get("alpha", 0.0), 0.0),
            rate.get("beta", math.inf),
            rate.get("gamma", math.inf),
        )

    def __str__(self) -> str:
        rows = [
            f"{name} = {value:.4g} s a unit, {self.confidence:.0%} interval {low:.4g} to {high:.4g}"
            for name, value, low, high in zip(
                self.names, self.values, self.low, self.high, strict=True
            )
        ]
        return "\n".join([*rows, f"relative error of a point: {self.relative_error:.1%}"])


def fit_link(size_bytes, seconds, confidence: float = 0.95) -> Fit:
    """Fit alpha (s) and beta (s/byte) to times of single messages.

    Args:
        size_bytes: size of each message in bytes, one a point.
        seconds: its one-way time in seconds (half of a ping-pong's round trip).
        confidence: of the intervals, between 0 and 1.

    Raises:
        ValueError: for points that cannot tell the two apart, or with invalid numbers.
    """
    sizes = np.asarray(size_bytes, dtype=float)
    return fit_linear({"alpha": np.ones_like(sizes), "beta": sizes}, seconds, confidence)


def fit_linear(columns, seconds, confidence: float = 0.95) -> Fit:
    """Fit ``seconds = sum of parameter * column`` on relative errors.

    Args:
        columns: name to one number a point, e.g. ``{"alpha": steps, "beta": bytes_sent,
            "gamma": bytes_reduced}`` (``cost.cost`` gives the three of an algorithm).
        seconds: measured, one a point, each above 0.
        confidence: of the intervals, between 0 and 1.

    Raises:
        ValueError: says which of the inputs is wrong and how.
    """
    names = tuple(columns)
    design, times = _checked(names, columns, seconds, confidence)
    # Columns of like size keep the equations well conditioned: bytes are 10**6, messages 1.
    scale = np.abs(design).max(axis=0)
    scaled = design / scale
    weights = 1.0 / times
    for _ in range(_SWEEPS):
        solution = np.linalg.lstsq(scaled * weights[:, None], times * weights, rcond=None)[0]
        predicted = scaled @ solution
        # A parameter below zero can predict a time below zero, which cannot be a weight.
        new = 1.0 / np.where(predicted > 0.1 * times, predicted, times)
        if np.allclose(new, weights, rtol=1e-10):
            break
        weights = new
    residuals = (times - predicted) * weights
    freedom = len(times) - len(names)
    weighted = scaled * weights[:, None]
    covariance = np.linalg.inv(weighted.T @ weighted) * (residuals @ residuals / freedom)
    half = student_t_quantile(0.5 + confidence / 2, freedom) * np.sqrt(np.diag(covariance))
    return Fit(
        names,
        tuple((solution / scale).tolist()),
        tuple(((solution - half) / scale).tolist()),
        tuple(((solution + half) / scale).tolist()),
        confidence,
        tuple(residuals.tolist()),
    )


def _checked(names, columns, seconds, confidence) -> tuple[np.ndarray, np.ndarray]:
    times = np.asarray(seconds, dtype=float)
    if not names:
        raise ValueError("there is no parameter to fit: give at least one column")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie between 0 and 1, not {confidence!r}")
    values = [np.asarray(columns[name], dtype=float) for name in names]
    shapes = {times.shape, *(v.shape for v in values)}
    if len(shapes) != 1 or times.ndim != 1:
        raise ValueError(f"each column and the times need one number a point, not shapes {shapes}")
    if len(times) <= len(names):
        raise ValueError(
            f"{len(times)} points cannot give {len(names)} parameters with intervals: "
            f"measure at least {len(names) + 1}"
        )
    design = np.stack(values, axis=1)
    if not (np.isfinite(design).all() and (design >= 0).all()):
        raise ValueError("every count of messages or bytes must be finite and at least 0")
    if not (np.isfinite(times).all() and (times > 0).all()):
        raise ValueError("every measured time must be finite and above 0 seconds")
    scale = design.max(axis=0)
    if (scale == 0).any() or np.linalg.matrix_rank(design / np.where(scale, scale, 1)) < len(names):
        raise ValueError(
            f"these points cannot tell {', '.join(names)} apart: measure other sizes "
            "(for gamma also recursive doubling: the other algorithms send two bytes for each "
            "that they reduce, so that only beta + gamma/2 shows)"
        )
    return design, times


def student_t_quantile(probability: float, freedom: int) -> float:
    """Return the quantile of Student's t, for a probability of at least one half.

    The distribution function, in the angle a with t = sqrt(f) tan(a), is an integral of
    cos(a)**(f - 1) (Abramowitz and Stegun, 1964, section 26.7); here by the trapezoid rule and
    inverted by interpolation. Relative error below 1e-4 up to a probability of 0.999.
    """
    if not 0.5 <= probability < 1 or freedom < 1:
        raise ValueError("needs 0.5 <= probability < 1 and at least one degree of freedom")
    angles = np.linspace(0, math.pi / 2, 20001)
    density = np.cos(angles) ** (freedom - 1)
    area = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2)])
    angle = np.interp((probability - 0.5) * 2 * area[-1], area, angles)
    return math.sqrt(freedom) * math.tan(angle)
