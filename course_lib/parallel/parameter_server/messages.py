"""What server and workers say to each other, and several layers in one message.

Every message to the server begins with a :class:`Header` of fixed size, so that one receive
from any source fits whatever comes next; what follows a header travels as a
:class:`FlatMessage` from a sender that is then known.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, field

import torch
from torch_mpi4py.machine import clock_identity

__all__ = [
    "BYE",
    "FAILED",
    "GRADIENT",
    "HELLO",
    "NAMES",
    "READY",
    "REFUSED",
    "STOP",
    "TAG_BODY",
    "TAG_HEADER",
    "TAG_REPLY",
    "FlatMessage",
    "Header",
    "checksum_of",
    "differing",
    "layout_of",
]

HELLO, GRADIENT, BYE, READY, STOP, REFUSED, FAILED = range(1, 8)
NAMES = {
    HELLO: "hello",
    GRADIENT: "gradient",
    BYE: "bye",
    READY: "ready",
    STOP: "stop",
    REFUSED: "refused",
    FAILED: "failed",
}
TAG_HEADER, TAG_REPLY, TAG_BODY = 7001, 7002, 7003
_ALIGNMENT = 64  # bytes, so that every layer begins where its own dtype may


@dataclass
class Header:
    """The fixed-size beginning of a message; whole numbers and seconds are exact in float64.

    Attributes:
        kind: one of HELLO, GRADIENT, BYE from a worker, READY, STOP, REFUSED, FAILED from the
            server.
        version: of the parameters that follow, or that the gradient was computed at.
        step: which batch of the worker this is about, from 0.
        samples: in that batch.
        sent: when the sender sent it, in seconds of the sender's own clock.
        asked: when the worker had sent its hello, same clock (in a gradient's header).
        got: when the worker had received the parameters, same clock (in a gradient's header).
        layout: checksum of the shapes and dtypes of the sender's parameters (in a hello, and in
            the refusal that answers it).
        buffers: checksum of the sender's buffers, likewise.
        clock: which clock the sender reads, see :mod:`.clocks`.
    """

    kind: int
    version: int = 0
    step: int = 0
    samples: int = 0
    sent: float = 0.0
    asked: float = 0.0
    got: float = 0.0
    layout: int = 0
    buffers: int = 0
    clock: int = field(default_factory=clock_identity)

    FIELDS = 10

    def encode(self) -> torch.Tensor:
        """Return the header as float64 (10,)."""
        return torch.tensor(astuple(self), dtype=torch.float64)

    @classmethod
    def decode(cls, numbers: torch.Tensor) -> Header:
        """Return the header that float64 (10,) holds."""
        kind, version, step, samples, sent, asked, got, *checksums = numbers.tolist()
        whole = map(int, (kind, version, step, samples))
        return cls(*whole, sent, asked, got, *map(int, checksums))


class FlatMessage:
    """Tensors that lie one behind the other in one buffer of bytes, so that one send moves all.

    Behind them lies the checksum of their layout, so that bytes which were kept tell later
    whether they fit a model.

    Args:
        tensors: gives shapes, dtypes and the device; nothing is copied yet.

    Attributes:
        buffer: uint8 (bytes,), what is sent and received.
        views: the tensors in the buffer, with shapes and dtypes of the originals.
    """

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        tensors = list(tensors)
        offsets, end = [], 0
        for tensor in tensors:
            offsets.append(end)
            used = tensor.numel() * tensor.element_size()
            end += -(-used // _ALIGNMENT) * _ALIGNMENT
        device = tensors[0].device if tensors else torch.device("cpu")
        checksum = torch.tensor([layout_of(tensors)]).view(torch.uint8).to(device)
        self.buffer = torch.cat([torch.zeros(end, dtype=torch.uint8, device=device), checksum])
        self._checksum = self.buffer[end:]
        self.views = [
            self.buffer[start : start + tensor.numel() * tensor.element_size()]
            .view(tensor.dtype)
            .view(tensor.shape)
            for start, tensor in zip(offsets, tensors, strict=True)
        ]

    def fits(self, buffer: torch.Tensor) -> bool:
        """Return whether ``buffer`` is one of a message of the same shapes and dtypes."""
        if buffer.dtype != torch.uint8 or buffer.shape != self.buffer.shape:
            return False
        theirs = buffer[-len(self._checksum) :].to(self._checksum.device)
        return torch.equal(theirs, self._checksum)

    @torch.no_grad()
    def pack(self, tensors: Iterable[torch.Tensor]) -> torch.Tensor:
        """Copy ``tensors`` into the buffer and return it."""
        for view, tensor in zip(self.views, tensors, strict=True):
            view.copy_(tensor)
        return self.buffer

    @torch.no_grad()
    def unpack(self, tensors: Iterable[torch.Tensor]) -> None:
        """Copy the buffer's contents out into ``tensors``."""
        for view, tensor in zip(self.views, tensors, strict=True):
            tensor.copy_(view)


def differing(other: Header, layout: int) -> str:
    """Return in what a model differs from that of ``other``'s sender, if both are refused."""
    if other.layout != layout:
        return "other shapes or dtypes than the server's; build the same model on all ranks"
    return (
        "other buffers than the server's, and no message carries them; build the same model on "
        "all ranks, with the same seed if its buffers are random, or call sync_initial_weights"
    )


def checksum_of(checksums: Mapping[str, int]) -> int:
    """Return one checksum for several, with their names."""
    return zlib.crc32(repr(sorted(checksums.items())).encode())


def layout_of(tensors: Iterable[torch.Tensor]) -> int:
    """Return a checksum of shapes and dtypes: equal layouts fit each other's messages."""
    text = ";".join(f"{tuple(tensor.shape)} {tensor.dtype}" for tensor in tensors)
    return zlib.crc32(text.encode())
