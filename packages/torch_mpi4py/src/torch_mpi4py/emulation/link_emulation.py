"""Emulate a slow link: a message is kept back until that link would have brought it.

::

    with emulated_link(latency=1e-3, bandwidth=100e6):  # seconds, bytes a second
        dist.send(tensor, 1)  # arrives 1 ms + bytes / (100 MB/s) later

Enter it on all ranks that talk to each other, with the same numbers.

- A message takes ``latency + bytes / bandwidth`` from its send on. Each ordered pair of processes
  has a link of its own, whatever the group, so links are full duplex; messages on one link go one
  after another. With ``one_port=True`` a process moreover sends one message at a time and takes
  in one at a time, as through one cable to a switch: the model of :mod:`..parallel.all_reduces`.
- The sender is done when the message arrives. It really leaves at that moment, by a thread of
  :mod:`~torch_mpi4py.emulation.link_queue`. So what MPI says of order, any source and waiting
  remains true, but nothing becomes faster: the real time of the transfer is added.
- A library collective ends on all ranks when the algorithm that
  :mod:`~torch_mpi4py.emulation.collective_costs` names would have ended on such links, counted
  from the last rank's start; never before it has really ended. Bytes are those of the tensors
  handed over. Collectives of a group follow one another; they take nothing from messages and
  other groups.
- In nested blocks the innermost counts. A block keeps what is sent in it (also what DDP starts)
  until it has left; after an exception all that is kept back leaves at once.
- Times below about 0.1 ms are the machine's, not the link's. Where ranks are on several machines
  a collective counts from when a rank learns that all have started.
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

from ..core.errors import MismatchError
from ..core.runtime import MPI
from .collective_costs import collective_seconds
from .link_queue import HeldSend, let_all_go, port_in, see_off, sleep_until
from .machine import clock_identity

_Held = TypeVar("_Held", bound=HeldSend)
_lock = threading.Lock()
entered_links: list[EmulatedLink] = []
"""Those of the blocks that this process is in; the last one is in force."""


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
        """What the ranks of a collective must agree on."""
        return float(self.latency), float(self.bandwidth)


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
        entered_links.append(link)
    try:
        yield link
        see_off(link._held)
    except BaseException:
        let_all_go()
        raise
    finally:
        with _lock:
            entered_links.remove(link)
        see_off(link._held)


def current() -> EmulatedLink | None:
    """Return the link in force in this process, None outside of all blocks."""
    return entered_links[-1] if entered_links else None


# --- messages -----------------------------------------------------------------------------


def hold_back(
    link: EmulatedLink,
    comm: MPI.Comm,
    dest: int,
    size_bytes: float,
    start: Callable[[], MPI.Request],
    kind: type[_Held],
) -> _Held:
    """Have a message to rank ``dest`` of ``comm`` sent by ``start`` after its time on ``link``."""
    held = kind(comm, dest, link.seconds(size_bytes), link.one_port, start)
    with _lock:
        while link._held and link._held[0].gone.is_set():
            link._held.popleft()
        link._held.append(held)
    return held


def send_by(
    start: Callable[[], MPI.Request], comm: MPI.Comm, dest: int, size_bytes: int
) -> MPI.Request | HeldSend:
    """Return the request of ``start()``, which sends a message, on the link in force if any."""
    link = current()
    if link is None:
        return start()
    return hold_back(link, comm, dest, size_bytes, start, HeldSend)


def take_in(comm: MPI.Comm, size_bytes: int) -> None:
    """Wait until a message that has come is in: no time, unless there is one port."""
    link = current()
    if link is not None and link.one_port:
        sleep_until(port_in(link.seconds(size_bytes)), comm)


# --- collectives --------------------------------------------------------------------------


def start_collective(
    link: EmulatedLink, comm: MPI.Intracomm, name: str, size_bytes: float
) -> float:
    """Return when collective ``name`` is to end; every rank of ``comm`` must call this.

    Args:
        size_bytes: as in :func:`~torch_mpi4py.emulation.collective_costs.collective_seconds`; the
            largest of all ranks counts.

    Raises:
        MismatchError: on all ranks, if they are in blocks with different numbers.
    """
    if comm.Get_size() == 1:
        return 0.0
    own = numpy.array([*link.numbers, clock_identity()])
    values = numpy.array([time.perf_counter(), size_bytes, *own, *-own])
    MPI.Intracomm.Allreduce(comm, MPI.IN_PLACE, values, MPI.MAX)
    same = values[2:5] == -values[5:8]
    if not same[:2].all():
        raise MismatchError(
            f"{name}: this rank emulates a link of {link.latency:g} s and {link.bandwidth:g} "
            "bytes/s, another rank a different one; give all ranks the same numbers"
        )
    begin = values[0] if same[2] else time.perf_counter()
    seconds = collective_seconds(name, comm.Get_size(), values[1], link.latency, 1 / link.bandwidth)
    return float(begin + seconds)
