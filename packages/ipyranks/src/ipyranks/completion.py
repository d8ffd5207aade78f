"""Completes, when Tab is pressed in a ``%%px`` cell, names that the lowest living rank knows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from IPython.core.completer import SimpleCompletion, context_matcher

from .rank_functions import complete

if TYPE_CHECKING:
    from .handle import Cluster

_IDENTIFIER = "ipyranks"
_WITHIN_S = 0.5


def complete_on_engines(shell: Any, cluster: Cluster) -> None:
    """Let the completer of ``shell`` ask a rank of ``cluster``, instead of any cluster before."""

    @context_matcher(identifier=_IDENTIFIER)
    def engine_matcher(context: Any) -> dict[str, Any]:
        found = _ask(cluster, context.token) if _is_parallel(context) else []
        completions = [SimpleCompletion(text=text, type="engine") for text in found]
        return {"completions": completions, "suppress": False}

    matchers = shell.Completer.custom_matchers
    matchers[:] = [m for m in matchers if getattr(m, "matcher_identifier", "") != _IDENTIFIER]
    matchers.append(engine_matcher)


def _is_parallel(context: Any) -> bool:
    text = context.full_text.lstrip()
    return text.startswith("%%px") or context.line_with_cursor.lstrip().startswith("%px ")


def _ask(cluster: Cluster, token: str) -> list[str]:
    client = cluster.client
    if client is None or client._closed or client.outstanding:
        return []  # a rank that is busy cannot answer
    living = [engine for engine in cluster.engine_ids if engine in client.ids]
    if not living:
        return []
    asked = client[living[0]].apply_async(complete, token)
    # What a rank raises, or its death, is no answer: it would be printed while somebody types.
    return asked.get() if asked.wait(_WITHIN_S) and asked.successful() else []
