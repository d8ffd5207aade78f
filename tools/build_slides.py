"""Build the slide decks: `make slides`, or `python -m tools.build_slides`.

A deck is a Markdown file for Marp in `slides/`. Its figures are those of the executed lessons:
`![WIDTH](<figure:NN/WORDS>)` is the figure of lesson NN whose alternative text has these words.
Pictures go into the page itself, so the HTML needs no network and no file beside it; with
`--pdf` a PDF is printed too. Marp is pinned in `slides/package-lock.json` and needs Node.js.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import html
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
SLIDES = ROOT / "slides"
THEME = SLIDES / "theme.css"
MARP = SLIDES / "node_modules" / ".bin" / "marp"
BUILD_SECONDS = 180

_PICTURE = re.compile(r"!\[(?P<width>\d+)(?: (?P<alt>[^\]]*))?\]\(<?(?P<target>[^>)]+)>?\)")
_SHOWN = re.compile(r'<img alt="(?P<alt>[^"]*)"[^>]*src="(?P<source>data:[^"]*)"')


class SlidesError(Exception):
    """A deck can't be built; the text gives the remedy."""


class Picture(NamedTuple):
    """The content of an ``<img>``: alternative text and a ``data:`` address."""

    alt: str
    source: str


def decks() -> list[Path]:
    """Return the sources of all decks, in order."""
    return sorted(SLIDES.glob("[0-9]_*.md"))


@cache
def figures_of(lesson: str) -> tuple[Picture, ...]:
    """Return the figures that the executed notebook of a lesson ("03") shows."""
    paths = list((ROOT / "notebooks").glob(f"{lesson}_*.ipynb"))
    if len(paths) != 1:
        raise SlidesError(f"there is no lesson {lesson!r} in notebooks/")
    found = []
    for cell in json.loads(paths[0].read_text(encoding="utf-8"))["cells"]:
        for output in cell.get("outputs", []):
            shown = _SHOWN.search("".join(output.get("data", {}).get("text/html", "")))
            if shown:
                found.append(Picture(html.unescape(shown["alt"]), shown["source"]))
    return tuple(found)


def figure(reference: str) -> Picture:
    """Return the one figure of ``NN/words``.

    Raises:
        SlidesError: if there is none, or more than one.
    """
    lesson, _, words = reference.partition("/")
    found = [each for each in figures_of(lesson) if words in each.alt]
    if len(found) != 1:
        known = "\n".join(f"  {each.alt[:100]}" for each in found or figures_of(lesson))
        which = f"{len(found)} figures" if found else "no figure"
        raise SlidesError(f"lesson {lesson} has {which} with {words!r}:\n{known}")
    return found[0]


def picture(deck: Path, target: str, alt: str) -> Picture:
    """Return the picture that an address in a deck refers to."""
    if target.startswith("figure:"):
        return figure(target.removeprefix("figure:"))
    path = deck.parent / target
    if path.suffix != ".svg" or not path.exists():
        raise SlidesError(f"{deck.name}: there is no SVG file {target}")
    data = base64.b64encode(path.read_bytes()).decode()
    return Picture(alt, f"data:image/svg+xml;base64,{data}")


def with_pictures(deck: Path) -> str:
    """Return a deck's Markdown with its pictures inside."""

    def image(match: re.Match[str]) -> str:
        shown = picture(deck, match["target"], match["alt"] or "")
        if not shown.alt:
            raise SlidesError(f"{deck.name}: {match['target']} needs alternative text")
        alt = html.escape(shown.alt)
        return f'<img alt="{alt}" width="{match["width"]}" src="{shown.source}">'

    return _PICTURE.sub(image, deck.read_text(encoding="utf-8"))


def formulas(markdown: str) -> list[str]:
    """Return the TeX of a deck's formulas, in order."""
    text = re.sub(r"<!--.*?-->|^```.*?^```$|`[^`\n]*`", "", markdown, flags=re.S | re.M)
    found = re.findall(r"\$\$(.+?)\$\$|\$(\S[^$]*)\$", text, flags=re.S)
    return [" ".join((block or inline).split()) for block, inline in found]


