"""Collectives of PyTorch's own groups (gloo, NCCL) that do not end, for the reports.

Such groups write nothing into the event log, and a rank that is stuck in one can't be freed. But
PyTorch keeps a *flight recorder* of them, which shows for each group how many collectives were
called and how many have ended. One that is overdue gets an event of its own, so that a report names
it; it is dropped when it has ended after all. Messages from one rank to another are not followed.

The recorder is internal to PyTorch (as in 2.13, format 2.10): if it is missing or has another
format, reports say less.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch._C import _distributed_c10d
from torch.distributed import distributed_c10d

from ..board.event_board import NOT_WAITING, OTHER_GROUP, Token, group_text
from .events import log

OVERDUE_S = 1.0
_RECORDERS = ("_dump_nccl_trace", "_dump_fr_trace")  # NCCL's, which CPU builds lack, and gloo's


@dataclass
class _Seen:
    """A collective that had not ended, the time of the first look, and its event."""

    number: int
    since: float
    token: Token | None = None
    told: bool = False


_seen: dict[tuple[str, str], _Seen] = {}  # by recorder and group


def note() -> None:
    """Look at all such groups; called at each heartbeat, costs tens of us, nothing without any."""
    groups = list(distributed_c10d._world.pg_map)  # a copy: other threads make groups
    if all(getattr(group, "backend", "") == "mpi4py" for group in groups) and not _seen:
        return
    for name in _RECORDERS:
        recorder = getattr(_distributed_c10d, name, None)
        if recorder is not None:
            _follow(name, recorder, time.perf_counter())


def _follow(name: str, recorder: Callable[[bool, bool, bool], bytes], now: float) -> None:
    late = unfinished(pickle.loads(recorder(False, False, True)))
    for key, seen in list(_seen.items()):
        if key[0] == name and late.get(key[1]) != seen.number:
            log.drop(_seen.pop(key).token)
    for group, number in late.items():
        seen = _seen.setdefault((name, group), _Seen(number, now))
        if not seen.told and now - seen.since > OVERDUE_S:
            seen.told = True
            entry = entry_of(pickle.loads(recorder(True, False, True)), group, number)
            seen.token = None if entry is None else _write(entry)


def unfinished(record: Mapping[str, Any]) -> dict[str, int]:
    """Return the number of the collective in which each group is, of those that are in one.

    Args:
        record: the recorder's dump, unpickled.
    """
    found = {}
    for group, status in record.get("pg_status", {}).items():
        called, ended = (status.get(f"last_{what}_collective", -1) for what in _COUNTED)
        if called > max(ended, 0):
            found[group] = max(ended, 0) + 1
    return found


_COUNTED = ("enqueued", "completed")


def entry_of(record: Mapping[str, Any], group: str, number: int) -> Mapping[str, Any] | None:
    """Return the recorder's entry for one collective of a group, None if it has dropped it."""
    for entry in record.get("entries", ()):
        same = str(entry.get("pg_id")) == group and entry.get("collective_seq_id") == number
        if same and not entry.get("is_p2p"):
            return entry
    return None


def _write(entry: Mapping[str, Any]) -> Token | None:
    backend, _, kind = entry["profiling_name"].partition(":")
    name, description = entry["process_group"]
    called = description if description not in ("", "undefined", "default_pg") else f"group {name}"
    ranks = tuple(_in_world(_members(name)))
    if not ranks:  # the group was destroyed, so no rank can be in it
        return None
    group = group_text(f"{called} of {OTHER_GROUP}{backend}", ranks)
    shape, dtype = (entry.get(f"input_{what}") or [""] for what in ("sizes", "dtypes"))
    return log.begin(
        log.string(kind),
        log.passing_string(group),
        NOT_WAITING,
        "",
        log.string(dtype[0].lower()),
        log.passing_string(str(tuple(shape[0]))),
        start=time.perf_counter() - (time.time_ns() - entry["time_created_ns"]) / 1e9,
    )


def _members(name: str) -> Iterable[int]:
    """The ranks of a group, as the default group numbers them."""
    for group, known in distributed_c10d._world.pg_names.copy().items():
        if known == name:
            return dist.get_process_group_ranks(group)
    return ()


def _in_world(ranks: Iterable[int]) -> list[int]:
    """Ranks as they were numbered at the start of MPI."""
    comm = getattr(dist.group.WORLD, "comm", None)
    known = log.group_of(comm).ranks if comm is not None else ()
    return [known[rank] if rank < len(known) else rank for rank in ranks]
