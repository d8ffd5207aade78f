"""Three learners under a real JupyterHub: one hangs, one's rank dies, the third has her lesson.

Its first call installs JupyterHub from the package indexes; it needs npm.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from course_lib.classroom import reading
from tests.hub.hub import IN_THIS_ACCOUNT, Hub, Learner, running_hub
from tests.lab_server import ROOT, wait_until

LESSON = "workspace/00_start_here.ipynb"
FIRST = 13  # cells that everybody runs: start, first messages, an exercise and its check
ALLREDUCE = "%%px\ntotal = comm.allreduce(1 + rank)\nassert total == sum(range(world_size + 1))"

pytestmark = [pytest.mark.hub, pytest.mark.timeout(1500)]


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    text = (ROOT / "hub/jupyterhub_config.py").read_text()
    switched_on = re.findall(r"^# (c\..*COURSE_CLASS.*\n)", text, re.MULTILINE)
    assert len(switched_on) == 1
    with running_hub(IN_THIS_ACCOUNT + switched_on[0]) as hub:
        yield hub


@pytest.fixture(scope="module")
def learners(hub: Hub) -> list[Learner]:
    """Return three learners who have begun lesson 00 at the same time, as it was handed out."""
    names = ("ada", "ben", "cyd")
    with ThreadPoolExecutor(len(names)) as together:
        return list(together.map(lambda name: begun_by(hub, name), names))


def begun_by(hub: Hub, name: str) -> Learner:
    """Log a learner in and run the first cells of lesson 00."""
    learner = Learner(hub, name)
    learner.start()
    learner.open(LESSON)
    assert len(learner.cells) > 40
    run_cells(learner, learner.cells[:FIRST])
    assert learner.run("cluster.limit = 300").ok  # two cores may be all there is for twelve ranks
    return learner


def run_cells(learner: Learner, cells: list[dict]) -> None:
    """Run cells of the lesson; each ends as it is meant to."""
    for cell in cells:
        source = "".join(cell["source"])
        ran = learner.run(source, seconds=600)
        fails_on_purpose = "raises-exception" in cell["metadata"].get("tags", [])
        assert ran.ok != fails_on_purpose, f"{learner.name}: {source}\n{ran.text}"


def test_each_learner_has_four_separate_ranks(learners: list[Learner]) -> None:
    pids = [learner.ranks() for learner in learners]
    assert [len(ranks) for ranks in pids] == [4, 4, 4]
    assert len(set().union(*pids)) == 12


def test_hang_and_death_do_not_affect_other_learners(learners: list[Learner]) -> None:
    ada, ben, cyd = learners
    hers = ada.ranks()

    def hang() -> None:
        assert ben.run("%%px\nkept = 10 * rank").ok
        ran = ben.run("%%px --limit 3\nif rank > 0:\n    comm.recv(source=0, tag=7)")
        assert not ran.ok
        assert "HangError" in ran.text, ran.text
        assert ben.run(ALLREDUCE + "\nassert kept == 10 * rank").ok

    def die() -> None:
        os.kill(cyd.ranks()[2], 9)
        ran = cyd.run(ALLREDUCE)
        assert not ran.ok
        assert "rank 2" in ran.text, ran.text
        ran = cyd.run("cluster.shrink()")
        assert ran.ok, ran.text
        ran = cyd.run(ALLREDUCE + "\nassert world_size == 3")
        assert ran.ok, ran.text

    with ThreadPoolExecutor(3) as together:
        lesson = together.submit(run_cells, ada, ada.cells[FIRST:])
        for trouble in [together.submit(hang), together.submit(die)]:
            trouble.result()
        assert not lesson.done(), "the lesson was over before the trouble was"
        lesson.result()
    assert ada.ranks() == hers


def test_work_and_progress_are_separate(learners: list[Learner]) -> None:
    ada, ben, _ = learners
    right = "def my_share(samples, rank, world_size):\n    return range(rank, samples, world_size)"
    assert ada.run(right).ok
    assert "right" in ada.run('check("00.my_share")').text
    assert (ada.home / "rank-by-rank/workspace/.progress/00.my_share.solved").exists()
    assert not (ben.home / "rank-by-rank/workspace/.progress").exists()
    assert ada.get("contents/notebooks/glossary.md").ok  # the lessons link to it
    assert ada.get("contents").status_code == 200
    assert ben.get("contents", headers=ada.headers).status_code == 403


def test_teacher_sees_stuck_learners(hub: Hub, learners: list[Learner]) -> None:
    """Without a service: the page is made from the learners' homes."""
    _, ben, cyd = learners
    ids = ["00.neighbours", "00.my_share"]

    def rows() -> dict[str, reading.Learner]:
        found = reading.homes(f"{hub.homes}/*", reading.IN_A_HOME, ids)
        return {learner.name: learner for learner in found}

    def hangs(name: str) -> bool:
        running = rows()[name].running
        return running is not None and running.hangs

    assert set(rows()) == {"ada", "ben", "cyd"}
    assert rows()["ada"].work["00.my_share"].solved
    assert cyd.run('check("00.neighbours", lambda r, n: (r, r))').ok
    wait_until(lambda: rows()["cyd"].work, 60, "cyd's wrong answer")
    assert rows()["cyd"].work["00.neighbours"].mistake == "wrong-value"
    with ThreadPoolExecutor(1) as aside:
        hang = aside.submit(ben.run, "%%px --limit 30\nif rank > 0:\n    comm.recv(source=0)")
        wait_until(lambda: hangs("ben"), 60, "ben's hang")
        assert not hang.result().ok
    wait_until(lambda: rows()["ben"].running is None, 60, "the end of ben's hang")


def test_stopped_server_takes_its_cluster_along(learners: list[Learner]) -> None:
    ada, ben, _ = learners
    his, hers = ben.ranks(), ada.ranks()
    ben.stop()
    wait_until(lambda: not any(map(psutil.pid_exists, his)), 60, "an end of ben's ranks")
    assert ada.run(ALLREDUCE).ok
    assert ada.ranks() == hers
