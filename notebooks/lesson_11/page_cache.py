"""Takes files out of the system's page cache, and finds out whether they are in it.

Linux uses otherwise free memory to keep the contents of files that have been read. A second reading
then measures memory, not the disk. ``posix_fadvise`` with DONTNEED asks the kernel to forget the
pages of a file that have been written out, so ``fsync`` comes first (man page posix_fadvise(2),
notes). This is only a request: a file system in memory (tmpfs) has no other place for its pages.
Caches below it, in the disk or on the host of a virtual machine, are not asked at all. So a request
does not make a reading cold: :func:`share_in_cache` checks what is in the cache.

It uses ``mincore``, which reads nothing. A read with RWF_NOWAIT, which fails if it would have to
wait, shows the same, but it starts a readahead, after which the file is in the cache.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from collections.abc import Iterable
from pathlib import Path

CAN_EVICT = hasattr(os, "posix_fadvise")
CAN_LOOK = sys.platform == "linux"


def evict(paths: Iterable[Path]) -> bool:
    """Ask the kernel to forget the contents of files; return whether it can be asked here."""
    if not CAN_EVICT:
        return False
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
    return True


def share_in_cache(paths: Iterable[Path]) -> float | None:
    """Return the share of the files' pages that are in the page cache; empty files do not count.

    None if the share is unknown: on systems other than Linux, or if the files have no pages.

    Raises:
        OSError: if a file cannot be read, or the system refuses to report its pages.
    """
    if not CAN_LOOK:
        return None
    found = [_pages(path) for path in paths]
    pages = sum(total for _, total in found)
    return sum(resident for resident, _ in found) / pages if pages else None


def _pages(path: Path) -> tuple[int, int]:
    """Return how many of a file's pages are in the cache, and how many it has."""
    size = path.stat().st_size
    if size == 0:
        return 0, 0
    total = -(-size // mmap.PAGESIZE)
    flags = (ctypes.c_ubyte * total)()
    with open(path, "rb") as file, mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY) as view:
        first = ctypes.c_char.from_buffer(view)
        libc = ctypes.CDLL(None, use_errno=True)
        place = ctypes.c_void_p(ctypes.addressof(first))
        failed = libc.mincore(place, ctypes.c_size_t(size), flags)
        number = ctypes.get_errno()
        del first  # otherwise the mapping could not be closed
    if failed:
        raise OSError(number, os.strerror(number), str(path))
    return sum(flag & 1 for flag in flags), total
