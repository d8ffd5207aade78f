"""Check whether a tag may be released, and write its release notes.

Usage: ``make release ARGS="--tag v0.1.0 --notes notes.md"``. The version has to stand in all three
packages, in CITATION.cff and as a section of CHANGELOG.md, with its date; it needs no installation.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from pathlib import Path

from . import addresses

ROOT = Path(__file__).resolve().parent.parent
PROJECTS = (
    "pyproject.toml",
    "packages/torch_mpi4py/pyproject.toml",
    "packages/ipyranks/pyproject.toml",
)
SECTION = re.compile(r"^## \[(?P<name>[^\]]+)\](?: - (?P<date>\d{4}-\d{2}-\d{2}))?$", re.MULTILINE)


def versions(root: Path = ROOT) -> dict[str, str]:
    """Return the version that each file states, by the file's name."""
    found = {
        name: tomllib.loads((root / name).read_text(encoding="utf-8"))["project"]["version"]
        for name in PROJECTS
    }
    citation = (root / "CITATION.cff").read_text(encoding="utf-8")
    (found["CITATION.cff"],) = re.findall(r"^version: (\S+)$", citation, re.MULTILINE)
    return found


def sections(changelog: str) -> dict[str, tuple[str, str]]:
    """Return date ("" if there is none) and text of each section of a changelog, by version."""
    heads = list(SECTION.finditer(changelog))
    ends = [head.start() for head in heads[1:]] + [len(changelog)]
    return {
        head["name"]: (head["date"] or "", changelog[head.end() : end].strip())
        for head, end in zip(heads, ends, strict=True)
    }


def problems(tag: str, root: Path = ROOT) -> list[str]:
    """Return the reasons against a release under this tag."""
    version = tag.removeprefix("v")
    found = [
        f"{name} has version {stated}"
        for name, stated in versions(root).items()
        if f"v{stated}" != tag
    ]
    written = sections((root / "CHANGELOG.md").read_text(encoding="utf-8"))
    date, text = written.get(version, ("", ""))
    if not date or not text:
        found.append(f'CHANGELOG.md has no section "## [{version}] - YYYY-MM-DD" with a text')
    citation = (root / "CITATION.cff").read_text(encoding="utf-8")
    if not re.search(rf"^date-released: {date or '-'}$", citation, re.MULTILINE):
        found.append("CITATION.cff lacks date-released, with the date of CHANGELOG.md")
    return [*found, *addresses.not_filled(addresses.stated(root))]


def main() -> None:
    """Check a tag, and write its notes."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--tag", required=True)
    parser.add_argument("--notes", type=Path, required=True)
    arguments = parser.parse_args()
    if found := problems(arguments.tag):
        sys.exit(f"{arguments.tag} cannot be released: " + "; ".join(found))
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    _, text = sections(changelog)[arguments.tag.removeprefix("v")]
    arguments.notes.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
