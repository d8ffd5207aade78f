"""The picture of who sent how much to whom."""

from __future__ import annotations

import pickle
import subprocess
import sys

import numpy
import pytest
from torch_mpi4py.tools.traffic_matrix import Matrix

from course_lib.teaching import figures
from course_lib.teaching.figures.traffic import spelled


def ring(ranks: int, size_bytes: int) -> Matrix:
    messages = numpy.roll(numpy.eye(ranks, dtype=int), 1, axis=1)
    tables = [messages, messages * size_bytes]
    return Matrix(*tables, *tables, tuple(range(ranks)))


def test_figure_shows_every_number() -> None:
    drawn = figures.traffic(ring(3, 1536), title="a ring")
    assert drawn.svg.count("1.5 KiB") == 3
    assert "3 messages, 4.5 KiB in all" in drawn.svg
    assert "Rank 1: 1 message of 1536 bytes in all to rank 2." in drawn.alt
    assert "a ring" in drawn.alt


def test_traffic_rejects_more_than_16_ranks() -> None:
    assert "rank 15" in figures.traffic(ring(16, 1)).alt
    with pytest.raises(ValueError, match="more than 16"):
        figures.traffic(ring(17, 1))


def test_pickled_matrix_loads_without_mpi() -> None:
    code = (
        "import pickle, sys\n"
        "matrix = pickle.load(sys.stdin.buffer)\n"
        "assert matrix.bytes.tolist() == [[0, 8], [8, 0]]\n"
        "sys.exit(bool({'mpi4py', 'torch'} & set(sys.modules)))"
    )
    sent = pickle.dumps(ring(2, 8))
    assert subprocess.run([sys.executable, "-c", code], input=sent, timeout=60).returncode == 0


@pytest.mark.parametrize(
    ("size_bytes", "words"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1500, "1.46 KiB"),
        (1023.5 * 1024, "1024 KiB"),
        (3 * 2**20, "3 MiB"),
    ],
)
def test_bytes_are_formatted(size_bytes, words) -> None:
    assert spelled(size_bytes) == words
