"""One browser for this folder, a page of its own for each test, and one JupyterLab."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page

from tests.browser.chromium import chromium, window
from tests.browser.notebook_server import Notebooks, notebook_server


# Not for the session: with Playwright at work, later tests couldn't use asyncio.
@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """Start Chromium."""
    with chromium() as browser:
        yield browser


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """Open a page that has seen nothing yet."""
    with window(browser) as page:
        yield page


@pytest.fixture(scope="package")
def notebooks(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebooks]:
    """Start JupyterLab; every cell of a notebook is in the page."""
    with notebook_server(browser, tmp_path_factory.mktemp("notebooks")) as running:
        yield running
