"""What every rank of a program has to see, computed in one process on all ranks' values.

Steps happen one after the other here, whatever is under way on the ranks. Whole numbers are summed
in their own type, which wraps around, all others in double precision and rounded once; values are
small enough that every order gives the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from .prelude import arrange, fill, numbers, room
from .printer import (
    IN_PLACE,
    differentiable_inputs,
    numbered,
    shapes_by_peer,
    slots_of,
    whole_shape,
)
from .program import (
    Batch,
    Callback,
    Coalesced,
    Collective,
    Differentiable,
    Fill,
    Message,
    Objects,
    Program,
    Slot,
    Threads,
    Wait,
    dtype_of,
)

Seen = dict[str, list[Any]]
"""By the key of ``see``, what it was given: tensors, and other things as their text."""

_WIDE = {torch.uint16: torch.int64, torch.uint32: torch.int64, torch.uint64: torch.int64}


@dataclass
class Expected:
    """What each rank sees, and what slots hold after each step.

    Attributes:
        seen: one dictionary per rank.
        after: for each rank by (step, slot), values with which a rank may go on.
    """

    seen: list[Seen]
    after: list[dict[tuple[int, int], torch.Tensor]]


def expected(program: Program) -> Expected:
    """Return what the ranks of a program see."""
    return _Model(program).run()


@dataclass
class _Model:
    program: Program
    values: list[list[torch.Tensor]] = field(default_factory=list)  # by slot, then rank
    outputs: dict[int, dict[int, list[torch.Tensor]]] = field(default_factory=dict)

    def run(self) -> Expected:
        program = self.program
        self.steps = dict(numbered(program))
        self.seen: list[Seen] = [{} for _ in range(program.size)]
        self.after: list[dict] = [{} for _ in range(program.size)]
        for slot in program.slots:
            self.values.append(
                [
                    numbers(slot.shape, dtype_of(slot.dtype), 0, rank, 0, 1, 2)
                    for rank in range(program.size)
                ]
            )
        for number, step in self.steps.items():
            method = getattr(self, type(step).__name__.lower(), None)
            if method is not None:
                method(number, step)
                for slot in slots_of(step):
                    for rank in range(program.size):
                        self.after[rank][number, slot] = self.values[slot][rank]
        self.ending()
        return Expected(self.seen, self.after)

    def ending(self) -> None:
        for index, slot in enumerate(self.program.slots):
            if index in self.program.lost:
                continue
            for rank, seen in enumerate(self.seen):
                seen[f"end t{index}"] = [self.values[index][rank]]
                if slot.kind == "nonleaf":
                    seen[f"gradient of t{index}"] = [_gradient(slot, rank)]
        for group in self.program.alive:
            ranks = self.program.groups[group]
            for rank in ranks:
                self.seen[rank][f"works g{group}"] = [torch.full((2,), float(len(ranks)))]

    def see(self, rank: int, key: object, *things: Any) -> None:
        self.seen[rank][str(key)] = list(things)

    def fill(self, slot: int, ranks: tuple[int, ...], how: Fill | None) -> None:
        if how is not None:
            for rank in ranks:
                self.values[slot][rank] = self.fresh(self.values[slot][rank], rank, how, 0)

    def fresh(self, like: torch.Tensor, rank: int, how: Fill, part: int) -> torch.Tensor:
        return _numbers(tuple(like.shape), like.dtype, rank, how, part)

    # --- collectives -------------------------------------------------------------------------

    def collective(self, number: int, step: Collective) -> None:
        if step.kind == "barrier":
            return
        ranks = self.program.groups[step.group]
        functional = step.mode in ("functional", "late")
        if step.kind in ("all_reduce", "broadcast", "reduce", "gather", "all_gather",
                         "all_gather_into_tensor"):  # fmt: skip
            self.fill(step.slot, ranks, step.fill)
        results = self.results(step, ranks)
        self.outputs[number] = results
        if step.kind in IN_PLACE and not functional:
            for rank in ranks:
                (self.values[step.slot][rank],) = results[rank]
        if step.mode in ("sync", "functional"):
            for rank in ranks:
                self.see(rank, number, *results[rank])

    def results(self, step: Collective, ranks: tuple[int, ...]) -> dict[int, list[torch.Tensor]]:
        """Return what a collective gives each rank: a slot's values, or the outputs."""
        slot = self.program.slots[step.slot]
        mine = {rank: self.values[step.slot][rank] for rank in ranks}
        n, root, dtype = len(ranks), ranks[step.root], dtype_of(slot.dtype)
        if step.kind == "all_reduce":
            total = reduced(list(mine.values()), step.op)
            return {rank: [total] for rank in ranks}
        if step.kind == "broadcast":
            return {rank: [mine[root]] for rank in ranks}
        if step.kind == "reduce":
            total = reduced(list(mine.values()), step.op)
            return {rank: [total if rank == root else mine[rank]] for rank in ranks}
        if step.kind == "all_gather":
            return {rank: list(mine.values()) for rank in ranks}
        if step.kind == "all_gather_into_tensor":
            whole = _cat(list(mine.values()), step.out)
            return {rank: [whole] for rank in ranks}
        if step.kind == "gather":
            return {rank: list(mine.values()) if rank == root else [] for rank in ranks}
        assert step.fill is not None

        def inputs(rank: int, shapes: list[tuple]) -> list[torch.Tensor]:
            return [
                _numbers(shape, dtype, rank, step.fill, 1 + part)
                for part, shape in enumerate(shapes)
            ]

        if step.kind == "scatter":
            given = inputs(root, [slot.shape] * n)
            return {rank: [given[place]] for place, rank in enumerate(ranks)}
        if step.kind == "reduce_scatter":
            all_inputs = [inputs(rank, [slot.shape] * n) for rank in ranks]
            return {
                rank: [reduced([given[place] for given in all_inputs], step.op)]
                for place, rank in enumerate(ranks)
            }
        if step.kind == "reduce_scatter_tensor":
            shape = whole_shape(slot.shape, n)
            total = reduced([inputs(rank, [shape])[0] for rank in ranks], step.op)
            parts = list(total.view(n, *slot.shape).unbind())
            return {rank: [parts[place]] for place, rank in enumerate(ranks)}
        sent, _ = shapes_by_peer(slot.shape, n, step.rows)
        if step.kind == "all_to_all":
            pieces = [inputs(rank, sent[place]) for place, rank in enumerate(ranks)]
            return {rank: [row[place] for row in pieces] for place, rank in enumerate(ranks)}
        pieces = []
        for place, rank in enumerate(ranks):
            counts = [shape[0] for shape in sent[place]]
            (whole,) = inputs(rank, [(sum(counts), *slot.shape[1:])])
            pieces.append(list(whole.split(counts)))
        return {rank: [_cat([row[place] for row in pieces])] for place, rank in enumerate(ranks)}

    def coalesced(self, number: int, step: Coalesced) -> None:
        ranks = self.program.groups[step.group]
        collected: dict[int, list[torch.Tensor]] = {rank: [] for rank in ranks}
        for item in step.items:
            if item.kind != "reduce_scatter_tensor":
                self.fill(item.slot, ranks, item.fill)
            results = self.results(item, ranks)
            for rank in ranks:
                collected[rank] += results[rank]
                if item.kind in IN_PLACE:
                    (self.values[item.slot][rank],) = results[rank]
        self.outputs[number] = collected
        if step.mode == "sync":
            for rank in ranks:
                self.see(rank, number, *collected[rank])

    def differentiable(self, number: int, step: Differentiable) -> None:
        ranks, slot = self.program.groups[step.group], step.slot
        n, root, dtype = len(ranks), step.root, dtype_of(slot.dtype)
        shapes = differentiable_inputs(step, n)
        inputs = [
            [
                _numbers(shape, dtype, rank, step.fill, 1 + part).double().requires_grad_()
                for part, shape in enumerate(shapes)
            ]
            for rank in ranks
        ]
        firsts = [given[0] for given in inputs]
        outputs: list[list[torch.Tensor]]
        kind = step.kind.removeprefix("funcol_")
        if kind == "all_reduce":
            outputs = [[sum(firsts)]] * n
        elif kind == "broadcast":
            outputs = [[firsts[root] + 0]] * n
        elif kind == "reduce":
            outputs = [[sum(firsts)] if place == root else [] for place in range(n)]
        elif kind == "all_gather":
            whole = [_cat(firsts)] if step.kind.startswith("funcol") else firsts
            outputs = [whole] * n
        elif step.kind == "funcol_reduce_scatter":
            parts = sum(firsts).view(n, *slot.shape)
            outputs = [[parts[place]] for place in range(n)]
        elif kind == "reduce_scatter":
            outputs = [[sum(given[place] for given in inputs)] for place in range(n)]
        elif kind == "gather":
            outputs = [firsts if place == root else [] for place in range(n)]
        elif kind == "scatter":
            outputs = [[inputs[root][place]] for place in range(n)]
        elif kind == "all_to_all" and not step.kind.startswith("funcol"):
            outputs = [[given[place] for given in inputs] for place in range(n)]
        else:
            outputs = [
                [_cat([given[0].chunk(n)[place] if given[0].numel() else given[0][:0]
                       for given in inputs])]
                for place in range(n)
            ]  # fmt: skip
        total = torch.zeros((), dtype=torch.float64)
        for place, rank in enumerate(ranks):
            for k, each in enumerate(outputs[place]):
                shape = tuple(each.shape)
                weight = numbers(shape, torch.float64, k + step.fill.seed, rank, 1, 1, 3)
                total = total + (each * weight).sum()
        total.backward()
        for place, rank in enumerate(ranks):
            if step.kind not in ("reduce", "gather") or place == root:
                self.see(rank, number, *(each.detach().to(dtype) for each in outputs[place]))
            gradients = [
                torch.zeros_like(each) if each.grad is None else each.grad for each in inputs[place]
            ]
            self.see(rank, f"gradient {number}", *(each.to(dtype) for each in gradients))

    # --- messages, objects, waits ------------------------------------------------------------

    def message(self, number: int, step: Message) -> None:
        ranks = self.program.groups[step.group]
        source, target = ranks[step.source], ranks[step.target]
        self.fill(step.slot, ranks, step.fill)
        self.values[step.slot][target] = self.values[step.slot][source]
        if step.receive in ("recv", "any"):
            self.see(target, f"{number} source", str(source))
            if step.send == "send":
                self.see(target, number, self.values[step.slot][target])

    def batch(self, number: int, step: Batch) -> None:
        for each in step.messages:
            ranks = self.program.groups[step.group]
            self.fill(each.slot, ranks, each.fill)
            values = self.values[each.slot]
            values[ranks[each.target]] = values[ranks[each.source]]

    def objects(self, number: int, step: Objects) -> None:
        ranks = self.program.groups[step.group]
        root, n = ranks[step.root], len(ranks)
        made = {rank: {"from": rank, "seed": "x" * step.seed} for rank in ranks}
        for place, rank in enumerate(ranks):
            out: Any = [made[root], root]
            if step.kind == "all_gather":
                out = list(made.values())
            elif step.kind == "gather":
                out = list(made.values()) if rank == root else None
            elif step.kind == "scatter":
                out = [{"to": place, **made[root]}]
            elif step.kind == "message" and rank != ranks[(step.root + 1) % n]:
                out = [made[rank], rank]
            self.see(rank, number, str(out))

    def callback(self, number: int, step: Callback) -> None:
        ranks = self.program.groups[step.group]
        self.fill(step.slot, ranks, step.fill)
        total = reduced([self.values[step.slot][rank] for rank in ranks], "SUM")
        for rank in ranks:
            self.values[step.slot][rank] = total

    def wait(self, number: int, step: Wait) -> None:
        begun = self.steps[step.step]
        ranks = self.program.groups[begun.group]
        if isinstance(begun, Message):
            target = ranks[begun.target]
            self.see(target, number, self.values[begun.slot][target])
        elif isinstance(begun, Batch):
            for each in begun.messages:
                target = ranks[each.target]
                self.see(target, f"{number} t{each.slot}", self.values[each.slot][target])
        elif isinstance(begun, Callback):
            for rank in ranks:
                self.see(rank, number, self.values[begun.slot][rank])
        elif step.how == "drop" or getattr(begun, "kind", "") == "barrier":
            return
        elif step.see:
            for rank in ranks:
                results = self.outputs[step.step][rank]
                if (
                    isinstance(begun, Collective)
                    and begun.kind in IN_PLACE
                    and (begun.mode != "late")
                ):
                    results = [self.values[begun.slot][rank]]
                self.see(rank, number, *results)

    def threads(self, number: int, step: Threads) -> None:
        """Its steps follow it under numbers of their own."""


