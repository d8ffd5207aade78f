"""axe-core finds what is wrong in a page, and nothing in a page that is right."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Page

from tests.browser.axe import violations

PAGE = """<!doctype html>
<html lang="en"><head><title>Ranks</title></head><body><main>
<h1>Ranks</h1><p style="color: %s; background: #fff">Four of them.</p>
<img src="data:image/gif;base64,R0lGODlhAQABAAAAACw=" %s>
</main></body></html>
"""


def test_axe_reports_faults_with_their_location(page: Page, tmp_path: Path) -> None:
    right, wrong = tmp_path / "right.html", tmp_path / "wrong.html"
    right.write_text(PAGE % ("#57606a", 'alt="four ranks"'), encoding="utf-8")
    wrong.write_text(PAGE % ("#aaaaaa", ""), encoding="utf-8")

    def rules_broken(path: Path, **options) -> list[str]:
        page.goto(path.as_uri())
        return [each.rule for each in violations(page, **options)]

    assert rules_broken(right) == []
    assert rules_broken(wrong) == ["color-contrast", "image-alt"]
    assert rules_broken(wrong, without=("image-alt",)) == ["color-contrast"]
    assert rules_broken(wrong, within="img") == ["image-alt"]
    assert "Four of them." in str(violations(page, within="p")[0])
