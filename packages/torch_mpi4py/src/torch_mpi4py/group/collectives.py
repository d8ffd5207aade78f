"""Each collective as one plan: a function of the communicator that performs it.

A plan is made on the calling thread, which checks arguments and announces what has to be copied.
It is run later, perhaps on the channel's thread: after the operations before it, whose results it
may read. All tensors that a plan hands to MPI are direct: contiguous memory that it may read and
write (:mod:`torch_mpi4py.core.buffers`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from operator import methodcaller
from typing import Any

import numpy
import torch
from torch.distributed import ReduceOp

from ..core.buffers import MAX_COUNT, Staging, host_memory, is_direct, message, raw
from ..core.dtypes import UNSIGNED, Reduction, element_type, premultiplier, reduction
from ..core.errors import MismatchError
from ..core.runtime import MPI
from ..faults.deadlines import confirm_collective

Plan = Callable[[MPI.Intracomm], None]

MOST_UNEQUAL = 2 * MAX_COUNT - 1
"""Elements in parts of unequal sizes, whose places are C ints."""


def barrier() -> Plan:
    """Return a plan that returns when every rank has started it."""
    return MPI.Intracomm.Barrier


def broadcast(tensor: torch.Tensor, root: int, rank: int) -> Plan:
    """Copy the root's tensor to all ranks."""
    if is_direct(tensor):
        data = message(tensor)
        return lambda comm: comm.Bcast(data, root)
    staging = Staging(in_place=True)
    host = staging.read(tensor) if rank == root else staging.write(tensor)

    return staging.plan(lambda comm: staging.call(comm.Bcast, message(host), root))


def all_reduce(tensor: torch.Tensor, op: ReduceOp, how: Reduction) -> Plan:
    """Combine all ranks' tensors element by element; every rank gets the result in place.

    Args:
        how: ``reduction(tensor.dtype, op)``, which the caller has worked out.
    """
    if how.untouched and is_direct(tensor) and tensor.numel() <= MAX_COUNT:
        return methodcaller("Allreduce", MPI.IN_PLACE, message(tensor, how.wire_type), how.op)
    staging = Staging(in_place=how.untouched)
    host = staging.update(tensor, how.wire_dtype)
    factor = _factor(how, op, staging)

    def run(comm: MPI.Intracomm) -> None:
        scale_before(host, factor)
        for piece in pieces(host):
            data = message(piece, how.wire_type)
            staging.call(comm.Allreduce, MPI.IN_PLACE, data, how.op)
        scale_after(host, how, comm.Get_size())

    return staging.plan(run)


def reduce(tensor: torch.Tensor, op: ReduceOp, root: int, rank: int) -> Plan:
    """Combine all ranks' tensors; the root gets the result in place, the others keep theirs."""
    how = reduction(tensor.dtype, op)
    staging = Staging(in_place=how.untouched)
    if rank == root:
        host = staging.update(tensor, how.wire_dtype)
    elif how.premultiply:
        host = staging.read_copy(tensor, how.wire_dtype)
    else:
        host = staging.read(tensor, how.wire_dtype)
    factor = _factor(how, op, staging)

    def run(comm: MPI.Intracomm) -> None:
        scale_before(host, factor)
        for piece in pieces(host):
            data = message(piece, how.wire_type)
            if rank == root:
                staging.call(comm.Reduce, MPI.IN_PLACE, data, how.op, root)
            else:
                staging.call(comm.Reduce, data, None, how.op, root)
        if rank == root:
            scale_after(host, how, comm.Get_size())

    return staging.plan(run)


def all_gather(outputs: list[torch.Tensor], source: torch.Tensor, rank: int) -> Plan:
    """Copy every rank's ``source`` to ``outputs[rank]`` on all ranks.

    ``outputs`` are either separate tensors, whose sizes may differ from rank to rank, or
    consecutive parts of one flat tensor, which is then filled without a copy.
    """
    counts = [output.numel() for output in outputs]
    if len(set(counts)) > 1:
        require_displacements(counts)
    staging = Staging()
    flat, own = _one_block(outputs), outputs[rank]
    host_in: torch.Tensor | None = None
    in_place = flat is not None and is_direct(source) and source.numel() == own.numel()
    if not (in_place and source.data_ptr() == own.data_ptr()):
        host_in = staging.read_copy(source) if _shares(source, outputs) else staging.read(source)
    collected = staging.collect(outputs) if flat is None else flat
    element = element_type(source.dtype)

    def run(comm: MPI.Intracomm) -> None:
        send = MPI.IN_PLACE if host_in is None else message(host_in)
        if len(set(counts)) > 1:
            gather_to_all(comm, send, by_rank(collected, counts, element))
        else:
            count, kind = message(collected[: counts[0]], element)[1:]  # one rank's part
            memory = MPI.buffer.fromaddress(collected.data_ptr(), collected.nbytes)
            comm.Allgather(send, [memory, count, kind])

    return staging.plan(run)


