"""Judges lesson 13's three functions: each usual mistake gives a wrong answer in some case."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from course_lib.teaching.exercise import WrongAnswer
from course_lib.teaching.judges.formulas import Mistake, name_the_mistake, plain
from course_lib.teaching.judges.trials import Trials, shown, written

__all__ = ["expanded", "judge_devices", "judge_job_request", "judge_node_names", "request"]


Reason = tuple[str, dict[str, Any]]
"""A mistake's name, and further fields for its message."""


def _judge(
    function: Callable,
    right: Callable,
    mistakes: Sequence[Mistake],
    cases: Sequence[tuple],
    why: Callable[[tuple, Any], Reason | None] = lambda case, given: None,
) -> None:
    """Raise the first mistake that gives what ``function`` gives in all cases.

    If no mistake explains a value, ``why(case, given)`` may return one, with further fields.
    """
    trials = Trials(function, cases)
    given = list(map(_listed, trials.given))
    wanted = [_listed(right(*case)) for case in cases]
    wrong = [i for i, pair in enumerate(zip(given, wanted, strict=True)) if pair[0] != pair[1]]
    if not wrong:
        trials.judge_manners(lambda one, other: _listed(one) == _listed(other))
        return
    first = wrong[0]
    told = {"case": written(cases[first]), "given": shown(given[first])}
    if given[first] is None:
        raise WrongAnswer("returns-nothing", **told)

    def gives_the_same(makes: Callable) -> bool:
        return all(g == _listed(makes(*case)) for g, case in zip(given, cases, strict=True))

    name_the_mistake(mistakes, gives_the_same, **told)
    reason = why(cases[first], given[first])
    if reason is not None:
        name, fields = reason
        raise WrongAnswer(name, **told, **fields)
    raise WrongAnswer("wrong-value", wanted=shown(wanted[first]), **told)


def _listed(value: Any) -> Any:
    value = plain(value)
    if isinstance(value, str | dict | set) or value is None or not hasattr(value, "__iter__"):
        return value
    # torch.device("cuda", 1) is as good as its name.
    return [item if isinstance(item, int | float) else str(item) for item in value]


# ---- devices ----------------------------------------------------------------------------------


def _devices(hosts: list[str], gpus: dict[str, int], local: Callable, modulo: bool = True) -> list:
    found = []
    for rank, host in enumerate(hosts):
        if not gpus[host]:
            found.append("cpu")
            continue
        number = local(hosts, rank, gpus)
        found.append(f"cuda:{number % gpus[host] if modulo else number}")
    return found


def _local(hosts: list[str], rank: int, gpus: dict[str, int]) -> int:
    return hosts[:rank].count(hosts[rank])


def _global(hosts: list[str], rank: int, gpus: dict[str, int]) -> int:
    return rank


def _by_blocks(hosts: list[str], rank: int, gpus: dict[str, int]) -> int:
    return rank - hosts.index(hosts[rank])


def _counting_itself(hosts: list[str], rank: int, gpus: dict[str, int]) -> int:
    return hosts[: rank + 1].count(hosts[rank])


def _host_by_host(hosts: list[str], gpus: dict[str, int]) -> list[str]:
    found = _devices(hosts, gpus, _local)
    return [found[rank] for host in sorted(gpus) for rank, h in enumerate(hosts) if h == host]


_DEVICE_CASES = (
    (["a", "a", "b", "b"], {"a": 2, "b": 2}),
    (["a", "b", "a", "b"], {"a": 2, "b": 2}),
    (["a", "a", "a", "b", "b", "b"], {"a": 2, "b": 3}),
    (["b", "a", "a", "c", "b", "c", "a"], {"a": 4, "b": 2, "c": 0}),
    (["a", "a", "a"], {"a": 1}),
    (["a"] * 5, {"a": 2}),
)
_DEVICE_MISTAKES = (
    Mistake("global-rank", lambda hosts, gpus: _devices(hosts, gpus, _global, modulo=False)),
    Mistake("global-rank-modulo", lambda hosts, gpus: _devices(hosts, gpus, _global)),
    Mistake("hosts-filled-in-order", lambda hosts, gpus: _devices(hosts, gpus, _by_blocks)),
    Mistake("no-such-gpu", lambda hosts, gpus: _devices(hosts, gpus, _local, modulo=False)),
    Mistake(
        "no-gpu-at-all",
        lambda hosts, gpus: [
            f"cuda:{_local(hosts, rank, gpus) % max(gpus[host], 1)}"
            for rank, host in enumerate(hosts)
        ],
    ),
    Mistake("counts-itself", lambda hosts, gpus: _devices(hosts, gpus, _counting_itself)),
    Mistake(
        "counts-itself", lambda hosts, gpus: _devices(hosts, gpus, _counting_itself, modulo=False)
    ),
    Mistake(
        "spare-ranks-on-the-processor",
        lambda hosts, gpus: [
            f"cuda:{_local(hosts, r, gpus)}" if _local(hosts, r, gpus) < gpus[h] else "cpu"
            for r, h in enumerate(hosts)
        ],
    ),
    Mistake(
        "all-others-on-the-last",
        lambda hosts, gpus: [
            f"cuda:{min(_local(hosts, r, gpus), gpus[h] - 1)}" if gpus[h] else "cpu"
            for r, h in enumerate(hosts)
        ],
    ),
    Mistake("gpu-0-for-all", lambda hosts, gpus: ["cuda:0" if gpus[h] else "cpu" for h in hosts]),
    Mistake("in-order-of-hosts", _host_by_host),
)


