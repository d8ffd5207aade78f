"""Ten learners by script, in real kernels: what their teacher sees of them, and what not."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from course_lib.classroom import reading
from tests.classroom.class_by_script import (
    ACCURACY,
    IDS,
    IMPORTS,
    MY_SHARE,
    NEIGHBOURS,
    WITHIN_S,
    Learner,
    hangs,
    right,
    row,
    ten_learners,
)
from tests.lab_server import wait_until

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shared")


@pytest.fixture(scope="module")
def learners(tmp_path_factory: pytest.TempPathFactory, shared: Path) -> Iterator[dict]:
    with ten_learners(tmp_path_factory.mktemp("learners"), shared) as learners:
        yield learners


def lines(shared: Path, name: str) -> list[dict]:
    """Return what the kernels of a learner have written."""
    text = "".join(path.read_text() for path in sorted(shared.glob(f"{name}.*")))
    return [json.loads(line) for line in text.splitlines() if line]


def test_hang_is_shown_while_it_lasts(learners: dict[str, Learner], shared: Path) -> None:
    wait_until(lambda: hangs(shared, "eva"), WITHIN_S, "eva's hang")
    running = row(shared, "eva").running
    assert running is not None
    assert running.exercise == ""
    assert running.seconds >= 5
    learners["eva"].manager.interrupt_kernel()
    wait_until(lambda: row(shared, "eva").running is None, WITHIN_S, "the end of eva's hang")


def test_endless_check_is_shown_until_its_kernel_dies(
    learners: dict[str, Learner], shared: Path
) -> None:
    wait_until(lambda: row(shared, "jon").running, WITHIN_S, "jon's endless check")
    running = row(shared, "jon").running
    assert running is not None
    assert running.exercise == MY_SHARE
    assert not running.hangs, "no rank waits"
    learners["jon"].kill()
    (path,) = shared.glob("jon.*")
    written = path.stat().st_mtime
    os.utime(path, (written - 60, written - 60))  # as if a minute had gone by
    assert row(shared, "jon").running is None


def test_each_learner_has_a_row(learners: dict[str, Learner], shared: Path) -> None:
    def found() -> dict[str, dict[str, tuple]]:
        return {
            learner.name: {
                id: (work.solved, work.tries, work.hints, work.solution, work.mistake)
                for id, work in learner.work.items()
            }
            for learner in reading.shared(shared, IDS)
        }

    solved = (True, 1, 0, False, "")
    expected: dict[str, dict[str, tuple]] = {
        "ada": {NEIGHBOURS: solved, MY_SHARE: solved},
        "ben": {
            NEIGHBOURS: (True, 2, 0, False, "falls-off-the-end"),
            MY_SHARE: (False, 3, 3, False, "uneven"),
        },
        "cleo": {NEIGHBOURS: solved, MY_SHARE: (False, 1, 0, False, "drops-the-rest")},
        "dan": {NEIGHBOURS: (True, 1, 0, True, "")},
        "eva": {
            NEIGHBOURS: solved,
            MY_SHARE: solved,
            ACCURACY: (False, 1, 0, False, "it-hangs: in a message"),
        },
        "fay": {NEIGHBOURS: solved, MY_SHARE: (False, 1, 0, False, "it-raises")},
        "gus": {NEIGHBOURS: (False, 1, 1, False, "falls-off-the-end")},
        "hal": {NEIGHBOURS: solved, MY_SHARE: (False, 1, 0, False, "uneven")},
        "ida": {},
        "jon": {},
    }
    assert set(found()) == set(expected)
    for name, work in expected.items():
        assert found()[name] == work, name


def test_kernel_writes_one_file_and_ranks_write_none(
    learners: dict[str, Learner], shared: Path
) -> None:
    names = [path.name.partition(".")[0] for path in shared.iterdir()]
    assert sorted(names) == sorted([*learners, "hal"]), "hal has two notebooks open"


def test_record_contains_no_code(learners: dict[str, Learner], shared: Path) -> None:
    allowed = {"t", "is", "exercise", "mistake", "for", "hangs"}
    for name in learners:
        assert {key for line in lines(shared, name) for key in line} <= allowed
    fays = [line["mistake"] for line in lines(shared, "fay") if line["is"] == "tried"]
    assert fays == ["it-raises"], "and no word of the exception"


def test_learner_can_opt_out_and_is_notified_once(
    learners: dict[str, Learner], shared: Path
) -> None:
    ada = learners["ada"]
    before = lines(shared, "ada")
    assert "Your teacher" not in ada.run(IMPORTS)
    ada.run("import os; folder = os.environ.pop('COURSE_CLASS')", *right(NEIGHBOURS))
    ada.run("os.environ['COURSE_CLASS'] = folder", f"hint({MY_SHARE!r})")
    wait_until(lambda: lines(shared, "ada")[len(before) :], WITHIN_S, "ada's hint")
    assert [line["is"] for line in lines(shared, "ada")[len(before) :]] == ["hint"]
