"""The stored output of the lesson's programs on virtual hosts with Slurm.

The programs ran once, on 2026-11-23, on the hosts of :mod:`tests.hosts.testbed`, and their output
was stored in ``virtual_hosts.json``, which is read here. The recorder is in the history:
``git log -- tests/hosts/record_launches.py``.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

__all__ = [
    "about",
    "failure",
    "hosts_of",
    "stored",
    "trainings",
    "variables_table",
]

_FILE = Path(__file__).with_name("virtual_hosts.json")
_MEANINGS = (
    ("rank", ("RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")),
    ("world size", ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_NTASKS")),
    ("local rank", ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID")),
    ("where to meet", ("MASTER_ADDR",)),
)


@functools.cache
def stored() -> dict[str, Any]:
    """Return the whole record: date, versions and results."""
    return json.loads(_FILE.read_text(encoding="utf-8"))


def about() -> str:
    """Return a line that says when and where the record was made."""
    record = stored()
    versions = ", ".join(f"{name} {number}" for name, number in record["versions"].items())
    hosts = ", ".join(f"{name} ({address})" for name, address in record["addresses"].items())
    return f"Stored run of {record['date']}, on the virtual hosts {hosts}; {versions}."


def hosts_of(launcher: str) -> list[str]:
    """Return the host of each of four ranks, started by ``launcher``."""
    return [rank["host"] for rank in stored()["told"][launcher]]


def trainings() -> list[dict[str, Any]]:
    """Return the results of the same training by all launchers."""
    return stored()["trainings"]


def failure(name: str) -> str:
    """Return the output of a run that was made to fail on purpose."""
    return stored()["failures"][name]


def variables_table(launchers: list[str], rank: int = 3) -> str:
    """Return a table of each launcher's variables for one of four ranks on two hosts."""
    told = [stored()["told"][launcher][rank] for launcher in launchers]
    rows = [["", *launchers]]
    for meaning, names in _MEANINGS:
        for name in names:
            if any(name in variables for variables in told):
                values = [variables.get(name, "-") for variables in told]
                rows.append([f"{meaning}: {name}", *values])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
