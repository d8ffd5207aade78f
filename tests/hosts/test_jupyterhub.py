"""A JupyterHub on one host starts a learner's server on another, as a job of Slurm.

The learner has an account without rights, and her ranks share the cores of her job.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.hosts.accounts import UID, account
from tests.hosts.test_slurm import await_no_jobs, jobs, slurm
from tests.hosts.testbed import BedClient
from tests.hub.hub import Learner, running_hub

__all__ = ["slurm"]  # a fixture

pytestmark = pytest.mark.timeout(300)

# What the configuration leaves to the teacher: the test-bed's partition gives no four hours.
CHOSEN = 'c.SlurmSpawner.req_runtime = "0:30:00"'
START = "from course_lib.cluster import start_cluster\ncluster = start_cluster(4)"
RANKS = """
%%px
import os, socket
print(socket.gethostname(), os.getuid(), comm.allreduce(1), flush=True)
""".strip()
BY_HAND = """
import subprocess
command = ["mpiexec", "-n", "2", "hostname"]  # as it is typed into JupyterLab's terminal
done = subprocess.run(command, capture_output=True, text=True, timeout=60)
print(done.stdout, done.stderr)
""".strip()


@pytest.fixture
def learner(bed: BedClient, slurm: None) -> Iterator[Learner]:
    """Return a learner who may log in to all hosts and has opened lesson 00 on one."""
    bed.install_hub()
    with account(bed, "ada"), running_hub(CHOSEN, "slurm") as hub:
        learner = Learner(hub, "ada")
        learner.start()
        learner.open("workspace/00_start_here.ipynb")
        yield learner


def test_ranks_run_in_the_job_of_the_learners_server(bed: BedClient, learner: Learner) -> None:
    ((user, node),) = map(str.split, jobs("%u %B"))
    assert (user, node) != ("root", "h1")
    started = learner.run(START)
    assert started.ok, started.text
    told = learner.run(RANKS).text
    assert told.count(f"{node} {UID} 4") == 4, told
    by_hand = learner.run(BY_HAND).text
    assert by_hand.split() == [node, node], by_hand
    learner.stop()
    await_no_jobs(bed)
