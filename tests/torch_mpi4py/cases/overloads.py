"""A group's methods take their arguments in every form that torch's own do.

The forms are read off what the installed torch says of them. Each is called with real results:
with what it needs by position, with all by position, and with all by name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from tests.torch_mpi4py.helpers import equal, raises, sizes

SUM, MAX = dist.ReduceOp.SUM, dist.ReduceOp.MAX
NAMELESS = re.compile(r"arg\d$")  # torch takes such an argument by position only
MINUTE = timedelta(minutes=1)


@dataclass(frozen=True)
class Form:
    """One overload: the method, and its parameters apart from ``self``."""

    method: str
    parameters: tuple[str, ...]
    needed: int


def declared_forms() -> Iterator[Form]:
    """Yield every overload that the binding of ProcessGroup declares."""
    for method, function in vars(dist.ProcessGroup).items():
        text = getattr(function, "__doc__", None) or ""
        lines = re.findall(rf"^(?:\d+\. )?{re.escape(method)}\((.*)\) -> ", text, re.MULTILINE)
        if method == "__init__" or not callable(function):
            continue
        for line in lines:
            if "*args" not in line:
                yield _form(method, line)


def _form(method: str, line: str) -> Form:
    parameters = [part for part in _split(line) if not part.startswith("self")]
    names = tuple(part.partition(":")[0].strip() for part in parameters)
    return Form(method, names, sum("=" not in part for part in parameters))


def _split(line: str) -> list[str]:
    """Split at the commas that stand outside of all brackets."""
    parts, depth = [""], 0
    for character in line:
        depth += (character in "[(<") - (character in "])>")
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts if part.strip()]


@dataclass
class Trial:
    """Arguments for one call by their names, and what has to be true afterwards."""

    arguments: dict[str, Any]
    check: Callable[[Any], None] = lambda result: None


def ones(rank: int, *shape: int) -> torch.Tensor:
    return torch.full(shape, float(rank + 1))


def options(name: str, **values: Any) -> Any:
    made = getattr(c10d, name)()
    for field, value in values.items():
        setattr(made, field, value)
    made.timeout = MINUTE
    return made


def done(work: dist.Work) -> None:
    assert work.wait()


def wait_then(check: Callable[[], None]) -> Callable[[dist.Work], None]:
    def both(work: dist.Work) -> None:
        done(work)
        check()

    return both


def trial_of(form: Form, given: set[str], rank: int, size: int) -> Trial:
    """Return fresh arguments for a call of ``form`` that gives those named ``given``."""
    make = TRIALS[form.method, form.parameters]
    trial = make(rank, size, given)
    trial.arguments = {name: trial.arguments[name] for name in form.parameters if name in given}
    return trial


# --- one line for each overload ---------------------------------------------------------------


def all_reduce_listed(rank, size, given, kind="AllreduceOptions"):
    tensor = ones(rank, 3)
    largest = bool(given & {"op", "opts"})
    expected = float(size) if largest else size * (size + 1) / 2
    arguments = {"tensors": [tensor], "tensor": tensor, "op": MAX, "timeout": MINUTE}
    arguments["opts"] = options(kind, reduceOp=MAX)
    return Trial(arguments, wait_then(lambda: equal(tensor, [expected] * 3)))


def all_reduce_coalesced(rank, size, given):
    return all_reduce_listed(rank, size, given, "AllreduceCoalescedOptions")


def reduce(rank, size, given):
    tensor = ones(rank, 3)
    largest = bool(given & {"op", "opts"})
    expected = float(size) if largest else size * (size + 1) / 2
    root = size - 1 if given & {"root", "opts"} else 0
    arguments = {"tensors": [tensor], "tensor": tensor, "root": root, "op": MAX}
    arguments["timeout"] = MINUTE
    arguments["opts"] = options("ReduceOptions", reduceOp=MAX, rootRank=root)

    def check() -> None:
        equal(tensor, [expected if rank == root else rank + 1.0] * 3)

    return Trial(arguments, wait_then(check))


def broadcast(rank, size, given):
    tensor = ones(rank, 3)
    root = size - 1 if given & {"root", "opts"} else 0
    arguments = {"tensors": [tensor], "tensor": tensor, "root": root, "timeout": MINUTE}
    arguments["opts"] = options("BroadcastOptions", rootRank=root)
    return Trial(arguments, wait_then(lambda: equal(tensor, [root + 1.0] * 3)))


def barrier(rank, size, given):
    return Trial({"opts": options("BarrierOptions"), "timeout": MINUTE}, done)


def all_gather(rank, size, given):
    source, outputs = ones(rank, 2), [torch.zeros(2) for _ in range(size)]
    several = "input_tensors" in given
    arguments = {"output_tensors": [outputs] if several else outputs, "timeout": MINUTE}
    arguments |= {"input_tensors": [source], "input_tensor": source}
    arguments["opts"] = options("AllgatherOptions")

    def check() -> None:
        for peer, output in enumerate(outputs):
            equal(output, ones(peer, 2))

    return Trial(arguments, wait_then(check))


def all_gather_single(rank, size, given):
    output = torch.zeros(size)
    arguments = {"output": output, "input": ones(rank, 1), "opts": options("AllgatherOptions")}
    return Trial(arguments, wait_then(lambda: equal(output, [r + 1.0 for r in range(size)])))


def all_gather_coalesced(rank, size, given):
    lists = [[torch.zeros(2), torch.zeros(3)] for _ in range(size)]
    arguments = {"output_lists": lists, "input_list": [ones(rank, 2), 2 * ones(rank, 3)]}
    arguments["opts"] = options("AllgatherOptions")

    def check() -> None:
        for peer, (first, second) in enumerate(lists):
            equal(first, ones(peer, 2))
            equal(second, 2 * ones(peer, 3))

    return Trial(arguments, wait_then(check))


def all_gather_singles(rank, size, given):
    outputs = [torch.zeros(size), torch.zeros(size)]
    inputs = [ones(rank, 1), 2 * ones(rank, 1)]
    arguments = {"outputs": outputs, "inputs": inputs, "opts": options("AllgatherOptions")}

    def check() -> None:
        equal(outputs[0], [r + 1.0 for r in range(size)])
        equal(outputs[1], [2 * r + 2.0 for r in range(size)])

    return Trial(arguments, wait_then(check))


def gather(rank, size, given):
    root = size - 1 if given & {"root", "opts"} else 0
    outputs = [torch.zeros(2) for _ in range(size)] if rank == root else []
    several = "input_tensors" in given
    arguments = {"output_tensors": [outputs] if several and outputs else outputs}
    arguments |= {"input_tensors": [ones(rank, 2)], "input_tensor": ones(rank, 2)}
    arguments |= {"root": root, "timeout": MINUTE}
    arguments["opts"] = options("GatherOptions", rootRank=root)

    def check() -> None:
        for peer, output in enumerate(outputs):
            equal(output, ones(peer, 2))

    return Trial(arguments, wait_then(check))


def gather_single(rank, size, given):
    root = size - 1 if "opts" in given else 0
    output = torch.zeros(size if rank == root else 0, 2)
    arguments = {"output": output, "input": ones(rank, 2)}
    arguments["opts"] = options("GatherOptions", rootRank=root)

    def check() -> None:
        for peer, part in enumerate(output):
            equal(part, ones(peer, 2))

    return Trial(arguments, wait_then(check))


def scatter(rank, size, given):
    root = size - 1 if given & {"root", "opts"} else 0
    output = torch.zeros(2)
    inputs = [ones(peer, 2) for peer in range(size)] if rank == root else []
    several = "output_tensors" in given
    arguments = {"output_tensors": [output], "output_tensor": output}
    arguments |= {"input_tensors": [inputs] if several and inputs else inputs}
    arguments |= {"root": root, "timeout": MINUTE}
    arguments["opts"] = options("ScatterOptions", rootRank=root)
    return Trial(arguments, wait_then(lambda: equal(output, ones(rank, 2))))


def reduce_scatter(rank, size, given):
    output = torch.zeros(2)
    inputs = [ones(rank, 2) * (part + 1) for part in range(size)]
    largest = bool(given & {"op", "opts"})
    expected = (rank + 1.0) * (size if largest else size * (size + 1) / 2)
    arguments = {"output_tensors": [output], "output": output, "input": inputs}
    arguments |= {"input_tensors": [inputs], "op": MAX, "timeout": MINUTE}
    arguments["opts"] = options("ReduceScatterOptions", reduceOp=MAX)
    return Trial(arguments, wait_then(lambda: equal(output, [expected] * 2)))


def reduce_scatter_single(rank, size, given):
    output = torch.zeros(1)
    expected = float(size) if "opts" in given else size * (size + 1) / 2
    arguments = {"outputTensor": output, "inputTensor": ones(rank, size)}
    arguments["opts"] = options("ReduceScatterOptions", reduceOp=MAX)
    return Trial(arguments, wait_then(lambda: equal(output, [expected])))


def reduce_scatter_singles(rank, size, given):
    outputs = [torch.zeros(1), torch.zeros(1)]
    expected = float(size) if "opts" in given else size * (size + 1) / 2
    arguments = {"outputs": outputs, "inputs": [ones(rank, size), 2 * ones(rank, size)]}
    arguments["opts"] = options("ReduceScatterOptions", reduceOp=MAX)

    def check() -> None:
        equal(outputs[0], [expected])
        equal(outputs[1], [2 * expected])

    return Trial(arguments, wait_then(check))


def all_to_all(rank, size, given):
    outputs = [torch.zeros(2) for _ in range(size)]
    arguments = {"output_tensors": outputs, "input_tensors": [ones(rank, 2)] * size}
    arguments["opts"] = options("AllToAllOptions")

    def check() -> None:
        for peer, output in enumerate(outputs):
            equal(output, ones(peer, 2))

    return Trial(arguments, wait_then(check))


def all_to_all_single(rank, size, given):
    output = torch.zeros(size)
    arguments = {"output": output, "input": ones(rank, size), "timeout": MINUTE}
    arguments |= {"output_split_sizes": [1] * size, "input_split_sizes": [1] * size}
    arguments["opts"] = options("AllToAllOptions")
    return Trial(arguments, wait_then(lambda: equal(output, [r + 1.0 for r in range(size)])))


def send(rank, size, given):
    received = torch.zeros(2)
    peer = (rank + 1) % size
    receiving = dist.group.WORLD.recv([received], (rank - 1) % size, 7)

    def check(work: dist.Work) -> None:
        done(work)
        done(receiving)
        equal(received, ones((rank - 1) % size, 2))

    return Trial({"tensors": [ones(rank, 2)], "dstRank": peer, "tag": 7}, check)


def receive(rank, size, given):
    received = torch.zeros(2)
    sending = dist.group.WORLD.send([ones(rank, 2)], (rank + 1) % size, 8)
    arguments = {"tensors": [received], "srcRank": (rank - 1) % size, "tag": 8}
    arguments |= {"arg0": [received], "arg1": 8}

    def check(work: dist.Work) -> None:
        done(work)
        done(sending)
        equal(received, ones((rank - 1) % size, 2))

    return Trial(arguments, check)


def end_coalescing(rank, size, given):
    group, tensor = dist.group.WORLD, ones(rank, 3)
    group._start_coalescing(torch.device("cpu"))
    group.allreduce([tensor])
    expected = [size * (size + 1) / 2] * 3
    return Trial({"device_type": torch.device("cpu")}, wait_then(lambda: equal(tensor, expected)))


def start_coalescing(rank, size, given):
    def check(result: None) -> None:
        done(dist.group.WORLD._end_coalescing(torch.device("cpu")))

    return Trial({"device_type": torch.device("cpu")}, check)


def works_and_is_closed(group: dist.ProcessGroup, size: int) -> None:
    tensor = ones(group.rank(), 2)
    done(group.allreduce([tensor]))
    equal(tensor, [size * (size + 1) / 2] * 2)
    group.shutdown()


def split_group(rank, size, given):
    ranks = list(range(size))
    arguments = {"ranks": ranks, "timeout": MINUTE, "opts": None, "device_types": None}
    arguments |= {"group_name": "halves", "group_desc": "a half"}

    def check(group: dist.ProcessGroup) -> None:
        assert group.size() == size
        assert "group_desc" not in given or group.group_desc == "a half"
        assert "group_name" not in given or group.group_name == "halves"
        works_and_is_closed(group, size)

    return Trial(arguments, check)


_merges = iter(range(1000))


def merge_remote_group(rank, size, given):
    store = dist.PrefixStore(f"merge {next(_merges)}", dist.group.WORLD.get_group_store())
    arguments = {"store": store, "size": size, "timeout": MINUTE}
    arguments |= {"group_name": "merged", "group_desc": "all again"}

    def check(group: dist.ProcessGroup) -> None:
        assert group.size() == size
        works_and_is_closed(group, size)

    return Trial(arguments, check)


def monitored_barrier(rank, size, given):
    return Trial({"timeout": MINUTE, "wait_all_ranks": True}, lambda result: None)


def gives(expected: Any) -> Callable[..., Trial]:
    """A method without arguments that matter, and what it returns."""

    def make(rank: int, size: int, given: set[str]) -> Trial:
        kinds = dist.ProcessGroup.BackendType
        arguments = {"device": torch.device("cpu"), "backend_type": kinds.CUSTOM, "backend": None}
        arguments |= {"timeout": MINUTE, "arg0": dist.group.WORLD.group_name}
        wanted = expected(rank, size) if callable(expected) else expected

        def check(result: Any) -> None:
            assert wanted is ... or result == wanted, f"{result}, not {wanted}"

        return Trial(arguments, check)

    return make


def unbox(rank, size, given):
    group = dist.group.WORLD
    return Trial({"arg0": group.boxed()}, lambda result: equal(torch.tensor(result is group), True))


SPLIT = ("ranks", "timeout", "opts", "group_name", "group_desc")
TRIALS: dict[tuple[str, tuple[str, ...]], Callable[..., Trial]] = {
    ("allreduce", ("tensors", "opts")): all_reduce_listed,
    ("allreduce", ("tensors", "op", "timeout")): all_reduce_listed,
    ("allreduce", ("tensor", "op", "timeout")): all_reduce_listed,
    ("allreduce_coalesced", ("tensors", "opts")): all_reduce_coalesced,
    ("reduce", ("tensors", "opts")): reduce,
    ("reduce", ("tensor", "root", "op", "timeout")): reduce,
    ("broadcast", ("tensors", "opts")): broadcast,
    ("broadcast", ("tensor", "root", "timeout")): broadcast,
    ("barrier", ("opts",)): barrier,
    ("barrier", ("timeout",)): barrier,
    ("allgather", ("output_tensors", "input_tensors", "opts")): all_gather,
    ("allgather", ("output_tensors", "input_tensor", "timeout")): all_gather,
    ("all_gather_single", ("output", "input", "opts")): all_gather_single,
    ("_allgather_base", ("output", "input", "opts")): all_gather_single,
    ("allgather_coalesced", ("output_lists", "input_list", "opts")): all_gather_coalesced,
    ("all_gather_single_coalesced", ("outputs", "inputs", "opts")): all_gather_singles,
    ("allgather_into_tensor_coalesced", ("outputs", "inputs", "opts")): all_gather_singles,
    ("gather", ("output_tensors", "input_tensors", "opts")): gather,
    ("gather", ("output_tensors", "input_tensor", "root", "timeout")): gather,
    ("scatter", ("output_tensors", "input_tensors", "opts")): scatter,
    ("gather_single", ("output", "input", "opts")): gather_single,
    ("gather_into_tensor", ("output", "input", "opts")): gather_single,
    ("scatter", ("output_tensor", "input_tensors", "root", "timeout")): scatter,
    ("reduce_scatter", ("output_tensors", "input_tensors", "opts")): reduce_scatter,
    ("reduce_scatter", ("output", "input", "op", "timeout")): reduce_scatter,
    ("reduce_scatter_single", ("outputTensor", "inputTensor", "opts")): reduce_scatter_single,
    ("_reduce_scatter_base", ("outputTensor", "inputTensor", "opts")): reduce_scatter_single,
    ("reduce_scatter_single_coalesced", ("outputs", "inputs", "opts")): reduce_scatter_singles,
    ("reduce_scatter_tensor_coalesced", ("outputs", "inputs", "opts")): reduce_scatter_singles,
    ("alltoall", ("output_tensors", "input_tensors", "opts")): all_to_all,
    ("send", ("tensors", "dstRank", "tag")): send,
    ("recv", ("tensors", "srcRank", "tag")): receive,
    ("recv_anysource", ("arg0", "arg1")): receive,
    ("_start_coalescing", ("device_type",)): start_coalescing,
    ("_end_coalescing", ("device_type",)): end_coalescing,
    ("monitored_barrier", ("timeout", "wait_all_ranks")): monitored_barrier,
    ("split_group", SPLIT): split_group,  # torch 2.11 and 2.12
    ("split_group", (*SPLIT, "device_types")): split_group,
    (
        "merge_remote_group",
        ("store", "size", "timeout", "group_name", "group_desc"),
    ): merge_remote_group,
    ("rank", ()): gives(lambda rank, size: rank),
    ("size", ()): gives(lambda rank, size: size),
    ("name", ()): gives("mpi4py"),
    ("set_timeout", ("timeout",)): gives(None),
    ("_add_ephemeral_timeout", ("timeout",)): gives(None),
    ("get_backend", ("device",)): gives(lambda rank, size: dist.group.WORLD),
    ("get_group_store", ()): gives(...),
    ("_id", ()): gives(...),
    ("_backend_id", ("backend_type",)): gives(...),
    ("_get_backend", ("device",)): gives(lambda rank, size: dist.group.WORLD),
    ("_get_backend_name", ()): gives("mpi4py"),
    ("_set_default_backend", ("backend_type",)): gives(None),
    ("_register_backend", ("device", "backend_type", "backend")): gives(None),
    ("_set_group_name", ("arg0",)): gives(None),
    ("_set_group_desc", ("arg0",)): gives(None),
    ("_has_hooks", ()): gives(False),
    ("_enable_collectives_timing", ()): gives(None),
    ("_wait_for_pending_works", ()): gives(None),
    ("_set_sequence_number_for_group", ()): gives(None),
    ("_get_sequence_number_for_group", ()): gives(...),
    ("boxed", ()): gives(...),
    ("unbox", ("arg0",)): unbox,
}
for _method in ("all_to_all_single", "alltoall_base"):
    for _last in ("opts", "timeout"):
        _sizes = ("output_split_sizes", "input_split_sizes")
        TRIALS[_method, ("output", "input", *_sizes, _last)] = all_to_all_single
REFUSED = {
    "_register_on_completion_hook": "get_future",
    **{f"register_{when}_hook": "events" for when in ("pre", "post", "abort")},
    **{f"unregister_{when}_hook": "events" for when in ("pre", "post", "abort")},
    "get_reconfigure_handle": "shrink",
    "reconfigure": "shrink",
    "new_window": "world",
}
# Tested by a case of their own: they end the group, or are refused.
ELSEWHERE = {"abort", "shutdown", *REFUSED}


@sizes(2, 3)
def case_every_declared_overload(rank, size):
    unknown = [
        form
        for form in declared_forms()
        if form.method not in ELSEWHERE and (form.method, form.parameters) not in TRIALS
    ]
    assert not unknown, f"torch declares what is not tried here: {unknown}"
    forms = [form for form in declared_forms() if form.method not in ELSEWHERE]
    assert len(forms) > 50
    for form in forms:
        try:
            _call_in_all_ways(form, rank, size)
        except Exception as error:
            raise AssertionError(f"{form}: {type(error).__name__}: {error}") from error


def _call_in_all_ways(form: Form, rank: int, size: int) -> None:
    method = getattr(dist.group.WORLD, form.method)
    for names in dict.fromkeys((form.parameters[: form.needed], form.parameters)):
        trial = trial_of(form, set(names), rank, size)
        trial.check(method(*trial.arguments.values()))
    if not any(map(NAMELESS.match, form.parameters)):
        trial = trial_of(form, set(form.parameters), rank, size)
        trial.check(method(**trial.arguments))


@sizes(2)
def case_both_generations_of_names(rank, size):
    """Torch 2.13 and later call some methods by new names; earlier ones know the old."""
    pairs = {
        "_allgather_base": "all_gather_single",
        "_reduce_scatter_base": "reduce_scatter_single",
        "alltoall_base": "all_to_all_single",
        "allgather_into_tensor_coalesced": "all_gather_single_coalesced",
        "reduce_scatter_tensor_coalesced": "reduce_scatter_single_coalesced",
    }
    for before, now in pairs.items():
        assert getattr(dist.group.WORLD, before) == getattr(dist.group.WORLD, now)


@sizes(2)
def case_then_as_used_by_communication_hooks(rank, size):
    group = dist.group.WORLD
    future = group.allreduce([ones(rank, 3)]).get_future()
    mean = future.then(lambda done: done.value()[0] / group.size()).wait()
    equal(mean, [(size + 1) / 2] * 3)
    future = group.allreduce([ones(rank, 3)], SUM).get_future()
    equal(future.then(lambda done: done.value()[0]).wait(), [size * (size + 1) / 2] * 3)


@sizes(2)
def case_invalid_overloads_raise(rank, size):
    group, tensor = dist.group.WORLD, ones(rank, 2)
    for call, word in [
        (lambda: group.allreduce([tensor], "sum"), "AllreduceOptions"),
        (lambda: group.allreduce(), "tensors"),
        (lambda: group.allreduce([tensor], tensor=tensor), "both"),
        (lambda: group.allreduce([tensor], SUM, op=MAX), "same argument"),
        (lambda: group.allreduce([tensor], c10d.AllreduceOptions(), op=MAX), "AllreduceOptions"),
        (lambda: group.reduce(tensor, op=SUM), "root"),
        (lambda: group.broadcast(tensor, SUM), "BroadcastOptions"),
        (lambda: group.barrier("now"), "BarrierOptions"),
        (lambda: group.allreduce([tensor], c10d.BarrierOptions()), "AllreduceOptions"),
    ]:
        with raises(TypeError, word):
            call()
    for method, word in REFUSED.items():
        with raises(NotImplementedError, word):
            getattr(group, method)(print)
    assert not group.supports_reconfigure
    assert not group.supports_window
    tensor = ones(rank, 2)
    done(group.allreduce([tensor]))
    equal(tensor, [size * (size + 1) / 2] * 2)


@sizes(3)
def case_split_and_merge(rank, size):
    """A part of the ranks, several times under one name, and two parts made one again."""
    world = dist.group.WORLD
    members = [0, 2] if rank != 1 else [1]
    for _ in range(2):
        half = world.split_group(members, group_name=f"part {members[0]}")
        works_and_is_closed(half, len(members))
    assert (world.split_group([1]) is None) == (rank != 1)
    half = world.split_group(members)
    store = dist.PrefixStore("again", world.get_group_store())
    whole = half.merge_remote_group(store, size, MINUTE)
    half.shutdown()
    works_and_is_closed(whole, size)
    with raises(ValueError, "none twice"):
        world.split_group([0, 0])
    with raises(ValueError, "rank"):
        world.split_group([size])
