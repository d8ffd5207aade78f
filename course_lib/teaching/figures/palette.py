"""The colours of all figures: a rank has the same one everywhere.

The eight colours of ranks are Okabe and Ito's, made to be told apart with every common form of
colour blindness (M. Okabe and K. Ito, "Color Universal Design", 2008). Colour is never the only
sign: the diagrams also write the rank or a letter.
"""

from __future__ import annotations

# The order puts colours of different lightness next to each other, so that neighbours
# also differ in a black-and-white print.
RANK_COLOURS = (
    "#0072B2",  # rank 0: blue
    "#E69F00",  # rank 1: orange
    "#009E73",  # rank 2: bluish green
    "#CC79A7",  # rank 3: reddish purple
    "#56B4E9",  # rank 4: sky blue
    "#D55E00",  # rank 5: vermilion
    "#F0E442",  # rank 6: yellow
    "#000000",  # rank 7: black
)

PAPER = "#FFFFFF"  # opaque, so that a figure reads the same on a light and on a dark page
INK = "#1F2328"
SOFT_INK = "#57606A"
RULE = "#D0D7DE"
ALARM = "#B42318"  # for what goes wrong: never a rank's colour


def rank_colour(rank: int) -> str:
    """Colour of ``rank`` as "#RRGGBB"; from rank 8 on the colours repeat."""
    if rank < 0:
        raise ValueError(f"rank is {rank}: it must be 0 or more")
    return RANK_COLOURS[rank % len(RANK_COLOURS)]


def text_on(colour: str) -> str:
    """Black or white ink, whichever has the higher contrast on ``colour`` ("#RRGGBB").

    The contrast ratio is that of WCAG 2.2, "contrast ratio" and "relative luminance".
    """
    luminance = _luminance(colour)
    white, black = 1.05 / (luminance + 0.05), (luminance + 0.05) / 0.05
    return "#FFFFFF" if white > black else "#000000"


def blend(colour: str, other: str, share: float) -> str:
    """Return ``colour`` with a ``share`` (0 to 1) of another colour in it."""
    at = (1, 3, 5)
    pairs = ((int(colour[i : i + 2], 16), int(other[i : i + 2], 16)) for i in at)
    return "#" + "".join(f"{round((1 - share) * one + share * two):02X}" for one, two in pairs)


def _luminance(colour: str) -> float:
    channels = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
