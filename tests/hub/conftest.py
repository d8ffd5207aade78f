"""Keeps this folder out of `make test`: it is tested where it, or its mark, is asked for."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave these tests out unless the call names `tests/hub` or `-m hub`."""
    asked = [*config.args, config.option.markexpr]
    return None if any("hub" in word for word in asked) else True
