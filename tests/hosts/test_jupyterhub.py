"""A JupyterHub on one host starts a learner's server on another, as a job of Slurm.

The learner has an account without rights, and neither she nor her ranks leave the job's node.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hosts.accounts import UID, account
from tests.hosts.clusters import await_nothing_left, left
from tests.hosts.test_slurm import await_no_jobs, jobs, slurm
from tests.hosts.testbed import BedClient
from tests.hub.hub import Hub, Learner, running_hub

__all__ = ["slurm"]  # a fixture

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def learner(bed: BedClient, slurm: None) -> Iterator[Learner]:
    """Return a learner whose server runs."""
    bed.install_hub()
    with account(bed, "ada") as home, running_hub("", "slurm") as hub:
        learner = Learner(hub, "ada")
        learner.home = home
        learner.start()
        yield learner


def test_a_learners_server_is_a_job_and_her_ranks_are_in_it(
    bed: BedClient, learner: Learner
) -> None:
    print(jobs("%i %T %u %B"))
    for h in ("h1", "h2", "h3"):
        print(h, bed.processes(h))
    learner.open("workspace/00_start_here.ipynb")
    for code in [
        "import os; print({n: v for n, v in os.environ.items() if n.startswith(('SLURM','PMI', 'JUPYTERHUB', 'COURSE', 'TMP', 'XDG', 'HOME', 'PATH'))})",
        "from course_lib.cluster import start_cluster\ncluster = start_cluster(4)",
        "%%px\nimport socket, os\nprint(socket.gethostname(), os.getuid(), comm.allreduce(1))",
        "import subprocess; print(subprocess.run(['mpiexec', '-n', '2', 'hostname'], capture_output=True, text=True))",
    ]:
        ran = learner.run(code)
        print(code, ran.ok, ran.text)
    for h in ("h1", "h2", "h3"):
        print(h, bed.left(h), bed.processes(h))
    learner._hub.ask("DELETE", "users/ada/server")
    await_no_jobs(bed)
