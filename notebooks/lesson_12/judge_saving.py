"""The judge of lesson 12 for writing a checkpoint: a death must leave the old file whole.

It interrupts the learner's function in the middle of writing, and watches it rename. It needs no
ranks.
"""

from __future__ import annotations

import errno
import inspect
import io
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

from course_lib.teaching.exercise import Staged, WrongAnswer, staged

OLD, NEW = b"old checkpoint", b"the new checkpoint, which is longer"


_MOST_TRIES = 5


class Died(Staged):
    """Stands for the death of the process in the middle of a write."""


class DiskFull(Staged, OSError):
    """Stands for the system's error when the disk is full."""

    def __init__(self) -> None:
        super().__init__(errno.ENOSPC, "No space left on device")


@dataclass
class Seen:
    """What happened while a file was saved.

    Attributes:
        written: how often ``write`` was called.
        inode: that of the file that ``write`` was given; None for a file in memory.
        in_place: whether that file was the checkpoint itself.
        renames: all renames, in their order.
        synced: for each fsync, which file was synced and how many bytes were in it.
    """

    written: int = 0
    inode: int | None = None
    in_place: bool = False
    renames: list[Rename] = field(default_factory=list)
    synced: list[tuple[int, int]] = field(default_factory=list)


class Rename(NamedTuple):
    """A file gets the checkpoint's name: where from, how many bytes, what was synced, over what."""

    folder: Path
    inode: int
    size: int
    synced: list[int]
    over_old: bool


def judge_saving(save_whole) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "run.pt")
        seen = Seen()
        _watch(save_whole, path, NEW, seen)
        if not path.exists() or path.read_bytes() != NEW:
            raise WrongAnswer("nothing-is-there")
        _judge_way(seen, path)
        left = sorted(entry.name for entry in Path(folder).iterdir() if entry != path)
        if left:
            raise WrongAnswer("leaves-files-behind", name=left[0])
    _judge_gap(save_whole)
    for failure in (Died(), DiskFull()):
        _judge_failure(save_whole, failure)


def _judge_gap(save_whole) -> None:
    """There is a checkpoint of that name at every moment, even just before the rename."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "run.pt")
        path.write_bytes(OLD)
        others = [path.with_name(name) for name in ("run", "run.json", "last.pt")]
        for other in others:
            other.write_bytes(other.name.encode())
        seen = Seen()
        _watch(save_whole, path, NEW, seen)
        for other in others:
            if not other.exists() or other.read_bytes() != other.name.encode():
                raise WrongAnswer("writes-over-another", name=other.name)
        if any(not rename.over_old for rename in seen.renames):
            raise WrongAnswer("removes-the-old-one-first")


def _judge_failure(save_whole, failure: Exception) -> None:
    """The old file stays, the failure is reported, and the next save works like any other."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "step-200.ckpt")
        path.write_bytes(OLD)
        died, seen = False, Seen()
        try:
            _watch(save_whole, path, NEW[:5], seen, failure)
        except Exception as error:
            if not staged(error):
                raise
            died = True
        if not path.exists():
            raise WrongAnswer("removes-the-old-one-first: while it writes")
        if path.read_bytes() != OLD and seen.renames:
            raise WrongAnswer("renames-the-half")
        if path.read_bytes() != OLD:
            raise WrongAnswer("writes-in-place: and dies", left=repr(path.read_bytes()))
        if not died:
            raise WrongAnswer("swallows-the-error", error=type(failure).__name__)
        for data in (NEW, NEW[::-1]):
            _save_again(save_whole, path, data)


def _save_again(save_whole, path: Path, data: bytes) -> None:
    try:
        _watch(save_whole, path, data, Seen())
    except FileExistsError as error:
        raise WrongAnswer("half-file-in-the-way") from error
    except WrongAnswer as wrong:
        if wrong.name == "never-writes":
            raise WrongAnswer("never-writes: after a failure") from None
        raise
    found = path.read_bytes()
    if found.endswith(data) and found != data:
        raise WrongAnswer("appends-to-the-half", found=found, data=data)
    if found != data:
        raise WrongAnswer("nothing-is-there: after a failure", found=found, data=data)


def _judge_way(seen: Seen, path: Path) -> None:
    if seen.in_place or (seen.inode is None and not seen.renames):
        raise WrongAnswer("writes-in-place")
    if any(rename.folder != path.parent for rename in seen.renames):
        raise WrongAnswer("on-another-disk")
    if not seen.renames and path.stat().st_ino != seen.inode:
        raise WrongAnswer("copies-instead")
    if not seen.renames:
        return  # renamed by a function that is not watched, so the rest is unknown
    rename = seen.renames[0]
    if rename.size != len(NEW):
        raise WrongAnswer("not-flushed", size=rename.size, whole=len(NEW))
    if rename.size in rename.synced:
        return
    if rename.synced:
        raise WrongAnswer("fsync-too-early", size=max(rename.synced), whole=len(NEW))
    if any(inode == rename.inode for inode, _ in seen.synced):
        raise WrongAnswer("fsync-too-late")
    raise WrongAnswer("no-fsync")


def _watch(save_whole, path: Path, data: bytes, seen: Seen, failure=None) -> None:
    def write(file) -> None:
        if not hasattr(file, "write"):
            raise WrongAnswer("not-a-file", kind=type(file).__name__)
        if isinstance(file, io.TextIOBase):
            raise WrongAnswer("not-binary")
        seen.written += 1
        if seen.written > _MOST_TRIES:
            raise WrongAnswer("tries-for-ever", count=_MOST_TRIES)
        try:
            seen.inode = os.fstat(file.fileno()).st_ino
        except (AttributeError, io.UnsupportedOperation):
            seen.inode = None  # in memory
        seen.in_place = path.exists() and path.stat().st_ino == seen.inode
        file.write(data)
        if failure is not None:
            file.flush()
            raise failure

    with _noted(save_whole, seen, path):
        save_whole(path, write)
    if not seen.written:
        raise WrongAnswer("never-writes")


_RENAMES, _SYNCS = ("replace", "rename"), ("fsync", "fdatasync")


@contextmanager
def _noted(save_whole, seen: Seen, path: Path) -> Iterator[None]:
    """Write down renames to ``path``, and how much of the file was there when it was synced."""
    originals = {name: getattr(os, name) for name in (*_RENAMES, *_SYNCS) if hasattr(os, name)}

    def renamed(how):
        def call(source, target, **options):
            if Path(target).absolute() == path:
                status = os.stat(source)
                over_old = path.exists() and path.read_bytes() == OLD
                synced = [size for inode, size in seen.synced if inode == status.st_ino]
                folder = Path(source).absolute().parent
                seen.renames.append(Rename(folder, status.st_ino, status.st_size, synced, over_old))
            how(source, target, **options)

        return call

    def synced(how):
        def call(descriptor):
            status = os.fstat(descriptor if isinstance(descriptor, int) else descriptor.fileno())
            seen.synced.append((status.st_ino, status.st_size))
            how(descriptor)

        return call

    noting = {
        original: (renamed if name in _RENAMES else synced)(original)
        for name, original in originals.items()
    }
    # This also covers cells with `from os import fsync, replace`.
    cell: dict[str, Any] = getattr(inspect.unwrap(save_whole), "__globals__", {})
    own = {name: value for name, value in cell.items() if any(value is known for known in noting)}
    with patch.multiple(os, **{name: noting[original] for name, original in originals.items()}):
        cell.update({name: noting[original] for name, original in own.items()})
        try:
            yield
        finally:
            cell.update(own)
