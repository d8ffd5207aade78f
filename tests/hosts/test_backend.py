"""The backend between hosts: what it computes, and what goes wrong ends in one clear error."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests import ranks

CASES = {
    2: ("failures.deadlines", "failures.missing", "failures.mismatches"),
    4: ("cases.collectives", "cases.point_to_point", "cases.groups", "failures.mismatches"),
}
# gloo takes the address that the host's own name stands for, 127.0.1.1 on Debian, and offers no
# other, unless GLOO_SOCKET_IFNAME says so on every host.
NOT_HERE = {"tests.torch_mpi4py.cases.groups:case_another_backend_beside_it"}
PARAMETERS = [
    pytest.param(n, case, id=f"{n}-{case.removeprefix('tests.torch_mpi4py.')}")
    for n, modules in CASES.items()
    for module in modules
    for case in ranks.cases_of(f"tests.torch_mpi4py.{module}", n, "openmpi")
    if case not in NOT_HERE
]


@pytest.fixture(scope="module")
def outcome(request: pytest.FixtureRequest, on_two_hosts: Callable) -> Callable:
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
        started[n] = ranks.Battery(n, selected, on_two_hosts(n))
    return lambda n, case: started[n].outcome(case)


@pytest.mark.timeout(600)  # the first case of a start waits for all of them
@pytest.mark.parametrize(("n", "case"), PARAMETERS)
def test_case(outcome: Callable, n: int, case: str) -> None:
    found = outcome(n, case)
    assert found.status == "passed", f"{found.status}\n{found.story}"
