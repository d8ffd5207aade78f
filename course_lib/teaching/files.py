"""A file is either the old one or the new one, whatever interrupts the writing."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

__all__ = ["PART", "write_atomically"]

PART = ".part"  # how files end that are being written


def write_atomically(path: Path, text: str) -> None:
    """Write ``text`` to ``path``; a reader sees all of the old file or all of the new one."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=PART)
    part = Path(name)
    try:
        with open(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        mask = os.umask(0)
        os.umask(mask)
        part.chmod(0o666 & ~mask)  # mkstemp makes files that only their owner can read
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
