"""What is asked to leave the page cache is looked for there afterwards."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import psutil
import pytest
from rank_by_rank.lesson_11 import page_cache
from rank_by_rank.lesson_11.page_cache import evict, share_in_cache

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / f"{number}.bin" for number in range(4)]
    for path in paths:
        path.write_bytes(os.urandom(8192))
    return paths


def lives_in_memory(path: Path) -> bool:
    """Tell whether a file's file system is one that keeps its files in memory."""
    parts = psutil.disk_partitions(all=True)
    around = [part for part in parts if path.is_relative_to(part.mountpoint)]
    return max(around, key=lambda part: len(part.mountpoint)).fstype in ("tmpfs", "ramfs")


@linux_only
def test_read_files_are_cached_and_evicted_ones_are_not(files: list[Path]) -> None:
    assert share_in_cache(files) == 1.0
    assert evict(files[:3])
    expected = 1.0 if lives_in_memory(files[0]) else 0.25
    assert share_in_cache(files) == expected
    assert share_in_cache(files) == expected  # looking changes nothing
    assert [len(path.read_bytes()) for path in files] == [8192] * 4
    assert share_in_cache(files) == 1.0


def test_unsupported_platform_returns_false_and_none(files: list[Path], monkeypatch) -> None:
    monkeypatch.setattr(page_cache, "CAN_EVICT", False)
    monkeypatch.setattr(page_cache, "CAN_LOOK", False)
    assert evict(files) is False
    assert share_in_cache(files) is None


def test_share_in_cache_of_no_pages_is_none(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.touch()
    assert share_in_cache([]) is None
    assert share_in_cache([empty]) is None
