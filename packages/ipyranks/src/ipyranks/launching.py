"""The mpiexec command and variables that start a cluster's engines on one or several hosts."""

from __future__ import annotations

import os
import shlex

from torch_mpi4py import launch

from .hosts import HostError, ssh_of_mpiexec
from .runtime_dir import CLUSTER_VARIABLE, RuntimeDir

# Our variables that an engine on another host gets, besides those with the prefixes in
# IPYRANKS_PASS_ON ("MY_,THEIR_"); mpiexec passes on those of the MPI itself.
_PASSED_ON = (
    "IPYRANKS_",
    "TORCH_",
    "IPP_",
    "IPYTHON",
    "PYTHON",
    "MPI4PY_",
    "NCCL_",
    "GLOO_",
    "OMP_",
    "MKL_",
    "OPENBLAS_",
)
_NETWORKS_OF_MPI = (
    "OMPI_MCA_btl_tcp_if_include",
    "PRTE_MCA_prte_if_include",
    "OMPI_MCA_btl_tcp_if_exclude",
    "PRTE_MCA_prte_if_exclude",
)


def engine_environment(directory: RuntimeDir) -> dict[str, str]:
    """The variables mpiexec and the engines run under."""
    variables = launch.environment()
    if directory.shared_memory is not None:
        variables |= dict.fromkeys(launch.SEGMENT_FOLDERS, str(directory.shared_memory))
    # The session files of mpiexec go where the keeper deletes them, too.
    variables["IPYRANKS_TMPDIR"] = os.environ.get("TMPDIR", "")
    variables["TMPDIR"] = str(directory.temporary)
    # The keeper decides when a start has failed, and discounts waits for a core.
    variables["TORCH_MPI4PY_START_SECONDS"] = "0"
    # Each rank keeps its log of events there, where the notebook can read it at any time.
    variables["TORCH_MPI4PY_EVENTS_DIR"] = str(directory.events)
    return variables


def over_hosts(
    command: list[str],
    variables: dict[str, str],
    hosts: dict[str, int],
    directory: RuntimeDir,
    network: str | None,
) -> tuple[list[str], dict[str, str]]:
    """Turn the command that starts ranks here into one that starts them on several hosts.

    Args:
        command: as :func:`torch_mpi4py.launch.mpiexec` returns it.
        variables: those it runs under.
        hosts: how many ranks run on which host.
        directory: the cluster's, on every host.
        network: the one through which they talk, unless the variables name others; None if there
            is none that all hosts are in.

    Raises:
        HostError: if its MPI cannot do this.
    """
    if not launch.frees_ranks():
        raise HostError(f"several hosts need Open MPI 5; {command[0]} belongs to another MPI")
    where = ",".join(f"{host}:{ranks}" for host, ranks in hosts.items())
    asked_for = variables.get("IPYRANKS_PASS_ON", "").replace(" ", "").split(",")
    beginnings = (*_PASSED_ON, *filter(None, asked_for))
    passed_on = [name for name in variables if name.startswith(beginnings) or name == "TMPDIR"]
    exported = [word for name in passed_on for word in ("-x", name)]
    daemon = shlex.quote(str(launch.find_mpiexec().with_name("prted")))
    marks = f"{CLUSTER_VARIABLE}={directory.path} TMPDIR={directory.temporary}"
    settings = {
        # Its daemons are marked as the cluster's, and leave their files where they are swept up.
        "PRTE_MCA_prte_launch_agent": f"env {marks} {daemon}",
        **ssh_of_mpiexec(variables),
    }
    if network is not None and not any(name in variables for name in _NETWORKS_OF_MPI):
        # MPI would try all. With Docker, each host has its own bridge with the same address: ranks
        # connected to themselves there, and no cluster started.
        settings |= dict.fromkeys(_NETWORKS_OF_MPI[:2], network)
    options = ["--host", where, "--map-by", "slot", *exported]
    return [command[0], *options, *command[1:]], variables | settings
