"""Every term that a lesson introduces is in the glossary, with the lesson that teaches it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from course_lib.teaching import lessons

GLOSSARY = lessons.NOTEBOOKS / "glossary.md"
ENTRY = re.compile(r"^- \*\*(?P<term>.+?)\*\*: (?P<text>.+) \(lesson (?P<lesson>\d\d[a-z]?)\)$")
MOST_WORDS = 3  # of a term; what is longer is a sentence with stress on it

# In italics or bold for the stress that lies on them, and no terms.
STRESSED = """
add up, added, adds, after, all, all ranks together, always, and, answering, any, anybody, asked
for, at best, before, better, between, both, busiest, chunk r, computes, constant, count steps,
deviations, differ, different, do, each, equal, every, exactly, faster, fastest, finished, first,
fits, forward, four, from any source, global, gradual, grows, hello, here, in all, inputs, is,
its, its share, knowing, largest, last, length, linear, list, local, long, longer, maintenance
mode, masks, match one process, may, mean, mean of means, means, memory, middle, middle of
backward, modes, noise, none, not, not defined, nothing, now and then, number, of every rank, on
average, one, order, other, over the batch, pads, parallel, parameters, prove, proven, random
numbers, ratio, ready, receive, receiver provides, receives, relative, replicas equal, requires,
restart, result, returns, rounds, same, seconds, send, sends, several, shorter, shown, simulation,
slower, slowest, some, square root, square-root rule, start, sum, sum of means, sum of sums,
synchronises, telescopes, the, the same, their, this, two, up, updates, wait for it, waits,
warms up, what, what not how, where, who, whole, whose, with overlap, without scaling, words, world,
yields
"""
# What lessons mark numbers and paragraphs with (tools.lint_lessons asks for some of them).
LABELS = """
assumed, bytes, diagnosis, failures, fix, lines, long arrays, measured, measured here, mpi
library, nodes, predict, predicted, predicts, prerequisites, published, row 0, row 1, scaling,
shift + enter, short arrays, symptom, the batch, the ring's latency
"""


def plain(phrase: str) -> str:
    """A phrase without plural, capitals and punctuation, so that *Buckets* is the term bucket."""
    words = re.sub(r"[^\w\s'/+-]", "", phrase).casefold().split()
    return " ".join(re.sub(r"(?<=ch)es$|(?<=[^s])s$", "", word) for word in words)


def listed(text: str) -> set[str]:
    return {plain(phrase) for phrase in text.replace("\n", " ").split(",")}


def entries() -> list[re.Match]:
    lines = [line for line in GLOSSARY.read_text().splitlines() if line.startswith("- ")]
    found = [ENTRY.match(line) for line in lines]
    assert all(found), [line for line, match in zip(lines, found, strict=True) if not match]
    return found


def texts(source: Path) -> list[str]:
    """A lesson's texts: no code, formulas or references."""
    found = []
    for cell in lessons.read_source(source).cells:
        if cell.cell_type == "markdown":
            text = re.split(r"(?im)^(?:#+ |\*\*).*further reading", cell.source)[0]
            text = re.sub(r"(?s)```.*?```|\$\$.*?\$\$", " ", text)
            found.append(re.sub(r"`[^`\n]*`|\$[^$\n]*\$", "`", text))
    return found


def stressed(text: str) -> set[str]:
    """The phrases in italics or bold that may be terms."""
    bold = re.findall(r"\*\*([^*\n]+)\*\*", text)
    italics = re.findall(r"(?<!\*)\*(?![\s*])([^*\n]+?)(?<!\s)\*(?!\*)", text.replace("**", ""))
    labels = {phrase for phrase in bold if phrase.endswith((".", ":", "?"))}
    return {
        phrase
        for phrase in {*bold, *italics} - labels
        if len(phrase.split()) <= MOST_WORDS and re.search(r"[a-zA-Z]{2}", phrase)
    }


def missing(text: str) -> set[str]:
    known = {plain(entry["term"]) for entry in entries()} | listed(STRESSED) | listed(LABELS)
    return {phrase for phrase in stressed(text) if plain(phrase) not in known}


@pytest.mark.parametrize("source", lessons.sources(), ids=lambda path: path.stem)
def test_terms_of_a_lesson_are_in_the_glossary(source: Path) -> None:
    lacking = {phrase for text in texts(source) for phrase in missing(text)}
    assert not lacking, (
        f"{source.name} stresses {sorted(lacking)}: give a term an entry in notebooks/glossary.md, "
        "add a word that is only stressed to STRESSED in this test"
    )


def test_missing_glossary_term_is_found() -> None:
    text = "A *quorum* of ranks, also **a majority**, has an *all-reduce* of its *own kind of sum*."
    assert missing(text) == {"quorum", "a majority"}


def test_entries_are_sorted_short_and_unique() -> None:
    terms = [entry["term"] for entry in entries()]
    assert terms == sorted(terms, key=str.casefold)
    assert len({plain(term) for term in terms}) == len(terms)
    for entry in entries():
        assert len(re.findall(r"[.!?](?:\s|$)", entry["text"])) <= 2, entry["term"]


def test_each_entry_names_a_lesson_that_uses_the_term() -> None:
    by_number = {lessons.number(path): path.read_text().casefold() for path in lessons.sources()}
    for entry in entries():
        stem = entry["term"].casefold()[:-1]
        assert stem in by_number[entry["lesson"]], f"{entry['term']}: lesson {entry['lesson']}"


def test_lesson_00_and_the_readme_link_to_it(root: Path) -> None:
    start = next(path for path in lessons.sources() if path.name.startswith("00_"))
    assert "(../notebooks/glossary.md)" in start.read_text()  # from a learner's copy as well
    assert "(notebooks/glossary.md)" in (root / "README.md").read_text()
