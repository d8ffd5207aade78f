"""What a training program prints: its progress for a person, its result as JSON for a program."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from collections.abc import Iterable
from typing import TypeVar

import torch
from torch import nn
from tqdm import tqdm

__all__ = ["checksum", "progress", "result_line"]

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


def checksum(model: nn.Module) -> str:
    """Return 16 hexadecimal digits that are equal if and only if (SHA-256) all bits are equal.

    Over names and bytes of parameters and buffers, wherever the tensors are.
    """
    digest = hashlib.sha256()
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            digest.update(name.removeprefix("module.").encode())
            digest.update(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()[:16]


def result_line(**values: object) -> str:
    """Return one line of JSON, floats rounded to six digits; a program's last words."""
    rounded = {
        name: float(f"{value:.6g}") if isinstance(value, float) else value
        for name, value in values.items()
    }
    return json.dumps(rounded)
