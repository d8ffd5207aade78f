"""A notebook's cluster as a job of Slurm; the notebook is on a login node, the ranks are not."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest
from rank_by_rank.lesson_13.jobs import run_job

from tests.cluster.conftest import START_WITHIN_S, Kernel, wait_until
from tests.hosts.clusters import await_nothing_left, left, prepare
from tests.hosts.testbed import BedClient

JOB = 'slurm=dict(nodes=2, time=10, extra=["--ntasks-per-node=2"])'
ON_ONE_NODE = 'slurm="nodes=1,time=10"'
START = "from course_lib.cluster import start_cluster\ncluster = start_cluster(4, {})"


@pytest.fixture(autouse=True)
def nothing_left() -> None:
    """Take the place of what other tests here require after each of them: ours share a cluster."""


@pytest.fixture(scope="module")
def slurm(bed: BedClient) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", bed.start_slurm())
        # As after a login by ssh; srun hands it on to the nodes, where it says nothing of theirs.
        patch.setenv("SSH_CONNECTION", "192.0.2.7 55000 192.0.2.8 22")
        yield


def jobs(form: str = "%i %T") -> list[str]:
    """The jobs that wait or run."""
    command = ["squeue", "--noheader", f"--format={form}", "--states=PENDING,RUNNING,COMPLETING"]
    asked = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    return asked.stdout.splitlines()


def await_no_jobs(bed: BedClient) -> None:
    wait_until(lambda: not jobs(), 60, "no job is left", still=jobs)
    await_nothing_left(bed)


@pytest.fixture(scope="module")
def kernel(bed: BedClient, slurm: None) -> Iterator[Kernel]:
    assert not left(bed)
    kernel = Kernel()
    yield kernel
    kernel.shut_down()
    await_no_jobs(bed)


def test_cluster_in_its_own_job(bed: BedClient, kernel: Kernel) -> None:
    rows = kernel.start_cluster(4, JOB).splitlines()[-4:]
    assert [row.split()[-1] for row in rows] == ["h2", "h2", "h3", "h3"]
    assert len(jobs()) == 1
    prepare(kernel)
    kernel.must("cluster.kill(3)\ncluster.shrink()")
    kernel.must("%%px\nassert survivors_train() == kept and world_size == 3")
    kernel.must("cluster.restart()")
    prepare(kernel)
    kernel.must("cluster.stop()")
    await_no_jobs(bed)


ENDS = [
    (ON_ONE_NODE, "scancel {}", "CANCELLED"),
    # A limit has whole minutes, but its end may be moved; slurmctld looks every half minute.
    (JOB, "scontrol update JobId={} EndTime=now+1", "TIMEOUT (its time limit was "),
]


@pytest.mark.parametrize(("asked", "end", "said"), ENDS, ids=["cancelled", "limit"])
def test_end_of_a_job_is_reported(
    bed: BedClient, kernel: Kernel, asked: str, end: str, said: str
) -> None:
    rows = kernel.start_cluster(4, asked).splitlines()[-4:]
    assert len({row.split()[-1] for row in rows} - {"h1"}) == (1 if asked == ON_ONE_NODE else 2)
    (job,) = jobs("%i")
    subprocess.run(end.format(job).split(), check=True, timeout=30)
    error = kernel.run("while True: cluster.status()", START_WITHIN_S).traceback
    assert f"the cluster has ended: Slurm has ended job {job}: {said}" in error
    await_no_jobs(bed)


def test_pending_job_shows_its_reason_and_can_be_stopped(bed: BedClient, kernel: Kernel) -> None:
    others = ["salloc", "--nodes=2", "--exclusive", "sh", "-c", "echo has it; exec cat"]
    pipe = subprocess.PIPE
    with subprocess.Popen(others, stdin=pipe, stdout=pipe) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"has it\n"
        waiting = kernel.begin(START.format(JOB))
        wait_until(lambda: "PENDING" in jobs("%T"), 60, "the job waits")
        message = kernel.client.get_iopub_msg
        said = ""
        while "waits in Slurm's queue" not in said:
            said += str(message(timeout=60)["content"].get("text", ""))
        kernel.interrupt()
        assert kernel.finish(waiting, 60).error["ename"] == "KeyboardInterrupt"
        wait_until(lambda: "PENDING" not in jobs("%T"), 60, "it waits no more")
        holder.stdin.close()
    await_no_jobs(bed)


ERRORS = {
    'slurm="partition=nope"': "Slurm granted no job: invalid partition specified: nope",
    'slurm="nodes=3"': "such a job can never run (PartitionNodeLimit)",
    'slurm="partition=short,time=10"': "can never run (PartitionTimeLimit)",
    'slurm="gpus=1"': "Slurm granted no job: ",
    'slurm="colour=red"': "is not understood; write slurm=True",
    'slurm=True, hosts="h2:4"': "give hosts or slurm, not both",
}


@pytest.mark.parametrize("asked", ERRORS)
def test_each_mistake_gets_one_clear_error(bed: BedClient, kernel: Kernel, asked: str) -> None:
    error = kernel.run(START.format(asked), START_WITHIN_S).traceback
    assert ERRORS[asked] in error
    await_no_jobs(bed)


INSIDE = """
from course_lib.cluster import start_cluster
from course_lib.doctor import mpi
print(mpi.slurm().seen)
with start_cluster(4) as cluster:
    print(cluster.view.apply_sync(lambda: comm.allreduce(1)))
