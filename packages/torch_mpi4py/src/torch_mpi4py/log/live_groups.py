"""The process groups of this process that have not been destroyed."""

from __future__ import annotations

from typing import Any

live_groups: set[Any] = set()
