"""The stored run of lesson 13 is whole, and what a launcher tells is read in the same way here."""

import json
import subprocess
import sys

from rank_by_rank.lesson_13 import jobs, records
from rank_by_rank.lesson_13.judge_scripts import read_job
from torch_mpi4py import launch

from course_lib.places import ROOT

WHO = ["notebooks/lesson_13/who.py"]


def test_all_launchers_gave_one_checksum_on_two_hosts() -> None:
    runs = records.trainings()
    assert len(runs) == 7
    assert {run["checksum"] for run in runs} == {runs[0]["checksum"]}
    assert {run["ranks"] for run in runs} == {2}
    assert {tuple(run["hosts"]) for run in runs if "hosts" in run} == {("h1", "h2"), ("h2", "h3")}


def test_variables_table_omits_variables_that_were_never_set() -> None:
    lines = records.variables_table(["srun --mpi=pmix", "mpiexec in a job"]).splitlines()
    assert lines[0].split("  ")[-1].strip() == "mpiexec in a job"
    rows = {line.split()[-3]: line.split()[-2:] for line in lines[1:]}
    assert rows["SLURM_PROCID"] == ["3", "1"]
    assert "MASTER_ADDR" not in rows


def test_who_prints_the_launchers_variables() -> None:
    command = launch.mpiexec(2, sys.executable, *WHO)
    ran = subprocess.run(
        command, cwd=ROOT, env=launch.environment(), capture_output=True, text=True, timeout=60
    )
    assert ran.returncode == 0, ran.stderr
    told = [json.loads(line) for line in ran.stdout.splitlines()]
    assert sorted(one["OMPI_COMM_WORLD_RANK"] for one in told) == ["0", "1"]
    assert not any("RANK" in one for one in told)


def test_slurm_answers_is_false_without_slurm(monkeypatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert not jobs.slurm_answers()


def test_batch_scripts_are_parsed_as_by_slurm() -> None:
    job = read_job((ROOT / "scripts" / "ddp_torchrun.sbatch").read_text())
    assert (job.asked["--nodes"], job.asked["--ntasks-per-node"]) == ("2", "1")
    assert not job.ignored
    assert job.option("--rdzv-backend") == "c10d"
    assert "first" in job.variables
