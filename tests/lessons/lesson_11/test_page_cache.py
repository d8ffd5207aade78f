"""What is asked to leave the page cache is looked for there afterwards."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from notebooks.lesson_11 import page_cache
from notebooks.lesson_11.page_cache import evict, share_in_cache


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / f"{number}.bin" for number in range(4)]
    for path in paths:
        path.write_bytes(os.urandom(8192))
    return paths


def test_what_was_read_is_in_the_cache_and_what_is_evicted_is_not(files: list[Path]) -> None:
    found = share_in_cache(files)
    if found is None:
        pytest.skip("this system does not tell what is in its page cache")
    assert found == 1.0
    assert evict(files[:3])
    after = share_in_cache(files)
    if after == 1.0:
        pytest.skip("this file system keeps its files in memory")
    assert share_in_cache(files) == after  # looking changes nothing
    assert after == 0.25
    assert [len(path.read_bytes()) for path in files] == [8192] * 4
    assert share_in_cache(files) == 1.0


def test_where_nobody_can_ask_it_says_so(files: list[Path], monkeypatch) -> None:
    monkeypatch.setattr(page_cache, "CAN_EVICT", False)
    monkeypatch.setattr(page_cache, "CAN_LOOK", False)
    assert evict(files) is False
    assert share_in_cache(files) is None


def test_of_no_files_nothing_can_be_told() -> None:
    assert share_in_cache([]) is None
