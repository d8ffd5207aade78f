"""The steps of ``torch.nn.DataParallel``, taken apart so that each part can be timed.

The parts are replicate, scatter, parallel_apply, gather, and the same way back for the gradients.
One process drives every device by a thread. The devices are *virtual*: CPU threads with a replica
each, or GPUs.

Source: the functions of the same names in ``torch.nn.parallel`` (PyTorch 2.13). Difference: there
autograd takes the gradients back, with a thread for each GPU; here :func:`apply_backward` does,
because autograd has only the caller's thread for the whole CPU.
"""

from __future__ import annotations

import contextlib
import copy
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn


class VirtualDevice:
    """A device of this process, and the one thread that drives it.

    On the CPU, this thread also computes, with one compute thread of PyTorch, and everything that
    is copied to the device is a real copy. PyTorch keeps a separate number of compute threads for
    each Python thread, so the caller's does not change.

    Attributes:
        index: its number; device 0 of a list is the master.
        place: where its tensors live, ``cpu`` or a GPU.
    """

    def __init__(self, index: int, place: str | torch.device = "cpu") -> None:
        self.index = index
        self.place = torch.device(place)
        self._thread = ThreadPoolExecutor(1, f"device {index}", initializer=self._settle)

    def __repr__(self) -> str:
        return f"<VirtualDevice {self.index} on {self.place}>"

    def submit(self, function: Callable, *args: Any) -> Future:
        """Call ``function(*args)`` on the device's thread; return its future at once."""
        return self._thread.submit(function, *args)

    def synchronize(self) -> None:
        """Wait until the device has finished its work; a CPU always has."""
        if self.place.type == "cuda":
            torch.cuda.synchronize(self.place)

    def close(self) -> None:
        """End the thread. A device without references is closed too."""
        self._thread.shutdown(wait=True)

    def _settle(self) -> None:
        torch.set_num_threads(1)
        if self.place.type == "cuda":
            torch.cuda.set_device(self.place)


def virtual_devices(n: int) -> list[VirtualDevice]:
    """Return ``n`` devices: dealt out over the GPUs where there are any, else all on the CPU.

    Raises:
        ValueError: if ``n`` is less than 1.
    """
    if n < 1:
        raise ValueError(f"the number of devices must be at least 1, not {n}")
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return [VirtualDevice(i, f"cuda:{i % gpus}" if gpus else "cpu") for i in range(n)]


# ---- what happened ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Copy:
    """A tensor that went from device ``source`` to device ``dest``: its kind and its bytes."""

    what: str
    source: int
    dest: int
    bytes: int


@dataclass(frozen=True)
class Span:
    """Device ``device`` was busy with ``label`` from ``start`` to ``end``, in seconds.

    Work for all devices starts when it is assigned. So a device is idle if it has nothing to do,
    not if it waits for a core because there are fewer cores than virtual devices.
    """

    device: int
    label: str
    start: float
    end: float


@dataclass
class Log:
    """A record of a step: every copy between devices, and when each was busy.

    Times are those of ``time.perf_counter``.
    """

    copies: list[Copy] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)

    def bytes_out(self, device: int) -> int:
        """Bytes that left ``device``."""
        return sum(copy.bytes for copy in self.copies if copy.source == device)

    def bytes_in(self, device: int) -> int:
        """Bytes that reached ``device``."""
        return sum(copy.bytes for copy in self.copies if copy.dest == device)

    def bytes_of(self, what: str) -> int:
        """Bytes of all copies of one kind, e.g. ``"parameters"``."""
        return sum(copy.bytes for copy in self.copies if copy.what == what)

    def seconds(self, label: str) -> float:
        """From the first start to the last end of the spans with this label."""
        spans = [span for span in self.spans if span.label == label]
        return max(s.end for s in spans) - min(s.start for s in spans) if spans else 0.0

    @contextlib.contextmanager
    def span(self, device: VirtualDevice, label: str, start: float | None = None) -> Iterator[None]:
        """Record the time of a ``with`` block, or from ``start`` on, as a span of ``device``."""
        start = time.perf_counter() if start is None else start
        try:
            yield
        finally:
            device.synchronize()
            self.spans.append(Span(device.index, label, start, time.perf_counter()))

    def move(
        self, what: str, tensor: torch.Tensor, source: VirtualDevice, dest: VirtualDevice
    ) -> torch.Tensor:
        """Return a copy of ``tensor`` on ``dest``, outside the graph, and record it.

        A tensor is not copied if it stays on its device.
        """
        if source is dest:
            return tensor.detach()
        self.copies.append(Copy(what, source.index, dest.index, tensor.nbytes))
        return tensor.detach().to(dest.place, copy=True)


# ---- the steps --------------------------------------------------------------------------------


def replicate(
    model: nn.Module, devices: Sequence[VirtualDevice], log: Log | None = None
) -> list[nn.Module]:
    """Return a replica of ``model`` for each device; that of the master is ``model`` itself."""
    log = Log() if log is None else log
    master, *others = devices
    with log.span(master, "replicate"):
        replicas = [model]
        for device in others:
            replicas.append(copy.deepcopy(model).to(device.place))
            for what, tensors in (("parameters", model.parameters()), ("buffers", model.buffers())):
                for tensor in tensors:
                    log.copies.append(Copy(what, master.index, device.index, tensor.nbytes))
    return replicas


