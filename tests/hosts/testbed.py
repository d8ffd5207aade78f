"""Three virtual hosts on this machine: h1, h2 and h3, with a network between them.

Each is a set of Linux namespaces: an address, a host name, processes, ``/tmp`` and ``/dev/shm`` of
its own, and an sshd. They have the file system of this machine otherwise, so the checkout and its
``.venv`` are at the same path on all. It takes root, and on Debian what the packages
``openssh-server`` and ``iproute2`` bring, which are installed where they are missing.

``python -m tests.hosts.testbed -- COMMAND`` runs a command on h1, which is where tests run; they
have a :class:`BedClient` to cut a cable or to look at another host. Test-beds do not see each
other, so ``--pytest 2 -- tests/hosts`` runs two files of tests at a time, each on its own. Nothing
is left behind, however it ends: all processes of a host end with its first one, and that one with
the test-bed.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import fcntl
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from tests.hosts import relay, slurm

ROOT = Path(__file__).parents[2]
CONTROL = "RANK_BY_RANK_BED"
"""Names the test-bed's control socket in what runs in it."""
NAMES = ("h1", "h2", "h3")
_NETWORK = "10.77.0."
_LOCK = Path("/run/lock/rank-by-rank-bed")
_PREFIX = "rank-by-rank-bed-"
_READY_WITHIN_S = 30.0
_INSTALLED_WITHIN_S = 900.0
_PR_SET_PDEATHSIG = 1
_PACKAGES = {
    "/usr/sbin/sshd": "openssh-server",
    "/usr/bin/ssh": "openssh-client",
    "/usr/sbin/ip": "iproute2",
}
_SSHD = """\
ListenAddress {address}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/user_key.pub
PidFile none
StrictModes no
PermitRootLogin yes
PasswordAuthentication no
UsePAM no
MaxStartups 100
MaxSessions 100
"""
_SSH = """\
Host *
  IdentityFile {folder}/user_key
  IdentitiesOnly yes
  UserKnownHostsFile {folder}/known_hosts
  StrictHostKeyChecking yes
"""


class Host:
    """A virtual host.

    Attributes:
        name: its name.
        address: its IPv4 address.
        init: process id of its first process, as this machine sees it.
        sshd: of its sshd, as the host sees it.
    """

    def __init__(self, name: str, address: str, folder: Path) -> None:
        self.name, self.address = name, address
        command = [sys.executable, str(Path(__file__).with_name("host_init.py"))]
        # No two machines were switched on at the same moment.
        up = str(1000 * int(name.removeprefix("h")))
        clock = ("--time", "--monotonic", up, "--boottime", up)
        self._unshare = _in_own_namespaces([*command, name, str(folder), str(ROOT)], clock)
        _await_ready(self._unshare, f"host {name}")
        self.init = _child(self._unshare.pid)
        self.sshd = 0

    def begin(self) -> None:
        """Start its sshd, once it has a network."""
        assert self._unshare.stdin is not None
        assert self._unshare.stdout is not None
        self._unshare.stdin.write(b"go\n")
        self._unshare.stdin.flush()
        self.sshd = int(self._unshare.stdout.readline())

    def end(self) -> None:
        """End it, with all of its processes."""
        self._unshare.kill()
        self._unshare.wait(10)

    def enter(self, argv: Sequence[str]) -> list[str]:
        """The command line that runs ``argv`` on it, in the checkout."""
        return ["nsenter", "-t", str(self.init), "-a", f"--wd={ROOT}", "--", *argv]

    def processes(self) -> dict[int, str]:
        """Its processes but for the first and sshd's listener: command lines by process id."""
        found, ours = {}, os.readlink(f"/proc/{self.init}/ns/pid")
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it has ended
                if os.readlink(entry / "ns/pid") != ours or int(entry.name) == self.init:
                    continue
                words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
                if words and "[listener]" not in words and not slurm.is_service(words):
                    found[int(entry.name)] = words
        return found


