"""Turns a benchmark's title, tables and targets into Markdown."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median, quantiles
from typing import Any, NamedTuple

Samples = list[float]
Shown = Callable[[Any], str]  # a row's text in one column
SMALL, MIB = 64 * 1024, 2**20


# ---- numbers ----------------------------------------------------------------------------


def spread(samples: Samples, shown: Callable[[float], str]) -> str:
    """Return median and quartiles."""
    low, middle, high = quantiles(samples, n=4)
    return f"{shown(middle)} ({shown(low)} to {shown(high)})"


def milliseconds(samples: Samples) -> str:
    """Return median and quartiles in ms."""
    return spread(samples, lambda value: f"{1e3 * value:.3g}")


def microseconds(samples: Samples) -> str:
    """Return median and quartiles in us."""
    return spread(samples, lambda v: f"{1e6 * v:,.0f}" if v >= 1e-4 else f"{1e6 * v:.3g}")


def few(samples: Samples, form: str = ".2f") -> str:
    """Return the median, and the smallest and the largest: for samples of which there are few."""
    return f"{median(samples):{form}} ({min(samples):{form}} to {max(samples):{form}})"


def size_name(count: int) -> str:
    """Return e.g. ``64 KiB``."""
    for unit, factor in (("MiB", MIB), ("KiB", 1024)):
        if count >= factor:
            return f"{count // factor} {unit}"
    return f"{count} B"


def ratio(row: dict, above: str, below: str, of: Callable[[Samples], float] = median) -> float:
    """Return one variant's time over another's: medians, or ``of`` applied to the samples."""
    return of(row["samples"][above]) / of(row["samples"][below])


def extra(row: dict, above: str, below: str, of: Callable[[Samples], float] = median) -> float:
    """Return the microseconds that one variant takes more than another."""
    return 1e6 * (of(row["samples"][above]) - of(row["samples"][below]))


def by_turns(row: dict, above: str, below: str) -> float:
    """Return the median, over the turns, of one variant's sample over another's.

    Both of a turn were measured shortly after each other, so slow drifts of the machine cancel.
    """
    samples = row["samples"]
    return median(a / b for a, b in zip(samples[above], samples[below], strict=True))


def geometric_mean(values: Iterable[float]) -> float:
    """Return the geometric mean."""
    logarithms = [math.log(value) for value in values]
    return math.exp(sum(logarithms) / len(logarithms))


# ---- columns of rows {"bytes": ..., "samples": {variant: samples}} ----------------------


def size(row: dict) -> str:
    """Show a row's size."""
    return size_name(row["bytes"])


def key(name: Any) -> Shown:
    """Show a row's value under a name or at a place."""
    return lambda row: str(row[name])


def each(names: Mapping[str, str], shown: Callable[[Samples], str]) -> dict[str, Shown]:
    """Return a column for each variant: its samples, below its name."""

    def column(variant: str) -> Shown:
        return lambda row: shown(row["samples"][variant])

    return {name: column(variant) for variant, name in names.items()}


def over(above: str, below: str, form: str = ".2f", of: Callable[..., float] = ratio) -> Shown:
    """Show the ratio of two variants, by their medians or by turns."""
    return lambda row: f"{of(row, above, below):{form}}"


# ---- sections ---------------------------------------------------------------------------


class Table(NamedTuple):
    """Rows, and how each column shows one."""

    columns: Mapping[str, Shown]
    rows: Iterable[Any]


class Target(NamedTuple):
    """One comparison of the target and the result, by medians, and by the fastest samples."""

    what: str
    wanted: str
    measured: str
    fastest: str
    met: bool
    cause: str = ""


class Section(NamedTuple):
    """A program's results: paragraphs and tables, and its targets."""

    title: str
    parts: Sequence[Any]  # str or Table
    targets: Sequence[Target] = ()


_COMPARE = {"<=": operator.le, ">=": operator.ge, ">": operator.gt}
_WANTED = re.compile(r"(<=|>=|>) \+?([\d.]+)")


def target(
    what: str,
    wanted: str,
    got: float,
    fastest: float | str = "-",
    form: str = "{:.2f}x",
    cause: str = "",
) -> Target:
    """Return a comparison with ``wanted``, such as "<= 1.15x" or ">= 2 s", in the same unit."""
    match = _WANTED.match(wanted)
    assert match, wanted
    met = _COMPARE[match[1]](got, float(match[2]))
    shown = fastest if isinstance(fastest, str) else form.format(fastest)
    return Target(what, wanted, _told_apart(form, got, float(match[2]), met), shown, met, cause)


def _told_apart(form: str, got: float, wanted: float, met: bool) -> str:
    """Write the result with enough digits to tell a missed target from one that was met."""
    for digits in range(2, 7):
        if met or form.format(got) != form.format(wanted):
            break
        form = re.sub(r"\.\df", f".{digits + 1}f", form)
    return form.format(got)


def within(
    what: str, seconds: float, values: Samples, cause: str = "", form: str = "{:.2f} s"
) -> Target:
    """Return a comparison of the median of a few with so many seconds."""
    return target(what, f"<= {seconds} s", median(values), min(values), form, cause)


def compared(
    what: str,
    wanted: str,
    row: dict,
    above: str,
    below: str,
    cause: str = "",
    of: Callable[..., float] = ratio,
) -> Target:
    """Return a comparison of two variants: by :func:`ratio`, :func:`extra` or :func:`by_turns`."""
    got, form = of(row, above, below), "{:+.1f} us" if of is extra else "{:.2f}x"
    fastest = (extra if of is extra else ratio)(row, above, below, min)
    return target(what, wanted, got, fastest, form, cause)


def least_ahead(
    what: str,
    wanted: str,
    rows: Sequence[dict],
    name: Shown,
    of: Callable[[Samples], float] = median,
) -> Target:
    """Return the row at which ours is least ahead of gloo, by medians or by ``of``."""
    row = min(rows, key=lambda row: ratio(row, "gloo", "ours", of))
    fastest = f"{ratio(row, 'gloo', 'ours', min):.2f}x"
    return target(what, wanted, ratio(row, "gloo", "ours", of), fastest, f"{{:.2f}}x ({name(row)})")


def markdown_table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    """Return a Markdown table."""
    first, *lines = ["| " + " | ".join(row) + " |" for row in (header, *rows)]
    return [first, "|" + " --- |" * (first.count(" | ") + 1), *lines, ""]


def render(section: Section) -> list[str]:
    """Return a section's title, paragraphs and tables in Markdown."""
    lines = [f"## {section.title}", ""]
    for part in section.parts:
        if isinstance(part, Table):
            shown = [[show(row) for show in part.columns.values()] for row in part.rows]
            lines += markdown_table(part.columns, shown)
        else:
            lines += [part, ""]
    return lines


def target_table(rows: Sequence[Target]) -> list[str]:
    """Return all targets as a Markdown table, and below it those missed, each with its cause."""
    lines = markdown_table(
        ("what", "target", "by medians", "by fastest samples", "met"),
        [[*row[:4], "yes" if row.met else "**no**"] for row in rows],
    )
    missed = [
        f"- {row.what}: {row.measured}, target {row.wanted}. {_sentence(row.cause)}"
        for row in rows
        if not row.met
    ]
    return [*lines, "Missed:", "", *missed, ""] if missed else lines


def _sentence(cause: str) -> str:
    """Return a cause as a sentence."""
    cause = cause or "the cause is not known"
    return f"{cause[0].upper()}{cause[1:]}."
