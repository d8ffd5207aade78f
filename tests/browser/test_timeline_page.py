"""The page of a timeline, operated as a learner does: wheel, drag, keys, fingers, buttons."""

from __future__ import annotations

import matplotlib.image
import pytest

from course_lib.teaching.figures.palette import rank_colour
from course_lib.teaching.timelines import Timeline
from course_lib.teaching.timelines.lanes import lanes_of
from tests.browser.chromium import Page, chromium
from tests.lab_server import wait_until
from tests.teaching.test_timelines import RECORDS

SPAN = "[from, to]"  # what is seen, in seconds; the page's own names
TIP = "(e => e.style.display === 'block' ? e.innerText : '')(document.getElementById('tip'))"


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    drawn = Timeline(lanes_of(RECORDS), 2e-6, "a title")
    path = drawn.save_html(folder / "timeline.html")
    shown = drawn._repr_mimebundle_()["text/html"]
    (folder / "notebook.html").write_text(f"<!doctype html><body>{shown}", encoding="utf-8")
    with chromium(folder / "profile") as opened:
        opened.folder = folder
        opened.open(path.as_uri())
        opened.wait_for("typeof painted !== 'undefined' && painted > 0", 60, "the page")
        opened.own_width = opened.evaluate("innerWidth")
        yield opened
        assert opened.errors == []


@pytest.fixture
def whole(page: Page) -> Page:
    """The page, with everything in sight."""
    page.click("document.getElementById('all')")
    assert page.evaluate(SPAN) == [0, 3.5]
    return page


def mouse(page: Page, kind: str, x: float, y: float, **more) -> None:
    page.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)


def place(page: Page, seconds: float, lane: int, y: float) -> tuple[float, float]:
    """Return where on the page a moment is; ``y`` pixels below the upper edge of a lane."""
    found = page.evaluate(
        f"(b => [b.left + x({seconds}), b.top + TOP + LANE * {lane} + {y}])"
        "(canvas.getBoundingClientRect())"
    )
    return round(found[0]), round(found[1])  # a mouse is at whole pixels


def key(page: Page, name: str) -> None:
    for kind in ("keyDown", "keyUp"):
        page.call("Input.dispatchKeyEvent", type=kind, key=name)


def test_wheel_zooms_where_the_mouse_is_and_drag_moves(whole: Page) -> None:
    spot = place(whole, 2.0, 0, 30)
    there = f"t({spot[0]} - canvas.getBoundingClientRect().left)"
    moment = whole.evaluate(there)
    for _ in range(5):
        mouse(whole, "mouseWheel", *spot, deltaX=0, deltaY=-100)
    first, last = whole.evaluate(SPAN)
    assert 0.5 < last - first < 2
    assert whole.evaluate(there) == pytest.approx(moment)
    mouse(whole, "mousePressed", *spot, button="left", clickCount=1)
    mouse(whole, "mouseMoved", spot[0] - 100, spot[1], button="left", buttons=1)
    mouse(whole, "mouseReleased", spot[0] - 100, spot[1], button="left", clickCount=1)
    moved, end = whole.evaluate(SPAN)
    assert moved > first
    assert end - moved == pytest.approx(last - first)
    mouse(whole, "mouseWheel", *spot, deltaX=-60, deltaY=0)  # a touchpad, sideways
    assert whole.evaluate(SPAN)[0] < moved
    for clicks in (1, 2):
        mouse(whole, "mousePressed", *spot, button="left", clickCount=clicks)
        mouse(whole, "mouseReleased", *spot, button="left", clickCount=clicks)
    assert whole.evaluate(SPAN) == [0, 3.5]


def test_a_tooltip_tells_what_lies_under_the_mouse(whole: Page) -> None:
    told = {}
    for name, spot in {
        "state": (0.75, 0, 30), "section": (0.1, 0, 8), "message": (2.2, 0, 46),
        "receive": (2.0, 1, 46), "nothing": (0.05, 1, 30),
    }.items():  # fmt: skip
        mouse(whole, "mouseMoved", *place(whole, *spot))
        told[name] = whole.evaluate(TIP)
    assert told == {
        "state": "computing while messages are under way (all_reduce): 500 ms",
        "section": "forward </script>: 2.00 s",
        "message": "send to 1, 12 bytes, tag 0, group default, program.py:1: 500 ms",
        "receive": "recv from 0, 12 bytes, tag 0, group default, program.py:1: 875 ms",
        "nothing": "",
    }
    # The last lane's tooltip is in sight too, although it stands at the lower edge.
    for size in ((1366, 768), (360, 230)):
        resize(whole, *size)
        mouse(whole, "mouseMoved", *place(whole, 2.5, 1, 30))
        box = whole.evaluate(
            "(b => [b.left, b.top, b.right, b.bottom])(tip.getBoundingClientRect())"
        )
        assert box[0] >= 0 <= box[1], box
        assert box[2] <= size[0], box
        assert box[3] <= size[1], box
    resize(whole)


