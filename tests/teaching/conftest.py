"""Exercises of our own, and two ranks that know them."""

from __future__ import annotations

import pytest

from course_lib.cluster import start_cluster
from course_lib.teaching import catalogue


@pytest.fixture(scope="module")
def own_exercises():
    """Make the exercises of lesson 90 known."""
    catalogue.PACKAGES.append("tests.teaching.own_exercises")
    yield
    catalogue.PACKAGES.remove("tests.teaching.own_exercises")


@pytest.fixture(scope="module")
def cluster(own_exercises, root):
    """Two ranks with a process group, which can import the exercises of lesson 90."""
    with start_cluster(2, init_process_group=True, replace=True) as running:
        running.view.execute(f"import sys, time; sys.path.insert(0, {str(root)!r})", silent=True)
        yield running
