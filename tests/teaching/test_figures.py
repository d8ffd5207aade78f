"""The figures say what is true, read without colour, and are the same in each run."""

import base64
import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np
import pytest
from torch_mpi4py import launch

from course_lib.teaching import figures
from course_lib.teaching.figures.palette import PAPER, RANK_COLOURS, _luminance, text_on

COLLECTIVES = ["broadcast", "scatter", "gather", "reduce", "all_gather"]
COLLECTIVES += ["reduce_scatter", "all_to_all", "all_reduce"]
SVG = "{http://www.w3.org/2000/svg}"


def every_figure():
    """One of each kind, by name."""
    x = [4.0 * 4**i for i in range(10)]
    run = {"loss": [2.0, 1.0, 0.5], "accuracy": [0.2, 0.7, 0.9]}
    drawn = {name: figures.collective(name) for name in [*COLLECTIVES, "barrier"]}
    drawn["eight ranks"] = figures.collective("all_to_all", 8)
    drawn["messages"] = figures.point_to_point(
        [(0, 1, "hello"), (1, 0, "<ready & waiting>")], [(1, 0, 1, "recv")], title="Handshake"
    )
    drawn["deadlock"] = figures.point_to_point([], [(0, 0, None, "recv"), (1, 0, None, "recv")])
    drawn["ring"] = figures.who_sends_to_whom([(r, (r + 1) % 4, f"{r}") for r in range(4)])
    drawn["fit"] = figures.measured_and_predicted(x, [1e-6 + v / 5e9 for v in x], lambda v: v / 5e9)
    drawn["linear"] = figures.measured_and_predicted(
        [2, 4, 8], [2e6, 4e6, 8e6], lambda p: 1e6 * p, ylabel="traffic (bytes)", scale="linear"
    )
    drawn["spread"] = figures.measured_and_predicted(
        [0.1, 1], [1.8, 1.1], lambda ratio: 2 / (1 + ratio), spread=[(1.5, 1.9), (1.0, 1.2)]
    )
    drawn["curves"] = figures.curves({"one process": run, "four ranks": run}, title="Digits")
    return drawn


@pytest.fixture(scope="module")
def drawn():
    return every_figure()


def held_after(figure):
    """What each rank holds after the collective, read from the alternative text."""
    after = re.findall(r"rank (\d+): .*? becomes (.*?)[;.]", figure.alt)
    assert [int(rank) for rank, _ in after] == list(range(len(after)))
    return [held for _, held in after]


