"""PyTorch's own test suite for torch.distributed, run on this backend under ``mpiexec``.

The tests are ``DistributedTest`` of ``torch.testing._internal.distributed.distributed_test``. It
spawns its ranks itself, and skips a test unless the backend is named gloo, nccl or mpi. Here each
rank is a process of mpiexec, and the suite is imported as if the backend were gloo; what it asks
of MPI alone (``all_to_all`` of host tensors) comes from a second import, as mpi. Then the name in
it is changed to ours. Nothing of the tests is changed.

``make test-torch`` runs it in a throw-away environment that has the packages it imports::

    make test-torch ARGS="-k all_to_all"
    make test-torch ARGS="--backend gloo"
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import importlib
import json
import os
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import NoReturn

from tests import ranks

__all__ = ["CANNOT_PASS", "Result", "main", "run_suite"]

SUITE = "torch.testing._internal.distributed.distributed_test"
LIMIT_SECONDS = 150.0  # of one test; the suite's own deadline for a collective is 60 s
START_SECONDS = 90.0
PASSED, FAILED, SKIPPED, HUNG = "passed", "failed", "skipped", "hung"

# Tests that this backend can't pass, and why. README.md of the package shows the same table.
GLOO_ONLY = "`dist.monitored_barrier` refuses every backend that is not named gloo"
CANNOT_PASS = {
    "test_monitored_barrier_failure_order": GLOO_ONLY,
    "test_monitored_barrier_gloo": GLOO_ONLY,
    "test_monitored_barrier_gloo_subgroup": GLOO_ONLY,
    "test_monitored_barrier_wait_all_ranks": GLOO_ONLY,
    "test_monitored_barrier_gloo_rank_0_timeout": (
        "the group's own method raises in time, but the test looks for gloo's words: "
        '"Rank 0 timed out in monitoredBarrier"'
    ),
}
# In groups that have a backend for each kind of device, whoever made these backends.
CANNOT_PASS_MIXED = {
    "test_ddp_logging_data_cpu": "it compares the name of DDP's backend with those of all devices"
}


# --- the suite ----------------------------------------------------------------------------


def import_suite(named: str) -> tuple[ModuleType, type]:
    """Import the suite as it is for the backend ``named``; return it and its class of tests."""
    os.environ["BACKEND"] = named
    os.environ["INIT_METHOD"] = "file://"  # each test gets its own file
    sys.modules.pop(SUITE, None)
    suite = importlib.import_module(SUITE)
    tests = type("Tests", (suite.TestDistBackend, suite.DistributedTest._DistTestBase), {})
    return suite, tests


def import_suites(backend: str) -> dict[str, tuple[ModuleType, type]]:
    """Import the suite for each backend whose tests ``backend`` is given."""
    return {named: import_suite(named) for named in ("gloo", "mpi")[: 1 + (backend != "gloo")]}


def names_of(tests: type) -> list[str]:
    """Return the names of all tests in a class."""
    return sorted(name for name in dir(tests) if name.startswith("test_"))


def why_skipped(tests: type, name: str) -> str:
    """Return why the suite does not call a test with this backend, empty where it does."""
    test = getattr(tests, name)
    skipped = getattr(test, "__unittest_skip__", False)
    return getattr(test, "__unittest_skip_why__", "") if skipped else ""


# --- one rank -----------------------------------------------------------------------------


def run_rank(folder: Path) -> None:
    """Run the planned tests on this rank and write down each; a failure ends all ranks."""
    import torch
    import torch.distributed as dist
    from torch_mpi4py import MPI

    faulthandler.dump_traceback_later(START_SECONDS, exit=True)
    plan = json.loads((folder / "plan.json").read_text())
    torch.set_num_threads(1)
    comm = MPI.COMM_WORLD.Dup()
    pids = comm.allgather(os.getpid())
    suites = import_suites(plan["backend"])
    meet(comm)
    for index, (named, name) in enumerate(plan["tests"]):
        suite, tests = suites[named]
        # Tests of gradient accumulation ask the name whether the model is on the CPU.
        suite.BACKEND = named if "accumulate_gradients" in name else plan["backend"]
        place = folder / str(index)
        begin_test(suite, place)
        with open(place / f"{comm.rank}.stacks", "w") as stacks:
            faulthandler.dump_traceback_later(plan["limit"], exit=True, file=stacks)
            begin = time.monotonic()
            status, story = run_test(suite, tests, name, comm.rank, place)
            report = {"status": status, "story": story, "seconds": time.monotonic() - begin}
            partial = place / f"{comm.rank}.partial"
            partial.write_text(json.dumps(report))
            partial.rename(place / f"{comm.rank}.json")
            if status == FAILED:
                end_all(pids)
            if dist.is_initialized():  # a test that skips itself leaves its group
                dist.destroy_process_group()
            meet(comm)
            faulthandler.cancel_dump_traceback_later()
    faulthandler.dump_traceback_later(START_SECONDS, exit=True)


def end_all(pids: Sequence[int]) -> NoReturn:
    """End every rank, as the suite does after a failure: others may wait for this one."""
    for pid in pids:
        if pid != os.getpid():
            os.kill(pid, signal.SIGKILL)
    os._exit(1)


def begin_test(suite: ModuleType, place: Path) -> None:
    """Give a test the folders and variables that it has when it is spawned."""
    # Read in two places: is it nccl, and is it mpi, where groups within 4 ranks are tested?
    os.environ["BACKEND"] = "mpi"
    sys.modules[SUITE] = suite  # classes are pickled by the module's name
    os.environ["TEMP_DIR"] = str(place)
    os.environ["INIT_METHOD"] = f"file://{place}/shared_init_file"
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    suite.INIT_METHOD = os.environ["INIT_METHOD"]
    suite.Barrier.barrier_id = 0


def run_test(suite: ModuleType, tests: type, name: str, rank: int, place: Path) -> tuple[str, str]:
    """Run one test on this rank; return its status, and the traceback or the reason to skip."""
    import torch

    here, there = torch.multiprocessing.Pipe()
    skips = {skip.exit_code: skip.message for skip in suite.TEST_SKIPS.values()}
    try:
        tests._run(rank, name, str(place / "store"), there)
    except SystemExit as ended:
        if ended.code in (0, None):
            return PASSED, ""
        if ended.code in skips:
            return SKIPPED, skips[ended.code]
        with contextlib.suppress(EOFError):  # it was closed; what was sent before can be read
            if here.poll():
                return FAILED, here.recv()
        return FAILED, f"ended with {ended.code}"
    except Exception:
        return FAILED, traceback.format_exc()
    return PASSED, ""


def meet(comm) -> None:
    """Wait for the other ranks without keeping a core busy."""
    request = comm.Ibarrier()
    while not request.Test():
        time.sleep(0.001)


# --- all of them --------------------------------------------------------------------------


@dataclass
class Result:
    """What became of one test.

    Attributes:
        name: the test's name.
        status: ``passed``, ``failed``, ``skipped`` or ``hung``.
        story: tracebacks or stacks of its ranks, or why it was skipped.
        seconds: how long it took on its slowest rank.
    """

    name: str
    status: str
    story: str
    seconds: float = 0.0


def run_suite(backend: str, n: int, part: str = "", limit: float = LIMIT_SECONDS) -> list[Result]:
    """Run the suite's tests whose names contain ``part`` on ``n`` ranks, in as few starts as go."""
    os.environ["WORLD_SIZE"] = str(n)
    suites = import_suites(backend)
    done, left = [], []
    for name in names_of(suites["gloo"][1]):
        if part in name:
            reasons = {named: why_skipped(tests, name) for named, (_, tests) in suites.items()}
            takers = [named for named, reason in reasons.items() if not reason]
            if takers:
                left.append((takers[0], name))
            else:
                done.append(Result(name, SKIPPED, reasons["gloo"]))
    while left:
        results = start(backend, n, left, limit)
        for result in results:
            print(f"{result.status:8} {result.seconds:6.2f} s  {result.name}", flush=True)
        done += results
        left = left[len(results) :]
    return done


