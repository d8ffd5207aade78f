"""Builds a legal program step by step out of arbitrary choices.

Legal is what NCCL's stream order allows: an operation on a tensor that another operation still has
is either a collective of the same group, which comes after it, or waits for it first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from . import known
from .program import (
    EXACT,
    LAYOUTS,
    Batch,
    Callback,
    Coalesced,
    Collective,
    Destroy,
    Differentiable,
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
    is_floating,
    is_unsigned,
    operations,
)

Pick = Callable[[Sequence[Any]], Any]
"""Chooses one of several; the first is the simplest."""

REDUCING = ("all_reduce", "reduce", "reduce_scatter_tensor", "reduce_scatter")
IN_PLACE = ("all_reduce", "broadcast", "reduce", "scatter", "reduce_scatter_tensor",
            "reduce_scatter")  # fmt: skip
MOVING = ("broadcast", "all_gather_into_tensor", "all_gather", "gather", "scatter", "all_to_all",
          "all_to_all_single")  # fmt: skip
KINDS = ("all_reduce", *MOVING, *REDUCING[1:], "barrier")
FUNCTIONAL = ("all_reduce", "broadcast", "all_gather_into_tensor", "reduce_scatter_tensor",
              "all_to_all_single")  # fmt: skip
SPLITTING = ("all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single")
COALESCED = ("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor")
DIFFERENTIABLE = (
    *("all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter"),
    *("gather", "scatter", "all_to_all", "all_to_all_single"),
    *("funcol_all_gather", "funcol_reduce_scatter", "funcol_all_to_all"),
)  # fmt: skip
OBJECTS = ("all_gather", "broadcast", "gather", "scatter", "message")
WRONG = ("few_outputs", "two_dtypes", "bitwise_of_floats", "root_outside", "send_to_itself",
         "negative_tag", "wrong_size", "average_of_bool", "expanded", "no_tensor")  # fmt: skip
MISMATCHES = ("numel", "dtype", "op", "root", "kind", "barrier")
GRADS = ("enabled", "no_grad", "inference")
SHAPES = ((3,), (), (0,), (1,), (2, 3), (5,), (2, 2, 3, 2), (0, 2), (70,), (4, 1), (2, 3000))
HOWS = ("wait", "timed", "polled", "future", "then", "twice", "brief", "drop")


@dataclass
class Pending:
    """What a step started and nothing has waited for yet."""

    kind: str
    group: int
    reads: frozenset[int] = frozenset()
    writes: frozenset[int] = frozenset()
    step: Any = None


@dataclass
class Builder:
    """The state of a program that is being made: what is under way, and who may be used."""

    pick: Pick
    size: int
    slots: list[Slot] = field(default_factory=list)
    groups: list[tuple[int, ...]] = field(default_factory=list)
    alive: list[int] = field(default_factory=lambda: [0])
    steps: list[Any] = field(default_factory=list)
    pending: dict[int, Pending] = field(default_factory=dict)
    bounds: dict[int, int | None] = field(default_factory=dict)
    lost: set[int] = field(default_factory=set)
    first_number: int = 0
    may_restart: bool = True
    has_destroyed: bool = False  # a group, since the last start

    # --- the whole ---------------------------------------------------------------------------

    def finish(self) -> Program:
        """Wait for all that is under way, in any order, and return the program."""
        while self.pending:
            self.wait(self.pick(list(self.pending)))
        return Program(
            self.size,
            tuple(self.slots),
            tuple(self.groups),
            tuple(self.steps),
            tuple(self.alive),
            tuple(sorted(self.lost)),
        )

    def maybe(self, one_in: int) -> bool:
        return self.pick([False] * (one_in - 1) + [True])

    def number(self) -> int:
        return self.first_number + len(self.steps)

    def add_slot(self) -> None:
        dtype = self.pick(list(EXACT))
        shape = self.pick(SHAPES)
        layout = self.pick(LAYOUTS)
        kinds = ["plain", "inference"]
        if is_floating(dtype) and "float8" not in dtype:
            kinds[1:1] = ["parameter", "leaf", "nonleaf"]
        kind = self.pick(kinds)
        if layout == "part" and kind != "plain":
            layout = "offset"
        self.slots.append(Slot(dtype, shape, layout, kind))

    # --- what is under way -------------------------------------------------------------------

    def touch(self, slot: int, writes: bool, group: int = -1) -> bool:
        """Wait for what forbids the use of a slot; return whether something is under way on it.

        Args:
            group: that of a collective, which may follow another one of the same group.
        """
        busy = False
        for step, entry in list(self.pending.items()):
            if slot in entry.writes or (writes and slot in entry.reads):
                if group == entry.group and entry.kind == "collective":
                    busy = True
                else:
                    self.wait(step)
        return busy

    def wait(self, step: int, how: str = "", may_drop: bool = False) -> None:
        """Add a wait for a step."""
        entry = self.pending[step]
        grad = self.pick(GRADS)
        if not how:
            how = "wait"
            if entry.kind == "collective":
                how = self.pick([how for how in HOWS if how not in known.KNOWN])
                how = "wait" if how == "drop" and not may_drop else how
            elif entry.kind == "message":
                how = self.pick(("wait", "timed", "polled", "twice", "future"))
        del self.pending[step]
        others = [other.writes for other in self.pending.values()]
        see = not any(entry.writes & theirs for theirs in others)
        if how == "drop":
            if any(entry.writes & (o.writes | o.reads) for o in self.pending.values()):
                how = "wait"
            else:
                self.lost |= entry.writes | entry.reads
                see = False
        self.steps.append(Wait(step, how, grad, see))

    def free_slots(self) -> list[int]:
        return [index for index in range(len(self.slots)) if index not in self.lost]

    def choose_slot(self, fits: Callable[[Slot], bool] = lambda slot: True) -> int | None:
        choices = [index for index in self.free_slots() if fits(self.slots[index])]
        return self.pick(choices) if choices else None

    # --- values ------------------------------------------------------------------------------

    def values_for(self, dtype: str, op: str, ranks: int) -> Fill:
        """Return values for which the result is exact in this dtype, in whatever order."""
        seed = self.pick(range(8))
        exact = EXACT[dtype]
        low = 0 if is_unsigned(dtype) else -1
        if dtype == "bool":
            return Fill(seed, 0, 1, 2)
        if op == "PRODUCT":
            return Fill(seed, 1, 1, 2)
        if op == "AVG":
            return Fill(seed, low * ranks, ranks, 3)
        most = 50 if exact is None else min(50, exact)
        if op in ("SUM", "PREMUL_SUM"):
            most = 10 if exact is None else min(10, exact // 8)
        return Fill(seed, low * most, 1, most - low * most + 1)

    def may_keep(self, slot: int, op: str, ranks: int) -> bool:
        """Return whether a reduction of what the slot holds is exact; note what it holds then."""
        bound, exact = self.bounds.get(slot, 0), EXACT[self.slots[slot].dtype]
        if op in ("AVG", "PRODUCT"):
            return False
        if op not in ("SUM", "PREMUL_SUM") or exact is None:
            return True
        grown = bound * ranks * (2 if op == "PREMUL_SUM" else 1)
        return grown <= exact

    def note(self, slot: int, fill: Fill | None, op: str, ranks: int) -> None:
        """Remember how large the slot's values may be after a step."""
        bound = self.bounds.get(slot, 0) if fill is None else fill.bound
        if op in ("SUM", "PREMUL_SUM"):
            bound *= ranks * (2 if op == "PREMUL_SUM" else 1)
        elif op == "PRODUCT":
            bound = 64
        before = self.bounds.get(slot, 0)
        self.bounds[slot] = max(bound, before if fill is None else fill.bound)

    # --- steps -------------------------------------------------------------------------------

    def add_step(self) -> None:
        """Add a step of some kind."""
        choices = [self.add_collective] * 8 + [self.add_message] * 3 + [self.add_wait] * 4
        choices += [self.add_differentiable] * 2 + [self.add_group] * 2 + [self.add_coalesced]
        choices += [self.add_batch, self.add_objects, self.add_callback, *[self.add_late] * 3]
        choices += [self.add_wrong, self.add_mismatch, self.add_destroy, self.add_threads]
        choices += [self.add_restart]
        self.pick(choices)()

    def add_wait(self) -> None:
        if self.pending:
            self.wait(self.pick(list(self.pending)), may_drop=True)

    def choose_group(self) -> int:
        return self.pick(self.alive)

    def add_collective(self, group: int | None = None) -> None:
        group = self.choose_group() if group is None else group
        kind = self.pick(KINDS)
        item = self.collective(kind, group, None)
        if item is None:
            return
        entry = Pending("collective", group, step=item)
        if kind != "barrier":
            # A functional collective leaves its slot as it is.
            changes = kind in IN_PLACE and item.mode in ("sync", "async")
            chosen = frozenset([item.slot])
            entry.writes, entry.reads = (chosen, frozenset()) if changes else (frozenset(), chosen)
        if item.mode == "late":
            entry.kind = "functional"
        if item.mode in ("async", "late"):
            self.pending[self.number()] = entry
        self.steps.append(item)

    def collective(self, kind: str, group: int, mode: str | None) -> Collective | None:
        """Return a collective on a slot that it may use, None if there is none."""
        ranks = len(self.groups[group])
        if mode is None:
            modes = ["sync", "async", "functional", "late"]
            mode = self.pick(modes if kind in FUNCTIONAL else modes[:2])
        grad, root = self.pick(GRADS), self.pick(range(ranks))
        if kind == "barrier":
            return Collective(kind, group, mode=mode)

        functional = kind if mode in ("functional", "late") else ""

        def fits(slot: Slot) -> bool:
            if len(slot.shape) == 0 and (kind == "all_to_all_single" or functional in SPLITTING):
                return False
            return not known.excludes(kind, slot, mode, grad)

        slot = self.choose_slot(fits)
        if slot is None:
            return None
        op = "SUM"
        if kind in REDUCING:
            op = self.pick(operations(self.slots[slot].dtype))
            if functional and op == "PREMUL_SUM":
                op = "SUM"  # torch has no name for it
        outs = ("plain", "strided", "transposed", "offset", "part")
        if kind in SPLITTING:
            outs = ("plain", "offset", "strided", "stacked")
            outs = outs[:3] if functional else outs
        out = self.pick(outs)
        rows: tuple = ()
        if kind in ("all_to_all", "all_to_all_single") and self.maybe(2):
            rows = tuple(tuple(self.pick(range(3)) for _ in range(ranks)) for _ in range(ranks))
        changes = kind in IN_PLACE and mode in ("sync", "async")
        busy = self.touch(slot, changes, group if mode in ("sync", "async") else -1)
        grows = op if kind in REDUCING else ""
        fresh = self.values_for(self.slots[slot].dtype, grows, ranks)
        needs_inputs = kind in ("scatter", "reduce_scatter", "reduce_scatter_tensor",
                                "all_to_all", "all_to_all_single")  # fmt: skip
        if needs_inputs:
            chosen: Fill | None = fresh
        elif grows and not self.may_keep(slot, op, ranks):
            for step in [s for s, e in self.pending.items() if slot in e.writes | e.reads]:
                self.wait(step)
            chosen = fresh
        elif busy or self.touched_by_any(slot):
            chosen = None
        else:
            chosen = None if self.bounds.get(slot) is not None and self.maybe(4) else fresh
        if slot in self.lost:
            return None
        self.note(slot, chosen, grows, ranks)
        return Collective(kind, group, slot, op, root, mode, grad, out, chosen, rows)

    def touched_by_any(self, slot: int) -> bool:
        return any(slot in entry.reads | entry.writes for entry in self.pending.values())

    def quiet(self, slot: int) -> bool:
        """Wait for all that is under way on a slot; return whether it may be used."""
        for step in [s for s, e in self.pending.items() if slot in e.writes | e.reads]:
            if step in self.pending:
                self.wait(step)
        return slot not in self.lost

    def add_coalesced(self) -> None:
        group, kind = self.choose_group(), self.pick(COALESCED)
        # Torch would coalesce the calls of a callback on another thread too.
        if any(e.kind == "callback" and e.group == group for e in self.pending.values()):
            return
        ranks = len(self.groups[group])
        mode, grad = self.pick(("sync", "async")), self.pick(GRADS)
        used: list[Collective] = []
        dtypes = set()
        for _ in range(1 + self.pick(range(3))):
            taken = {item.slot for item in used}
            choices = [
                index
                for index in self.free_slots()
                if index not in taken
                and (not dtypes or self.slots[index].dtype in dtypes)
                and not known.excludes(kind, self.slots[index], "coalesced", grad)
            ]
            if not choices:
                break
            slot = self.pick(choices)
            if not self.quiet(slot):
                continue
            dtype = self.slots[slot].dtype
            dtypes.add(dtype)
            op = "SUM" if kind == "all_gather_into_tensor" or used else self.pick(
                [op for op in operations(dtype) if op != "PREMUL_SUM"]
            )  # fmt: skip
            op = used[0].op if used else op
            grows = "" if kind == "all_gather_into_tensor" else op
            chosen = self.values_for(dtype, grows, ranks)
            self.note(slot, chosen, grows, ranks)
            used.append(Collective(kind, group, slot, op, fill=chosen))
        if not used:
            return
        if mode == "async":
            slots = frozenset(item.slot for item in used)
            entry = Pending("coalesced", group, writes=slots)
            self.pending[self.number()] = entry
        self.steps.append(Coalesced(group, tuple(used), mode, grad))

    def add_differentiable(self) -> None:
        kind, group = self.pick(DIFFERENTIABLE), self.choose_group()
        ranks = len(self.groups[group])
        dtype = self.pick(("float32", "float64", "bfloat16", "float16"))
        shape = self.pick(((3,), (2, 3), (4,), (), (0,), (2, 2, 3, 2)))
        single = ("all_to_all_single", "reduce_scatter")
        if not shape and (kind.startswith("funcol") or kind in single):
            shape = (3,)
        layout = self.pick(("plain", "strided", "transposed", "channels_last"))
        slot = Slot(dtype, shape, layout)
        root = self.pick(range(ranks))
        if kind in ("broadcast", "gather", "scatter") and self.groups[group] != tuple(range(ranks)):
            return  # torch compares the rank in the group with the one in the world
        if not known.excludes(f"nn.{kind}", slot, "sync", "enabled"):
            self.steps.append(
                Differentiable(kind, group, slot, root, Fill(self.pick(range(8)), 0, 1, 4))
            )

    def add_message(self) -> None:
        group = self.choose_group()
        ranks = len(self.groups[group])
        if ranks < 2:
            return
        message = self.message(group, self.pick(("recv", "irecv", "any", "iany")))
        if message is None:
            return
        if message.send == "isend" or message.receive in ("irecv", "iany"):
            entry = Pending("message", group, writes=frozenset([message.slot]))
            self.pending[self.number()] = entry
        self.steps.append(message)

    def message(self, group: int, receive: str) -> Message | None:
        ranks = len(self.groups[group])
        source = self.pick(range(ranks))
        target = (source + 1 + self.pick(range(ranks - 1))) % ranks
        grad, send = self.pick(GRADS), self.pick(("send", "isend"))
        slot = self.choose_slot(lambda slot: not known.excludes("message", slot, receive, grad))
        if slot is None or not self.quiet(slot):
            return None
        chosen = self.values_for(self.slots[slot].dtype, "", ranks)
        self.note(slot, chosen, "", ranks)
        # A message from any source must be the only one with its tag.
        tag = 100 + self.number() if receive in ("any", "iany") else self.pick(range(3))
        return Message(group, source, target, slot, tag, send, receive, grad, chosen)

    def add_batch(self) -> None:
        group = self.choose_group()
        if len(self.groups[group]) < 2:
            return
        messages: list[Message] = []
        for _ in range(1 + self.pick(range(4))):
            message = self.message(group, "irecv")
            if message is not None and message.slot not in {m.slot for m in messages}:
                messages.append(message)
        messages = [m for m in messages if m.slot not in self.lost]
        if not messages:
            return
        slots = frozenset(message.slot for message in messages)
        self.pending[self.number()] = Pending("batch", group, writes=slots)
        self.steps.append(Batch(group, tuple(messages), self.pick(GRADS)))

    def add_objects(self) -> None:
        kind, group = self.pick(OBJECTS), self.choose_group()
        ranks = len(self.groups[group])
        if kind == "message" and ranks < 2:
            kind = "all_gather"
        self.steps.append(Objects(kind, group, self.pick(range(ranks)), self.pick(range(5))))

    def add_callback(self) -> None:
        steps = [s for s, e in self.pending.items() if e.kind == "collective"]
        if not steps:
            return
        step = self.pick(steps)
        group = self.pending[step].group
        wanted = ("float32", "float64", "int64", "int32")
        slot = self.choose_slot(
            lambda slot: (
                slot.dtype in wanted and not known.excludes("all_reduce", slot, "async", "enabled")
            )
        )
        if slot is None or any(slot in e.reads | e.writes for e in self.pending.values()):
            return
        chosen = self.values_for(self.slots[slot].dtype, "SUM", len(self.groups[group]))
        self.note(slot, chosen, "SUM", len(self.groups[group]))
        nested = self.maybe(3) and "nested" not in known.KNOWN
        entry = Pending("callback", group, writes=frozenset([slot]))
        self.pending[self.number()] = entry
        self.steps.append(Callback(step, group, slot, chosen, nested))

    def add_late(self) -> None:
        self.steps.append(Late(self.pick(range(self.size))))

    def add_wrong(self) -> None:
        kind, group = self.pick(WRONG), self.choose_group()
        self.steps.append(Wrong(kind, group))

    def add_mismatch(self) -> None:
        kind, group = self.pick(MISMATCHES), self.choose_group()
        ranks = len(self.groups[group])
        if ranks > 1:
            odd = self.pick(range(ranks))
            self.steps.append(Mismatch(kind, group, odd, self.pick(("sync", "async"))))

    def add_group(self) -> None:
        ranks = tuple(r for r in range(self.size) if self.pick((True, True, False)))
        ranks = ranks or (self.pick(range(self.size)),)
        # Torch names such a group after its ranks and the number of groups that a rank is in, which
        # has to be the same on all: gloo's waits for ever otherwise.
        counts = {sum(rank in self.groups[group] for group in self.alive) for rank in ranks}
        # Once a group has ended, its number is used again, and torch refuses the name.
        local = self.maybe(3) and len(counts) == 1 and not self.has_destroyed
        local = local and "local" not in known.KNOWN
        self.alive.append(len(self.groups))
        self.groups.append(ranks)
        self.steps.append(NewGroup(self.alive[-1], ranks, local))

    def end_group(self, group: int) -> None:
        for step in [s for s, e in self.pending.items() if e.group == group]:
            if step in self.pending:
                self.wait(step)

    def add_destroy(self) -> None:
        others = self.alive[1:]
        if others:
            group = self.pick(others)
            self.end_group(group)
            self.alive.remove(group)
            self.steps.append(Destroy(group))
            self.has_destroyed = True

    def add_restart(self) -> None:
        if self.may_restart and self.maybe(3):
            for group in list(self.alive):
                self.end_group(group)
            self.alive = [0]
            self.steps.append(Restart())
            self.has_destroyed = False

    def add_threads(self) -> None:
        if self.first_number or len(self.alive) < 2:
            return
        groups = [self.pick(self.alive)]
        groups.append(self.pick([group for group in self.alive if group not in groups]))
        slots = self.free_slots()
        for slot in slots:
            self.quiet(slot)
        place = self.number()
        branches = []
        for index, group in enumerate(groups):
            other = {slot for slot in range(len(self.slots)) if slot % 2 != index} | self.lost
            part = Builder(self.pick, self.size, self.slots, self.groups, [group])
            part.bounds, part.lost = self.bounds, other
            part.first_number = 1000 * (place + 1) + 100 * index
            for _ in range(1 + self.pick(range(3))):
                part.add_collective(group)
            while part.pending:
                part.wait(next(iter(part.pending)), "wait")
            branches.append(tuple(part.steps))
        self.steps.append(Threads(tuple(branches)))


def build(pick: Pick, size: int, most: int = 40) -> Program:
    """Return a program of at most so many drawn steps."""
    builder = Builder(pick, size)
    builder.groups.append(tuple(range(size)))
    for _ in range(1 + pick(range(5))):
        builder.add_slot()
    for _ in range(most):
        builder.add_step()
    return builder.finish()
