"""The process groups of this process that were not destroyed, for whoever has to end them all."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .process_group import MPIProcessGroup

live_groups: set[MPIProcessGroup] = set()
