"""One table of a cluster's ranks, engines, processes and hosts.

A rank is MPI's current number. Its engine keeps one number for life: its rank at the start of MPI,
which is also its number in ipyparallel, with the keeper, and in the names of its files. The two
differ once a rank has died and the others have new numbers. Only this table translates between
them.

In the text, the columns that differ from run to run (process id and host) are the last ones, so
that a comparison of outputs can cut them off with one pattern: ``\\d+  \\S+$``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torch_mpi4py.core import gpus

_COLUMNS = ("rank", "device", "carrier", "threads", "mpi", "pid", "host")
_TITLES = {"mpi": "MPI library", "carrier": "GPU tensors by"}
_RIGHT = ("rank", "threads", "pid")
_PID_WIDTH = 7  # of Linux' largest process id


@dataclass(frozen=True)
class Rank:
    """One row: a rank as its engine described itself at its start, and the engine's number.

    Attributes:
        gpu: which GPU its device is, the same for ranks that share one; empty for a CPU.
        takes_cuda: whether its MPI reads and writes the memory of GPUs itself.
        nccl: whether its PyTorch has NCCL.
    """

    rank: int
    device: str
    gpu: str
    takes_cuda: bool
    nccl: bool
    threads: int
    mpi: str
    survives_deaths: bool
    pid: int
    host: str
    engine: int


class RankTable:
    """The ranks and their engines, in rank order.

    Args:
        engines: the engine of each rank.
        descriptions: each engine's description of itself.

    Attributes:
        rows: a :class:`Rank` for each rank.
    """

    def __init__(self, engines: Sequence[int], descriptions: Sequence[dict[str, Any]]):
        self.engines = list(engines)
        pairs = enumerate(zip(engines, descriptions, strict=True))
        self.rows = [Rank(rank=rank, engine=engine, **said) for rank, (engine, said) in pairs]

    @property
    def ranks(self) -> list[int]:
        """The ranks, ascending."""
        return list(range(len(self.engines)))

    def engine_of(self, rank: int) -> int:
        """The engine of a rank.

        Raises:
            ValueError: if there is no such rank.
        """
        if rank not in self.ranks:
            raise ValueError(f"the ranks are 0 to {len(self.engines) - 1}, not {rank!r}")
        return self.engines[rank]

    def engines_of(self, ranks: Iterable[int]) -> list[int]:
        """The engines of some ranks, in their order; ValueError if there is no such rank."""
        return [self.engine_of(rank) for rank in ranks]

    def rank_of(self, engine: int) -> int:
        """The rank of an engine; the engine's own number if it has been left out."""
        return self.engines.index(engine) if engine in self.engines else engine

    def ranks_of(self, engines: Iterable[int]) -> list[int]:
        """The ranks of those engines that have not been left out, in their order."""
        return [self.engines.index(engine) for engine in engines if engine in self.engines]

    def _carrier(self) -> str:
        """How GPU tensors can be carried; empty if no rank has a GPU."""
        if not any(rank.gpu for rank in self.rows):
            return ""
        with_gpu = [rank for rank in self.rows if rank.gpu]
        return gpus.carriers(
            gpus.own_gpu_each([rank.gpu for rank in self.rows]),
            all(rank.nccl for rank in with_gpu),
            all(rank.takes_cuda for rank in with_gpu),
        )

    def __str__(self) -> str:
        """One line per rank under a line of titles."""
        carrier = self._carrier()
        columns = [name for name in _COLUMNS if carrier or name != "carrier"]
        rows = [
            {name: str(getattr(rank, name, carrier if rank.gpu else "")) for name in columns}
            for rank in self.rows
        ]
        titles = {name: _TITLES.get(name, name) for name in columns}
        widths = {name: max(len(row[name]) for row in [titles, *rows]) for name in columns}
        widths["pid"] = max(widths["pid"], _PID_WIDTH)
        widths["host"] = 0

        def line(row: dict[str, str]) -> str:
            cells = (
                row[name].rjust(widths[name]) if name in _RIGHT else row[name].ljust(widths[name])
                for name in columns
            )
            return "  ".join(cells).rstrip()

        return "\n".join(line(row) for row in [titles, *rows])


def count(n: int, kind: str = "") -> str:
    """``1 rank``, ``2 ranks``, ``4 fresh ranks``."""
    return f"{n} {kind}rank" + ("s" if n != 1 else "")
