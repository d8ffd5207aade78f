"""Examines several hosts over ssh: whether a cluster can span them, and what would fail on each.

One ssh to each host runs the doctor there; its answers are judged here.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ipyranks.hosts import by_ssh, is_here, read_hosts, versions
from torch_mpi4py.core.versions import differences

from .examination import OK, Answer, Finding, OutOfTime, all_within, fail, ok, run, warn

__all__ = ["host_findings", "judge_host", "judge_mpi", "what_this_host_is"]

_ROOT = Path(__file__).resolve().parents[2]
_MARK = "the doctor on this host says: "
_NO_CHECKOUT = 97
_SSH_FAILED = 255
_MORE_FOR_SSH_S = 15.0
# The choice of MPI, as on the notebook's host.
_CARRIED = ("MPI4PY_LIBMPI", "TORCH_MPI4PY_MPIEXEC")


def host_findings(said: str, within_s: float) -> list[Finding]:
    """Examine hosts, all at once, and return the findings, host by host.

    Args:
        said: ``"node1:4,node2:4"``, or the path of a hostfile.
        within_s: seconds that each host has for its own examination.

    Raises:
        ValueError: if ``said`` is neither.
    """
    hosts = list(read_hosts(said))
    with all_within(within_s + _MORE_FOR_SSH_S), ThreadPoolExecutor(len(hosts)) as pool:
        answers = list(pool.map(lambda host: _ask(host, within_s), hosts))
    found, mpis = [], {}
    for host, answer in zip(hosts, answers, strict=True):
        report = _report(answer)
        found += judge_host(host, is_here(host), answer, report, versions())
        if report:
            mpis[host] = report.mpi
    return [*found, dataclasses.replace(judge_mpi(mpis), item="MPI on all hosts")]


@dataclass(frozen=True)
class Report:
    """A host's answer: versions, the ``SSH_CONNECTION`` of the request, findings."""

    versions: dict[str, str]
    connection: str
    findings: list[Finding]

    @property
    def mpi(self) -> str:
        """The finding of its MPI job, the empty string if that failed."""
        return next((f.seen for f in self.findings if f.item == "MPI job" and f.status == OK), "")


def what_this_host_is(findings: Sequence[Finding]) -> str:
    """Return the line with which this host answers another one's doctor."""
    said: dict[str, Any] = {
        "versions": versions(),
        "connection": os.environ.get("SSH_CONNECTION", ""),
        "findings": [dataclasses.asdict(finding) for finding in findings],
    }
    return _MARK + json.dumps(said)


def judge_host(
    host: str, here: bool, answer: Answer, report: Report | None, ours: Mapping[str, str]
) -> list[Finding]:
    """Return the findings about one host.

    Args:
        host: its name.
        here: whether it is this machine.
        answer: how the command that asked it ended.
        report: its answer, None if there was none.
        ours: the versions on this machine.
    """
    if report is None:
        return [dataclasses.replace(_why_no_report(host, answer), item=f"{host}: ssh")]
    reached = ok("this machine") if here else _address(report.connection)
    differs = differences(dict(ours), report.versions)
    same = ok(f"checkout at {_ROOT}, same versions as here")
    if differs:
        same = fail(
            f"{'; '.join(differs)}",
            f"On {host}: cd {_ROOT} && make clean && make setup, from the same commit.",
        )
    rows = [("ssh", reached), ("versions", same)]
    rows += [(f.item, f) for f in report.findings if f.status != OK or f.item == "MPI job"]
    return [dataclasses.replace(found, item=f"{host}: {what}") for what, found in rows]


def judge_mpi(mpis: Mapping[str, str]) -> Finding:
    """Report whether all hosts use one MPI; ``mpis`` has the finding of each one's MPI job."""
    if not mpis or not all(mpis.values()):
        return fail("not known for every host", "See the lines 'MPI job' and 'ssh' of each host.")
    if len(set(mpis.values())) > 1:
        return fail(
            "; ".join(f"{host}: {seen}" for host, seen in mpis.items()),
            "Use the same MPI at the same path on all hosts: set MPI4PY_LIBMPI and "
            "TORCH_MPI4PY_MPIEXEC to the same values everywhere, or nowhere (docs/site_mpi.md).",
        )
    return ok(f"the same: {next(iter(mpis.values()))}")


def _why_no_report(host: str, answer: Answer) -> Finding:
    if answer.code == _SSH_FAILED:
        return fail(
            f"cannot be reached without a password: {answer.last_lines}",
            f"Run ssh-copy-id {host}, then try ssh -o BatchMode=yes {host} true. To use ssh "
            'settings of your own: export PRTE_MCA_plm_ssh_args="-F FILE".',
        )
    if answer.code == _NO_CHECKOUT:
        return fail(
            f"has no {sys.executable}",
            f"Put the checkout at the same path there, {_ROOT}, and run make setup in it.",
        )
    if answer.code is None:
        return warn(
            "did not answer in time",
            "Check that it is up and not busy, or allow more time: --within 60",
        )
    return fail(
        f"the doctor failed there (exit status {answer.code}): {answer.last_lines}",
        f"On {host}: cd {_ROOT} && make doctor",
    )


def _address(connection: str) -> Finding:
    address = connection.split()[0] if connection else ""
    if not address or address.startswith(("127.", "::1")):
        return warn(
            f"reached, but it sees this machine at {address or 'no known address'}",
            "Ranks there may not find this machine: name the host by its network address.",
        )
    return ok(f"reached without a password; it reaches this machine at {address}")


def _ask(host: str, within_s: float) -> Answer:
    doctor = [sys.executable, "-m", "course_lib.doctor", "--for-another-host"]
    words = shlex.join([*doctor, "--within", f"{within_s:g}"])
    python, root = shlex.quote(sys.executable), shlex.quote(str(_ROOT))
    script = f"test -x {python} && cd {root} || exit {_NO_CHECKOUT}; exec {words}"
    settings = [f"{name}={os.environ[name]}" for name in _CARRIED if name in os.environ]
    command = ["env", *settings, "sh", "-c", script]
    try:
        return run(
            command if is_here(host) else by_ssh(host, command), limit=within_s + _MORE_FOR_SSH_S
        )
    except OutOfTime:
        return Answer(None, "")


def _report(answer: Answer) -> Report | None:
    lines = [line for line in answer.output.splitlines() if line.startswith(_MARK)]
    if not lines:
        return None
    said = json.loads(lines[-1].removeprefix(_MARK))
    said["findings"] = [Finding(**finding) for finding in said["findings"]]
    return Report(**said)
