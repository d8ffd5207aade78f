"""Completes names in a ``%%px`` cell on Tab, from those that the lowest living rank knows."""

from __future__ import annotations

from typing import Any

from IPython.core.completer import SimpleCompletion, context_matcher

from .cluster import Cluster
from .rank_functions import complete

_WITHIN_S = 0.5


@context_matcher(identifier="ipyranks")
def complete_on_ranks(context: Any) -> dict[str, Any]:
    """Complete the input by asking a rank of the current cluster."""
    found = _ask(Cluster.current, context.token) if _is_parallel(context) else []
    completions = [SimpleCompletion(text=text, type="engine") for text in found]
    return {"completions": completions, "suppress": False}


def _is_parallel(context: Any) -> bool:
    text = context.full_text.lstrip()
    return text.startswith("%%px") or context.line_with_cursor.lstrip().startswith("%px ")


def _ask(cluster: Cluster | None, token: str) -> list[str]:
    client = None if cluster is None else cluster.client
    if cluster is None or client is None or client._closed or client.outstanding:
        return []  # a rank that is busy cannot answer
    living = [engine for engine in cluster.engine_ids if engine in client.ids]
    if not living:
        return []
    asked = client[living[0]].apply_async(complete, token)
    # An error on a rank, or its death, must not be printed while the user types.
    return asked.get() if asked.wait(_WITHIN_S) and asked.successful() else []
