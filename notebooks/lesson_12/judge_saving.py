"""Whoever dies while writing must leave the old file, whole.

The judge behind the check of lesson 12 about writing a checkpoint. The learner's function is
interrupted in the middle of writing, and watched while it renames. No rank is needed.
"""

from __future__ import annotations

import inspect
import io
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from course_lib.teaching.exercise import Staged, WrongAnswer

OLD, NEW = b"old checkpoint", b"the new checkpoint, which is longer"


class Died(Staged):
    """Stands for the death of the process in the middle of a write."""


@dataclass
class Seen:
    """What happened while a file was saved.

    Attributes:
        written: whether ``write`` was called.
        inode: of the file that ``write`` was given; None of one in memory.
        in_place: whether that was the checkpoint itself.
        renames: in their order.
        synced: of each fsync, which file and how many bytes were in it.
    """

    written: bool = False
    inode: int | None = None
    in_place: bool = False
    renames: list[Rename] = field(default_factory=list)
    synced: list[tuple[int, int]] = field(default_factory=list)


class Rename(NamedTuple):
    """A file gets the checkpoint's name: whence, how many bytes, what was synced, over what."""

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
            raise WrongAnswer(
                "nothing-is-there",
                "after a call that nobody disturbed, the file is not there, or not complete",
            )
        _judge_way(seen, path)
        left = sorted(entry.name for entry in Path(folder).iterdir() if entry != path)
        if left:
            raise WrongAnswer("leaves-files-behind", f"besides run.pt there is now {left[0]}")
    _judge_gap(save_whole)
    _judge_death(save_whole)


def _judge_gap(save_whole) -> None:
    """There is a checkpoint of that name at every moment, also just before the rename."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "run.pt")
        path.write_bytes(OLD)
        seen = Seen()
        _watch(save_whole, path, NEW, seen)
        if any(not rename.over_old for rename in seen.renames):
            raise WrongAnswer(
                "removes-the-old-one-first",
                "the old run.pt is gone before the new file gets its name. Whoever dies in between "
                "has no run.pt at all. `os.replace` puts the new one in the old one's place in one "
                "step",
            )


def _judge_death(save_whole) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "run.pt")
        path.write_bytes(OLD)
        died, seen = False, Seen()
        try:
            _watch(save_whole, path, NEW[:5], seen, then_die=True)
        except Died:
            died = True
        if not path.exists():
            raise WrongAnswer(
                "removes-the-old-one-first",
                "a death in the middle of writing left no file at all: the old one was gone, and "
                "the new one not yet there",
            )
        if path.read_bytes() != OLD and seen.renames:
            raise WrongAnswer(
                "renames-the-half",
                "`write` failed in the middle, and the half that was written got the name run.pt "
                "all the same. Rename only what is complete, so not in a `finally`",
            )
        if path.read_bytes() != OLD:
            raise WrongAnswer(
                "writes-in-place",
                f"a death in the middle of writing left {path.read_bytes()!r} in run.pt: the old "
                "checkpoint is lost, and this is none",
            )
        if not died:
            raise WrongAnswer(
                "swallows-the-error",
                "`write` failed, and `save_whole` returned as if all were well. Nobody would learn "
                "that checkpoints are no longer written",
            )


def _judge_way(seen: Seen, path: Path) -> None:
    if seen.in_place or (seen.inode is None and not seen.renames):
        raise WrongAnswer(
            "writes-in-place",
            "it writes into run.pt itself. Whoever dies in the middle of that has lost the old "
            "checkpoint, and has no new one",
        )
    if any(rename.folder != path.parent for rename in seen.renames):
        raise WrongAnswer(
            "on-another-disk",
            "it writes into another folder than that of run.pt. That may be another disk, and "
            "then a rename is no rename but a copy, which can be cut in the middle",
        )
    if not seen.renames and path.stat().st_ino != seen.inode:
        raise WrongAnswer(
            "copies-instead",
            "the bytes get into run.pt by being copied: a death in the middle of copying leaves "
            "half a checkpoint. `os.replace` changes the name in one step",
        )
    if not seen.renames:
        return  # renamed by a function that nobody watches, so the rest is not known
    rename = seen.renames[0]
    if rename.size != len(NEW):
        raise WrongAnswer(
            "not-flushed",
            f"when the file got its name, {rename.size} of {len(NEW)} bytes were in it; the rest "
            "was still in Python's buffer",
        )
    if rename.size in rename.synced:
        return
    if rename.synced:
        raise WrongAnswer(
            "fsync-too-early",
            f"when `os.fsync` was called, {max(rename.synced)} of {len(NEW)} bytes were in the "
            "file, the others not written yet or still in Python's buffer: `write(file)`, "
            "`file.flush()`, `os.fsync(file.fileno())`, in this order, and then the rename",
        )
    if any(inode == rename.inode for inode, _ in seen.synced):
        raise WrongAnswer(
            "fsync-too-late",
            "the file gets its name first, and `os.fsync` comes after it. If the power fails in "
            "between, the name is on the disk and the bytes are not: first the bytes, then the "
            "name",
        )
    raise WrongAnswer(
        "no-fsync",
        "it never calls `os.fsync`: after a power cut the new name may be on the disk, and the "
        "bytes not. Call `file.flush()` and `os.fsync(file.fileno())` before the rename",
    )


def _watch(save_whole, path: Path, data: bytes, seen: Seen, then_die: bool = False) -> None:
    def write(file) -> None:
        if not hasattr(file, "write"):
            raise WrongAnswer(
                "not-a-file", f"`write` has to be given an open file, not a {type(file).__name__}"
            )
        if isinstance(file, io.TextIOBase):
            raise WrongAnswer("not-binary", 'the file is open for text; open it with "wb"')
        seen.written = True
        try:
            seen.inode = os.fstat(file.fileno()).st_ino
        except (AttributeError, io.UnsupportedOperation):
            seen.inode = None  # in memory
        seen.in_place = path.exists() and path.stat().st_ino == seen.inode
        file.write(data)
        if then_die:
            file.flush()
            raise Died

    with _noted(save_whole, seen, path):
        save_whole(path, write)
    if not seen.written:
        raise WrongAnswer("never-writes", "it never called `write(file)`")


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
    # Also where a cell says `from os import fsync, replace`.
    cell: dict[str, Any] = getattr(inspect.unwrap(save_whole), "__globals__", {})
    own = {name: value for name, value in cell.items() if any(value is known for known in noting)}
    try:
        for name, original in originals.items():
            setattr(os, name, noting[original])
        cell.update({name: noting[original] for name, original in own.items()})
        yield
    finally:
        cell.update(own)
        for name, original in originals.items():
            setattr(os, name, original)
