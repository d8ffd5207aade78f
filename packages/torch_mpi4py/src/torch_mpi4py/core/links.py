"""The hook for emulated links, which carry calls in place of MPI while one is entered.

Nothing here knows how a link works. Calls, messages and collectives ask for the link in force, and
let it carry them if there is one. :mod:`torch_mpi4py.emulation` has slow links.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from .runtime import MPI

_Result = TypeVar("_Result")

entered: list[Link] = []
"""The links of the blocks that this process is in; the last one is in force."""
held: list[Any] = []
"""The messages that links keep back for now."""
ends: list[Callable[[float], object]] = []
"""Called before ``MPI_Finalize``, with the seconds that each may take: the links' threads end."""


class Link(Protocol):
    """Carries calls in place of MPI itself."""

    @property
    def numbers(self) -> tuple[float, float]:
        """What a collective's ranks must agree on: seconds of latency, bytes a second."""

    def send(
        self,
        start: Callable[[], MPI.Request],
        comm: MPI.Comm,
        dest: int,
        size_bytes: float,
        kind: type[Any] | None = None,
    ) -> Any:
        """Have ``start`` send a message to rank ``dest`` of ``comm``; return its request.

        It has the methods of an ``MPI.Request`` but isn't one: MPI may not know it yet. ``kind`` is
        its class, if not the link's usual one.
        """

    def take_in(self, comm: MPI.Comm, size_bytes: int) -> None:
        """Wait until the link has delivered a message that MPI has received."""

    def collective(
        self,
        name: str,
        comm: MPI.Intracomm,
        size_bytes: float,
        run: Callable[[], _Result],
        given_up: Callable[[], bool] = lambda: False,
    ) -> _Result:
        """Return the result of ``run()``, a collective that every rank of ``comm`` calls.

        Args:
            name: torch's name of it, such as ``all_reduce``.
            size_bytes: of the largest part that this rank hands over.
            run: does it.
            given_up: whether no thread waits for it any more.
        """

    def call(self, name: str, comm: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Return ``comm.name(*args, **kwargs)``, a blocking call of mpi4py.

        A call that receives must have been given a status.
        """

    def start(self, name: str, comm: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Return the request of ``comm.name(*args, **kwargs)``, a non-blocking call of mpi4py."""


def current() -> Link | None:
    """Return the link in force in this process, None where calls go to MPI."""
    return entered[-1] if entered else None
