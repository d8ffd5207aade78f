"""What a learner waits for before the first cell, and for all of them."""

from __future__ import annotations

from statistics import median

from benchmarks.report import Section, Target, seconds, table

WARM_SECONDS = 3
FRESH_SECONDS = 60
LESSONS_MINUTES = 7


def section(measured: dict) -> Section:
    """Return table and target of what ``benchmarks.lab`` measured."""
    warm = measured["warm"]
    got = median(warm)
    lines = [
        "## make lab",
        "",
        f"From the call to the lesson's page, with everything installed: {seconds(warm)} s, median "
        f"(smallest to largest) of {len(warm)}.",
        "",
    ]
    target = Target(
        "make lab, warm start",
        f"<= {WARM_SECONDS} s",
        f"{got:.1f} s",
        f"{min(warm):.1f} s",
        got <= WARM_SECONDS,
        "JupyterLab's own start is most of it",
    )
    return Section(lines, [target])


def rare_section(measured: dict | None) -> Section:
    """Return table and targets of what ``benchmarks.rare`` last measured, if it ever did."""
    title = ["## What is measured on demand", ""]
    if measured is None:
        missing = "Never measured here: `make bench ARGS=--all` does (many minutes)."
        names = ("all lessons executed", "make lab on a fresh clone")
        wanted = (f"<= {LESSONS_MINUTES} min", f"<= {FRESH_SECONDS} s")
        targets = [
            Target(what, limit, "-", "-", False, "not measured")
            for what, limit in zip(names, wanted, strict=True)
        ]
        return Section([*title, missing, ""], targets)
    lessons, fresh = measured["lessons"], measured["fresh"]
    minutes = sum(lessons.values()) / 60
    lines = [
        *title,
        f"Measured once, on {measured['date']}, by `make bench ARGS=--all`. Installing a fresh "
        "clone includes fetching the packages, from pip's cache where it has them.",
        "",
        *table(
            ["what", "s"],
            [
                *([name, f"{value:.0f}"] for name, value in lessons.items()),
                ["all lessons", f"{60 * minutes:.0f}"],
                ["`make lab` on a fresh clone, to the lesson's page", f"{fresh:.0f}"],
            ],
        ),
    ]
    longest = max(lessons, key=lessons.get)
    return Section(
        lines,
        [
            Target(
                f"all {len(lessons)} lessons executed",
                f"<= {LESSONS_MINUTES} min",
                f"{minutes:.1f} min",
                "-",
                minutes <= LESSONS_MINUTES,
                f"the longest, {longest}, takes {lessons[longest]:.0f} s",
            ),
            Target(
                "make lab on a fresh clone",
                f"<= {FRESH_SECONDS} s",
                f"{fresh:.0f} s",
                "-",
                fresh <= FRESH_SECONDS,
                "pip's fetching and unpacking of torch is most of it",
            ),
        ],
    )
