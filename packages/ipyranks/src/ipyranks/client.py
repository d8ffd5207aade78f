"""ipyparallel's client, for which an engine that has left the cluster is no ``KeyError``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ipyparallel as ipp
from ipyparallel import error

from .errors import ClusterError


class Client(ipp.Client):
    """A notebook's connection to its ranks.

    Attributes:
        explain: called where an engine is asked that the controller no longer has; raises what is
            known of the cluster.
    """

    explain: Callable[[], None]

    def _build_targets(self, targets: Any) -> Any:
        try:
            return super()._build_targets(targets)
        except (KeyError, error.NoEnginesRegistered) as gone:
            self.explain()
            raise ClusterError(
                f"this view asks for an engine that has left the cluster ({gone}); cluster.view is "
                "a view on all ranks that are left, cluster.restart() starts fresh ones"
            ) from None
