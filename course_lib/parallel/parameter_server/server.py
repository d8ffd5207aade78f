"""The parameter server: it keeps model and optimizer, and serves one worker at a time."""

from __future__ import annotations

import contextlib
import copy
import time
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import nn
from torch_mpi4py.core.errors import RankFailedError

from ..arguments import function, whole
from . import messages
from .messages import (
    GradientMessage,
    Header,
    ParameterMessage,
    apply_update,
    average,
    parameters_of,
)
from .policies import Asynchronous, Mode, Progress, RateRule, Stop, constant, rates_by
from .record import Gradient, Record, Update
from .transport import Inbox, Team

OVER = "the run had ended"


class Server:
    """The parameter server: call :meth:`run` on one rank while all others run a ``Worker``.

    Args:
        model: trained in place.
        optimizer: over the model's parameters; only the server has one.
        mode: ``Synchronous()``, ``Asynchronous()`` or ``BoundedStaleness(bound)``.
        rate: rule for the learning rate, see :mod:`.policies`.
        stop: when to end, see :class:`Stop`.
        group: process group on backend mpi4py, the default group if None.
        snapshots: keep a copy of the parameters every so many updates, 0 for none.
        timeout: seconds to wait for the next message, the group's own timeout if None.

    Attributes:
        record: the record so far.
        version: number of updates made so far.

    Raises:
        TypeError, ValueError: for arguments that make no sense, before anything is sent.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
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
        self._workers = self._team.others()
        self._mode = Asynchronous() if mode is None else mode
        if not isinstance(self._mode, Mode):
            raise TypeError(f"mode must be an object like Asynchronous(), not {mode!r}")
        Progress(self._mode, self._workers)  # complains now if it does not suit them
        self._rate = function("rate", rate, "over_staleness")
        self._stop = Stop() if stop is None else stop
        if not isinstance(self._stop, Stop):
            raise TypeError(f"stop must be an object like Stop(steps=200), not {stop!r}")
        self._snapshots = whole("snapshots", snapshots, least=0)
        self.version = 0
        self.record = Record()

    def run(self) -> Record:
        """Serve until the run is over and every worker knows; return the record.

        Raises:
            RankFailedError: if all workers died.
            DeadlineError: if no message arrives within the timeout.
            TypeError, ValueError: if a worker's model differs from the server's, or ``rate``
                returns something that is no rate.
        """
        self._prepare()
        with self._team.surviving_failures():
            self._inbox = Inbox(self._team.group, len(self._workers), self._team.timeout)
            try:
                self._serve_all()
            finally:
                self._team.dead()  # so that their deaths do not disturb what follows
                self._inbox.close()
                self._finish()
        if self.record.died.keys() == set(self._workers):
            names = ", ".join(map(str, sorted(self.record.died)))
            raise RankFailedError(
                f"parameter server: all workers died (ranks {names}); the model keeps the updates "
                "made before that"
            )
        return self.record

    def _prepare(self) -> None:
        self.version = 0
        self._final_reply = 0  # the answer to a worker that asks, once the run is over
        self._held: list[int] = []  # workers that asked and may not start yet, longest first
        self._progress = Progress(self._mode, self._workers)
        self._base_rates = [float(group["lr"]) for group in self.optimizer.param_groups]
        self._packed = ParameterMessage(self._parameters)
        self._publish()
        self._replies: dict[int, list[dist.Work]] = {}  # being sent to a worker
        self._incoming = {worker: GradientMessage(self._parameters) for worker in self._workers}
        self._delivered: dict[int, Gradient] = {}
        self._started = time.perf_counter()
        self.record = Record(
            mode=str(self._mode),
            workers=self._workers,
            initial=self._published,
            optimizer_state=copy.deepcopy(self.optimizer.state_dict()),
        )
        self._take_snapshot()

    def _finish(self) -> None:
        for group, rate in zip(self.optimizer.param_groups, self._base_rates, strict=True):
            group["lr"] = rate
        for parameter in self._parameters:
            parameter.grad = None  # it is a view of a message
        self._publish()
        self.record.final = self._published
        self.record.seconds = self._now()

    def _publish(self) -> None:
        """Copy the parameters to where they stay as they are while they are being sent."""
        self._published = self._packed.pack(self._parameters).clone()

    def _now(self) -> float:
        return time.perf_counter() - self._started

    def _serve_all(self) -> None:
        try:
            while self._progress.active:
                self._serve_next()
        except dist.DistBackendError:
            raise  # no worker can or need be told any more
        except Exception:
            self._end(messages.FAILED)
            self._go_on_after_deaths()
            while self._progress.active:
                self._serve_next()
            raise

    def _serve_next(self) -> None:
        try:
            arrival = self._inbox.next()
            if arrival.sender in self._progress.active:
                self._serve(arrival.sender, arrival.header)
            elif arrival.sender not in self.record.died:
                self._inbox.leave_for_next_run(arrival)
        except RankFailedError:
            self._go_on_after_deaths()

    def _serve(self, worker: int, header: Header) -> None:
        self.record.queue_lengths.append(len(self._inbox.arrived) + 1)
        for reply in self._replies.pop(worker, []):  # the worker has received it
            self._team.wait(reply)
        if header.kind == messages.HELLO:
            self._admit(worker, header)
        elif header.kind == messages.GRADIENT:
            self._receive_gradient(worker, header)
        else:
            self._remove(worker)
        self._go_on()

    def _go_on_after_deaths(self) -> None:
        """Remove the dead from all lists and go on; one more may die while others are answered."""
        while True:
            for worker in self._progress.active.intersection(self._team.dead()):
                self.record.died[worker] = self._now()
                self._remove(worker)
            with contextlib.suppress(RankFailedError):
                self._go_on()
                return

    def _go_on(self) -> None:
        """Make the update that is due, if any, and answer the workers that may start now."""
        while not self._final_reply and (round_ := self._progress.due()):
            self._update(round_)
        for worker in list(self._held):
            if self._final_reply or self._progress.may_start(worker):
                self._held.remove(worker)
                self._answer(worker)

    def _admit(self, worker: int, header: Header) -> None:
        if header.layout != self._packed.layout and not self._final_reply:
            self._dismiss(worker, messages.REFUSED)
            raise ValueError(f"the model of worker {worker} has {messages.OTHER_MODEL}")
        self._held.append(worker)

    def _receive_gradient(self, worker: int, header: Header) -> None:
        message = self._incoming[worker]
        self._team.receive(message.buffer, worker, messages.TAG_BODY)
        loss, _ = message.read()
        gradient = Gradient(
            worker=worker,
            step=header.step,
            computed_at=header.version,
            staleness=self.version - header.version,
            loss=loss,
            samples=header.samples,
            waited=header.waited,
        )
        if self._final_reply:
            self._drop(gradient, OVER)
        elif why := self._progress.deliver(worker, header.version, self.version):
            self._drop(gradient, why)
        else:
            self._delivered[worker] = gradient

    def _update(self, round_: list[int]) -> None:
        chosen = tuple(self._delivered.pop(worker) for worker in round_)
        staleness = max(gradient.staleness for gradient in chosen)
        rates = rates_by(self._rate, self._base_rates, self.version, staleness)
        gradients = average(
            [self._incoming[worker].read()[1] for worker in round_],
            [gradient.samples for gradient in chosen],
        )
        apply_update(self._parameters, gradients, self.optimizer, rates)
        self._publish()
        self.version += 1
        update = Update(self.version, chosen, tuple(rates), self._now())
        self.record.updates.append(update)
        self._take_snapshot()
        if self._stop.after_update(self, self.version, update.seconds):
            self._end(messages.STOP)

    def _answer(self, worker: int) -> None:
        if self._final_reply:
            self._dismiss(worker, self._final_reply)
            return
        # A worker that is slow to receive its reply holds up no other.
        header = Header(messages.READY, self.version).encode()
        self._replies[worker] = [
            self._team.isend(header, worker, messages.TAG_REPLY),
            self._team.isend(self._published, worker, messages.TAG_BODY),
        ]

    def _dismiss(self, worker: int, kind: int) -> None:
        """Tell a worker to stop."""
        header = Header(kind, self.version).encode()
        self._team.wait(self._team.isend(header, worker, messages.TAG_REPLY))
        self._remove(worker)

    def _end(self, final_reply: int) -> None:
        """From now on drop every gradient, and tell every worker that asks that the run is over."""
        self._final_reply = final_reply
        for worker in sorted(self._delivered):
            self._drop(self._delivered.pop(worker), OVER)

    def _drop(self, gradient: Gradient, why: str) -> None:
        self.record.dropped.append(replace(gradient, dropped=why))

    def _remove(self, worker: int) -> None:
        """Remove a worker that left, died or was told to stop from every list."""
        self._progress.leave(worker)
        self._replies.pop(worker, None)
        if worker in self._held:
            self._held.remove(worker)

    def _take_snapshot(self) -> None:
        if self._snapshots and self.version % self._snapshots == 0:
            snapshot = (self.version, self._now(), self._published)
            self.record.snapshots.append(snapshot)


def _require_optimizer_of(optimizer: torch.optim.Optimizer, parameters: list) -> None:
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"optimizer must be a torch.optim.Optimizer, not {optimizer!r}")
    known = {id(parameter) for parameter in parameters}
    held = [one for group in optimizer.param_groups for one in group["params"]]
    if any(id(one) not in known for one in held):
        raise ValueError("the optimizer holds parameters that are not the model's")