class Bed:
    """The hosts and the switch between them; a context manager.

    Attributes:
        folder: keys and settings, readable on every host.
        hosts: by name.
    """

    def __enter__(self) -> Bed:
        _require_root_and_packages()
        self._slurm: Path | None = None
        self._relay: subprocess.Popen | None = None
        self._stack = contextlib.ExitStack()
        with contextlib.ExitStack() as stack:
            self.folder = stack.enter_context(_own_folder())
            _make_keys(self.folder)
            self._switch = _in_own_namespaces(["sh", "-c", "echo ready; exec cat"], own=("--net",))
            stack.callback(self._switch.wait, 10)
            stack.callback(self._switch.kill)
            _await_ready(self._switch, "the switch")
            self._on_switch("ip", "link", "add", "bridge", "type", "bridge")
            self._on_switch("ip", "link", "set", "bridge", "up")
            self.hosts = {}
            for number, name in enumerate(NAMES, 1):
                address = f"{_NETWORK}{number}"
                _settings_of(self.folder, name, address)
                host = self.hosts[name] = Host(name, address, self.folder)
                stack.callback(host.end)
                self._plug_in(host)
                host.begin()
            for host in self.hosts.values():
                _await_port(self.hosts["h1"], host.address)
            self._control = _Control(self)
            stack.callback(self._control.close)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self.delay("h1", "h2", None)
        self._stack.close()

    def popen(
        self, host: str, argv: Sequence[str], variables: dict[str, str] | None = None, **how: Any
    ) -> subprocess.Popen:
        """Start a program on a host."""
        environment = os.environ | self.variables | (variables or {})
        return subprocess.Popen(self.hosts[host].enter(argv), env=environment, **how)

    @property
    def variables(self) -> dict[str, str]:
        """What a program on a host has in its environment beyond ours."""
        return {
            CONTROL: str(self._control.path),
            "PRTE_MCA_plm_ssh_args": f"-F {self.folder}/ssh_config",
            "TMPDIR": "/tmp",
        }

    def run(
        self,
        host: str,
        argv: Sequence[str],
        timeout: float,
        variables: dict[str, str] | None = None,
    ) -> subprocess.CompletedProcess:
        """Run a program on a host to its end; past ``timeout`` seconds it is killed."""
        pipe = subprocess.PIPE
        with self.popen(
            host, argv, variables, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe
        ) as it:
            try:
                out, err = it.communicate(timeout=timeout)
            except subprocess.TimeoutExpired:
                it.kill()
                raise
        return subprocess.CompletedProcess(argv, it.returncode, out.decode(), err.decode())

    def processes(self, host: str) -> dict[int, str]:
        """What runs on a host: command lines by process id."""
        return self.hosts[host].processes()

    def left(self, host: str) -> list[str]:
        """What the cluster and MPI have left on a host's ``/tmp`` and ``/dev/shm``.

        But for the empty folders there of runs that were killed, which the next run removes: see
        ``test_killed_programs.py``.
        """
        look = (
            "cd /tmp && ls -d rank-by-rank-*/* ompi.* prte* 2>/dev/null; "
            "find /dev/shm -mindepth 1 -maxdepth 1 "
            "! '(' -type d -empty -name 'torch-mpi4py-run-*' ')'"
        )
        names = self.run(host, ["sh", "-c", look], 10)
        return names.stdout.split()

    def start_slurm(self) -> str:
        """Start Slurm, once; return the file of its settings."""
        if self._slurm is None:
            _install(slurm.PACKAGES)
            self._slurm = slurm.start(self.folder, self._popen_quietly)
        return str(self._slurm)

    def install_hub(self) -> None:
        """Install JupyterHub as the teacher does, which takes a network that hosts do not have."""
        subprocess.run(["sh", "hub/install.sh"], cwd=ROOT, check=True, timeout=_INSTALLED_WITHIN_S)
        _install({"/usr/bin/sudo": "sudo"})

    def _popen_quietly(self, *what: Any, **how: Any) -> subprocess.Popen:
        log = open(self.folder / "slurm.log", "ab")  # noqa: SIM115
        with log:
            return self.popen(*what, **{"stdout": log, "stderr": log, **how})

    def cut(self, host: str) -> None:
        """Pull a host's cable."""
        self._on_switch("ip", "link", "set", f"to-{host}", "down")

    def mend(self, host: str) -> None:
        """Plug it in again."""
        self._on_switch("ip", "link", "set", f"to-{host}", "up")

    def limit(self, host: str, mbit_per_s: float | None) -> None:
        """Limit what a host sends and what it is sent; None for no limit."""
        for where, device in ((self._on_switch, f"to-{host}"), (self.hosts[host], "eth0")):
            run = where if callable(where) else self._inside(host)
            with contextlib.suppress(subprocess.CalledProcessError):  # there was no limit
                run("tc", "qdisc", "del", "dev", device, "root")
            if mbit_per_s is not None:
                # A burst that the clock of the kernel can serve, and room for 50 ms.
                run("tc", "qdisc", "add", "dev", device, "root", "tbf",
                    "rate", f"{mbit_per_s}mbit", "burst", "256kb", "latency", "50ms")  # fmt: skip

    def delay(self, host: str, other: str, seconds: float | None) -> str:
        """Give two hosts a second network on which a frame takes so long; return its device.

        There is one at a time; None takes it away.
        """
        if self._relay is not None:
            self._relay.kill()  # its devices go with their files
            self._relay.wait(10)
            self._relay = None
        if seconds is not None:
            inits = [str(self.hosts[name].init) for name in (host, other)]
            self._relay = subprocess.Popen(
                [sys.executable, "-m", "tests.hosts.relay", *inits, str(seconds)],
                cwd=ROOT,
                stdin=subprocess.PIPE,  # with which it ends: the thread that starts it ends soon
                stdout=subprocess.PIPE,
            )
            _await_ready(self._relay, "the relay")
        return relay.DEVICE

    def traffic(self, host: str) -> tuple[int, int]:
        """The bytes that have gone out of a host and into it over the network."""
        text = self._inside(host)("cat", "/sys/class/net/eth0/statistics/tx_bytes",
                                  "/sys/class/net/eth0/statistics/rx_bytes")  # fmt: skip
        sent, received = text.split()
        return int(sent), int(received)

    def _inside(self, host: str) -> Any:
        # Not by /sys, which shows the network of whoever mounted it.
        init = self.hosts[host].init

        def run(*command: str) -> str:
            if command[0] == "cat":
                text = _output(
                    "nsenter", "-t", str(init), "-n", "ip", "-s", "-j", "link", "show", "eth0"
                )
                stats = json.loads(text)[0]["stats64"]
                return f"{stats['tx']['bytes']} {stats['rx']['bytes']}"
            return _output("nsenter", "-t", str(init), "-n", *command)

        return run

    def _on_switch(self, *command: str) -> str:
        return _output("nsenter", "-t", str(self._switch_pid), "-n", *command)

    @property
    def _switch_pid(self) -> int:
        return self._switch.pid

    def _plug_in(self, host: Host) -> None:
        port = f"to-{host.name}"
        inside = ("nsenter", "-t", str(host.init), "-n", "ip")
        self._on_switch("ip", "link", "add", port, "type", "veth", "peer", "name", "eth0",
                        "netns", str(host.init))  # fmt: skip
        self._on_switch("ip", "link", "set", port, "master", "bridge", "up")
        _output(*inside, "address", "add", f"{host.address}/24", "dev", "eth0")
        _output(*inside, "link", "set", "eth0", "up")


