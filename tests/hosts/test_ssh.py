"""Whatever stands in a learner's ssh configuration, a cluster over hosts starts, lives and ends."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.conftest import Kernel
from tests.hosts.clusters import a_kernel
from tests.hosts.testbed import BedClient

# Each of these is somebody's habit, and would end or spoil our connections. The port is in use.
CONTRARY = """\
IgnoreUnknown UseKeychain
Host *
  UseKeychain yes
  RequestTTY force
  RemoteCommand echo hello; exec bash
  SessionType none
  StdinNull yes
  ForkAfterAuthentication yes
  PermitLocalCommand yes
  LocalCommand echo welcome to %h
  ServerAliveInterval 1
  ServerAliveCountMax 1
  ControlMaster auto
  ControlPath {folder}/control-%C
  ControlPersist 600
  LocalForward {port} 127.0.0.1:{port}
  ExitOnForwardFailure yes
  ForwardX11 yes
  Tunnel yes
  LogLevel DEBUG3
  SendEnv *
  SetEnv PYTHONPATH=/nowhere
Include {folder}/ssh_config
"""
# As `ssh -G` says them, of a connection as we want it. (It says no command where there is none.)
WANTED = {
    "requesttty": "false",
    "sessiontype": "default",
    "stdinnull": "no",
    "forkafterauthentication": "no",
    "permitlocalcommand": "no",
    "serveraliveinterval": "0",
    "controlmaster": "false",
    "clearallforwardings": "yes",
    "forwardx11": "no",
    "tunnel": "false",
    "loglevel": "ERROR",
    "batchmode": "yes",
}


@pytest.fixture(autouse=True)
def nothing_left() -> None:
    """Take the place of what other tests here require after each of them: it is required here."""


@pytest.fixture
def kernel(bed: BedClient, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kernel]:
    """A kernel with a cluster on two hosts, of somebody with such a configuration."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        settings = folder / "contrary"
        settings.write_text(CONTRARY.format(folder=folder, port=taken.getsockname()[1]))
        monkeypatch.setenv("PRTE_MCA_plm_ssh_args", f"-F {settings}")
        monkeypatch.setenv("DISPLAY", ":0")
        with a_kernel(bed) as kernel:
            yield kernel


def connections(bed: BedClient) -> dict[str, dict[str, str]]:
    """The settings of each ssh that runs on h1, by what it runs on the other host."""
    found = {}
    for words in bed.processes("h1").values():
        options, _, command = words.partition(" h2 ")
        if options.split()[0].endswith("ssh"):
            asked = ["ssh", "-G", *options.split()[1:], "h2"]
            said = subprocess.run(asked, capture_output=True, text=True, check=True, timeout=10)
            found[command] = dict(line.split(" ", 1) for line in said.stdout.splitlines())
    return found


def test_start_overrides_a_hostile_ssh_configuration(
    bed: BedClient, kernel: Kernel, folder: Path
) -> None:
    assert "4 ranks ready" in kernel.banner
    out = kernel.must("%%px\nimport socket\nsocket.gethostname(), comm.allreduce(1)").text()
    assert out == "".join(f"rank {r} = ('h{1 + r // 2}', 4)\n" for r in range(4))
    seen = connections(bed)
    of_mpiexec = next(command for command in seen if "prted" in command)
    of_keeper = next(command for command in seen if "ipyranks.agent" in command)
    for command in (of_mpiexec, of_keeper):
        settings = seen[command]
        assert {name: settings.get(name) for name in WANTED} == WANTED, command
        assert "remotecommand" not in settings
        # Which is theirs to say: who they are, and whether there is a connection to be used.
        assert settings["identityfile"] == f"{folder}/user_key"
        assert settings["controlpath"].startswith(f"{folder}/control-")
    assert not list(folder.glob("control-*")), "others could join our connection"
