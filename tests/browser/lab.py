"""JupyterLab in a page: what a learner does with menus, and what a learner sees."""

from __future__ import annotations

import re
import time

from playwright.sync_api import Page, expect


class Lab:
    """JupyterLab with an open notebook."""

    def __init__(self, page: Page) -> None:
        self.page = page

    def open(self, url: str) -> None:
        """Open a notebook by its address and wait until its kernel is ready."""
        self.page.goto(url)
        cells = self.page.locator(".jp-Notebook .jp-CodeCell")
        expect(cells.first).to_be_attached(timeout=120_000)
        self.kernel_is_ready()

    def kernel_is_ready(self) -> None:
        """Wait until the page is connected to a kernel that waits for cells."""
        # Ask the page. The server has a kernel with a connection some time before the page has
        # it, and JupyterLab drops what is run between. The indicator in the toolbar says idle
        # even without a kernel. (jupyterapp is there because of --expose-app-in-browser.)
        self.page.wait_for_function(
            """() => {
                const context = window.jupyterapp?.shell.currentWidget?.sessionContext;
                const kernel = context?.session?.kernel;
                return kernel?.connectionStatus === 'connected' && kernel.status === 'idle';
            }""",
            timeout=120_000,
        )

    def menu(self, title: str, command: str) -> None:
        """Choose an item of the main menu by its command id."""
        self.page.locator(".lm-MenuBar-item").get_by_text(title, exact=True).click()
        self.page.locator(f'.lm-Menu li[data-command="{command}"]').click()

    def accepts(self) -> None:
        """Press the button of a dialog that goes on, such as Restart."""
        self.page.locator(".jp-Dialog .jp-mod-accept").click()

    def run_all(self, seconds: float) -> None:
        """Choose Run All Cells and wait until every code cell has run."""
        self.menu("Run", "runmenu:run-all")
        prompts = self.page.locator(".jp-CodeCell .jp-InputPrompt")
        deadline = time.monotonic() + seconds
        expect(prompts.filter(has_text=re.compile(r"\d|\*")).first).to_be_attached()
        expect(prompts.filter(has_not_text=re.compile(r"\[\d+\]"))).to_have_count(
            0, timeout=1000 * (deadline - time.monotonic())
        )

    def outputs(self) -> str:
        """Return the text of all outputs on the page."""
        areas = self.page.locator(".jp-Notebook .jp-Cell-outputArea")
        return "\n".join(areas.all_text_contents())

    def cells_with_errors(self) -> list[str]:
        """Return the text of every cell that shows an error, or a warning on stderr.

        JupyterLab marks both with the same type.
        """
        shown = self.page.locator('[data-mime-type="application/vnd.jupyter.stderr"]')
        return self.page.locator(".jp-Notebook .jp-CodeCell").filter(has=shown).all_text_contents()
