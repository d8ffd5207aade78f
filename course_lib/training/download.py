"""One process on a machine downloads, and the others wait for it.

A file lock in the data root decides who. The system releases it when its holder dies, so a
killed download never blocks the next; nobody waits longer than a deadline.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

__all__ = ["DataUnavailableError", "fetch_once", "on_disk"]

DOWNLOAD_SECONDS = 600.0
_SILENCE_SECONDS = 20.0  # a server that says nothing for so long is taken to be out of reach


class DataUnavailableError(RuntimeError):
    """A data set is not there; the message names the data root and the way on."""


def fetch_once(
    name: str, root: Path, dataset_class: Callable[..., Any], seconds: float = DOWNLOAD_SECONDS
) -> None:
    """Make sure that the files of a torchvision data set lie below ``root``.

    Args:
        name: the data set's name, for messages.
        root: the data root.
        dataset_class: e.g. ``torchvision.datasets.MNIST``.
        seconds: how long to wait for another process's download.

    Raises:
        DataUnavailableError: if they are not there and cannot be downloaded.
    """
    if on_disk(root, dataset_class):
        return
    if os.environ.get("COURSE_OFFLINE") == "1":
        raise _unavailable(name, root, "COURSE_OFFLINE=1 forbids downloads")
    try:
        root.mkdir(parents=True, exist_ok=True)
        lock = FileLock(root / f".{name}.lock", timeout=seconds)
        with lock:
            if not on_disk(root, dataset_class):
                _download(root, dataset_class)
    except Timeout as error:
        raise _unavailable(
            name, root, f"another process has been downloading them for {seconds:g} s"
        ) from error
    except (OSError, RuntimeError) as error:
        raise _unavailable(name, root, f"{type(error).__name__}: {error}") from error


def _download(root: Path, dataset_class: Callable[..., Any]) -> None:
    patience = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_SILENCE_SECONDS)
    try:
        dataset_class(root, train=True, download=True)
        dataset_class(root, train=False, download=True)
    finally:
        socket.setdefaulttimeout(patience)


def on_disk(root: Path, dataset_class: Callable[..., Any]) -> bool:
    """Return whether the files of a torchvision data set lie below ``root``, damaged or not."""
    folder = root / getattr(dataset_class, "base_folder", dataset_class.__name__)
    if not folder.is_dir():
        return False
    try:
        for train in (True, False):
            dataset_class(root, train=train, download=False)
    except RuntimeError as error:
        # This is torchvision's way to say that files are missing; damage is found on reading.
        return "not found" not in str(error).lower()
    except Exception:
        return True  # they are there, but damaged: downloading would hide that
    return True


def _unavailable(name: str, root: Path, why: str) -> DataUnavailableError:
    return DataUnavailableError(
        f"the {name} files are not below the data root {root} and could not be downloaded "
        f"({why}). Put them there, or set COURSE_DATA to a folder that has them; "
        "without a network go on with the digits: load('digits')"
    )
