"""All-reduces of one host's ranks through shared memory, in rank order.

Each rank copies its numbers into its slot, all meet (:mod:`.arrivals`), and each adds up the
numbers of all slots, or combines them by another operation. Between more than two ranks, many
numbers are divided: each rank leaves its own share out when it copies, combines that share alone
and leaves the result in its slot; all meet again, and each copies the shares of the others. Either
way an element is combined in the order of ranks, so the result has the same bits in every run.

Many numbers go in chunks, so that the memory stays small and in the caches. While the shares of a
chunk are combined, the next chunk is copied in, so that one more chunk takes one more meeting.
Buffers are used in turns, by the number of the meeting that follows. What is copied in before
meeting m is read until a rank comes to meeting m + 1, or m + 2 if it is divided, and overwritten
after that: so two buffers do for two ranks, and three for more.
"""

from __future__ import annotations

import contextlib
import functools
import mmap
import os
import secrets
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy

from ..core import gpus
from ..core.buffers import SINGLE_FORMATS
from ..core.futex import IN_ORDER
from ..core.runtime import MPI
from .arrivals import Arrivals
from .sums import Sums

# Measured: smaller slots cost meetings, larger ones caches. Of shares a rank reads less at a time.
_BUFFERS, _SLOT_BYTES = 2, 1 << 19
_BUFFERS_IN_SHARES, _SLOT_BYTES_IN_SHARES = 3, 1 << 20
_UNDIVIDED_BYTES = 1 << 19  # of all ranks together: a meeting takes longer than combining so many
_FEW_BYTES = 1 << 14
_TOKEN_BYTES = 16
_HEADER_BYTES = 4096
_MOST_OPEN = 32  # further groups of this process leave their sums to MPI

_NUMPY_TYPE = {
    kind.handle: numpy.dtype(name)
    for kind, name in (
        *((MPI.UINT8_T, "u1"), (MPI.UINT16_T, "u2"), (MPI.UINT32_T, "u4"), (MPI.UINT64_T, "u8")),
        *((MPI.INT8_T, "i1"), (MPI.INT16_T, "i2"), (MPI.INT32_T, "i4"), (MPI.INT64_T, "i8")),
        *((MPI.FLOAT, "f4"), (MPI.DOUBLE, "f8"), (MPI.C_BOOL, "?")),
        *((MPI.C_FLOAT_COMPLEX, "c8"), (MPI.C_DOUBLE_COMPLEX, "c16")),
    )
}
_FUNCTION: dict[int, numpy.ufunc] = {
    op.handle: function
    for op, function in (
        *((MPI.SUM, numpy.add), (MPI.PROD, numpy.multiply)),
        *((MPI.MIN, numpy.minimum), (MPI.MAX, numpy.maximum)),
        *((MPI.BAND, numpy.bitwise_and), (MPI.LAND, numpy.logical_and)),
        *((MPI.BOR, numpy.bitwise_or), (MPI.LOR, numpy.logical_or)),
        *((MPI.BXOR, numpy.bitwise_xor), (MPI.LXOR, numpy.logical_xor)),
    )
}

_open = 0
_open_lock = threading.Lock()


