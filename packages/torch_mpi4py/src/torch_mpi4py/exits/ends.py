"""Ranks tell each other when they have ended, and free those that wait for them.

A rank that leaves by ``sys.exit()``, or whose program is over, stays in :mod:`.at_exit` until the
others have ended as well. It tells them how many collectives it has begun on each communicator, and
which ranks it has open messages with. So the watcher of a waiting rank knows for certain whether
the rank waits for something that will never come:

- a collective with a higher number than the last one that the other rank has begun;
- a message between this rank and one that has ended, if the other has none open with this one.
  Messages sent have arrived by then, but they are given a moment all the same.

A rank that destroys a process group tells the members the same about its communicators. They may
still be waiting there, for instance if the rank was interrupted before the call that they wait for,
and is now making a new group.

If none of this is known, the deadline ends the wait. These reports travel over a separate
communicator, which works whatever has happened to the others.
"""

from __future__ import annotations

import contextlib
import math
import os
import pickle
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from ..board.event_board import ANY, Event
from ..board.rank_states import rank_list
from ..core import collective_counts, links, runtime
from ..core.runtime import MPI
from ..faults import deadlines, pending_requests
from ..faults.deaths import failed_ranks
from ..launch import off_the_network
from ..log.events import log
from ..log.peer_boards import board_of
from ..meeting import message_progress

_LOOK_AFTER_SECONDS = 0.2  # nearly all calls are over by then
_LOOK_EVERY_SECONDS = 1.0
_ARRIVAL_SECONDS = 2.0 if off_the_network(os.environ) else 10.0  # longer from other hosts
_END, _LEAVE, _MESSAGES, _CLOSED = 1, 2, 3, 4  # tags
_EVERYBODY = -1
_MOST_CLOSED = 1000  # whose reports are kept, of all ranks together


class End(NamedTuple):
    """What a rank has reported about its end.

    Attributes:
        begun: how many collectives it has begun on each communicator, by its identity; every
            communicator on which another rank may still call one is included.
        messages_with: the ranks with which it has messages open, ``_EVERYBODY`` among them if it
            can't tell.
        outcome: the error with which it ended, empty if none.
        leaves: when this rank last heard that the other now only lets messages progress, or with
            which ranks some are still open, in seconds of ``time.perf_counter()``; infinite before.
    """

    begun: dict[int, float]
    messages_with: frozenset[int]
    outcome: str
    leaves: float = math.inf


class Closed(NamedTuple):
    """What a rank has reported about a communicator that it no longer uses.

    Attributes:
        begun: how many collectives it has begun there.
        messages_with: the ranks with which it has messages open there, ``_EVERYBODY`` among them
            if it can't tell.
        heard: when this rank has heard of it, in seconds of ``time.perf_counter()``.
    """

    begun: int
    messages_with: frozenset[int]
    heard: float


_ends: dict[int, End] = {}
_closed: dict[tuple[int, int], Closed] = {}  # by the rank and the communicator's identity
_left: set[int] = set()
_vanished: set[int] = set()
_told: frozenset[int] | None = None
_under_way: deque[tuple[MPI.Request, bytes]] = deque()
_arriving: dict[int, tuple[int, MPI.Request, bytearray]] = {}  # with the tag
_lock = threading.Lock()
_rank, _size = MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()
_awaited: dict[int, tuple[int, int]] = {}


@contextlib.contextmanager
def awaiting(comm: MPI.Comm, step: int, number: int) -> Iterator[None]:
    """Declare that calls on ``comm`` in this block are the ``number``-th ``step`` of all ranks."""
    _awaited[comm.handle] = step, number
    try:
        yield
    finally:
        _awaited.pop(comm.handle, None)


# --- telling ------------------------------------------------------------------------------


def tell(outcome: str = "") -> None:
    """Tell all other ranks that this one has come to its end; call it again if more is known."""
    global _told
    _told = _messages_with()
    news = pickle.dumps((collective_counts.most_begun(), _told, outcome))
    _send(_END, news, range(_size))


def has_told() -> bool:
    """Return whether this rank has told the others of its end, and so makes no more calls."""
    return _told is not None


def tell_closed(comm: MPI.Intracomm, begun: int) -> None:
    """Tell the ranks of ``comm`` that this one has begun ``begun`` collectives and uses it no more.

    At the end of the program :func:`tell` has said so of all.
    """
    identity = collective_counts.identity_of(comm)
    if identity is None or _told is not None or runtime.news_comm is None:
        return
    pending_requests.let_go()
    open_with = frozenset({_EVERYBODY})
    if not (links.held or pending_requests.kept(comm)):
        works = message_progress.under_way()
        open_with = frozenset(
            _peer_of(work) for work in works if getattr(work, "comm", comm) is comm
        )
    news = pickle.dumps((identity, begun, open_with))
    _send(_CLOSED, news, log.group_of(comm).ranks)
    hear()  # they report as well, and their reports would pile up on a rank that never waits


