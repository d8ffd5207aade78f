"""Who the ranks are, as a plain table that reads the same everywhere.

What differs from run to run (process id and host) stands in the last columns, so a
comparison of outputs can cut it off with one pattern: ``\\d+  \\S+$``.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Rank:
    """One row: a rank as it described itself."""

    rank: int
    device: str
    threads: int
    mpi: str
    pid: int
    host: str


_COLUMNS = ("rank", "device", "threads", "mpi", "pid", "host")
_TITLES = {"mpi": "MPI library"}
_RIGHT = ("rank", "threads", "pid")
_PID_WIDTH = 7  # of Linux' largest process id


def table(ranks: list[Rank]) -> str:
    """The rank table as text, one line per rank under a line of titles."""
    rows = [{name: str(getattr(rank, name)) for name in _COLUMNS} for rank in ranks]
    titles = {name: _TITLES.get(name, name) for name in _COLUMNS}
    widths = {name: max(len(row[name]) for row in [titles, *rows]) for name in _COLUMNS}
    widths["pid"] = max(widths["pid"], _PID_WIDTH)
    widths["host"] = 0

    def line(row: dict[str, str]) -> str:
        cells = (
            row[name].rjust(widths[name]) if name in _RIGHT else row[name].ljust(widths[name])
            for name in _COLUMNS
        )
        return "  ".join(cells).rstrip()

    return "\n".join(line(row) for row in [titles, *rows])
