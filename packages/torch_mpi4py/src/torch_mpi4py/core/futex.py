"""Sleep in the kernel until a word of shared memory changes: a *futex* of Linux.

The kernel compares the word and puts the thread to sleep in one step, so a thread that writes the
word and then wakes others is never missed. Source: ``man 2 futex``. Other systems sleep briefly.

This module also defines the slices in which ranks that wait for each other sleep.
"""

from __future__ import annotations

import ctypes
import platform
import struct
import sys
import threading
import time

import numpy

_CALLS = {"x86_64": 202, "aarch64": 98, "ppc64le": 221, "s390x": 238, "riscv64": 98}
_WAIT, _WAKE, _EVERYONE = 0, 1, 2**31 - 1
_number = _CALLS.get(platform.machine()) if sys.platform == "linux" else None
_LOW = 0 if sys.byteorder == "little" else 4  # where in 64 bits the 32 are that are compared
_NAP_SECONDS = 1e-3

SLICE_SECONDS = 4e-3  # at first: as long as messages under way may stand still
_PART = 1 / 4  # of its wait so far: how long a rank sleeps in one go later
LONG_SLICE_SECONDS = 25e-3  # at most
LONGEST_SLICE_SECONDS = 0.1  # at most, while no message of this rank is under way

IN_ORDER = platform.machine() in {"x86_64", "AMD64"}
"""Whether other threads see what one writes in the order in which it does."""
ASKS_FIRST = IN_ORDER
"""Whether a rank checks for sleepers before it wakes them, which saves a system call.

It must not read that before its own write is visible. There, taking and releasing a lock is a
barrier that no read passes; elsewhere a rank wakes the others without checking. That takes a system
call each time: 0.5 us if no thread sleeps, and as much again through ctypes. A missed wake-up costs
a slice of 4 to 100 ms (`case_no_rank_oversleeps` makes these slices 10 s long).
"""
barrier = threading.Lock()

_syscall = ctypes.CDLL(None).syscall
_syscall.argtypes = [
    *(ctypes.c_long, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32),
    *(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int),
]
_syscall.restype = ctypes.c_long


def address_of(words: memoryview) -> int:
    """Return the address of the first of ``words``, of 64 bits each."""
    return numpy.frombuffer(words, numpy.uint64).ctypes.data


def wake(address: int) -> None:
    """Wake all threads, of any process, that sleep until the word at ``address`` changes."""
    if _number is not None:
        _syscall(_number, address + _LOW, _WAKE, _EVERYONE, None, None, 0)


def sleep(address: int, seen: int, seconds: float) -> None:
    """Sleep for at most ``seconds``, and only while the word at ``address`` is still ``seen``.

    Args:
        address: of 64 bits, of which the lower 32 are compared.
        seen: the value that the caller has read there.
        seconds: for how long at most.

    It may return at any time: look again.
    """
    if _number is None:
        time.sleep(min(seconds, _NAP_SECONDS))
    else:
        limit = _timespec(seconds)
        _syscall(_number, address + _LOW, _WAIT, seen & 0xFFFFFFFF, limit, None, 0)


def slice_seconds(waited: float, messages: bool) -> float:
    """Return how long to sleep in one go after ``waited`` seconds.

    Args:
        messages: whether messages of this rank may be under way, which it has to move.
    """
    longest = LONG_SLICE_SECONDS if messages else LONGEST_SLICE_SECONDS
    return max(SLICE_SECONDS, min(waited * _PART, longest))


def _timespec(seconds: float) -> ctypes.Array:
    return ctypes.create_string_buffer(struct.pack("qq", int(seconds), int(seconds % 1 * 1e9)))
