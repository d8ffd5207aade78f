"""The calculator of lesson 06 in JupyterLab: its picture without a kernel, its sliders with one."""

from __future__ import annotations

from html import unescape

import nbformat
import pytest

from notebooks.lesson_06.calculator import Setting, speed_up_figure, summary
from tests.browser.chromium import Lab, Page
from tests.lab_server import ROOT

START = Setting(
    parameters=25.6e6, batch=32, sample_seconds=0.006, latency=20e-6, bandwidth=1.25e9, ranks=64
)
WORDS = "[...document.querySelectorAll('.jp-OutputArea-output pre')].at(-1)?.innerText"
HANDLES = "[...document.querySelectorAll('.widget-slider, .jupyter-widget-slider')]"


def the_cell() -> nbformat.NotebookNode:
    """Return the lesson's own cell, with the output that is stored in the notebook."""
    lesson = nbformat.read(ROOT / "notebooks" / "06_when_does_it_pay.ipynb", as_version=4)
    (cell,) = [c for c in lesson.cells if c.cell_type == "code" and "calculator(" in c.source]
    return cell


def says(page: Page, setting: Setting, seconds: float) -> None:
    """Wait until the calculator shows what the formulas predict, in words and as a picture."""
    page.wait_for(f"{WORDS}?.trim() === {summary(setting)!r}", seconds, summary(setting))
    picture = "[...document.querySelectorAll('.jp-OutputArea-output img')].at(-1)"
    page.wait_for(f"{picture}?.complete && {picture}.naturalWidth > 100", 60, "the picture")
    assert page.evaluate(f"{picture}.alt") == unescape(speed_up_figure(setting).alt)


def slide(page: Page, label: str, to: float) -> None:
    """Drag a slider's handle to a place between 0 (left end) and 1 (right end)."""
    slider = f"{HANDLES}.find(e => e.innerText.includes('{label}'))"
    page.wait_for(f"{slider} !== undefined", 30, label)
    page.evaluate(f"{slider}.scrollIntoView({{block: 'center'}})")
    handle, bar = (f"{slider}.querySelector('.noUi-{n}')" for n in ("handle", "base"))
    middle = "(b => [b.x + b.width / 2, b.y + b.height / 2])"
    x, y = page.evaluate(f"{middle}({handle}.getBoundingClientRect())")
    left, width = page.evaluate(f"(b => [b.left, b.width])({bar}.getBoundingClientRect())")
    target = left + to * width + (20 if to == 1 else -20 if to == 0 else 0)
    for kind, at in (("mouseMoved", x), ("mousePressed", x), ("mouseMoved", (x + target) / 2),
                     ("mouseMoved", target), ("mouseReleased", target)):  # fmt: skip
        page.call(
            "Input.dispatchMouseEvent", type=kind, x=at, y=y,
            button="none" if kind == "mouseMoved" and at == x else "left", clickCount=1,
        )  # fmt: skip


@pytest.mark.timeout(900)
def test_sliders_move_what_the_formulas_say(notebooks) -> None:
    page = notebooks.open("calculator.ipynb", [the_cell()])
    # Stored in the notebook: a still picture and its words, for whoever has no kernel.
    assert page.evaluate(f"{HANDLES}.length") == 0
    says(page, START, 60)

    lab = Lab(page)
    lab.kernel_is_ready()
    lab.run_all(120)
    page.wait_for(f"{HANDLES}.length === 6", 60, "six sliders")
    says(page, START, 60)
    slide(page, "latency", 1)
    slow = {**START.__dict__, "latency": 0.1}
    says(page, Setting(**slow), 60)
    slide(page, "ranks", 1)
    says(page, Setting(**slow | {"ranks": 4096}), 60)
    for kind in ("keyDown", "keyUp"):  # the handle has the focus
        left = {"key": "ArrowLeft", "code": "ArrowLeft", "windowsVirtualKeyCode": 37}
        page.call("Input.dispatchKeyEvent", type=kind, **left)
    says(page, Setting(**slow | {"ranks": 2048}), 60)

    # A new kernel knows nothing of the sliders, until the cell runs again.
    lab.menu("Kernel", "runmenu:restart-and-run-all")
    page.click("document.querySelector('.jp-Dialog .jp-mod-accept')")
    says(page, START, 120)
    slide(page, "bandwidth", 0)
    says(page, Setting(**START.__dict__ | {"bandwidth": 1e5}), 60)
    assert lab.cells_with_errors() == []
