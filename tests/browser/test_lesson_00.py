"""The main job: on a machine with nothing installed, make lab, open lesson 00, Run All Cells.

As a learner does it: an ordinary user, a checkout at a path with a space, a home directory that
cannot be written to, packages from the index, and a real browser.
"""

from __future__ import annotations

import re
import subprocess

import pytest
from playwright.sync_api import Page

from tests.browser.chromium import Uncaught
from tests.browser.lab import Lab
from tests.lab_server import (
    ROOT,
    as_user,
    copy_checkout,
    give_to,
    make_lab,
    ordinary_user,
    scratch,
    wait_until,
)

INSTALL_SECONDS = 900  # downloads of several GB, where the lock brings CUDA builds
LESSON_SECONDS = 300  # 25 s on two quiet cores
PICTURE_OF_FAILURE = ROOT / "test-results" / "lesson_00.png"
USABLE = "import sys, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 15))"


def can_run_python(user: object) -> bool:
    """Tell whether an ordinary user of this machine has a supported Python."""
    for name in ("python3", "python3.14", "python3.13", "python3.12", "python3.11"):
        try:
            answer = subprocess.run([name, "-c", USABLE], **as_user(user), check=False)
        except OSError:
            continue
        if answer.returncode == 0:
            return True
    return False


@pytest.mark.timeout(INSTALL_SECONDS + LESSON_SECONDS + 600)
def test_a_learner_runs_lesson_00_on_a_bare_machine(page: Page) -> None:
    user = ordinary_user()
    if user is not None and not can_run_python(user):
        user = None  # root's own Python is the only one: then root is who learns here
    with scratch() as folder:
        checkout, home, temporary = folder / "my course", folder / "home", folder / "tmp"
        for path in (checkout, home, temporary):
            path.mkdir()
        copy_checkout(checkout)
        home.chmod(0o555)
        if user is not None:
            give_to(checkout, user)
            give_to(temporary, user)
        variables = {"HOME": str(home), "TMPDIR": str(temporary)}
        uncaught, lab = Uncaught(page), Lab(page)
        with make_lab(checkout, variables, seconds=INSTALL_SECONDS, user=user) as server:
            try:
                lab.open(server.url)
                lab.run_all(LESSON_SECONDS)
                check_what_is_seen(lab)
                lab.menu("Kernel", "kernelmenu:shutdown")
                wait_until(lambda: not server.kernels(), 100, f"an end of {server.kernels()}")
            except BaseException:
                page.screenshot(path=PICTURE_OF_FAILURE)
                raise
            assert uncaught.so_far() == []
        assert list(home.iterdir()) == []


def check_what_is_seen(lab: Lab) -> None:
    """Check the page: the rank table, the accuracy, every check, and no error."""
    seen = lab.outputs()
    assert re.search(r"4 ranks ready in [\d.]+ s", seen), seen
    for rank in range(4):
        assert re.search(rf"^ *{rank}  cpu", seen, re.MULTILINE), f"rank {rank} in: {seen}"
    accuracy = re.search(r"Test accuracy: ([\d.]+) \(four ranks\)", seen)
    assert accuracy, seen
    assert float(accuracy[1]) > 0.9, seen
    assert seen.count(": not attempted yet.") == cells_tagged(lab, "check") > 0, seen
    errors = lab.cells_with_errors()
    assert len(errors) == cells_tagged(lab, "raises-exception"), errors


def cells_tagged(lab: Lab, tag: str) -> int:
    """Return how many cells of the open notebook carry ``tag``."""
    name = lab.page.evaluate("location.pathname").rsplit("/lab/tree/", 1)[-1]
    file = lab.page.evaluate("name => fetch(`/api/contents/${name}`).then(r => r.json())", name)
    return sum(tag in cell["metadata"].get("tags", []) for cell in file["content"]["cells"])
