"""The last line of a script."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest


def test_result_is_one_line_of_json(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(root / "scripts")
    result_line = importlib.import_module("reporting").result_line
    line = result_line(script="x", loss=0.123456789, steps=3, by_size={4: 1.5})
    assert json.loads(line) == {"script": "x", "loss": 0.123457, "steps": 3, "by_size": {"4": 1.5}}
    assert "\n" not in line