class _Control:
    """Lets what runs on h1 use the test-bed: a call is a line of JSON, and so is its answer."""

    def __init__(self, bed: Bed) -> None:
        self._bed = bed
        self.path = bed.folder / "control"
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(self.path))
        self._socket.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                connection, _ = self._socket.accept()
                threading.Thread(
                    target=self._answer, args=[connection.makefile("rwb")], daemon=True
                ).start()

    def _answer(self, file: IO[bytes]) -> None:
        with file:
            call, arguments = json.loads(file.readline())
            try:
                own = getattr(self, f"_{call}", None)
                answer = {"answer": (own or getattr(self._bed, call))(*arguments)}
            except Exception as error:
                answer = {"error": f"{type(error).__name__}: {error}"}
            file.write(json.dumps(answer).encode() + b"\n")

    def _execute(self, host: str, argv: list[str], timeout: float) -> list[Any]:
        done = self._bed.run(host, argv, timeout)
        return [done.returncode, done.stdout, done.stderr]

    def _kill(self, pid: int, signum: int) -> None:
        os.kill(pid, signum)

    def _parent(self, pid: int) -> int:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])

    def close(self) -> None:
        self._socket.close()


class BedClient:
    """The test-bed as a test sees it, which runs on h1. Its methods are those of :class:`Bed`.

    Attributes:
        folder: of the test-bed, the same on all hosts.
    """

    def __init__(self) -> None:
        path = os.environ.get(CONTROL)
        if path is None:
            raise RuntimeError("these tests run on virtual hosts: make test-cluster (as root)")
        self._path = path
        self.folder = Path(path).parent

    def _call(self, name: str, *arguments: Any) -> Any:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_INSTALLED_WITHIN_S)
            connection.connect(self._path)
            with connection.makefile("rwb") as file:
                file.write(json.dumps([name, arguments]).encode() + b"\n")
                file.flush()
                found = json.loads(file.readline())
        if "error" in found:
            kind = (
                ProcessLookupError if found["error"].startswith("ProcessLookup") else RuntimeError
            )
            raise kind(found["error"])
        return found["answer"]

    def execute(
        self, host: str, argv: Sequence[str], timeout: float = 30
    ) -> subprocess.CompletedProcess:
        """Run a program on a host to its end."""
        return subprocess.CompletedProcess(argv, *self._call("execute", host, list(argv), timeout))

    def kill(self, pid: int, signum: int = signal.SIGKILL) -> None:
        """Send a signal to a process, numbered as in :meth:`processes`.

        Raises:
            ProcessLookupError: if it has ended.
        """
        self._call("kill", pid, int(signum))

    def parent(self, pid: int) -> int:
        """The parent of a process, both numbered as in :meth:`processes`."""
        return self._call("parent", pid)

    def processes(self, host: str) -> dict[int, str]:
        return {int(pid): words for pid, words in self._call("processes", host).items()}

    def left(self, host: str) -> list[str]:
        return self._call("left", host)

    def start_slurm(self) -> str:
        return self._call("start_slurm")

    def install_hub(self) -> None:
        self._call("install_hub")

    def cut(self, host: str) -> None:
        self._call("cut", host)

    def mend(self, host: str) -> None:
        self._call("mend", host)

    def limit(self, host: str, mbit_per_s: float | None) -> None:
        self._call("limit", host, mbit_per_s)

    def delay(self, host: str, other: str, seconds: float | None) -> str:
        return self._call("delay", host, other, seconds)

    def traffic(self, host: str) -> tuple[int, int]:
        sent, received = self._call("traffic", host)
        return sent, received


