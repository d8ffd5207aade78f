"""A barrier that names the ranks which do not arrive.

Ranks sign in at the rendezvous store and do not touch MPI, so a group is still usable after its
barrier was given up. They meet in rounds. The first rank that finds that all have arrived, or that
it has waited long enough, decides the round for all ranks in it, by one entry in the store that is
written once: so either all of them pass or none. A rank that arrives later goes to the next round.
"""

from __future__ import annotations

from datetime import timedelta

import torch.distributed as dist

from ..board.rank_states import rank_list
from ..core import advice
from ..core.errors import DeadlineError, RankFailedError, RevokedError
from ..core.runtime import MPI
from ..exits import ends
from ..faults import deadlines
from ..faults.deaths import failed_ranks
from ..log import events
from ..log.events import log
from ..log.live_groups import live_groups
from .store_barrier import LONGEST_PAUSE_SECONDS, SHORTEST_PAUSE_SECONDS, answering, rest

_ERRORS = {kind.__name__: kind for kind in (DeadlineError, RankFailedError, RevokedError)}


def monitored_barrier(
    group: dist.ProcessGroup | None = None,
    timeout: timedelta | float | None = None,
    wait_all_ranks: bool = False,
) -> None:
    """Return when all ranks of ``group`` have arrived; otherwise all others name the missing.

    ``torch.distributed.monitored_barrier`` does this for gloo and refuses every other backend.

    Args:
        group: the group, the default group if None.
        timeout: time allowed (a number means seconds), the group's own if None. It ends for all
            when it ends for the first; zero asks which ranks are there now.
        wait_all_ranks: name all ranks that are missing. Otherwise only the first is named, and if
            a rank has died, ended or destroyed its group, the others don't wait for the timeout.

    Raises:
        DeadlineError: on every rank that came, if one does not in time. The group stays usable.
        RankFailedError: on every rank that lives, if one has died.
        RevokedError: on every rank that came, if one has ended or destroyed its group.
    """
    group = dist.group.WORLD if group is None else group
    if timeout is not None and not isinstance(timeout, timedelta):
        timeout = timedelta(seconds=timeout)
    if group in live_groups:
        group.monitored_barrier(timeout, wait_all_ranks)
    else:  # torch's own handles other backends, and ranks outside the group
        dist.monitored_barrier(group, timeout, wait_all_ranks)


def wait(
    comm: MPI.Intracomm,
    store: dist.Store,
    place: int,
    seconds: float,
    wait_all_ranks: bool,
) -> None:
    """Implement :func:`monitored_barrier` for a group on ``comm``.

    Args:
        store: the group's.
        place: where the event log has the group's name.
    """
    if comm.Get_size() == 1:
        return
    with events.making("monitored_barrier", place):
        with answering(comm, "monitored_barrier"):
            kind, _, text = _outcome(comm, store, seconds, wait_all_ranks).partition(" ")
        if text:
            raise _ERRORS[kind](text)


def _outcome(comm: MPI.Intracomm, store: dist.Store, seconds: float, wait_all_ranks: bool) -> str:
    """Return "" if all have come, otherwise the class and the text of the error to raise."""
    rank, everyone = comm.Get_rank(), range(comm.Get_size())
    places = log.group_of(comm).ranks
    deadline, pause = deadlines.clock() + seconds, SHORTEST_PAUSE_SECONDS

    def who_came() -> list[int]:
        return [one for one in everyone if store.add(_place_of(one), 0) >= number]

    def decide(came: list[int], answer: str) -> None:
        store.compare_set(key, "", f"{','.join(map(str, came))} {answer}")

    while True:
        try:
            number = store.add(_place_of(rank), 1)  # the round in which this rank is
            key = _round(number)
            while not store.check([key]):
                came, dead = who_came(), failed_ranks(comm)
                missing = [one for one in everyone if one not in (*came, *dead)]
                is_late = deadlines.clock() > deadline
                gone = ""
                if pause == LONGEST_PAUSE_SECONDS and not wait_all_ranks:
                    gone = ends.will_not_come([places[one] for one in missing], comm)
                if not missing or is_late or gone or (dead and not wait_all_ranks):
                    decide(came, _answer(missing, dead, gone, seconds, wait_all_ranks))
                else:
                    pause = rest(pause)
        except KeyboardInterrupt:
            number = store.add(_place_of(rank), 0)  # it may have struck right behind that call
            key = _round(number)
            why = "a rank was interrupted before all ranks arrived"
            decide(who_came(), f"DeadlineError monitored_barrier: {why}")
            raise
        ranks, _, answer = store.get(key).decode().partition(" ")
        if str(rank) in ranks.split(","):
            if not answer and rank == 0:  # all are in this round: no rank will ask for that one
                store.delete_key(_round(number - 1))
            return answer


def _round(number: int) -> str:
    return f"monitored_barrier/round {number}"


def _place_of(rank: int) -> str:
    return f"monitored_barrier/{rank}"


def _answer(
    missing: list[int], dead: list[int], gone: str, seconds: float, wait_all_ranks: bool
) -> str:
    """Return the result of :func:`_outcome`, if ``dead`` have died and ``missing`` are late.

    Args:
        gone: which of those that are missing will never come, and why; "" if none.
    """
    named = missing if wait_all_ranks else missing[:1]
    late = f"{rank_list(named)} did not arrive within {seconds:g} s"
    if dead:
        also = f", and {late}" if missing and wait_all_ranks else ""
        return f"RankFailedError {_death(dead, also)}"
    if not missing:
        return ""
    if gone:
        return f"RevokedError monitored_barrier: {gone}."
    if len(missing) > len(named):
        late += " (nor did others; wait_all_ranks=True names them all)"
    text = f"monitored_barrier: Timed out because {late}. The group is still usable."
    return f"DeadlineError {text}"


def _death(dead: list[int], also: str = "") -> str:
    return f"monitored_barrier: {rank_list(dead)} died{also}. {advice.GO_ON}"
