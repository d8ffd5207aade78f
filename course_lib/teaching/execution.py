"""Executes a notebook from its first cell to its last, unattended."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from course_lib.places import NOTEBOOKS

CELL_SECONDS = 120


def execute(notebook: Any, folder: Path = NOTEBOOKS, cell_seconds: int = CELL_SECONDS) -> None:
    """Execute ``notebook`` in place.

    Args:
        folder: where its code runs.
        cell_seconds: the time that one cell may take.

    Raises:
        nbclient.exceptions.CellExecutionError: if a cell raises that is not tagged
            ``raises-exception``.
        nbclient.exceptions.CellTimeoutError: if a cell takes too long.
    """
    client_of(notebook, folder, cell_seconds).execute()


def client_of(notebook: Any, folder: Path, cell_seconds: int) -> Any:
    """Return the client for ``notebook``; it ends its kernel with all of the kernel's processes."""
    from jupyter_client import AsyncKernelManager
    from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
    from nbclient import NotebookClient

    class ThisPython(KernelSpecManager):
        """Provides one kernel, that of the running interpreter, whatever else is installed."""

        def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
            argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
            # Output of the ranks in a fixed order, because no one is watching; and our programs
            # first.
            path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
            environment = {"IPP_NONINTERACTIVE": "1", "PATH": path}
            return KernelSpec(
                argv=argv, display_name=kernel_name, language="python", env=environment
            )

    # Sockets in a folder, whose path has to be short: on a crowded machine another process may take
    # one of the ports that a manager has chosen for its kernel, before the kernel does.
    sockets = tempfile.mkdtemp(prefix="kernel-", dir="/tmp")

    class OnSockets(AsyncKernelManager):
        """Removes that folder once the kernel has ended."""

        def cleanup_connection_file(self) -> None:
            super().cleanup_connection_file()
            shutil.rmtree(sockets, ignore_errors=True)

    manager = OnSockets(
        kernel_spec_manager=ThisPython(),
        kernel_name="python3",
        transport="ipc",
        connection_file=f"{sockets}/kernel.json",
    )
    client = NotebookClient(
        notebook,
        km=manager,
        timeout=cell_seconds,
        record_timing=False,
        store_widget_state=False,
        coalesce_streams=True,
        resources={"metadata": {"path": str(folder)}},
    )
    client.owns_km = True  # and ends the kernel with everything it has started
    return client
