"""The hosts of a cluster's ranks, and how to start a program on another host.

``"node1:4,node2:4"``, or a file with a line for each host, as mpiexec takes it.
"""

from __future__ import annotations

import ipaddress
import os
import re
import shlex
import socket
from collections.abc import Collection, Mapping, Sequence
from ipaddress import IPv4Interface
from pathlib import Path

import psutil
from torch_mpi4py.core import versions as of_the_backend

_SLOTS = re.compile(r"^(?P<host>[^\s:=]+)(?::|\s+slots\s*=\s*)(?P<slots>\d+)\s*$")
_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._@-]*$")
_ADVICE = (
    'write, for two hosts with four ranks each, hosts="node1:4,node2:4", or name a file with such '
    "lines"
)
_SSH_ARGUMENTS = "PRTE_MCA_plm_ssh_args"
# What our connections depend on, whatever a user's ~/.ssh/config says: ssh uses the first value
# that it finds, and the command line comes first. How to reach a host (user, port, keys, jumps, a
# connection that is already open) is left to that file.
_BY_HAND = "-oBatchMode=yes"  # never ask for a password
_SSH_OPTIONS = (
    "-oIgnoreUnknown=*",  # older versions do not know all of these
    _BY_HAND,
    "-oConnectTimeout=10",
    "-oLogLevel=ERROR",
    # Standard input and output are those of the command, and nothing else runs.
    "-oRequestTTY=no",
    "-oRemoteCommand=none",
    "-oSessionType=default",
    "-oStdinNull=no",
    "-oForkAfterAuthentication=no",
    "-oPermitLocalCommand=no",
    # It lives as long as we want: the agents' lease decides when a host is lost, and mpiexec ends
    # all ranks once the connection to one of its own daemons has ended. (Debian's ssh would give up
    # after 15 minutes of silence.)
    "-oServerAliveInterval=0",
    "-oChannelTimeout=none",
    # Other users of our connection would end with it, or keep it open. So an existing connection is
    # used, but ours is not offered.
    "-oControlMaster=no",
    # A port that is in use would be the end of it, and X11 costs time.
    "-oClearAllForwardings=yes",
    "-oForwardX11=no",
    "-oTunnel=no",
)


class HostError(RuntimeError):
    """A host cannot take part; the message names it and says what to do."""


def read_hosts(said: str | os.PathLike[str]) -> dict[str, int]:
    """Return the hosts, with the number of ranks that each may hold.

    Args:
        said: ``"node1:4,node2:4"``, or the path of a hostfile, whose lines are ``node1:4`` or
            ``node1 slots=4``; ``#`` begins a comment.

    Raises:
        ValueError: if it is neither; the message says what is wrong.
    """
    if not isinstance(said, str | os.PathLike):
        raise ValueError(f"hosts: {said!r} is neither a string nor a path; {_ADVICE}")
    text = os.fspath(said)
    # A list of hosts contains no path separator, and a hostfile's name hardly ever a colon.
    is_path = "/" in text or os.path.isfile(text)
    entries = _lines_of(Path(text).expanduser()) if is_path else text.split(",")
    hosts: dict[str, int] = {}
    for entry in map(str.strip, entries):
        found = _SLOTS.match(entry)
        name, slots = (found["host"], int(found["slots"])) if found else (entry, 0)
        if not found or not slots or not _NAME.match(name):
            raise ValueError(f"hosts: {entry!r} is not a host with its number of ranks; {_ADVICE}")
        if name in hosts:
            raise ValueError(f"hosts: {name} is named twice; name it once, with all its ranks")
        hosts[name] = slots
    if not hosts:
        raise ValueError(f"hosts: {text!r} names no host")
    return hosts


