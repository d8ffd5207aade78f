"""The pytest plugin, as a project of its own has it: the example of the README, and what fails."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from torch_mpi4py.testing.crews import Answer, Result
from torch_mpi4py.testing.failure_text import verdict

from tests import outcomes
from tests.outcomes import Outcome

README = "packages/torch_mpi4py/README.md"
TITLE = "## Testing your own distributed code"
# Tests that go wrong, and what follows them. Ranks start several times as fast without torch.
PLAIN = """
import os
import random
import threading
import time

import pytest

pytestmark = pytest.mark.ranks(2, backend=None)


@pytest.mark.parametrize("turn", [1, 2])
def test_ranks_are_kept(turn, rank, tmp_path):
    folder = tmp_path.parent / f"rank-{rank}"
    folder.mkdir(exist_ok=True)
    (folder / str(os.getpid())).touch()
    assert len(list(folder.iterdir())) == 1


def test_folder_is_shared(rank, size, tmp_path):
    (tmp_path / str(rank)).touch()
    while len(list(tmp_path.iterdir())) < size:
        time.sleep(0.01)


def test_is_skipped():
    pytest.skip("there is no reason")


def test_is_skipped_by_one(rank):
    if rank == 1:
        pytest.skip("there is no reason")


@pytest.mark.xfail(reason="a known bug")
def test_is_known(rank):
    assert rank == 2


@pytest.mark.parametrize("name", [str(random.random())])
def test_has_another_name(name):
    pass


def test_one_rank_is_wrong(rank):
    print("printed by", rank)
    assert rank * 2 == 0


@pytest.mark.ranks(3, backend=None)
def test_all_are_wrong(rank):
    raise ValueError("the same everywhere")


@pytest.mark.ranks(2, timeout=5, backend=None)
def test_hangs_alone(rank):
    if rank == 1:
        threading.Event().wait()


@pytest.fixture
def closes_badly(rank):
    yield
    if rank == 1:
        threading.Event().wait()


@pytest.mark.ranks(2, timeout=5, backend=None)
def test_hangs_at_its_end(closes_badly):
    pass


def test_rank_leaves(rank):
    if rank == 0:
        os._exit(7)
"""
MIXED = """
import pathlib

import pytest


@pytest.fixture(scope="module")
def folder():
    yield
    pathlib.Path("ended").touch()


def test_before(folder):
    pass


@pytest.mark.ranks(2, backend=None)
def test_on_ranks(rank):
    assert not pathlib.Path("ended").exists()
"""
WITH_TORCH = """
import os
import signal

import pytest
import torch
import torch.distributed as dist


@pytest.mark.ranks(2)
def test_first_on_mpi4py(size):
    total = torch.ones(1)
    dist.all_reduce(total)
    assert total.item() == size


@pytest.mark.ranks(2, timeout=5)
def test_hangs(rank):
    if rank == 0:
        dist.barrier()


@pytest.mark.ranks(2, backend="gloo")
def test_first_on_gloo(rank, world_size):
    total = torch.tensor([rank])
    dist.all_reduce(total)
    assert dist.get_backend() == "gloo"
    assert total.item() == world_size - 1


@pytest.mark.ranks(2, timeout=5, backend="gloo")
def test_hangs_on_gloo(rank):
    if rank == 1:
        dist.recv(torch.zeros(1), 0)


@pytest.mark.ranks(2)
def test_rank_is_killed(rank):
    if rank == 1:
        print("last", "words")
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()
"""
NOT_MARKED = """
def test_rank_without_the_mark(rank):
    pass
"""


def run_pytest(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run pytest in a folder, as its owner does."""
    plain = {name: v for name, v in os.environ.items() if not name.startswith("PYTEST_")}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:nbval", "-p", "no:cacheprovider", *arguments],
        cwd=folder,
        env=plain,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )


def readme_section(root: Path) -> str:
    return (root / README).read_text().split(TITLE)[1].split("\n## ")[0]


def readme_files(root: Path) -> dict[str, str]:
    """Return the files of the README's example, by the names in their first lines."""
    blocks = re.findall(r"^```\w+\n(# (\S+)\n.*?)^```$", readme_section(root), re.DOTALL | re.M)
    return {name: text for text, name in blocks}