def gather_to_all(comm: MPI.Intracomm, send: Any, receive: Any) -> None:
    """Do ``comm.Allgatherv``, and raise also if it does not report a death."""
    comm.Allgatherv(send, receive)
    confirm_collective(comm, "all_gather")


def gather(outputs: list[torch.Tensor], source: torch.Tensor, root: int, rank: int) -> Plan:
    """Copy every rank's ``source`` to the root's ``outputs``, one tensor per rank."""
    staging = Staging()
    host_in = staging.read(source)
    collected = staging.collect(outputs) if rank == root else None

    def run(comm: MPI.Intracomm) -> None:
        send = message(host_in)
        if collected is None:
            comm.Gather(send, None, root)
        else:
            memory = MPI.buffer.fromaddress(collected.data_ptr(), collected.nbytes)
            comm.Gather(send, [memory, send[1], send[2]], root)

    return staging.plan(run)


def scatter(output: torch.Tensor, sources: list[torch.Tensor], root: int, rank: int) -> Plan:
    """Copy the root's ``sources[r]`` to ``output`` on rank r."""
    staging = Staging()
    host_out = staging.write(output)
    joined = staging.join(sources) if rank == root else None

    def run(comm: MPI.Intracomm) -> None:
        receive = message(host_out)
        if joined is None:
            comm.Scatter(None, receive, root)
        else:
            memory = MPI.buffer.fromaddress(joined.data_ptr(), joined.nbytes)
            comm.Scatter([memory, receive[1], receive[2]], receive, root)

    return staging.plan(run)


def reduce_scatter(
    output: torch.Tensor, sources: list[torch.Tensor], op: ReduceOp, rank: int
) -> Plan:
    """Combine all ranks' ``sources`` element by element; rank r gets part r of the result."""
    how = reduction(output.dtype, op)
    staging = Staging()
    flat = _one_block(sources)
    untouched = flat is not None and how.wire_dtype is flat.dtype and not how.premultiply
    whole = flat if untouched else staging.join(sources, how.wire_dtype)
    factor = _factor(how, op, staging)
    shares = untouched and _shares(output, sources)
    host_out = staging.write(output, how.wire_dtype)
    result = host_memory(host_out.shape, host_out.dtype) if shares else host_out
    counts = [source.numel() for source in sources]

    def run(comm: MPI.Intracomm) -> None:
        scale_before(whole, factor)
        _reduce_scatter(comm, whole, result, counts, how, rank)
        scale_after(result, how, comm.Get_size())
        if shares:
            host_out.copy_(result)

    return staging.plan(run)


def _reduce_scatter(
    comm: MPI.Intracomm,
    whole: torch.Tensor,
    result: torch.Tensor,
    counts: list[int],
    how: Reduction,
    rank: int,
) -> None:
    if whole.numel() > MAX_COUNT:
        parts = whole.split(counts)
        for root, part in enumerate(parts):
            target = result if root == rank else None
            for index, piece in enumerate(pieces(part)):
                into = None if target is None else list(pieces(target.view(-1)))[index]
                receive = None if into is None else message(into, how.wire_type)
                comm.Reduce(message(piece, how.wire_type), receive, how.op, root)
        return
    send = message(whole.view(-1), how.wire_type)
    receive = message(result, how.wire_type)
    if len(set(counts)) == 1:
        send[1] = counts[0]  # mpi4py counts the elements for one rank
        comm.Reduce_scatter_block(send, receive, how.op)
    else:
        comm.Reduce_scatter(send, receive, counts, how.op)


