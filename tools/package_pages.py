"""Adapt the README of each package to its package page, outside the repository.

Usage: ``python -m tools.package_pages``, in the release workflow, before anything is built. It
rewrites the three READMEs of the checkout, which are not committed: links and pictures lead to the
repository, at the tag of this version, and ``pip install`` names packages instead of folders.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path, PurePosixPath
from posixpath import normpath
from urllib.parse import urlsplit

from . import addresses, release

ROOT = Path(__file__).resolve().parent.parent
READMES = tuple(str(PurePosixPath(project).parent / "README.md") for project in release.PROJECTS)
# A link or picture of Markdown, or of HTML.
_TARGET = re.compile(r"(?P<before>(?P<image>!?)\[(?:[^\[\]]|\[[^\]]*\])*\]\()(?P<to>[^)\s]+)\)")
_HTML = re.compile(r'(?P<before>\b(?:src|srcset|href)=")(?P<to>[^"]+)"')
_BLOCK = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
_FOLDERS = {"./packages/torch_mpi4py": "torch-mpi4py", "./packages/ipyranks": "ipyranks"}
_FROM_A_CHECKOUT = re.compile(r"^From a checkout of this repository(?:, (.*))?:$", re.MULTILINE)


def page(text: str, place: str, repository: str, version: str) -> str:
    """Return the text of the README at ``place`` as its package page shows it.

    Args:
        text: Markdown.
        place: the file, seen from the root of the repository.
        repository: its address.
        version: the tag is ``v`` and this.
    """
    tag = f"v{version}"
    parts = urlsplit(repository)
    raw = f"{repository}/raw/{tag}"
    if parts.netloc == "github.com":  # its /raw/ is a redirection, which a page's proxy may refuse
        raw = f"https://raw.githubusercontent.com{parts.path}/{tag}"

    def absolute(target: str, image: bool) -> str:
        if urlsplit(target).scheme:
            return target
        name, hash_sign, anchor = target.partition("#")
        folder = str(PurePosixPath(place).parent)
        file = normpath(f"{folder}/{name}") if name else place
        return f"{raw if image else f'{repository}/blob/{tag}'}/{file}{hash_sign}{anchor}"

    def markdown(found: re.Match[str]) -> str:
        inner = _TARGET.sub(markdown, found["before"][1:]) if found["image"] == "" else ""
        before = found["before"][:1] + inner if inner else found["before"]
        return f"{before}{absolute(found['to'], bool(found['image']))})"

    def html(found: re.Match[str]) -> str:
        return f'{found["before"]}{absolute(found["to"], "href" not in found["before"])}"'

    made = []
    for number, part in enumerate(_BLOCK.split(text)):
        for before, after in _FOLDERS.items():
            part = part.replace(before, after)
        if number % 2 == 0:  # no block of code
            part = _HTML.sub(html, _TARGET.sub(markdown, part))
            part = _FROM_A_CHECKOUT.sub(lambda found: _upper(found[1] or "by pip") + ":", part)
        made.append(part)
    return "".join(made)


def _upper(words: str) -> str:
    return words[:1].upper() + words[1:]


def main(arguments: list[str] | None = None) -> None:
    """Rewrite the READMEs, once it is known where the repository is."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--root", type=Path, default=ROOT, help=argparse.SUPPRESS)
    root = parser.parse_args(arguments).root
    stated = addresses.stated(root)
    if missing := addresses.not_filled(stated):
        sys.exit("; ".join(missing))
    version = release.versions(root)["pyproject.toml"]
    for place in READMES:
        path = root / place
        text = path.read_text(encoding="utf-8")
        path.write_text(page(text, place, stated.repository, version), encoding="utf-8")


if __name__ == "__main__":
    main()
