"""The manners that a program can check: style, size, layers, and no traces of a machine."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

# A package of course_lib may import those below it. All may import torch_mpi4py.
BELOW = {
    "cluster": set(),
    "parallel": set(),
    "training": set(),
    "teaching": {"cluster", "parallel", "training"},
    "doctor": {"training"},
}
MOST_LINES = 400


def tracked(root: Path) -> list[Path]:
    answer = subprocess.run(
        ["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=True
    )
    return [root / name for name in answer.stdout.split("\0") if name and (root / name).is_file()]


def test_ruff_has_no_complaint(root: Path) -> None:
    for command in (["check"], ["format", "--check"]):
        answer = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "."],
            cwd=root,
            capture_output=True,
            text=True,
            check=False,
        )
        assert answer.returncode == 0, answer.stdout + answer.stderr


def imported_parts(path: Path, package: str) -> set[str]:
    """Return which parts of course_lib a module imports, by absolute or relative import."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if node.level:
                parts = package.split(".")
                module = ".".join([*parts[: len(parts) - node.level + 1], module]).rstrip(".")
            found.update(f"{module}.{alias.name}" for alias in node.names)
    return {name.split(".")[1] for name in found if name.startswith("course_lib.")}


def test_imports_point_downwards(root: Path) -> None:
    wrong = []
    for path in sorted((root / "course_lib").rglob("*.py")):
        package = ".".join(path.relative_to(root).parent.parts)
        parts = path.relative_to(root / "course_lib").parts
        part = Path(parts[0]).stem
        if part == "__init__":
            continue
        allowed = BELOW[part] | {part, "__version__"}
        for other in imported_parts(path, package) - allowed:
            wrong.append(f"{path.relative_to(root)} imports course_lib.{other}")
    assert not wrong, "\n".join(wrong)


def test_the_layer_check_sees_every_kind_of_import(tmp_path: Path) -> None:
    module = tmp_path / "m.py"
    for line in (
        "import course_lib.teaching.check",
        "from course_lib.teaching import check",
        "from course_lib import teaching",
        "from .. import teaching",
        "from ..teaching.check import check",
    ):
        module.write_text(f"def f():\n    {line}\n")
        assert imported_parts(module, "torch_mpi4py") == {"teaching"}, line


def test_modules_are_short_and_say_their_idea(root: Path) -> None:
    wrong = []
    for path in sorted((root / "course_lib").rglob("*.py")):
        text = path.read_text()
        name = path.relative_to(root)
        if len(text.splitlines()) > MOST_LINES:
            wrong.append(f"{name} has {len(text.splitlines())} lines, more than {MOST_LINES}")
        if not (ast.get_docstring(ast.parse(text)) or "").startswith("The one idea: "):
            wrong.append(f"{name} does not begin with its one idea")
    assert not wrong, "\n".join(wrong)


# Written in pieces, so that this file does not hold what it looks for.
HOSTS = "|".join(
    host.replace("_", r"\.")
    for host in ("pypi_org", "pythonhosted_org", "deb_debian_org", "registry_npmjs_org")
)
PATHS = "|".join(
    "/" + part + "/" for part in ("work", "farm", "root", "tmp/ipykernel_", "home/[a-z]+")
)


@pytest.mark.parametrize("pattern", [HOSTS, PATHS], ids=["registry hosts", "machine paths"])
def test_no_tracked_file_names(root: Path, pattern: str) -> None:
    wrong = []
    for path in tracked(root):
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        found = re.search(pattern, text)
        if found:
            wrong.append(f"{path.relative_to(root)}: {found.group(0)}")
    assert not wrong, "\n".join(wrong)


def test_no_control_characters(root: Path) -> None:
    r"""A formula's \theta or \bar, if a program writes it, may become a tab or a backspace."""
    wrong = []
    for path in tracked(root):
        if path.suffix not in {".py", ".md", ".toml", ".yml", ".sh", ".ipynb"}:
            continue
        for number, line in enumerate(path.read_text().split("\n"), start=1):
            if re.search(r"[\x00-\x1f\x7f]", line):
                wrong.append(f"{path.relative_to(root)}, line {number}")
    assert not wrong, "\n".join(wrong)


def test_no_large_file_is_tracked(root: Path) -> None:
    large = [str(path) for path in tracked(root) if path.stat().st_size > 3_000_000]
    assert not large