@pytest.fixture(scope="module")
def project(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the project of the README."""
    folder = tmp_path_factory.mktemp("project")
    for name, text in readme_files(root).items():
        (folder / name).write_text(text)
    return folder


@pytest.fixture(scope="module")
def wrong(root: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    """Return the outcomes of the tests above."""
    folder = tmp_path_factory.mktemp("wrong")
    (folder / "pyproject.toml").write_text(readme_files(root)["pyproject.toml"])
    (folder / "test_plain.py").write_text(PLAIN)
    (folder / "test_with_torch.py").write_text(WITH_TORCH)
    (folder / "test_not_marked.py").write_text(NOT_MARKED)
    answer = run_pytest(folder, "--junitxml=outcomes.xml", "-o", "junit_logging=all")
    assert (folder / "outcomes.xml").exists(), answer.stdout + answer.stderr
    return outcomes.read(folder / "outcomes.xml")


@pytest.mark.timeout(600)  # three starts of ranks
def test_readme_example_fails_as_documented(root: Path, project: Path) -> None:
    answer = run_pytest(project, "-q")
    assert answer.returncode == 1, answer.stdout + answer.stderr
    assert "3 passed" in answer.stdout
    assert "1 failed" in answer.stdout
    (shown,) = re.findall(r"^```\n(What every.*?)^```$", readme_section(root), re.DOTALL | re.M)
    for line in shown.splitlines():
        if line and line != "...":
            pattern = re.sub(r"\d+\\\.\d\\ s", r"\\d+\\.\\d s", re.escape(line))
            assert re.search(pattern, answer.stdout), f"{line!r} is not in\n{answer.stdout}"


@pytest.mark.timeout(600)
def test_xdist_workers_have_their_own_ranks(project: Path) -> None:
    answer = run_pytest(project, "-n", "2", "-v", "-k", "not meet")
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "3 passed" in answer.stdout
    assert {"[gw0]", "[gw1]"} <= set(re.findall(r"\[gw\d\]", answer.stdout))


@pytest.mark.timeout(300)
def test_ordinary_tests_before_and_after_finish_normally(tmp_path: Path) -> None:
    """What they have set up for their module ends with it, also where a test on ranks is last."""
    (tmp_path / "test_mixed.py").write_text(MIXED)
    (tmp_path / "test_plain.py").write_text(
        "import pathlib\n\ndef test_after():\n    assert pathlib.Path('ended').exists()\n"
    )
    answer = run_pytest(tmp_path, "-q")
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "3 passed" in answer.stdout


@pytest.mark.timeout(900)  # eight starts of ranks
@pytest.mark.parametrize(
    "name", ["test_first_on_mpi4py", "test_first_on_gloo", "test_folder_is_shared"]
)
def test_good_tests_pass(wrong: dict[str, Outcome], name: str) -> None:
    assert wrong[name].status == "passed", wrong[name].text


def test_ranks_are_reused_between_tests(wrong: dict[str, Outcome]) -> None:
    for turn in ("1", "2"):
        found = wrong[f"test_ranks_are_kept[{turn}]"]
        assert found.status == "passed", found.text


def test_failure_shows_values_and_names_the_rank(wrong: dict[str, Outcome]) -> None:
    found = wrong["test_one_rank_is_wrong"]
    assert found.status == "failed"
    assert "rank 1: assert (1 * 2) == 0" in found.text
    assert "--- rank 1 of 2 failed ---" in found.text
    assert "--- rank 0 of 2 passed ---" in found.text
    assert "printed by 0" in found.text
    assert "printed by 1" in found.text


def test_equal_failures_are_reported_once(wrong: dict[str, Outcome]) -> None:
    text = wrong["test_all_are_wrong"].text
    assert "--- ranks 0, 1 and 2 of 3 failed ---" in text
    assert text.count("ValueError: the same everywhere") == 2  # headline and traceback


def test_hang_is_reported_within_its_limit(wrong: dict[str, Outcome]) -> None:
    found = wrong["test_hangs"]
    assert found.status == "failed"
    assert found.seconds < 30
    assert re.search(r"rank 0: waiting in barrier \[test_with_torch.py:\d+\], for \d", found.text)
    assert "rank 1: finished" in found.text
    assert "Rank 1 finished without the barrier in which rank 0 waits" in found.text
    assert "in test_hangs" in found.text  # the stack


@pytest.mark.parametrize(
    ("name", "line"), [("test_hangs_on_gloo", "in recv"), ("test_hangs_alone", "in wait")]
)
def test_hang_without_the_backend_shows_stacks(
    wrong: dict[str, Outcome], name: str, line: str
) -> None:
    found = wrong[name]
    assert found.status == "failed"
    assert "--- rank 1 of 2 had not finished the test after 5 s ---" in found.text
    assert "--- rank 0 of 2 passed ---" in found.text
    assert line in found.text
    assert f"in {name}" in found.text
    assert "_pytest" not in found.text


def test_hang_in_a_fixture_is_reported(wrong: dict[str, Outcome]) -> None:
    found = wrong["test_hangs_at_its_end"]
    assert found.status == "failed"
    assert "--- rank 1 of 2 had not torn down the test after 5 s ---" in found.text
    assert "in closes_badly" in found.text


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("test_rank_is_killed", "rank 1 was killed by SIGKILL"),
        ("test_rank_leaves", "rank 0 ended with status 7"),
    ],
)
def test_dead_rank_is_named(wrong: dict[str, Outcome], name: str, words: str) -> None:
    assert wrong[name].status == "failed"
    assert words in wrong[name].text


def test_dead_rank_s_output_is_kept(wrong: dict[str, Outcome]) -> None:
    text = wrong["test_rank_is_killed"].text
    assert "last words" in text
    assert "RankFailedError" in text  # what the other one says


def test_skips_and_expected_failures_count_where_ranks_agree(wrong: dict[str, Outcome]) -> None:
    assert wrong["test_is_skipped"].status == "skipped"
    assert "there is no reason" in wrong["test_is_skipped"].text
    assert wrong["test_is_known"].status == "skipped"
    assert "a known bug" in wrong["test_is_known"].text
    found = wrong["test_is_skipped_by_one"]
    assert found.status == "failed"
    assert "The ranks disagree" in found.text
    assert "--- rank 1 of 2 skipped ---" in found.text


def test_parameters_differing_between_processes_fail(wrong: dict[str, Outcome]) -> None:
    found = next(v for name, v in wrong.items() if name.startswith("test_has_another_name"))
    assert found.status == "failed"
    assert "don't build parameters from random numbers" in found.text


def test_rank_fixture_requires_the_mark(wrong: dict[str, Outcome]) -> None:
    found = wrong["test_rank_without_the_mark"]
    assert found.status == "error"
    assert "are for tests marked @pytest.mark.ranks(n)" in found.text


@pytest.mark.parametrize(
    ("mark", "complaint"),
    [
        ("ranks()", "ranks takes whole numbers of ranks"),
        ("ranks(0)", "ranks takes whole numbers of ranks"),
        ("ranks('2')", "ranks takes whole numbers of ranks"),
        ("ranks(2, seconds=3)", "timeout by name"),
        ("ranks(2, timeout=0)", "timeout is a number of seconds, not 0"),
    ],
)
def test_invalid_mark_raises(tmp_path: Path, mark: str, complaint: str) -> None:
    program = f"import pytest\n\n\n@pytest.mark.{mark}\ndef test_nothing():\n    pass\n"
    (tmp_path / "test_it.py").write_text(program)
    answer = run_pytest(tmp_path)
    assert answer.returncode != 0
    assert complaint in answer.stdout + answer.stderr


def test_pytest_process_imports_neither_torch_nor_mpi(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import sys\n\n\ndef test_nothing():\n"
        "    assert 'torch_mpi4py.testing.plugin' in sys.modules\n"
        "    assert not {'torch', 'mpi4py', 'psutil'} & sys.modules.keys()\n"
    )
    answer = run_pytest(tmp_path, "-p", "no:hypothesispytest")
    assert answer.returncode == 0, answer.stdout + answer.stderr


def test_ranks_end_with_a_killed_pytest(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import os, pathlib, threading, pytest\n\n\n"
        "@pytest.mark.ranks(2)\ndef test_it(rank):\n"
        "    pathlib.Path(f'pid{rank}').write_text(str(os.getpid()))\n"
        "    threading.Event().wait()\n"
    )
    running = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-p", "no:nbval"],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        pids = [await_number(tmp_path / f"pid{rank}") for rank in (0, 1)]
    finally:
        running.kill()
        running.wait()
    deadline = time.monotonic() + 30
    while any(map(lives, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    left = list(filter(lives, pids))
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left


def await_number(path: Path) -> int:
    deadline = time.monotonic() + 120
    while not (path.exists() and path.read_text()):
        assert time.monotonic() < deadline, f"there is no {path}"
        time.sleep(0.05)
    return int(path.read_text())


def lives(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


# --- the text, without ranks --------------------------------------------------------------


def report(outcome: str, longrepr: object = None, when: str = "call") -> pytest.TestReport:
    place = ("test_it.py", 1, "test_it")
    return pytest.TestReport("test_it.py::test_it", place, {}, outcome, longrepr, when)  # type: ignore[arg-type]


def of(*told: Sequence[pytest.TestReport]) -> tuple[Result, dict[int, Sequence[pytest.TestReport]]]:
    """Return what :func:`verdict` takes, of ranks that have all come to the end."""
    answers = [
        Answer(rank, [{"outcome": one[-1].outcome}], is_done=True) for rank, one in enumerate(told)
    ]
    return Result(answers, 1.0), dict(enumerate(told))


def test_verdict_is_kept_when_ranks_agree() -> None:
    assert verdict(*of([report("passed")], [report("passed")])).outcome == "passed"
    skipped = report("skipped", ("test_it.py", 3, "Skipped: no GPU"))
    found = verdict(*of([skipped], [skipped]))
    assert (found.outcome, found.place) == ("skipped", ("test_it.py", 3, "Skipped: no GPU"))


def test_error_in_the_teardown_of_one_rank_fails_the_test() -> None:
    bad = [report("passed"), report("failed", "no group to destroy", "teardown")]
    found = verdict(*of([report("passed")], bad))
    assert found.outcome == "failed"
    assert "no group to destroy" in found.text
    assert "teardown" in found.text


def test_silent_rank_is_reported_without_stacks() -> None:
    result = Result([Answer(0, [{"outcome": "passed"}]), Answer(1)], 5.0)
    found = verdict(result, {0: [report("passed")]})
    assert found.outcome == "failed"
    assert "--- rank 1 of 2 had not finished the test after 5 s ---" in found.text
    assert "no Python stacks" in found.text