def resize(page: Page, width: int = 0, height: int = 0) -> None:
    """Give the window a size; without one its own."""
    if width:
        screen = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        page.call("Emulation.setDeviceMetricsOverride", **screen)
    else:
        page.call("Emulation.clearDeviceMetricsOverride")
    page.wait_for(f"innerWidth === {width or page.own_width}", 60)
    page.wait_for("painted === canvas.clientWidth", 60)


def test_keys_do_the_same(whole: Page) -> None:
    whole.evaluate("document.activeElement.blur()")
    for _ in range(4):  # three buttons, then the picture
        page_tab = {"key": "Tab", "code": "Tab", "windowsVirtualKeyCode": 9}
        whole.call("Input.dispatchKeyEvent", type="keyDown", **page_tab)
        whole.call("Input.dispatchKeyEvent", type="keyUp", **page_tab)
        if whole.evaluate("document.activeElement === canvas"):
            break
    assert whole.evaluate("document.activeElement === canvas")
    key(whole, "+")
    first, last = whole.evaluate(SPAN)
    assert last - first == pytest.approx(0.8 * 3.5)
    key(whole, "ArrowRight")
    assert whole.evaluate(SPAN) == pytest.approx([first + 0.28, last + 0.28])
    assert "to" in whole.evaluate("document.getElementById('range').innerText")
    key(whole, "0")
    assert whole.evaluate(SPAN) == [0, 3.5]


def test_two_fingers_zoom_and_one_moves(whole: Page) -> None:
    whole.call("Emulation.setTouchEmulationEnabled", enabled=True, maxTouchPoints=2)
    x, y = place(whole, 1.75, 0, 30)

    def touch(kind: str, *places: float) -> None:
        points = [{"x": at, "y": y, "id": n} for n, at in enumerate(places)]
        whole.call("Input.dispatchTouchEvent", type=kind, touchPoints=points)

    touch("touchStart", x - 50, x + 50)
    for apart in (70, 90, 110, 130, 150):
        touch("touchMove", x - apart, x + apart)
    touch("touchEnd")
    first, last = whole.wait_for(f"to - from < 1.25 && {SPAN}", 60)  # 3.5 s * 50 / 150 at last
    touch("touchStart", x)
    for step in (10, 30, 60):
        touch("touchMove", x - step)
    touch("touchEnd")
    assert whole.wait_for(f"from > {first} && {SPAN}", 60)[1] > last
    whole.call("Emulation.setTouchEmulationEnabled", enabled=False)


def test_on_a_narrow_screen_nothing_sticks_out(whole: Page) -> None:
    resize(whole, 360, 640)
    assert whole.evaluate("document.documentElement.scrollWidth") <= 360
    resize(whole)


def test_the_wheel_scrolls_the_page_around_where_there_is_nothing_to_zoom_out_of(
    whole: Page,
) -> None:
    ask = (
        "canvas.dispatchEvent(new WheelEvent('wheel',"
        "{deltaY: %d, clientX: 300, clientY: 100, cancelable: true}))"
    )
    assert whole.evaluate(ask % 100) is True  # not taken
    assert whole.evaluate(ask % -100) is False
    assert whole.evaluate(ask % 100) is False


def test_in_a_notebook_it_is_drawn_when_its_fold_is_opened(page: Page) -> None:
    page.open((page.folder / "notebook.html").as_uri())
    page.click("document.querySelector('summary')")
    page.evaluate("document.querySelector('iframe').scrollIntoView()")
    assert page.evaluate("document.querySelector('iframe').clientHeight") >= 150 + 2 * 64
    wait_until(lambda: coloured(page) > 1000, 60, "the lanes in the frame")


def coloured(page: Page) -> int:
    """Return how many pixels below the picture have the colour of rank 0."""
    path = page.folder / "seen.png"
    page.screenshot(path)
    top = page.evaluate("document.querySelector('iframe').getBoundingClientRect().top")
    pixels = (matplotlib.image.imread(path)[int(max(top, 0)) :, :, :3] * 255).round()
    colour = [int(rank_colour(0)[i : i + 2], 16) for i in (1, 3, 5)]
    return int((abs(pixels - colour).max(axis=2) < 3).sum())
