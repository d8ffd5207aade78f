"""Lessons, and the clusters that their exercises run on."""

from __future__ import annotations

import pytest

from course_lib.cluster import start_cluster


@pytest.fixture(scope="module")
def cluster():
    """Four ranks with a process group, for all tests of a module."""
    with start_cluster(4, init_process_group=True, replace=True) as running:
        running.view.execute("from mpi4py import MPI", silent=True)
        yield running
