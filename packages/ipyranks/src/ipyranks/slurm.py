"""Hosts from Slurm: a job of the cluster's own, or the one in which this program runs.

``salloc`` asks for the job and holds it as long as its standard input is open. So the job ends with
the keeper, however that ends, and a job that is still queued is removed from the queue.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .hosts import HostError

_OPTIONS = ("partition", "nodes", "time", "gpus", "account")
_COUNT = re.compile(r"(\d+)(?:\(x(\d+)\))?")
_JOB = re.compile(r"job(?: allocation)? (\d+)")
# The job's variables, and then nothing until the standard input is closed.
_HOLD = "env | grep ^SLURM_; echo; exec cat > /dev/null"
# The reasons why a job waits that can never run as requested.
_NEVER = ("PartitionNodeLimit", "PartitionTimeLimit", "BadConstraints")
_ASK_FOR_REASON_EVERY_S = 2.0
_ANSWERS_WITHIN_S = 5.0
_ENDS_WITHIN_S = 10.0
_LOOKS_EVERY_S = 0.2


def read_settings(said: Any) -> dict[str, Any]:
    """Return the settings for requesting a job.

    Args:
        said: True for the site's defaults, or a dict, or text like
            ``"partition=main,nodes=2,time=30"``. The names are ``partition``, ``nodes``, ``time``
            (in minutes, or as Slurm writes it), ``gpus``, ``account``, and in a dict ``extra``, a
            list of further options for salloc.

    Raises:
        ValueError: for anything else.
    """
    if said is True or said == "":
        return {}
    settings = said
    if isinstance(said, str):
        pairs = [word.partition("=") for word in said.split(",")]
        settings = {name.strip(): value.strip() for name, _, value in pairs}
    if not isinstance(settings, dict) or not all(map(_is_setting, settings, settings.values())):
        names = ", ".join(_OPTIONS)
        raise ValueError(
            f'slurm: {said!r} is not understood; write slurm=True, slurm="partition=main,nodes=2" '
            f"or a dict with some of {names} and extra (a list of options for salloc)"
        )
    return {name: list(v) if isinstance(v, tuple) else v for name, v in settings.items()}


def _is_setting(name: Any, value: Any) -> bool:
    if name == "extra":
        return isinstance(value, list | tuple)
    return name in _OPTIONS and value not in ("", None)


@dataclass
class Allocation:
    """A job of Slurm.

    Attributes:
        job: its number.
        hosts: how many tasks each of its nodes may run.
        variables: what Slurm's programs know it by.
        process: the salloc that holds it; None if it is not ours.
    """

    job: str
    hosts: dict[str, int]
    variables: dict[str, str]
    process: asyncio.subprocess.Process | None = None

    @classmethod
    def of_variables(cls, variables: Mapping[str, str], **more: Any) -> Allocation:
        """The job that a program with these environment variables runs in.

        Raises:
            HostError: if Slurm does not say which nodes it has.
        """
        ours = {name: value for name, value in variables.items() if name.startswith("SLURM_")}
        job, tasks = ours["SLURM_JOB_ID"], ours.get("SLURM_TASKS_PER_NODE", "")
        command = ["scontrol", "show", "hostnames", ours.get("SLURM_JOB_NODELIST", "")]
        try:
            said = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
        except (OSError, subprocess.SubprocessError) as error:
            raise HostError(f"Slurm does not say which nodes job {job} has: {error}") from None
        names = said.stdout.split()
        slots = [int(n) for n, times in _COUNT.findall(tasks) for _ in range(int(times or 1))]
        if not names or len(names) != len(slots):
            raise HostError(
                f"Slurm does not say which nodes job {job} has: tasks on each {tasks!r}, nodes "
                f"{', '.join(names) or 'none'}. A step sees the tasks of its own: start the "
                "notebook from the job's script or shell, without srun"
            )
        return cls(job, dict(zip(names, slots, strict=True)), ours, **more)

    def on_host(self, host: str, command: Sequence[str]) -> list[str]:
        """The command line that runs ``command`` on one of the job's nodes, beside the ranks."""
        return [
            *("srun", f"--jobid={self.job}", "--overlap", "--nodes=1", "--ntasks=1"),
            *(f"--nodelist={host}", "--quiet", "--unbuffered", "--chdir=/", "--mpi=none"),
            *command,
        ]

    async def why_it_ended(self) -> str | None:
        """The state of the job; None while it runs, or if unknown."""
        deadline = time.monotonic() + _ENDS_WITHIN_S
        while True:
            said = await _answer("scontrol", "-o", "show", "job", self.job)
            # In an array one task's number is that of all, and all are listed.
            lines = [line for line in said.splitlines() if line.startswith(f"JobId={self.job} ")]
            state = lines[0] if lines else ""
            found = re.search(r"JobState=(\S+)", state)
            # Slurm reports why its processes are to end only once they have ended.
            if found is None or found[1] != "COMPLETING" or time.monotonic() > deadline:
                break
            await asyncio.sleep(_LOOKS_EVERY_S)
        if found is None or found[1] in ("RUNNING", "COMPLETING", "COMPLETED"):
            return None
        limit = re.search(r"TimeLimit=(\S+)", state)
        advice = f" (its time limit was {limit[1]})" if limit and found[1] == "TIMEOUT" else ""
        return f"Slurm has ended job {self.job}: {found[1]}{advice}"

    async def end(self) -> None:
        """Give the job back, if it is ours."""
        if self.process is not None:
            await _end(self.process)


