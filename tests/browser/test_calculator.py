"""The calculator of lesson 06 in JupyterLab: its picture without a kernel, its sliders with one."""

from __future__ import annotations

from html import unescape

import nbformat
import pytest
from playwright.sync_api import Locator, Page, expect
from rank_by_rank.lesson_06.calculator import Setting, speed_up_figure, summary

from tests.browser.lab import Lab
from tests.lab_server import ROOT

START = Setting(
    parameters=25.6e6, batch=32, sample_seconds=0.006, latency=20e-6, bandwidth=1.25e9, ranks=64
)


def the_cell() -> nbformat.NotebookNode:
    """Return the lesson's own cell, with the output that is stored in the notebook."""
    lesson = nbformat.read(ROOT / "notebooks" / "06_when_does_it_pay.ipynb", as_version=4)
    (cell,) = [c for c in lesson.cells if c.cell_type == "code" and "calculator(" in c.source]
    return cell


def says(page: Page, setting: Setting, milliseconds: int = 60_000) -> None:
    """Wait until the calculator shows what the formulas predict, in words and as a picture."""
    words = page.locator(".jp-OutputArea-output pre").last
    expect(words).to_have_text(summary(setting), timeout=milliseconds)
    assert words.inner_text().strip() == summary(setting)  # line by line
    picture = page.locator(".jp-OutputArea-output img").last
    expect(picture).to_have_attribute("alt", unescape(speed_up_figure(setting).alt))
    expect(picture).to_have_js_property("complete", True)
    assert picture.evaluate("e => e.naturalWidth") > 100


def sliders(page: Page) -> Locator:
    """Return the calculator's sliders."""
    return page.locator(".widget-slider, .jupyter-widget-slider")


def slide(page: Page, label: str, to: float) -> None:
    """Drag a slider's handle to a place between 0 (left end) and 1 (right end)."""
    slider = sliders(page).filter(has_text=label)
    slider.scroll_into_view_if_needed()
    handle, bar = (slider.locator(f".noUi-{name}").bounding_box() for name in ("handle", "base"))
    assert handle
    assert bar
    x, y = handle["x"] + handle["width"] / 2, handle["y"] + handle["height"] / 2
    target = bar["x"] + to * bar["width"] + (20 if to == 1 else -20 if to == 0 else 0)
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(target, y, steps=2)
    page.mouse.up()


@pytest.mark.timeout(900)
def test_sliders_update_the_formulas_results(notebooks) -> None:
    page = notebooks.open("calculator.ipynb", [the_cell()])
    # Stored in the notebook: a still picture and its words, for whoever has no kernel.
    says(page, START)
    assert sliders(page).count() == 0

    lab = Lab(page)
    lab.kernel_is_ready()
    lab.run_all(120)
    expect(sliders(page)).to_have_count(6)
    says(page, START)
    slide(page, "latency", 1)
    slow = {**START.__dict__, "latency": 0.1}
    says(page, Setting(**slow))
    slide(page, "ranks", 1)
    says(page, Setting(**slow | {"ranks": 4096}))
    page.keyboard.press("ArrowLeft")  # the handle has the focus
    says(page, Setting(**slow | {"ranks": 2048}))

    # A new kernel knows nothing of the sliders, until the cell runs again.
    lab.menu("Kernel", "runmenu:restart-and-run-all")
    lab.accepts()
    says(page, START, 120_000)
    slide(page, "bandwidth", 0)
    says(page, Setting(**START.__dict__ | {"bandwidth": 1e5}))
    assert lab.cells_with_errors() == []