def _in_own_namespaces(
    command: list[str], clock: Sequence[str] = (), own: Sequence[str] = ()
) -> subprocess.Popen:
    """Start a program in namespaces of its own, which ends with this process."""
    everything = (
        *clock,
        "--net",
        "--mount",
        "--uts",
        "--ipc",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
    )
    return subprocess.Popen(
        ["unshare", *(own or everything), "--", *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        preexec_fn=_end_with_parent,
        start_new_session=True,
    )


def _await_ready(process: subprocess.Popen, what: str) -> None:
    """Wait until a program that was started says that it is in its namespaces."""
    assert process.stdout is not None
    if process.stdout.readline() != b"ready\n":
        raise RuntimeError(f"{what} could not be made")


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _child(pid: int) -> int:
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


def _output(*command: str) -> str:
    done = subprocess.run(command, check=False, timeout=10, capture_output=True, text=True)
    if done.returncode:
        raise subprocess.CalledProcessError(done.returncode, command, done.stdout, done.stderr)
    return done.stdout


def _require_root_and_packages() -> None:
    if os.geteuid() != 0:
        raise SystemExit("virtual hosts take root: sudo make test-cluster")
    _install(_PACKAGES)


def _install(packages: dict[str, str]) -> None:
    """Install those of Debian's packages of which a file is missing."""
    with _others_wait():  # apt refuses a second one
        missing = sorted({package for file, package in packages.items() if not Path(file).exists()})
        if missing:
            subprocess.run(["apt-get", "update"], check=True, timeout=300)
            install = ["apt-get", "install", "-y", "--no-install-recommends", *missing]
            environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
            subprocess.run(install, check=True, timeout=600, env=environment)


@contextlib.contextmanager
def _others_wait() -> Iterator[None]:
    """Keep other test-beds out of this block, for the moment or the installation that it takes."""
    _LOCK.parent.mkdir(exist_ok=True)
    with open(_LOCK, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _own_folder() -> Iterator[Path]:
    """Make a test-bed's folder and lock it; those of test-beds that were killed are removed."""
    with _others_wait():
        for old in Path("/run").glob(f"{_PREFIX}*"):
            with contextlib.suppress(BlockingIOError), _locked(old):
                shutil.rmtree(old, ignore_errors=True)
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir="/run"))
        held = contextlib.ExitStack()
        held.enter_context(_locked(folder))
    with held:
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder.

    Raises:
        BlockingIOError: if another process holds it.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def _make_keys(folder: Path) -> None:
    for name in ("host_key", "user_key"):
        _output("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(folder / name))
    key = (folder / "host_key.pub").read_text()
    names = ",".join([*NAMES, *(f"{_NETWORK}{number}" for number in range(1, len(NAMES) + 1))])
    (folder / "known_hosts").write_text(f"{names} {key}")
    (folder / "ssh_config").write_text(_SSH.format(folder=folder))
    Path("/run/sshd").mkdir(exist_ok=True)


def _settings_of(folder: Path, name: str, address: str) -> None:
    (folder / f"sshd-{name}").write_text(_SSHD.format(folder=folder, address=address))
    # As Debian's installer writes it: a host's own name is no address that others reach.
    lines = ["127.0.0.1 localhost", f"127.0.1.1 {name}"]
    lines += [f"{_NETWORK}{n}  {one}" for n, one in enumerate(NAMES, 1) if one != name]
    (folder / f"hosts-{name}").write_text("\n".join(lines) + "\n")


def _await_port(host: Host, address: str) -> None:
    """Wait until the sshd at ``address`` listens."""
    check = f"import socket; socket.create_connection(({address!r}, 22), 1).close()"
    deadline = time.monotonic() + _READY_WITHIN_S
    while subprocess.run(
        host.enter([sys.executable, "-c", check]), stderr=subprocess.DEVNULL
    ).returncode:
        if time.monotonic() > deadline:
            raise RuntimeError(f"no sshd at {address}")


def main() -> int:
    """Run a command on h1, or pytest with workers on the h1 of several test-beds."""
    parser = argparse.ArgumentParser(prog="python -m tests.hosts.testbed", description=__doc__)
    parser.add_argument(
        "--pytest", type=int, metavar="N", help="run pytest, each of its N workers on a test-bed"
    )
    parser.add_argument("command", nargs="+", help="or the arguments of pytest")
    asked = parser.parse_args()
    if asked.pytest:
        return run_pytest(asked.pytest, asked.command)
    with Bed() as bed:
        running = bed.popen("h1", asked.command)
        try:
            return running.wait()
        finally:
            running.kill()


def run_pytest(workers: int, arguments: Sequence[str]) -> int:
    """Run pytest here, its tests file by file in ``workers`` processes on as many test-beds."""
    with contextlib.ExitStack() as stack:
        options = ["--dist=loadfile"]
        for bed in [stack.enter_context(Bed()) for _ in range(workers)]:
            settings = [f"{name}={value}" for name, value in bed.variables.items()]
            python = ["env", *settings, *bed.hosts["h1"].enter([sys.executable])]
            options.append(f"--tx=popen//python={shlex.join(python)}")
        return subprocess.call([sys.executable, "-m", "pytest", *options, *arguments], cwd=ROOT)


if __name__ == "__main__":
    sys.exit(main())
