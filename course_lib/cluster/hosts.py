"""The hosts on which the ranks of a cluster run, and how a program is started on another of them.

``"node1:4,node2:4"``, or a file with a line for each host, as mpiexec takes it.
"""

from __future__ import annotations

import os
import re
import shlex
import socket
from pathlib import Path

import psutil
from torch_mpi4py import versions as of_the_backend

_SLOTS = re.compile(r"^(?P<host>[^\s:=]+)(?::|\s+slots\s*=\s*)(?P<slots>\d+)\s*$")
_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._@-]*$")
_SSH_ARGUMENTS = "PRTE_MCA_plm_ssh_args"
_SSH_OPTIONS = ("-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "LogLevel=ERROR")


class HostError(RuntimeError):
    """A host cannot take part; the message names it and says what to do."""


def read_hosts(said: str | os.PathLike[str]) -> dict[str, int]:
    """Return the hosts with how many ranks each may hold.

    Args:
        said: ``"node1:4,node2:4"``, or the path of a hostfile, whose lines are ``node1:4`` or
            ``node1 slots=4``; ``#`` begins a comment.

    Raises:
        ValueError: if it is neither; the message says what is wrong.
    """
    text = os.fspath(said)
    # A list of hosts holds no separator of folders, and a hostfile's name hardly a colon.
    entries = _lines_of(Path(text)) if "/" in text or Path(text).is_file() else text.split(",")
    hosts: dict[str, int] = {}
    for entry in map(str.strip, entries):
        found = _SLOTS.match(entry)
        name, slots = (found["host"], int(found["slots"])) if found else (entry, 0)
        if not found or not slots or not _NAME.match(name):
            raise ValueError(
                f"hosts: {entry!r} is no host with its number of ranks; write, for two hosts with "
                'four ranks each, hosts="node1:4,node2:4", or name a file with such lines'
            )
        if name in hosts:
            raise ValueError(f"hosts: {name} is named twice; give each host once, with all ranks")
        hosts[name] = slots
    if not hosts:
        raise ValueError(f"hosts: {text!r} names no host")
    return hosts


def filled(hosts: dict[str, int], n: int) -> dict[str, int]:
    """On which host how many of ``n`` ranks run: each is filled before the next one is used."""
    found = {}
    for host, slots in hosts.items():
        if n > 0:
            found[host] = min(slots, n)
            n -= slots
    return found


def _lines_of(path: Path) -> list[str]:
    try:
        lines = path.read_text().splitlines()
    except OSError as error:
        raise ValueError(f"hosts: {path} cannot be read: {error.strerror}") from None
    return [line for line in (line.partition("#")[0].strip() for line in lines) if line]


def is_here(host: str) -> bool:
    """Whether a name means this host."""
    if host in ("localhost", socket.gethostname(), socket.gethostname().partition(".")[0]):
        return True
    try:
        found = {entry[4][0] for entry in socket.getaddrinfo(host, None)}
    except OSError:
        return False  # ssh may know a name that the system does not
    ours = {one.address for some in psutil.net_if_addrs().values() for one in some}
    return bool(found & ours)


def by_ssh(host: str, command: list[str]) -> list[str]:
    """The command line that runs ``command`` on another host by ssh.

    Options for ssh are those that mpiexec gives it: ``PRTE_MCA_plm_ssh_args``.
    """
    options = shlex.split(os.environ.get(_SSH_ARGUMENTS, ""))
    return ["ssh", *_SSH_OPTIONS, *options, host, shlex.join(command)]


def address_towards(host: str, connection: str) -> str:
    """This host's address as another one sees it.

    Args:
        host: the other one.
        connection: its ``SSH_CONNECTION``; without one the system is asked which way it takes.
    """
    if connection:
        return connection.split()[0]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as trial:
        trial.connect((host, 9))  # sends nothing
        return trial.getsockname()[0]


def versions() -> dict[str, str]:
    """The versions of what has to be the same on every host, without importing any of it."""
    return of_the_backend.versions("rank-by-rank", "ipyparallel")
