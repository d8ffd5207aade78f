"""No picture without words for those who cannot see it."""

from __future__ import annotations

import re
from collections.abc import Iterator

__all__ = ["pictures_without_words", "pictures_without_words_in_text"]

_MARKDOWN_IMAGE = re.compile(r"!\[(.*?)\]\((.*?)\)")
_IMG = re.compile(r"<img\b[^>]*>", re.IGNORECASE)
_SVG = re.compile(r"<svg\b.*?</svg>", re.IGNORECASE | re.DOTALL)
_ALT = re.compile(r"""\balt=(?:"\s*[^"\s]|'\s*[^'\s])""", re.IGNORECASE)
_LABEL = re.compile(r"<title>\s*[^<\s]|\baria-label=", re.IGNORECASE)


def pictures_without_words_in_text(text: str) -> Iterator[str]:
    """Yield the pictures of Markdown or HTML that have no alternative text."""
    for words, address in _MARKDOWN_IMAGE.findall(text):
        if not words.strip():
            yield f"![]({address[:40]})"
    for tag in _IMG.findall(text):
        if not _ALT.search(tag):
            yield tag[:60]
    for drawing in _SVG.findall(text):
        if not _LABEL.search(drawing):
            yield drawing[:60]


def pictures_without_words(output) -> Iterator[str]:
    """Yield the pictures of one output of a notebook that have no alternative text."""
    for kind, content in output.get("data", {}).items():
        if kind in ("text/html", "text/markdown", "image/svg+xml"):
            yield from pictures_without_words_in_text(content)
        elif kind.startswith("image/"):
            described = output.get("metadata", {}).get(kind, {})
            if not described.get("alt", "").strip():
                yield kind
