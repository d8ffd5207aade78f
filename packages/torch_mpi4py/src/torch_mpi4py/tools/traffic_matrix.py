"""The counts of :mod:`.traffic`, which a notebook's own process can unpickle too.

(Importing :mod:`.traffic`, where the counting is done, would make it a rank.)
"""

from __future__ import annotations

from typing import NamedTuple

import numpy


class Count(NamedTuple):
    """Some messages, or calls of a collective, and the bytes in them: None if not known."""

    messages: int = 0
    bytes: int | None = 0

    def plus(self, size_bytes: int | None) -> Count:
        """Return the count with one more message."""
        if self.bytes is None or size_bytes is None:
            return Count(self.messages + 1, None)
        return Count(self.messages + 1, self.bytes + size_bytes)


class Matrix(NamedTuple):
    """How much each rank sent to each other rank.

    Attributes:
        messages: [R, R] int64, messages from rank (row) to rank (column), as their senders count.
        bytes: [R, R] int64, the bytes in them.
        received_messages: the same messages, as their receivers count.
        received_bytes: the same bytes.
        ranks: the world rank of each row and column.
    """

    messages: numpy.ndarray
    bytes: numpy.ndarray
    received_messages: numpy.ndarray
    received_bytes: numpy.ndarray
    ranks: tuple[int, ...]
