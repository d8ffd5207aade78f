"""The output of a training program: progress for a person, its result as JSON for a program."""

import json
import shutil
import sys
from collections.abc import Iterable
from typing import TypeVar

from tqdm import tqdm

T = TypeVar("T")


def progress(
    steps: Iterable[T], *, total: int | None = None, shown: bool, unit: str = "step"
) -> Iterable[T]:
    """Yield ``steps``, with a bar on standard output if ``shown``, gone when they end."""
    # Open MPI gives its ranks terminals of no size; without one given here nothing is drawn.
    columns = shutil.get_terminal_size().columns - 1
    return tqdm(
        steps,
        total=total,
        disable=not shown,
        unit=unit,
        ncols=columns,
        nrows=24,
        file=sys.stdout,
        leave=False,
    )


def result_line(**values: object) -> str:
    """Return one line of JSON, floats rounded to six digits: a program's last line."""
    rounded = {
        name: float(f"{value:.6g}") if isinstance(value, float) else value
        for name, value in values.items()
    }
    return json.dumps(rounded)
