"""Defines a figure (an SVG and a text with the same content) and the shapes of diagrams.

In a notebook a :class:`Figure` shows itself as an ``<img>`` with alternative text. That form is
drawn in trusted and untrusted notebooks alike, where inline SVG is not. In plain text
it shows as ``Figure: <alternative text>``.
"""

from __future__ import annotations

import base64
import math
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from .palette import INK, PAPER, RULE, rank_colour, text_on

FONT = "'Helvetica Neue', Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif"
MONO = "'SFMono-Regular', Menlo, Consolas, 'Liberation Mono', 'DejaVu Sans Mono', monospace"
WIDTH = 576  # of a diagram in CSS pixels: at half of a laptop page, its 14 px text still has 12


@dataclass(frozen=True)
class Figure:
    """A finished picture: ``svg`` (a complete SVG document) and ``alt`` (alternative text)."""

    svg: str
    alt: str
    width: int = WIDTH

    def __repr__(self) -> str:
        return f"Figure: {self.alt}"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        data = base64.b64encode(self.svg.encode()).decode()
        image = (
            f'<img alt="{escape(self.alt)}" width="{self.width}" style="max-width: 100%" '
            f'src="data:image/svg+xml;base64,{data}">'
        )
        return {"text/html": image, "text/plain": repr(self)}

    def save(self, path: str | Path) -> Path:
        """Write the SVG document to ``path`` and return the path."""
        path = Path(path)
        path.write_text(self.svg, encoding="utf-8")
        return path


class Drawing:
    """An SVG document under construction: shapes are appended in the order they are painted.

    Coordinates and sizes are CSS pixels, with y pointing down.
    """

    def __init__(self, width: float, height: float):
        self.width, self.height = width, height
        self._definitions: dict[str, str] = {}
        self._shapes: list[str] = []

    def rectangle(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        *,
        fill: str,
        stroke: str = "none",
        radius: float = 4,
        dashed: bool = False,
    ) -> None:
        dash = ' stroke-dasharray="4 3"' if dashed else ""
        self._shapes.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" '
            f'rx="{radius}" fill="{fill}" stroke="{stroke}"{dash}/>'
        )

    def circle(self, x: float, y: float, radius: float, *, fill: str) -> None:
        self._shapes.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}" fill="{fill}" stroke="none"/>'
        )

    def path(
        self,
        commands: str,
        *,
        stroke: str,
        width: float = 1.5,
        dashed: bool = False,
        arrow: bool = False,
    ) -> None:
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        head = f' marker-end="url(#{self._arrow_head(stroke)})"' if arrow else ""
        self._shapes.append(
            f'<path d="{commands}" fill="none" stroke="{stroke}" stroke-width="{width}"'
            f' stroke-linecap="round"{dash}{head}/>'
        )

    def line(self, x1: float, y1: float, x2: float, y2: float, **style: Any) -> None:
        self.path(f"M {x1:.1f} {y1:.1f} L {x2:.1f} {y2:.1f}", **style)

    def text(
        self,
        x: float,
        y: float,
        words: object,
        *,
        size: int = 14,
        fill: str = INK,
        anchor: str = "middle",
        bold: bool = False,
        mono: bool = False,
    ) -> None:
        """Write ``words`` with their vertical middle at ``y``."""
        style = ' font-weight="bold"' if bold else ""
        style += f' font-family="{MONO}"' if mono else ""
        # An offset in pixels, not dominant-baseline: viewers disagree about the latter.
        self._shapes.append(
            f'<text x="{x:.1f}" y="{y + 0.35 * size:.1f}" font-size="{size}" fill="{fill}" '
            f'text-anchor="{anchor}"{style}>{escape(str(words))}</text>'
        )

    def plate(self, x: float, y: float, words: object) -> None:
        """Write ``words`` centred at (x, y) on a piece of paper that hides the lines below."""
        size = 13
        width = 0.62 * size * len(str(words)) + 6
        self.rectangle(x - width / 2, y - 0.65 * size, width, 1.3 * size, fill=PAPER)
        self.text(x, y, words, size=size, mono=True)

    def hatch(self, colour: str) -> str:
        """A fill of slanted lines in ``colour``, for time that is spent waiting."""
        name = f"hatch-{colour.lstrip('#')}"
        self._definitions[name] = (
            f'<pattern id="{name}" width="7" height="7" patternUnits="userSpaceOnUse" '
            f'patternTransform="rotate(45)"><rect width="7" height="7" fill="{PAPER}"/>'
            f'<rect width="2.5" height="7" fill="{colour}"/></pattern>'
        )
        return f"url(#{name})"

    def rank_label(self, rank: int, x: float, y: float, *, height: float = 26) -> None:
        """The coloured plate "rank r" that starts every rank's row, centred at height ``y``."""
        colour, width = rank_colour(rank), 60
        self.rectangle(x, y - height / 2, width, height, fill=colour, radius=13)
        self.text(x + width / 2, y, f"rank {rank}", fill=text_on(colour), bold=True)

    def finish(self, alt: str) -> Figure:
        """Close the document, on opaque paper with a thin frame."""
        svg = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" '
            f'width="{self.width}" height="{self.height}" role="img" font-family="{FONT}">'
            f"<title>{escape(alt)}</title><defs>{''.join(self._definitions.values())}</defs>"
            f'<rect x="0.5" y="0.5" width="{self.width - 1}" height="{self.height - 1}" rx="8" '
            f'fill="{PAPER}" stroke="{RULE}"/>{"".join(self._shapes)}</svg>'
        )
        return Figure(svg, alt, int(self.width))

    def _arrow_head(self, colour: str) -> str:
        name = f"arrow-{colour.lstrip('#')}"
        self._definitions[name] = (
            f'<marker id="{name}" viewBox="0 0 10 10" refX="8.5" refY="5" markerWidth="6.5" '
            f'markerHeight="6.5" orient="auto"><path d="M 0 0 L 10 5 L 0 10 z" fill="{colour}"/>'
            "</marker>"
        )
        return name


def round_step(rough: float) -> float:
    """Return the next 1, 2 or 5 times a power of ten, for the ticks of an axis; 0 for 0."""
    if rough <= 0:
        return 0.0
    power = 10.0 ** math.floor(math.log10(rough))
    return next(n * power for n in (1, 2, 5, 10) if n * power >= rough * (1 - 1e-9))
