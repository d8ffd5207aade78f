"""Turns a program into the script that its ranks run, one line of Python after the other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from . import gloo
from .program import (
    Batch,
    Callback,
    Coalesced,
    Collective,
    Destroy,
    Differentiable,
    Fail,
    Fill,
    Late,
    Message,
    Mismatch,
    NewGroup,
    Objects,
    Program,
    Restart,
    Slot,
    Threads,
    Wait,
    Wrong,
)

PRELUDE = Path(__file__).with_name("prelude.py")
FAILING = Path(__file__).with_name("failing.py")
IN_PLACE = ("all_reduce", "broadcast", "reduce", "scatter", "reduce_scatter",
            "reduce_scatter_tensor")  # fmt: skip
GRADS = {"enabled": "", "no_grad": "torch.no_grad()", "inference": "torch.inference_mode()"}


def numbered(program: Program) -> Iterator[tuple[int, Any]]:
    """Yield every step with its number, those of threads after the step that starts them."""
    for place, step in enumerate(program.steps):
        yield place, step
        if isinstance(step, Threads):
            for index, branch in enumerate(step.branches):
                for inner, each in enumerate(branch):
                    yield 1000 * (place + 1) + 100 * index + inner, each


def standalone(program: Program) -> str:
    """Return a script that ``mpiexec -n SIZE python SCRIPT`` runs."""
    head = PRELUDE.read_text()
    return f"{head}\n\n# --- the program ---\nstart()\nrank = dist.get_rank()\n{body(program)}"


def failing(program: Program, seconds: float) -> str:
    """Return a script whose ranks survive what befalls one of them, and say how it ended."""
    script = FAILING.read_text().replace("SECONDS = 0.0", f"SECONDS = {seconds}")
    lines = "".join(f"    {line}\n" for line in body(program).splitlines())
    failure = next(step for step in program.steps if isinstance(step, Fail))
    return (
        f"{PRELUDE.read_text()}\n\n{script}\n\n"
        f"# --- the program ---\ndef program(rank):\n{lines}\n\n"
        f"main(program, {failure.kind!r}, {failure.rank})\n"
    )


def body(program: Program, backend: str = "mpi4py") -> str:
    """Return what comes after the prelude, a start of the default group, and ``rank``."""
    return _Printer(program, backend).print()


class _Printer:
    def __init__(self, program: Program, backend: str) -> None:
        self.program = program
        self.gloo = backend == "gloo"
        self.lines: list[str] = []
        self.by_number = dict(numbered(program))
        self.skipped: set[int] = set()
        self.open: dict[int, tuple[int, ...]] = {}  # gloo: slots of works not yet waited for

    def print(self) -> str:
        self.slots()
        self.add("g0 = dist.group.WORLD")
        for place, step in enumerate(self.program.steps):
            self.step(place, step, "")
        self.ending()
        return "\n".join(self.lines) + "\n"

    def add(self, *lines: str, indent: str = "") -> None:
        self.lines += [indent + line for line in lines]

    # --- tensors -----------------------------------------------------------------------------

    def slots(self) -> None:
        parts: dict[str, int] = {}
        for slot in self.program.slots:
            if slot.layout == "part":
                parts[slot.dtype] = parts.get(slot.dtype, 0) + numel(slot.shape)
        for dtype, total in parts.items():
            self.add(f"base_{dtype} = blank(({total},), torch.{dtype})")
        taken = dict.fromkeys(parts, 0)
        for index, slot in enumerate(self.program.slots):
            what = f"{slot.shape}, torch.{slot.dtype}, {slot.layout!r}"
            name = f"t{index}"
            if slot.layout == "part":
                start = taken[slot.dtype]
                taken[slot.dtype] = end = start + numel(slot.shape)
                self.add(f"{name} = base_{slot.dtype}[{start}:{end}].view({slot.shape})")
            elif slot.kind == "parameter":
                self.add(f"{name} = torch.nn.Parameter(blank({what}))")
            elif slot.kind == "leaf":
                self.add(f"{name} = blank({what}).requires_grad_()")
            elif slot.kind == "nonleaf":
                self.add(f"x{index}, {name} = computed({what})")
            elif slot.kind == "inference":
                self.add("with torch.inference_mode():", f"    {name} = blank({what})")
            else:
                self.add(f"{name} = blank({what})")
        for index in range(len(self.program.slots)):
            self.add(f"fill(t{index}, 0, rank, 0, 1, 2)")

    def ending(self) -> None:
        self.add('step("the end")')
        for index, slot in enumerate(self.program.slots):
            if index in self.program.lost:
                continue
            self.add(f'see("end t{index}", t{index})')
            if slot.kind == "nonleaf":
                weight = f"numbers(t{index}.shape, t{index}.dtype, 1, rank, 1, 1, 3)"
                self.add(f"(t{index} * {weight}).sum().backward()")
                self.add(f'see("gradient of t{index}", x{index}.grad)')
        for group in self.program.alive:
            inner = self.members(group, "")
            self.add("n = torch.ones(2)", f"dist.all_reduce(n, group=g{group})", indent=inner)
            self.add(f'see("works g{group}", n)', indent=inner)
        self.add("dist.destroy_process_group()")

    # --- steps -------------------------------------------------------------------------------

    def step(self, number: int, step: Any, indent: str) -> None:
        self.add(f"step({number})", indent=indent)
        if self.gloo:
            if not gloo.can(self.program, step):
                self.patch(number, step, indent)
                return
            self.wait_for_chained(step, indent)
        getattr(self, type(step).__name__.lower())(number, step, indent)

    def patch(self, number: int, step: Any, indent: str) -> None:
        """Give gloo's ranks the values that the step should have."""
        self.skipped.add(number)
        self.wait_for_chained(step, indent)
        for slot in slots_of(step):
            self.add(f"put(t{slot}, {number}, {slot})", indent=indent)

    def wait_for_chained(self, step: Any, indent: str) -> None:
        """Gloo's threads run what is under way in any order."""
        used = set(slots_of(step))
        for number, slots in list(self.open.items()):
            if used & set(slots):
                inner = self.members(self.by_number[number].group, indent)
                self.add(f"w{number}.wait()", indent=inner)
                del self.open[number]

    def members(self, group: int, indent: str) -> str:
        """Begin what the members of a group alone do; return its indent."""
        ranks = self.program.groups[group]
        if len(ranks) == self.program.size:
            return indent
        self.add(f"if rank in {ranks}:", indent=indent)
        return indent + "    "

    def call(self, text: str, grad: str, indent: str) -> None:
        if GRADS[grad]:
            self.add(f"with {GRADS[grad]}:", indent=indent)
            indent += "    "
        self.add(text, indent=indent)

    def collective(self, number: int, step: Collective, indent: str) -> None:
        indent = self.members(step.group, indent)
        asynchronous = step.mode == "async"
        if step.kind == "barrier":
            name = f"w{number} = " if asynchronous else ""
            self.add(
                f"{name}dist.barrier(group=g{step.group}, async_op={asynchronous})", indent=indent
            )
            return
        if step.fill and step.kind in ("all_reduce", "broadcast", "reduce", "gather", "all_gather",
                                       "all_gather_into_tensor"):  # fmt: skip
            self.add(f"fill(t{step.slot}, {values(step.fill)})", indent=indent)
        if step.mode in ("functional", "late"):
            self.functional(number, step, indent)
            return
        text, result = self.plain(number, step, indent)
        if asynchronous:
            text = text.removesuffix(")") + ", async_op=True)"
            self.call(f"w{number} = {text}", step.grad, indent)
            if self.gloo:
                self.open[number] = (step.slot,)
        else:
            self.call(text, step.grad, indent)
            if self.gloo and step.kind == "reduce":  # others than the root have undefined values
                root = self.program.groups[step.group][step.root]
                self.add(f"if rank != {root}:", indent=indent)
                self.add(f"put(t{step.slot}, {number}, {step.slot})", indent=indent + "    ")
            self.see(number, result, indent)

    def see(self, number: int | str, result: str, indent: str) -> None:
        self.add(f"see({str(number)!r}, {result})", indent=indent)

    def inputs(self, number: int, step: Collective, shapes: list[tuple], layout: str) -> str:
        """Return an expression for a list of fresh tensors with values."""
        dtype, fill = self.program.slots[step.slot].dtype, step.fill
        parts = [
            f"filled({shape}, torch.{dtype}, {layout!r}, {values(fill, 1 + part)})"
            for part, shape in enumerate(shapes)
        ]
        return f"[{', '.join(parts)}]"

    def plain(self, number: int, step: Collective, indent: str) -> tuple[str, str]:
        """Return the call of a collective, and what its result is called."""
        program, slot = self.program, self.program.slots[step.slot]
        ranks = program.groups[step.group]
        n, root = len(ranks), ranks[step.root]
        tensor, out = f"t{step.slot}", f"o{number}"
        group, op = f"group=g{step.group}", reduce_op(step.op)
        dtype = f"torch.{slot.dtype}"
        single = "plain" if step.out == "stacked" else step.out
        layout = "plain" if step.out == "part" else step.out
        if step.kind == "all_reduce":
            return f"dist.all_reduce({tensor}, {op}, {group})", tensor
        if step.kind == "broadcast":
            return f"dist.broadcast({tensor}, {root}, {group})", tensor
        if step.kind == "reduce":
            return f"dist.reduce({tensor}, {root}, {op}, {group})", tensor
        if step.kind == "all_gather":
            self.add(f"{out} = pieces({n}, {slot.shape}, {dtype}, {step.out!r})", indent=indent)
            return f"dist.all_gather({out}, {tensor}, {group})", f"*{out}"
        if step.kind == "all_gather_into_tensor":
            whole = whole_shape(slot.shape, n, step.out)
            self.add(f"{out} = [blank({whole}, {dtype}, {single!r})]", indent=indent)
            return f"dist.all_gather_into_tensor({out}[0], {tensor}, {group})", f"*{out}"
        if step.kind == "gather":
            made = f"pieces({n}, {slot.shape}, {dtype}, {step.out!r})"
            self.add(f"{out} = {made} if rank == {root} else []", indent=indent)
            return f"dist.gather({tensor}, {out} or None, {root}, {group})", f"*{out}"
        if step.kind == "scatter":
            made = self.inputs(number, step, [slot.shape] * n, layout)
            self.add(f"i{number} = {made} if rank == {root} else None", indent=indent)
            return f"dist.scatter({tensor}, i{number}, {root}, {group})", tensor
        if step.kind == "reduce_scatter":
            made = self.inputs(number, step, [slot.shape] * n, layout)
            self.add(f"i{number} = {made}", indent=indent)
            return f"dist.reduce_scatter({tensor}, i{number}, {op}, {group})", tensor
        if step.kind == "reduce_scatter_tensor":
            whole = whole_shape(slot.shape, n, step.out)
            made = self.inputs(number, step, [whole], single)
            self.add(f"i{number} = {made}[0]", indent=indent)
            return f"dist.reduce_scatter_tensor({tensor}, i{number}, {op}, {group})", tensor
        if step.kind == "all_to_all":
            sent, received = self.by_peer(step)
            self.by_rank(f"i{number}", step, [
                self.inputs(number, step, shapes, layout) for shapes in sent
            ], indent)  # fmt: skip
            self.by_rank(out, step, [
                "[" + ", ".join(f"blank({shape}, {dtype}, {layout!r})" for shape in shapes) + "]"
                for shapes in received
            ], indent)  # fmt: skip
            return f"dist.all_to_all({out}, i{number}, {group})", f"*{out}"
        return self.all_to_all_single(number, step, indent)

    def all_to_all_single(self, number: int, step: Collective, indent: str) -> tuple[str, str]:
        slot = self.program.slots[step.slot]
        dtype, out = f"torch.{slot.dtype}", f"o{number}"
        layout = "plain" if step.out == "stacked" else step.out
        sent, received = self.by_peer(step)
        wholes = [(sum(shape[0] for shape in shapes), *slot.shape[1:]) for shapes in sent]
        self.by_rank(f"i{number}", step, [
            self.inputs(number, step, [whole], layout) + "[0]" for whole in wholes
        ], indent)  # fmt: skip
        wholes = [(sum(shape[0] for shape in shapes), *slot.shape[1:]) for shapes in received]
        self.by_rank(
            out, step, [f"[blank({whole}, {dtype}, {layout!r})]" for whole in wholes], indent
        )
        splits = "None, None"
        if step.rows:
            for name, per_rank in (("s", received), ("r", sent)):
                lists = [str([shape[0] for shape in shapes]) for shapes in per_rank]
                self.by_rank(f"{name}{number}", step, lists, indent)
            splits = f"s{number}, r{number}"
        group = f"group=g{step.group}"
        if step.mode in ("functional", "late"):
            return f"funcol.all_to_all_single(i{number}, {splits}, g{step.group})", f"f{number}"
        return f"dist.all_to_all_single({out}[0], i{number}, {splits}, {group})", f"*{out}"

    def by_rank(self, name: str, step: Collective, texts: list[str], indent: str) -> None:
        """Assign what differs from rank to rank."""
        if len(set(texts)) == 1:
            self.add(f"{name} = {texts[0]}", indent=indent)
            return
        for rank, text in zip(self.program.groups[step.group], texts, strict=True):
            self.add(f"if rank == {rank}:", f"    {name} = {text}", indent=indent)

    def by_peer(self, step: Collective) -> tuple[list[list[tuple]], list[list[tuple]]]:
        """Return the shapes that each rank of an all_to_all sends, and those it receives."""
        shape, n = self.program.slots[step.slot].shape, len(self.program.groups[step.group])
        return shapes_by_peer(shape, n, step.rows)

    def functional(self, number: int, step: Collective, indent: str) -> None:
        program, slot = self.program, self.program.slots[step.slot]
        n, group = len(program.groups[step.group]), f"g{step.group}"
        op, tensor = repr(step.op.lower()), f"t{step.slot}"
        if step.kind == "all_reduce":
            text = f"funcol.all_reduce({tensor}, {op}, {group})"
        elif step.kind == "broadcast":
            text = f"funcol.broadcast({tensor}, {step.root}, {group})"
        elif step.kind == "all_gather_into_tensor":
            text = f"funcol.all_gather_tensor({tensor}, 0, {group})"
        elif step.kind == "reduce_scatter_tensor":
            layout = "plain" if step.out == "stacked" else step.out
            shape = (n * slot.shape[0], *slot.shape[1:])
            self.add(f"i{number} = {self.inputs(number, step, [shape], layout)}[0]", indent=indent)
            text = f"funcol.reduce_scatter_tensor(i{number}, {op}, 0, {group})"
        else:
            text, _ = self.all_to_all_single(number, step, indent)
        self.call(f"f{number} = {text}", step.grad, indent)
        if step.mode == "functional":
            self.see(number, f"f{number}", indent)

    def coalesced(self, number: int, step: Coalesced, indent: str) -> None:
        program = self.program
        indent = self.members(step.group, indent)
        n, group = len(program.groups[step.group]), f"g{step.group}"
        calls, results = [], []
        for index, item in enumerate(step.items):
            slot, tensor = program.slots[item.slot], f"t{item.slot}"
            if item.kind != "reduce_scatter_tensor":
                self.add(f"fill({tensor}, {values(item.fill)})", indent=indent)
            if item.kind == "all_reduce":
                calls.append(f"dist.all_reduce({tensor}, {reduce_op(item.op)}, group={group})")
                results.append(tensor)
            elif item.kind == "all_gather_into_tensor":
                out = f"o{number}_{index}"
                whole = whole_shape(slot.shape, n)
                self.add(f"{out} = blank({whole}, torch.{slot.dtype})", indent=indent)
                calls.append(f"dist.all_gather_into_tensor({out}, {tensor}, group={group})")
                results.append(out)
            else:
                made = self.inputs(number, item, [whole_shape(slot.shape, n)], "plain")
                self.add(f"i{number}_{index} = {made}[0]", indent=indent)
                calls.append(
                    f"dist.reduce_scatter_tensor({tensor}, i{number}_{index}, "
                    f"{reduce_op(item.op)}, group={group})"
                )
                results.append(tensor)
        grad = f"{GRADS[step.grad]}, " if GRADS[step.grad] else ""
        self.add(f"o{number} = [{', '.join(results)}]", indent=indent)
        asynchronous = step.mode == "async"
        self.add(
            f"with {grad}dist._coalescing_manager({group}, async_ops={asynchronous}) as w{number}:",
            *(f"    {text}" for text in calls),
            indent=indent,
        )
        if asynchronous:
            if self.gloo:
                self.open[number] = tuple(item.slot for item in step.items)
        else:
            self.see(number, f"*o{number}", indent)

    def message(self, number: int, step: Message, indent: str) -> None:
        ranks = self.program.groups[step.group]
        source, target = ranks[step.source], ranks[step.target]
        tensor, group = f"t{step.slot}", f"group=g{step.group}"
        inner = self.members(step.group, indent)
        self.add(f"fill({tensor}, {values(step.fill)})", indent=inner)
        name = f"w{number} = " if step.send == "isend" else ""
        self.add(f"if rank == {source}:", indent=indent)
        call = f"{name}dist.{step.send}({tensor}, {target}, {group}, tag={step.tag})"
        self.call(call, step.grad, indent + "    ")
        self.add(f"if rank == {target}:", indent=indent)
        inner = indent + "    "
        asynchronous = step.receive in ("irecv", "iany")
        function = "irecv" if asynchronous else "recv"
        who = source if step.receive in ("recv", "irecv") else None
        name = f"w{number}" if asynchronous else f"source{number}"
        call = f"{name} = dist.{function}({tensor}, {who}, {group}, tag={step.tag})"
        self.call(call, step.grad, inner)
        if not asynchronous:
            self.see(f"{number} source", f"source{number}", inner)
            if step.send == "send":
                self.see(number, tensor, inner)

    def batch(self, number: int, step: Batch, indent: str) -> None:
        ranks, group = self.program.groups[step.group], f"group=g{step.group}"
        inner = self.members(step.group, indent)
        self.add(f"p{number} = []", indent=inner)
        for each in step.messages:
            source, target, tensor = ranks[each.source], ranks[each.target], f"t{each.slot}"
            self.add(f"fill({tensor}, {values(each.fill)})", indent=inner)
            for rank, function, peer in ((source, "isend", target), (target, "irecv", source)):
                op = f"dist.P2POp(dist.{function}, {tensor}, {peer}, {group}, tag={each.tag})"
                self.add(f"if rank == {rank}:", f"    p{number}.append({op})", indent=inner)
        self.add(f"w{number} = []", f"if p{number}:", indent=inner)
        self.call(f"w{number} = dist.batch_isend_irecv(p{number})", step.grad, inner + "    ")

    def objects(self, number: int, step: Objects, indent: str) -> None:
        ranks = self.program.groups[step.group]
        n, root, group = len(ranks), ranks[step.root], f"group=g{step.group}"
        indent = self.members(step.group, indent)
        mine, out = f"{{'from': rank, 'seed': 'x' * {step.seed}}}", f"o{number}"
        if step.kind == "all_gather":
            lines = [f"{out} = [None] * {n}", f"dist.all_gather_object({out}, {mine}, {group})"]
        elif step.kind == "broadcast":
            lines = [f"{out} = [{mine}, rank]"]
            lines += [f"dist.broadcast_object_list({out}, {root}, {group})"]
        elif step.kind == "gather":
            lines = [f"{out} = [None] * {n} if rank == {root} else None"]
            lines += [f"dist.gather_object({mine}, {out}, {root}, {group})"]
        elif step.kind == "scatter":
            lines = [f"{out} = [None]", f"i{number} = [{{'to': r, **{mine}}} for r in range({n})]"]
            lines += [f"dist.scatter_object_list({out}, i{number}, {root}, {group})"]
        else:
            peer = ranks[(step.root + 1) % n]
            lines = [f"{out} = [{mine}, rank]"]
            lines += [f"if rank == {root}:", f"    dist.send_object_list({out}, {peer}, {group})"]
            lines += [f"if rank == {peer}:", f"    dist.recv_object_list({out}, {root}, {group})"]
        self.add(*lines, f"see({str(number)!r}, {out})", indent=indent)

    def differentiable(self, number: int, step: Differentiable, indent: str) -> None:
        ranks, slot = self.program.groups[step.group], step.slot
        n, root, group = len(ranks), ranks[step.root], f"group=g{step.group}"
        indent = self.members(step.group, indent)
        dtype = f"torch.{slot.dtype}"
        shapes = differentiable_inputs(step, n)
        parts = [
            f"filled({shape}, {dtype}, {slot.layout!r}, {values(step.fill, 1 + part)})"
            ".requires_grad_()"
            for part, shape in enumerate(shapes)
        ]
        self.add(f"x = [{', '.join(parts)}]", indent=indent)
        out = f"blank({slot.shape}, {dtype})"
        outs = f"[{out} for _ in range({n})]"
        single = f"blank({shapes[0]}, {dtype}), x[0], {group}"
        calls = {
            "all_reduce": f"[nnf.all_reduce(x[0], {group})]",
            "broadcast": f"[nnf.broadcast(x[0], {root}, {group})]",
            "reduce": f"[nnf.reduce(x[0], {root}, {group})]",
            "all_gather": f"nnf.all_gather(x[0], {group})",
            "reduce_scatter": f"[nnf.reduce_scatter({out}, x, {group})]",
            "gather": f"nnf.gather(x[0], {root}, {group})",
            "scatter": f"[nnf.scatter(x, {root}, {group})]",
            "all_to_all": f"nnf.all_to_all({outs}, x, {group})",
            "all_to_all_single": f"[nnf.all_to_all_single({single})]",
            "funcol_all_gather": f"[funcol.all_gather_tensor_autograd(x[0], 0, g{step.group})]",
            "funcol_reduce_scatter":
                f"[funcol.reduce_scatter_tensor_autograd(x[0], 'sum', 0, g{step.group})]",
            "funcol_all_to_all":
                f"[funcol.all_to_all_single_autograd(x[0], None, None, g{step.group})]",
        }  # fmt: skip
        self.add(f"y = {calls[step.kind]}", indent=indent)
        seen = f"see({str(number)!r}, *y)"
        if step.kind in ("reduce", "gather"):
            seen = f"if rank == {root}: {seen}"
        self.add(seen, indent=indent)
        weight = f"numbers(each.shape, each.dtype, k + {step.fill.seed}, rank, 1, 1, 3)"
        self.add(
            f"sum((each * {weight}).sum() for k, each in enumerate(y)).backward()",
            f"see('gradient {number}', *(each.grad for each in x))",
            indent=indent,
        )

    # --- waits -------------------------------------------------------------------------------

    def wait(self, number: int, step: Wait, indent: str) -> None:
        begun = self.by_number[step.step]
        if self.gloo and step.step in self.skipped:
            return
        waited = (
            self.gloo
            and isinstance(begun, (Collective, Coalesced))
            and (step.step not in self.open)
            and getattr(begun, "kind", "") != "barrier"
            and begun.mode == "async"
        )
        self.open.pop(step.step, None)
        work = f"w{step.step}"
        if isinstance(begun, Message):
            ranks = self.program.groups[begun.group]
            source, target = ranks[begun.source], ranks[begun.target]
            waiting = [source] * (begun.send == "isend")
            waiting += [target] * (begun.receive in ("irecv", "iany"))
            self.add(f"if rank in {tuple(waiting)}:", indent=indent)
            # A second wait for a message hangs with gloo, which has no future of it either.
            how = "wait" if self.gloo and step.how != "timed" else step.how
            self.call(waiting_call(work, how), step.grad, indent + "    ")
            self.add(f"if rank == {target}:", indent=indent)
            self.see(number, f"t{begun.slot}", indent + "    ")
            return
        shows = step.see and getattr(begun, "kind", "") != "barrier"
        if waited and not shows and step.how != "drop":
            return
        inner = self.members(begun.group, indent)
        if isinstance(begun, Batch):
            self.call(f"for each in {work}: each.wait()", step.grad, inner)
            ranks = self.program.groups[begun.group]
            for each in begun.messages:
                self.add(f"if rank == {ranks[each.target]}:", indent=inner)
                self.see(f"{number} t{each.slot}", f"t{each.slot}", inner + "    ")
            return
        if isinstance(begun, Callback):
            if not self.gloo:  # which has waited already
                self.call(f"c{step.step}.wait()", step.grad, inner)
            self.see(number, f"t{begun.slot}", inner)
            return
        if isinstance(begun, Collective) and begun.mode == "late":
            self.see(number, f"f{step.step}", inner)
            return
        if step.how == "drop":
            self.add(f"del {work}", indent=inner)
            return
        if not waited:
            if self.gloo and getattr(begun, "kind", "").startswith("reduce_scatter"):
                step = replace(step, how="wait")  # its handle has no future, and is never complete
            self.call(waiting_call(work, step.how), step.grad, inner)
        if shows:
            results = f"*o{step.step}"
            if isinstance(begun, Collective) and begun.kind in IN_PLACE:
                results = f"t{begun.slot}"
            self.see(number, results, inner)

    def callback(self, number: int, step: Callback, indent: str) -> None:
        if self.gloo and step.step in self.skipped:
            self.patch(number, step, indent)
            return
        indent = self.members(step.group, indent)
        tensor, group = f"t{step.slot}", f"group=g{step.group}"
        lines = [
            f"fill({tensor}, {values(step.fill)})",
            f"dist.all_reduce({tensor}, {group})",
        ]
        if step.nested:
            self.add(
                f"n{number} = dist.all_reduce(torch.ones(2), {group}, async_op=True)", indent=indent
            )
            lines = [
                "def nested(_):",
                *(f"    {line}" for line in lines),
                f"n{number}.get_future().then(nested).wait()",
            ]
        self.add(
            f"def call{number}(_):",
            *(f"    {line}" for line in lines),
            f"c{number} = w{step.step}.get_future().then(call{number})",
            indent=indent,
        )
        if self.gloo:  # its next collective would take the place of the one in the callback
            self.add(f"c{number}.wait()", indent=indent)

    # --- groups and errors -------------------------------------------------------------------

    def newgroup(self, number: int, step: NewGroup, indent: str) -> None:
        # With gloo a group whose name was used before looks for the ranks of the old one.
        if self.gloo:
            step = replace(step, local=False)
        local = ", use_local_synchronization=True" if step.local else ""
        text = f"g{step.group} = dist.new_group({list(step.ranks)}, TIMEOUT{local})"
        inner = self.members(step.group, indent) if step.local else indent
        self.add(text, indent=inner)

    def destroy(self, number: int, step: Destroy, indent: str) -> None:
        inner = self.members(step.group, indent)
        self.add(f"dist.destroy_process_group(g{step.group})", indent=inner)

    def restart(self, number: int, step: Restart, indent: str) -> None:
        self.add("dist.destroy_process_group()", "start()", "g0 = dist.group.WORLD", indent=indent)

    def late(self, number: int, step: Late, indent: str) -> None:
        self.add(f"if rank == {step.rank}:", f"    time.sleep({step.seconds})", indent=indent)

    def fail(self, number: int, step: Fail, indent: str) -> None:
        if step.kind == "starts late":
            return  # before the first step
        self.add(f"befall({step.kind!r}, rank, {step.rank})", indent=indent)

    def wrong(self, number: int, step: Wrong, indent: str) -> None:
        ranks, g = self.program.groups[step.group], f"group=g{step.group}"
        indent = self.members(step.group, indent)
        n = len(ranks)
        ones = f"[torch.ones(2) for _ in range({n})]"
        calls = {
            "few_outputs": f"dist.all_gather([torch.ones(2)] * {n - 1}, torch.ones(2), {g})",
            "two_dtypes": f"dist.all_gather({ones}, torch.ones(2).double(), {g})",
            "bitwise_of_floats": f"dist.all_reduce(torch.ones(2), dist.ReduceOp.BAND, {g})",
            "root_outside": f"dist.broadcast(torch.ones(2), {self.program.size + 5}, {g})",
            "send_to_itself": f"dist.send(torch.ones(2), rank, {g})",
            "negative_tag": f"dist.send(torch.ones(2), {ranks[0]}, {g}, tag=-1)",
            "wrong_size": f"dist.all_gather_into_tensor(torch.ones({n} + 1), torch.ones(1), {g})",
            "average_of_bool":
                f"dist.all_reduce(torch.ones(2) > 0, dist.ReduceOp.AVG, {g})",
            "expanded": f"dist.all_reduce(torch.ones(1).expand(3), {g})",
            "no_tensor": f"dist.all_reduce([1.0, 2.0], {g})",
        }  # fmt: skip
        self.add(f"refused(lambda: {calls[step.kind]})", indent=indent)

    def mismatch(self, number: int, step: Mismatch, indent: str) -> None:
        ranks, g = self.program.groups[step.group], f"group=g{step.group}"
        indent = self.members(step.group, indent)
        odd, tail = f"rank == {ranks[step.odd]}", ""
        if step.mode == "async":
            g, tail = f"{g}, async_op=True", ".wait()"
        one, two = {
            "numel": (f"dist.all_reduce(torch.ones(3), {g})",
                      f"dist.all_reduce(torch.ones(4), {g})"),
            "dtype": (f"dist.all_reduce(torch.ones(3), {g})",
                      f"dist.all_reduce(torch.ones(3).double(), {g})"),
            "op": (f"dist.all_reduce(torch.ones(3), {g})",
                   f"dist.all_reduce(torch.ones(3), dist.ReduceOp.MAX, {g})"),
            "root": (f"dist.broadcast(torch.ones(3), {ranks[0]}, {g})",
                     f"dist.broadcast(torch.ones(3), {ranks[1]}, {g})"),
            "kind": (f"dist.all_reduce(torch.ones(3), {g})",
                     f"dist.reduce(torch.ones(3), {ranks[0]}, {g})"),
            "barrier": (f"dist.all_reduce(torch.ones(3), {g})", f"dist.barrier({g})"),
        }[step.kind]  # fmt: skip
        self.add(
            f"if {odd}:",
            f"    refused(lambda: {two}{tail}, 'MismatchError')",
            "else:",
            f"    refused(lambda: {one}{tail}, 'MismatchError')",
            indent=indent,
        )

    def threads(self, number: int, step: Threads, indent: str) -> None:
        for index, branch in enumerate(step.branches):
            self.add(f"def thread{index}():", "    pass", indent=indent)
            for inner, each in enumerate(branch):
                self.step(1000 * (number + 1) + 100 * index + inner, each, indent + "    ")
        names = ", ".join(f"thread{index}" for index in range(len(step.branches)))
        self.add(f"parallel({names})", indent=indent)


