"""The judge of lesson 11 for a rank's share of a packed file: its samples, and what was read.

The file is a real one that also counts its calls.
"""

from __future__ import annotations

import io
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from course_lib.teaching.exercise import WrongAnswer
from course_lib.teaching.judges.formulas import name_the_mistake

# Samples of different lengths, none a multiple of another; 11 do not divide by 2, 3 or 4.
_LENGTHS = (5, 9, 2, 7, 11, 3, 8, 1, 6, 4, 10)
_SIZES = (4, 3, 1, 13)  # of 13 ranks two have nothing to read
_RANKS = tuple((rank, size) for size in _SIZES for rank in range(size))
_HEADER = 16  # the first sample does not begin at byte 0


class CountedFile(io.FileIO):
    """A file that remembers what was read from it: position and length of each read."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "rb")
        self.reads: list[tuple[int, int]] = []

    def read(self, size: int | None = -1, /) -> bytes:
        at = self.tell()
        found = super().read(-1 if size is None else size)
        self.reads.append((at, len(found or b"")))
        return found or b""

    def readall(self) -> bytes:
        at = self.tell()
        found = super().readall()
        self.reads.append((at, len(found or b"")))
        return found or b""

    def readinto(self, buffer: Any, /) -> int:
        at = self.tell()
        length = super().readinto(buffer) or 0
        self.reads.append((at, length))
        return length


def packed(folder: Path) -> tuple[Path, list[int], list[bytes]]:
    """Write a packed file; return its path, where its samples start, and the samples."""
    samples = [bytes([65 + number]) * length for number, length in enumerate(_LENGTHS)]
    starts = [_HEADER]
    for sample in samples:
        starts.append(starts[-1] + len(sample))
    path = folder / "samples.bin"
    path.write_bytes(b"#" * _HEADER + b"".join(samples) + b"the end of the file")
    return path, starts, samples


def judge_read_share(read_share: Callable) -> None:
    """Raise WrongAnswer unless each rank gets its samples, by one read of just those bytes."""
    with tempfile.TemporaryDirectory() as folder:
        path, starts, samples = packed(Path(folder))
        tried: dict[tuple[int, int], list[tuple[int, int]]] = {}
        given, changed, closed = {}, [], []
        for rank, size in _RANKS:
            with CountedFile(path) as file:
                file.seek(3)  # an arbitrary position
                own = list(starts)
                given[rank, size] = read_share(file, own, rank, size)
                closed += [_who(rank, size)] if file.closed else []
            tried[rank, size] = file.reads
            changed += [_who(rank, size)] if own != starts else []
        _judge_samples(given, samples)
        if changed:
            raise WrongAnswer("changes-its-input", who=changed[0])
        if closed:
            raise WrongAnswer("closes-the-file", who=closed[0])
        for (rank, size), reads in tried.items():
            first, last = _share(len(samples), rank, size)
            _judge_reads(reads, starts[first], starts[last], rank, size, starts[-1])


def _share(n: int, rank: int, world_size: int) -> tuple[int, int]:
    return n * rank // world_size, n * (rank + 1) // world_size


def _who(rank: int, size: int) -> str:
    return f"rank {rank} of {size}"


def _judge_samples(given: dict[tuple[int, int], Any], samples: list[bytes]) -> None:
    pieces = {case: _pieces(found, _who(*case)) for case, found in given.items()}
    shares = {case: samples[slice(*_share(len(samples), *case))] for case in given}
    wrong = [case for case in given if pieces[case] != shares[case]]
    if not wrong:
        return

    def gives_the_same(makes: Callable[[list[bytes], int, int], list[bytes]]) -> bool:
        return all(found == makes(samples, *case) for case, found in pieces.items())

    name_the_mistake(_READ_MISTAKES, gives_the_same, who=_who(*wrong[0]))
    _explain(pieces[wrong[0]], shares[wrong[0]], _who(*wrong[0]))


def _pieces(found: Any, who: str) -> list[bytes]:
    if found is None:
        raise WrongAnswer("returns-nothing", who=who)
    if isinstance(found, (bytes, bytearray, memoryview)):
        raise WrongAnswer("one-piece-not-a-list", who=who, nbytes=len(found))
    try:
        pieces = [*found]
        if any(isinstance(piece, memoryview) for piece in pieces):
            raise WrongAnswer("views-not-bytes", who=who)
        return [bytes(piece) for piece in pieces]
    except (TypeError, ValueError):
        raise WrongAnswer("not-bytes", who=who, kind=type(found).__name__) from None


def _equal_shares(samples: list[bytes], rank: int, size: int) -> list[bytes]:
    each = len(samples) // size
    return samples[rank * each : (rank + 1) * each]


def _remainder_to_the_last(samples: list[bytes], rank: int, size: int) -> list[bytes]:
    each = len(samples) // size
    return samples[rank * each : len(samples) if rank == size - 1 else (rank + 1) * each]


def _rounded_up(samples: list[bytes], rank: int, size: int) -> list[bytes]:
    each = -(-len(samples) // size)
    return samples[rank * each : (rank + 1) * each]


def _of_the_starts(samples: list[bytes], rank: int, size: int) -> list[bytes]:
    return samples[slice(*_share(len(samples) + 1, rank, size))]


_READ_MISTAKES: tuple[tuple[str, Callable[[list[bytes], int, int], list[bytes]]], ...] = (
    ("every-size-th-sample", lambda samples, rank, size: samples[rank::size]),
    ("drops-the-remainder", _equal_shares),
    ("remainder-to-the-last", _remainder_to_the_last),
    ("everything", lambda samples, rank, size: samples),
    ("rounds-the-share-up", _rounded_up),
    ("takes-starts-for-samples", _of_the_starts),
    (
        "size-is-fixed",
        lambda samples, rank, size: samples[slice(*_share(len(samples), rank, _SIZES[0]))],
    ),
    (
        "one-sample-too-few",
        lambda samples, rank, size: samples[slice(*_share(len(samples), rank, size))][:-1],
    ),
)


def _explain(pieces: list[bytes], share: list[bytes], who: str) -> None:
    """Raise the WrongAnswer that explains the wrong pieces of one rank."""
    if pieces and not share:
        raise WrongAnswer("nothing-is-no-sample", who=who, given=pieces[:2])
    joined, right = b"".join(pieces), b"".join(share)
    if b"#" in joined or (len(joined) == len(right) and joined != right):
        raise WrongAnswer("wrong-place-in-the-file", who=who)
    if joined == right or [len(p) for p in pieces] != [len(s) for s in share]:
        raise WrongAnswer(
            "cut-in-wrong-places",
            who=who,
            given=[len(p) for p in pieces][:6],
            wanted=[len(s) for s in share][:6],
        )
    raise WrongAnswer("wrong-samples", who=who, given=pieces[:2], wanted=share[:2])


def _judge_reads(
    reads: list[tuple[int, int]], begin: int, end: int, rank: int, size: int, whole: int
) -> None:
    who = _who(rank, size)
    total = sum(length for _, length in reads)
    # At the end of a file an empty read may follow, which costs next to nothing.
    count = sum(length > 0 for _, length in reads)
    if total < end - begin:
        raise WrongAnswer("not-by-read", who=who, total=total, needed=end - begin)
    if total >= whole and size > 1:
        raise WrongAnswer("reads-the-whole-file", who=who, total=total, needed=end - begin)
    if count > 1:
        raise WrongAnswer("a-read-for-each-sample", who=who, count=count)
    if total > end - begin:
        raise WrongAnswer("reads-too-much", who=who, total=total, needed=end - begin)
