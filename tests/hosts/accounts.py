"""An account without rights that only the virtual hosts know, and that can run the course there."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.hosts.testbed import NAMES, ROOT, BedClient

UID = 20_001
_ASIDE = "/tmp/aside"


@contextlib.contextmanager
def account(bed: BedClient, name: str) -> Iterator[Path]:
    """Give all hosts an account of this name; its home, which they share, is returned."""
    home = bed.folder / f"home-{name}"
    home.mkdir()
    os.chown(home, UID, UID)
    made, known = bed.folder / "passwd", Path("/etc/passwd").read_text()
    made.write_text(f"{known}{name}:*:{UID}:{UID}::{home}:/bin/bash\n")
    needed = (Path(sys.base_prefix), ROOT)
    opened = [(closed, path) for path in needed if (closed := _closed_parent(path))]
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, home)
        bed.folder.chmod(0o711)  # its keys stay root's
        stack.callback(bed.folder.chmod, 0o700)
        for host in NAMES:
            _run(bed, host, f"mount --bind {made} /etc/passwd")
            stack.callback(_run, bed, host, "umount /etc/passwd")
            for closed, path in opened:
                _run(bed, host, _opened(closed, path))
                # Lazily: on h1 the test itself may have loaded a library from there meanwhile.
                undo = f"umount --lazy {shlex.quote(str(path))} {shlex.quote(str(closed))}"
                stack.callback(_run, bed, host, undo)
        yield home


def _closed_parent(path: Path) -> Path | None:
    """The first folder on the way to ``path`` that others may not enter, such as root's home."""
    return next((one for one in reversed(path.parents) if not one.stat().st_mode & 0o001), None)


def _opened(closed: Path, path: Path) -> str:
    """The command that puts an open folder in place of ``closed``, with nothing but ``path``."""
    it, within = shlex.quote(str(path)), shlex.quote(str(closed))
    return (
        f"mkdir -p {_ASIDE} && mount --bind {it} {_ASIDE}"
        f" && mount -t tmpfs -o mode=755 own {within}"
        f" && mkdir -p {it} && mount --bind {_ASIDE} {it} && umount {_ASIDE} && rmdir {_ASIDE}"
    )


def _run(bed: BedClient, host: str, command: str) -> None:
    done = bed.execute(host, ["sh", "-c", command])
    assert done.returncode == 0, f"{host}: {command}: {done.stderr}"
