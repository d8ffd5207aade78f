"""A headless Chromium, driven by Playwright: which program it is, its windows, their errors.

Playwright's waits have a deadline each: that of the call, or ``PATIENCE``.
Reference: https://playwright.dev/python/docs/api/class-playwright
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from typing import Any

from playwright.sync_api import Browser, Page, expect, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
ON_MACOS = "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome"
PATIENCE = 60_000  # ms


def find_chromium() -> str:
    """Return the browser's program; ``COURSE_BROWSER`` wins.

    Raises AssertionError with what to install where there is none.
    """
    for name in (os.environ.get("COURSE_BROWSER", ""), *NAMES, ON_MACOS):
        if name and (found := shutil.which(name)):
            return found
    raise AssertionError(
        "the browser test needs Chromium or Chrome: apt install chromium, "
        "or set COURSE_BROWSER to the program"
    )


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """Start a browser. Until the block ends, asyncio is in use in this thread: see internals.md."""
    expect.set_options(timeout=PATIENCE)
    with (
        sync_playwright() as playwright,
        playwright.chromium.launch(
            executable_path=find_chromium(),
            chromium_sandbox=os.geteuid() != 0,
            ignore_default_args=["--hide-scrollbars"],  # people have them
            handle_sigint=False,  # Control-C ends the block, and that ends the browser
        ) as browser,
    ):
        yield browser


@contextlib.contextmanager
def window(browser: Browser, **options: Any) -> Iterator[Page]:
    """Give a page with cookies, cache and storage of its own, on a laptop unless options differ.

    ``options`` are those of Playwright's ``new_context``.
    """
    laptop = {"viewport": {"width": 1366, "height": 768}}
    with browser.new_context(**(laptop | options)) as context:
        context.set_default_timeout(PATIENCE)
        yield context.new_page()


class Uncaught:
    """The exceptions that a page's scripts throw and never catch, from now on."""

    def __init__(self, page: Page) -> None:
        self._described: list[str] = []
        # Playwright's own event, pageerror, lacks what a thrown object holds and who threw it.
        self._session = page.context.new_cdp_session(page)
        self._session.on(
            "Runtime.exceptionThrown",
            lambda event: self._described.append(described(event["exceptionDetails"])),
        )
        self._session.send("Runtime.enable")

    def so_far(self) -> list[str]:
        """Return each with its text and its place."""
        self._session.send("Runtime.evaluate", {"expression": "0"})  # answered after all events
        return list(self._described)


def described(details: dict[str, Any]) -> str:
    """Return the text of an uncaught exception, and where it was thrown.

    JavaScript can throw any value. Only the description of an Error holds its text and its stack;
    that of an object is the name of its class.
    """
    exception = details.get("exception", {})
    if exception.get("subtype") == "error":
        return exception["description"][:500]
    frames = details.get("stackTrace", {}).get("callFrames", [])
    stack = [f"    at {f['functionName']} {f['url']}:{f['lineNumber'] + 1}" for f in frames]
    return "\n".join([f"{details['text']}: {exception}", *stack])[:2000]
