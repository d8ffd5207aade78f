"""The README's film of lesson 00: a real kernel runs its cells in JupyterLab, in a browser.

Usage: ``.venv/bin/python -m docs.film_lesson_00`` writes ``docs/lesson_00.gif``, and
``docs/lesson_00.png``, its picture of the hang report, for readers who prefer a still. It needs
Chromium. Look at the frames (``--frames FOLDER`` keeps them) before you commit the film.
"""

from __future__ import annotations

import argparse
import io
import tempfile
from pathlib import Path
from typing import NamedTuple

import nbformat
from matplotlib import font_manager
from PIL import Image, ImageDraw, ImageFont

from course_lib.teaching.workspace import make_workspace
from tests.browser.chromium import chromium
from tests.browser.lab import Lab
from tests.browser.notebook_server import notebook_server
from tests.browser.test_learner import Learner

LESSON = "00_start_here.ipynb"
FILM, STILL = (Path(__file__).with_name(f"lesson_00.{kind}") for kind in ("gif", "png"))
WIDTH, HEIGHT, CAPTION = 900, 470, 34  # pixels; the caption is below the page
COLOURS = 64
INK, PAPER = "#1a1a1a", "#e8eef4"


class Scene(NamedTuple):
    """A cell of the lesson, identified by one of its lines, and the text its output must show."""

    caption: str
    cell: str
    shows: str
    seconds: float  # how long its output is shown
    still: bool = False


SCENES = (
    Scene("Four MPI processes, started from a notebook", "start_cluster(n=4)", "4 ranks ready", 3),
    Scene("%%px: one cell, run by all of them", 'print(f"I am rank', "I am rank 3 of 4", 2.5),
    Scene("They talk: a sum over all ranks", "total = comm.allreduce(10 * rank)", "60", 2.5),
    Scene(
        "Rank 3 does not take part. Who waits, where, and why?",
        "if rank != 3:",
        "finished",
        6,
        still=True,
    ),
    Scene("The ranks are free again, with their variables", "ranks took part", "took part", 3),
    Scene(
        "They train a network together; all four copies end with the same weights",
        "weights_of_rank_0 =",
        "same weights as rank 0: True",
        3,
    ),
    Scene("Test accuracy, of four ranks and of one process", "Test accuracy:", "four ranks", 4),
)
BEFORE, WHILE = 1.1, 0.9  # seconds


def only_in_sight(learner: Learner, cell: int) -> None:
    """Bring a cell to the top of the page."""
    learner.cell(cell).evaluate("cell => cell.scrollIntoView()")


def picture(learner: Learner, caption: str) -> Image.Image:
    """Return a picture of the visible notebook, with a line below it."""
    place = learner.page.locator(".jp-Notebook").bounding_box()
    assert place
    shot = learner.page.screenshot(
        clip={"x": place["x"], "y": place["y"], "width": WIDTH, "height": HEIGHT}, caret="initial"
    )
    whole = Image.new("RGB", (WIDTH, HEIGHT + CAPTION), PAPER)
    whole.paste(Image.open(io.BytesIO(shot)), (0, 0))
    font = ImageFont.truetype(font_manager.findfont("DejaVu Sans"), 17)
    ImageDraw.Draw(whole).text((14, HEIGHT + 6), caption, fill=INK, font=font)
    return whole


def play(learner: Learner, scene: Scene) -> list[tuple[Image.Image, float]]:
    """Run a scene's cell; return pictures of before, meanwhile and afterwards, with seconds."""
    cell = learner.find(scene.cell)
    only_in_sight(learner, cell)
    shots = [(picture(learner, scene.caption), BEFORE)]
    learner.start(cell)
    only_in_sight(learner, cell)
    shots.append((picture(learner, scene.caption), WHILE))
    learner.ends(cell, scene.shows, 120)
    only_in_sight(learner, cell)
    return [*shots, (picture(learner, scene.caption), scene.seconds)]


def film(folder: Path) -> tuple[list[tuple[Image.Image, float]], Image.Image]:
    """Run the lesson from its first cell to the last scene; return all pictures, and the still."""
    make_workspace(workspace=folder / "copies")
    cells = nbformat.read(folder / "copies" / LESSON, as_version=4).cells
    shots, still, last = [], None, 0
    with chromium() as browser, notebook_server(browser, folder / "server") as server:
        page = server.open(LESSON, cells)
        page.set_viewport_size({"width": WIDTH + 330, "height": HEIGHT + 130})
        learner = Learner(server, cells, LESSON)
        Lab(learner.page).kernel_is_ready()
        for scene in SCENES:
            now = learner.find(scene.cell)
            for between in range(last, now):
                if cells[between].cell_type == "code":
                    learner.run(between, seconds=120)
            last = now + 1
            taken = play(learner, scene)
            shots += taken
            if scene.still:
                still = taken[-1][0]
        assert server.uncaught.so_far() == []
    assert still is not None
    return shots, still


def write(shots: list[tuple[Image.Image, float]], still: Image.Image) -> None:
    """Write film and still."""
    images = [image.quantize(COLOURS, dither=Image.Dither.NONE) for image, _ in shots]
    milliseconds = [round(1000 * seconds) for _, seconds in shots]
    images[0].save(
        FILM, save_all=True, append_images=images[1:], duration=milliseconds, loop=0, optimize=True
    )
    still.quantize(COLOURS, dither=Image.Dither.NONE).save(STILL, optimize=True)


def main() -> None:
    """Film the lesson."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--frames", type=Path, help="a folder to keep each frame in")
    frames = parser.parse_args().frames
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "server").mkdir()
        shots, still = film(Path(folder))
    write(shots, still)
    if frames:
        frames.mkdir(parents=True, exist_ok=True)
        for number, (image, _) in enumerate(shots):
            image.save(frames / f"{number:02}.png")


if __name__ == "__main__":
    main()