def start(backend: str, n: int, tests: Sequence[tuple[str, str]], limit: float) -> list[Result]:
    """Run ``tests`` in one start of mpiexec; return the results up to the first that is bad."""
    with tempfile.TemporaryDirectory(prefix="suite") as folder_name:
        folder = Path(folder_name)
        for index in range(len(tests)):
            for part in ("barrier", "test_dir"):
                (folder / str(index) / part).mkdir(parents=True)
        plan = {"backend": backend, "tests": tests, "limit": limit}
        (folder / "plan.json").write_text(json.dumps(plan))
        ended = ranks.run(
            n,
            *("-m", "tests.torch_mpi4py.torch_suite", "--rank", folder),
            limit=START_SECONDS + limit * len(tests),
            variables={"WORLD_SIZE": str(n), "BACKEND": backend},
        )
        if not any((folder / "0").glob("*.stacks")):
            raise RuntimeError(f"the ranks did not start:\n{ended.output[-5000:]}")
        results = []
        for index, (_, name) in enumerate(tests):
            results.append(read(folder / str(index), name, n, ended.output))
            if results[-1].status in (FAILED, HUNG):
                break
    return results


def read(place: Path, name: str, n: int, output: str) -> Result:
    """Return the result of one test from what its ranks wrote down."""
    reports = {}
    for rank in range(n):
        with contextlib.suppress(FileNotFoundError):
            reports[rank] = json.loads((place / f"{rank}.json").read_text())
    seconds = max((report["seconds"] for report in reports.values()), default=0.0)
    story = [
        f"--- rank {rank} ---\n{report['story']}"
        for rank, report in reports.items()
        if report["story"]
    ]
    if any(report["status"] == FAILED for report in reports.values()):
        return Result(name, FAILED, "\n".join(story), seconds)
    if len(reports) < n:
        for stacks in sorted(place.glob("*.stacks")):
            story.append(f"--- rank {stacks.stem} ---\n{stacks.read_text()}")
        return Result(name, HUNG, "\n".join([*story, output[-5000:]]), seconds)
    if any(report["status"] == SKIPPED for report in reports.values()):
        return Result(name, SKIPPED, next(r["story"] for r in reports.values() if r["story"]), 0)
    return Result(name, PASSED, "", seconds)


