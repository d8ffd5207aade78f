"""Torchvision imports beside a PyTorch that its binary operators do not fit.

torchvision's wheels are built against the CUDA build of PyTorch. Beside a CPU build their
operators do not load, and then ``import torchvision`` fails with "operator torchvision::nms
does not exist", although data sets, transforms and models need none of them. Declaring the
two operators' schemas first is enough. Where the library loads, nothing is declared.

Use ``from course_lib.training.vision import torchvision``.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import torch

__all__ = ["declare_missing_operators", "torchvision"]

_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_OPERATORS = ("nms", "qnms")
_kept: list[torch.library.Library] = []  # a library's declarations go when it is collected


def operators_load() -> bool:
    """Return whether torchvision's own operator library can be loaded (and load it)."""
    spec = importlib.util.find_spec("torchvision")
    if spec is None or not spec.submodule_search_locations:
        raise ImportError("torchvision is not installed; run: pip install torchvision==0.28.0")
    libraries = sorted(Path(spec.submodule_search_locations[0]).glob("_C*.so"))
    if not libraries:
        return False
    try:
        torch.ops.load_library(str(libraries[0]))
    except OSError:
        return False
    return True


def declare_missing_operators() -> list[str]:
    """Declare torchvision's operators if its library cannot be loaded; return which."""
    if hasattr(torch.ops.torchvision, "nms") or operators_load():
        return []
    library = torch.library.Library("torchvision", "DEF")
    for name in _OPERATORS:
        library.define(f"{name}{_SCHEMA}")
    _kept.append(library)
    return list(_OPERATORS)


declare_missing_operators()

import torchvision  # noqa: E402
import torchvision.datasets  # noqa: E402
