"""Imports torchvision even where its compiled operators do not fit the installed PyTorch.

torchvision's wheels are built against the CUDA build of PyTorch. Next to a CPU build their
operators do not load, and ``import torchvision`` fails with "operator torchvision::nms does
not exist", although data sets, transforms and models need none of them. Declaring the schemas
of two operators first is enough. Where the library loads, nothing is declared.

Use ``from course_lib.training.vision import torchvision``.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import torch

__all__ = ["declare_missing_operators", "torchvision"]

_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_OPERATORS = ("nms", "qnms")
_kept: list[torch.library.Library] = []  # declarations vanish with their library


def load_operators() -> bool:
    """Load torchvision's own operator library; return whether that worked.

    Loading it a second time, as ``import torchvision`` does, has no effect.
    """
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
    """Declare the operators if their library cannot be loaded; return the declared names."""
    if hasattr(torch.ops.torchvision, "nms") or load_operators():
        return []
    library = torch.library.Library("torchvision", "DEF")
    for name in _OPERATORS:
        library.define(f"{name}{_SCHEMA}")
    _kept.append(library)
    return list(_OPERATORS)


declare_missing_operators()

import torchvision  # noqa: E402
import torchvision.datasets  # noqa: E402
