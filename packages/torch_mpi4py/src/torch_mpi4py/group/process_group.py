"""A torch process group whose operations are MPI calls.

Torch calls the methods below; each checks its arguments on the calling rank, makes a plan
(:mod:`torch_mpi4py.group.collectives`) and hands it to the channel of the calling thread. Method
names are torch's: 2.13 and later say ``all_gather_single`` where earlier ones say
``_allgather_base``.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from operator import methodcaller
from time import perf_counter
from types import FrameType
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor, strided
from torch.autograd import profiler
from torch.distributed.distributed_c10d import AllgatherOptions, AllreduceOptions

from ..board.call_site import site_of
from ..core import allocator, collective_counts, crowding, links
from ..core.base_comm import largest_tag
from ..core.buffers import require_reachable
from ..core.call import Call, known_call
from ..core.dtypes import reduction
from ..core.errors import ClosedGroupError, CommunicationError, RevokedError
from ..core.runtime import MPI
from ..exits import ends
from ..faults import comm_reaper, deadlines, deaths
from ..log.events import ANY, log
from ..log.live_groups import live_groups
from ..log.profiling import Record
from ..meeting import message_progress
from . import collectives, group_comms, missing_ranks, point_to_point, progress
from .argument_checks import (
    as_list,
    require_peer,
    require_same_dtype,
    require_size,
    split_evenly,
    split_first_dimension,
)
from .call_options import in_every_form, options_of, without_values
from .channel import Channel
from .coalescing import CoalescingBlock
from .futures import DEPTH_OF_MESSAGES, CallbackQueue, callback_depths, current_depth
from .point_to_point import PointToPointWork, start_receive, start_send
from .refused_methods import RefusedMethods
from .shrinking import shrink_group
from .sparse_all_reduce import sparse_all_reduce
from .store_barrier import meet
from .work import Collective, CollectiveWork, CombinedWork

Started: TypeAlias = dist._Work | None
"""The handle on what was started, or None if its options said to wait for its end, and it has."""

_CLOSE_SECONDS = 10.0
_get_frame = sys._getframe

# Most programs reduce the same few tensors again and again. Caches, by address, number of elements,
# dtype and operation, the preparation for one, which holds for any tensor at that address.
_known_all_reduces: dict[tuple[int, int, torch.dtype, int], tuple[Call, collectives.Plan]] = {}
_MOST_KNOWN = 1000


class MPIProcessGroup(RefusedMethods, dist.ProcessGroup):
    """Process group on one MPI communicator, with every operation of torch.distributed.

    Args:
        comm: a communicator for this group alone, its ranks in the group's order.
        timeout: time allowed for each operation.
        store: the rendezvous store torch hands over, or None.
    """

    backend = "mpi4py"
    """The name by which a program requests this backend."""

    def __init__(
        self, comm: MPI.Intracomm, timeout: timedelta, store: dist.Store | None = None
    ) -> None:
        super().__init__(comm.Get_rank(), comm.Get_size())
        self.comm = comm
        self._rank = comm.Get_rank()
        self._size = comm.Get_size()
        self._store = store
        self._seconds = deadlines.bounded(timeout.total_seconds())
        self._group_name = ""
        self._group_desc = ""
        self._sequence_number = 0
        self._closed = self._ended_by_exit = False
        # By thread: the coalescing block in which it is.
        self._blocks: dict[int, CoalescingBlock] = {}
        self._channels = [Channel(comm, "group", 0, self._seconds)]
        self._by_depth = {0: self._channels[0]}
        self._opening: dict[int, threading.Lock] = {}
        deadlines.watch()
        live_groups.add(self)

    # --- identity -------------------------------------------------------------------------

    def name(self) -> str:
        """Return the backend's name."""
        return MPIProcessGroup.backend

    getBackendName = _get_backend_name = name

    def setGroupName(self, name: str) -> None:
        self._group_name = name
        self._name_channels()

    def getGroupName(self) -> str:
        return self._group_name

    def setGroupDesc(self, description: str) -> None:
        self._group_desc = description
        self._name_channels()

    def _name_channels(self) -> None:
        """Give the group its user's name for it in the event log."""
        name = self._group_desc
        if name in {"", "undefined"}:
            name = f"group {self._group_name}"
        elif name == "default_pg":
            name = "default"
        for channel in self._channels:
            channel.group = log.name_group(channel.comm, name)

    def getGroupDesc(self) -> str:
        return self._group_desc

    group_name = property(getGroupName)
    group_desc = property(getGroupDesc)

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu"), torch.device("cuda")]

    def _get_backend(self, device: torch.device) -> MPIProcessGroup:
        return self

    get_backend = _get_backend  # torch 2.14

    def _backend_id(self, backend_type: dist.ProcessGroup.BackendType) -> int:
        return self._id()

    def _has_hooks(self) -> bool:
        return False

    supports_splitting = False
    supports_coalescing = False
    supports_time_estimate = False

    def get_group_store(self) -> dist.Store:
        """Return the rendezvous store of this group."""
        return self._store

    def _set_sequence_number_for_group(self) -> None:
        self._sequence_number = 0

    def _get_sequence_number_for_group(self) -> int:
        return self._sequence_number

    @property
    def timeout(self) -> timedelta:
        """The time allowed for each operation."""
        return timedelta(seconds=self._seconds)

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the time allowed for each operation from now on."""
        self._seconds = deadlines.bounded(timeout.total_seconds())

    _set_default_timeout = set_timeout

    def _add_ephemeral_timeout(self, timeout: timedelta) -> None:
        """Do nothing, as torch requires of backends whose operations can't be given more time."""

    # --- life -----------------------------------------------------------------------------

    @property
    def failure(self) -> CommunicationError | None:
        """Why the group is unusable, None while it works."""
        for channel in self._channels:
            if channel.failure is not None:
                return channel.failure
        return None

    @property
    def check_collectives(self) -> bool:
        """Whether ranks compare their calls before data moves; set it equally on all ranks."""
        return self._channels[0].checks_calls

    @check_collectives.setter
    def check_collectives(self, enabled: bool) -> None:
        for channel in self._channels:
            channel.checks_calls = enabled

    @property
    def survives_failures(self) -> bool:
        """Whether the death of a rank ends only communication with it.

        False at first: the first rank that notices frees all others, and the group is unusable.
        Where it is True, messages between living ranks go on; a receive from any source raises
        RankFailedError once, and may be waited for again after :meth:`acknowledge_failures`.
        """
        return self._channels[0].survives_failures

    @survives_failures.setter
    def survives_failures(self, survives: bool) -> None:
        self._channels[0].survives_failures = survives

    def failed_ranks(self) -> list[int]:
        """Return the ranks of this group that are known to have died, none without ULFM."""
        return deaths.failed_ranks(self.comm)

    def acknowledge_failures(self) -> list[int]:
        """Let receives from any source continue among living ranks; return the dead ones."""
        failed = self.failed_ranks()
        if failed:
            self.comm.Ack_failed(len(failed))  # not later ones, which have not been reported
            point_to_point.post_again(self._channels[0])
        return failed

    @property
    def is_busy(self) -> bool:
        """Whether a collective is queued or running."""
        return not all(channel.idle for channel in self._channels)

    def _wait_for_pending_works(self) -> None:
        while self.is_busy:  # each operation ends at its deadline at the latest, or is abandoned
            time.sleep(1e-3)

    def abort(self) -> None:
        """Free every rank stuck in this group and make it unusable."""
        for channel in self._channels:
            channel.fail(RevokedError("the group was aborted"))

    def shutdown(self) -> None:
        """Finish what is queued, stop the group's threads and give up its communicators."""
        if self._closed:
            return
        self._closed, self._ended_by_exit = True, ends.has_told()
        stopped = True
        for channel in self._channels:
            for callbacks in (channel.callbacks, *channel.queues_of_messages):
                stopped &= callbacks.close(self._closing_seconds())
        for channel in self._channels:
            stopped &= channel.close(self._closing_seconds())
        if not stopped:
            self.abort()
            for channel in self._channels:
                if not channel.close(_CLOSE_SECONDS):
                    deadlines.leave_mpi_unfinalized()
        log.forget(self._channels[0].group)
        for channel in self._channels:
            collective_counts.close(channel.comm, channel.made)
            ends.tell_closed(channel.comm, channel.made)
            if stopped:
                sound = self.failure is None
                comm_reaper.retire(channel.comm, channel.made if sound else None)
        self._store = None  # a failed group lives on in the traceback of its error
        live_groups.discard(self)
        if not live_groups:
            allocator.return_surplus()

    def _closing_seconds(self) -> float:
        return self._seconds + _CLOSE_SECONDS if self.failure is None else _CLOSE_SECONDS

    def _require_open(self, what: str) -> None:
        if self._ended_by_exit:
            raise ClosedGroupError(
                f"{what}: the program is ending and MPI has been closed; call it before the "
                "program ends, or give your function to atexit after init_process_group"
            )
        if self._closed:
            raise ClosedGroupError(
                f"{what}: this process group was destroyed; use a live one, or call "
                "dist.init_process_group or dist.new_group again"
            )
        failure = self.failure
        if failure is not None:
            raise RevokedError(
                f"{what}: this group is unusable after an earlier failure: {failure}"
            )

    # --- running --------------------------------------------------------------------------

    def _channel(self) -> Channel:
        """Return where calls of this thread go: callbacks have channels of their own."""
        depth = current_depth()
        channel = self._by_depth.get(depth)
        if channel is None:
            # One lock a depth: ranks may come to two depths in different orders.
            with self._opening.setdefault(depth, threading.Lock()):
                channel = self._by_depth.get(depth) or self._open_channel(depth)
        return channel

    def _open_channel(self, depth: int) -> Channel:
        what = "first collective in a callback"
        key = f"callbacks/{depth}"
        everybody = range(self._size)
        seconds = self._seconds
        meeting = meet(self._store, key, self.comm, self._size, seconds, what, everybody)
        apart = f"{collective_counts.identity_of(self.comm)}/{depth}"
        comm = group_comms.made_by_members(self.comm, everybody, apart, seconds, what, meeting)
        channel = Channel(comm, self._group_name or "group", depth, self._seconds)
        channel.group = log.name_group(comm, self._channels[0].group.name)
        channel.checks_calls = self.check_collectives
        self._channels.append(channel)
        self._by_depth[depth] = channel
        return channel

    def _run(
        self,
        call: Call,
        plan: collectives.Plan,
        result: list[Any],
        opts: Any,
        handed_over: int | None = None,
    ) -> Started:
        """Start a collective, and wait for its end if ``opts`` say so.

        Args:
            handed_over: elements this rank hands over, None if ``call`` says so.
        """
        channel = self._channels[0]
        if callback_depths or self._closed or channel.failure or len(self._channels) > 1:
            self._require_open(call.name)
            channel = self._channel()
        block = self._block() if self._blocks else None
        asynchronous = opts.asyncOp or block is not None
        self._sequence_number += 1
        # A handle is of torch's class, which is slow to make; a caller that waits needs none.
        work = CollectiveWork() if asynchronous else Collective()
        work.on_callers_thread = not asynchronous
        if links.entered:
            work.link = links.entered[-1]
            call = call.over(work.link.numbers)
        work.channel = channel
        work.call = call
        work.plan = plan
        work.tensors = result
        work.comm = channel.comm
        work.what = call.name
        work.seconds = self._seconds
        work.options = opts
        if asynchronous:  # its caller may change them while it waits in the queue
            work.take_options()
        if profiler._is_profiler_enabled:
            work.record = Record(call.name, result)
        work.started = started = perf_counter()
        if log.enabled:
            kind, dtype, shape, size = call.places or log.describe(call)
            if handed_over is not None and call.dtype is not None:
                size = handed_over * call.dtype.itemsize
            # One more frame is the group's: a frame that is not inspected need not be made.
            try:
                site = site_of(_get_frame(2))
            except ValueError:  # a thread of C++ has called the group
                site = ""
            place = channel.group.place
            work.event = log.begin(
                kind, place, not asynchronous, site, dtype, shape, ANY, call.root, ANY, size,
                started,
            )  # fmt: skip
        if crowding.others_take_the_core and not asynchronous:
            largest = call.largest_part_bytes(result, self._size)
            work.in_background = progress.takes_over(started, largest)
        # As may_run_on_callers_thread(), without another call of a function.
        if (
            asynchronous
            or work.in_background
            or not (channel.frees_all or channel.sums_up(work))
            or not channel.run(work)
        ):
            channel.queue(work)
        if not asynchronous:
            if work.error is not None or not work.done:
                work.wait()
            if crowding.others_take_the_core:
                crowding.collective_ended = perf_counter()
            return None
        if block is not None:
            block.works.append(work)
        return work

    def _start_coalescing(self, device_type: torch.device) -> None:
        self._open_block(_get_frame(1))

    def _open_block(self, starts: FrameType) -> None:
        self._blocks[threading.get_ident()] = CoalescingBlock(starts)

    def _end_coalescing(self, device_type: torch.device) -> dist._Work:
        block = self._blocks.pop(threading.get_ident(), None)
        return self._combine([] if block is None else block.works)

    def _block(self) -> CoalescingBlock | None:
        """Return the coalescing block in which this thread is, None outside."""
        thread = threading.get_ident()
        block = self._blocks.get(thread)
        if block is not None and block.is_over():
            # An error has ended it, and torch does not say so. What it has issued ends by itself.
            del self._blocks[thread]
            return None
        return block

    def _combine(self, works: list[dist._Work | None]) -> Started:
        if None in works:  # their caller has waited for each
            return None
        callbacks = self._channel().callbacks
        if any(isinstance(work, PointToPointWork) for work in works):  # late, they hold back others
            callbacks = CallbackQueue("messages", DEPTH_OF_MESSAGES - 1)
        return CombinedWork(works, callbacks)

    def shrink(self, seconds: float | None = None) -> MPIProcessGroup:
        """Return a new group of the members that live, as :func:`.shrink.shrink_group` does."""
        return shrink_group(self, seconds)

    def split_group(
        self,
        ranks: Sequence[int],
        timeout: timedelta | None = None,
        opts: Any = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: Sequence[torch.device] | None = None,
    ) -> MPIProcessGroup | None:
        """Return a new group of those of this group's ``ranks``, None on the others."""
        part = self._part(ranks, timeout, group_name)
        return None if part is None else self._descendant(*part, group_desc or "undefined")

    def _part(
        self, ranks: Sequence[int], timeout: timedelta | None, group_name: str | None
    ) -> tuple[MPI.Intracomm, timedelta, dist.Store, str] | None:
        self._require_open("split_group")
        members = sorted(ranks)
        for rank in members:
            require_peer(rank, self._size, "split_group:")
        if not members or len(set(members)) < len(members):
            raise ValueError(f"split_group: give at least one rank, and none twice, not {ranks}")
        if self._rank not in members:
            return None
        name = group_name or f"{self._group_name}:split:{'_'.join(map(str, members))}"
        store = dist.PrefixStore(f"{name}/", self._store)
        allowed = self.timeout if timeout is None else timeout
        seconds = allowed.total_seconds()
        comm = group_comms.part_of(self.comm, members, name, store, seconds, "split_group")
        return comm, allowed, store, name

    splitGroup = split_group  # what torch's C++ code calls it

    def merge_remote_group(
        self,
        store: dist.Store,
        size: int,
        timeout: timedelta = dist.default_pg_timeout,
        group_name: str | None = None,
        group_desc: str | None = None,
    ) -> MPIProcessGroup:
        """Return a new group of the ``size`` ranks that come to ``store``, in order of arrival.

        They may belong to different groups of this MPI job.
        """
        self._require_open("merge_remote_group")
        name = group_name or f"{self._group_name}:merge"
        comm = group_comms.merged(store, size, timeout.total_seconds())
        description = group_desc or f"{self._group_desc}:merge"
        return self._descendant(comm, timeout, store, name, description)

    @staticmethod
    def _descendant(
        comm: MPI.Intracomm,
        timeout: timedelta,
        store: dist.Store,
        name: str,
        description: str,
        make: Callable[..., MPIProcessGroup] | None = None,
    ) -> MPIProcessGroup:
        group = (make or MPIProcessGroup)(comm, timeout, store)
        group.setGroupName(name)
        group.setGroupDesc(description)
        return group

    # --- collectives ----------------------------------------------------------------------

    def barrier(self, opts: Any = None, timeout: timedelta | None = None) -> Started:
        opts = options_of(dist.BarrierOptions, "barrier", opts, timeout)
        return self._run(known_call("barrier"), collectives.barrier(), [], opts)

    @in_every_form(dist.BroadcastOptions, tensors="tensor")
    def broadcast(self, tensors: Any, opts: dist.BroadcastOptions) -> Started:
        root = opts.rootRank
        require_peer(root, self._size, "broadcast: root")
        works = []
        for each in as_list(tensors, "broadcast"):
            call = known_call("broadcast", (each.numel(),), each.dtype, root=root)
            plan = collectives.broadcast(each, root, self._rank)
            handed_over = each.numel() if self._rank == root else 0
            works.append(self._run(call, plan, [each], opts, handed_over))
        return works[0] if len(works) == 1 else self._combine(works)

    def allreduce(
        self, tensors: Any = None, opts: Any = None, *given: Any, **named: Any
    ) -> Started:
        # As torch's own function calls it. Reading a tensor's attributes takes time, so it is done
        # here and not in functions.
        if (
            type(opts) is AllreduceOptions
            and type(tensors) is list
            and len(tensors) == 1
            and not (given or named)
            and type(tensor := tensors[0]) is Tensor
            and tensor.layout is strided
            and tensor.is_cpu
            and tensor.is_contiguous()
            and not (tensor.is_neg() or tensor.is_conj())
        ):
            op = opts.reduceOp
            try:
                address = tensor.data_ptr()
            except RuntimeError:  # one of torch.func's, which has no memory
                return self._allreduce(tensors, opts)
            signature = address, tensor.numel(), tensor.dtype, hash(op)
            known = _known_all_reduces.get(signature)
            if known is None:
                require_reachable(tensor, "tensor", "all_reduce", (strided,))
                known = _dense_all_reduce(tensor, op)
                if isinstance(known[1], methodcaller):  # it has copied nothing
                    if len(_known_all_reduces) >= _MOST_KNOWN:
                        _known_all_reduces.clear()
                    _known_all_reduces[signature] = known
            return self._run(known[0], known[1], [tensor], opts)
        return self._allreduce(tensors, opts, *given, **named)

    @in_every_form(AllreduceOptions, tensors="tensor")
    def _allreduce(self, tensors: Any, opts: AllreduceOptions) -> Started:
        return self.allreduce_coalesced(tensors, opts)

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Started:
        opts = options_of(dist.AllreduceCoalescedOptions, "allreduce_coalesced", opts)
        works = []
        for each in as_list(tensors, "all_reduce", sparse=True):
            if each.layout is torch.sparse_coo:
                call, plan, handed_over = sparse_all_reduce(each, opts.reduceOp)
                works.append(self._run(call, plan, [each], opts, handed_over))
            else:
                works.append(self._run(*_dense_all_reduce(each, opts.reduceOp), [each], opts))
        return works[0] if len(works) == 1 else self._combine(works)

    @in_every_form(dist.ReduceOptions, tensors="tensor")
    def reduce(self, tensors: Any, opts: dist.ReduceOptions) -> Started:
        root, op = opts.rootRank, opts.reduceOp
        (tensor,) = as_list(tensors, "reduce", single=True)
        require_peer(root, self._size, "reduce: root")
        how = reduction(tensor.dtype, op)
        call = known_call("reduce", (tensor.numel(),), tensor.dtype, how.code, root)
        plan = collectives.reduce(tensor, op, root, self._rank)
        return self._run(call, plan, [tensor], opts)

    @in_every_form(AllgatherOptions, output_tensors="", input_tensors="input_tensor")
    def allgather(self, output_tensors: Any, input_tensors: Any, opts: AllgatherOptions) -> Started:
        (source,) = as_list(input_tensors, "all_gather", single=True)
        outputs = as_list(_flat(output_tensors), "all_gather")
        require_size(len(outputs), self._size, "all_gather: number of output tensors")
        require_same_dtype([source, *outputs], "all_gather")
        require_size(
            outputs[self._rank].numel(),
            source.numel(),
            "all_gather: elements of this rank's output",
        )
        call = known_call("all_gather", tuple(o.numel() for o in outputs), source.dtype)
        plan = collectives.all_gather(outputs, source, self._rank)
        return self._run(call, plan, outputs, opts, source.numel())

    @in_every_form(AllgatherOptions, output="", input="")
    def all_gather_single(
        self, output: torch.Tensor, source: torch.Tensor, opts: AllgatherOptions
    ) -> Started:
        output, source = as_list([output, source], "all_gather_single")
        require_same_dtype([source, output], "all_gather_single")
        require_size(
            output.numel(), source.numel() * self._size, "all_gather_single: elements of output"
        )
        call = known_call("all_gather", (source.numel(),) * self._size, source.dtype)
        parts = split_evenly(output, self._size, "all_gather_single")
        plan = collectives.all_gather(parts, source, self._rank)
        return self._run(call, plan, [output], opts, source.numel())

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], opts: Any = None
    ) -> Started:
        pairs = zip(outputs, inputs, strict=True)
        return self._combine([self.all_gather_single(o, i, opts) for o, i in pairs])

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def allgather_coalesced(
        self,
        output_lists: Sequence[Sequence[torch.Tensor]],
        input_list: Sequence[torch.Tensor],
        opts: Any = None,
    ) -> Started:
        # Torch gives one list per rank; all_gather takes one list per source.
        per_source = [list(parts) for parts in zip(*output_lists, strict=True)]
        pairs = zip(per_source, input_list, strict=True)
        return self._combine([self.allgather([o], [i], opts) for o, i in pairs])

    @in_every_form(dist.GatherOptions, output_tensors="", input_tensors="input_tensor")
    def gather(self, output_tensors: Any, input_tensors: Any, opts: dist.GatherOptions) -> Started:
        root = opts.rootRank
        (source,) = as_list(input_tensors, "gather", single=True)
        require_peer(root, self._size, "gather: root")
        targets = self._one_per_rank(output_tensors, source, root, "gather", "output")
        call = known_call("gather", (source.numel(),), source.dtype, root=root)
        plan = collectives.gather(targets, source, root, self._rank)
        return self._run(call, plan, targets, opts)

    @in_every_form(dist.GatherOptions, output="", input="")
    def gather_single(
        self, output: torch.Tensor, source: torch.Tensor, opts: dist.GatherOptions
    ) -> Started:
        root, what = opts.rootRank, "gather_single"
        output, source = as_list([output, source], what)
        require_peer(root, self._size, f"{what}: root")
        parts = []
        if self._rank == root:  # the output of the others is not used
            require_same_dtype([source, output], what)
            wanted = source.numel() * self._size
            require_size(output.numel(), wanted, f"{what}: elements of output")
            parts = split_evenly(output, self._size, what)
        call = known_call("gather", (source.numel(),), source.dtype, root=root)
        plan = collectives.gather(parts, source, root, self._rank)
        return self._run(call, plan, [output], opts)

    gather_into_tensor = gather_single

    @in_every_form(dist.ScatterOptions, output_tensors="output_tensor", input_tensors="")
    def scatter(
        self, output_tensors: Any, input_tensors: Any, opts: dist.ScatterOptions
    ) -> Started:
        root = opts.rootRank
        (output,) = as_list(output_tensors, "scatter", single=True)
        require_peer(root, self._size, "scatter: root")
        given = self._one_per_rank(input_tensors, output, root, "scatter", "input")
        call = known_call("scatter", (output.numel(),), output.dtype, root=root)
        plan = collectives.scatter(output, given, root, self._rank)
        handed_over = sum(source.numel() for source in given)
        return self._run(call, plan, [output], opts, handed_over)

    def _one_per_rank(
        self, tensors: Any, own: torch.Tensor, root: int, what: str, name: str
    ) -> list[torch.Tensor]:
        """Return the root's ``tensors``, each like its ``own``; none on the other ranks."""
        if self._rank != root:
            return []
        listed = as_list(_flat(tensors), what)
        require_size(len(listed), self._size, f"{what}: number of {name} tensors")
        require_same_dtype([own, *listed], what)
        for each in listed:
            require_size(each.numel(), own.numel(), f"{what}: elements of an {name}")
        return listed

    @in_every_form(dist.ReduceScatterOptions, output_tensors="output", input_tensors="input")
    def reduce_scatter(
        self, output_tensors: Any, input_tensors: Any, opts: dist.ReduceScatterOptions
    ) -> Started:
        (output,) = as_list(output_tensors, "reduce_scatter", single=True)
        sources = as_list(_flat(input_tensors), "reduce_scatter")
        require_size(len(sources), self._size, "reduce_scatter: number of input tensors")
        require_same_dtype([output, *sources], "reduce_scatter")
        require_size(
            output.numel(), sources[self._rank].numel(), "reduce_scatter: elements of output"
        )
        return self._reduce_scatter(output, sources, opts)

    def _reduce_scatter(
        self, output: torch.Tensor, sources: list[torch.Tensor], opts: dist.ReduceScatterOptions
    ) -> Started:
        op = opts.reduceOp
        how = reduction(output.dtype, op)
        counts = tuple(source.numel() for source in sources)
        call = known_call("reduce_scatter", counts, output.dtype, how.code)
        plan = collectives.reduce_scatter(output, sources, op, self._rank)
        return self._run(call, plan, [output], opts)

    @in_every_form(dist.ReduceScatterOptions, outputTensor="", inputTensor="")
    def reduce_scatter_single(
        self, output: torch.Tensor, source: torch.Tensor, opts: dist.ReduceScatterOptions
    ) -> Started:
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
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], opts: Any = None
    ) -> Started:
        pairs = zip(outputs, inputs, strict=True)
        return self._combine([self.reduce_scatter_single(o, i, opts) for o, i in pairs])

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    @in_every_form(dist.AllToAllOptions, output_tensors="", input_tensors="")
    def alltoall(
        self, output_tensors: Any, input_tensors: Any, opts: dist.AllToAllOptions
    ) -> Started:
        outputs = as_list(output_tensors, "all_to_all")
        sources = as_list(input_tensors, "all_to_all")
        require_size(len(outputs), self._size, "all_to_all: number of output tensors")
        require_size(len(sources), self._size, "all_to_all: number of input tensors")
        require_same_dtype([*outputs, *sources], "all_to_all")
        call = known_call("all_to_all", (), sources[0].dtype)
        elements = sum(source.numel() for source in sources)
        return self._run(call, collectives.all_to_all(outputs, sources), outputs, opts, elements)

    @without_values
    def all_to_all_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_split_sizes: Sequence[int] | None = None,
        input_split_sizes: Sequence[int] | None = None,
        opts: Any = None,
        *,
        timeout: timedelta | None = None,
    ) -> Started:
        opts = options_of(dist.AllToAllOptions, "all_to_all_single", opts, timeout)
        output, source = as_list([output, input], "all_to_all_single")
        require_same_dtype([output, source], "all_to_all_single")
        outputs = split_first_dimension(output, output_split_sizes, self._size, "output")
        sources = split_first_dimension(source, input_split_sizes, self._size, "input")
        call = known_call("all_to_all_single", (), source.dtype)
        plan = collectives.all_to_all(outputs, sources)
        return self._run(call, plan, [output], opts, source.numel())

    alltoall_base = all_to_all_single

    def monitored_barrier(
        self, timeout: timedelta | None = None, wait_all_ranks: bool = False
    ) -> None:
        """Return when all ranks have arrived; otherwise all others raise and name the missing.

        Args:
            timeout: time allowed, the group's own if None; zero asks which ranks are there now.
            wait_all_ranks: name all that are missing; otherwise the first, and a death at once.

        Raises:
            DeadlineError: if a rank does not come in time. The group stays usable.
            RankFailedError: if a rank has died.
        """
        self._require_open("monitored_barrier")
        # Zero is a timeout here, as with gloo; a negative one is torch's "unset".
        seconds = -1 if timeout is None else timeout.total_seconds()
        seconds = self._seconds if seconds < 0 else seconds
        place = self._channels[0].group.place
        missing_ranks.wait(self.comm, self._store, place, seconds, wait_all_ranks)

    # --- point to point -------------------------------------------------------------------

    @without_values
    def send(self, tensors: Any, dstRank: int, tag: int = 0) -> PointToPointWork:
        self._require_open("send")
        (tensor,) = as_list(tensors, "send", single=True)
        require_peer(dstRank, self._size, "send: destination", other_than=self._rank)
        work = self._start(start_send, tensor, dstRank, tag)
        message_progress.follow(work)
        return work

    @without_values
    def recv(self, tensors: Any, srcRank: int, tag: int = 0) -> PointToPointWork:
        self._require_open("recv")
        (tensor,) = as_list(tensors, "recv", single=True)
        require_peer(srcRank, self._size, "recv: source", other_than=self._rank)
        work = self._start(start_receive, tensor, srcRank, tag)
        message_progress.follow(work)
        return work

    @without_values
    def recv_anysource(self, tensors: Any, tag: int = 0) -> PointToPointWork:
        self._require_open("recv")
        (tensor,) = as_list(tensors, "recv", single=True)
        work = self._start(start_receive, tensor, MPI.ANY_SOURCE, tag)
        message_progress.follow(work)
        return work

    def _start(self, start: Any, tensor: torch.Tensor, peer: int, tag: int) -> PointToPointWork:
        if not 0 <= tag <= largest_tag():
            raise ValueError(f"tag must be a whole number from 0 to {largest_tag()}, not {tag}")
        work = start(tensor, peer, tag, self._channels[0], self._seconds)
        if profiler._is_profiler_enabled:
            work.record = Record("recv" if work.receives else "send", work.tensors)
        block = self._block() if self._blocks else None
        if block is not None:
            block.works.append(work)
        return work


def _dense_all_reduce(tensor: Tensor, op: dist.ReduceOp) -> tuple[Call, collectives.Plan]:
    how = reduction(tensor.dtype, op)
    call = known_call("all_reduce", (tensor.numel(),), tensor.dtype, how.code)
    return call, collectives.all_reduce(tensor, op, how)


def _flat(tensors: Any) -> Any:
    """Return the inner list where torch gives a list in a list."""
    listed = isinstance(tensors, (list, tuple)) and len(tensors) > 0
    return tensors[0] if listed and isinstance(tensors[0], (list, tuple)) else tensors
