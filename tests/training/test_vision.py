"""The torchvision shim: it works without the operator library and stays out of its way with it."""

from __future__ import annotations

import subprocess
import sys

WITHOUT_LIBRARY = """
import torch
real = torch.ops.load_library
def refuse(path):
    raise OSError("no operators here")
torch.ops.load_library = refuse
from course_lib.training import vision
assert vision._kept, "nothing was declared"
tv = vision.torchvision
assert tv.transforms.functional.hflip(torch.tensor([[1, 2]])).tolist() == [[2, 1]]
assert len(tv.datasets.FakeData(size=3)) == 3
import torchvision.models
torchvision.models.resnet18()
assert vision.declare_missing_operators() == []
print("works")
"""

WITH_LIBRARY = """
import importlib.util
import re
from pathlib import Path

import torch

# Stands for the operator library, whether the real one would load here or not. Loading it
# registers all operators, and loading it once more does nothing, as with any shared library.
package = Path(importlib.util.find_spec("torchvision").submodule_search_locations[0])
registrations = (package / "_meta_registrations.py").read_text()
operators = re.findall(r'register_meta\\("(\\w+)"', registrations)
loaded = []

def load_library(path):
    if not Path(path).name.startswith("_C"):
        raise OSError("only the operators are here")
    if loaded:
        return
    library = torch.library.Library("torchvision", "DEF")
    loaded.append(library)
    for name in {*operators, "qnms"} - {"nms"}:
        library.define(f"{name}(Tensor any) -> Tensor")
    library.define("_cuda_version() -> int")
    library.impl("_cuda_version", lambda: -1, "CompositeExplicitAutograd")
    library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    library.impl("nms", lambda dets, scores, threshold: scores.argsort(descending=True), "CPU")

torch.ops.load_library = load_library
from course_lib.training import vision
assert loaded, "the library was not even tried"
assert vision._kept == [], "declared although the operators were there"
assert vision.torchvision.extension._has_ops()
assert vision.load_operators()
assert vision.declare_missing_operators() == []
assert torch.ops.torchvision.nms(torch.ones(2, 4), torch.tensor([1.0, 2.0]), 0.5).tolist() == [1, 0]
assert len(vision.torchvision.datasets.FakeData(size=3)) == 3
print("works")
"""

REAL_LIBRARY = """
import torch
from course_lib.training import vision
loads = vision.load_operators()
assert vision.torchvision.extension._has_ops() == loads
if loads:
    boxes, scores = torch.tensor([[0.0, 0.0, 1.0, 1.0]] * 2), torch.tensor([1.0, 2.0])
    assert vision.torchvision.ops.nms(boxes, scores, 0.5).tolist() == [1]
print("loads" if loads else "does not load", len(vision._kept))
"""


def run(program: str) -> str:
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False
    )
    assert answer.returncode == 0, answer.stderr
    return answer.stdout.strip()


def test_torchvision_works_without_its_operator_library() -> None:
    assert run(WITHOUT_LIBRARY) == "works"


def test_loadable_operator_library_is_left_unchanged() -> None:
    assert run(WITH_LIBRARY) == "works"


def test_operators_are_declared_only_if_library_fails_to_load() -> None:
    assert run(REAL_LIBRARY) in ("loads 0", "does not load 1")
