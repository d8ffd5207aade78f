"""What a process group is, apart from what it can do.

Its name, its communicator and channels, how it ends, and how a collective's plan is handed to
the channel of the calling thread. The operations are in :mod:`torch_mpi4py.group`.
"""

from __future__ import annotations

import threading
from datetime import timedelta
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist

from . import collectives, comm_reaper, deadlines, link_emulation, point_to_point
from .call import Call
from .channel import Channel
from .errors import ClosedGroupError, CommunicationError, RevokedError
from .events import begin_collective, log
from .futures import CallbackQueue, current_depth
from .runtime import MPI
from .store_barrier import meet
from .work import CollectiveWork, CombinedWork, future_of_works

__all__ = ["GroupBase", "live_groups"]

_CLOSE_SECONDS = 10.0

live_groups: set[GroupBase] = set()
"""The groups of this process that were not destroyed."""


class GroupBase(dist.ProcessGroup):
    """A process group without its operations: identity, life, and how a plan is run.

    Args:
        comm: a communicator for this group alone, its ranks in the group's order.
        timeout: time allowed for each operation.
        store: the rendezvous store torch hands over, or None.
    """

    def __init__(
        self, comm: MPI.Intracomm, timeout: timedelta, store: dist.Store | None = None
    ) -> None:
        super().__init__(comm.Get_rank(), comm.Get_size())
        self.comm = comm
        self._rank = comm.Get_rank()
        self._size = comm.Get_size()
        self._store = store
        self._seconds = timeout.total_seconds()
        self._group_name = ""
        self._group_desc = ""
        self._sequence_number = 0
        self._closed = False
        self._coalesced: list[dist._Work] | None = None
        self._channels: list[Channel] = [Channel(comm, "group", 0)]
        self._callbacks: list[CallbackQueue] = [CallbackQueue("group", 0)]
        self._deeper = threading.Lock()
        deadlines.watch()
        live_groups.add(self)

    # --- identity -------------------------------------------------------------------------

    def getBackendName(self) -> str:
        return "mpi4py"

    def name(self) -> str:
        """Return the backend's name."""
        return "mpi4py"

    def setGroupName(self, name: str) -> None:
        self._group_name = name
        self._name_channels()

    def getGroupName(self) -> str:
        return self._group_name

    def setGroupDesc(self, description: str) -> None:
        self._group_desc = description
        self._name_channels()

    def _name_channels(self) -> None:
        """Call the group in the event log what its user calls it."""
        name = self._group_desc
        if name in {"", "undefined"}:
            name = f"group {self._group_name}"
        elif name == "default_pg":
            name = "default"
        for channel in self._channels:
            channel.group = log.name_group(channel.comm, name)

    def getGroupDesc(self) -> str:
        return self._group_desc

    @property
    def group_name(self) -> str:
        return self._group_name

    @property
    def group_desc(self) -> str:
        return self._group_desc

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu"), torch.device("cuda")]

    def _get_backend(self, device: torch.device) -> GroupBase:
        return self

    def _get_backend_name(self) -> str:
        return "mpi4py"

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
        self._seconds = timeout.total_seconds()

    def _set_default_timeout(self, timeout: timedelta) -> None:
        self.set_timeout(timeout)

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
        """Whether ranks compare their calls before data moves; set it alike on all ranks."""
        return self._channels[0].agreement.enabled

    @check_collectives.setter
    def check_collectives(self, enabled: bool) -> None:
        for channel in self._channels:
            channel.agreement.enabled = enabled

    @property
    def survives_failures(self) -> bool:
        """Whether the death of a rank ends only what is said to it or awaited from it.

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
        return deadlines.failed_ranks(self.comm)

    def acknowledge_failures(self) -> list[int]:
        """Let receives from any source go on among the living; return the dead ranks."""
        failed = self.failed_ranks()
        if failed:
            self.comm.Ack_failed(len(failed))  # and no later ones, which nobody has been told of
            point_to_point.post_again(self._channels[0])
        return failed

    @property
    def is_busy(self) -> bool:
        """Whether a collective is queued or running."""
        return not all(channel.idle for channel in self._channels)

    def abort(self) -> None:
        """Free every rank stuck in this group and make it unusable."""
        for channel in self._channels:
            channel.fail(RevokedError("the group was aborted"))

    def shutdown(self) -> None:
        """Finish what is queued, stop the group's threads and give up its communicators."""
        if self._closed:
            return
        self._closed = True
        stopped = True
        for callbacks in self._callbacks:
            stopped &= callbacks.close(self._closing_seconds())
        for channel in self._channels:
            stopped &= channel.close(self._closing_seconds())
        if not stopped:
            self.abort()
            for channel in self._channels:
                if not channel.close(_CLOSE_SECONDS):
                    deadlines.leave_mpi_unfinalized()
        log.forget(self._channels[0].group)
        if stopped:
            for channel in self._channels:
                comm_reaper.retire(channel.comm)
        self._store = None  # a failed group lives on in the traceback of its error
        live_groups.discard(self)

    def _closing_seconds(self) -> float:
        return self._seconds + _CLOSE_SECONDS if self.failure is None else _CLOSE_SECONDS

    def _require_open(self, what: str) -> None:
        if self._closed:
            raise ClosedGroupError(
                f"{what}: this process group was destroyed; use a live one, or call "
                "dist.init_process_group or dist.new_group again"
            )
        failure = self.failure
        if failure is not None:
            raise RevokedError(
                f"{what}: this group is unusable since an earlier failure: {failure}"
            )

    # --- running --------------------------------------------------------------------------

    def _lane(self) -> tuple[Channel, CallbackQueue]:
        """Return where calls of this thread go: callbacks have channels of their own."""
        depth = current_depth()
        if depth >= len(self._channels):
            with self._deeper:
                while depth >= len(self._channels):
                    self._open_deeper_lane()
        return self._channels[depth], self._callbacks[depth]

    def _open_deeper_lane(self) -> None:
        depth = len(self._channels)
        what = "first collective in a callback"
        meet(self._store, f"callbacks/{depth}", self._size, self._seconds, what)
        everyone = self.comm.Get_group()
        comm = deadlines.call(
            self.comm,
            "communicator for callbacks",
            self._seconds,
            lambda: self.comm.Create_group(everyone, tag=depth),
        )
        channel = Channel(comm, self._group_name or "group", depth)
        channel.group = log.name_group(comm, self._channels[0].group.name)
        channel.agreement.enabled = self.check_collectives
        self._callbacks.append(CallbackQueue(self._group_name or "group", depth))
        self._channels.append(channel)

    def _run(
        self,
        call: Call,
        plan: collectives.Plan,
        result: list[Any],
        opts: Any,
        handed_over: int | None = None,
    ) -> dist._Work:
        channel, callbacks = self._lane()
        asynchronous = getattr(opts, "asyncOp", True)
        self._sequence_number += 1
        work = CollectiveWork()
        link = link_emulation.current()
        if link is not None:
            work.link = link
            call = call.over(link.numbers)
        work.channel = channel
        work.callbacks = callbacks
        work.call = call
        work.plan = plan
        work.tensors = result
        work.comm = channel.comm
        work.what = call.name
        work.seconds = self._seconds
        work.options = opts
        if asynchronous:  # its caller may change them while it waits in the queue
            work.take_options()
        work.started = started = perf_counter()
        place = channel.group.place
        work.event = begin_collective(place, call, handed_over, not asynchronous, started)
        channel.start(work, asynchronous)
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work

    def _start_coalescing(self, device: torch.device) -> None:
        self._coalesced = []

    def _end_coalescing(self, device: torch.device) -> dist._Work:
        works, self._coalesced = self._coalesced or [], None
        return self._combine(works)

    def _combine(self, works: list[dist._Work]) -> dist._Work:
        _, callbacks = self._lane()
        return CombinedWork(works, lambda all_works: future_of_works(all_works, callbacks))
