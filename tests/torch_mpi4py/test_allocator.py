"""What the allocator is told shows in the pages that a step has to fetch."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from torch_mpi4py.core.allocator import keep_freed_memory

MIB = 2**20
# Three blocks are made, written and freed in every turn; together they are more than glibc keeps
# after it has learned from them (twice the largest block, if that has at most 32 MiB).
PROGRAM = """
import ctypes, resource, sys
from torch_mpi4py.core.allocator import keep_freed_memory

kept = keep_freed_memory() if sys.argv[1] == "keep" else False
size = int(sys.argv[2]) * 2**20
libc = ctypes.CDLL(None)
libc.prctl(41, 1, 0, 0, 0)  # PR_SET_THP_DISABLE: a huge page would count as one
libc.malloc.restype = ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]

def turn():
    blocks = [libc.malloc(ctypes.c_size_t(size)) for _ in range(3)]
    for block in blocks:
        ctypes.memset(block, 1, size)
    for block in reversed(blocks):
        libc.free(block)

for _ in range(3):
    turn()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    turn()
print(kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
SIZES = (24, 64)  # in MiB


def pages_of(size: int) -> int:
    """Return how many pages ten turns use."""
    return 10 * 3 * size * MIB // os.sysconf("SC_PAGE_SIZE")


glibc = pytest.mark.skipif(
    "glibc" not in (os.confstr("CS_GNU_LIBC_VERSION") or "") if sys.platform == "linux" else True,
    reason="the C library is not glibc",
)


def run(how: str, size: int, **variables: str) -> tuple[bool, int]:
    """Return whether memory is kept, and how many pages ten turns have fetched."""
    plain = {name: value for name, value in os.environ.items() if "MALLOC" not in name}
    for name in ("GLIBC_TUNABLES", "TORCH_MPI4PY_KEEP_FREED_MEMORY"):
        plain.pop(name, None)
    answer = subprocess.run(
        [sys.executable, "-c", PROGRAM, how, str(size)],
        env=plain | variables,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    kept, pages = answer.stdout.split()
    return kept == "True", int(pages)


@glibc
@pytest.mark.parametrize("size", SIZES)
def test_freed_memory_is_reused(size: int) -> None:
    """A few pages may be fetched for the interpreter's own sake."""
    kept, pages = run("keep", size)
    assert kept
    assert pages < pages_of(size) / 100


@glibc
@pytest.mark.parametrize("size", SIZES)
def test_default_allocator_refetches_pages_each_turn(size: int) -> None:
    """Else the test above would show nothing."""
    kept, pages = run("plain", size)
    assert not kept
    assert pages > pages_of(size) / 4


@glibc
def test_memory_over_the_limit_returns_to_the_system() -> None:
    """Three blocks of 100 MiB are more than 256."""
    kept, pages = run("keep", 100)
    assert kept
    assert pages > pages_of(100) / 4


@pytest.mark.parametrize(
    "variables",
    [
        {"TORCH_MPI4PY_KEEP_FREED_MEMORY": "0"},
        {"MALLOC_TRIM_THRESHOLD_": "100000"},
        {"MALLOC_MMAP_THRESHOLD_": "100000"},
        {"MALLOC_MMAP_MAX_": "100"},
        {"GLIBC_TUNABLES": "glibc.malloc.trim_threshold=100000"},
    ],
    ids=lambda variables: "-".join(variables),
)
def test_user_allocator_settings_are_respected(variables: dict[str, str]) -> None:
    assert not keep_freed_memory(variables)


@glibc
def test_unrelated_glibc_tunables_are_ignored() -> None:
    kept, pages = run("keep", 24, GLIBC_TUNABLES="glibc.pthread.rseq=1")
    assert kept
    assert pages < pages_of(24) / 100


@glibc
def test_rank_keeps_freed_memory() -> None:
    """Nothing needs to be asked for: starting MPI by the backend is enough."""
    answer = subprocess.run(
        [sys.executable, "-c", "from torch_mpi4py import MPI\n" + PROGRAM, "plain", "24"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert int(answer.stdout.split()[1]) < pages_of(24) / 100


@glibc
def test_memory_below_a_block_in_use_is_returned_with_the_last_group() -> None:
    """The end of the heap is in use, so freeing the tensor below it returns nothing."""
    program = """
import psutil, torch, torch.distributed as dist
dist.init_process_group("mpi4py", init_method="mpi://")
large = torch.ones(150 * 2**20)
above = [torch.ones(1000) for _ in range(1000)]
del large
before = psutil.Process().memory_info().rss
dist.destroy_process_group()
print(before - psutil.Process().memory_info().rss)
"""
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert int(answer.stdout) > 500 * MIB
