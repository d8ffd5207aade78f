"""Every place of the package that may wait is listed with its bound, in ``WAITS.md``."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

PACKAGE = "packages/torch_mpi4py"
# Methods and functions that wait for a thread, a process, a descriptor, a lock, or time.
WAITING = {
    *("acquire", "accept", "communicate", "connect", "create_connection", "flock", "join", "lockf"),
    *("pause", "poll", "recv", "result", "run", "select", "sleep", "wait", "wait_for"),
    *("wait_procs", "waitpid", "urlopen", "getaddrinfo", "check_call", "check_output"),
}
# Those of MPI that wait for other ranks.
OF_MPI = {
    *("Send", "Recv", "Ssend", "Rsend", "Bsend", "Sendrecv", "Sendrecv_replace", "Probe", "Mprobe"),
    *("ssend", "sendrecv", "probe", "mprobe", "Wait", "Waitall", "Waitany", "Waitsome", "waitall"),
    *("Barrier", "Bcast", "bcast", "Reduce", "Allreduce", "allreduce", "Gather", "Gatherv"),
    *("Scatter", "Scatterv", "Allgather", "Allgatherv", "allgather", "Alltoall", "Alltoallv"),
    *("Alltoallw", "alltoall", "Reduce_scatter", "Reduce_scatter_block", "Scan", "Exscan"),
    *("Dup", "Split", "Split_type", "Create", "Create_group", "Shrink", "Agree", "Disconnect"),
    *("Init_thread", "Init", "Finalize", "Connect", "Accept", "Spawn", "Create_intercomm"),
}
# What is handed to one of these runs within a deadline.
WITH_A_DEADLINE = {"deadlines.call", "deadlines.in_time"}


def waits_of(source: str, module: str) -> Iterator[tuple[str, str, int]]:
    """Yield where a module may wait: the function, the call (or ``while``, ``with``), the line."""

    def visit(node: ast.AST, where: str) -> Iterator[tuple[str, str, int]]:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            where = f"{where}.{node.name}"
        elif isinstance(node, ast.While):
            yield where, "while", node.lineno
        elif isinstance(node, ast.With):
            for item in node.items:
                name = ast.unparse(item.context_expr)
                if re.search(r"(lock|_change|ending|_deeper)$", name):
                    yield where, f"with {name}", node.lineno
        elif isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called in WITH_A_DEADLINE:
                return
            if name := waiting_name(node):
                yield where, name, node.lineno
        for child in ast.iter_child_nodes(node):
            yield from visit(child, where)

    yield from visit(ast.parse(source), module)


def waiting_name(node: ast.Call) -> str:
    """Return the name under which a call is listed, empty if it does not wait."""
    if isinstance(node.func, ast.Name):
        return node.func.id if node.func.id in WAITING else ""
    if not isinstance(node.func, ast.Attribute):
        return ""
    name, owner = node.func.attr, ast.unparse(node.func.value)
    if owner.endswith("store"):
        return f"store.{name}"
    if name == "get" and not node.args:  # a queue's, and no dictionary's
        return name
    if name == "join" and (isinstance(node.func.value, ast.Constant) or owner == "os.pathsep"):
        return ""
    return name if name in WAITING | OF_MPI else ""


def listed(text: str) -> dict[tuple[str, str], str]:
    """Return the bounds of a list of waits, by function and call."""
    rows = re.findall(r"^\| `([^`]+)` \| ([^|]+) \| ([^|]+) \|$", text, re.MULTILINE)
    return {
        (where, call): bound.strip()
        for where, calls, bound in rows
        for call in re.findall(r"`([^`]+)`", calls)
    }


def complaints(found: Iterable[tuple[str, str, int]], text: str) -> list[str]:
    """Return what a list of waits lacks, and what it has too much."""
    known, found = listed(text), list(found)
    used = {pair for pair in known for where, call, _ in found if covers(pair, where, call)}
    return [
        f"{where} (line {line}) may wait in `{call}`: give it a bound, and list it in WAITS.md"
        for where, call, line in found
        if not any(covers(pair, where, call) and bound for pair, bound in known.items())
    ] + [f"WAITS.md lists `{call}` in {where}: it is gone" for where, call in known.keys() - used]


def covers(pair: tuple[str, str], where: str, call: str) -> bool:
    return fnmatchcase(where, pair[0]) and call == pair[1]


@pytest.fixture
def modules(root: Path) -> dict[str, str]:
    folder = root / PACKAGE / "src/torch_mpi4py"
    paths = {path: path.relative_to(folder) for path in sorted(folder.rglob("*.py"))}
    names = {path: ".".join(inside.with_suffix("").parts) for path, inside in paths.items()}
    return {name: path.read_text() for path, name in names.items()}


def test_every_wait_is_listed_with_its_bound(root: Path, modules: dict[str, str]) -> None:
    found = [wait for name, source in modules.items() for wait in waits_of(source, name)]
    assert len(found) > 50
    problems = complaints(found, (root / PACKAGE / "WAITS.md").read_text())
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize(
    "added",
    [
        "event.wait()",
        "lock.acquire()",
        "thread.join()",
        "queue.get()",
        "future.result()",
        "comm.Barrier()",
        "comm.Recv(buffer)",
        "MPI.Request.Waitall(requests)",
        "select.select([file], [], [])",
        "subprocess.run(['sleep', '60'])",
        "time.sleep(seconds)",
        "os.waitpid(pid, 0)",
        "self._store.get(key)",
        "while not request.Test(): pass",
        "with a_new_lock: pass",
    ],
)
def test_new_wait_is_detected(root: Path, modules: dict[str, str], added: str) -> None:
    source = modules["faults.deaths"] + f"\n\ndef added():\n    {added}\n"
    problems = complaints(
        waits_of(source, "faults.deaths"), (root / PACKAGE / "WAITS.md").read_text()
    )
    assert any("deaths.added" in problem for problem in problems), problems


def test_wait_with_a_deadline_need_not_be_listed() -> None:
    source = "def f():\n    deadlines.call(comm, 'f', 1.0, lambda: comm.Create_group(group))"
    assert not list(waits_of(source, "module"))