def filled(hosts: dict[str, int], n: int) -> dict[str, int]:
    """How many of ``n`` ranks run on each host: each is filled before the next one is used."""
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
    name = host.rpartition("@")[2]
    if name in ("localhost", socket.gethostname(), socket.gethostname().partition(".")[0]):
        return True
    try:
        found = {str(entry[4][0]) for entry in socket.getaddrinfo(name, None)}
    except OSError:
        return False  # ssh may know a name that the system does not
    ours = {one.address for some in psutil.net_if_addrs().values() for one in some}
    # Debian maps a host's own name to 127.0.1.1, which no interface has.
    return any(address in ours or ipaddress.ip_address(address).is_loopback for address in found)


def by_ssh(host: str, command: list[str]) -> list[str]:
    """The command line that runs ``command`` on another host by ssh.

    Options for ssh are those that mpiexec gives it: ``PRTE_MCA_plm_ssh_args``.
    """
    options = shlex.split(os.environ.get(_SSH_ARGUMENTS, ""))
    return ["ssh", *_SSH_OPTIONS, *options, host, shlex.join(command)]


def to_try(command: Sequence[str]) -> str:
    """The command to type to see whether a command from :func:`by_ssh` works."""
    return shlex.join(word for word in command if word == _BY_HAND or word not in _SSH_OPTIONS)


def ssh_of_mpiexec(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables that make mpiexec call our ssh, followed by its own options.

    PRRTE hands a variable on to its daemons only up to the second ``=``, which matters where
    daemons start others (more than 64 hosts).

    Args:
        variables: what mpiexec runs under.
    """
    theirs = variables.get(_SSH_ARGUMENTS, "").split()
    return {_SSH_ARGUMENTS: " ".join([*_SSH_OPTIONS, *theirs])}


def interfaces() -> list[IPv4Interface]:
    """This host's IPv4 addresses for others, each with its network (``10.0.0.1/24``)."""
    found = []
    for entries in psutil.net_if_addrs().values():
        for entry in entries:
            if entry.family == socket.AF_INET and not entry.address.startswith("127."):
                found.append(IPv4Interface(f"{entry.address}/{entry.netmask or 32}"))
    return found


def address_towards(host: str, connection: str, ours: Collection[IPv4Interface]) -> str:
    """This host's IPv4 address as another one sees it.

    Args:
        host: the other one.
        connection: its ``SSH_CONNECTION``; without one, or if that has addresses of IPv6, the
            system's route is used.
        ours: as :func:`interfaces` returns them.

    Raises:
        HostError: if it is none of this host's addresses.
    """
    seen = connection.split()[0] if connection else ""
    if not seen or ":" in seen:
        seen = _way_to(host.rpartition("@")[2]) or seen
    return known_address(seen, f"{host} sees this host at {seen or 'no known address'}", ours)


def known_address(address: str, whose: str, ours: Collection[IPv4Interface]) -> str:
    """Return an address if it is this host's.

    Args:
        address: to be returned.
        whose: the source of the address, in words.
        ours: as :func:`interfaces` returns them.

    Raises:
        HostError: if it is not.
    """
    if address in (own := [str(one.ip) for one in ours]):
        return address
    raise HostError(
        f"{whose}, which is not one of its own IPv4 addresses ({', '.join(own) or 'it has none'}): "
        "set IPYRANKS_ADDRESS to one that all hosts can reach"
    )


def _way_to(name: str) -> str:
    """The address from which this host would send to another; empty if that has no IPv4 address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as trial:
        try:
            trial.connect((name, 9))  # sends nothing
        except OSError:
            return ""
        return str(trial.getsockname()[0])


def common_network(
    address: str, ours: Collection[IPv4Interface], theirs: Sequence[Collection[str]]
) -> str | None:
    """The network of one of this host's addresses, if all other hosts are in it, too.

    Args:
        address: of this host.
        ours: as :func:`interfaces` returns them.
        theirs: the same for each other host, as text.
    """
    for one in ours:
        if str(one.ip) == address and all(
            any(IPv4Interface(its).ip in one.network for its in some) for some in theirs
        ):
            return str(one.network)
    return None


def versions() -> dict[str, str]:
    """The versions of the packages that must match on every host, without importing them."""
    return of_the_backend.versions("rank-by-rank", "ipyparallel")
