"""Lessons run unchanged where COURSE_CLUSTER puts their ranks on two hosts.

``python -m tests.hosts.lessons`` runs all of them; here are those that need most of what may go
wrong there: a file that all ranks write, and a hang (01); DDP, checkpoints, threads and programs
that the lesson starts (08).
"""

from __future__ import annotations

import pytest

from tests.hosts import lessons


@pytest.mark.parametrize("lesson", ["01", "08"])
def test_a_lesson_runs_on_two_hosts(lesson: str) -> None:
    assert lessons.run(lesson).problems == []
