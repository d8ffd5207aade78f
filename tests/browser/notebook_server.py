"""A Jupyter server with a folder of notebooks, and a page of a browser to open them in."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import nbformat
import psutil
import requests
from playwright.sync_api import Browser, Page, expect

from tests.browser.chromium import Uncaught, window
from tests.lab_server import free_port, wait_until

TOKEN = "notebooks"
JUPYTERLAB = (sys.executable, "-m", "jupyterlab")


class Notebooks:
    """A running server with a folder of notebooks, and a page to open them in.

    Attributes:
        page: where the last notebook was opened.
        uncaught: the exceptions of this page's scripts that were never caught.
    """

    def __init__(self, page: Page, address: str, folder: Path, server: int, view: str) -> None:
        self.page, self.uncaught = page, Uncaught(page)
        self._address, self._folder = address, folder
        self._server, self._view = psutil.Process(server), view

    def kernels(self) -> set[psutil.Process]:
        """Return the processes of all kernels."""
        return set(self._server.children())

    def open(self, name: str, cells: list[nbformat.NotebookNode]) -> Page:
        """Open a notebook of these cells in a new page, all of them rendered at once."""
        kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}
        notebook = nbformat.v4.new_notebook(cells=cells, metadata=kernel)
        nbformat.write(notebook, self._folder / name)
        self.page.close()
        self.page = self.page.context.new_page()
        self.uncaught = Uncaught(self.page)
        self.reopen(name, len(cells))
        return self.page

    def reopen(self, name: str, cells: int) -> None:
        """Open a notebook of so many cells as it is on disk."""
        self.page.goto(f"{self._address}/{self._view}/{name}?token={TOKEN}&reset")
        shown = self.page.locator(".jp-Notebook .jp-Cell")
        expect(shown).to_have_count(cells, timeout=120_000)

    def saved(self, name: str) -> str:
        """Return a notebook's file, as it is on disk now."""
        return (self._folder / name).read_text()


@contextlib.contextmanager
def notebook_server(
    browser: Browser,
    folder: Path,
    application: Sequence[str] = JUPYTERLAB,
    view: str = "lab/tree",
    variables: dict[str, str] | None = None,
) -> Iterator[Notebooks]:
    """Start a Jupyter application as for a person, who may move sliders.

    Args:
        browser: what opens the notebooks.
        folder: for notebooks and settings.
        application: the command that starts it, JupyterLab's or another's.
        view: what stands before a notebook's name in its address.
        variables: environment variables on top of the present ones.
    """
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
    command = [*application, "--no-browser", f"--port={port}"]
    command += [
        "--allow-root",
        "--expose-app-in-browser",
        f"--ServerApp.root_dir={folder / 'notebooks'}",
    ]
    surroundings = os.environ | {"HOME": str(folder), "IPP_NONINTERACTIVE": "0"}
    surroundings |= {"JUPYTERLAB_SETTINGS_DIR": str(folder / "settings"), "JUPYTER_TOKEN": TOKEN}
    surroundings |= variables or {}
    with (folder / "server.log").open("w") as log:
        server = subprocess.Popen(command, env=surroundings, stdout=log, stderr=log)
    address = f"http://127.0.0.1:{port}"

    def answers() -> bool:
        assert server.poll() is None, (folder / "server.log").read_text()[-3000:]
        with contextlib.suppress(requests.ConnectionError, requests.Timeout):
            return requests.get(f"{address}/api", timeout=10).ok
        return False

    try:
        wait_until(answers, 120, "the Jupyter server")
        with window(browser) as page:
            yield Notebooks(page, address, folder / "notebooks", server.pid, view)
    finally:
        server.terminate()  # it ends its kernels
        try:
            server.wait(60)
        finally:
            server.kill()