"""


def test_inside_a_job_its_nodes_are_used(bed: BedClient, slurm: None) -> None:
    command = ["salloc", "--nodes=2", "--ntasks-per-node=2", sys.executable, "-c", INSIDE]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=START_WITHIN_S, check=False
    )
    assert done.returncode == 0, done.stderr
    assert re.findall(r"h\d$", done.stdout, re.MULTILINE) == ["h2", "h2", "h3", "h3"]
    assert "[4, 4, 4, 4]" in done.stdout
    assert "with the nodes h[2-3], tasks on each: 2(x2); srun --mpi=pmix" in done.stdout
    await_no_jobs(bed)


@pytest.mark.parametrize(
    ("asked", "where", "said"),
    [
        ("--nodes=2 --ntasks-per-node=2", "local", "(h1 *){4}"),
        ("--nodes=1 --ntasks=1 --cpus-per-task=4", "", "has 1 task, too few for 4 ranks: ask"),
        ("--nodes=2 --ntasks-per-node=2 srun --nodes=1 --ntasks=1", "", "without srun"),
    ],
    ids=["this host alone", "one task", "a step"],
)
def test_start_inside_a_job_rejects_what_does_not_fit(
    bed: BedClient, slurm: None, asked: str, where: str, said: str
) -> None:
    command = ["salloc", *asked.split(), sys.executable, "-c", INSIDE]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=START_WITHIN_S, check=False,
        env=os.environ | {"COURSE_CLUSTER": where},
    )  # fmt: skip
    hosts = " ".join(re.findall(r"h\d$", done.stdout, re.MULTILINE))
    assert re.search(said, hosts + done.stderr), done.stderr
    await_no_jobs(bed)


def test_job_of_lesson_13(bed: BedClient, slurm: None) -> None:
    written = run_job("scripts/ddp_srun.sbatch", ["--steps", "2"], START_WITHIN_S)
    assert '"ranks": 2' in written
    assert "had not ended after 1 s (" in run_job("scripts/ddp_srun.sbatch", ["--epochs", "99"], 1)
    await_no_jobs(bed)


def test_environment_variable_sends_all_clusters_to_slurm(bed: BedClient, slurm: None) -> None:
    where = "slurm:nodes=2"
    command = [sys.executable, "-c", INSIDE]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=START_WITHIN_S, check=False,
        env=os.environ | {"COURSE_CLUSTER": where},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert set(re.findall(r"h\d$", done.stdout, re.MULTILINE)) == {"h2", "h3"}
    await_no_jobs(bed)
