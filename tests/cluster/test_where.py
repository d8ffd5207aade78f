"""What a learner may say of where ranks run: hosts, hostfiles, Slurm's jobs, IPYRANKS_CLUSTER."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
from ipaddress import IPv4Interface
from itertools import pairwise
from pathlib import Path

import pytest
from ipyranks.hosts import (
    HostError,
    address_towards,
    by_ssh,
    common_network,
    filled,
    interfaces,
    is_here,
    known_address,
    read_hosts,
    ssh_of_mpiexec,
    to_try,
)
from ipyranks.launching import over_hosts
from ipyranks.runtime_dir import RuntimeDir
from ipyranks.slurm import Allocation, is_inside, outside, read_settings
from ipyranks.starting import start_cluster

import course_lib.cluster

FOUR = [f"node{number:04d}.cluster.example.org" for number in range(16)]


@pytest.mark.parametrize(
    ("said", "hosts"),
    [
        ("node1:4,node2:4", {"node1": 4, "node2": 4}),
        (" node1:4 , node2:1 ", {"node1": 4, "node2": 1}),
        ("node1 slots=4", {"node1": 4}),
        ("me@node1:2", {"me@node1": 2}),
        ("10.0.0.1:2,localhost:1", {"10.0.0.1": 2, "localhost": 1}),
        # Longer than the name of a file may be.
        (",".join(f"{host}:2" for host in FOUR), dict.fromkeys(FOUR, 2)),
    ],
)
def test_a_list_of_hosts(said: str, hosts: dict[str, int]) -> None:
    assert read_hosts(said) == hosts
    assert list(read_hosts(said)) == list(hosts)


def test_a_hostfile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "hosts"
    path.write_text("# ours\n\nnode1 slots=4   # a comment\n  node2:2\nnode3 slots = 1\n")
    hosts = {"node1": 4, "node2": 2, "node3": 1}
    assert read_hosts(path) == read_hosts(str(path)) == hosts
    monkeypatch.setenv("HOME", str(tmp_path))
    assert read_hosts("~/hosts") == hosts
    monkeypatch.chdir(tmp_path)
    assert read_hosts("hosts") == hosts


@pytest.mark.parametrize(
    ("said", "wrong"),
    [
        ("", "'' is not a host with its number of ranks"),
        ("node1", "'node1' is not a host with its number of ranks"),
        ("node1:0", "'node1:0' is not a host"),
        ("node1:-1", "'node1:-1' is not a host"),
        ("node1:2,,node2:2", "'' is not a host"),
        ("node1:2;node2:2", "'node1:2;node2:2' is not a host"),
        ("-oProxyCommand=x:2", "is not a host"),
        ("fd00::1:2", "is not a host"),
        ("node1 slots=4 max_slots=8", "is not a host"),
        ("node1:2,node1:2", "node1 is named twice"),
        ("/no/such/file", "/no/such/file cannot be read: No such file"),
        (["node1:2", "node2:2"], "write, for two hosts with four ranks each, hosts="),
        (4, "write, for two hosts with four ranks each, hosts="),
    ],
)
def test_read_hosts_rejects_malformed_lists(said: object, wrong: str) -> None:
    with pytest.raises(ValueError, match="hosts: ") as caught:
        read_hosts(said)  # type: ignore[arg-type]
    assert wrong in str(caught.value)


def test_read_hosts_rejects_an_empty_hostfile(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("# nobody\n")
    with pytest.raises(ValueError, match="names no host"):
        read_hosts(tmp_path / "hosts")


def test_hosts_are_filled_one_after_the_other() -> None:
    hosts = {"node1": 2, "node2": 2, "node3": 2}
    assert filled(hosts, 1) == {"node1": 1}
    assert filled(hosts, 3) == {"node1": 2, "node2": 1}
    assert filled(hosts, 6) == hosts


def test_the_names_of_this_host() -> None:
    own = socket.gethostname()
    # On Debian a host's own name with its domain stands for 127.0.1.1.
    for name in (own, f"me@{own}", "localhost", "127.0.0.1", "127.0.1.1"):
        assert is_here(name), name
    for name in ("192.0.2.7", "me@192.0.2.7", "nowhere.invalid"):
        assert not is_here(name), name


def test_ssh_settings_equal_those_of_mpiexec(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Our settings come first, because ssh uses the first value, then the user's."""
    monkeypatch.setenv("PRTE_MCA_plm_ssh_args", "-F my_hosts -p 2222")
    ours = by_ssh("node2", ["python", "-c", "pass"])
    theirs = ssh_of_mpiexec(os.environ)["PRTE_MCA_plm_ssh_args"].split(" ")
    assert ours == ["ssh", *theirs, "node2", "python -c pass"]
    assert theirs[-4:] == ["-F", "my_hosts", "-p", "2222"]
    assert "-oServerAliveInterval=0" in theirs
    assert to_try(ours) == "ssh -oBatchMode=yes -F my_hosts -p 2222 node2 'python -c pass'"