def _send(tag: int, news: bytes, ranks: Sequence[int]) -> None:
    comm = runtime.news_comm
    if comm is None:
        return
    _let_go_of_what_was_sent()
    for rank in _others():
        if rank in ranks:
            with contextlib.suppress(MPI.Exception):  # it has died
                _under_way.append((comm.Isend([news, MPI.BYTE], rank, tag), news))


def _let_go_of_what_was_sent() -> None:
    """Take out what has arrived; another thread may send meanwhile."""
    for _ in range(len(_under_way)):
        with contextlib.suppress(MPI.Exception, IndexError):  # of one to a rank that has died
            sent = _under_way.popleft()
            if not sent[0].Test():
                _under_way.append(sent)


def _others() -> list[int]:
    dead = failed_ranks(MPI.COMM_WORLD)
    return [rank for rank in range(_size) if rank != _rank and rank not in dead]


def _messages_with() -> frozenset[int]:
    """Return the ranks with which messages are open here."""
    pending_requests.let_go()
    if not log.enabled or pending_requests.kept() or links.held:
        return frozenset({_EVERYBODY})
    operations = [op for op in log.reader.open_operations() if op.sends or op.needs_send]
    found = {_EVERYBODY if op.world_peer == ANY else op.world_peer for op in operations}
    # For a closed group the log says that no thread waits for them, but they may still progress.
    return frozenset(found.union(map(_peer_of, message_progress.under_way())))


def _peer_of(work: object) -> int:
    token = getattr(work, "event", None)
    if token is None:
        return _EVERYBODY
    event = log.reader.at(token)
    is_known = event.number == token[0] and event.world_peer != ANY
    return event.world_peer if is_known else _EVERYBODY


def await_all(is_vain: Callable[[], bool]) -> None:
    """Return when every living rank has come to this call, or ``is_vain()`` is true.

    The wait for a rank that has not come to its end lasts as long as that rank runs, so it is
    bounded by that rank's own limits.
    """
    global _told
    if runtime.news_comm is None:
        return
    _send(_LEAVE, b"", range(_size))
    pause, look = 1e-5, time.monotonic() + _LOOK_EVERY_SECONDS
    while not (_all_have_left() or is_vain()):
        time.sleep(pause)
        pause = min(2 * pause, 1e-2)
        if time.monotonic() > look:
            look += _LOOK_EVERY_SECONDS
            _vanished.update(rank for rank in _others() if not _has_process(rank))
            if _told != (_told := _messages_with()):
                # Short, so that it needs no receiver.
                _send(_MESSAGES, pickle.dumps(_told), range(_size))


def all_have_left() -> bool:
    """Return whether every rank has come to :func:`await_all`, none having died or vanished."""
    return runtime.news_comm is None or len(_left) == _size - 1


