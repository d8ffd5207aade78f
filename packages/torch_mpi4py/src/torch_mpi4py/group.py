"""A torch process group whose operations are MPI calls.

Torch calls the methods below; each checks its arguments on the calling rank, makes a plan
(:mod:`torch_mpi4py.collectives`) and hands it to the group's channel. Method names are
torch's: 2.13 and later say ``all_gather_single`` where earlier ones say ``_allgather_base``.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from . import collectives
from .argument_checks import (
    as_list,
    require_peer,
    require_same_dtype,
    require_size,
    split_evenly,
    split_first_dimension,
)
from .call import Call
from .dtypes import reduction
from .group_base import GroupBase, live_groups
from .point_to_point import PointToPointWork, start_receive, start_send
from .runtime import MPI

__all__ = ["MPIProcessGroup", "live_groups"]


class MPIProcessGroup(GroupBase):
    """Process group on one MPI communicator, with every operation of torch.distributed."""

    def shrink(self, seconds: float | None = None) -> MPIProcessGroup:
        """Return a new group of the members that live, as :func:`.shrink.shrink_group` does."""
        from .shrinking import shrink_group

        return shrink_group(self, seconds)

    # --- collectives ----------------------------------------------------------------------

    def barrier(self, opts: Any = None) -> dist._Work:
        self._require_open("barrier")
        return self._run(Call("barrier"), collectives.barrier(), [], opts)

    def broadcast(self, tensors: Any, opts: Any = None, root: int | None = None) -> dist._Work:
        self._require_open("broadcast")
        if root is None:
            root = opts if isinstance(opts, int) else opts.rootRank
        require_peer(root, self._size, "broadcast: root")
        tensors = as_list(tensors, "broadcast")
        works = []
        for tensor in tensors:
            call = Call("broadcast", (tensor.numel(),), tensor.dtype, root=root)
            plan = collectives.broadcast(tensor, root, self._rank)
            handed_over = tensor.numel() if self._rank == root else 0
            works.append(self._run(call, plan, [tensor], opts, handed_over))
        return works[0] if len(works) == 1 else self._combine(works)

    def allreduce(self, tensors: Any, opts: Any = None) -> dist._Work:
        self._require_open("all_reduce")
        op = _reduce_op(opts)
        tensors = as_list(tensors, "all_reduce")
        if len(tensors) > 1:
            return self.allreduce_coalesced(tensors, opts)
        tensor = tensors[0]
        how = reduction(tensor.dtype, op)
        call = Call("all_reduce", (tensor.numel(),), tensor.dtype, how.code)
        return self._run(call, collectives.all_reduce(tensor, op, how), tensors, opts)

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> dist._Work:
        self._require_open("all_reduce")
        op = _reduce_op(opts)
        works = []
        for tensor in as_list(tensors, "all_reduce"):
            how = reduction(tensor.dtype, op)
            call = Call("all_reduce", (tensor.numel(),), tensor.dtype, how.code)
            works.append(self._run(call, collectives.all_reduce(tensor, op, how), [tensor], opts))
        return self._combine(works)

    def reduce(self, tensors: Any, opts: Any = None, root: int | None = None) -> dist._Work:
        self._require_open("reduce")
        (tensor,) = as_list(tensors, "reduce", single=True)
        root = opts.rootRank if root is None else root
        require_peer(root, self._size, "reduce: root")
        op = _reduce_op(opts)
        how = reduction(tensor.dtype, op)
        call = Call("reduce", (tensor.numel(),), tensor.dtype, how.code, root)
        plan = collectives.reduce(tensor, op, root, self._rank)
        return self._run(call, plan, [tensor], opts)

    def allgather(self, outputs: Any, sources: Any, opts: Any = None) -> dist._Work:
        self._require_open("all_gather")
        (source,) = as_list(sources, "all_gather", single=True)
        outputs = outputs[0] if outputs and isinstance(outputs[0], (list, tuple)) else outputs
        outputs = as_list(outputs, "all_gather")
        require_size(len(outputs), self._size, "all_gather: number of output tensors")
        require_same_dtype([source, *outputs], "all_gather")
        require_size(
            outputs[self._rank].numel(),
            source.numel(),
            "all_gather: elements of this rank's output",
        )
        call = Call("all_gather", tuple(o.numel() for o in outputs), source.dtype)
        plan = collectives.all_gather(outputs, source, self._rank)
        return self._run(call, plan, outputs, opts, source.numel())

    def all_gather_single(
        self, output: torch.Tensor, source: torch.Tensor, opts: Any = None
    ) -> dist._Work:
        self._require_open("all_gather_single")
        output, source = as_list([output, source], "all_gather_single")
        require_same_dtype([source, output], "all_gather_single")
        require_size(
            output.numel(), source.numel() * self._size, "all_gather_single: elements of output"
        )
        call = Call("all_gather", (source.numel(),) * self._size, source.dtype)
        parts = split_evenly(output, self._size, "all_gather_single")
        plan = collectives.all_gather(parts, source, self._rank)
        return self._run(call, plan, [output], opts, source.numel())

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(
        self, outputs: list[torch.Tensor], sources: list[torch.Tensor], opts: Any = None
    ) -> dist._Work:
        pairs = zip(outputs, sources, strict=True)
        return self._combine([self.all_gather_single(o, s, opts) for o, s in pairs])

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def allgather_coalesced(
        self, outputs: list[list[torch.Tensor]], sources: list[torch.Tensor], opts: Any = None
    ) -> dist._Work:
        # Torch gives one list per rank; all_gather takes one list per source.
        per_source = [list(parts) for parts in zip(*outputs, strict=True)]
        pairs = zip(per_source, sources, strict=True)
        return self._combine([self.allgather([o], [s], opts) for o, s in pairs])

    def gather(
        self, outputs: Any, sources: Any, opts: Any = None, root: int | None = None
    ) -> dist._Work:
        self._require_open("gather")
        (source,) = as_list(sources, "gather", single=True)
        root = opts.rootRank if root is None else root
        require_peer(root, self._size, "gather: root")
        targets: list[torch.Tensor] = []
        if self._rank == root:
            outputs = outputs[0] if outputs and isinstance(outputs[0], (list, tuple)) else outputs
            targets = as_list(outputs, "gather")
            require_size(len(targets), self._size, "gather: number of output tensors")
            require_same_dtype([source, *targets], "gather")
            for target in targets:
                require_size(target.numel(), source.numel(), "gather: elements of an output")
        call = Call("gather", (source.numel(),), source.dtype, root=root)
        plan = collectives.gather(targets, source, root, self._rank, self._size)
        return self._run(call, plan, targets, opts)

    def scatter(
        self, outputs: Any, sources: Any, opts: Any = None, root: int | None = None
    ) -> dist._Work:
        self._require_open("scatter")
        (output,) = as_list(outputs, "scatter", single=True)
        root = opts.rootRank if root is None else root
        require_peer(root, self._size, "scatter: root")
        given: list[torch.Tensor] = []
        if self._rank == root:
            sources = sources[0] if sources and isinstance(sources[0], (list, tuple)) else sources
            given = as_list(sources, "scatter")
            require_size(len(given), self._size, "scatter: number of input tensors")
            require_same_dtype([output, *given], "scatter")
            for source in given:
                require_size(source.numel(), output.numel(), "scatter: elements of an input")
        call = Call("scatter", (output.numel(),), output.dtype, root=root)
        plan = collectives.scatter(output, given, root, self._rank)
        handed_over = sum(source.numel() for source in given)
        return self._run(call, plan, [output], opts, handed_over)

    def reduce_scatter(self, outputs: Any, sources: Any, opts: Any = None) -> dist._Work:
        self._require_open("reduce_scatter")
        (output,) = as_list(outputs, "reduce_scatter", single=True)
        sources = sources[0] if sources and isinstance(sources[0], (list, tuple)) else sources
        sources = as_list(sources, "reduce_scatter")
        require_size(len(sources), self._size, "reduce_scatter: number of input tensors")
        require_same_dtype([output, *sources], "reduce_scatter")
        require_size(
            output.numel(), sources[self._rank].numel(), "reduce_scatter: elements of output"
        )
        return self._reduce_scatter(output, sources, opts)

    def _reduce_scatter(
        self, output: torch.Tensor, sources: list[torch.Tensor], opts: Any
    ) -> dist._Work:
        op = _reduce_op(opts)
        how = reduction(output.dtype, op)
        counts = tuple(source.numel() for source in sources)
        call = Call("reduce_scatter", counts, output.dtype, how.code)
        plan = collectives.reduce_scatter(output, sources, op, self._rank)
        return self._run(call, plan, [output], opts)

    def reduce_scatter_single(
        self, output: torch.Tensor, source: torch.Tensor, opts: Any = None
    ) -> dist._Work:
        self._require_open("reduce_scatter_single")
        output, source = as_list([output, source], "reduce_scatter_single")
        require_same_dtype([output, source], "reduce_scatter_single")
        require_size(
            source.numel(), output.numel() * self._size, "reduce_scatter_single: elements of input"
        )
        return self._reduce_scatter(
            output, split_evenly(source, self._size, "reduce_scatter_single"), opts
        )

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(
        self, outputs: list[torch.Tensor], sources: list[torch.Tensor], opts: Any = None
    ) -> dist._Work:
        pairs = zip(outputs, sources, strict=True)
        return self._combine([self.reduce_scatter_single(o, s, opts) for o, s in pairs])

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def alltoall(self, outputs: Any, sources: Any, opts: Any = None) -> dist._Work:
        self._require_open("all_to_all")
        outputs, sources = as_list(outputs, "all_to_all"), as_list(sources, "all_to_all")
        require_size(len(outputs), self._size, "all_to_all: number of output tensors")
        require_size(len(sources), self._size, "all_to_all: number of input tensors")
        require_same_dtype([*outputs, *sources], "all_to_all")
        call = Call("all_to_all", (), sources[0].dtype)
        elements = sum(source.numel() for source in sources)
        return self._run(call, collectives.all_to_all(outputs, sources), outputs, opts, elements)

    def all_to_all_single(
        self,
        output: torch.Tensor,
        source: torch.Tensor,
        output_splits: list[int] | None = None,
        input_splits: list[int] | None = None,
        opts: Any = None,
    ) -> dist._Work:
        self._require_open("all_to_all_single")
        output, source = as_list([output, source], "all_to_all_single")
        require_same_dtype([output, source], "all_to_all_single")
        outputs = split_first_dimension(output, output_splits, self._size, "output")
        sources = split_first_dimension(source, input_splits, self._size, "input")
        call = Call("all_to_all_single", (), source.dtype)
        plan = collectives.all_to_all(outputs, sources)
        return self._run(call, plan, [output], opts, source.numel())

    alltoall_base = all_to_all_single

    # --- point to point -------------------------------------------------------------------

    def send(self, tensors: Any, dest: int, tag: int = 0) -> PointToPointWork:
        self._require_open("send")
        (tensor,) = as_list(tensors, "send", single=True)
        require_peer(dest, self._size, "send: destination", other_than=self._rank)
        return self._start(start_send, tensor, dest, tag)

    def recv(self, tensors: Any, source: int, tag: int = 0) -> PointToPointWork:
        self._require_open("recv")
        (tensor,) = as_list(tensors, "recv", single=True)
        require_peer(source, self._size, "recv: source", other_than=self._rank)
        return self._start(start_receive, tensor, source, tag)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> PointToPointWork:
        self._require_open("recv")
        (tensor,) = as_list(tensors, "recv", single=True)
        return self._start(start_receive, tensor, MPI.ANY_SOURCE, tag)

    def _start(self, start: Any, tensor: torch.Tensor, peer: int, tag: int) -> PointToPointWork:
        if tag < 0:
            raise ValueError(f"tag must be a whole number of at least 0, not {tag}")
        channel, callbacks = self._channels[0], self._callbacks[0]
        work = start(tensor, peer, tag, channel, callbacks, self._seconds)
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work


def _reduce_op(opts: Any) -> dist.ReduceOp:
    if opts is None:
        return dist.ReduceOp.SUM
    return getattr(opts, "reduceOp", opts)
