"""Who starts fresh ranks is told which names that has cost.

A rank that is dead or busy cannot be asked any more, and that is said, too.
"""

from __future__ import annotations

import time

from . import engine
from .errors import rank_list
from .watching import unfinished

__all__ = ["losses", "names_on"]

_ANSWER_WITHIN_S = 0.5
_IDLE_ANSWER_WITHIN_S = 5.0  # ranks that run no cell; at once, but for a busy machine
_SHOWN = 8  # names, of those that share a fate


def names_on(cluster) -> dict[int, list[str] | None]:
    """The learner's names on each rank; None where nobody answers."""
    dead = cluster.status()["dead"]
    living = [rank for rank in cluster.ids if rank not in dead]
    names = dict.fromkeys(cluster.ids)
    if not living:
        return names
    view = cluster.client.direct_view([cluster.engine_ids[rank] for rank in living])
    asked = view.apply_async(engine.learners_names)
    until = time.monotonic() + _IDLE_ANSWER_WITHIN_S
    while not asked.wait(_ANSWER_WITHIN_S) and time.monotonic() < until:
        silent = unfinished(asked, living)
        if cluster._busy(silent) == silent:
            break
    for rank, child in zip(living, asked._children, strict=True):
        # A rank that has died meanwhile answers with an error, as a result.
        if child.done() and isinstance(child.result(), list):
            names[rank] = child.result()
    return names


def losses(names: dict[int, list[str] | None]) -> str:
    """A sentence on what is lost with the ranks: ``all variables on them are lost: x, y``."""
    where: dict[str, list[int]] = {}
    for rank, known in names.items():
        for name in known or ():
            where.setdefault(name, []).append(rank)
    together: dict[tuple[int, ...], list[str]] = {}
    for name, ranks in where.items():
        together.setdefault(tuple(ranks), []).append(name)
    answered = tuple(rank for rank, known in names.items() if known is not None)
    parts = []
    for ranks, shared in sorted(together.items(), key=lambda item: (-len(item[0]), item[0])):
        shown = ", ".join(sorted(shared)[:_SHOWN])
        more = f" and {len(shared) - _SHOWN} more" if len(shared) > _SHOWN else ""
        parts.append(shown + more + ("" if ranks == answered else f" on {rank_list(ranks)}"))
    silent = [rank for rank, known in names.items() if known is None]
    if silent:
        parts.append(f"whatever was on {rank_list(silent)}, which no longer answered")
    return "all variables on them are lost" + (f": {'; '.join(parts)}" if parts else "")
