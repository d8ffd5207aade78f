"""Averages gradients in buckets, each of which leaves as soon as backward has filled it.

Backward makes gradients from the last layer to the first, so the first bucket holds the last
parameters; while it travels, backward works on the next. This is what DistributedDataParallel
does (Li et al. 2020, "PyTorch Distributed", section 3.2), in Python.

Ranks must call collectives in the same order, or they wait for each other indefinitely. So buckets
leave in a fixed order, never in the order in which they happen to be complete; parameters that a
rank did not use leave in ``finish``, as zeros. Beside its gradients, a bucket carries how many
ranks have one for each parameter, so that ranks agree on that without another message.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Literal

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.hooks import RemovableHandle

from course_lib.parallel.agreement import agree, rank_and_size
from course_lib.parallel.flat_tensors import FlatGradients, NamedParameters, require_dense
from course_lib.parallel.replica import layout_of, require_equal_layouts, unwrap

__all__ = ["Bucket", "BucketedGradientSync"]

MEBIBYTE = 2**20
FIRST_BUCKET_BYTES = MEBIBYTE  # at most, so that something leaves early; DDP's choice, too


class BucketedGradientSync:
    """Replaces gradients by their mean (or sum) over the ranks, bucket by bucket.

    Make it once, on all ranks together, after the model is on its device and frozen where it
    will be. Then in every step, after ``zero_grad`` and the forward pass::

        with sync:
            loss.backward()
        optimizer.step()

    or ``loss.backward()`` and ``sync.finish()``. To accumulate gradients, run all backward
    passes but the last inside ``with sync.no_sync():``. Results are those of ``sync_gradients``: to
    the bit on up to two ranks; on more, sums may round differently, since an all-reduce may choose
    its order by the message's size.
    Frozen parameters are left alone and tied ones averaged once. A parameter without a gradient
    on some ranks counts as zeros there and gets the mean everywhere; without one on all ranks
    it keeps none.

    Args:
        model: the same architecture on every rank.
        group: process group, the default one if None.
        bucket_bytes: a bucket is closed before it would exceed this many bytes of gradients; a
            larger parameter has a bucket of its own. The first is closed at 1 MiB, if that is
            less. The same on every rank.
        overlap: start a bucket during backward, as soon as it and those before it are
            complete, or start all in ``finish``.
        reduction: "mean" or "sum" over the ranks.

    Attributes:
        buckets: the buckets in the order in which they leave.

    Raises:
        ValueError: on every rank, if models or settings differ between ranks or make no sense;
            on this rank, if it is not in the group.
    """

    def __init__(
        self,
        model: nn.Module,
        group: dist.ProcessGroup | None = None,
        bucket_bytes: int = 25 * MEBIBYTE,
        overlap: bool = True,
        reduction: Literal["mean", "sum"] = "mean",
    ) -> None:
        self._model = unwrap(model)
        self._group = group
        _, self._size = rank_and_size(group)
        self._divisor = self._size if reduction == "mean" else 1
        named = [(n, p) for n, p in self._model.named_parameters() if p.requires_grad]

        def settings() -> tuple:
            if bucket_bytes < 1:
                raise ValueError(f"bucket_bytes must be at least 1, not {bucket_bytes}")
            if reduction not in ("mean", "sum"):
                raise ValueError(f"reduction must be 'mean' or 'sum', not {reduction!r}")
            return layout_of(dict(named)), (bucket_bytes, overlap, reduction)

        layouts, chosen = zip(*agree(settings, group), strict=True)
        require_equal_layouts(list(layouts))
        if len(set(chosen)) > 1:
            raise ValueError(f"bucket_bytes, overlap, reduction differ between ranks: {chosen}")
        self._trainable = [id(parameter) for _, parameter in named]
        self.buckets = [Bucket(part, self._size) for part in _divide(named, bucket_bytes)]
        self._reached: set[int] = set()
        self._started = 0
        self._enabled = True
        self._lock = threading.Lock()  # backward uses a thread for each kind of device
        self._hooks: list[RemovableHandle] = []
        if overlap:
            self._add_hooks()

    def _add_hooks(self) -> None:
        for bucket in self.buckets:
            for parameter in bucket.parameters:

                def reached(parameter: nn.Parameter, bucket: Bucket = bucket) -> None:
                    self._reach(parameter, bucket)

                self._hooks.append(parameter.register_post_accumulate_grad_hook(reached))

    def _reach(self, parameter: nn.Parameter, bucket: Bucket) -> None:
        """Note that backward has made this gradient; start the buckets that are due."""
        if not self._enabled:
            return
        if id(parameter) in self._reached:
            raise RuntimeError(
                "a second backward pass before finish(): some buckets have already been sent "
                "without its gradients. Call finish() after each pass, or run all passes but the "
                "last inside `with sync.no_sync():`"
            )
        with self._lock:
            self._reached.add(id(parameter))
            bucket.missing -= 1
            while self._started < len(self.buckets) and not self.buckets[self._started].missing:
                self._start_next()

    def _start_next(self) -> None:
        self.buckets[self._started].start(self._group)
        self._started += 1

    def finish(self) -> None:
        """Start what has not left yet, wait for all buckets, and replace the gradients.

        Call it on every rank once per step, after the last backward pass.

        Raises:
            TypeError: on every rank, if a gradient is sparse on any.
            RuntimeError: if parameters were frozen, unfrozen or replaced since this was made.
        """
        try:
            self._require_same_parameters()
            while self._started < len(self.buckets):
                self._start_next()
            self._wait()
        except BaseException:
            self.give_up()
            raise
        for bucket in self.buckets:
            bucket.replace_gradients(self._divisor)
        self._begin_step()

    def _wait(self) -> None:
        for bucket in self.buckets:
            if bucket.work is not None:
                bucket.work.wait()
        for bucket in self.buckets:
            bucket.require_dense()

    def _require_same_parameters(self) -> None:
        now = [id(p) for p in self._model.parameters() if p.requires_grad]
        if now != self._trainable:
            raise RuntimeError(
                "parameters have been frozen, unfrozen or replaced since the buckets were made; "
                "remove() this BucketedGradientSync, and make a new one, on all ranks"
            )

    def _begin_step(self) -> None:
        self._started = 0
        self._reached.clear()
        for bucket in self.buckets:
            bucket.begin_step()

    def __enter__(self) -> BucketedGradientSync:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.finish()
        else:
            self.give_up()

    def give_up(self) -> None:
        """Forget this step, for instance because backward failed; the next begins afresh."""
        for bucket in self.buckets[: self._started]:
            bucket.take_new_memory()
        self._begin_step()

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Let gradients of the passes inside stay on this rank, for a later pass to send."""
        before, self._enabled = self._enabled, False
        try:
            yield
        finally:
            self._enabled = before

    def remove(self) -> None:
        """Take the hooks off the model; this object is of no use afterwards."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()


class Bucket:
    """Some parameters of one dtype and device, whose gradients travel together.

    Args:
        named: names and parameters, in the order in which backward should reach them.
        size: number of ranks.

    Attributes:
        names, parameters: what is in it.
        nbytes: bytes of their gradients.
        missing: how many of them backward has still to reach.
        work: the handle on the all-reduce, None while it has not begun.
    """

    def __init__(self, named: NamedParameters, size: int) -> None:
        self.names = [name for name, _ in named]
        self.parameters = [parameter for _, parameter in named]
        self.nbytes = sum(parameter.nbytes for parameter in self.parameters)
        self._size = size
        self.begin_step()
        self.take_new_memory()

    def begin_step(self) -> None:
        """Expect all gradients again."""
        self.missing = len(self.parameters)
        self.work: dist.Work | None = None

    def take_new_memory(self) -> None:
        """Leave the old memory to an all-reduce that may still use it."""
        self._flat = FlatGradients(self.parameters, self._size)

    @torch.no_grad()
    def start(self, group: dist.ProcessGroup | None) -> None:
        """Copy the gradients, zeros for missing ones, and start their sum over the ranks."""
        self._flat.write()
        self.work = dist.all_reduce(self._flat.flat, group=group, async_op=True)

    def require_dense(self) -> None:
        """Raise TypeError if any rank has a sparse gradient in this bucket."""
        self._counts, _ = self._flat.counts_and_numbers()
        require_dense(self.names, self._counts, self._size)

    @torch.no_grad()
    def replace_gradients(self, divisor: int) -> None:
        """Put the sums, divided, into the gradients of all parameters that any rank used."""
        self._flat.replace_gradients(self._counts, divisor)


def _divide(named: NamedParameters, bucket_bytes: int) -> list[NamedParameters]:
    """Return parameters from last to first in parts of one dtype and device.

    A part leaves when its last parameter is reached, so parts are in the order of those.
    """
    open_parts: dict[tuple, list[int]] = {}
    closed: list[list[int]] = []
    backwards = named[::-1]
    for index, (_, parameter) in enumerate(backwards):
        kind = (parameter.dtype, parameter.device)
        held = open_parts.setdefault(kind, [])
        nbytes = sum(backwards[other][1].nbytes for other in held)
        limit = bucket_bytes if closed else min(bucket_bytes, FIRST_BUCKET_BYTES)
        if held and nbytes + parameter.nbytes > limit:
            closed.append(held)
            held = open_parts[kind] = []
        held.append(index)
    parts = sorted([*closed, *open_parts.values()], key=lambda part: part[-1])
    return [[backwards[index] for index in part] for part in parts]
