"""The README's picture of an exercise: a wrong answer in lesson 01, and the output of its check.

Usage: ``.venv/bin/python -m docs.picture_exercise`` writes ``docs/exercise.png``. It needs
Chromium. A real kernel runs the cells in JupyterLab; look at the picture before you commit it.
"""

from __future__ import annotations

import io
import tempfile
from pathlib import Path

from PIL import Image

from tests.browser.chromium import chromium
from tests.browser.notebook_server import notebook_server
from tests.browser.test_learner import ID, WRONG, Learner, opens

TARGET = Path(__file__).with_name("exercise.png")
LESSON = "01_send_and_receive.ipynb"
WIDTH, HEIGHT = 882, 1000  # pixels; the height has to hold task, answer and verdict
WRAP = ".jp-OutputArea-output pre { word-break: normal !important; }"  # not inside a word
VERDICT = "(everyone-receives-first)"
COLOURS = 64


def photograph(learner: Learner, first: int, last: int) -> Image.Image:
    """Return a picture of the cells from ``first`` to ``last``."""
    learner.cell(first).evaluate("cell => cell.scrollIntoView()")
    notebook = learner.page.locator(".jp-Notebook").bounding_box()
    top, bottom = (learner.cell(number).bounding_box() for number in (first, last))
    assert notebook
    assert top
    assert bottom
    height = bottom["y"] + bottom["height"] - top["y"]
    shot = learner.page.screenshot(
        clip={"x": notebook["x"], "y": top["y"], "width": WIDTH, "height": height}
    )
    return Image.open(io.BytesIO(shot))


def main() -> None:
    """Answer the exercise wrongly, run its check, and keep the picture."""
    with (
        tempfile.TemporaryDirectory() as folder,
        chromium() as browser,
        notebook_server(browser, Path(folder)) as server,
    ):
        learner = opens(server, Path(folder), LESSON)
        learner.page.set_viewport_size({"width": WIDTH + 348, "height": HEIGHT})
        learner.page.add_style_tag(content=WRAP)
        learner.run(learner.find("import start_cluster"))
        learner.run(learner.find("start_cluster(n="), "4 ranks ready", 120)
        answer, check = learner.find("def ring_pass"), learner.find(f'check("{ID}"')
        learner.try_out(answer, WRONG.rstrip())
        learner.run(check, VERDICT)
        picture = photograph(learner, answer - 1, check)
        assert learner.errors() == ""
    picture.quantize(COLOURS, dither=Image.Dither.NONE).save(TARGET, optimize=True)


if __name__ == "__main__":
    main()
