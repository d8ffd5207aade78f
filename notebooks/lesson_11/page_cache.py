"""Takes files out of the system's page cache, and finds out whether they are in it.

Linux keeps what was read from a file in memory that nothing else needs. A second reading then
measures memory, not the disk. ``posix_fadvise`` with DONTNEED asks the kernel to forget the pages
of a file that have been written out, so ``fsync`` comes first (man page posix_fadvise(2), notes).
It is a request: a file system that lives in memory (tmpfs) has nowhere to forget them to. And what
lies below, the disk's own cache or the host of a virtual machine, is not asked at all. So a reading
is never called cold because it was asked to be: :func:`share_in_cache` looks.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from pathlib import Path

# Linux alone has both; a read with NOWAIT gives up where it would have to wait for the disk.
CAN_EVICT = hasattr(os, "posix_fadvise")
CAN_LOOK = hasattr(os, "preadv") and hasattr(os, "RWF_NOWAIT")
_NOT_SUPPORTED = (errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL)


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
    """Return the share of files whose first byte comes without waiting for the disk.

    None where that cannot be told: on another system than Linux, or a file system that does not
    know such reads.
    """
    found = [_in_cache(path) for path in paths]
    return None if not found or None in found else sum(map(bool, found)) / len(found)


def _in_cache(path: Path) -> bool | None:
    if not CAN_LOOK:
        return None
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.preadv(descriptor, [bytearray(1)], 0, os.RWF_NOWAIT) == 1
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in _NOT_SUPPORTED:
            return None
        raise
    finally:
        os.close(descriptor)
