"""Start, find and stop a cluster of MPI engines in a notebook.

>>> from ipyranks import start_cluster
>>> cluster = start_cluster(n=4)

prints the table of ranks and makes ``%%px`` run a cell on all of them.
"""

from typing import Any

_HOMES = {
    "Cluster": "cluster",
    "current_cluster": "starting",
    "start_cluster": "starting",
    "ClusterError": "errors",
    "HangError": "errors",
    "RankFailure": "errors",
    "RemoteCellError": "errors",
    "StartError": "errors",
}
__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    # Imported on first use: the keeper and the engines import this package too, and must come
    # up before (and quicker than) anything of ipyparallel.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