def judge_devices(devices: Callable) -> None:
    try:
        _judge(
            devices, lambda h, g: _devices(h, g, _local), _DEVICE_MISTAKES, _DEVICE_CASES, _no_names
        )
    except ZeroDivisionError as error:
        raise WrongAnswer("divides-by-no-gpus") from error


def _no_names(case: tuple, given: Any) -> Reason | None:
    if not isinstance(given, list) or len(given) != len(case[0]):
        return "not-a-list", {"ranks": len(case[0])}
    for device in given:
        if isinstance(device, str) and re.fullmatch(r"cpu:\d+", device):
            return "numbers-the-processor", {"device": repr(device)}
        if not isinstance(device, str) or not re.fullmatch(r"cpu|cuda:\d+", device):
            return "no-device", {"device": repr(device)}
    return None


# ---- node lists -------------------------------------------------------------------------------


def expanded(
    text: str,
    *,
    pad: bool = True,
    last: int = 1,
    single: bool = True,
    alone: bool = True,
    prefix: bool = True,
) -> list[str]:
    """Return the names that Slurm's expression stands for, as scontrol show hostnames does."""
    found = []
    for part in re.findall(r"[^,\[]+(?:\[[^]]*\])?", text):
        name, _, numbers = part.rstrip("]").partition("[")
        if not numbers:
            found += [name] if alone else []
            continue
        name = name if prefix else ""
        for item in numbers.split(","):
            begin, _, end = item.partition("-")
            if not end and not single:
                continue
            width = len(begin) if pad else 0
            stop = int(end) + last if end else int(begin) + 1
            found += [f"{name}{number:0{width}}" for number in range(int(begin), stop)]
    return found


def _cut_at_every_comma(text: str) -> list[str]:
    found = []
    for part in text.split(","):
        try:
            found += expanded(part if part.endswith("]") or "[" not in part else part + "]")
        except ValueError:
            found.append(part)
    return found


def _parts(text: str) -> list[str]:
    return re.findall(r"[^,\[]+(?:\[[^]]*\])?", text)


def _ends(part: str) -> list[str]:
    name, _, numbers = part.rstrip("]").partition("[")
    return [name + number for item in numbers.split(",") for number in item.split("-")]


def _padded_as_last(part: str) -> list[str]:
    name, _, numbers = part.rstrip("]").partition("[")
    if not numbers:
        return [name]
    found = []
    for item in numbers.split(","):
        begin, _, end = item.partition("-")
        end = end or begin
        found += [f"{name}{n:0{len(end)}}" for n in range(int(begin), int(end) + 1)]
    return found


def _padded_as_first_of_all(part: str) -> list[str]:
    name, _, numbers = part.rstrip("]").partition("[")
    if not numbers:
        return [name]
    width = len(re.split("[,-]", numbers)[0])
    return [f"{name}{int(n.removeprefix(name)):0{width}}" for n in expanded(part, pad=False)]


_NODE_CASES = (
    ("node1",),
    ("n[1-3]",),
    ("gpu[1-3,7]",),
    ("n[08-11]",),
    ("a[1,3-4],login1,b[2]",),
    ("r1n[098-101],r2n[1-2,5]",),
    ("m[9-10]",),
    ("n[098-099,7]",),
    ("dgx-a[01-02],dgx-b3",),
    ("n[08]",),
    ("gpu[007,12]",),
    ("rack1-2,n[3]",),
)
_NODE_MISTAKES = (
    Mistake("end-left-out", lambda text: expanded(text, last=0)),
    Mistake("zeros-lost", lambda text: expanded(text, pad=False)),
    Mistake("single-numbers-lost", lambda text: expanded(text, single=False)),
    Mistake("cut-at-every-comma", _cut_at_every_comma),
    Mistake("cut-at-every-comma: brackets left", lambda text: text.split(",")),
    Mistake("order-lost", lambda text: sorted(expanded(text))),
    Mistake(
        "padded-as-the-last",
        lambda text: [name for part in _parts(text) for name in _padded_as_last(part)],
    ),
    Mistake(
        "padded-as-the-first-of-all",
        lambda text: [name for part in _parts(text) for name in _padded_as_first_of_all(part)],
    ),
    Mistake("plain-names-lost", lambda text: expanded(text, alone=False)),
    Mistake("numbers-without-names", lambda text: expanded(text, prefix=False)),
    Mistake("ends-only", lambda text: [name for part in _parts(text) for name in _ends(part)]),
    Mistake("brackets-not-written-out", lambda text: _parts(text)),
)


