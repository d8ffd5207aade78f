"""Groups in which each device has its own backend, such as ``"cpu:mpi4py,cuda:nccl"``.

PyTorch asks for the backend of one device after the other, and uses a group written in Python for
all of them. Ours is such a group: it makes the backends that PyTorch has not made yet, keeps them
in a PyTorch group, and passes on the calls with tensors of their devices.
"""

from __future__ import annotations

import functools
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from ..core.runtime import MPI
from .process_group import MPIProcessGroup, Started
from .refused_methods import refused

_NAME = MPIProcessGroup.backend
# PyTorch's function that makes a group and its variable with the program's request: PyTorch passes
# the backends neither.
_MAKER, _ASKED = "_new_process_group_helper", "backend_config"
# From PyTorch 2.14 on, a backend is passed the group under construction, and all can be made alike.
IS_POSSIBLE = hasattr(c10d._DistributedBackendOptions, "process_group")


def asked_for() -> dict[str, str]:
    """Return the backends of the group that is being made, by their devices."""
    frames = (frame for frame, _ in traceback.walk_stack(sys._getframe()))
    maker = next((frame for frame in frames if frame.f_code.co_name == _MAKER), None)
    asked = None if maker is None else maker.f_locals.get(_ASKED)
    return {} if asked is None else dict(asked.get_device_backend_map())


def has_others(backends: Mapping[str, str]) -> bool:
    """Return whether some of the backends are not ours.

    Raises:
        ValueError: if they are, and this PyTorch does not support it.
    """
    others = {device: name for device, name in backends.items() if name != _NAME}
    if others and not IS_POSSIBLE:
        named = " and ".join(f"{name} for {device} tensors" for device, name in others.items())
        beside = ", ".join(
            f'dist.new_group(backend="{name}")' for name in dict.fromkeys(others.values())
        )
        raise ValueError(
            f"mpi4py cannot share a group with another backend, and this group asks for {named}: "
            f'PyTorch {torch.__version__} would give mpi4py every device. Write "mpi4py", which '
            "moves CPU and CUDA tensors, and make a second group for the other backend: "
            f"{beside}; or update PyTorch to 2.14"
        )
    return bool(others)


def make_others(
    options: c10d._DistributedBackendOptions, backend_options: Any, backends: Mapping[str, str]
) -> None:
    """Make the backends that PyTorch has not made, and register them in its group, as it would.

    Args:
        options: PyTorch's for our backend; its store becomes that of the last one made.
    """
    group, store = options.process_group, options.store
    made = {device.type for device in group._device_types}
    for device, name in backends.items():
        if name == _NAME:
            continue
        kind = dist.Backend.backend_type_map.get(name, dist.ProcessGroup.BackendType.CUSTOM)
        group._set_default_backend(kind)  # PyTorch's choice may be ours, which is not in its group
        if device in made:
            continue
        options.store = dist.PrefixStore(f"{device}/", store)
        dist.Backend._ensure_backend_registered(name)
        plugin = dist.Backend._plugins[name.upper()]
        if plugin.extended_api:
            backend = plugin.creator_fn(options, backend_options)
        else:
            backend = plugin.creator_fn(
                options.store, options.group_rank, options.group_size, options.timeout
            )
        if dist.get_debug_level() == dist.DebugLevel.DETAIL:
            backend = c10d._create_process_group_wrapper(
                wrapped_pg=backend,
                store_prefix=options.group_id,
                store=options.store,
                rank=options.group_rank,
                world_size=options.group_size,
                timeout=options.timeout,
            )
        group._register_backend(torch.device(device), kind, backend)


