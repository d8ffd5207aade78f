"""Programs on ranks end within their limit, with all of their processes."""

from __future__ import annotations

import time

from tests import ranks


def test_run_past_its_limit_is_killed_with_its_ranks():
    start = time.monotonic()
    ended = ranks.run(
        2, "-c", "import threading; threading.Event().wait()", limit=3, leave_within=2
    )
    assert ended.returncode is None
    assert time.monotonic() - start < 60  # it would not end by itself