async def allocate(n: int, settings: Mapping[str, Any], tell: Callable[[str], None]) -> Allocation:
    """Ask Slurm for a job of ``n`` tasks, and wait until it has got its nodes.

    Args:
        n: number of tasks.
        settings: as :func:`read_settings` returns them.
        tell: called with a line whenever there is something new about the waiting.

    Raises:
        HostError: if Slurm does not give the job; the message has Slurm's reason.
    """
    options = [f"--{name}={settings[name]}" for name in _OPTIONS if settings.get(name)]
    try:
        process = await asyncio.create_subprocess_exec(
            *("salloc", "--job-name=rank-by-rank", f"--ntasks={n}", "--no-kill", *options),
            *map(str, settings.get("extra", ())),
            *("sh", "-c", _HOLD),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
    except FileNotFoundError:
        raise HostError("there is no salloc here: slurm=... needs Slurm's commands") from None
    said: list[str] = []
    listening = asyncio.create_task(_listen(process, said, tell))
    try:
        variables = {}
        assert process.stdout is not None
        while line := (await process.stdout.readline()).decode().rstrip("\n"):
            name, _, value = line.partition("=")
            variables[name] = value
        if "SLURM_JOB_ID" not in variables:
            await process.wait()
            await asyncio.wait([listening], timeout=_ENDS_WITHIN_S)  # its output has been read
            raise HostError(f"Slurm granted no job: {_reason(said)}")
        return await asyncio.to_thread(Allocation.of_variables, variables, process=process)
    except BaseException:
        await _end(process)
        raise
    finally:
        listening.cancel()


async def _listen(
    process: asyncio.subprocess.Process, said: list[str], tell: Callable[[str], None]
) -> None:
    """Read salloc's output; while the job waits, report why."""
    assert process.stderr is not None
    while line := (await process.stderr.readline()).decode().strip():
        said.append(line)
        found = _JOB.search(line)
        if found and ("Pending" in line or "queued" in line):
            break
    else:
        return
    reading = asyncio.create_task(_rest(process.stderr, said))
    try:
        while True:
            asked = ("squeue", "--noheader", f"--jobs={found[1]}", "--format=%r")
            reason = (await _answer(*asked)).strip() or "no reason given"
            tell(f"job {found[1]} waits in Slurm's queue ({reason})")
            if reason in _NEVER:
                said.append(f"error: such a job can never run ({reason}); ask for less")
                process.terminate()
                return
            await asyncio.sleep(_ASK_FOR_REASON_EVERY_S)
    finally:
        reading.cancel()


async def _rest(stream: asyncio.StreamReader, said: list[str]) -> None:
    while line := (await stream.readline()).decode().strip():
        said.append(line)


def _reason(said: Sequence[str]) -> str:
    """The errors in salloc's output."""
    errors = [line.partition("error: ")[2] for line in said if "error: " in line]
    return "; ".join(dict.fromkeys(errors)) or " ".join(said) or "salloc printed no reason"


async def _answer(*command: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        out, _ = await asyncio.wait_for(process.communicate(), _ANSWERS_WITHIN_S)
    except TimeoutError:  # slurmctld is busy or absent: Slurm's programs keep asking for minutes
        process.kill()
        return ""
    return out.decode()


async def _end(process: asyncio.subprocess.Process) -> None:
    """End a salloc and its job, even one that is still queued."""
    if process.returncode is None:
        assert process.stdin is not None
        process.stdin.close()
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), _ENDS_WITHIN_S)


def outside(variables: Mapping[str, str]) -> dict[str, str]:
    """Variables without those that show mpiexec the job that it is started in."""
    return {
        name: value
        for name, value in variables.items()
        if name == "SLURM_CONF" or not name.startswith("SLURM")
    }


def is_inside() -> bool:
    """Whether this program runs in a job of Slurm."""
    return "SLURM_JOB_ID" in os.environ and "SLURM_TASKS_PER_NODE" in os.environ
