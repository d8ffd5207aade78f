"""The capstone's tasks, the learners' plans, and the measurements of a run.

A task is a model, a data set, a device for each rank, and a link between the ranks. A plan is what
a learner chooses for a task. All of it is plain data that needs neither torch nor MPI.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

STRATEGIES = {
    "alone": "nothing is exchanged: every rank by itself, on its own samples",
    "per layer": "synchronous, one all-reduce for each parameter tensor",
    "flattened": "synchronous, one all-reduce for all gradients",
    "overlapped": "DDP: buckets that leave during backward",
    "compressed": "DDP with a communication hook that sends bfloat16",
    "local SGD": "every rank by itself; weights are averaged now and then",
    "asynchronous": "a parameter server on rank 0, workers on the others",
    "pipeline": "the model in stages, one on each rank; micro-batches",
}
"""Strategies that a plan may name. Put your own here, with a line on what it does."""

_GIVEN = frozenset(STRATEGIES)  # those that are not a learner's

OPTIONS = {
    "overlapped": {"bucket_bytes": 4_000},
    "compressed": {"bucket_bytes": 4_000},
    "local SGD": {"every": 8},
    "pipeline": {"micro_batches": 4},
}
"""The options of each strategy, with their default values."""


@dataclass(frozen=True)
class Task:
    """A training to be made faster.

    Attributes:
        name: a letter.
        network: "MLP" or "wide MLP".
        targets: for each data set that may be used, in order of preference, the test accuracy
            to reach (a fraction).
        size: height and width that images are resized to, in pixels.
        batch: samples in a step of the one rank that is the baseline.
        rates: the learning rates that a pilot tries, for the baseline and for plans alike.
        sample_seconds: the device's time for forward and backward of one sample.
        fixed_seconds: the device's additional time for each step, however few samples it has.
        latency: seconds a message between two ranks.
        megabits: bandwidth of the link, Mbit/s each way.
        look_every: steps between two looks at the test accuracy, the same for one rank and for
            many, because each look is a chance to reach the target by luck.
        most_steps: the number of steps after which a run is given up.
    """

    name: str
    network: str
    targets: Mapping[str, float]
    size: int
    batch: int
    rates: tuple[float, ...]
    sample_seconds: float
    fixed_seconds: float
    latency: float
    megabits: float
    look_every: int
    most_steps: int

    @property
    def bandwidth(self) -> float:
        """Bytes a second, each way."""
        return self.megabits * 1e6 / 8

    @property
    def baseline_step(self) -> float:
        """Seconds of a step of the one rank."""
        return self.fixed_seconds + self.batch * self.sample_seconds

    def in_words(self, data: str = "") -> str:
        """Return the task in a line."""
        return (
            f"{self.network} on {data or ', '.join(self.targets)}; link with "
            f"{1e3 * self.latency:g} ms and {self.megabits:g} Mbit/s; device with "
            f"{1e3 * self.sample_seconds:g} ms a sample and {1e3 * self.fixed_seconds:g} ms a step"
        )


# The baseline, each rank's device and the stop-watch, the same in all tasks. With this device
# neither 8 nor 32 samples a step take one rank to the targets of A and B much sooner than 16 do
# (each batch at its best rate: 5.7, 5.6 and 7.5 s in A, 9.6, 9.6 and 10.4 s in B; medians of six
# seeds, of three for 32).
_IN_ALL_TASKS: dict[str, Any] = {
    "batch": 16,
    "rates": (0.1, 0.2, 0.4, 0.8),
    "sample_seconds": 0.002,
    "fixed_seconds": 0.008,
    "look_every": 4,
    "most_steps": 400,
}

TASKS = {
    task.name: task
    for task in (
        Task(
            name="A",
            network="MLP",
            targets={"digits": 0.95},
            size=8,
            **_IN_ALL_TASKS,
            latency=0.005,
            megabits=100,
        ),
        Task(
            name="B",
            network="wide MLP",
            targets={"digits": 0.97},
            size=8,
            **_IN_ALL_TASKS,
            latency=0.020,
            megabits=50,
        ),
        Task(
            name="C",
            network="MLP",
            targets={"fashion_mnist": 0.75, "cifar10": 0.30, "mnist": 0.91, "digits": 0.94},
            size=14,
            **_IN_ALL_TASKS,
            latency=0.010,
            megabits=50,
        ),
    )
}


@dataclass(frozen=True)
class Plan:
    """A learner's choice for a task.

    Attributes:
        strategy: one of ``STRATEGIES``, to which you may add your own.
        batch: samples that each rank takes in a step (in a pipeline: all ranks together).
        rate: learning rate.
        options: the strategy's options, such as ``{"every": 8}``.

    Raises:
        ValueError: if there is no such strategy or option, or a number is out of range.
    """

    strategy: str
    batch: int
    rate: float
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.strategy not in STRATEGIES:
            raise ValueError(
                f"no strategy is called {self.strategy!r}; there are {', '.join(STRATEGIES)}. "
                "To add your own, say in STRATEGIES what it does"
            )
        _require_whole("batch", self.batch)
        if not self.rate > 0:
            raise ValueError(f"rate must be above 0, not {self.rate!r}")
        object.__setattr__(self, "options", {**OPTIONS.get(self.strategy, {}), **self.options})
        if self.strategy in _GIVEN:
            self._require_options()

    def _require_options(self) -> None:
        known = OPTIONS.get(self.strategy, {})
        for name, value in self.options.items():
            if name not in known:
                names = ", ".join(known) or "none"
                raise ValueError(f"{self.strategy} has no option {name!r}; known: {names}")
            _require_whole(name, value)

    def as_dict(self) -> dict[str, Any]:
        """Return the plan as plain data, for a file."""
        return asdict(self)

    def in_words(self) -> str:
        """Return the plan in a line."""
        more = "".join(f", {name} {value}" for name, value in self.options.items())
        return f"{self.strategy}, batch {self.batch}, rate {self.rate:g}{more}"


def _require_whole(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name} must be a whole number of at least 1, not {value!r}")


def best_rate(tried: Mapping[float, int | None]) -> tuple[float, int]:
    """Return the learning rate that took the fewest steps to the target, and those steps.

    Args:
        tried: steps for each learning rate, None if the target was not reached; of two rates that
            took the same number of steps, the smaller is returned.

    Raises:
        ValueError: if no rate reached the target.
    """
    reached = {rate: steps for rate, steps in tried.items() if steps is not None}
    if not reached:
        raise ValueError(f"none of the rates {', '.join(map(str, tried))} reached the target")
    rate = min(sorted(reached), key=lambda one: reached[one])
    return rate, reached[rate]


@dataclass(frozen=True)
class Look:
    """One look at the test accuracy, after ``steps`` steps and ``seconds`` of training."""

    steps: int
    samples: int
    seconds: float
    accuracy: float


@dataclass(frozen=True)
class Measured:
    """The measurements of one rank in a run.

    Attributes:
        task: its letter.
        looks: at the test accuracy; the same on all ranks.
        calls: of collectives, by this rank.
        handed_over: bytes that this rank gave to collectives.
        sent: bytes that this rank sent in messages of its own.
        messages: how many of those.
        shown: this rank's events of a few steps, for the timeline.
        checksum: of this rank's weights at the end.
        tensors: bytes of each parameter of the model.
        began: when the run began, as :func:`moment` says it.
        seeds: the steps to the target with each seed, None where it was not reached; the first is
            that of the run on the clock.
    """

    task: str
    plan: Plan
    data: str
    ranks: int
    target: float
    looks: list[Look]
    calls: int
    handed_over: int
    sent: int
    messages: int
    shown: tuple | None
    checksum: str
    tensors: tuple[int, ...]
    began: str
    seeds: tuple[int | None, ...]

    @property
    def reached(self) -> Look | None:
        """The first look of the run on the clock at which the accuracy had reached the target."""
        return next((look for look in self.looks if look.accuracy >= self.target), None)

    @property
    def step_seconds(self) -> float:
        """Seconds of a step, on average."""
        last = self.looks[-1]
        return last.seconds / last.steps

    @property
    def steps(self) -> int | None:
        """Steps to the target: the median of all seeds."""
        return median(self.seeds)

    @property
    def seconds(self) -> float | None:
        """The time to accuracy: so many steps of so many seconds."""
        return None if self.steps is None else self.steps * self.step_seconds


def median(steps: Sequence[int | None]) -> int | None:
    """Return the middle one of an odd number of steps; None, never, counts as the most."""
    ordered = sorted(steps, key=lambda one: float("inf") if one is None else one)
    return ordered[len(ordered) // 2]


def moment() -> str:
    """Return the time in UTC, ISO 8601: texts that are in the order of time."""
    return datetime.now(UTC).isoformat(timespec="microseconds").removesuffix("+00:00")
