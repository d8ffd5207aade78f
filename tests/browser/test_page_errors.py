"""What a page throws and never catches is reported with its text and its place."""

from __future__ import annotations

from pathlib import Path

from tests.browser.chromium import chromium
from tests.lab_server import wait_until

PAGE = """<!doctype html>
<script>
function throwAnError() { throw new Error("no kernel"); }
function throwAnObject() { throw {status: 503}; }
function throwAText() { throw "no answer"; }
function throwANumber() { throw 7; }
async function reject() { throw "refused"; }
for (const broken of [throwAnError, throwAnObject, throwAText, throwANumber, reject])
  setTimeout(broken, 0);
</script>
"""


def line_of(function: str) -> int:
    return 1 + PAGE[: PAGE.index(f"function {function}")].count("\n")


def test_errors_and_other_values_are_described_with_their_place(tmp_path: Path) -> None:
    path = tmp_path / "throws.html"
    path.write_text(PAGE, encoding="utf-8")
    place = path.as_uri()
    with chromium(tmp_path / "profile") as page:
        page.open(place)
        page.wait_for("document.readyState === 'complete'", 60)

        def all_have_come() -> bool:
            page.evaluate("0")  # the page's events are read with an answer
            return len(page.errors) == 5

        wait_until(all_have_come, 60, "five errors")
        error, thing, text, number, rejected = page.errors
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
