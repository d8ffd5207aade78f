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


# The course's variables have names of their own, which the package does not know.
_NAMES = ("ADDRESS", "CLUSTER", "RUNTIME_DIR", "SHARED")
_set_here: dict[str, str] = {}  # the values that this module derived from them, removed with them


@wraps(ipyranks.start_cluster)
def start_cluster(*arguments: Any, **options: Any) -> Cluster:
    for name in _NAMES:
        ours, theirs = os.environ.get(f"COURSE_{name}"), f"IPYRANKS_{name}"
        if ours:
            os.environ[theirs] = _set_here[theirs] = ours
        elif theirs in _set_here and os.environ.get(theirs) == _set_here.pop(theirs):
            del os.environ[theirs]
    # Ranks on other hosts get variables such as COURSE_DATA, too.
    passed_on = os.environ.get("IPYRANKS_PASS_ON", "")
    if "COURSE_" not in passed_on.split(","):
        os.environ["IPYRANKS_PASS_ON"] = f"{passed_on},COURSE_".lstrip(",")
    return ipyranks.start_cluster(*arguments, **options)
