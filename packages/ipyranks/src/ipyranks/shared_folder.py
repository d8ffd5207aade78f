"""A folder that the notebook and all ranks see, for files that several of them open."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import ClusterError

if TYPE_CHECKING:
    from .rank_table import Rank

_kept: list[tempfile.TemporaryDirectory] = []  # until this process ends


def make_shared_folder(ranks: Sequence[Rank], view: object, on_other_hosts: bool) -> Path:
    """Make a new folder, check that every rank has it, and remove it when this process ends.

    It lies among the temporary files where all ranks run on this host, else in ``IPYRANKS_SHARED``,
    or, without that, where the notebook is.

    Args:
        ranks: a row of the rank table for each.
        view: a blocking view of all ranks, in that order.
        on_other_hosts: whether any rank runs on another host.

    Raises:
        ClusterError: if it cannot be made, or some host does not see it.
    """
    parent = None
    if on_other_hosts:
        parent = Path(os.environ.get("IPYRANKS_SHARED") or ".").absolute()
    try:
        folder = tempfile.TemporaryDirectory(prefix=".shared-", dir=parent)
    except OSError as error:
        raise ClusterError(
            f"no folder for all ranks can be made in {parent} ({error.strerror}); set "
            "IPYRANKS_SHARED to a folder that all hosts see and you may write to"
        ) from None
    seen = view.apply_sync(os.path.isdir, folder.name)  # type: ignore[attr-defined]
    blind = sorted({rank.host for rank, sees in zip(ranks, seen, strict=True) if not sees})
    if blind:
        folder.cleanup()
        raise ClusterError(
            f"{parent} is not a folder that {', '.join(blind)} shares with this host; set "
            "IPYRANKS_SHARED to one that all hosts see, such as your home on a cluster"
        )
    _kept.append(folder)
    return Path(folder.name)
