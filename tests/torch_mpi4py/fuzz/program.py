"""A program for 1 to 4 ranks as plain data: tensors, and steps that every rank goes through.

The strategy makes programs, the printer turns them into scripts, the model says what each rank has
to see. A rank of a step is a rank of its group, which is a place in the group's tuple of ranks.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

# The largest whole number up to which all are exact; None for types that wrap around.
EXACT: dict[str, int | None] = {
    "float32": 2**24,
    "float64": 2**53,
    "int64": None,
    "int32": None,
    "bfloat16": 256,
    "float16": 2048,
    "bool": None,
    "uint8": None,
    "int8": None,
    "int16": None,
    "complex64": 2**24,
    "complex128": 2**53,
    "uint16": None,
    "uint32": None,
    "uint64": None,
    "float8_e4m3fn": 16,
    "float8_e5m2": 8,
}
REDUCED_WIDER = ("bfloat16", "float16", "float8_e4m3fn", "float8_e5m2")
BITWISE = ("BAND", "BOR", "BXOR")
LAYOUTS = ("plain", "strided", "transposed", "offset", "channels_last", "part")
"""How a tensor lies in memory; "part" is a piece of a tensor that others lie in, too."""


def dtype_of(name: str) -> torch.dtype:
    """Return torch's dtype of a name."""
    return getattr(torch, name)


def is_floating(name: str) -> bool:
    return dtype_of(name).is_floating_point


def is_complex(name: str) -> bool:
    return dtype_of(name).is_complex


def is_unsigned(name: str) -> bool:
    return name.startswith("uint")


def operations(dtype: str) -> tuple[str, ...]:
    """Return the reduce operations that mean something for a dtype."""
    if is_complex(dtype):
        return ("SUM", "AVG", "PREMUL_SUM")  # torch itself refuses products
    if is_floating(dtype):
        return ("SUM", "AVG", "MAX", "MIN", "PRODUCT", "PREMUL_SUM")
    if dtype == "bool":
        return ("SUM", "MAX", "MIN", "PRODUCT", *BITWISE)
    return ("SUM", "MAX", "MIN", "AVG", "PRODUCT", *BITWISE)


@dataclass(frozen=True)
class Fill:
    """Values for a tensor: ``lowest + step * k`` with ``k < count`` that depends on the place."""

    seed: int
    lowest: int
    step: int
    count: int

    @property
    def bound(self) -> int:
        """The largest magnitude, per component of a complex number."""
        return max(abs(self.lowest), abs(self.lowest + self.step * (self.count - 1)))


@dataclass(frozen=True)
class Slot:
    """A tensor that each rank has from the first step to the last.

    Attributes:
        kind: plain, parameter, leaf (needs a gradient), nonleaf (computed from one that does),
            or inference.
    """

    dtype: str = "float32"
    shape: tuple[int, ...] = (3,)
    layout: str = "plain"
    kind: str = "plain"


@dataclass(frozen=True)
class Collective:
    """A collective on a slot, and on fresh tensors where it needs one for each rank.

    Attributes:
        mode: sync, async, functional, or late (functional, and waited for later).
        out: layout of the fresh tensors.
        fill: what the slot holds before; None leaves what is there.
        rows: of an all_to_all, how many rows go from each rank to each.
    """

    kind: str
    group: int = 0
    slot: int = 0
    op: str = "SUM"
    root: int = 0
    mode: str = "sync"
    grad: str = "enabled"
    out: str = "plain"
    fill: Fill | None = None
    rows: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True)
class Coalesced:
    """Several collectives of one kind that are issued together."""

    group: int
    items: tuple[Collective, ...]
    mode: str = "sync"
    grad: str = "enabled"


@dataclass(frozen=True)
class Differentiable:
    """A collective through which a gradient flows, on tensors of its own."""

    kind: str
    group: int = 0
    slot: Slot = field(default_factory=Slot)
    root: int = 0
    fill: Fill = field(default_factory=lambda: Fill(0, 0, 1, 4))


@dataclass(frozen=True)
class Message:
    """A message from one rank's slot into the same slot of another.

    Attributes:
        send: send or isend.
        receive: recv, irecv, any or iany (from any source).
    """

    group: int
    source: int
    target: int
    slot: int = 0
    tag: int = 0
    send: str = "send"
    receive: str = "recv"
    grad: str = "enabled"
    fill: Fill | None = None


@dataclass(frozen=True)
class Batch:
    """Messages that each rank starts in one batch_isend_irecv."""

    group: int
    messages: tuple[Message, ...]
    grad: str = "enabled"


@dataclass(frozen=True)
class Objects:
    """A collective of Python objects."""

    kind: str
    group: int = 0
    root: int = 0
    seed: int = 0


@dataclass(frozen=True)
class Wait:
    """A wait for what an earlier step started.

    Attributes:
        how: wait, timed (with a time-out that is long enough), polled (``is_completed``), brief
            (with time-outs that are too short, until it is done), future, then, twice, drop.
        see: whether nothing else is under way on the tensors, so that their values are known.
    """

    step: int
    how: str = "wait"
    grad: str = "enabled"
    see: bool = True


@dataclass(frozen=True)
class Callback:
    """A sum over a slot by a callback of an asynchronous collective.

    Attributes:
        nested: the callback waits for another callback, of a second collective.
    """

    step: int
    group: int
    slot: int
    fill: Fill
    nested: bool = False


@dataclass(frozen=True)
class NewGroup:
    """A new group of some ranks of the world; ``local`` is made by its members alone."""

    group: int
    ranks: tuple[int, ...]
    local: bool = False


@dataclass(frozen=True)
class Destroy:
    """The end of a group."""

    group: int


@dataclass(frozen=True)
class Restart:
    """The end of all groups, and a new default group."""


@dataclass(frozen=True)
class Late:
    """A rank of the world that does nothing for a moment."""

    rank: int
    seconds: float = 0.05


@dataclass(frozen=True)
class Wrong:
    """A call that every rank of the group has to refuse."""

    kind: str
    group: int = 0


@dataclass(frozen=True)
class Mismatch:
    """Calls that differ on one rank; every rank has to be told, and the group goes on."""

    kind: str
    group: int = 0
    odd: int = 0
    mode: str = "sync"


@dataclass(frozen=True)
class Fail:
    """What befalls one rank of the world; only programs for a job of their own have it.

    Attributes:
        kind: late (beyond the time-out), missing, raises, exits, interrupted, killed, or "starts
            late" (to a default group that is made before the first step).
    """

    kind: str
    rank: int


@dataclass(frozen=True)
class Threads:
    """Steps of several threads, which run at the same time on groups and slots of their own."""

    branches: tuple[tuple[int, tuple[object, ...]], ...]
    """For each thread: the number of its first step, and its steps."""


@dataclass(frozen=True)
class Program:
    """Slots, and steps in their order.

    Attributes:
        groups: the ranks of each group, that of all ranks first.
        ended: groups that are gone at the end.
        lost: slots whose values are unknown at the end, as their operation was not waited for.
    """

    size: int
    slots: tuple[Slot, ...]
    groups: tuple[tuple[int, ...], ...]
    steps: tuple[object, ...]
    alive: tuple[int, ...] = (0,)
    lost: tuple[int, ...] = ()
