"""Every deck is built from its source, needs no network, and no slide overflows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.browser.chromium import Page, chromium
from tools import build_slides

# For each slide: what is wrong with it. A slide is a <section> of 1280 by 720 CSS pixels; its
# last 40 are the footer's.
OVERFLOWS = """
[...document.querySelectorAll('section')].flatMap((section, i) => {
    const {left, top, width} = section.getBoundingClientRect();
    const scale = width / 1280, found = [];
    for (const e of section.querySelectorAll(
        'p, li, pre, table, img, h1, h2, mjx-container, blockquote')) {
      if (e.closest('footer, header')) continue;
      const box = e.getBoundingClientRect();
      const name = `slide ${i + 1}: ${e.tagName} ${(e.textContent || e.alt || '').slice(0, 40)}`;
      if ((box.bottom - top) / scale > 682) found.push(`${name} ends below the slide`);
      if ((box.right - left) / scale > 1272) found.push(`${name} is too wide`);
      if (e.scrollWidth > e.clientWidth + 1 && e.tagName === 'PRE') found.push(`${name} is cut`);
      if (e.tagName === 'IMG' && (!e.naturalWidth || !e.alt)) found.push(`${name} is not shown`);
    }
    return found;
  })
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory):
    with chromium(tmp_path_factory.mktemp("profile")) as page:
        yield page


def opened(page: Page, deck: Path) -> int:
    """Open a built deck with all its slides shown; return how many they are."""
    page.open(deck.with_suffix(".html").as_uri())
    page.wait_for("document.readyState === 'complete'", 60)
    page.wait_for("document.querySelectorAll('section').length", 60)
    # Slides that are not the present one are there, but not laid out.
    style = "svg[data-marpit-svg] { display: block !important; visibility: visible !important }"
    page.evaluate(
        "(() => { const s = document.createElement('style');"
        f"s.textContent = '{style}'; document.head.append(s); }})()"
    )
    return page.evaluate("document.querySelectorAll('section').length")


def slides_of(deck: Path) -> list[str]:
    """Return the sources of a deck's slides, without what stands above the first."""
    return re.split(r"^---$", deck.read_text(encoding="utf-8"), flags=re.M)[2:]


@pytest.mark.parametrize("deck", build_slides.decks(), ids=lambda deck: deck.stem)
def test_a_deck_is_built_and_fits(page: Page, deck: Path) -> None:
    built = deck.with_suffix(".html")
    stamp = build_slides.stamp_of(built)
    assert stamp == build_slides.fingerprint(deck), "its source has changed: make slides"
    assert opened(page, deck) == len(slides_of(deck))
    assert page.evaluate(OVERFLOWS) == []
    assert page.evaluate("performance.getEntriesByType('resource').map(e => e.name)") == []
    assert not page.errors


@pytest.mark.parametrize("deck", build_slides.decks(), ids=lambda deck: deck.stem)
def test_a_deck_has_figures_notes_and_lessons_that_exist(deck: Path) -> None:
    build_slides.with_pictures(deck)  # raises where a lesson has no such figure
    for number, slide in enumerate(slides_of(deck), 1):
        notes = [text for text in re.findall(r"<!--(.*?)-->", slide, re.S) if "_class" not in text]
        spoken = [text for text in notes if "_paginate" not in text]
        assert spoken, f"slide {number} has no speaker notes"
        assert re.search(r"\d+ min|minute|After the pause", spoken[0]), f"slide {number}: no timing"


def test_what_does_not_fit_is_found(page: Page) -> None:
    opened(page, build_slides.decks()[0])
    assert page.evaluate(OVERFLOWS) == []
    page.evaluate(
        "(() => { const slide = document.querySelectorAll('section')[3];"
        "for (let i = 0; i < 12; i++) slide.append(slide.querySelector('p').cloneNode(true)); })()"
    )
    found = page.evaluate(OVERFLOWS)
    assert found
    assert all("slide 4: P" in each for each in found)


def test_a_figure_is_one_of_its_lesson() -> None:
    assert build_slides.figure("03/ring all-reduce on 4 ranks").alt.startswith("ring all-reduce")
    with pytest.raises(build_slides.SlidesError, match="has no figure with 'nowhere'"):
        build_slides.figure("03/nowhere")
    with pytest.raises(build_slides.SlidesError, match="has 2 figures with"):
        build_slides.figure("02/scatter on 4 ranks")
    with pytest.raises(build_slides.SlidesError, match="no lesson '77'"):
        build_slides.figure("77/ring")
