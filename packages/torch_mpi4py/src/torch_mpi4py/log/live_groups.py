"""The process groups of this process that were not destroyed, for whoever has to end them all."""

from __future__ import annotations

from typing import Any

live_groups: set[Any] = set()
