"""A class is called what no other class is: whoever looks for it finds one."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

# Names that two classes may share, each with its reason.
SHARED: dict[str, str] = {}


def classes_by_name(*folders: Path) -> dict[str, list[str]]:
    """Return where the classes of each name are, also those within functions and classes."""
    found = defaultdict(list)
    for folder in folders:
        for path in sorted(folder.rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef):
                    found[node.name].append(f"{path.relative_to(folder)}:{node.lineno}")
    return found


def test_no_two_classes_have_one_name(root: Path) -> None:
    found = classes_by_name(root / "packages/torch_mpi4py/src", root / "course_lib")
    assert len(found) > 100, "looked for in the wrong place"
    twice = {name: places for name, places in found.items() if len(places) > 1}
    assert twice.keys() == SHARED.keys(), twice


def test_a_second_class_would_be_found(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text("class Event: ...\n")
    (tmp_path / "other.py").write_text("def make():\n    class Event: ...\n")
    assert classes_by_name(tmp_path)["Event"] == ["one.py:1", "other.py:2"]