# ---- addresses and networks ------------------------------------------------------------------

DOCKER = "172.17.0.1/16"
OURS = [IPv4Interface("10.0.0.1/24"), IPv4Interface(DOCKER)]


def test_the_addresses_of_this_host() -> None:
    for one in interfaces():
        assert not one.is_loopback
        with socket.socket() as trial:
            trial.bind((str(one.ip), 0))


def test_address_under_which_another_host_reaches_this_one() -> None:
    assert address_towards("node2", "10.0.0.1 50000 10.0.0.2 22", OURS) == "10.0.0.1"


@pytest.mark.parametrize(
    ("connection", "why"),
    [
        # Through a third host, or one that translates addresses.
        ("192.0.2.9 50000 10.0.0.2 22", "nowhere.invalid sees this host at 192.0.2.9, which"),
        # Engines and controller talk by IPv4.
        ("fd00::1 50000 fd00::2 22", "nowhere.invalid sees this host at fd00::1, which"),
        ("", "nowhere.invalid sees this host at no known address, which"),
    ],
)
def test_foreign_address_is_rejected(connection: str, why: str) -> None:
    with pytest.raises(HostError, match="IPYRANKS_ADDRESS") as caught:
        address_towards("nowhere.invalid", connection, OURS)
    assert str(caught.value).startswith(why)
    assert "(10.0.0.1, 172.17.0.1)" in str(caught.value)


def test_address_without_ipv4_comes_from_the_system_route() -> None:
    here = [IPv4Interface("127.0.0.1/8")]
    for connection in ("", "fd00::1 50000 fd00::2 22"):
        assert address_towards("me@127.0.0.1", connection, here) == "127.0.0.1"


def test_address_given_by_the_user() -> None:
    assert known_address("10.0.0.1", "", OURS) == "10.0.0.1"
    with pytest.raises(
        HostError, match=r"^IPYRANKS_ADDRESS says node1, which is not one of its own"
    ):
        known_address("node1", "IPYRANKS_ADDRESS says node1", OURS)
    with pytest.raises(HostError, match="it has none"):
        known_address("10.0.0.1", "", [])


def test_network_shared_by_all_hosts() -> None:
    assert common_network("10.0.0.1", OURS, [["10.0.0.2/24", DOCKER], ["10.0.0.3/24"]]) == (
        "10.0.0.0/24"
    )
    # Hosts that are reached through a router.
    assert common_network("10.0.0.1", OURS, [["10.0.0.2/24"], ["10.0.1.3/24", DOCKER]]) is None
    # A network of one address each, as some clouds have it.
    alone = [IPv4Interface("10.0.0.1/32")]
    assert common_network("10.0.0.1", alone, [["10.0.0.2/32"]]) is None
    assert common_network("10.9.9.9", OURS, [["10.0.0.2/24"]]) is None


# ---- Slurm -----------------------------------------------------------------------------------


@pytest.fixture
def scontrol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program that takes the place of Slurm's: it tells what is in a file."""
    program = tmp_path / "scontrol"
    program.write_text(f"#!/bin/sh\ncat {tmp_path}/names\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path / "names"


def job(names: Path, tasks: str, *hosts: str) -> dict[str, int]:
    names.write_text("\n".join(hosts) + "\n")
    variables = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-4]", "SLURM_TASKS_PER_NODE": tasks}
    return Allocation.of_variables(variables | {"HOME": "/"}).hosts


def test_tasks_per_node_are_parsed(scontrol: Path) -> None:
    assert job(scontrol, "2(x3),1", "n1", "n2", "n3", "n4") == {"n1": 2, "n2": 2, "n3": 2, "n4": 1}
    assert job(scontrol, "4", "n1") == {"n1": 4}
    assert job(scontrol, "1,16(x2)", "n1", "n2", "n3") == {"n1": 1, "n2": 16, "n3": 16}


def test_inconsistent_slurm_variables_are_rejected(scontrol: Path) -> None:
    with pytest.raises(
        HostError, match=r"job 7 has: tasks on each .2\(x2\)., nodes n1, n2, n3\. .*without srun"
    ):
        job(scontrol, "2(x2)", "n1", "n2", "n3")
    with pytest.raises(HostError, match="does not say which nodes job 7 has"):
        job(scontrol, "", "")


def test_end_of_one_array_task_is_reported(scontrol: Path) -> None:
    ours = Allocation("7", {"n1": 4}, {})
    other = "JobId=6 ArrayJobId=7 ArrayTaskId=1 JobState=FAILED TimeLimit=00:10:00"
    for state, said in {
        "RUNNING": None,
        "CANCELLED": "Slurm has ended job 7: CANCELLED",
        "TIMEOUT": "Slurm has ended job 7: TIMEOUT (its time limit was 00:20:00)",
    }.items():
        task = f"JobId=7 ArrayJobId=7 ArrayTaskId=2 JobState={state} TimeLimit=00:20:00"
        scontrol.write_text(f"{other}\n{task}\n")
        assert asyncio.run(ours.why_it_ended()) == said


