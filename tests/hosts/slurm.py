"""Slurm on the virtual hosts: slurmctld on h1, where tests and notebooks run, slurmd on h2 and h3.

It takes Debian's packages ``slurm-wlm`` and ``munge``, and for ``srun --mpi=pmix`` also
``libpmix-dev``. All files but settings and key are on each host's own ``/tmp``; the ports are the
usual ones, on the hosts' addresses.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

PACKAGES = {
    "/usr/sbin/slurmctld": "slurm-wlm",
    "/usr/sbin/slurmd": "slurm-wlm",
    "/usr/sbin/munged": "munge",
    "/usr/lib/x86_64-linux-gnu/slurm-wlm/mpi_pmix.so": "slurm-wlm",
    "/usr/lib/x86_64-linux-gnu/pmix2/include/pmix.h": "libpmix-dev",
}
SERVICES = ("/usr/sbin/munged", "/usr/sbin/slurmctld", "/usr/sbin/slurmd")
CPUS = 4
"""How many tasks a node takes, however many cores this machine has."""
_MEGABYTES = 8000
"""How much memory a job may ask for; jobs do not compete for it."""
_READY_WITHIN_S = 60.0
_SETTINGS = """\
ClusterName=bed
SlurmctldHost=h1(10.77.0.1)
AuthType=auth/munge
AuthInfo=socket=/tmp/munge/socket
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation=/tmp/slurmctld
SlurmdSpoolDir=/tmp/slurmd
SlurmctldPidFile=/tmp/slurmctld.pid
SlurmdPidFile=/tmp/slurmd.pid
SlurmctldLogFile=/tmp/slurmctld.log
SlurmdLogFile=/tmp/slurmd.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=bf_interval=1,sched_min_interval=100000
MpiDefault=none
ReturnToService=2
KillWait=2
MinJobAge=300
NodeName=h2 NodeAddr=10.77.0.2 CPUs={cpus} RealMemory={megabytes}
NodeName=h3 NodeAddr=10.77.0.3 CPUs={cpus} RealMemory={megabytes}
PartitionName=main Nodes=h2,h3 Default=YES MaxTime=60 OverSubscribe=NO
PartitionName=short Nodes=h2,h3 MaxTime=1
"""


def start(folder: Path, popen: Callable[..., subprocess.Popen]) -> Path:
    """Start Slurm on the hosts of a test-bed, and wait until both nodes take jobs.

    Args:
        folder: of the test-bed, which all hosts see.
        popen: starts a program on a host.

    Returns:
        The settings' file, for ``SLURM_CONF``.
    """
    settings, key = folder / "slurm.conf", folder / "munge.key"
    settings.write_text(_SETTINGS.format(cpus=CPUS, megabytes=_MEGABYTES))
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o400)
    variables = {"SLURM_CONF": str(settings)}
    munge = "mkdir -p /tmp/munge && exec munged --force --foreground --num-threads=2 " + " ".join(
        f"--{name}-file=/tmp/munge/{name}" for name in ("pid", "log", "seed")
    )
    for host in ("h1", "h2", "h3"):
        popen(host, ["sh", "-c", f"{munge} --key-file={key} --socket=/tmp/munge/socket"], variables)
    for host, program in (("h1", "slurmctld"), ("h2", "slurmd -N h2"), ("h3", "slurmd -N h3")):
        made = "mkdir -p /tmp/slurmctld /tmp/slurmd"
        waited = "until [ -S /tmp/munge/socket ]; do sleep 0.1; done"
        popen(host, ["sh", "-c", f"{made} && {waited} && exec {program} -D"], variables)
    deadline = time.monotonic() + _READY_WITHIN_S
    while True:
        asked = popen("h1", ["sinfo", "-h", "-p", "main", "-t", "idle", "-o", "%D"], variables,
                      stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)  # fmt: skip
        if asked.communicate(timeout=30)[0].strip() == b"2":
            return settings
        if time.monotonic() > deadline:
            raise RuntimeError("Slurm's nodes do not become idle: see /tmp/slurm*.log on the hosts")
        time.sleep(0.2)


def is_service(words: str) -> bool:
    """Whether a command line is that of one of Slurm's own programs."""
    name = os.path.basename(words.split(" ")[0])
    return name in ("munged", "slurmctld", "slurmd", "slurmscriptd:", "slurmctld:")
