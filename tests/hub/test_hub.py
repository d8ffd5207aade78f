"""Three learners under a real JupyterHub: one hangs, one's rank dies, the third notices nothing.

Its first call installs JupyterHub from the package indexes; it needs npm.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import psutil
import pytest

from tests.hub.hub import Hub, Learner, running_hub
from tests.lab_server import wait_until

LESSON = "workspace/00_start_here.ipynb"
STARTING = threading.Lock()
ALLREDUCE = "%%px\ntotal = comm.allreduce(1 + rank)\nassert total == sum(range(world_size + 1))"

pytestmark = [pytest.mark.hub, pytest.mark.timeout(1500)]


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    with running_hub() as hub:
        yield hub


@pytest.fixture(scope="module")
def learners(hub: Hub) -> list[Learner]:
    """Return three learners who have run lesson 00 at the same time, as it was handed out."""
    names = ("ada", "ben", "cyd")
    with ThreadPoolExecutor(len(names)) as together:
        return list(together.map(lambda name: lesson_run_by(hub, name), names))


def lesson_run_by(hub: Hub, name: str) -> Learner:
    """Log a learner in and run all cells of lesson 00; each ends as it is meant to.

    Clusters start one by one, and cells get more than their minute: two cores are all that a
    test's machine may have for twelve ranks.
    """
    learner = Learner(hub, name)
    learner.start()
    cells = learner.open(LESSON)
    assert len(cells) > 40
    for cell in cells:
        source = "".join(cell["source"])
        if source.startswith("cluster = start_cluster"):
            with STARTING:
                ran = learner.run(source + "\ncluster.limit = 300")
        else:
            ran = learner.run(source, seconds=600)
        fails_on_purpose = "raises-exception" in cell["metadata"].get("tags", [])
        assert ran.ok != fails_on_purpose, f"{name}: {source}\n{ran.text}"
    return learner


def test_each_has_four_ranks_of_their_own(learners: list[Learner]) -> None:
    pids = [learner.ranks() for learner in learners]
    assert [len(ranks) for ranks in pids] == [4, 4, 4]
    assert len(set().union(*pids)) == 12


def test_work_and_progress_are_kept_apart(learners: list[Learner]) -> None:
    ada, ben, _ = learners
    right = "def my_share(samples, rank, world_size):\n    return range(rank, samples, world_size)"
    assert ada.run(right).ok
    assert "right" in ada.run('check("00.my_share")').text
    assert (ada.home / "rank-by-rank/workspace/.progress/00.my_share.solved").exists()
    assert not (ben.home / "rank-by-rank/workspace/.progress").exists()
    assert ada.get("contents/notebooks/glossary.md").ok  # the lessons link to it
    assert ada.get("contents").status_code == 200
    assert ben.get("contents", headers=ada.headers).status_code == 403


def test_a_hang_and_a_death_disturb_nobody(learners: list[Learner]) -> None:
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

    with ThreadPoolExecutor(2) as others:
        troubles: list[Future] = [others.submit(hang), others.submit(die)]
        cells = 0
        while not all(trouble.done() for trouble in troubles):
            ran = ada.run(ALLREDUCE, seconds=60)
            assert ran.ok, ran.text
            cells += 1
        for trouble in troubles:
            trouble.result()
    assert cells > 10
    assert ada.ranks() == hers


def test_whoever_leaves_takes_their_cluster_along(hub: Hub, learners: list[Learner]) -> None:
    ada, ben, _ = learners
    his, hers = ben.ranks(), ada.ranks()
    hub.ask("DELETE", "users/ben/server")
    wait_until(lambda: not any(map(psutil.pid_exists, his)), 60, "an end of ben's ranks")
    assert ada.run(ALLREDUCE).ok
    assert ada.ranks() == hers