def test_job_variables_without_slurm_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(HostError, match="does not say which nodes job 7 has"):
        Allocation.of_variables({"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n1"})


@pytest.mark.parametrize(
    ("said", "settings"),
    [
        (True, {}),
        ("", {}),
        ("partition=main,nodes=2", {"partition": "main", "nodes": "2"}),
        (" time = 1-02:30:00 , gpus=a100:2", {"time": "1-02:30:00", "gpus": "a100:2"}),
        ({"nodes": 2, "extra": ["--qos=x"]}, {"nodes": 2, "extra": ["--qos=x"]}),
    ],
)
def test_slurm_settings_are_parsed(said: object, settings: dict) -> None:
    assert read_settings(said) == settings


@pytest.mark.parametrize(
    "said",
    [
        "main",
        "partition=main,nodes",  # which would be left out in silence
        "partition=",
        "partition=main,",
        {"colour": "red"},
        {"extra": "--qos=x"},  # a text is not a list of options
        2,
        ["nodes=2"],
    ],
)
def test_malformed_slurm_settings_are_rejected(said: object) -> None:
    with pytest.raises(ValueError, match=r"slurm: .* is not understood; write slurm=True"):
        read_settings(said)


def test_is_inside_detects_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert not is_inside()
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_TASKS_PER_NODE", "2")
    assert is_inside()
    # What starts ranks on this host alone must not see the job.
    kept = {"HOME": "/", "SLURM_CONF": "/etc/slurm.conf"}
    assert outside(kept | {"SLURM_JOB_ID": "7", "SLURMD_NODENAME": "n1"}) == kept


# ---- IPYRANKS_CLUSTER --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "wrong"),
    [
        ("hosts", "IPYRANKS_CLUSTER=hosts: "),
        ("hosts:node1", "IPYRANKS_CLUSTER=hosts:node1: hosts: 'node1' is not a host"),
        ("hosts:node1:1", "n must be from 1 to 1 ranks on node1, not 4"),
        ("slurm:main", "IPYRANKS_CLUSTER=slurm:main: slurm: 'main' is not understood"),
        ("node1:2,node2:2", "IPYRANKS_CLUSTER=node1:2,node2:2: "),
        ("Slurm", "IPYRANKS_CLUSTER=Slurm: "),
        ("local:4", "IPYRANKS_CLUSTER=local:4: "),
    ],
)
def test_malformed_place_is_rejected(
    monkeypatch: pytest.MonkeyPatch, where: str, wrong: str
) -> None:
    monkeypatch.setenv("IPYRANKS_CLUSTER", where)
    with pytest.raises(ValueError, match=r"IPYRANKS_CLUSTER|n must be") as caught:
        start_cluster(4)
    assert str(caught.value).startswith(wrong)


def test_course_uses_its_own_variable_names(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("IPYRANKS_CLUSTER", "IPYRANKS_PASS_ON"):  # which it sets
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("COURSE_CLUSTER", "Slurm")
    with pytest.raises(ValueError, match=r"^IPYRANKS_CLUSTER=Slurm: "):
        course_lib.cluster.start_cluster(4)
    assert os.environ["IPYRANKS_PASS_ON"] == "COURSE_"
    monkeypatch.setenv("IPYRANKS_PASS_ON", "MY_")
    monkeypatch.delenv("COURSE_CLUSTER")
    with pytest.raises(ValueError, match="n must be"):
        course_lib.cluster.start_cluster(0)
    assert "IPYRANKS_CLUSTER" not in os.environ
    assert set(os.environ["IPYRANKS_PASS_ON"].split(",")) == {"MY_", "COURSE_"}


def test_remote_ranks_get_the_requested_variables(tmp_path: Path) -> None:
    given = {"MY_KEY": "k", "COURSE_DATA": "/data", "TORCH_LOGS": "", "TMPDIR": "/tmp", "LANG": "C"}
    place = RuntimeDir(tmp_path / "cluster")

    def passed_on(**more: str) -> set[str]:
        command, _ = over_hosts(["mpiexec"], given | more, {"node1": 2}, place, None)
        return {name for word, name in pairwise(command) if word == "-x"}

    assert passed_on() == {"TORCH_LOGS", "TMPDIR"}
    asked = passed_on(IPYRANKS_PASS_ON="COURSE_, MY_", TMPDIR_2="/tmp")
    assert asked == {"TORCH_LOGS", "TMPDIR", "COURSE_DATA", "MY_KEY", "IPYRANKS_PASS_ON"}


def test_start_cluster_rejects_hosts_and_slurm_together() -> None:
    with pytest.raises(ValueError, match="give hosts or slurm, not both"):
        start_cluster(4, hosts="node1:4", slurm=True)