@pytest.mark.parametrize(("world_size", "root"), [(3, 1), (4, 0)])
def test_diagrams_show_the_real_results_of_mpi(world_size, root):
    program = Path(__file__).with_name("collectives_for_real.py")
    ran = subprocess.run(
        launch.mpiexec(world_size, sys.executable, program, root),
        env=launch.environment(),
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert ran.returncode == 0, ran.stderr
    really = json.loads(ran.stdout)
    total = "+".join("ABCDEFGH"[:world_size])
    for name in COLLECTIVES:
        shown = held_after(figures.collective(name, world_size, root))
        for rank, held in enumerate(really[name]):
            if isinstance(held, list):
                held = " ".join(held)
            if name == "reduce_scatter":
                assert held == "+".join(f"{letter}{rank}" for letter in "ABCDEFGH"[:world_size])
                held = f"\u03a3{rank}"
            assert shown[rank] == (held or "nothing"), (name, rank)
        if "reduce" in name and name != "reduce_scatter":
            assert total in shown


def test_block_has_the_colour_of_its_source_rank():
    figure = figures.collective("all_to_all", 4)
    shapes = list(ElementTree.fromstring(figure.svg))
    letters = {}
    for shape, following in pairwise(shapes):
        label = following.text or ""
        if shape.tag == SVG + "rect" and re.fullmatch(r"[A-D][0-3]", label):
            letters.setdefault(label[0], []).append(shape.get("fill"))
    assert letters == {
        letter: [figures.rank_colour(rank)] * 8 for rank, letter in enumerate("ABCD")
    }


def test_the_eight_colours_differ_and_their_text_has_contrast():
    assert len(set(RANK_COLOURS)) == 8
    assert figures.rank_colour(8) == figures.rank_colour(0)
    for colour in RANK_COLOURS:
        lighter, darker = sorted([_luminance(colour), _luminance(text_on(colour))], reverse=True)
        assert (lighter + 0.05) / (darker + 0.05) >= 4.5, f"text on {colour} is hard to read"


# How linear RGB looks with a colour blindness of full severity: G. M. Machado, M. M. Oliveira and
# L. A. F. Fernandes, IEEE Transactions on Visualization and Computer Graphics 15(6), 2009, table 1.
SEEN = {
    "protanopia": [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
    "deuteranopia": [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
    "tritanopia": [[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]],
}


def lab(colour, kind):
    """CIELAB coordinates of ``colour`` as seen with the colour blindness ``kind``."""
    rgb = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    seen = np.clip(np.array(SEEN[kind]) @ linear, 0, 1)
    to_xyz = [[0.412, 0.358, 0.180], [0.213, 0.715, 0.072], [0.019, 0.119, 0.950]]
    x, y, z = np.cbrt(to_xyz @ seen / np.array([0.950, 1.0, 1.089]))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("kind", SEEN)
def test_the_first_four_ranks_differ_for_the_colour_blind(kind):
    for one, other in combinations(RANK_COLOURS[:4], 2):
        # A difference of 2.3 is just noticeable.
        assert np.linalg.norm(lab(one, kind) - lab(other, kind)) > 15, (one, other)


def test_every_figure_is_valid_opaque_and_has_alt_text(drawn):
    for name, figure in drawn.items():
        root = ElementTree.fromstring(figure.svg)
        assert root.tag == SVG + "svg", name
        paper = root.find(f"{SVG}rect")  # a diagram's first shape; in a plot, patch_1 comes first
        if paper is None:
            paper = root.find(f".//{SVG}g[@id='patch_1']/{SVG}path")
        fill = paper.get("fill") or re.search("fill: (#[0-9a-f]{6})", paper.get("style"))[1]
        assert fill.upper() == PAPER, f"{name} lets a dark page shine through"
        bundle = figure._repr_mimebundle_()
        assert bundle["text/plain"] == f"Figure: {figure.alt}"
        image = ElementTree.fromstring(bundle["text/html"].replace(">", "/>"))
        assert image.get("alt") == figure.alt
        assert len(figure.alt) > 20
        kind, data = image.get("src").split(",", 1)
        assert kind == "data:image/svg+xml;base64"
        assert base64.b64decode(data).decode() == figure.svg


def test_text_is_large_enough_and_inside_the_figure(drawn):
    for name, figure in drawn.items():
        root = ElementTree.fromstring(figure.svg)
        width, height = (float(v) for v in root.get("viewBox").split()[2:])
        for text in root.iter(SVG + "text"):
            size = float(text.get("font-size"))
            assert size >= (11 if name == "eight ranks" else 13), name
            # 0.62 of the size is the width of a letter in the widest font asked for.
            long = 0.62 * size * len(text.text)
            start = {"start": 0, "middle": 0.5, "end": 1}[text.get("text-anchor")]
            left = float(text.get("x")) - start * long
            assert left >= 0, (name, text.text)
            assert left + long <= width, (name, text.text)
            assert 0 < float(text.get("y")) < height, (name, text.text)


def test_figures_are_deterministic_across_processes(drawn):
    program = (
        "import sys, json; sys.path.insert(0, sys.argv[1]); import test_figures as t;"
        "print(json.dumps({k: [f.svg, f.alt] for k, f in t.every_figure().items()}))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program, str(Path(__file__).parent)],
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == {k: [f.svg, f.alt] for k, f in drawn.items()}


def test_endless_wait_is_marked_and_two_are_a_deadlock(drawn):
    assert "Deadlock" in drawn["deadlock"].svg
    assert "deadlock" in drawn["deadlock"].alt
    assert "Deadlock" not in drawn["messages"].svg
    one = figures.point_to_point([], [(0, 0, None, "recv")])
    assert "Waits for ever" in one.svg
    assert "Deadlock" not in one.svg


def test_a_history_may_be_a_mapping_or_an_object():
    class History:
        loss = (2.0, 1.0)
        accuracy = (0.5, 0.75)

    as_object = figures.curves({"run": History()})
    as_mapping = figures.curves({"run": {"loss": [2, 1], "accuracy": [0.5, 0.75]}})
    assert as_object.svg == as_mapping.svg


def test_figure_is_saved_unchanged(tmp_path, drawn):
    path = drawn["ring"].save(tmp_path / "a ring.svg")
    assert path.read_text(encoding="utf-8") == drawn["ring"].svg


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: figures.collective("allreduce"), "the figures know broadcast"),
        (lambda: figures.collective("gather", 9), "2 to 8 ranks"),
        (lambda: figures.collective("gather", 4, root=4), "must be 0 to 3"),
        (lambda: figures.rank_colour(-1), "0 or more"),
        (lambda: figures.who_sends_to_whom([(1, 1)]), "cannot send to itself"),
        (lambda: figures.point_to_point([(0, 5)], world_size=4), "rank 5 takes part"),
        (lambda: figures.point_to_point([(0, 1, "", 2.0, 1.0)]), "before it is sent"),
        (lambda: figures.measured_and_predicted([1, 2], [1]), "1 values"),
        (lambda: figures.measured_and_predicted([1], [1], {"x": [1]}), "not measured"),
        (lambda: figures.measured_and_predicted([1], [1], scale="lin"), "'log' or 'linear'"),
        (lambda: figures.measured_and_predicted([1, 2], [1, 1], spread=[(1, 1)]), "each x"),
        (lambda: figures.curves({}), "at least one"),
        (lambda: figures.curves({"run": {"loss": [1]}}), "no 'accuracy'"),
    ],
)
def test_bad_arguments_are_rejected(call, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        call()


def test_few_points_get_a_tick_each_and_times_one_unit():
    drawn = figures.measured_and_predicted(
        [1, 2, 4, 8], [0.01, 0.02, 0.02, 0.03], xlabel="threads", ylabel="time (seconds)"
    )
    words = re.findall("<!-- (.*?) -->", drawn.svg)  # above each text, which is drawn as paths
    assert words[: words.index("threads")] == ["1", "2", "4", "8"]
    assert "20 ms" in words
    assert "time" in words
    assert "time (seconds)" not in words
    assert "time (seconds) over threads" in drawn.alt
