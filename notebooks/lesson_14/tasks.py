"""What the capstone's projects are given, and what is written down of a project.

A task is a model, a data set, a device of which every rank has one, and a link between them. A
plan is what a learner chooses for it. Plain data: neither torch nor MPI is needed to read them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

STRATEGIES = {
    "per layer": "synchronous, one all-reduce for each parameter tensor",
    "flattened": "synchronous, one all-reduce for all gradients",
    "overlapped": "DDP: buckets that leave during backward",
    "compressed": "DDP with a communication hook that sends bfloat16",
    "local SGD": "every rank by itself; weights are averaged now and then",
    "asynchronous": "a parameter server on rank 0, workers on the others",
    "pipeline": "the model in stages, one on each rank; micro-batches",
}
_OPTIONS = {
    "overlapped": {"bucket_bytes": 4_000},
    "compressed": {"bucket_bytes": 4_000},
    "local SGD": {"every": 8},
    "pipeline": {"micro_batches": 4},
}


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
        rate: that rank's learning rate.
        sample_seconds: what the device takes for forward and backward of one sample.
        fixed_seconds: what each step takes besides, however few samples it has.
        latency: seconds a message between two ranks.
        megabits: bandwidth of the link, Mbit/s each way.
        look_every: samples, of all ranks together, between two looks at the test accuracy.
        most_samples: after so many the run is given up.
    """

    name: str
    network: str
    targets: Mapping[str, float]
    size: int
    batch: int
    rate: float
    sample_seconds: float
    fixed_seconds: float
    latency: float
    megabits: float
    look_every: int
    most_samples: int

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


# The baseline and each rank's device, the same in all tasks.
_ONE_RANK = {"batch": 16, "rate": 0.1, "sample_seconds": 0.0015, "fixed_seconds": 0.004}

TASKS = {
    task.name: task
    for task in (
        Task(
            name="A",
            network="MLP",
            targets={"digits": 0.92},
            size=8,
            **_ONE_RANK,
            latency=0.005,
            megabits=100,
            look_every=256,
            most_samples=12_800,
        ),
        Task(
            name="B",
            network="wide MLP",
            targets={"digits": 0.94},
            size=8,
            **_ONE_RANK,
            latency=0.030,
            megabits=25,
            look_every=512,
            most_samples=12_800,
        ),
        Task(
            name="C",
            network="MLP",
            targets={"fashion_mnist": 0.75, "cifar10": 0.30, "mnist": 0.85, "digits": 0.92},
            size=14,
            **_ONE_RANK,
            latency=0.010,
            megabits=50,
            look_every=512,
            most_samples=10_240,
        ),
    )
}


@dataclass(frozen=True)
class Plan:
    """What is chosen for a task.

    Attributes:
        strategy: one of ``STRATEGIES``, or the name of one of your own.
        batch: samples that each rank takes in a step (of a pipeline: all ranks together).
        rate: learning rate.
        options: more for the strategy, such as ``{"every": 8}``.
    """

    strategy: str
    batch: int
    rate: float
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.batch, int) or self.batch < 1:
            raise ValueError(f"batch must be a whole number of at least 1, not {self.batch!r}")
        if not self.rate > 0:
            raise ValueError(f"rate must be above 0, not {self.rate!r}")
        defaults = _OPTIONS.get(self.strategy, {})
        unknown = set(self.options) - set(defaults)
        if self.strategy in STRATEGIES and unknown:
            known = ", ".join(defaults) or "none"
            raise ValueError(f"{self.strategy} has no option {min(unknown)!r}; known: {known}")
        object.__setattr__(self, "options", {**defaults, **self.options})

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data, for a file."""
        return asdict(self)

    def in_words(self) -> str:
        """Return the plan in a line."""
        more = "".join(f", {name} {value}" for name, value in self.options.items())
        return f"{self.strategy}, batch {self.batch}, rate {self.rate:g}{more}"


@dataclass(frozen=True)
class Look:
    """One look at the test accuracy, after ``steps`` steps and ``seconds`` of training."""

    steps: int
    samples: int
    seconds: float
    accuracy: float


@dataclass(frozen=True)
class Measured:
    """What one rank knows of a run.

    Attributes:
        looks: at the test accuracy; the same on all ranks.
        calls: of collectives, by this rank.
        handed_over: bytes that this rank gave to collectives.
        sent: bytes that this rank sent in messages of its own.
        messages: how many of those.
        shown: this rank's events of a few steps, for the timeline.
        checksum: of this rank's weights at the end.
        tensors: bytes of each parameter of the model.
        began: when the run began, as :func:`moment` says it.
    """

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

    @property
    def reached(self) -> Look | None:
        """The first look at which the accuracy had reached the target."""
        return next((look for look in self.looks if look.accuracy >= self.target), None)

    @property
    def step_seconds(self) -> float:
        """Seconds of a step, on average."""
        last = self.looks[-1]
        return last.seconds / last.steps


def moment() -> str:
    """Return the time in UTC, ISO 8601: texts that are in the order of time."""
    return datetime.now(UTC).isoformat(timespec="microseconds").removesuffix("+00:00")
