"""One JupyterLab and one page of a browser for all tests that only need notebooks opened."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import nbformat
import psutil
import pytest
import requests

from tests.browser.chromium import Page, chromium
from tests.lab_server import free_port, wait_until

TOKEN = "notebooks"


class Notebooks:
    """A running JupyterLab with a folder of notebooks, and a page to open them in."""

    def __init__(self, page: Page, address: str, folder: Path, server: int) -> None:
        self.page, self._address, self._folder = page, address, folder
        self._server = psutil.Process(server)

    def kernels(self) -> set[psutil.Process]:
        """Return the processes of all kernels."""
        return set(self._server.children())

    def open(self, name: str, cells: list[nbformat.NotebookNode]) -> Page:
        """Open a notebook of these cells, all of them rendered at once."""
        kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}
        notebook = nbformat.v4.new_notebook(cells=cells, metadata=kernel)
        nbformat.write(notebook, self._folder / name)
        self.reopen(name, len(cells))
        return self.page

    def reopen(self, name: str, cells: int) -> None:
        """Open a notebook of so many cells as it is on disk."""
        self.page.open(f"{self._address}/lab/tree/{name}?token={TOKEN}&reset")
        shown = "document.querySelectorAll('.jp-Notebook .jp-Cell').length"
        self.page.wait_for(f"{shown} === {cells}", 120, "all cells")

    def saved(self, name: str) -> str:
        """Return a notebook's file, as it is on disk now."""
        return (self._folder / name).read_text()


@pytest.fixture(scope="session")
def notebooks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebooks]:
    """Start JupyterLab as for a person, who may move sliders; every cell is in the page."""
    folder = tmp_path_factory.mktemp("notebooks")
    settings = folder / "settings" / "@jupyterlab"
    for name, options in {
        "notebook-extension/tracker": {"windowingMode": "none"},
        "apputils-extension/notification": {"checkForUpdates": False, "fetchNews": "false"},
    }.items():
        path = settings / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(options))
    (folder / "notebooks").mkdir()
    port = free_port()
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", f"--port={port}"]
    command += ["--allow-root", f"--ServerApp.root_dir={folder / 'notebooks'}"]
    variables = {"JUPYTERLAB_SETTINGS_DIR": str(folder / "settings"), "JUPYTER_TOKEN": TOKEN}
    variables |= {"HOME": str(folder), "IPP_NONINTERACTIVE": "0"}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    server = subprocess.Popen(command, env=os.environ | variables, **quiet)
    address = f"http://127.0.0.1:{port}"

    def answers() -> bool:
        assert server.poll() is None, "JupyterLab has ended"
        with contextlib.suppress(requests.ConnectionError, requests.Timeout):
            return requests.get(f"{address}/api", timeout=10).ok
        return False

    try:
        wait_until(answers, 120, "JupyterLab")
        with chromium(folder / "profile") as page:
            yield Notebooks(page, address, folder / "notebooks", server.pid)
    finally:
        server.terminate()  # it ends its kernels
        server.wait(60)
