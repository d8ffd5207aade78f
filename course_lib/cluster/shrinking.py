"""After a death the notebook's handle goes on with the ranks that live.

The stop button cannot leave this half-done: while the ranks come it ends the waiting, and the
next call goes on with the same shrink; once they have come, the handle takes them over first.
"""

from __future__ import annotations

import time

from . import engine
from .errors import DIED, ClusterError, rank_list
from .stop_button import StopButton, interruption

__all__ = ["Shrinking"]

_ASK_EVERY_S = 0.5  # the keeper, whether the cluster still lives
_MORE_THAN_THE_RANKS_S = 10.0  # who end by themselves when their time is over
_BUSY_AFTER_S = 5.0  # a busy machine may be late to say that what a dead rank ran is over


class Shrinking:
    """The part of :class:`~course_lib.cluster.Cluster` that leaves out the dead."""

    _under_way = None  # an interrupted shrink, as long as ranks may be in it

    def shrink(self, timeout_s: float = 30.0):
        """Go on with the ranks that live, after one has died; their variables are kept.

        They are numbered anew, in the same order: ``rank``, ``world_size`` and ``comm`` on each
        of them, ``len(cluster)``, and the ranks that ``%%px --targets`` means. If there was a
        default process group, there is a new one. Does nothing if every rank lives.

        Args:
            timeout_s: seconds within which all survivors must have come.

        Raises:
            ClusterError: if a survivor is still running a cell, does not come, or dies, or the
                cluster has ended.
            KeyboardInterrupt: if the stop button is pressed; call it again to go on.
        """
        with StopButton() as button:
            try:
                with button.listening():
                    dead = self._dead_to_leave_out(timeout_s)
                if not dead:
                    print(f"{count(self.n)} live: there is nothing to shrink")
                    return self
                survivors = [rank for rank in self.ids if rank not in dead]
                members = [self.engine_ids[rank] for rank in survivors]
                asked = self.client.direct_view(members).apply_async(engine.shrink, timeout_s)
                self._under_way = asked
                with button.listening():
                    self._await(asked, survivors, timeout_s)
            except KeyboardInterrupt:
                raise interruption(
                    "the shrink was interrupted; nothing is lost, and the next cluster.shrink() "
                    "goes on with it"
                ) from None
            self._under_way = None
            answers = _answers(asked, survivors)
            self._link.ask("shrunk", members=members)
            self.engine_ids = members
            self._stuck, self._owes_recovery = (), False  # all who answer are free, and renewed
            self._adopt(dict(enumerate(answers)))
            self._activate()
            go_on = f"{count(self.n)} {'goes' if self.n == 1 else 'go'} on"
            print(f"{rank_list(dead)} died; {go_on}, numbered anew, with their variables:")
            renumbered = enumerate(survivors)
            print("\n".join(f"rank {now}  was rank {before}" for now, before in renumbered))
        return self

    def _dead_to_leave_out(self, timeout_s: float) -> list[int]:
        dead = self.status()["dead"]
        if len(dead) == self.n:
            raise ClusterError("all ranks have ended; cluster.restart() starts fresh ones")
        if dead and not self._survives_deaths:
            raise ClusterError(
                f"{rank_list(dead)} died, and {self.ranks[0].mpi} cannot go on with the others; "
                "cluster.restart() starts fresh ranks"
            )
        if dead and self._under_way is not None:
            self._await(self._under_way, [rank for rank in self.ids if rank not in dead], timeout_s)
            self._under_way = None
            dead = self.status()["dead"]
        if dead:
            self._require_idle("it shrinks")
        return dead

    def _await(self, asked, survivors: list[int], timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s + _MORE_THAN_THE_RANKS_S
        while not asked.wait(_ASK_EVERY_S):
            self.status()
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"not all of {rank_list(survivors)} came within {timeout_s:g} s; "
                    "cluster.report() says what they do, cluster.kill(RANK) ends one, and then "
                    "cluster.shrink() goes on"
                )

    def _require_idle(self, what: str) -> None:
        # What a dead rank was running ends when the controller has said so.
        if self.client.outstanding and not self.client.wait(timeout=_BUSY_AFTER_S):
            raise ClusterError(f"a cell is still running; interrupt it before {what}")


def _answers(asked, survivors: list[int]) -> list[dict]:
    failed = [
        (rank, child.result())
        for rank, child in zip(survivors, asked._children, strict=True)
        if isinstance(child.result(), Exception)
    ]
    died = [rank for rank, failure in failed if getattr(failure, "ename", "") == DIED]
    if died:
        raise ClusterError(f"{rank_list(died)} died meanwhile; call cluster.shrink() again")
    if failed:
        rank, failure = failed[0]
        raise ClusterError(
            f"the shrink failed; rank {rank} says {failure}. Call cluster.shrink() once more; "
            "if it fails again, only cluster.restart() helps"
        )
    return asked.get()


def count(n: int, kind: str = "") -> str:
    """``1 rank``, ``2 ranks``, ``4 fresh ranks``."""
    return f"{n} {kind}rank" + ("s" if n != 1 else "")
