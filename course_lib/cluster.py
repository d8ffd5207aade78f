"""Where ranks live: the package :mod:`ipyranks`, with the course's settings.

>>> from course_lib.cluster import start_cluster
>>> cluster = start_cluster(n=4)

prints the table of ranks and makes ``%%px`` run a cell on all of them.
"""

from __future__ import annotations

import os
from functools import wraps
from typing import Any

import ipyranks
from ipyranks import (
    Cluster,
    ClusterError,
    HangError,
    RankFailure,
    RemoteCellError,
    StartError,
    current_cluster,
)

__all__ = [
    "Cluster",
    "ClusterError",
    "HangError",
    "RankFailure",
    "RemoteCellError",
    "StartError",
    "current_cluster",
    "start_cluster",
]


@wraps(ipyranks.start_cluster)
def start_cluster(*arguments: Any, **options: Any) -> Cluster:
    # Teachers set COURSE_CLUSTER and the like; the package knows its own names only.
    for name in ("ADDRESS", "CLUSTER", "RUNTIME_DIR", "SHARED"):
        if value := os.environ.get(f"COURSE_{name}"):
            os.environ[f"IPYRANKS_{name}"] = value
    os.environ["IPYRANKS_PASS_ON"] = "COURSE_"  # where data is, say
    return ipyranks.start_cluster(*arguments, **options)
