"""A real JupyterHub with hub/jupyterhub_config.py, and learners who use it through its addresses.

Unless a test says otherwise everybody runs in the present account (SimpleLocalProcessSpawner) with
a home of their own: who shares an account can disturb others more easily than who does not.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import requests
import websocket

from tests.lab_server import MARK, ROOT, free_port, wait_for_end, wait_until

INSTALL_SECONDS = 900
START_SECONDS = 180

# What differs from the teacher's configuration: who may log in, and the ports.
SETTINGS = """
import json, os
load_subconfig({config!r})
given = json.loads({given!r})
c.JupyterHub.authenticator_class = "dummy"
c.JupyterHub.bind_url = "http://127.0.0.1:%d" % given["ports"][0]
host = c.JupyterHub.hub_bind_url.rpartition(":")[0]
c.JupyterHub.hub_bind_url = "%s:%d" % (host, given["ports"][1])
c.ConfigurableHTTPProxy.api_url = "http://127.0.0.1:%d" % given["ports"][2]
c.Spawner.environment.update(given["variables"])
c.JupyterHub.services.append({{"name": "teacher", "api_token": given["token"]}})
c.JupyterHub.load_roles.append({{
    "name": "teacher", "services": ["teacher"], "scopes": ["admin:users", "admin:servers", "tokens"]
}})
"""
# And as whom servers run.
IN_THIS_ACCOUNT = """
c.JupyterHub.spawner_class = "simple"
c.SimpleLocalProcessSpawner.home_dir_template = given["folder"] + "/homes/{username}"
c.Spawner.environment["TMPDIR"] = given["folder"] + "/tmp"
c.Spawner.args = ["--allow-root"] if os.geteuid() == 0 else []
"""


class Learner:
    """One learner's server, reached with a token of their own, and the kernel of one notebook.

    Attributes:
        home: the learner's folder.
        cells: the code cells of the notebook that is open.
    """

    def __init__(self, hub: Hub, name: str):
        self.name = name
        self.home = hub.homes / name
        hub.ask("POST", f"users/{name}")
        token = hub.ask("POST", f"users/{name}/tokens", {"note": "test"})["token"]
        self.headers = {"Authorization": f"token {token}"}
        self.address = f"{hub.address}/user/{name}"
        self.cells: list[dict] = []
        self._hub = hub
        self._kernel = ""

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        self._hub.ask("POST", f"users/{self.name}/server")

        def ready() -> bool:
            server = self._hub.ask("GET", f"users/{self.name}")["servers"].get("")
            assert server is not None, f"{self.name}'s server did not start"
            return server["ready"]

        wait_until(ready, START_SECONDS, f"{self.name}'s server")

    def stop(self) -> None:
        """Have the hub stop the server."""
        self._hub.ask("DELETE", f"users/{self.name}/server")

    def get(self, path: str, headers: dict[str, str] | None = None) -> requests.Response:
        """Ask the server with this learner's token, or with another's."""
        return requests.get(
            f"{self.address}/api/{path}", headers=headers or self.headers, timeout=60
        )

    def open(self, notebook: str) -> None:
        """Start the notebook's kernel as JupyterLab does, and read its cells."""
        asked = {"path": notebook, "name": notebook, "type": "notebook"}
        answer = requests.post(
            f"{self.address}/api/sessions",
            headers=self.headers,
            json=asked | {"kernel": {"name": "python3"}},
            timeout=120,
        )
        answer.raise_for_status()
        self._kernel = answer.json()["kernel"]["id"]
        cells = self.get(f"contents/{notebook}").json()["content"]["cells"]
        self.cells = [cell for cell in cells if cell["cell_type"] == "code"]

    def _connect(self) -> websocket.WebSocket:
        """Connect to the kernel, for one cell: the server closes a connection that rests."""
        channels = f"{self.address}/api/kernels/{self._kernel}/channels"
        return websocket.create_connection(
            channels.replace("http:", "ws:"),
            header=[f"{name}: {value}" for name, value in self.headers.items()],
            timeout=60,
        )

    def run(self, code: str, seconds: float = 300) -> Ran:
        """Run a cell; return what it printed and showed.

        Raises:
            TimeoutError: if the kernel has not done it in time.
        """
        header = {"msg_id": uuid.uuid4().hex, "session": self._kernel, "username": self.name}
        message = {
            "channel": "shell",
            "header": header | {"msg_type": "execute_request", "version": "5.3"},
            "parent_header": {},
            "metadata": {},
            "content": {"code": code, "silent": False, "stop_on_error": False},
        }
        ran, deadline = Ran(), time.monotonic() + seconds
        waits_for = {"execute_reply", "idle"}
        with contextlib.closing(self._connect()) as connection:
            connection.send(json.dumps(message))
            while waits_for:
                connection.settimeout(max(0.1, deadline - time.monotonic()))
                try:
                    said = json.loads(connection.recv())
                except websocket.WebSocketTimeoutException:
                    raise TimeoutError(f"{self.name}: not in {seconds:g} s:\n{code}") from None
                if said["parent_header"].get("msg_id") != header["msg_id"]:
                    continue
                kind, content = said["msg_type"], said["content"]
                if kind == "execute_reply":
                    ran.ok = content["status"] == "ok"
                    waits_for.discard(kind)
                elif kind == "status":
                    waits_for.discard(content["execution_state"])
                else:
                    ran.add(kind, content)
        return ran

    def ranks(self) -> list[int]:
        """Return the process ids of the ranks."""
        pids = self.run("print(*[r.pid for r in cluster.ranks])").text.split()
        return [int(pid) for pid in pids]


