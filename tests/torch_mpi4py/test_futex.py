"""A thread sleeps in the kernel until a word changes."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy
import pytest
from torch_mpi4py.core import futex


@pytest.fixture
def address() -> Iterator[int]:
    """Return the address of a word that is 0."""
    words = numpy.zeros(1, numpy.uint64)
    yield words.ctypes.data
    del words  # it has to outlive the address


def test_wait_on_a_changed_word_returns_at_once(address: int) -> None:
    began = time.perf_counter()
    futex.sleep(address, 1, 60.0)
    assert time.perf_counter() - began < 30.0


@pytest.mark.parametrize(
    ("waited", "messages", "seconds"),
    [
        (0.0, False, 4e-3),
        (0.08, True, 0.02),
        (0.08, False, 0.02),
        (9.0, True, 0.025),
        (9.0, False, 0.1),
    ],
)
def test_sleeps_grow_with_the_wait(waited: float, messages: bool, seconds: float) -> None:
    assert futex.slice_seconds(waited, messages) == pytest.approx(seconds)
