"""A headless Chromium, driven over its DevTools protocol as a person would.

Reference: https://chromedevtools.github.io/devtools-protocol/ (domains Page, Runtime, Input).
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import requests
import websocket

from tests.lab_server import wait_until

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
ON_MACOS = "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome"
SWITCHES = (
    *("--headless", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"),
    *("--no-default-browser-check", "--window-size=1366,768", "--remote-debugging-port=0"),
    "--remote-allow-origins=*",
)


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


class Page:
    """One page of the browser."""

    def __init__(self, address: str) -> None:
        self._socket = websocket.create_connection(address, timeout=60)
        self._last = 0
        self.errors: list[str] = []
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def close(self) -> None:
        self._socket.close()

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol and return its result."""
        self._last += 1
        request = {"id": self._last, "method": method, "params": parameters}
        self._socket.send(json.dumps(request))
        while True:
            message = json.loads(self._socket.recv())
            if message.get("method") == "Runtime.exceptionThrown":
                self.errors.append(_described(message["params"]["exceptionDetails"]))
            if message.get("method") == "Page.javascriptDialogOpening":  # leave without saving
                accept = {"method": "Page.handleJavaScriptDialog", "params": {"accept": True}}
                self._socket.send(json.dumps({"id": 0, **accept}))
            if message.get("id") == self._last:
                assert "error" not in message, f"{method}: {message['error']}"
                return message["result"]

    def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, f"{expression}: {answer['exceptionDetails']}"
        return answer["result"].get("value")

    def wait_for(self, expression: str, seconds: float, what: str = "") -> Any:
        """Return the first true value of a JavaScript expression."""
        return wait_until(lambda: self.evaluate(expression), seconds, what or expression)

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)

    def click(self, element: str) -> None:
        """Click, with the mouse, in the middle of the element that an expression gives."""
        place = self.wait_for(
            f"(() => {{ const e = {element}; if (!e) return null;"
            "const b = e.getBoundingClientRect();"
            "return b.width && b.height ? [b.x + b.width / 2, b.y + b.height / 2] : null; })()",
            60,
            f"an element to click: {element}",
        )
        mouse = {"x": place[0], "y": place[1], "button": "left", "clickCount": 1}
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=place[0], y=place[1])
        self.call("Input.dispatchMouseEvent", type="mousePressed", **mouse)
        self.call("Input.dispatchMouseEvent", type="mouseReleased", **mouse)

    def screenshot(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))


def _described(details: dict[str, Any]) -> str:
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


@contextlib.contextmanager
def chromium(profile: Path) -> Iterator[Page]:
    """Start a browser with a new profile in the folder ``profile`` and give its page."""
    command = [find_chromium(), *SWITCHES, f"--user-data-dir={profile}", "about:blank"]
    if os.geteuid() == 0:
        command.insert(1, "--no-sandbox")
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            note = profile / "DevToolsActivePort"
            wait_until(lambda: note.exists() and note.read_text().count("\n"), 60, "the browser")
            port = note.read_text().splitlines()[0]

            def pages() -> list[str]:  # the browser answers before it has one
                targets = requests.get(f"http://127.0.0.1:{port}/json", timeout=60).json()
                return [t["webSocketDebuggerUrl"] for t in targets if t["type"] == "page"]

            page = Page(wait_until(pages, 60, "a page")[0])
            try:
                yield page
            finally:
                page.close()
        finally:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=10)
            if process.poll() is None:
                process.kill()


class Lab:
    """JupyterLab in a page: what a learner does with menus, and what a learner sees."""

    def __init__(self, page: Page) -> None:
        self.page = page

    def open(self, url: str) -> None:
        """Open a notebook by its address and wait until its kernel is ready."""
        self.page.open(url)
        self.page.wait_for("document.querySelector('.jp-Notebook .jp-CodeCell') !== null", 120)
        self.kernel_is_ready()

    def kernel_is_ready(self) -> None:
        """Wait until there is a kernel that waits for cells."""
        # The indicator in the toolbar says idle before there is a kernel, so ask the server.
        self.page.wait_for(
            "fetch('/api/kernels').then(r => r.json()).then(kernels =>"
            "kernels.some(k => k.execution_state === 'idle' && k.connections > 0))",
            120,
            "the kernel to be ready",
        )

    def menu(self, title: str, command: str) -> None:
        """Choose an item of the main menu by its command id."""
        bar = "[...document.querySelectorAll('.lm-MenuBar-item')]"
        self.page.click(f"{bar}.find(e => e.textContent.trim() === '{title}')")
        self.page.click(f"document.querySelector('.lm-Menu li[data-command=\"{command}\"]')")

    def run_all(self, seconds: float) -> None:
        """Choose Run All Cells and wait until every code cell has run."""
        self.menu("Run", "runmenu:run-all")
        prompts = "[...document.querySelectorAll('.jp-CodeCell .jp-InputPrompt')]"
        start = time.monotonic()
        self.page.wait_for(
            f"{prompts}.some(e => /\\d|\\*/.test(e.textContent))", 60, "a cell to start"
        )
        self.page.wait_for(
            f"{prompts}.every(e => /\\[\\d+\\]/.test(e.textContent))",
            seconds - (time.monotonic() - start),
            "all cells to have run",
        )

    def outputs(self) -> str:
        """Return the text of all outputs on the page."""
        return self.page.evaluate(
            "[...document.querySelectorAll('.jp-Notebook .jp-Cell-outputArea')]"
            ".map(e => e.textContent).join('\\n')"
        )

    def cells_with_errors(self) -> list[str]:
        """Return the text of every cell that shows an error, or a warning on stderr.

        JupyterLab marks both with the same type.
        """
        shown = '[data-mime-type="application/vnd.jupyter.stderr"]'
        return self.page.evaluate(
            "[...document.querySelectorAll('.jp-Notebook .jp-CodeCell')]"
            f".filter(e => e.querySelector('{shown}')).map(e => e.textContent)"
        )