def judge_node_names(node_names: Callable) -> None:
    _judge(node_names, expanded, _NODE_MISTAKES, _NODE_CASES, _no_list_of_names)


def _no_list_of_names(case: tuple, given: Any) -> Reason | None:
    if isinstance(given, set):
        return "order-lost: in a set", {}
    if not isinstance(given, list):
        return "not-a-list", {}
    return None


# ---- what a job asks for ----------------------------------------------------------------------


def request(ranks: int, gpus: int, cores: int) -> tuple[int, int, int]:
    """Return nodes, ranks per node and cores per rank: the fewest nodes, equally filled."""
    per_node = max(k for k in range(1, gpus + 1) if ranks % k == 0)
    return ranks // per_node, per_node, cores // per_node


def _full_nodes(ranks: int, gpus: int, cores: int) -> tuple[int, int, int]:
    return -(-ranks // gpus), gpus, cores // gpus


def _floor(ranks: int, gpus: int, cores: int) -> tuple[int, int, int]:
    return ranks // gpus, gpus, cores // gpus


_REQUEST_CASES = (
    (16, 8, 128),
    (12, 8, 96),
    (6, 8, 64),
    (7, 4, 32),
    (20, 8, 64),
    (1, 4, 16),
    (9, 8, 72),
)


def _variations() -> dict[str, Callable]:
    def cores_by_gpus(ranks, gpus, cores):
        nodes, per_node, _ = request(ranks, gpus, cores)
        return nodes, per_node, cores // gpus

    def all_cores(ranks, gpus, cores):
        nodes, per_node, _ = request(ranks, gpus, cores)
        return nodes, per_node, cores

    def total(ranks, gpus, cores):
        nodes, _, share = request(ranks, gpus, cores)
        return nodes, ranks, share

    return {"cores_by_gpus": cores_by_gpus, "all_cores": all_cores, "total": total}


def _unequal(ranks: int, gpus: int, cores: int) -> tuple[int, int, int]:
    nodes = -(-ranks // gpus)
    per_node = -(-ranks // nodes)
    return nodes, per_node, cores // per_node


def judge_job_request(job_request: Callable) -> None:
    ways = _variations()
    mistakes = (
        Mistake("too-many-ranks", _full_nodes),
        Mistake("too-few-ranks", _floor),
        Mistake("unequal-nodes", _unequal),
        Mistake("one-rank-a-node", lambda ranks, gpus, cores: (ranks, 1, cores)),
        Mistake("cores-of-unused-gpus", ways["cores_by_gpus"]),
        Mistake("all-cores-for-each-rank", ways["all_cores"]),
        Mistake("ranks-of-the-job", ways["total"]),
    )
    _judge(_whole(job_request), request, mistakes, _REQUEST_CASES, _what_it_asks_for)


def _what_it_asks_for(case: tuple, given: Any) -> Reason | None:
    ranks, gpus, cores = case
    if not isinstance(given, list) or len(given) != 3 or not all(isinstance(n, int) for n in given):
        return "not-three-numbers", {}
    nodes, per_node, share = given
    told = {"nodes": nodes, "per_node": per_node, "share": share}
    told |= {"ranks": ranks, "gpus": gpus, "cores": cores}
    wanted = request(ranks, gpus, cores)
    if (per_node, nodes) == wanted[:2] != (nodes, per_node):
        return "other-order", {}
    if nodes * per_node != ranks:
        return "other-number-of-ranks", {**told, "product": nodes * per_node}
    if per_node > gpus:
        return "more-ranks-than-gpus", told
    if nodes > wanted[0]:
        return "too-many-nodes", {**told, "enough": wanted[0], "most": wanted[1]}
    if share * per_node > cores:
        return "too-many-cores", told
    return None


def _whole(job_request: Callable) -> Callable:
    """Return the function with a check that its numbers are whole (2.0 is not)."""

    def asked(*case: int) -> Any:
        given = plain(job_request(*case))
        numbers = [given] if not isinstance(given, tuple | list) else given
        if any(isinstance(number, float) for number in numbers):
            raise WrongAnswer("not-whole", case=", ".join(map(str, case)), given=repr(given))
        return given

    return asked