def main() -> int:
    """Run the suite and print each test, each failure, and how many there are of each."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("-n", type=int, default=4, help="ranks (4)")
    parser.add_argument("-k", default="", help="only tests whose name contains this")
    parser.add_argument("--backend", default="mpi4py", help="gloo, cpu:mpi4py,cuda:gloo, ...")
    parser.add_argument("--limit", type=float, default=LIMIT_SECONDS, help="seconds of one test")
    parser.add_argument("--rank", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank:
        run_rank(arguments.rank)
        return 0
    begin = time.monotonic()
    results = run_suite(arguments.backend, arguments.n, arguments.k, arguments.limit)
    for result in results:
        if result.status in (FAILED, HUNG):
            print(f"\n===== {result.name}: {result.status}\n{result.story}")
    for result in results:
        if result.status == SKIPPED:
            print(f"skipped: {result.name}: {result.story.strip().splitlines()[-1]}")
    known = CANNOT_PASS if "mpi4py" in arguments.backend else {}
    known = known | (CANNOT_PASS_MIXED if ":" in arguments.backend else {})
    bad = {result.name for result in results if result.status in (FAILED, HUNG)}
    passed = {result.name for result in results if result.status == PASSED}
    for name in sorted(bad - known.keys()):
        print(f"NOT EXPECTED: {name} did not pass")
    for name in sorted(passed & known.keys()):
        print(f"NOT EXPECTED: {name} passed: take it out of CANNOT_PASS and of README.md")
    count = Counter(result.status for result in results)
    summary = ", ".join(f"{count[status]} {status}" for status in (PASSED, FAILED, HUNG, SKIPPED))
    print(f"{arguments.backend}, {arguments.n} ranks, {time.monotonic() - begin:.0f} s: {summary}")
    return int(bool(bad - known.keys() or passed & known.keys()))


if __name__ == "__main__":
    sys.exit(main())
