"""axe-core in a page: what people with a keyboard, a screen reader or weak eyes stumble over.

axe-core is pinned in ``package-lock.json`` beside this file and installed by npm at first use.
Reference: https://github.com/dequelabs/axe-core/blob/develop/doc/API.md (``axe.run``).
"""

from __future__ import annotations

import json
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from playwright.sync_api import Page

FOLDER = Path(__file__).parent
AXE = FOLDER / "node_modules" / "axe-core" / "axe.min.js"
INSTALL_SECONDS = 120

# WCAG 2.2 up to level AA, and axe's own list of good practice.
TAGS = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice")


class Violation(NamedTuple):
    """A rule that a page breaks, and every element that breaks it."""

    rule: str
    impact: str
    help: str
    elements: tuple[str, ...]

    def __str__(self) -> str:
        shown = "".join(f"\n    {each}" for each in self.elements)
        return f"{self.rule} ({self.impact}): {self.help}{shown}"


@cache
def source() -> str:
    """Return axe-core's program; install it if it is not there in the pinned version."""
    pinned = json.loads((FOLDER / "package.json").read_text())["devDependencies"]["axe-core"]
    described = AXE.parent / "package.json"
    if not described.exists() or json.loads(described.read_text())["version"] != pinned:
        npm = shutil.which("npm")
        assert npm, "axe-core needs npm: install Node.js 20 or later, or apt install nodejs npm"
        answer = subprocess.run(
            [npm, "ci", "--engine-strict", "--no-audit", "--no-fund"],
            cwd=FOLDER,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=INSTALL_SECONDS,
            check=False,
        )
        assert answer.returncode == 0, f"npm ci: {answer.stdout}{answer.stderr}"
    return AXE.read_text(encoding="utf-8")


def violations(page: Page, *, within: str = "", without: tuple[str, ...] = ()) -> list[Violation]:
    """Return the rules that the page breaks as it is shown now: what is hidden is not judged.

    ``within`` is a CSS selector of the part to look at, "" for the whole page; rules in
    ``without`` are left out.
    """
    if page.evaluate("typeof axe") == "undefined":
        page.add_script_tag(content=source())
    options: dict[str, Any] = {"runOnly": TAGS, "resultTypes": ["violations"]}
    options["rules"] = {rule: {"enabled": False} for rule in without}
    found = page.evaluate(
        """([within, options]) =>
      axe.run(within || document, options).then(({violations}) => violations.map(v =>
        [v.id, v.impact, v.help, v.nodes.map(n => [n.target.flat().join(' '),
          n.html.slice(0, 160), n.failureSummary.replaceAll('\\n', ' ')].join(' | '))]))
        """,
        [within, options],
    )
    return [Violation(rule, impact, words, tuple(nodes)) for rule, impact, words, nodes in found]