class SharedSums(Sums):
    """Does the all-reduces of one communicator; :func:`open_shared_sums` makes it.

    Args:
        comm: the communicator.
        arrivals: where its ranks meet.
        memory: bytes that all its ranks have mapped.
    """

    most = sys.maxsize

    def __init__(self, comm: MPI.Intracomm, arrivals: Arrivals, memory: mmap.mmap) -> None:
        super().__init__(comm)
        self._arrivals = arrivals
        meet = arrivals.meet
        self._come = meet if IN_ORDER else functools.partial(_between_fences, meet)
        self._memory = memory
        self._buffers, self._slot_bytes = _buffers(self._size)
        # By MPI datatype: for each buffer, the slots of all ranks.
        self._slots: dict[int, list[list[numpy.ndarray]]] = {}
        # The same as bytes, and by the format of a single number.
        self._bytes = self._bytes_of_slots()
        self._singles: dict[str, list[list[memoryview[float]]]] = {
            kind: [[slot[:8].cast(kind) for slot in slots] for slots in self._bytes]
            for kind in SINGLE_FORMATS.values()
        }

    def close(self) -> None:
        """Give up the memory."""
        global _open
        self._slots.clear()
        self._bytes.clear()
        self._singles.clear()
        with _open_lock:
            _open -= 1

    def Allreduce(self, _in_place: object, message: list, op: MPI.Op) -> None:
        memory, count, datatype = message
        if not count:
            self._meet()
        elif op is not MPI.SUM or memory.nbytes > _FEW_BYTES:
            self._combine(memory, datatype, op)
        elif type(memory) is memoryview:
            self._add_single(memory)
        else:
            self._add_few(message)

    # To combine few numbers takes less time than to call the function that does it. Python takes
    # 0.1 us for one, MPI 0.5 us, and NumPy 2 us; in the middle of a training step, where none of
    # them is in the caches, 5, 25 and 50 us.

    def _add_single(self, memory: memoryview[float]) -> None:
        """Add up one floating-point number of each rank.

        A sum of two float32 that is worked out as float64 and then rounded is the float32 nearest
        to the exact sum, as if it had been worked out as float32: 53 bits are more than 2 * 24 + 1.
        """
        slots = self._singles[memory.format][self._arrivals.meetings % self._buffers]
        slots[self._rank][0] = memory[0]
        self._meet()
        memory[0] = slots[0][0]
        for slot in slots[1:]:
            memory[0] += slot[0]

    def _add_few(self, message: list) -> None:
        """Add up numbers of each rank by MPI's function for numbers in local memory."""
        memory, count, datatype = message
        size, slots = memory.nbytes, self._bytes[self._arrivals.meetings % self._buffers]
        slots[self._rank][:size] = memory
        self._meet()
        if self._rank:
            memory[:] = slots[0][:size]
        for slot in slots[1:]:
            MPI.SUM.Reduce_local([slot, count, datatype], message)

    @numpy.errstate(all="ignore")  # infinity without a warning, as in torch; takes 1 us
    def _combine(self, memory: Any, datatype: MPI.Datatype, op: MPI.Op) -> None:
        kind = datatype.handle
        numbers = numpy.frombuffer(memory, _NUMPY_TYPE[kind])
        slots = self._slots.get(kind) or self._view(kind)
        function = _FUNCTION[op.handle]
        if self._size > 2 and numbers.nbytes * self._size > _UNDIVIDED_BYTES:
            self._combine_in_shares(self._chunks(numbers), slots, function)
        elif numbers.nbytes <= self._slot_bytes:
            self._combine_whole(numbers, slots, function)
        else:
            for chunk in self._chunks(numbers):
                self._combine_whole(chunk, slots, function)

    def _chunks(self, numbers: numpy.ndarray) -> list[numpy.ndarray]:
        step = self._slot_bytes // numbers.itemsize
        return [numbers[begin : begin + step] for begin in range(0, len(numbers), step)]

    def _bytes_of_slots(self) -> list[list[memoryview]]:
        whole = memoryview(self._memory)[_HEADER_BYTES:]
        size, ranks = self._slot_bytes, self._size
        slots = [whole[begin : begin + size] for begin in range(0, len(whole), size)]
        return [slots[at : at + ranks] for at in range(0, len(slots), ranks)]

    def _view(self, kind: int) -> list[list[numpy.ndarray]]:
        whole = numpy.frombuffer(self._memory, _NUMPY_TYPE[kind], offset=_HEADER_BYTES)
        slots = [list(buffer) for buffer in whole.reshape(self._buffers, self._size, -1)]
        self._slots[kind] = slots
        return slots

    def _meet(self) -> None:
        if not self._come(self.work, self.signature, self.call):
            raise self._mismatch()

    def _next_buffer(self, slots: list[list[numpy.ndarray]]) -> list[numpy.ndarray]:
        # Counted here, they would differ after a call that did not match.
        return slots[self._arrivals.meetings % len(slots)]

    def _combine_whole(
        self, numbers: numpy.ndarray, slots: list[list[numpy.ndarray]], function: numpy.ufunc
    ) -> None:
        first, second, *others = here = self._next_buffer(slots)
        count = len(numbers)
        here[self._rank][:count] = numbers
        self._meet()
        # A rank's own numbers are still in its cache, and the result goes there: to add 512 KiB
        # takes 33 us, and 66 us if their copy is read and they are only written.
        first = numbers if self._rank == 0 else first[:count]
        second = numbers if self._rank == 1 else second[:count]
        function(first, second, out=numbers)
        for slot in others:
            function(numbers, slot[:count], out=numbers)

    def _combine_in_shares(
        self,
        chunks: list[numpy.ndarray],
        slots: list[list[numpy.ndarray]],
        function: numpy.ufunc,
    ) -> None:
        here = self._next_buffer(slots)
        self._hand_over(chunks[0], here)
        self._meet()
        for chunk, following in zip(chunks, [*chunks[1:], None], strict=True):
            self._combine_own_share(chunk, here, function)
            combined = here
            if following is not None:
                here = self._next_buffer(slots)
                self._hand_over(following, here)
            self._meet()
            for peer, slot in enumerate(combined):
                if peer != self._rank:
                    share = self._share(peer, chunk)
                    chunk[share] = slot[share]

    def _share(self, rank: int, chunk: numpy.ndarray) -> slice:
        count = len(chunk)
        return slice(count * rank // self._size, count * (rank + 1) // self._size)

    def _hand_over(self, chunk: numpy.ndarray, here: list[numpy.ndarray]) -> None:
        own, slot = self._share(self._rank, chunk), here[self._rank]
        slot[: own.start] = chunk[: own.start]
        slot[own.stop : len(chunk)] = chunk[own.stop :]

    def _combine_own_share(
        self, chunk: numpy.ndarray, here: list[numpy.ndarray], function: numpy.ufunc
    ) -> None:
        own = self._share(self._rank, chunk)
        parts = [slot[own] for slot in here]
        result, parts[self._rank] = parts[self._rank], chunk[own]
        function(parts[0], parts[1], out=result)
        for part in parts[2:]:
            function(result, part, out=result)
        chunk[own] = result


def _between_fences(meet: Callable[..., bool], *call: Any) -> bool:
    """Meet where other ranks may see in another order what this one writes.

    Numbers are written before the word that announces them, and read after it.
    """
    _fence()
    is_right = meet(*call)
    _fence()
    return is_right


def _fence() -> None:
    """Let no read or write of this thread pass.

    No earlier access can move past the release of a lock, and no later one ahead of taking it: on
    ARM nothing passes the pair, which stays in order.
    """
    for _ in range(2):
        with _open_lock:
            pass


def _buffers(ranks: int) -> tuple[int, int]:
    """Return how many buffers so many ranks use, and how many bytes each rank's slot has there."""
    if ranks == 2:
        return _BUFFERS, _SLOT_BYTES
    return _BUFFERS_IN_SHARES, _SLOT_BYTES_IN_SHARES


# --- the memory ---------------------------------------------------------------------------------


def open_shared_sums(comm: MPI.Intracomm, arrivals: Arrivals) -> SharedSums | None:
    """Return the object that does the all-reduces of ``comm``; each of its ranks must call this.

    The memory has no name: it goes with the last rank that has mapped it, and it does not count
    against the size of /dev/shm, 64 MB in many containers.

    Returns:
        None if one of the ranks can't map the memory, has too many open already, or if MPI takes
        the memory of GPUs, which is not here: then the all-reduces are MPI's.
    """
    global _open
    ranks = comm.Get_size()
    buffers, slot_bytes = _buffers(ranks)
    size = _HEADER_BYTES + buffers * ranks * slot_bytes
    with contextlib.ExitStack() as until_mapped:
        memory, place = _create(size, until_mapped) if comm.Get_rank() == 0 else (None, None)
        place = comm.bcast(place)
        if place is not None and comm.Get_rank() > 0:
            path, token = place
            memory = _map(path, token, size)
        with _open_lock:
            able = memory is not None and _open < _MOST_OPEN and not gpus.takes_cuda()
            _open += able
        agreed = comm.allreduce(able, MPI.LAND)
    if not agreed or memory is None:
        with _open_lock:
            _open -= able
        return None
    return SharedSums(comm, arrivals, memory)


def _create(
    size: int, until_mapped: contextlib.ExitStack
) -> tuple[mmap.mmap | None, tuple[str, bytes] | None]:
    if not hasattr(os, "memfd_create"):  # not Linux
        return None, None
    try:
        descriptor = os.memfd_create("torch_mpi4py sums")
        until_mapped.callback(os.close, descriptor)
        os.ftruncate(descriptor, size)
        memory = mmap.mmap(descriptor, size)
    except OSError:  # too many files or too little memory
        return None, None
    memory[:_TOKEN_BYTES] = token = secrets.token_bytes(_TOKEN_BYTES)
    return memory, (f"/proc/{os.getpid()}/fd/{descriptor}", token)


def _map(path: str, token: bytes, size: int) -> mmap.mmap | None:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:  # of another user, or in a container of its own
        return None
    try:
        memory = mmap.mmap(descriptor, size)
    except (OSError, ValueError):  # another file, or too little memory
        return None
    finally:
        os.close(descriptor)
    # In a container of its own the path may lead to a file of the same size.
    return memory if memory[:_TOKEN_BYTES] == token else None