def _has_process(rank: int) -> bool:
    """Return False if the process of a rank of this host has ended, as by ``os._exit``."""
    board = board_of(rank)
    if board is None or rank in _left:
        return True
    try:
        os.kill(board.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _all_have_left() -> bool:
    hear()
    _let_go_of_what_was_sent()
    others = set(_others()) - _vanished
    return others <= _left and not (others and _under_way)


# --- hearing ------------------------------------------------------------------------------


def hear() -> None:
    """Receive the reports of other ranks; never waits."""
    comm = runtime.news_comm
    if comm is None or MPI.Is_finalized() or not _lock.acquire(blocking=False):
        return
    try:
        for rank in range(_size):
            if rank != _rank:
                with contextlib.suppress(MPI.Exception):  # it has died
                    while _take_in(comm, rank):
                        pass
    finally:
        _lock.release()


def _take_in(comm: MPI.Intracomm, rank: int) -> bool:
    """Receive one message of a rank; return False if there is none, or it has only begun."""
    if rank not in _arriving:
        status = MPI.Status()
        message = comm.Improbe(rank, MPI.ANY_TAG, status)
        if message is None:
            return False
        news = bytearray(status.Get_count(MPI.BYTE))
        _arriving[rank] = status.Get_tag(), message.Irecv([news, MPI.BYTE]), news
    tag, request, news = _arriving[rank]
    if not request.Test():
        return False
    del _arriving[rank]
    now = time.perf_counter()
    if tag == _END:
        _ends[rank] = End(*pickle.loads(news))
    elif tag == _CLOSED:
        identity, begun, messages_with = pickle.loads(news)
        _closed[rank, identity] = Closed(begun, messages_with, now)
        if len(_closed) > _MOST_CLOSED:
            _closed.pop(next(iter(_closed)))
    elif tag == _MESSAGES:
        _ends[rank] = _ends[rank]._replace(messages_with=pickle.loads(news), leaves=now)
    else:
        _ends[rank] = _ends[rank]._replace(leaves=now)
        _left.add(rank)
    return True


def ended_before(ranks: Sequence[int], step: int, number: int) -> str:
    """Return which of ``ranks`` have ended before their ``number``-th ``step``, "" if none."""
    hear()
    return _text([rank for rank in ranks if _lacks(rank, step, number)], "making this call")


def will_not_come(ranks: Sequence[int], parent: MPI.Intracomm) -> str:
    """Return which of ``ranks`` won't make this call because they have ended or closed ``parent``.

    Args:
        ranks: by their numbers in the world.
        parent: the communicator that the call needs.

    Returns:
        A sentence, "" if there are none.
    """
    hear()
    identity = collective_counts.identity_of(parent)
    gone = [rank for rank in ranks if rank in _ends or (rank, identity) in _closed]
    return _text(gone, "making this call")


# --- judging ------------------------------------------------------------------------------


def look() -> None:
    """End calls of this rank that can never complete; the watcher calls this ten times a second."""
    before = time.perf_counter() - _LOOK_AFTER_SECONDS
    waiting = [one for one in deadlines.under_way() if one.reason is None and one.started < before]
    if not waiting:
        return
    hear()
    if not (_ends or _closed):
        return
    for operation in waiting:
        why = _why_without_hope(operation)
        if why:
            deadlines.end(operation, why)


def _why_without_hope(operation: deadlines.Operation) -> str:
    awaited = _place_in_order(operation)
    if awaited is None:
        return _without_its_message(operation)
    members = log.group_of(operation.comm).ranks
    return _text([rank for rank in members if _lacks(rank, *awaited)], "making this call")


def _place_in_order(operation: deadlines.Operation) -> tuple[int, float] | None:
    """Return which collective an operation is: of which communicator, and its number."""
    comm = operation.comm
    if operation.channel is not None:
        number = operation.channel.made
        identity = collective_counts.identity_of(comm)
        is_running = operation.channel.running is operation and operation.in_mpi
        return (identity, number) if identity is not None and is_running else None
    if comm.handle in _awaited:
        return _awaited[comm.handle]
    identity = collective_counts.identity_of(comm)
    if identity is None or operation.what not in getattr(comm, "counted", ()):
        return None
    return identity, getattr(comm, "made", 0)


def _lacks(rank: int, identity: int, number: float) -> bool:
    end, closed = _ends.get(rank), _closed.get((rank, identity))
    if end is not None and end.begun.get(identity, number) < number:
        return True
    return closed is not None and closed.begun < number


def _without_its_message(operation: deadlines.Operation) -> str:
    if links.entered or links.held:
        return ""  # it may only be slow
    now, group = time.perf_counter(), log.group_of(operation.comm)
    identity = collective_counts.identity_of(operation.comm)
    since = now - _ARRIVAL_SECONDS
    if operation.started > since:
        return ""
    for event in log.reader.open_operations():
        if not event.waiting or (event.group, event.ranks) != (group.name, group.ranks):
            continue
        if not (event.sends or event.needs_send):
            continue
        peers = _peers(event)
        if peers and all(_has_nothing_for_us(rank, identity, since) for rank in peers):
            return _text(peers, "receiving this message" if event.sends else "sending this message")
    return ""


def _peers(event: Event) -> list[int]:
    if event.world_peer != ANY:
        return [event.world_peer]
    return [rank for rank in event.ranks if rank != _rank]


def _has_nothing_for_us(rank: int, identity: int | None, since: float) -> bool:
    end = _ends.get(rank)
    if end is not None and end.leaves <= since:
        return not end.messages_with & {_rank, _EVERYBODY}
    closed = None if identity is None else _closed.get((rank, identity))
    if closed is None or closed.heard > since:
        return False
    return not closed.messages_with & {_rank, _EVERYBODY}


def _text(ranks: Sequence[int], without: str) -> str:
    if not ranks:
        return ""
    ended = [rank for rank in ranks if rank in _ends]
    if not ended:
        its = "its" if len(ranks) == 1 else "their"
        return f"{rank_list(ranks)} destroyed {its} process group without {without}"
    errors = (_ends[rank].outcome.partition(":")[0] for rank in ended)
    outcomes = dict.fromkeys(filter(None, errors))
    how = f" ({', '.join(outcomes)})" if outcomes else ""
    return f"{rank_list(ended)} ended{how} without {without}"
