"""ipyparallel's launchers of controller and engines, with our command lines and log files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ipyparallel.cluster.launcher import LocalControllerLauncher, MPIEngineSetLauncher
from torch_mpi4py import launch

from .runtime_dir import RuntimeDir, python

# A notebook's own variables that mean nothing, or the wrong thing, on an engine.
_OF_THE_NOTEBOOK = ("JPY_PARENT_PID", "JPY_SESSION_NAME")


class _InRuntimeDir:
    """Mixin: keep the output until the runtime directory goes, so that errors can quote it."""

    profile_dir: str

    @property
    def directory(self) -> RuntimeDir:
        return RuntimeDir(Path(self.profile_dir).parent)

    def _log_output(self, stop_data: Any = None) -> None:
        """ipyparallel would print and delete the log here."""


class ControllerLauncher(_InRuntimeDir, LocalControllerLauncher):
    """Starts :mod:`course_lib.cluster.controller`."""

    def _output_file_default(self) -> str:
        return str(self.directory.logs / "controller.log")

    def find_args(self) -> list[str]:
        return python("-m", "course_lib.cluster.controller", str(self.directory.path))


class EngineSetLauncher(_InRuntimeDir, MPIEngineSetLauncher):
    """Starts :mod:`course_lib.cluster.engine` on every rank, by mpiexec."""

    def _output_file_default(self) -> str:
        return str(self.directory.logs / "mpiexec.log")

    def find_args(self) -> list[str]:
        # If the keeper is killed its ranks end, and mpiexec with them.
        engine = python("-m", "course_lib.cluster.engine", str(self.directory.path))
        return launch.mpiexec(self.n, *engine)

    def get_env(self) -> dict[str, str]:
        return super().get_env() | engine_environment(self.directory)


def engine_environment(directory: RuntimeDir) -> dict[str, str]:
    """The variables mpiexec and the engines run under."""
    variables = launch.environment()
    for name in _OF_THE_NOTEBOOK:
        variables.pop(name, None)
    # The session files of mpiexec and the ranks' shared memory go where the keeper deletes them.
    variables["COURSE_TMPDIR"] = os.environ.get("TMPDIR", "")
    variables["TMPDIR"] = str(directory.temporary)
    # Each rank keeps its log of events there, where the notebook can read it at any time.
    variables["TORCH_MPI4PY_EVENTS_DIR"] = str(directory.events)
    if directory.shared_memory is not None:
        variables["OMPI_MCA_btl_sm_backing_directory"] = str(directory.shared_memory)
        variables["OMPI_MCA_osc_sm_backing_directory"] = str(directory.shared_memory)
    return variables
