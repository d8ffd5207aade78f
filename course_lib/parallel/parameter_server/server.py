"""The server keeps model and optimizer and serves one worker at a time."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterable
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import nn

from ..arguments import function, whole
from . import messages
from .clocks import Clocks
from .gradients import (
    GradientMessage,
    apply_update,
    average,
    base_rates,
    buffers_of,
    parameters_of,
)
from .inbox import Arrival, Inbox, is_death
from .messages import FlatMessage, Header, checksum_of, layout_of
from .modes import Asynchronous, Mode, Rules
from .rates import RateRule, constant, rates_by
from .record import Gradient, Record, Update
from .recorder import Recorder
from .stop import Stop
from .team import Team

__all__ = ["Server"]

OVER = "the run had ended"


class Server:
    """The parameter server: call :meth:`run` on one rank while others run a ``Worker``.

    Args:
        model: trained in place.
        optimizer: over the model's parameters; only the server has one.
        workers: their ranks in the group, or how many (the lowest ranks that are not this
            one), or None for all other ranks.
        mode: ``Synchronous()``, ``Asynchronous()`` or ``BoundedStaleness(bound)``.
        rate: rule for the learning rate, see :mod:`.rates`.
        stop: when to end, see :class:`Stop`.
        group: process group on backend mpi4py, the default group if None.
        snapshots: keep a copy of the parameters every so many updates, 0 for none.
        timeout: seconds to wait for the next message, the group's own time-out if None.

    Attributes:
        record: what has happened so far.
        version: number of updates made so far.

    Raises:
        TypeError, ValueError: for arguments that make no sense, before anything is sent.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        workers: int | Iterable[int] | None = None,
        mode: Mode | None = None,
        rate: RateRule = constant,
        stop: Stop | None = None,
        group: dist.ProcessGroup | None = None,
        snapshots: int = 0,
        timeout: float | None = None,
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self._parameters = parameters_of(model)
        _require_optimizer_of(optimizer, self._parameters)
        self._team = Team(group, timeout)
        self._workers = self._team.choose_workers(workers)
        self._mode = Asynchronous() if mode is None else mode
        if not isinstance(self._mode, Mode):
            raise TypeError(f"mode must be an object like Asynchronous(), not {mode!r}")
        self._mode.rules(self._workers)  # complains now if it does not suit them
        self._rate = function("rate", rate, "over_staleness")
        self._stop = Stop() if stop is None else stop
        if not isinstance(self._stop, Stop):
            raise TypeError(f"stop must be an object like Stop(steps=200), not {stop!r}")
        self._snapshots = whole("snapshots", snapshots, least=0)
        self.version = 0
        self.record = Record()

    def run(self) -> Record:
        """Serve until the run is over and every worker knows; return what happened.

        Raises:
            RankFailedError: if all workers died.
            DeadlineError: if no worker says anything within the time-out.
            TypeError, ValueError: if a worker's model differs from the server's, or ``rate``
                gives something that is no rate.
        """
        self._prepare()
        with self._team.surviving_failures():
            self._inbox = Inbox(
                self._team.group, len(self._workers), self._team.timeout, self._clocks
            )
            try:
                self._serve_all()
            finally:
                self._team.dead()  # so that their deaths do not disturb what follows
                self._inbox.close()
                self._finish()
        if self.record.died.keys() == set(self._workers):
            self._team.raise_all_died(self.record.died)
        return self.record

    def _prepare(self) -> None:
        self.version = 0
        self._samples = 0
        self._finished = 0
        self._dead_unburied = False
        self._farewell = 0  # what to tell a worker that asks, once the run is over
        self._active = set(self._workers)
        self._held: list[int] = []  # workers that asked and may not start yet, longest first
        self._rules: Rules = self._mode.rules(self._workers)
        self._base_rates = base_rates(self.optimizer)
        self._flat = FlatMessage(self._parameters)
        self._flat.pack(self._parameters)
        self._layout = layout_of(self._parameters)
        self._buffers = checksum_of(buffers_of(self.model))
        self._letters = {worker: GradientMessage(self._parameters) for worker in self._workers}
        self._delivered: dict[int, Gradient] = {}
        self.record = Record(
            mode=str(self._mode),
            server=self._team.rank,
            workers=self._workers,
            initial=self._flat.buffer.clone(),
            optimizer_state=copy.deepcopy(self.optimizer.state_dict()),
            buffers=self._buffers,
        )
        self._clocks = Clocks()
        self._note = Recorder(self.record, self._clocks)
        self._take_snapshot()

    def _finish(self) -> None:
        for group, rate in zip(self.optimizer.param_groups, self._base_rates, strict=True):
            group["lr"] = rate
        for parameter in self._parameters:
            parameter.grad = None  # it is a view of a message
        self.record.final = self._flat.pack(self._parameters).clone()
        self._note.finish()

    # --- the loop -------------------------------------------------------------------------

    def _serve_all(self) -> None:
        try:
            while self._active:
                self._serve_next()
        except dist.DistBackendError:
            raise  # nobody can be told any more, or need be
        except Exception:
            self._end(messages.FAILED)
            self._go_on()
            while self._active:
                self._serve_next()
            raise

    def _serve_next(self) -> None:
        try:
            self._serve_first(self._inbox.next())
        except dist.DistBackendError as error:
            if not is_death(error):
                raise
            self._dead_unburied = True
        while self._dead_unburied:
            self._dead_unburied = False
            try:
                self._bury_the_dead()
            except dist.DistBackendError as error:  # one more died while the rest was answered
                if not is_death(error):
                    raise
                self._dead_unburied = True

    def _serve_first(self, arrival: Arrival) -> None:
        worker, header = arrival.sender, arrival.header
        if worker not in self._active:
            if worker not in self.record.died:
                self._inbox.leave_for_next_run(arrival)
            return
        self.record.queue_lengths.append(self._inbox.waiting + 1)
        self._serve(worker, header, arrival)

    def _serve(self, worker: int, header: Header, arrival: Arrival) -> None:
        kind = messages.NAMES[header.kind]
        about = {"version": header.version, "step": header.step}
        self._note.heard(kind, worker, header.sent, **about)
        if header.kind == messages.HELLO:
            self._welcome(worker, header)
        elif header.kind == messages.GRADIENT:
            self._receive(worker, header, arrival)
        else:
            self._part(worker)
        self._go_on()

    def _bury_the_dead(self) -> None:
        for worker in self._active & set(self._team.dead()):
            now = self._note.now()
            self.record.died[worker] = now
            self._note.happened("died", worker, now, version=self.version)
            self._release(worker)
        self._go_on()

    def _go_on(self) -> None:
        """Make the update that is due, if one is, and answer those who may start now."""
        while not self._farewell and (round_ := self._rules.due()):
            self._update(round_)
        for worker in list(self._held):
            if self._farewell or self._rules.may_start(worker):
                self._held.remove(worker)
                self._answer(worker)

    # --- what workers say -----------------------------------------------------------------

    def _welcome(self, worker: int, header: Header) -> None:
        theirs, ours = (header.layout, header.buffers), (self._layout, self._buffers)
        if theirs != ours and not self._farewell:
            self._tell(worker, messages.REFUSED)
            self._release(worker)
            what = messages.differing(header, self._layout)
            raise ValueError(f"the model of worker {worker} has {what}")
        self._held.append(worker)

    def _receive(self, worker: int, header: Header, arrival: Arrival) -> None:
        letter = self._letters[worker]
        served = self._note.now()
        self._team.receive(letter.buffer, worker, messages.TAG_BODY)
        loss, _ = letter.unpack()
        self._note.got(worker, header.got)
        gradient = Gradient(
            worker=worker,
            step=header.step,
            computed_at=header.version,
            staleness=self.version - header.version,
            loss=loss,
            samples=header.samples,
            waited=header.got - header.asked,
            computing=header.sent - header.got,
            sent=header.sent,
            arrived=self._note.since_start(arrival.arrived),
            served=served,
        )
        why = OVER if self._farewell else self._rules.deliver(worker, header.version, self.version)
        if why:
            self._drop(gradient, why)
        else:
            self._delivered[worker] = gradient

    def _part(self, worker: int) -> None:
        self._finished += 1
        self._release(worker)
        if self._stop.after_bye(self._finished):
            self._end(messages.STOP)

    # --- what the server does -------------------------------------------------------------

    def _update(self, round_: list[int]) -> None:
        began = self._note.now()
        chosen = tuple(self._delivered.pop(worker) for worker in round_)
        staleness = max(gradient.staleness for gradient in chosen)
        rates = rates_by(self._rate, self._base_rates, self.version, staleness)
        gradients = average(
            [self._letters[worker].unpack()[1] for worker in round_],
            [gradient.samples for gradient in chosen],
        )
        apply_update(self._parameters, gradients, self.optimizer, rates)
        self._flat.pack(self._parameters)
        self.version += 1
        update = Update(self.version, chosen, tuple(rates), self._note.now())
        self.record.updates.append(update)
        self._note.happened("update", self._team.rank, began, version=self.version)
        self._samples += update.samples
        self._take_snapshot()
        if self._stop.after_update(self, self.version, self._samples, update.seconds):
            self._end(messages.STOP)

    def _answer(self, worker: int) -> None:
        self._tell(worker, self._farewell or messages.READY)
        if self._farewell:
            self._release(worker)
        else:
            self._team.send(self._flat.buffer, worker, messages.TAG_BODY)

    def _tell(self, worker: int, kind: int) -> None:
        checksums = {"layout": self._layout, "buffers": self._buffers}
        header = Header(kind, self.version, sent=time.perf_counter(), **checksums)
        self._note.told(messages.NAMES[kind], worker, self._note.now(), version=self.version)
        self._team.send(header.encode(), worker, messages.TAG_REPLY)

    def _end(self, kind: int) -> None:
        """From now on nothing is used, and whoever asks is told that the run is over."""
        self._farewell = kind
        for worker in sorted(self._delivered):
            self._drop(self._delivered.pop(worker), OVER)

    def _drop(self, gradient: Gradient, why: str) -> None:
        self.record.dropped.append(replace(gradient, dropped=why))
        about = {"version": self.version, "step": gradient.step}
        self._note.happened("dropped", self._team.rank, self._note.now(), **about)

    def _release(self, worker: int) -> None:
        """Take a worker that left, died or was told to stop off every list."""
        self._active.discard(worker)
        self._rules.leave(worker)
        if worker in self._held:
            self._held.remove(worker)

    def _take_snapshot(self) -> None:
        if self._snapshots and self.version % self._snapshots == 0:
            snapshot = (self.version, self._note.now(), self._flat.buffer.clone())
            self.record.snapshots.append(snapshot)


def _require_optimizer_of(optimizer: torch.optim.Optimizer, parameters: list) -> None:
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"optimizer must be a torch.optim.Optimizer, not {optimizer!r}")
    known = {id(parameter) for parameter in parameters}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if id(parameter) not in known:
                raise ValueError("the optimizer holds parameters that are not the model's")
