"""Whoever dies while writing must leave the old file, whole.

The judge behind the check of lesson 12 about writing a checkpoint. The learner's function is
interrupted in the middle of writing, and watched while it renames. No rank is needed.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from course_lib.teaching.exercise import Staged, WrongAnswer

OLD, NEW = b"old checkpoint", b"the new checkpoint, which is longer"


class Died(Staged):
    """Stands for the death of the process in the middle of a write."""


def judge_saving(save_whole) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "run.pt")
        seen = _watch(save_whole, path, NEW)
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
        seen = _watch(save_whole, path, NEW)
        if any(not rename.over_old for rename in seen["renames"]):
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
        died = False
        try:
            _watch(save_whole, path, NEW[:5], then_die=True)
        except Died:
            died = True
        if not path.exists():
            raise WrongAnswer(
                "removes-the-old-one-first",
                "a death in the middle of writing left no file at all: the old one was gone, and "
                "the new one not yet there",
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


def _judge_way(seen: dict[str, Any], path: Path) -> None:
    if seen["name"] == path:
        raise WrongAnswer(
            "writes-in-place",
            "it writes into run.pt itself. Whoever dies in the middle of that has lost the old "
            "checkpoint, and has no new one",
        )
    if seen["name"].parent != path.parent:
        raise WrongAnswer(
            "on-another-disk",
            "it writes into another folder than that of run.pt. That may be another disk, and "
            "then a rename is no rename but a copy, which can be cut in the middle",
        )
    if path.stat().st_ino != seen["inode"]:
        raise WrongAnswer(
            "copies-instead",
            "the bytes get into run.pt by being copied: a death in the middle of copying leaves "
            "half a checkpoint. `os.replace` changes the name in one step",
        )
    if not seen["renames"]:
        return  # renamed by a function that nobody watches, so the rest is not known
    rename = seen["renames"][0]
    if rename.size != len(NEW):
        raise WrongAnswer(
            "not-flushed",
            f"when the file got its name, {rename.size} of {len(NEW)} bytes were in it; the rest "
            "was still in Python's buffer",
        )
    if seen["synced"] and not rename.whole_on_disk:
        raise WrongAnswer(
            "fsync-too-early",
            f"when `os.fsync` was called, {max(seen['synced'])} of {len(NEW)} bytes were in the "
            "file, the others not written yet or still in Python's buffer: `write(file)`, "
            "`file.flush()`, `os.fsync(file.fileno())`, in this order, and then the rename",
        )
    if not rename.whole_on_disk:
        raise WrongAnswer(
            "no-fsync",
            "it never calls `os.fsync`: after a power cut the new name may be on the disk, and the "
            "bytes not. Call `file.flush()` and `os.fsync(file.fileno())` before the rename",
        )


def _watch(save_whole, path: Path, data: bytes, then_die: bool = False) -> dict[str, Any]:
    seen: dict[str, Any] = {"renames": [], "synced": [], "name": None, "inode": 0}

    def write(file) -> None:
        name = getattr(file, "name", None)
        if not isinstance(name, (str, os.PathLike)):
            raise WrongAnswer("not-a-file", "`write` has to be given an open file with a name")
        seen["name"], seen["inode"] = Path(name).absolute(), os.fstat(file.fileno()).st_ino
        file.write(data)
        if then_die:
            file.flush()
            raise Died

    with _noted(seen, path):
        save_whole(path, write)
    if seen["name"] is None:
        raise WrongAnswer("never-writes", "it never called `write(file)`")
    return seen


class Rename(NamedTuple):
    """A file gets the checkpoint's name: its bytes, whether all were synced, and over what."""

    size: int
    whole_on_disk: bool
    over_old: bool


_RENAMES, _SYNCS = ("replace", "rename"), ("fsync", "fdatasync")


@contextmanager
def _noted(seen: dict[str, Any], path: Path) -> Iterator[None]:
    """Write down renames to ``path``, and how much of the file was there when it was synced."""
    originals = {name: getattr(os, name) for name in (*_RENAMES, *_SYNCS) if hasattr(os, name)}

    def renamed(how):
        def call(source, target, **options):
            if Path(target).absolute() == path:
                size = os.stat(source).st_size
                over_old = path.exists() and path.read_bytes() == OLD
                seen["renames"].append(Rename(size, size in seen["synced"], over_old))
            how(source, target, **options)

        return call

    def synced(how):
        def call(descriptor):
            status = os.fstat(descriptor if isinstance(descriptor, int) else descriptor.fileno())
            if status.st_ino == seen["inode"] or seen["name"] is None:
                seen["synced"].append(status.st_size)
            how(descriptor)

        return call

    for name, original in originals.items():
        setattr(os, name, (renamed if name in _RENAMES else synced)(original))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(os, name, original)
