"""Emulate a slow link: a message is delayed until that link would have delivered it.

::

    with emulated_link(latency=1e-3, bandwidth=100e6):  # seconds, bytes a second
        dist.send(tensor, 1)  # arrives 1 ms + bytes / (100 MB/s) later

Enter it on all ranks that talk to each other, with the same numbers.

- A message takes ``latency + bytes / bandwidth`` from its send. Each ordered pair of processes has
  its own link, whatever the group, so links are full duplex; messages on one link go one after
  another. With ``one_port=True``, a process also sends only one message at a time and receives
  only one at a time, as through one cable to a switch: the model of :mod:`..parallel.all_reduces`.
- The sender is done when the message arrives. The message really leaves at that moment, from a
  thread of :mod:`~torch_mpi4py.emulation.link_queue`. So MPI's rules of order, any source and
  waiting still hold, but nothing becomes faster: the real time of the transfer is added.
- A library collective ends on all ranks when the algorithm that
  :mod:`~torch_mpi4py.emulation.collective_costs` names would have ended on such links, counted
  from the last rank's start, and never before it has really ended. Bytes are those of the given
  tensors. Collectives of a group run one after another; they take no bandwidth from messages and
  other groups.
- In nested blocks, the innermost counts. A block ends only when everything sent in it (by DDP as
  well) has left; after an exception, all delayed messages leave at once.
- Times below about 0.1 ms are the machine's, not the link's. If ranks are on several machines, a
  collective's time begins when a rank learns that all have started.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

import numpy

from ..core import links
from ..core.errors import MismatchError
from ..core.runtime import MPI
from .calls import call_on_link, start_on_link
from .collective_costs import collective_seconds
from .link_queue import HeldSend, let_all_go, port_in, see_off, sleep_until
from .machine import clock_identity

_Result = TypeVar("_Result")
_lock = threading.Lock()


@dataclass(frozen=True, eq=False)
class EmulatedLink:
    """The link in force: seconds of latency, bytes a second, one port a process or not."""

    latency: float
    bandwidth: float
    one_port: bool = False
    _held: deque[HeldSend] = field(default_factory=deque, repr=False)

    def __post_init__(self) -> None:
        for name, value in (("latency", self.latency), ("bandwidth", self.bandwidth)):
            if not hasattr(value, "__float__"):
                raise TypeError(f"{name} must be a number, not {value!r}")
        if not 0 <= self.latency < math.inf:
            raise ValueError(f"latency must be 0 seconds or more, not {self.latency}")
        if not self.bandwidth > 0:
            raise ValueError(f"bandwidth must be above 0 bytes a second, not {self.bandwidth}")

    def seconds(self, size_bytes: float) -> float:
        """Return what one message of ``size_bytes`` takes."""
        return self.latency + size_bytes / self.bandwidth

    @property
    def numbers(self) -> tuple[float, float]:
        """The settings on which the ranks of a collective must agree."""
        return float(self.latency), float(self.bandwidth)

    # --- messages -------------------------------------------------------------------------

    def send(
        self,
        start: Callable[[], MPI.Request],
        comm: MPI.Comm,
        dest: int,
        size_bytes: float,
        kind: type[HeldSend] | None = None,
    ) -> HeldSend:
        """Have a message to rank ``dest`` of ``comm`` sent by ``start`` after its time."""
        held = (kind or HeldSend)(comm, dest, self.seconds(size_bytes), self.one_port, start)
        with _lock:
            while self._held and self._held[0].gone.is_set():
                self._held.popleft()
            self._held.append(held)
        return held

    def take_in(self, comm: MPI.Comm, size_bytes: int) -> None:
        """Wait until the link has delivered a message: no time, unless there is one port."""
        if self.one_port:
            sleep_until(port_in(self.seconds(size_bytes)), comm)

    # --- collectives ----------------------------------------------------------------------

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
            size_bytes: as in :func:`~torch_mpi4py.emulation.collective_costs.collective_seconds`;
                the largest of all ranks counts.

        Raises:
            MismatchError: on all ranks, if they are in blocks with different numbers.
        """
        due = self._end_of_collective(name, comm, size_bytes)
        result = run()
        sleep_until(due, comm, given_up)
        return result

    def _end_of_collective(self, name: str, comm: MPI.Intracomm, size_bytes: float) -> float:
        if comm.Get_size() == 1:
            return 0.0
        own = numpy.array([*self.numbers, clock_identity()])
        values = numpy.array([time.perf_counter(), size_bytes, *own, *-own])
        MPI.Intracomm.Allreduce(comm, MPI.IN_PLACE, values, MPI.MAX)
        same = values[2:5] == -values[5:8]
        if not same[:2].all():
            raise MismatchError(
                f"{name}: this rank emulates a link of {self.latency:g} s and {self.bandwidth:g} "
                "bytes/s, and another rank emulates a different one; give all ranks the same "
                "numbers"
            )
        begin = values[0] if same[2] else time.perf_counter()
        seconds = collective_seconds(
            name, comm.Get_size(), values[1], self.latency, 1 / self.bandwidth
        )
        return float(begin + seconds)

    # --- mpi4py's calls -------------------------------------------------------------------

    call = call_on_link
    start = start_on_link


@contextlib.contextmanager
def emulated_link(
    latency: float = 0.0, bandwidth: float = math.inf, one_port: bool = False
) -> Iterator[EmulatedLink]:
    """Within the block, messages take as long as on such a link; see the module's text.

    Args:
        latency: seconds a message.
        bandwidth: bytes a second, each way.
        one_port: whether a process sends one message at a time and takes in one at a time.
    """
    link = EmulatedLink(latency, bandwidth, one_port)
    with _lock:
        links.entered.append(link)
    try:
        yield link
        see_off(link._held)
    except BaseException:
        let_all_go()
        raise
    finally:
        with _lock:
            links.entered.remove(link)
        see_off(link._held)
