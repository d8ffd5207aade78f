"""Name the arguments of mpi4py's calls, and say how many bytes they stand for.

The names and defaults are those of mpi4py's own signatures, so nothing here has to be kept in step
with it. Wrong calls are left to mpi4py to report: missing arguments are left out, and nothing is
refused.
"""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Mapping, Sequence
from typing import Any

from ..core.runtime import MPI

Arguments = Mapping[str, Any]
_SENT = ("sendbuf", "sendobj", "buf", "obj")


# --- names --------------------------------------------------------------------------------


def arguments_of(name: str, args: Sequence[Any], kwargs: Arguments) -> dict[str, Any]:
    """Return the arguments of a call of the communicator's method ``name``, defaults included."""
    names, defaults = _parameters(name)
    return {**defaults, **dict(zip(names, args, strict=False)), **kwargs}


def argument_of(name: str, which: str, args: Sequence[Any], kwargs: Arguments) -> Any:
    """Return one argument of a call of the method ``name`` that was accepted, or its default.

    None if the method has no such argument.
    """
    at, default = _place_of(name, which)
    return args[at] if at < len(args) else kwargs.get(which, default)


def is_accepted(name: str, args: Sequence[Any], kwargs: Arguments) -> bool:
    """Return whether the method ``name`` takes such arguments, whatever their values."""
    # Faster than Signature.bind() by some microseconds; a call may be over in twenty.
    names, defaults = _parameters(name)
    left = names[len(args) :]
    return (
        len(args) <= len(names)
        and all(one in left for one in kwargs)
        and all(one in kwargs or one in defaults for one in left)
    )


def is_send(name: str) -> bool:
    """Return whether the method ``name`` sends one message."""
    return "dest" in _parameters(name)[0]


def is_receive(name: str) -> bool:
    """Return whether the method ``name`` receives one message; a probe does not."""
    names, _ = _parameters(name)
    return "source" in names and ("buf" in names or "recvbuf" in names)


def messages_of(name: str, given: Arguments) -> list[tuple[str, Any, Any, Any]]:
    """Return "send" or "recv", peer, tag and data of each message of a call, ``Sendrecv``'s two."""
    found = []
    if is_send(name):
        tag = given.get("sendtag", given.get("tag"))
        found.append(("send", given.get("dest"), tag, sent_in(given)))
    if is_receive(name):
        tag, buffer = given.get("recvtag", given.get("tag")), given.get("recvbuf", given.get("buf"))
        found.append(("recv", given.get("source"), tag, buffer))
    return found


def sent_in(given: Arguments) -> Any:
    """Return the buffer or object that a call sends, or broadcasts; None if it has none."""
    return next((given[name] for name in _SENT if name in given), None)


def with_status(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any], MPI.Status | None]:
    """Return a call with a status, and that status; None where the method takes none."""
    names, _ = _parameters(name)
    if "status" not in names or not is_accepted(name, args, kwargs):
        return args, kwargs, None
    status = arguments_of(name, args, kwargs)["status"]
    if status is None:
        status = MPI.Status()
    return args[: names.index("status")], {**kwargs, "status": status}, status


@functools.cache
def _parameters(name: str) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Return the parameters' names in their order, and their defaults where they have one."""
    _, *parameters = inspect.signature(getattr(MPI.Intracomm, name)).parameters.values()
    defaults = {one.name: one.default for one in parameters if one.default is not one.empty}
    return tuple(one.name for one in parameters), defaults


@functools.cache
def _place_of(name: str, which: str) -> tuple[int, Any]:
    names, defaults = _parameters(name)
    return names.index(which) if which in names else len(names), defaults.get(which)


# --- bytes --------------------------------------------------------------------------------


def bytes_of(buffer: Any) -> int:
    """Return the bytes of data in a buffer argument of mpi4py, 0 where none is given.

    Args:
        buffer: anything mpi4py accepts as a buffer: an array, a tensor, ``[memory, datatype]``,
            ``[memory, count, datatype]``, ``[memory, counts, displacements, datatype]``, ...
    """
    if buffer is None or buffer is MPI.IN_PLACE or buffer is MPI.BOTTOM:
        return 0
    if not isinstance(buffer, (list, tuple)):
        return _memory_bytes(buffer)
    memory, *rest = buffer
    datatype = next((item for item in rest if isinstance(item, (MPI.Datatype, str))), None)
    counts = rest[0] if rest and rest[0] is not datatype else None
    if isinstance(counts, tuple) and len(counts) == 2 and isinstance(counts[0], Sequence):
        counts = counts[0]  # (counts, displacements)
    if counts is None:
        return _memory_bytes(memory)
    item = _item_bytes(memory, datatype)
    count = whole_number(counts)
    return (int(sum(counts)) if count is None else count) * item


def bytes_of_object(sent: Any) -> int:
    """Return the bytes of a Python object's message; it is pickled once to find out."""
    return len(MPI.pickle.dumps(sent))


def bytes_sent(name: str, sent: Any) -> int | None:
    """Return the bytes of what the method ``name`` sends, None if unknown."""
    try:
        return bytes_of_object(sent) if name.islower() else bytes_of(sent)
    except Exception:  # the call itself will report the error
        return None


def whole_number(value: Any) -> int | None:
    """Return ``value`` if MPI accepts it as a whole number, NumPy's included, else None."""
    try:
        return operator.index(value)
    except TypeError:
        return None


def _item_bytes(memory: Any, datatype: MPI.Datatype | str | None) -> int:
    if isinstance(datatype, str):
        datatype = MPI.Datatype.fromcode(datatype)
    if datatype is not None:
        return datatype.Get_size()
    return getattr(memory, "itemsize", 1)


def _memory_bytes(memory: Any) -> int:
    return 0 if memory is None else MPI.buffer(memory).nbytes
