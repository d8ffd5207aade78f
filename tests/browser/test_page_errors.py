"""What a page throws and never catches is reported with its text and its place."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Page

from tests.browser.chromium import Uncaught

PAGE = """<!doctype html>
<script>
function throwAnError() { throw new Error("no kernel"); }
function throwAnObject() { throw {status: 503}; }
function throwAText() { throw "no answer"; }
function throwANumber() { throw 7; }
async function reject() { throw "refused"; }
const all = [throwAnError, throwAnObject, throwAText, throwANumber, reject];
let thrown = 0;
for (const kind of ["error", "unhandledrejection"]) addEventListener(kind, () => thrown++);
for (const broken of all) setTimeout(broken, 0);
</script>
"""


def line_of(function: str) -> int:
    return 1 + PAGE[: PAGE.index(f"function {function}")].count("\n")


def test_thrown_values_are_described_with_their_location(page: Page, tmp_path: Path) -> None:
    path = tmp_path / "throws.html"
    path.write_text(PAGE, encoding="utf-8")
    place = path.as_uri()
    uncaught = Uncaught(page)
    page.goto(place)
    page.wait_for_function("thrown === 5")
    error, thing, text, number, rejected = uncaught.so_far()
    assert error.startswith("Error: no kernel\n")
    assert f"at throwAnError ({place}:3:" in error
    for described, head, what, where in (
        (thing, "Uncaught: {", "'value': '503'", "throwAnObject"),
        (text, "Uncaught: {", "'value': 'no answer'", "throwAText"),
        (number, "Uncaught: {", "'value': 7", "throwANumber"),
        (rejected, "Uncaught (in promise): {", "'value': 'refused'", "reject"),
    ):
        assert described.startswith(head)
        assert what in described
        assert f"\n    at {where} {place}:{line_of(where)}" in described