class MixedGroup(MPIProcessGroup):
    """A group on MPI that leaves the tensors of some devices to other backends.

    MPI does everything without a device: a barrier that names none, object collectives if the CPU
    is ours, ``monitored_barrier``. Deadlines, freeing and reports cover only MPI's part.

    Args:
        comm, timeout, store: as :class:`MPIProcessGroup` takes them.
        others: PyTorch's group with the other backends.
        backends: the names of all backends, by their devices.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        timeout: timedelta,
        store: dist.Store | None,
        others: dist.ProcessGroup,
        backends: Mapping[str, str],
    ) -> None:
        super().__init__(comm, timeout, store)
        self._backends = dict(backends)
        self.backend = ",".join(f"{device}:{name}" for device, name in backends.items())
        self._others: Any = others
        self._left = {device for device, name in backends.items() if name != _NAME}
        self.bound_device_id = others.bound_device_id

    def setGroupName(self, name: str) -> None:
        super().setGroupName(name)
        self._others._set_group_name(name)

    def setGroupDesc(self, description: str) -> None:
        super().setGroupDesc(description)
        self._others._set_group_desc(description)

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device(device) for device in self._backends]

    def _get_backend(self, device: torch.device) -> Any:
        return self._others._get_backend(device) if self._is_left(device) else self

    get_backend = _get_backend

    def _is_left(self, device: torch.device | None) -> bool:
        """Return whether another backend has the tensors of the device."""
        return device is not None and device.type in self._left

    def set_timeout(self, timeout: timedelta) -> None:
        super().set_timeout(timeout)
        self._others.set_timeout(timeout)

    _set_default_timeout = set_timeout

    def abort(self) -> None:
        """Free every rank stuck in MPI's part, make the group unusable and abort the others."""
        super().abort()
        if self._others is not None:
            self._others.abort()

    def shutdown(self) -> None:
        """Finish what is queued in MPI's part, and shut down all."""
        super().shutdown()
        others, self._others = self._others, None
        if others is None:
            return
        self._left.clear()  # later calls report that the group was destroyed
        others.shutdown()
        # gloo joins threads when it is freed. A backend does so without the interpreter's lock,
        # for which they may wait; a group would hold it, so the backends go last.
        last = [others._get_backend(device) for device in others._device_types]
        del others
        last.clear()

    def _start_coalescing(self, device_type: torch.device) -> None:
        if self._is_left(device_type):
            self._others._start_coalescing(device_type)
        else:
            self._open_block(sys._getframe(1))

    def _end_coalescing(self, device_type: torch.device) -> dist._Work:
        if self._is_left(device_type):
            return self._others._end_coalescing(device_type)
        return super()._end_coalescing(device_type)

    def barrier(self, opts: Any = None, timeout: timedelta | None = None) -> Started:
        if self._is_left(getattr(opts, "device", None)):
            return self._others.barrier(opts)
        return super().barrier(opts, timeout)

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
        if device_types is not None and {each.type for each in device_types} != {*self._backends}:
            raise ValueError(
                f"split_group: each part of {self.backend} has all of its backends; "
                "to choose some of them, use dist.new_group(backend=...)"
            )
        part = self._part(ranks, timeout, group_name)
        # Ranks outside take part in it.
        others = self._others.split_group(sorted(ranks), timeout, opts, group_name, group_desc)
        if part is None:
            return None
        make = functools.partial(MixedGroup, others=others, backends=self._backends)
        return self._descendant(*part, group_desc or "undefined", make)

    splitGroup = split_group

    merge_remote_group = refused(
        "merge_remote_group", "only a group with mpi4py as its only backend can be merged"
    )


def _by_device(name: str) -> Callable[..., Started]:
    """Return a method that chooses the backend by the device of its tensors."""
    ours = getattr(MPIProcessGroup, name)

    @functools.wraps(ours)
    def method(group: MixedGroup, *given: Any, **named: Any) -> Started:
        devices = set(_devices_of((given, [*named.values()])))
        left = devices & group._left
        if not left:
            return ours(group, *given, **named)
        if left != devices:
            raise ValueError(
                f"{name}: tensors on {' and '.join(sorted(devices))}, which have different "
                f"backends in this group ({group.backend}): make one call per device"
            )
        return getattr(group._others, name)(*given, **named)

    return method


def _devices_of(values: Iterable[Any]) -> Iterator[str]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value.device.type
        elif isinstance(value, (list, tuple)):
            yield from _devices_of(value)


_OPERATIONS = (
    *("allreduce", "allreduce_coalesced", "broadcast", "reduce", "send", "recv", "recv_anysource"),
    *("allgather", "all_gather_single", "_allgather_base", "allgather_coalesced"),
    *("all_gather_single_coalesced", "allgather_into_tensor_coalesced"),
    *("gather", "gather_single", "gather_into_tensor", "scatter"),
    *("reduce_scatter", "reduce_scatter_single", "_reduce_scatter_base"),
    *("reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced"),
    *("alltoall", "all_to_all_single", "alltoall_base"),
)
for _each in _OPERATIONS:
    setattr(MixedGroup, _each, _by_device(_each))
