"""Copies between GPUs and the host on separate streams, and the current GPU of a thread.

Threads of ours begin with GPU 0 as the current one, and CUDA would open a context there on every
rank: they choose the GPU of the work at hand before they call CUDA.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Iterator, Mapping, Sequence

import torch

from .gpus import loaded_library

_NON_BLOCKING = 1  # cudaStreamNonBlocking: it does not wait for the default stream either


def current_gpu(devices: Sequence[torch.device]) -> contextlib.AbstractContextManager[object]:
    """Return a context with the first of ``devices`` as this thread's GPU; none changes nothing."""
    return torch.cuda.device(devices[0]) if devices else contextlib.nullcontext()


def moment(device: torch.device) -> torch.cuda.Event:
    """Return an event for the work that the current stream of ``device`` has been given so far.

    A thread that waits for it sleeps: CUDA's usual events keep a core busy.
    """
    event = torch.cuda.Event(blocking=True)
    event.record(torch.cuda.current_stream(device))
    return event


def wait(moments: Mapping[torch.device, torch.cuda.Event]) -> None:
    """Return when each device has come so far."""
    for device, event in moments.items():
        with torch.cuda.device(device):
            event.synchronize()


def copy(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Copy each pair's second tensor to its first, and return when the values are there.

    After that every stream sees them. The second tensors must be complete beforehand.
    """
    devices = dict.fromkeys(tensor.device for pair in pairs for tensor in pair if tensor.is_cuda)
    with contextlib.ExitStack() as streams:
        for device in devices:
            streams.enter_context(_beside(device))
        for target, source in pairs:
            # The host would conjugate or negate before the values have come to it.
            plain = source.to(target.dtype).resolve_conj().resolve_neg()
            target.copy_(plain, non_blocking=True)


@contextlib.contextmanager
def _beside(device: torch.device) -> Iterator[None]:
    """Run the block on a stream of ours, and wait for its end."""
    with torch.cuda.device(device):
        stream = _own_stream(device.index)
        try:
            with torch.cuda.stream(stream):
                yield
        finally:
            end = torch.cuda.Event(blocking=True)
            end.record(stream)
            end.synchronize()


@functools.cache
def _own_stream(index: int) -> torch.cuda.Stream:
    """Return a stream of GPU ``index`` that nothing else uses.

    PyTorch hands out the same 32 streams in turn, so one of those may be the program's as well.
    """
    runtime = loaded_library(("libcudart.so",))
    if runtime is None:  # it is part of PyTorch's own library
        return torch.cuda.Stream(index)
    handle = ctypes.c_void_p()
    with torch.cuda.device(index):
        status = runtime.cudaStreamCreateWithFlags(ctypes.byref(handle), _NON_BLOCKING)
    if status or handle.value is None:
        raise RuntimeError(f"CUDA gave no stream on GPU {index}: error {status}")
    return torch.cuda.ExternalStream(handle.value, device=index)