class Ran:
    """What came of a cell: whether it ended well, and all text of its outputs."""

    def __init__(self) -> None:
        self.ok = False
        self.text = ""

    def add(self, kind: str, content: dict[str, Any]) -> None:
        """Take in a message of the kernel."""
        if kind == "stream":
            self.text += content["text"]
        elif kind in ("display_data", "execute_result", "update_display_data"):
            self.text += content["data"].get("text/plain", "") + "\n"
        elif kind == "error":
            self.text += "\n".join(content["traceback"]) + "\n"


class Hub:
    """A running JupyterHub; in its folder are the learners' ``homes`` and their ``temporary``."""

    def __init__(self, address: str, token: str, folder: Path, mark: str):
        self.address, self.mark = address, mark
        self.homes, self.temporary = folder / "homes", folder / "tmp"
        self._headers = {"Authorization": f"token {token}"}

    def ask(self, method: str, path: str, content: dict | None = None) -> Any:
        """Call the hub's interface as the teacher; return its answer."""
        answer = requests.request(
            method,
            f"{self.address}/hub/api/{path}",
            headers=self._headers,
            json=content,
            timeout=60,
        )
        assert answer.ok, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer.json() if answer.content else None

    def answers(self) -> bool:
        """Tell whether the hub can be reached through its proxy."""
        with contextlib.suppress(requests.ConnectionError, requests.Timeout):
            return requests.get(f"{self.address}/hub/api", timeout=10).ok
        return False


def install() -> None:
    """Install JupyterHub as the teacher does; a second call takes a second.

    One process at a time does: the next one would take away what the first has just installed.
    """
    with open(ROOT / "hub/install.sh") as script:
        fcntl.flock(script, fcntl.LOCK_EX)  # held for INSTALL_SECONDS at most
        answer = subprocess.run(
            ["sh", "hub/install.sh"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=INSTALL_SECONDS,
            check=False,
        )
    assert answer.returncode == 0, answer.stdout + answer.stderr


@contextlib.contextmanager
def running_hub(settings: str = IN_THIS_ACCOUNT, where: str = "systemd") -> Iterator[Hub]:
    """Start a hub; in the end nothing that it or a learner started may be left here.

    Args:
        settings: lines of configuration that differ from the teacher's beside :data:`SETTINGS`.
        where: what the teacher has chosen by ``COURSE_HUB_SPAWNER``.
    """
    install()
    mark, token = uuid.uuid4().hex, uuid.uuid4().hex
    with tempfile.TemporaryDirectory(prefix="hub-") as scratch:
        folder = Path(scratch)
        (folder / "homes").mkdir()
        (folder / "tmp").mkdir()
        ports = [free_port(), free_port(), free_port()]
        variables = {MARK: mark, "IPP_NONINTERACTIVE": "1"}
        given = {"folder": str(folder), "ports": ports, "token": token, "variables": variables}
        config = folder / "config.py"
        teachers = str(ROOT / "hub" / "jupyterhub_config.py")
        config.write_text(SETTINGS.format(config=teachers, given=json.dumps(given)) + settings)
        chosen = {"COURSE_HUB_STATE": str(folder / "state"), "COURSE_HUB_SPAWNER": where}
        log = folder / "log"
        hub = Hub(f"http://127.0.0.1:{ports[0]}", token, folder, mark)
        with open(log, "wb") as output:
            process = subprocess.Popen(
                [ROOT / "hub/.venv/bin/python", "-m", "jupyterhub", "-f", config],
                cwd=folder,
                env=os.environ | chosen | {MARK: mark},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

        def started() -> bool:
            assert process.poll() is None, "the hub has ended"
            return hub.answers()

        try:
            wait_until(started, 120, "the hub")
            yield hub
        except BaseException:
            lines = log.read_text(errors="replace").splitlines(keepends=True)
            said = [line for line in lines if "200 GET /hub/api/users" not in line]  # our questions
            sys.stderr.write("".join(said)[-8000:])
            raise
        finally:
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=60)
            left = wait_for_end(mark, 60)
            files = [str(path) for path in (folder / "tmp").glob("rank-by-rank-*/*")]
    assert not left, f"left behind by the hub: {left}"
    assert not files, f"left behind by clusters: {files}"
