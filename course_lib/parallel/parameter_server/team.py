"""Server and workers share a group, deadlines, and a way to outlive each other."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from datetime import timedelta
from numbers import Real

import torch
import torch.distributed as dist

from ..arguments import whole

__all__ = ["Team"]


class Team:
    """One process group, seen from this rank.

    Args:
        group: process group on backend mpi4py, the default group if None.
        timeout: seconds that one message may take, the group's own time-out if None.

    Raises:
        TypeError: if the time-out is no number.
        ValueError: if this rank is not in the group, or its backend is another, or the time-out
            is not positive.
    """

    def __init__(self, group: dist.ProcessGroup | None, timeout: float | None) -> None:
        if not dist.is_initialized():
            raise ValueError(
                "make a process group first: "
                'dist.init_process_group("mpi4py", init_method="mpi://")'
            )
        group = dist.group.WORLD if group is None else group
        if not isinstance(group, dist.ProcessGroup):
            raise ValueError("this rank is not in the group")
        if not hasattr(group, "survives_failures"):
            raise ValueError(
                f"the parameter server needs backend mpi4py, and this group is on {group.name()}"
            )
        if timeout is not None and not isinstance(timeout, Real):
            raise TypeError(f"timeout must be a positive number of seconds, not {timeout!r}")
        if timeout is not None and not timeout > 0:
            raise ValueError(f"timeout must be a positive number of seconds, not {timeout!r}")
        self.group = group
        self.rank = dist.get_rank(group)
        self.size = dist.get_world_size(group)
        self.timeout = group.timeout if timeout is None else timedelta(seconds=timeout)

    def choose_workers(self, workers: int | Iterable[int] | None) -> tuple[int, ...]:
        """Return the workers' ranks, in order; see ``Server`` for ``workers``."""
        dead = set(self.dead())
        others = [rank for rank in range(self.size) if rank != self.rank and rank not in dead]
        if workers is None:
            chosen = others
        elif not isinstance(workers, Iterable):
            workers = whole("workers, unless it is a list of ranks,", workers)
            chosen = others[:workers]
            if not 1 <= workers <= len(others):
                raise ValueError(f"workers must be from 1 to {len(others)}, not {workers}")
        else:
            chosen = sorted({whole("a worker's rank", rank) for rank in workers})
            wrong = [rank for rank in chosen if rank not in others]
            if wrong:
                raise ValueError(f"rank {wrong[0]} cannot be a worker here; choose from {others}")
        if not chosen:
            raise ValueError("there is no worker: start at least two ranks")
        return tuple(chosen)

    def send(self, tensor: torch.Tensor, rank: int, tag: int) -> None:
        """Send ``tensor`` to ``rank`` and wait until it may be used again."""
        dist.isend(tensor, group=self.group, group_dst=rank, tag=tag).wait(self.timeout)

    def receive(self, tensor: torch.Tensor, rank: int, tag: int) -> None:
        """Receive into ``tensor`` from ``rank``."""
        dist.irecv(tensor, group=self.group, group_src=rank, tag=tag).wait(self.timeout)

    def dead(self) -> list[int]:
        """Return the ranks that have died, and let the others' messages pass."""
        return self.group.acknowledge_failures()

    @contextlib.contextmanager
    def surviving_failures(self) -> Iterator[None]:
        """Inside, a rank that dies ends only what is said to it or awaited from it."""
        before = self.group.survives_failures
        self.group.survives_failures = True
        try:
            yield
        finally:
            self.group.survives_failures = before

    def raise_all_died(self, died: Iterable[int]) -> None:
        """Raise the error for a run that no worker outlived."""
        from torch_mpi4py import RankFailedError

        names = ", ".join(map(str, sorted(died)))
        raise RankFailedError(
            f"parameter server: all workers died (ranks {names}); the model has the updates made "
            "before"
        )

    def raise_server_died(self, server: int, cause: BaseException) -> None:
        """Raise the error of a worker whose server died."""
        from torch_mpi4py import RankFailedError

        raise RankFailedError(
            f"worker {self.rank}: the parameter server, rank {server}, died, and with it model "
            "and optimizer. Start again from its last checkpoint, in a new group"
        ) from cause