def waiting_call(work: str, how: str) -> str:
    return {
        "wait": f"{work}.wait()",
        "timed": f"{work}.wait(timedelta(seconds=SECONDS))",
        "polled": f"until({work}.is_completed), {work}.wait()",
        "future": f"{work}.get_future().wait()",
        "then": f"{work}.get_future().then(lambda future: future.value()).wait()",
        "twice": f"{work}.wait(), {work}.wait()",
        "brief": f"patient({work})",
    }[how]


def values(fill: Fill, part: int = 0) -> str:
    """Return the arguments that say how a tensor is filled."""
    return f"{fill.seed + part}, rank, {fill.lowest}, {fill.step}, {fill.count}"


def reduce_op(name: str) -> str:
    if name == "PREMUL_SUM":
        return "dist._make_nccl_premul_sum(2.0)"
    return f"dist.ReduceOp.{name}"


def numel(shape: tuple[int, ...]) -> int:
    product = 1
    for length in shape:
        product *= length
    return product


def whole_shape(shape: tuple[int, ...], n: int, out: str = "plain") -> tuple[int, ...]:
    """Return the shape of one tensor of all ranks' parts, in one of torch's two forms."""
    return (n, *shape) if out == "stacked" or not shape else (n * shape[0], *shape[1:])


def slots_of(step: Any) -> list[int]:
    """Return the slots that a step uses."""
    if isinstance(step, (Collective, Message, Callback)):
        return [] if getattr(step, "kind", "") == "barrier" else [step.slot]
    if isinstance(step, Coalesced):
        return [item.slot for item in step.items]
    if isinstance(step, Batch):
        return [message.slot for message in step.messages]
    return []


def shapes_by_peer(
    shape: tuple[int, ...], n: int, rows: tuple[tuple[int, ...], ...]
) -> tuple[list[list[tuple]], list[list[tuple]]]:
    """Return the shapes that each rank of an all_to_all sends to each, and those it receives."""
    if not rows:
        return [[shape] * n] * n, [[shape] * n] * n
    rest = shape[1:]
    sent = [[(rows[s][d], *rest) for d in range(n)] for s in range(n)]
    received = [[(rows[s][d], *rest) for s in range(n)] for d in range(n)]
    return sent, received


def differentiable_inputs(step: Differentiable, n: int) -> list[tuple[int, ...]]:
    """Return the shapes of the tensors that each rank puts in."""
    shape = step.slot.shape
    if step.kind in ("reduce_scatter", "scatter", "all_to_all"):
        return [shape] * n
    if step.kind in ("all_to_all_single", "funcol_reduce_scatter", "funcol_all_to_all"):
        return [(n * shape[0], *shape[1:])]
    return [shape]


__all__ = ["Slot", "body", "numbered", "standalone"]
