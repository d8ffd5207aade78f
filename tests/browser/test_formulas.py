"""Every formula of every lesson is typeset by JupyterLab; none is shown as its source."""

from __future__ import annotations

import contextlib

import nbformat
import pytest
from playwright.sync_api import TimeoutError as NotInTime
from playwright.sync_api import expect

from tests.lab_server import ROOT

# A mistake of syntax is an element of its own; the name of an unknown macro is printed in red.
ERRORS = (
    "[...document.querySelectorAll('mjx-container')]"
    ".filter(e => e.querySelector('mjx-merror, [style*=\"color: red\"]'))"
    ".map(e => e.closest('.jp-RenderedMarkdown').textContent)"
)
# Text with a dollar or a macro outside of code and formulas: a formula that was not recognised.
LEFT_OVER = (
    "[...document.querySelectorAll('.jp-RenderedMarkdown :is(p, li, td, th, h1, h2, h3)')]"
    ".filter(e => { const copy = e.cloneNode(true);"
    "copy.querySelectorAll('code, mjx-container').forEach(each => each.remove());"
    "return /[$]|\\\\[A-Za-z]+/.test(copy.textContent); }).map(e => e.textContent)"
)


def cells_with_formulas() -> list[str]:
    return [
        f"# {path.name}\n\n{cell.source}"
        for path in sorted((ROOT / "notebooks").glob("*.ipynb"))
        for cell in nbformat.read(path, as_version=4).cells
        if cell.cell_type == "markdown" and "$" in cell.source
    ]


@pytest.mark.timeout(600)
def test_every_formula_is_typeset(notebooks) -> None:
    cells = cells_with_formulas()
    assert len(cells) > 40
    # The last cells show what a broken formula looks like.
    broken = [
        "broken: $\\nosuchmacro{1}$",
        "broken: $\\left( 1$",
        "broken: 1 $ of text",
        "$e = mc^2$",
    ]
    every = [nbformat.v4.new_markdown_cell(source) for source in [*cells, *broken]]
    page = notebooks.open("formulas.ipynb", every)
    rendered = page.locator(".jp-MarkdownCell .jp-RenderedMarkdown")
    expect(rendered).to_have_count(len(every), timeout=120_000)
    # Cells are typeset in any order. If this never comes, what is there instead is told below.
    with contextlib.suppress(NotInTime):
        page.wait_for_function(f"{ERRORS}.length === 2 && {LEFT_OVER}.length === 1")
    errors, left_over = page.evaluate(ERRORS), page.evaluate(LEFT_OVER)
    assert page.locator("mjx-container").count() > 200
    assert [text for text in [*errors, *left_over] if not text.startswith("broken: ")] == []
    assert (len(errors), len(left_over)) == (2, 1)
