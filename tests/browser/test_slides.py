"""Every deck is built from its source, needs no network, and no slide overflows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser.axe import violations
from tests.browser.chromium import Uncaught
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

# For each text on a slide whose colour differs too little from what is behind it: which, and by
# what ratio (WCAG 2.2, success criterion 1.4.3; https://www.w3.org/TR/WCAG22/#dfn-contrast-ratio).
# axe-core asks for 3:1 where text is large; from the last row no text is.
FAINT = """
(() => {
  const linear = c => c <= 10.31475 ? c / 3294.6 : ((c / 255 + 0.055) / 1.055) ** 2.4;
  const luminance = ([r, g, b]) =>
    0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  const parts = colour => {
    if (!/^rgba?\\(/.test(colour)) throw new Error(`a colour of another kind: ${colour}`);
    const [r, g, b, alpha = 1] = colour.match(/[\\d.]+/g).map(Number);
    return [r, g, b, alpha];
  };
  const over = (top, below) => [
    ...[0, 1, 2].map(i => top[i] * top[3] + below[i] * (1 - top[3])), 1];
  const behind = e => {
    const own = parts(getComputedStyle(e).backgroundColor);
    if (own[3] === 1) return own;
    return over(own, e.parentElement ? behind(e.parentElement) : [255, 255, 255, 1]);
  };
  const ratio = (e, style) => {
    const paper = behind(e);
    const [dark, light] = [luminance(over(parts(style.color), paper)), luminance(paper)].sort(
      (a, b) => a - b);
    return (light + 0.05) / (dark + 0.05);
  };
  return [...document.querySelectorAll('section')].flatMap((section, i) => {
    const found = [];
    const judge = (e, name, style = getComputedStyle(e)) => {
      const found_ratio = ratio(e, style).toFixed(2);
      if (found_ratio < 4.5) found.push(`slide ${i + 1}: ${name} ${found_ratio}`);
    };
    for (const e of section.querySelectorAll('*')) {
      const texts = [...e.childNodes].filter(n => n.nodeType === 3);
      const words = texts.map(n => n.data.trim()).join('');
      if (words || e.tagName === 'MJX-CONTAINER') judge(e, `${e.tagName} ${words.slice(0, 40)}`);
    }
    if (section.dataset.marpitPagination) {
      judge(section, 'the number of the slide', getComputedStyle(section, '::after'));
    }
    return found;
  });
})()
"""


def opened(page: Page, deck: Path) -> int:
    """Open a built deck with all its slides shown; return how many they are."""
    page.goto(deck.with_suffix(".html").as_uri())
    slides = page.locator("section")
    expect(slides.first).to_be_attached()
    # Slides that are not the present one are there, but not laid out.
    style = "svg[data-marpit-svg] { display: block !important; visibility: visible !important }"
    page.add_style_tag(content=style)
    return slides.count()


def slides_of(deck: Path) -> list[str]:
    """Return the sources of a deck's slides, without what stands above the first."""
    return re.split(r"^---$", deck.read_text(encoding="utf-8"), flags=re.M)[2:]


@pytest.mark.parametrize("deck", build_slides.decks(), ids=lambda deck: deck.stem)
def test_deck_is_up_to_date_and_slides_fit(page: Page, deck: Path) -> None:
    built = deck.with_suffix(".html")
    stamp = build_slides.stamp_of(built)
    assert stamp == build_slides.fingerprint(deck), "its source has changed: make slides"
    uncaught = Uncaught(page)
    assert opened(page, deck) == len(slides_of(deck))
    assert page.evaluate(OVERFLOWS) == []
    assert page.evaluate("performance.getEntriesByType('resource').map(e => e.name)") == []
    assert uncaught.so_far() == []


@pytest.mark.parametrize("deck", build_slides.decks(), ids=lambda deck: deck.stem)
def test_deck_refers_to_existing_figures_notes_and_lessons(deck: Path) -> None:
    build_slides.with_pictures(deck)  # raises where a lesson has no such figure
    for number, slide in enumerate(slides_of(deck), 1):
        notes = [text for text in re.findall(r"<!--(.*?)-->", slide, re.S) if "_class" not in text]
        spoken = [text for text in notes if "_paginate" not in text]
        assert spoken, f"slide {number} has no speaker notes"
        assert re.search(r"\d+ min|minute|After the break", spoken[0]), f"slide {number}: no timing"


@pytest.mark.parametrize("deck", build_slides.decks(), ids=lambda deck: deck.stem)
def test_deck_is_accessible(page: Page, deck: Path) -> None:
    opened(page, deck)
    assert page.evaluate(FAINT) == []
    # What isn't the present slide is hidden from screen readers, and so from axe-core.
    page.evaluate(
        "document.querySelectorAll('svg[aria-hidden]').forEach("
        "e => e.removeAttribute('aria-hidden'))"
    )
    page.emulate_media(media="print")  # one slide below the other
    assert "\n".join(map(str, violations(page))) == ""


def test_low_contrast_text_is_reported(page: Page) -> None:
    opened(page, build_slides.decks()[0])
    page.evaluate("void (document.querySelectorAll('section p')[1].style.color = '#888')")
    found = page.evaluate(FAINT)
    assert len(found) == 1
    assert re.match(r"slide \d+: P .* 3\.\d\d", found[0])


def test_slides_work_from_keyboard(page: Page) -> None:
    deck = build_slides.decks()[0]
    address, last = deck.with_suffix(".html").as_uri(), len(slides_of(deck))
    page.goto(address)
    expect(page.locator(".bespoke-marp-active").first).to_be_attached()
    for key, number in {
        "ArrowRight": 2, "PageDown": 3, " ": 4, "ArrowLeft": 3, "PageUp": 2, "End": last, "Home": 1,
    }.items():  # fmt: skip
        page.keyboard.press(key)
        page.wait_for_function(f"(location.hash || '#1') === '#{number}'", timeout=20_000)
    page.keyboard.press("f")
    page.wait_for_function("document.fullscreenElement !== null", timeout=20_000)
    page.keyboard.press("f")
    page.wait_for_function("document.fullscreenElement === null", timeout=20_000)

    assert page.context.pages == [page]
    with page.expect_popup(timeout=20_000) as speakers_view:
        page.keyboard.press("p")
    speakers_view.value.wait_for_url("**view=presenter**", timeout=20_000)
    page.goto(f"{address}?view=presenter#3")
    notes = page.locator(".bespoke-marp-note.active")
    expect(notes).to_contain_text("Nearly every later decision", timeout=20_000)


def test_overflowing_content_is_reported(page: Page) -> None:
    opened(page, build_slides.decks()[0])
    assert page.evaluate(OVERFLOWS) == []
    page.evaluate(
        "(() => { const slide = document.querySelectorAll('section')[3];"
        "for (let i = 0; i < 12; i++) slide.append(slide.querySelector('p').cloneNode(true)); })()"
    )
    found = page.evaluate(OVERFLOWS)
    assert found
    assert all("slide 4: P" in each for each in found)


def test_figure_must_match_one_figure_of_lesson() -> None:
    assert build_slides.figure("03/ring all-reduce on 4 ranks").alt.startswith("ring all-reduce")
    with pytest.raises(build_slides.SlidesError, match="has no figure with 'nowhere'"):
        build_slides.figure("03/nowhere")
    with pytest.raises(build_slides.SlidesError, match="has 2 figures with"):
        build_slides.figure("02/scatter on 4 ranks")
    with pytest.raises(build_slides.SlidesError, match="no lesson '77'"):
        build_slides.figure("77/ring")


def test_each_formula_is_labelled_with_its_tex() -> None:
    text = "So $x_1$ in `$code$`:\n\n$$\ny\n$$\n\n```\n$shell\n```\n\n<!-- $5 or $6 -->\n"
    tex = build_slides.formulas(text)
    assert tex == ["x_1", "y"]
    formula = '<mjx-container class="MathJax"><svg role="img" focusable="false"></svg>'
    page = f'<div class="bespoke-marp-osc"></div><div id=":$p">{2 * formula}</div>'
    named = build_slides.for_screen_readers(page, tex)
    assert re.findall(r'role="img" aria-label="(\w+)"><svg aria-hidden', named) == tex
    with pytest.raises(build_slides.SlidesError, match="2 formulas on the page, 1 in the source"):
        build_slides.for_screen_readers(page, tex[:1])
