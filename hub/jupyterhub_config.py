"""JupyterHub for the course, on one machine or with each learner's server as a job of Slurm.

Start it with ``hub/.venv/bin/python -m jupyterhub -f hub/jupyterhub_config.py``. docs/hub.md
says where the numbers come from. Your decisions are marked CHOOSE.
"""

import os
import shlex
import sys
from pathlib import Path

HUB = Path(__file__).resolve().parent

c = get_config()  # noqa: F821 (JupyterHub defines it)

# --- the hub itself -------------------------------------------------------------------------

# CHOOSE: this address can be reached from this machine only. For others, put a web server with
# TLS in front of it, or name your certificate (c.JupyterHub.ssl_cert, ssl_key) and an address.
c.JupyterHub.bind_url = "http://127.0.0.1:8000"
c.JupyterHub.hub_bind_url = "http://127.0.0.1:8081"
c.ConfigurableHTTPProxy.command = [str(HUB / "node_modules/.bin/configurable-http-proxy")]
c.ConfigurableHTTPProxy.api_url = "http://127.0.0.1:8001"

# Its database, keys and log: not in the folder where it happens to be started.
STATE = Path(os.environ.get("COURSE_HUB_STATE", "/var/lib/rank-by-rank-hub"))
STATE.mkdir(mode=0o700, parents=True, exist_ok=True)
c.JupyterHub.db_url = f"sqlite:///{STATE / 'hub.sqlite'}"
c.JupyterHub.cookie_secret_file = str(STATE / "cookie_secret")
c.ConfigurableHTTPProxy.pid_file = str(STATE / "proxy.pid")

# CHOOSE: who may log in. By default everybody who has an account on this machine, by its password.
c.JupyterHub.authenticator_class = "pam"
c.Authenticator.allow_all = True
c.Authenticator.admin_users = set()

# Forty people press "Start" in the same minute; ten servers start at a time, the others wait.
c.JupyterHub.concurrent_spawn_limit = 10
c.JupyterHub.active_server_limit = 45

# --- each learner's server ------------------------------------------------------------------

# It runs in the learner's account: the lessons are copied to ~/rank-by-rank/workspace, then
# JupyterLab opens lesson 00 there. The course itself is only read.
c.Spawner.cmd = [sys.executable, str(HUB / "learner.py")]
c.Spawner.default_url = "/lab/tree/workspace/00_start_here.ipynb"
c.Spawner.ip = "127.0.0.1"
c.Spawner.http_timeout = 120
c.Spawner.start_timeout = 120

# CHOOSE: one folder with the data sets, which everybody can read (docs/hub.md, "Before the day").
c.Spawner.environment = {"COURSE_DATA": os.environ.get("COURSE_DATA", "/srv/course-data")}
# A set that is not there is an error that says so, not forty downloads.
c.Spawner.environment["COURSE_OFFLINE"] = "1"

# CHOOSE: whether you see who is stuck (INSTRUCTOR.md, "Who is stuck?"). Without the "#" below each
# learner's notebooks say that they do, and write what you see into the learner's home; the command
# `sudo .venv/bin/rank-by-rank class --homes '/home/*'` makes a page of it.
# c.Spawner.environment["COURSE_CLASS"] = "~/rank-by-rank/class"

# CHOOSE: limits for each person. They hold with systemd; jobs of Slurm have others, below, and
# JupyterHub's own LocalProcessSpawner ignores all of them.
c.Spawner.mem_limit = "3G"
c.Spawner.cpu_limit = 2.0

where = os.environ.get("COURSE_HUB_SPAWNER", "systemd")
if where == "systemd":
    # On one machine: a unit for each person, with a /tmp of its own. The hub runs as root.
    c.JupyterHub.spawner_class = "systemd"
    c.SystemdSpawner.isolate_tmp = True
elif where == "slurm":
    # On a cluster: a job for each person, submitted in that person's name by sudo. The course and
    # everybody's home must stand at the same path on the nodes.
    import batchspawner  # noqa: F401 (the hub learns from it where a job's server listens)

    # The nodes must reach the hub, which is known to them by this machine's host name.
    # CHOOSE: or by c.JupyterHub.hub_connect_ip = "...", an address or another name.
    c.JupyterHub.hub_bind_url = "http://0.0.0.0:8081"
    c.JupyterHub.spawner_class = "batchspawner.SlurmSpawner"
    c.Spawner.ip = "0.0.0.0"
    c.Spawner.start_timeout = 600  # in the queue, too
    if "SLURM_CONF" in os.environ:  # a hub hands on nothing by itself
        c.Spawner.environment["SLURM_CONF"] = os.environ["SLURM_CONF"]
    # The server is the job's script itself. As a step of it (srun) it works too, but where Slurm's
    # default is --mpi=pmix, each program in it has the variables of a rank of that step.
    c.SlurmSpawner.req_srun = ""
    # batchspawner joins words to a line of shell, and runs the learner's program by this Python.
    python = shlex.quote(str(HUB / ".venv/bin/python"))
    c.SlurmSpawner.batchspawner_singleuser_cmd = f"{python} -m batchspawner.singleuser"
    c.Spawner.cmd = [shlex.quote(str(HUB / "learner.py"))]
    # CHOOSE: what each job asks for: cores, memory, time, and whose nodes (req_partition = "...").
    # One that asks for more time than the partition gives waits in vain.
    c.SlurmSpawner.req_nprocs = "4"
    c.SlurmSpawner.req_memory = "3G"
    c.SlurmSpawner.req_runtime = "4:00:00"
else:
    sys.exit(f"COURSE_HUB_SPAWNER is {where!r}; it may be 'systemd' or 'slurm'")

# --- who has left ---------------------------------------------------------------------------

# A server that nobody has used for an hour ends, with its cluster; the learner's files stay.
c.JupyterHub.load_roles = [
    {
        "name": "idle-culler",
        "scopes": ["list:users", "read:users:activity", "read:servers", "delete:servers"],
        "services": ["idle-culler"],
    }
]
c.JupyterHub.services = [
    {
        "name": "idle-culler",
        "command": [sys.executable, "-m", "jupyterhub_idle_culler", "--timeout=3600"],
    }
]
