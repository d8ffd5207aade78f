"""Which GPU a rank takes and what carries its tensors: decisions, from data of machines not here.

Only the questions to MPI are asked for real. No GPU takes part: see cases/gpus.py.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch_mpi4py import launch
from torch_mpi4py.core import gpus
from torch_mpi4py.group import futures

HOSTS = ["a", "a", "b", "a", "b"]


def test_ranks_are_counted_on_their_own_host() -> None:
    assert [gpus.local_rank(rank, HOSTS) for rank in range(5)] == [0, 1, 0, 2, 1]


@pytest.mark.parametrize(
    ("count", "devices"),
    [
        (0, ["cpu", "cpu", "cpu", "cpu"]),
        (1, ["cuda:0", "cuda:0", "cuda:0", "cuda:0"]),  # all share it, or each is shown its own
        (2, ["cuda:0", "cuda:1", "cuda:0", "cuda:1"]),
        (8, ["cuda:0", "cuda:1", "cuda:2", "cuda:3"]),
    ],
)
def test_gpus_are_assigned_by_local_rank(count: int, devices: list[str]) -> None:
    assert [gpus.device_name(rank, count) for rank in range(4)] == devices


def test_two_hosts_assign_their_own_gpus() -> None:
    there = {"a": 2, "b": 1}
    devices = [gpus.device_name(gpus.local_rank(r, HOSTS), there[HOSTS[r]]) for r in range(5)]
    assert devices == ["cuda:0", "cuda:1", "cuda:0", "cuda:0", "cuda:0"]


@pytest.mark.parametrize(
    ("identities", "own"),
    [
        (["a 0:1:0", "a 0:2:0"], True),
        (["a 0:1:0", "b 0:1:0"], True),  # the same place in two hosts
        (["a 0:1:0", "a 0:1:0"], False),
        (["a 0:1:0", ""], False),  # one has none
        ([""], False),
        (["a 0:1:0"], True),
    ],
)
def test_nccl_needs_one_gpu_per_rank(identities: list[str], own: bool) -> None:
    assert gpus.own_gpu_each(identities) is own


def test_cpu_has_no_gpu_identity() -> None:
    assert gpus.identity("cpu") == ""


@pytest.mark.parametrize(
    ("environment", "kinds", "answer", "takes"),
    [
        ({}, "", None, False),
        ({}, "", 0, False),
        ({}, "", 1, True),
        ({}, "mpi,system", 0, False),
        ({}, "mpi,system,cuda:device", None, True),
        ({}, "mpi, cuda", 0, True),
        ({}, "rocm:device,level_zero:device", None, False),
        ({"TORCH_MPI4PY_STAGE": "1"}, "cuda:device", 1, False),
        ({"TORCH_MPI4PY_STAGE": "0"}, "", 1, True),
    ],
)
def test_cuda_awareness_is_read_from_the_mpi(
    environment: dict[str, str], kinds: str, answer: int | None, takes: bool
) -> None:
    query = None if answer is None else lambda: answer
    assert gpus.says_it_takes_cuda(environment, kinds, query) is takes


def test_cuda_awareness_agrees_with_ompi_info() -> None:
    """The function is found in the library that runs here, and agrees with ompi_info."""
    program = (
        "import json; from torch_mpi4py import MPI; from torch_mpi4py.core import gpus; "
        "query = gpus.query_of_mpi(); "
        "print(json.dumps([query is not None and query(), gpus.takes_cuda()]))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env=launch.environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    answer, takes = json.loads(ended.stdout)
    info = subprocess.run(
        [launch.find_mpiexec().with_name("ompi_info"), "--parsable", "--all"],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    built = "opal_built_with_cuda_support:value:true" in info.stdout
    assert ":opal_built_with_cuda_support:value:" in info.stdout
    assert answer is not False, "this MPI has no MPIX_Query_cuda_support"
    assert takes is (answer == 1)
    assert built or not answer


def test_library_is_found_by_its_name() -> None:
    assert gpus.loaded_library(("libno-such-thing",)) is None
    found = gpus.loaded_library(("libc.so",))
    assert isinstance(found, ctypes.CDLL)
    assert found.getpid() > 0


@pytest.mark.skipif(sys.platform != "linux", reason="libraries are found on Linux only")
def test_library_is_found_in_a_folder_with_a_space(tmp_path: Path) -> None:
    import _ctypes

    copy = tmp_path / "my envs" / "lib_of_this_test.so"
    copy.parent.mkdir()
    shutil.copy(_ctypes.__file__, copy)
    ctypes.CDLL(str(copy))
    found = gpus.loaded_library(("lib_of_this_test",))
    assert found is not None
    assert found._name == str(copy)


def test_callbacks_run_with_the_gpu_of_their_future(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for ``torch.cuda.device`` notes which GPU is current when."""
    current: list[torch.device] = []

    @contextlib.contextmanager
    def device(chosen: torch.device) -> Iterator[None]:
        current.append(chosen)
        yield
        current.pop()

    plain = torch.futures.Future.__init__
    monkeypatch.setattr(torch.futures.Future, "__init__", lambda self, devices=None: plain(self))
    monkeypatch.setattr(torch.cuda, "device", device)
    callbacks = futures.CallbackQueue("test", 0)
    future = futures.OrderedFuture(callbacks, [torch.device("cuda", 1)])
    seen = torch.futures.Future()
    future.add_done_callback(lambda _: seen.set_result([*current]))
    future.set_result(None)
    assert seen.wait() == [torch.device("cuda", 1)]
    assert callbacks.close(10)
    assert not current
