"""A run ends after so many updates, epochs or seconds, or when no worker is left."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import Any

from ..arguments import function, whole

__all__ = ["Stop"]


@dataclass(frozen=True)
class Stop:
    """When the server tells its workers to stop; whichever comes first.

    Without any of these it goes on until every worker has used up its batches.

    Attributes:
        steps: after so many updates.
        epochs: after so many times ``samples_per_epoch`` samples went into updates, whoever
            brought them.
        samples_per_epoch: size of the data set, needed with ``epochs``.
        workers: when so many workers have used up their batches (all, if not given).
        seconds: after so many seconds.
        when: after an update for which ``when(server)`` is true.

    Raises:
        TypeError: if ``when`` is no function, or something else no number, or no whole one where
            things are counted.
        ValueError: if a number is not positive, or ``epochs`` comes without its samples.
    """

    steps: int | None = None
    epochs: float | None = None
    samples_per_epoch: int | None = None
    workers: int | None = None
    seconds: float | None = None
    when: Callable[[Any], bool] | None = None

    def __post_init__(self) -> None:
        for name in ("steps", "epochs", "samples_per_epoch", "workers", "seconds"):
            value = getattr(self, name)
            if value is None:
                continue
            if name not in ("epochs", "seconds"):
                whole(f"Stop: {name}", value)
            elif not isinstance(value, Real):
                raise TypeError(f"Stop: {name} must be a number, not {value!r}")
            if not value > 0:
                raise ValueError(f"Stop: {name} must be positive, not {value!r}")
        if self.when is not None:
            function("Stop: when", self.when, "lambda server: server.version == 7")
        if (self.epochs is None) != (self.samples_per_epoch is None):
            raise ValueError("Stop: epochs and samples_per_epoch come together or not at all")

    def after_update(self, server: Any, updates: int, samples: int, seconds: float) -> bool:
        """Return whether the run ends with this update."""
        if self.steps is not None and updates >= self.steps:
            return True
        if self.epochs is not None and samples >= self.epochs * self.samples_per_epoch:
            return True
        if self.seconds is not None and seconds >= self.seconds:
            return True
        return self.when is not None and bool(self.when(server))

    def after_bye(self, finished: int) -> bool:
        """Return whether the run ends now that ``finished`` workers have used up their batches."""
        return self.workers is not None and finished >= self.workers
