"""An executed lesson must look the same whoever executes it, and hide no failure.

:func:`execute` runs a notebook from top to bottom in a fresh kernel of the running Python.
:func:`problems` says what must not be in an executed lesson. :func:`sanitise` takes out what
names the machine.
"""

from __future__ import annotations

import os
import re
import socket
import sys
from pathlib import Path

from .alternative_text import pictures_without_words
from .lessons import NOTEBOOKS, ROOT

__all__ = ["ANSI", "CELL_SECONDS", "execute", "problems", "sanitise"]

CELL_SECONDS = 120

ANSI = re.compile(r"\x1b\[[0-9;]*m")
_KERNEL_FILE = re.compile(r"/\S*?/ipykernel_\d+/\d+\.py")
_MACHINE_PATH = re.compile(
    r"(?<![\w.:/<])(?:/(?:home|root|Users|tmp|var|work|opt|usr|mnt|srv|private|data)/|~/)[^\s'\"<>]+"
)


def execute(notebook, folder: Path = NOTEBOOKS, cell_seconds: int = CELL_SECONDS) -> None:
    """Execute ``notebook`` in place.

    Args:
        folder: where its code runs.
        cell_seconds: the time that one cell may take.

    Raises:
        nbclient.exceptions.CellExecutionError: if a cell raises that is not tagged
            ``raises-exception``.
        nbclient.exceptions.CellTimeoutError: if a cell takes too long.
    """
    from jupyter_client import AsyncKernelManager
    from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
    from nbclient import NotebookClient

    class ThisPython(KernelSpecManager):
        """Knows one kernel, that of the running interpreter, whatever else is installed."""

        def get_kernel_spec(self, kernel_name):
            argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
            argv.append("--IPKernelApp.log_level=ERROR")  # else it warns of TCP each time
            # Output of the ranks in a fixed order, as nobody watches; and our programs first.
            path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
            environment = {"IPP_NONINTERACTIVE": "1", "PATH": path}
            return KernelSpec(
                argv=argv, display_name=kernel_name, language="python", env=environment
            )

    client = NotebookClient(
        notebook,
        km=AsyncKernelManager(kernel_spec_manager=ThisPython(), kernel_name="python3"),
        timeout=cell_seconds,
        record_timing=False,
        store_widget_state=False,
        coalesce_streams=True,
        resources={"metadata": {"path": str(folder)}},
    )
    client.owns_km = True  # and ends the kernel with everything it has started
    client.execute()


def problems(notebook) -> list[str]:
    """Return what is wrong with an executed lesson: a failure that nothing else would show."""
    found = []
    code = [(i, cell) for i, cell in enumerate(notebook.cells, 1) if cell.cell_type == "code"]
    for number, (position, cell) in enumerate(code, 1):
        raised = [o.ename for o in cell.outputs if o.output_type == "error"]
        expected = "raises-exception" in cell.metadata.get("tags", ())
        where = f"cell {position} ({cell.source.splitlines()[0] if cell.source else 'empty'})"
        if cell.execution_count != number:
            found.append(f"{where}: run as number {cell.execution_count}, not {number}")
        if raised and not expected:
            found.append(f"{where}: raised {raised[0]}")
        if expected and not raised:
            found.append(f"{where}: is tagged raises-exception, but raised nothing")
        for output in cell.outputs:
            if output.output_type == "stream" and output.name == "stderr":
                found.append(f"{where}: wrote to stderr: {output.text.strip()[:200]}")
            for kind in output.get("data", ()):
                if "widget" in kind:
                    found.append(f"{where}: shows a widget, whose state is not kept")
            for picture in pictures_without_words(output):
                found.append(f"{where}: shows a picture without alternative text: {picture}")
        found += [f"{where}: {path}" for path in _machine_paths(cell.outputs)]
        if "check" in cell.metadata.get("tags", ()) and ": right." not in _printed(cell):
            found.append(f"{where}: the worked solution is not right: {_printed(cell).strip()}")
    return found


def _printed(cell) -> str:
    return "".join(o.text for o in cell.outputs if o.output_type == "stream")


def _machine_paths(outputs) -> list[str]:
    found = []
    for text in _texts(outputs):
        found += [f"names a path of this machine: {path}" for path in _MACHINE_PATH.findall(text)]
    return found


def _texts(outputs):
    for output in outputs:
        parts = [output.get("text", ""), output.get("evalue", ""), *output.get("traceback", ())]
        parts += [text for text in output.get("data", {}).values() if isinstance(text, str)]
        # Pictures are base64, in which anything may look like a path.
        yield from (ANSI.sub("", part) for part in parts if not part.startswith("iVBOR"))


def sanitise(notebook) -> None:
    """Take out of the outputs what names this machine: its paths, and its name."""
    for cell in notebook.cells:
        if cell.cell_type != "code":
            continue
        cell.metadata.pop("execution", None)
        for output in cell.outputs:
            for key in ("text", "evalue"):
                if key in output:
                    output[key] = anonymous(output[key])
            if "traceback" in output:
                output["traceback"] = [anonymous(line) for line in output["traceback"]]
            for kind, text in output.get("data", {}).items():
                if isinstance(text, str) and kind.startswith("text/"):
                    output["data"][kind] = anonymous(text)


def anonymous(text: str) -> str:
    """Return ``text`` with this machine's paths made relative, and its name ``localhost``."""
    text = _KERNEL_FILE.sub("cell", text)
    folders = {str(ROOT): "", sys.prefix: ".venv", sys.base_prefix: "python"}
    for folder, short in folders.items():
        for written in (folder, folder.replace(str(Path.home()), "~", 1)):
            text = text.replace(f"{written}/", f"{short}/" if short else "")
    host = re.escape(socket.gethostname())
    # Only in the last column of the rank table: elsewhere it could be any word.
    return re.sub(rf"(?m)(\s\d+  ){host}$", r"\1localhost", text)
