"""One JupyterLab and one page of a browser for all tests that only need notebooks opened."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.browser.notebook_server import Notebooks, notebook_server


@pytest.fixture(scope="session")
def notebooks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebooks]:
    """Start JupyterLab; every cell of a notebook is in the page."""
    with notebook_server(tmp_path_factory.mktemp("notebooks")) as running:
        yield running