def scatter(
    batch: torch.Tensor,
    devices: Sequence[VirtualDevice],
    log: Log | None = None,
    *,
    label: str = "scatter",
    what: str = "inputs",
) -> list[torch.Tensor]:
    """Deal out ``batch`` along its first dimension, from the master, as ``torch.chunk`` does.

    Every shard has ceil(N / p) samples, except the last, which has the rest. So with a small batch
    there may be *fewer shards than devices*, as in ``torch.nn.DataParallel``.

    Raises:
        ValueError: if the batch is empty.
    """
    if batch.dim() == 0 or len(batch) == 0:
        raise ValueError(
            f"a batch of shape {tuple(batch.shape)} cannot be split: it has no samples"
        )
    log = Log() if log is None else log
    with log.span(devices[0], label):
        shards = batch.chunk(len(devices))
        return [
            log.move(what, shard, devices[0], device)
            for shard, device in zip(shards, devices, strict=False)
        ]


def parallel_apply(
    replicas: Sequence[nn.Module],
    shards: Sequence[torch.Tensor],
    devices: Sequence[VirtualDevice],
    log: Log | None = None,
) -> list[torch.Tensor]:
    """Return every replica's output for its shard; all threads work at the same time.

    Where there are fewer shards than devices, the last devices have nothing to do.

    Raises:
        Exception: the first that a replica raised, with a note that says which.
        TypeError: if a model returns anything but a tensor.
    """
    log = Log() if log is None else log
    with_gradients = torch.is_grad_enabled()  # belongs to a thread, so it has to be handed on
    start = time.perf_counter()

    def forward(replica: nn.Module, shard: torch.Tensor, device: VirtualDevice) -> torch.Tensor:
        with torch.set_grad_enabled(with_gradients), log.span(device, "forward", start):
            return replica(shard)

    outputs = _on_all(forward, zip(replicas, shards, devices, strict=False))
    for output in outputs:
        if not isinstance(output, torch.Tensor):
            raise TypeError(f"the model has to return one tensor, not {type(output).__name__}")
    return outputs


def gather(
    outputs: Sequence[torch.Tensor], devices: Sequence[VirtualDevice], log: Log | None = None
) -> torch.Tensor:
    """Return all outputs in one tensor on the master, in order, outside the replicas' graphs."""
    log = Log() if log is None else log
    with log.span(devices[0], "gather"):
        return torch.cat(
            [
                log.move("outputs", output, device, devices[0])
                for output, device in zip(outputs, devices, strict=False)
            ]
        )


def apply_backward(
    outputs: Sequence[torch.Tensor],
    gradients: Sequence[torch.Tensor],
    devices: Sequence[VirtualDevice],
    log: Log | None = None,
) -> None:
    """Go back through every replica from the gradient of its output; all at the same time."""
    log = Log() if log is None else log
    start = time.perf_counter()

    def backward(output: torch.Tensor, gradient: torch.Tensor, device: VirtualDevice) -> None:
        with log.span(device, "backward", start):
            output.backward(gradient)

    _on_all(backward, zip(outputs, gradients, devices, strict=False))


def reduce_gradients(
    replicas: Sequence[nn.Module], devices: Sequence[VirtualDevice], log: Log | None = None
) -> None:
    """Add the replicas' gradients, in order of the devices, to those of the master's model.

    Parameters without a gradient, such as frozen and unused ones, send nothing.

    Raises:
        TypeError: for a sparse gradient.
    """
    log = Log() if log is None else log
    master, *others = devices
    with log.span(master, "reduce"), torch.no_grad():
        for replica, device in zip(replicas[1:], others, strict=True):
            for own, other in zip(replicas[0].parameters(), replica.parameters(), strict=True):
                if other.grad is None:
                    continue
                if other.grad.is_sparse:
                    raise TypeError("sparse gradients cannot be added up here; use dense ones")
                arrived = log.move("gradients", other.grad, device, master)
                own.grad = arrived if own.grad is None else own.grad.add_(arrived)


def data_parallel_step(
    model: nn.Module,
    loss_function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    optimizer: torch.optim.Optimizer,
    inputs: torch.Tensor,
    targets: torch.Tensor,
    devices: Sequence[VirtualDevice],
    log: Log | None = None,
) -> torch.Tensor:
    """Do one training step on all devices; the result is that of one device on the whole batch.

    Args:
        model: on the master, ``devices[0]``; returns one tensor (N, ...).
        loss_function: from (outputs, targets) of the whole batch to a scalar.
        optimizer: over the master's parameters. Its gradients are set to zero first.
        inputs: (N, ...) on the master.
        targets: (N, ...) on the master; they stay there.
        devices: the master first.
        log: gets the copies and the spans.

    Returns:
        The loss, outside the graph.
    """
    log = Log() if log is None else log
    master = devices[0]
    optimizer.zero_grad()
    replicas = replicate(model, devices, log)
    shards = scatter(inputs, devices, log)
    outputs = parallel_apply(replicas, shards, devices, log)
    gathered = gather(outputs, devices, log).requires_grad_()
    with log.span(master, "loss"):
        loss = loss_function(gathered, targets)
        loss.backward()
    gradients = scatter(gathered.grad, devices, log, label="scatter back", what="output gradients")
    apply_backward(outputs, gradients, devices, log)
    reduce_gradients(replicas, devices, log)
    with log.span(master, "update"):
        optimizer.step()
    return loss.detach()


def _on_all(function: Callable, arguments: Iterable[tuple]) -> list:
    """Call ``function(..., device)`` on every device's thread, and wait for all."""
    calls = [(device, device.submit(function, *rest, device)) for *rest, device in arguments]
    wait([future for _, future in calls])  # none may still compute when one has failed
    results = []
    for device, future in calls:
        error = future.exception()
        if error is not None:
            error.add_note(f"on device {device.index}, in {function.__name__}")
            raise error
        results.append(future.result())
    return results
