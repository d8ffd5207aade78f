"""Write the version and the course's addresses from pyproject.toml into all files.

Usage: ``python -m tools.addresses``, which rewrites each block that begins with
``from pyproject.toml: NAME``; with ``--check`` it only reports which are out of date. The
repository's address and the maintainers' are stated once, in pyproject.toml, like the version of
all three packages. Addresses at example.org are placeholders: texts then give no address, and a
release is refused.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

ROOT = Path(__file__).resolve().parent.parent
FILES = (
    "README.md",
    "docs/install.md",
    "CITATION.cff",
    "packages/torch_mpi4py/pyproject.toml",
    "packages/ipyranks/pyproject.toml",
)
BLOCK = re.compile(
    r"^(?P<head>(?:<!--|#) from pyproject\.toml: (?P<name>[\w ]+?)(?: -->)?\n)"
    r"(?P<body>.*?)(?P<tail>^(?:<!--|#) to here)",
    re.MULTILINE | re.DOTALL,
)
_NOT_FILLED = "example.org"
_FIRST_LESSON = "lab/tree/workspace/00_start_here.ipynb"


class Addresses(NamedTuple):
    """The repository's address and the maintainers' contact."""

    repository: str
    maintainer: str
    contact: str
    version: str


def stated(root: Path = ROOT) -> Addresses:
    """Return the values in pyproject.toml."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (maintainer,) = project["maintainers"]
    return Addresses(
        project["urls"]["Repository"], maintainer["name"], maintainer["email"], project["version"]
    )


def not_filled(addresses: Addresses) -> list[str]:
    """Return the placeholders that remain, each with its place."""
    places = {
        "[project.urls] Repository": addresses.repository,
        "the email in [project] maintainers": addresses.contact,
    }
    return [
        f"pyproject.toml has {said} for {place}: fill it in, then run python -m tools.addresses"
        for place, said in places.items()
        if _NOT_FILLED in said
    ]


def blocks(addresses: Addresses) -> dict[str, str]:
    """Return the content of each block, by its name."""
    repository, maintainer, contact, version = addresses
    versions = {"version": f'version = "{version}"\n', "cited version": f"version: {version}\n"}
    if not_filled(addresses):
        return versions | {
            "badges": "",
            "clone": "In a clone of this repository:\n",
            "installation": _in_a_notebook("ADDRESS")
            + "\n`ADDRESS` is where you cloned the course from.\n",
            "citation": "",
            "urls": "",
        }
    parts = urlsplit(repository)
    tests = f"{repository}/actions/workflows/test.yml"
    badges = [f"[![tests]({tests}/badge.svg)]({tests})"]
    if parts.netloc == "github.com":
        binder = f"https://mybinder.org/v2/gh{parts.path}/HEAD?urlpath={_FIRST_LESSON}"
        badges.append(f"[![Binder](https://mybinder.org/badge_logo.svg)]({binder})")
    name = parts.path.rpartition("/")[2]
    return versions | {
        "badges": "\n".join([*badges, ""]),
        "clone": f"```\ngit clone {repository}\ncd {name}\n```\n\nThere:\n",
        "installation": _in_a_notebook(repository),
        "citation": f'repository-code: "{repository}"\n'
        f'contact:\n  - name: "{maintainer}"\n    email: "{contact}"\n',
        "urls": f'[project.urls]\nRepository = "{repository}"\n',
    }


def _in_a_notebook(repository: str) -> str:
    parts = {
        "torch-mpi4py[openmpi]": "#subdirectory=packages/torch_mpi4py",
        "ipyranks": "#subdirectory=packages/ipyranks",
        "rank-by-rank": "",
    }
    wanted = " ".join(f'"{name} @ git+{repository}{where}"' for name, where in parts.items())
    return f"```\n%pip install --quiet {wanted}\n```\n"


def with_blocks(text: str, addresses: Addresses) -> str:
    """Return ``text`` with each block up to date.

    Raises:
        KeyError: if there is no block of such a name.
    """
    made = blocks(addresses)
    return BLOCK.sub(lambda found: found["head"] + made[found["name"]] + found["tail"], text)


def main(arguments: list[str] | None = None) -> int:
    """Rewrite the files; with ``--check`` return 1 if one is out of date."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing")
    parser.add_argument("--root", type=Path, default=ROOT, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    addresses, changed = stated(given.root), False
    for name in FILES:
        path = given.root / name
        before = path.read_text(encoding="utf-8")
        after = with_blocks(before, addresses)
        if after != before:
            changed = True
            print(f"{name}: {'is out of date' if given.check else 'written'}")
            if not given.check:
                path.write_text(after, encoding="utf-8")
    return int(changed and given.check)


if __name__ == "__main__":
    sys.exit(main())
