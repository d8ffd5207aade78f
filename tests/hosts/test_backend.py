"""The backend between hosts: what it computes, and what goes wrong ends in one clear error."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import outcomes, ranks
from tests.outcomes import Outcome

CASES = {
    2: ("cases.doorbell", "failures.deadlines", "failures.missing", "failures.mismatches"),
    4: ("cases.collectives", "cases.point_to_point", "cases.groups", "failures.mismatches"),
}
# gloo takes the address that the host's own name stands for, 127.0.1.1 on Debian, and offers no
# other, unless GLOO_SOCKET_IFNAME says so on every host.
NOT_HERE = {"tests.torch_mpi4py.cases.groups:case_gloo_and_mpi4py_groups_coexist"}
PARAMETERS = [
    pytest.param(n, case, id=f"{n}-{case.removeprefix('tests.torch_mpi4py.')}")
    for n, modules in CASES.items()
    for module in modules
    for case in ranks.cases_of(f"tests.torch_mpi4py.{module}", n, "openmpi")
    if case not in NOT_HERE
]


@pytest.fixture(scope="module")
def found(
    request: pytest.FixtureRequest, on_two_hosts: Callable, folder: Path, root: Path
) -> Callable[[int, str], Outcome]:
    """Return a function that gives what became of a case; those of a size share a start."""

    @functools.cache
    def of_size(n: int) -> dict[str, Outcome]:
        selected = [
            item.callspec.params["case"]
            for item in request.session.items
            if item.path == request.path
            and getattr(item, "callspec", None)
            and item.callspec.params.get("n") == n
        ]
        file = folder / f"outcomes-{n}.xml"
        answer = subprocess.run(
            [
                *(sys.executable, "-m", "tests.ranks", "-n", str(n), "--folder", str(folder)),
                *(f"--junitxml={file}", *selected),
            ],
            cwd=root,
            env={**os.environ, **on_two_hosts(n).variables},
            capture_output=True,
            text=True,
            timeout=550,
            check=False,
        )
        assert file.exists(), answer.stdout + answer.stderr
        return outcomes.read(file)

    return lambda n, case: of_size(n)[f"test_case[{case}]"]


@pytest.mark.timeout(600)  # the first case of a start waits for all of them
@pytest.mark.parametrize(("n", "case"), PARAMETERS)
def test_case(found: Callable[[int, str], Outcome], n: int, case: str) -> None:
    outcome = found(n, case)
    assert outcome.status == "passed", outcome.text
