"""Programs on ranks end within their limit, with all of their processes."""

from __future__ import annotations

import time

import pytest

from tests import ranks


def test_run_past_its_limit_is_killed_with_its_ranks():
    start = time.monotonic()
    ended = ranks.run(
        2, "-c", "import threading; threading.Event().wait()", limit=3, leave_within=2
    )
    assert ended.returncode is None
    assert time.monotonic() - start < 60  # it would not end by itself


def test_rank_writes_each_line_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unbuffered, it would write the pieces of a line one by one, between those of other ranks."""
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")
    ended = ranks.run(1, "-c", "import sys; print(sys.stdout.write_through)", limit=60)
    assert ended.output.split() == ["False"]
