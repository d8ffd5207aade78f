"""Completes, when Tab is pressed in a ``%%px`` cell, the names that rank 0 knows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from IPython.core.completer import SimpleCompletion, context_matcher

from .rank_functions import complete

if TYPE_CHECKING:
    from .handle import Cluster

_IDENTIFIER = "course_lib.engines"
_WITHIN_S = 0.5


def complete_on_engines(shell: Any, cluster: Cluster) -> None:
    """Let the completer of ``shell`` ask rank 0 of ``cluster``, instead of any cluster before."""

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
    asked = client[cluster.engine_ids[0]].apply_async(complete, token)
    return asked.get() if asked.wait(_WITHIN_S) else []