def reduced(values: list[torch.Tensor], op: str) -> torch.Tensor:
    """Return what a reduce operation makes of all ranks' values."""
    dtype = values[0].dtype
    if dtype == torch.bool:
        both = {"SUM": "BOR", "MAX": "BOR", "MIN": "BAND", "PRODUCT": "BAND"}.get(op, op)
        return _fold(values, both)
    wide = _wide(dtype)
    total = _fold([value.to(wide) for value in values], op)
    if op == "AVG":
        total = total / len(values)
    elif op == "PREMUL_SUM":
        total = total * 2
    return total.to(dtype)


def _wide(dtype: torch.dtype) -> torch.dtype:
    if dtype.is_complex:
        return torch.complex128
    if dtype.is_floating_point:
        return torch.float64
    return _WIDE.get(dtype, dtype)


def _fold(values: list[torch.Tensor], op: str) -> torch.Tensor:
    function = {
        "SUM": torch.add,
        "AVG": torch.add,
        "PREMUL_SUM": torch.add,
        "PRODUCT": torch.mul,
        "MIN": torch.minimum,
        "MAX": torch.maximum,
        "BAND": torch.bitwise_and,
        "BOR": torch.bitwise_or,
        "BXOR": torch.bitwise_xor,
    }[op]
    result = values[0]
    for value in values[1:]:
        result = function(result, value)
    return result


def _numbers(
    shape: tuple[int, ...], dtype: torch.dtype, rank: int, how: Fill, part: int
) -> torch.Tensor:
    return numbers(shape, dtype, how.seed + part, rank, how.lowest, how.step, how.count)


def _cat(parts: list[torch.Tensor], out: str = "plain") -> torch.Tensor:
    return torch.stack(parts) if out == "stacked" or not parts[0].shape else torch.cat(parts)


def _gradient(slot: Slot, rank: int) -> torch.Tensor:
    """Return the gradient of the leaf behind a computed slot: communication does not change it."""
    dtype = dtype_of(slot.dtype)
    leaf = torch.ones(room(slot.shape, slot.layout), dtype=dtype, requires_grad=True)
    tensor = arrange(leaf * 2, slot.shape, slot.layout)
    (tensor * numbers(tensor.shape, dtype, 1, rank, 1, 1, 3)).sum().backward()
    return leaf.grad


__all__ = ["Expected", "Seen", "expected", "fill", "reduced"]