def for_screen_readers(page: str, tex: list[str]) -> str:
    """Name what Marp leaves unnamed: slides, buttons, and formulas by their TeX.

    Raises:
        SlidesError: if there are not as many formulas on the page as in ``tex``.
    """
    for marp, ours in {
        '<div class="bespoke-marp-osc">': 'role="navigation" aria-label="Slides"',
        '<div id=":$p">': 'role="main"',
    }.items():
        if page.count(marp) != 1:
            raise SlidesError(f"Marp's page has {page.count(marp)} times {marp}, not once")
        page = page.replace(marp, f"{marp[:-1]} {ours}>")
    start = '<mjx-container class="MathJax"'
    if page.count(start) != len(tex):
        raise SlidesError(f"{page.count(start)} formulas on the page, {len(tex)} in the source")
    before, *after = page.split(start)
    named = [
        f'{start} role="img" aria-label="{html.escape(formula)}"'
        + rest.replace(' role="img" focusable="false"', ' aria-hidden="true"', 1)
        for formula, rest in zip(tex, after, strict=True)
    ]
    return "".join([before, *named])


def fingerprint(deck: Path) -> str:
    """Return the fingerprint of a built deck: a hash of its source and the theme."""
    return hashlib.sha256(deck.read_bytes() + THEME.read_bytes()).hexdigest()[:16]


def stamp_of(built: Path) -> str:
    """Return the fingerprint that a built deck carries, "" if none."""
    found = re.search(r"<!-- source ([0-9a-f]{16}) -->", built.read_text(encoding="utf-8"))
    return found[1] if found else ""


def install_marp() -> None:
    """Install Marp in ``slides/node_modules`` from its lock, once."""
    if MARP.exists():
        return
    npm = shutil.which("npm")
    if npm is None:
        raise SlidesError(
            "the slides need Node.js 20 or later, with npm: https://nodejs.org, or "
            "apt install nodejs npm"
        )
    answer = _run([npm, "ci", "--engine-strict", "--no-audit", "--no-fund"], SLIDES)
    if answer.returncode != 0:
        raise SlidesError(f"npm could not install Marp:\n{answer.stdout}{answer.stderr}")


def build(deck: Path, *, pdf: bool = False) -> list[Path]:
    """Build a deck's HTML beside its source, and its PDF; return what was written."""
    stamp, tex = fingerprint(deck), formulas(deck.read_text(encoding="utf-8"))
    built = []
    with tempfile.TemporaryDirectory() as name:
        source = Path(name) / deck.name
        source.write_text(with_pictures(deck), encoding="utf-8")
        for suffix in (".html", ".pdf")[: 1 + pdf]:
            output = deck.with_suffix(suffix)
            command = [str(MARP), "--no-stdin", "--html", "--theme-set", str(THEME)]
            answer = _run([*command, "-o", str(output), str(source)], ROOT)
            if answer.returncode != 0:
                raise SlidesError(f"Marp failed on {deck.name}:\n{answer.stderr}")
            built.append(output)
    page = for_screen_readers(built[0].read_text(encoding="utf-8"), tex)
    built[0].write_text(f"{page}\n<!-- source {stamp} -->\n", encoding="utf-8")
    return built


def _run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    # Chromium refuses to print for root inside its own sandbox.
    variables = {"CHROME_NO_SANDBOX": "1"} if os.geteuid() == 0 else {}
    return subprocess.run(
        command,
        cwd=folder,
        env=os.environ | variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=BUILD_SECONDS,
        check=False,
    )


def main() -> None:
    """Build the decks whose source or theme changed, or those named."""
    parser = argparse.ArgumentParser(prog="make slides ARGS=", description=main.__doc__)
    parser.add_argument("decks", nargs="*", type=int, metavar="N", help="numbers of decks")
    parser.add_argument("--pdf", action="store_true", help="print PDFs too (needs Chromium)")
    arguments = parser.parse_args()
    try:
        install_marp()
        for deck in decks():
            built = deck.with_suffix(".html")
            is_new = built.exists() and stamp_of(built) == fingerprint(deck)
            if int(deck.name[0]) in arguments.decks or (
                not arguments.decks and (arguments.pdf or not is_new)
            ):
                for path in build(deck, pdf=arguments.pdf):
                    print(path.relative_to(ROOT))
    except SlidesError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
