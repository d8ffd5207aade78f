"""The manners that a program can check: style, size, and no traces of a machine."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest


def tracked(root: Path) -> list[Path]:
    answer = subprocess.run(
        ["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=True
    )
    return [root / name for name in answer.stdout.split("\0") if name and (root / name).is_file()]


def test_ruff_passes(root: Path) -> None:
    for command in (["check"], ["format", "--check"]):
        answer = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "."],
            cwd=root,
            capture_output=True,
            text=True,
            check=False,
        )
        assert answer.returncode == 0, answer.stdout + answer.stderr


# Written in pieces, so that this file does not hold what it looks for.
HOSTS = "|".join(
    host.replace("_", r"\.")
    for host in ("pypi_org", "pythonhosted_org", "deb_debian_org", "registry_npmjs_org")
)
PATHS = "|".join(
    "/" + part + "/" for part in ("work", "farm", "root", "tmp/ipykernel_", "home/[a-z]+")
)


@pytest.mark.parametrize("pattern", [HOSTS, PATHS], ids=["registry hosts", "machine paths"])
def test_no_tracked_file_contains(root: Path, pattern: str) -> None:
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
