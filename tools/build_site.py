"""Build the site: `make site`, or `python -m tools.build_site`.

Sphinx with MyST-NB turns the pages of tools/site_pages.py into site/build/html. Nothing is
executed, and the site needs no network: theme, fonts and MathJax come with it. Sphinx is pinned in
site/requirements.lock and lives in site/.venv, apart from the learners' packages; MathJax is pinned
in site/package-lock.json and needs npm.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from . import site_pages

ROOT = Path(__file__).resolve().parent.parent
SITE = ROOT / "site"
BUILD = SITE / "build"
HTML = BUILD / "html"
LOCK = SITE / "requirements.lock"
INSTALL_SECONDS, BUILD_SECONDS = 600, 300

# Of MathJax: the program, what it loads when a page asks for it (TeX's extensions, the menu, what
# speaks formulas in English), and the font.
MATHJAX = ("LICENSE", "tex-chtml.js", "input/tex/extensions", "a11y", "ui")
SPEECH = ("speech-worker.js", "mathmaps/base.json", "mathmaps/en.json", "mathmaps/nemeth.json")
FONT = ("chtml.js", "chtml")


class SiteError(Exception):
    """The site can't be built; the text gives the remedy."""


def install(folder: Path = SITE) -> Path:
    """Install the site's build tools from its locks, and return their Python."""
    venv = folder / ".venv"
    stamp = venv / "installed"
    wanted = hashlib.sha256(LOCK.read_bytes() + sys.version.encode()).hexdigest()
    if not stamp.exists() or stamp.read_text() != wanted:
        shutil.rmtree(venv, ignore_errors=True)
        _run([sys.executable, "-m", "venv", venv], INSTALL_SECONDS)
        pip: list[str | Path] = [
            venv / "bin" / "python",
            "-m",
            "pip",
            "--disable-pip-version-check",
            "--quiet",
        ]
        _run([*pip, "install", "--no-deps", "-r", LOCK], INSTALL_SECONDS)
        stamp.write_text(wanted)
    return venv / "bin" / "python"


def install_mathjax() -> Path:
    """Install MathJax in ``site/node_modules`` from its lock, and return that folder."""
    modules, lock = SITE / "node_modules", SITE / "package-lock.json"
    stamp, wanted = modules / "installed", hashlib.sha256(lock.read_bytes()).hexdigest()
    if not stamp.exists() or stamp.read_text() != wanted:
        npm = shutil.which("npm")
        if npm is None:
            raise SiteError(
                "the site needs npm for MathJax: https://nodejs.org, or apt install nodejs npm"
            )
        _run([npm, "ci", "--engine-strict", "--no-audit", "--no-fund"], INSTALL_SECONDS)
        stamp.write_text(wanted)
    return modules


def build(output: Path = HTML, *, fresh: bool = False) -> str:
    """Build the site into ``output``, and return Sphinx's output.

    Args:
        fresh: build every page, even unchanged ones, and delete old ones.

    Raises:
        SiteError: if Sphinx fails or warns.
    """
    python, modules = install(), install_mathjax()
    pages, kept = output.parent / "pages", output.parent / "doctrees"
    shutil.rmtree(pages, ignore_errors=True)  # of pages that are gone
    site_pages.gather(pages)
    if fresh:
        shutil.rmtree(output, ignore_errors=True)
        shutil.rmtree(kept, ignore_errors=True)
    options = ["-W", "--keep-going", "--quiet", "-j", "2"]
    folders: list[str | Path] = ["-c", SITE, "-d", kept, pages, output]
    said = _run([python, "-m", "sphinx", *options, *folders], BUILD_SECONDS)
    for name in site_pages.copied_as_they_are():
        site_pages.write(output / name, (ROOT / name).read_bytes())
    add_mathjax(modules, output / "_static" / "mathjax")
    (output / ".nojekyll").touch()  # GitHub's pages leave out folders like _static without it
    return said


def add_mathjax(modules: Path, target: Path) -> None:
    """Copy the files of MathJax and its font that a browser may load."""
    font = modules / "@mathjax" / "mathjax-newcm-font"
    for start, names, end in (
        (modules / "mathjax", MATHJAX, target),
        (modules / "mathjax" / "sre", SPEECH, target / "sre"),
        (font, FONT, target / "fonts" / "mathjax-newcm-font"),
    ):
        for name in names:
            if (start / name).is_dir():
                shutil.copytree(start / name, end / name, dirs_exist_ok=True)
            else:
                (end / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(start / name, end / name)


def _run(command: Sequence[str | Path], seconds: float) -> str:
    answer = subprocess.run(
        [str(word) for word in command],
        cwd=SITE,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=seconds,
        check=False,
    )
    if answer.returncode != 0:
        raise SiteError(f"{' '.join(str(word) for word in command[:4])} ...:\n{answer.stdout}")
    return answer.stdout


def main() -> None:
    """Build the site into site/build/html."""
    parser = argparse.ArgumentParser(prog="make site ARGS=", description=main.__doc__)
    parser.add_argument("--fresh", action="store_true", help="build every page anew")
    arguments = parser.parse_args()
    try:
        said = build(fresh=arguments.fresh)
    except (SiteError, site_pages.PageError) as error:
        sys.exit(str(error))
    print(said + f"open {(HTML / 'index.html').relative_to(ROOT)}")


if __name__ == "__main__":
    main()
