"""Pages for a teacher that need no other file and no script: style, frame, tables."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

_STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1a1a1a; --line: #b8b8b8; --soft: #f2f2f2;
  --right: #d8f0dc; --partly: #fdf0c4; --none: #f9dcd9; --link: #0b4f9e; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #16181c; --ink: #e8e8e8; --line: #555; --soft: #23262b;
    --right: #1d4427; --partly: #4d4210; --none: #55231e; --link: #8ebcf5; } }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 75rem; margin: 2rem auto; padding: 0 1rem;
  background: var(--paper); color: var(--ink); }
a { color: var(--link); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; margin: 1rem 0; }
caption { text-align: left; font-weight: 600; padding: .3rem 0; }
th, td { border: 1px solid var(--line); padding: .25rem .5rem; text-align: left;
  vertical-align: top; }
thead th { background: var(--soft); }
tbody th { background: var(--paper); position: sticky; left: 0; font-weight: 600; }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
.full { background: var(--right); } .part { background: var(--partly); }
.zero { background: var(--none); }
small { display: block; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; font: inherit; margin: 0; }
details { border-top: 1px solid var(--line); padding: .4rem 0; }
summary { cursor: pointer; font-weight: 600; }
"""


def document(title: str, parts: Iterable[str], every: float = 0) -> str:
    """Return a page.

    Args:
        title: its title, which is also its heading.
        parts: what is below, as HTML.
        every: seconds after which a browser loads it again; 0 for never.
    """
    again = f'<meta http-equiv="refresh" content="{every:g}">\n' if every else ""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"{again}<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n"
        f"<body>\n<main>\n<h1>{escape(title)}</h1>\n"
        + "\n".join(parts)
        + "\n</main>\n</body>\n</html>\n"
    )


def table(caption: str, head: Iterable[str], rows: Iterable[str]) -> str:
    """Return a table.

    Args:
        caption: above it.
        head: the columns' titles.
        rows: the cells of each row, as HTML.
    """
    titles = "".join(f'<th scope="col">{escape(title)}</th>' for title in head)
    lines = "".join(f"<tr>{row}</tr>\n" for row in rows)
    return (
        f"<table>\n<caption>{escape(caption)}</caption>\n<thead><tr>{titles}</tr></thead>\n"
        f"<tbody>\n{lines}</tbody>\n</table>"
    )


def wide(label: str, table: str) -> str:
    """Return a table that a keyboard can scroll where it is wider than the page."""
    label = escape(label)
    return f'<div class="wide" role="region" aria-label="{label}" tabindex="0">\n{table}\n</div>'


def row_title(text: str) -> str:
    """Return the cell that names its row."""
    return f'<th scope="row">{escape(text)}</th>'


def symbol(sign: str) -> str:
    """Return a sign beside a text that says the same, so that it is not read aloud."""
    return f'<span aria-hidden="true">{sign}</span>'
