"""What all tests share: where the checkout is, and surroundings without a person."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

from tests import ranks

ROOT = Path(__file__).resolve().parent.parent
MPICH = pytest.StashKey[ranks.Library]()

# Notebooks print in a fixed order when nobody watches.
os.environ["IPP_NONINTERACTIVE"] = "1"


def pytest_configure() -> None:
    """Let interrupts reach the tests and the programs they start.

    A shell starts what runs in the background with interrupts ignored, and children inherit that.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def as_found(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves something behind on which the next one in this process depends.

    On ranks the first one to start MPI leaves its settings.
    """
    if request.node.get_closest_marker("ranks"):
        yield
        return
    variables, settings = _variables(), _torch_settings()
    yield
    assert _variables() == variables
    assert settings in (None, _torch_settings())


def _variables() -> dict[str, str]:
    variables = {**os.environ, "the working directory": os.getcwd()}
    del variables["PYTEST_CURRENT_TEST"]
    variables.pop("TORCHINDUCTOR_CACHE_DIR", None)  # torch sets it, when an import asks for it
    return variables


def _torch_settings() -> tuple | None:
    """Return PyTorch's settings of the process, None before its import."""
    torch = sys.modules.get("torch")
    return torch and (torch.get_num_threads(), torch.get_default_dtype())


@pytest.fixture(scope="session")
def root() -> Path:
    """Return the folder of the checkout."""
    return ROOT


@pytest.fixture(scope="session")
def mpich(tmp_path_factory: pytest.TempPathFactory) -> ranks.Library:
    """Return an MPICH in a folder of its own."""
    return ranks.wheel(ranks.MPICH, tmp_path_factory.mktemp("mpich"))


def pytest_ranks_variables(item: pytest.Item) -> dict[str, str] | None:
    """Have a test with the parameter ``mpi`` run under this MPI, and know what is asked by hand."""
    params = item.callspec.params if hasattr(item, "callspec") else {}
    asked = {name: os.environ[name] for name in (ranks.BY_HAND,) if name in os.environ}
    if params.get("mpi") != "mpich":
        return asked
    if MPICH not in item.config.stash:
        folder = tempfile.TemporaryDirectory(prefix="mpich-")
        item.config.add_cleanup(folder.cleanup)
        item.config.stash[MPICH] = ranks.wheel(ranks.MPICH, Path(folder.name))
    return asked | dict(item.config.stash[MPICH].variables)


# The quick and the basic first: what a later test stands on has been tested before it.
ORDER = (
    "setup",
    "training",
    "torch_mpi4py",
    "parallel",
    "scripts",
    "cluster",
    "teaching",
    "lessons",
    "grading",
    "classroom",
    "browser",
)
# Of several processes each takes the next file, so the longest come first, or all wait for one;
# before them the one that needs 12 GB, while the others have started few ranks.
LONGEST = (
    "torch_mpi4py/test_large.py",
    "scripts/test_scripts.py",
    "torch_mpi4py/test_exits.py",
    "torch_mpi4py/test_pytest_plugin.py",
    "torch_mpi4py/test_battery.py",
    "lessons/test_answers.py",
    "site/test_site.py",
    "torch_mpi4py/test_failures.py",
    "torch_mpi4py/fuzz",
    "doctor/test_doctor.py",
    # and of those with clusters
    "cluster/test_life.py",
    "cluster/test_stop_and_restart.py",
    "cluster/test_start_clock.py",
    "grading/test_grading.py",
    "lessons/test_notebooks.py",
)
# `make test` runs four files of tests at a time, then three files of whole clusters, or lessons,
# which mostly wait, and then one by one what needs the machine for itself. `make
# test-cluster` runs those on virtual hosts.
MARKS = {
    "cluster": "clusters",
    "classroom/test_kernels.py": "clusters",
    "browser": "alone",
    "lessons/test_notebooks.py": "clusters",
    "hosts": "hosts",
    "sites": "sites",
}


class ByFile(LoadFileScheduling):
    """Keep the tests of a file in one process, as they share what takes long to start.

    A lesson runs for a minute in processes of its own, so each goes wherever there is room, and so
    do the cases that one start of ranks serves. (Groups by mark do nothing: pytest-xdist 3.8 with
    pytest 9.2.)
    """

    def _split_scope(self, nodeid: str) -> str:
        if nodeid.startswith("tests/lessons/test_notebooks.py"):
            return nodeid
        scope = super()._split_scope(nodeid)
        if scope == "tests/torch_mpi4py/test_battery.py":
            mpi, ranks_, *_ = nodeid.partition("[")[2].split("-")
            return f"{scope} {mpi} {ranks_}"
        return scope


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile | None:
    """Distribute tests as above, in the order of their collection."""
    config.option.loadscopereorder = False
    return ByFile(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.hookimpl(tryfirst=True)  # before -m chooses by the mark
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run the folders of tests in the order above."""
    longest = LONGEST if hasattr(config, "workerinput") else ()

    def place(item: pytest.Item) -> int:
        path = item.path.relative_to(ROOT / "tests")
        for number, start in enumerate(longest):
            if path.is_relative_to(start):
                return number - len(longest)
        return ORDER.index(path.parts[0]) if path.parts[0] in ORDER else len(ORDER)

    items.sort(key=place)
    for item in items:
        path = item.path.relative_to(ROOT / "tests").as_posix()
        marked = any(item.get_closest_marker(mark) for mark in MARKS.values())
        for start, mark in MARKS.items():
            if path.startswith(start) and not marked:
                item.add_marker(mark)
