"""What the doctor says of several hosts, for all that a host may answer."""

from __future__ import annotations

import subprocess
import sys

import pytest

from course_lib.doctor import FAIL, OK, WARN, hosts
from course_lib.doctor.examination import Answer, Finding, fail, ok

OURS = {"Python": "3.11.2", "torch": "2.13.0"}
JOB = Finding(OK, "4 ranks of Open MPI 5.0.11 (/opt/libmpi.so.40) added up their numbers", "",
              "MPI job")  # fmt: skip
CONNECTION = "10.0.0.1 55000 10.0.0.2 22"


def report(**changes) -> hosts.Report:
    given = {"versions": OURS, "connection": CONNECTION, "findings": [JOB]}
    return hosts.Report(**(given | changes))


def judged(said: hosts.Report | None, answer: Answer | None = None, here: bool = False) -> dict:
    found = hosts.judge_host("h2", here, answer or Answer(0, ""), said, OURS)
    return {finding.item: finding for finding in found}


def test_a_healthy_host() -> None:
    found = judged(report())
    assert list(found) == ["h2: ssh", "h2: versions", "h2: MPI job"]
    assert {finding.status for finding in found.values()} == {OK}
    assert found["h2: ssh"].seen.endswith("it reaches this machine at 10.0.0.1")
    assert judged(report(connection=""), here=True)["h2: ssh"] == Finding(
        OK, "this machine", "", "h2: ssh"
    )


@pytest.mark.parametrize(
    ("answer", "status", "seen", "fix"),
    [
        (Answer(255, "h2: Permission denied (publickey)."), FAIL, "denied", "ssh-copy-id h2"),
        (Answer(97, ""), FAIL, sys.executable, "same path"),
        (Answer(None, ""), WARN, "did not answer", "--within"),
        (Answer(1, "ModuleNotFoundError: torch"), FAIL, "ModuleNotFoundError", "make doctor"),
    ],
)
def test_host_without_report(answer: Answer, status: str, seen: str, fix: str) -> None:
    found = judged(None, answer)
    assert list(found) == ["h2: ssh"]
    assert found["h2: ssh"].status == status
    assert seen in found["h2: ssh"].seen
    assert fix in found["h2: ssh"].fix


def test_host_findings_carry_its_name() -> None:
    short = Finding(FAIL, "8 MiB free in /dev/shm", "Give it more", "shared memory")
    fine = Finding(OK, "root", "", "user")
    found = judged(report(versions=OURS | {"torch": "2.12.0"}, findings=[JOB, short, fine]))
    assert found["h2: versions"].status == FAIL
    assert found["h2: versions"].seen == "torch 2.12.0 instead of 2.13.0"
    assert found["h2: shared memory"].fix == "Give it more"
    assert "h2: user" not in found


@pytest.mark.parametrize("connection", ["", "127.0.0.1 55000 127.0.0.1 22", "::1 55000 ::1 22"])
def test_unreachable_address_is_a_warning(connection: str) -> None:
    assert judged(report(connection=connection))["h2: ssh"].status == WARN


def test_all_hosts_need_the_same_mpi() -> None:
    assert hosts.judge_mpi({"h1": JOB.seen, "h2": JOB.seen}) == ok(f"the same: {JOB.seen}")
    other = hosts.judge_mpi({"h1": JOB.seen, "h2": "4 ranks of MPICH"})
    assert other.status == FAIL
    assert "h2: 4 ranks of MPICH" in other.seen
    for unknown in ({}, {"h1": JOB.seen, "h2": ""}):
        assert hosts.judge_mpi(unknown).status == FAIL
    assert report(findings=[fail("no", "")]).mpi == ""


def test_host_report_survives_a_round_trip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSH_CONNECTION", CONNECTION)
    line = hosts.what_this_host_is([JOB])
    read = hosts._report(Answer(0, f"Welcome!\n{line}\nBye\n"))
    assert read is not None
    assert (read.connection, read.findings, read.mpi) == (CONNECTION, [JOB], JOB.seen)
    assert hosts._report(Answer(0, "Welcome!")) is None


def test_hosts_on_the_command_line() -> None:
    def doctor(said: str) -> subprocess.CompletedProcess:
        command = [sys.executable, "-m", "course_lib.doctor", "--hosts", said]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    ended = doctor("nowhere.invalid:2")
    assert ended.returncode == 1
    assert "FAIL  nowhere.invalid: ssh" in ended.stdout
    ended = doctor("node1")
    assert ended.returncode == 2
    assert "'node1' is not a host with its number of ranks" in ended.stderr