def all_to_all(outputs: list[torch.Tensor], sources: list[torch.Tensor]) -> Plan:
    """Send ``sources[r]`` to rank r and receive ``outputs[r]`` from it, for all r.

    Raises (when run):
        MismatchError: on every rank, if a rank sends data that its receiver does not expect.
    """
    send_counts = [source.numel() for source in sources]
    receive_counts = [output.numel() for output in outputs]
    require_displacements(send_counts)
    require_displacements(receive_counts)
    staging = Staging()
    flat_in, flat_out = _one_block(sources), _one_block(outputs)
    overlap = any(_shares(source, outputs) for source in sources)
    joined = staging.join(sources) if flat_in is None or overlap else flat_in
    collected = staging.collect(outputs) if flat_out is None else flat_out
    element = element_type(outputs[0].dtype)

    def run(comm: MPI.Intracomm) -> None:
        _agree_on_counts(comm, send_counts, receive_counts)
        comm.Alltoallv(
            by_rank(joined, send_counts, element), by_rank(collected, receive_counts, element)
        )

    return staging.plan(run)


def _agree_on_counts(comm: MPI.Intracomm, sent: list[int], expected: list[int]) -> None:
    announced = numpy.empty(len(sent), numpy.int64)
    comm.Alltoall(numpy.array(sent, numpy.int64), announced)
    wrong = [
        f"rank {peer} sends {count} elements to rank {comm.Get_rank()}, which expects {want}"
        for peer, (count, want) in enumerate(zip(announced.tolist(), expected, strict=True))
        if count != want
    ]
    any_wrong = numpy.array([len(wrong)], numpy.int64)
    comm.Allreduce(MPI.IN_PLACE, any_wrong, MPI.MAX)
    if any_wrong[0]:
        complaints = [text for texts in comm.allgather(wrong) for text in texts]
        raise MismatchError(
            "all_to_all: the sizes do not fit:\n  "
            + "\n  ".join(complaints)
            + "\nNo data was moved and the group is still usable."
        )


def _factor(how: Reduction, op: ReduceOp, staging: Staging) -> float | torch.Tensor | None:
    """Return the factor of a PREMUL_SUM, on the host from the operation's turn on."""
    if not how.premultiply:
        return None
    factor = premultiplier(op)
    return staging.read(factor) if isinstance(factor, torch.Tensor) else factor


def scale_before(host: torch.Tensor, factor: float | torch.Tensor | None) -> None:
    """Multiply by the factor of a PREMUL_SUM, None for other operations."""
    if factor is not None:
        host.mul_(factor)


def scale_after(host: torch.Tensor, how: Reduction, size: int) -> None:
    """Divide by the number of ranks for an average; whole numbers round towards zero."""
    if not how.average:
        return
    if host.is_floating_point() or host.is_complex():
        host.div_(size)
    elif host.dtype in UNSIGNED:  # torch cannot divide them
        values = host.numpy()
        numpy.floor_divide(values, size, out=values)
    else:
        host.div_(size, rounding_mode="trunc")


def pieces(host: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Split into parts whose element count fits MPI's int, one part nearly always."""
    if host.numel() <= MAX_COUNT:
        return (host,)
    return host.view(-1).split(MAX_COUNT)


def require_displacements(counts: list[int]) -> None:
    """Raise ValueError unless an MPI int can say where each of the parts begins."""
    if sum(counts) > MOST_UNEQUAL:
        raise ValueError(
            f"unequal parts of more than {MOST_UNEQUAL} elements in all are not supported; "
            "use parts of equal size, or split the call"
        )


def by_rank(tensor: torch.Tensor, counts: list[int], element: MPI.Datatype) -> list:
    """Return mpi4py's ``[memory, counts, displacements, datatype]`` for consecutive parts."""
    displacements = [0, *itertools.accumulate(counts[:-1])]
    memory = MPI.buffer.fromaddress(tensor.data_ptr(), tensor.nbytes)
    return [memory, counts, displacements, element]


def _one_block(parts: list[torch.Tensor]) -> torch.Tensor | None:
    """Return one flat direct tensor over all ``parts`` if they lie one behind the other."""
    if not parts or not all(map(is_direct, parts)):
        return None
    first = raw(parts[0])
    address = first.data_ptr()
    storage = first.untyped_storage().data_ptr()
    for part in parts:
        if part.numel() == 0:
            if len(parts) > 1:
                return None
            continue
        if part.data_ptr() != address or part.untyped_storage().data_ptr() != storage:
            return None
        address += part.nbytes
    total = sum(part.numel() for part in parts)
    return first.as_strided((total,), (1,), first.storage_offset())


def _shares(tensor: torch.Tensor, others: list[torch.Tensor]) -> bool:
    """Return whether ``tensor`` lies in the memory of any of ``others``."""
    storage = tensor.untyped_storage().data_ptr()
    return any(other.untyped_storage().data_ptr() == storage for other in others)
