"""The backend between hosts: what it computes, and what goes wrong ends in one clear error."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests import ranks

CASES = {
    2: ("failures.deadlines", "failures.missing", "failures.mismatches"),
    4: ("cases.collectives", "cases.point_to_point", "cases.groups", "failures.mismatches"),
}
PARAMETERS = [
    pytest.param(n, case, id=f"{n}-{case.removeprefix('tests.torch_mpi4py.')}")
    for n, modules in CASES.items()
    for module in modules
    for case in ranks.cases_of(f"tests.torch_mpi4py.{module}", n, "openmpi")
]


@pytest.fixture(scope="module")
def outcome(request: pytest.FixtureRequest, two_hosts: ranks.Library) -> Callable:
    """Return a function that gives what became of a case; those of a size share a start."""
    started = {}
    for n in CASES:
        selected = [
            item.callspec.params["case"]
            for item in request.session.items
            if item.path == request.path
            and getattr(item, "callspec", None)
            and item.callspec.params.get("n") == n
        ]
        started[n] = ranks.Battery(n, selected, two_hosts)
    return lambda n, case: started[n].outcome(case)


@pytest.mark.timeout(600)  # the first case of a start waits for all of them
@pytest.mark.parametrize(("n", "case"), PARAMETERS)
def test_case(outcome: Callable, n: int, case: str) -> None:
    found = outcome(n, case)
    assert found.status == "passed", f"{found.status}\n{found.story}"
