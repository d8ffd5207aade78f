"""Sleep in the kernel until a word of shared memory changes: a *futex* of Linux.

The kernel compares the word and puts the thread to sleep in one step, so whoever writes the word
and wakes afterwards is never missed. Source: ``man 2 futex``. Other systems sleep for a moment.
"""

from __future__ import annotations

import ctypes
import functools
import platform
import struct
import sys
import time

import numpy

_CALLS = {"x86_64": 202, "aarch64": 98, "ppc64le": 221, "s390x": 238, "riscv64": 98}
_WAIT, _WAKE, _EVERYONE = 0, 1, 2**31 - 1
_number = _CALLS.get(platform.machine()) if sys.platform == "linux" else None
_LOW = 0 if sys.byteorder == "little" else 4  # where in 64 bits the 32 are that are compared
_NAP_SECONDS = 1e-3

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
    """Sleep for at most ``seconds``, and not while the word at ``address`` is not ``seen``.

    Args:
        address: of 64 bits, of which the lower 32 are compared.
        seen: what the caller has read there.
        seconds: one of a few values: each is kept.

    It may return at any time: look again.
    """
    if _number is None:
        time.sleep(min(seconds, _NAP_SECONDS))
    else:
        limit = _timespec(seconds)
        _syscall(_number, address + _LOW, _WAIT, seen & 0xFFFFFFFF, limit, None, 0)


@functools.cache
def _timespec(seconds: float) -> ctypes.Array:
    return ctypes.create_string_buffer(struct.pack("qq", int(seconds), int(seconds % 1 * 1e9)))
