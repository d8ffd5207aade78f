"""A worker asks for parameters, computes, and sends gradient and loss."""

from __future__ import annotations

import time
from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import nn

from ..arguments import function
from . import messages
from .gradients import (
    GradientMessage,
    LossFunction,
    buffers_of,
    compute_gradient,
    parameters_of,
    require_unchanged_buffers,
)
from .messages import FlatMessage, Header, checksum_of, layout_of
from .pace import Pace
from .record import WorkerRecord
from .team import Team

__all__ = ["Worker"]


class Worker:
    """One worker: call :meth:`run` while the rank ``server`` runs a ``Server``.

    Args:
        model: of the server's shapes and dtypes, and with the same buffers; its parameters are
            overwritten.
        loss_function: of (outputs, targets), a mean over samples.
        batches: yields (inputs, targets); it may be endless.
        group: process group on backend mpi4py, the default group if None.
        server: rank of the server in the group.
        slowdown: seconds of sleep added to every gradient: a simulated straggler.
        step_seconds: every gradient takes at least so long, by sleeping what is left: a
            simulated device, so that ranks which share cores do not slow each other down.
        timeout: seconds that one message may take, the group's own time-out if None. It must
            be longer than the slowest worker takes for a gradient where others wait for it.

    Attributes:
        record: what has happened so far.

    Raises:
        TypeError, ValueError: for arguments that make no sense, before anything is sent.
    """

    def __init__(
        self,
        model: nn.Module,
        loss_function: LossFunction,
        batches: Iterable[tuple[torch.Tensor, torch.Tensor]],
        *,
        group: dist.ProcessGroup | None = None,
        server: int = 0,
        slowdown: float = 0.0,
        step_seconds: float = 0.0,
        timeout: float | None = None,
    ) -> None:
        self.model = model
        self._parameters = parameters_of(model)
        self._team = Team(group, timeout)
        if server not in range(self._team.size) or server == self._team.rank:
            raise ValueError(
                f"server must be another rank of the {self._team.size} in the group, not {server}"
            )
        self._server = server
        self._pace = Pace(step_seconds, slowdown)
        self._loss_function = function("loss_function", loss_function, "cross_entropy")
        if not hasattr(batches, "__iter__") and not hasattr(batches, "__getitem__"):
            raise TypeError(f"batches must yield (inputs, targets), not be {batches!r}")
        self._batches = batches
        self.record = WorkerRecord(self._team.rank)

    def run(self) -> WorkerRecord:
        """Work until the batches are used up or the server says stop; return what happened.

        Raises:
            RankFailedError: if the server died.
            DeadlineError: if the server does not answer in time.
            ValueError: if the server's model is another, or computing a gradient changes the
                model's buffers.
        """
        self._flat = FlatMessage(self._parameters)
        self._letter = GradientMessage(self._parameters)
        self._layout = layout_of(self._parameters)
        self._buffers = buffers_of(self.model)
        self._dismissed = False  # whether the server expects nothing more from this worker
        self.record = WorkerRecord(self._team.rank)
        start = time.perf_counter()
        with self._team.surviving_failures():
            try:
                self._work()
            except dist.DistBackendError as error:
                if self._server in self._team.dead():
                    self._team.raise_server_died(self._server, error)
                raise
            finally:
                self.record.seconds = time.perf_counter() - start
        return self.record

    def _work(self) -> None:
        try:
            for step, batch in enumerate(self._batches):
                asked = time.perf_counter()
                version = self._fetch(step, asked)
                if version is None:
                    self.record.ended = "told to stop"
                    return
                self._contribute(step, version, batch, asked)
        except dist.DistBackendError:
            raise
        except Exception:
            if not self._dismissed:
                self._say(Header(messages.BYE))  # the others need not wait for this one
            raise
        self._say(Header(messages.BYE))
        self.record.ended = "batches used up"

    def _fetch(self, step: int, asked: float) -> int | None:
        """Ask for parameters; return their version, or None if the run is over."""
        buffers = checksum_of(self._buffers)
        self._say(Header(messages.HELLO, step=step, layout=self._layout, buffers=buffers), asked)
        numbers = torch.zeros(Header.FIELDS, dtype=torch.float64)
        self._team.receive(numbers, self._server, messages.TAG_REPLY)
        answer = Header.decode(numbers)
        self._dismissed = answer.kind != messages.READY
        if answer.kind == messages.STOP:
            return None
        if answer.kind == messages.REFUSED:
            what = messages.differing(answer, self._layout)
            raise ValueError(f"worker {self._team.rank}: this model has {what}")
        if answer.kind == messages.FAILED:
            raise RuntimeError(f"worker {self._team.rank}: the server failed; see its error")
        self._team.receive(self._flat.buffer, self._server, messages.TAG_BODY)
        self._flat.unpack(self._parameters)
        return answer.version

    def _contribute(self, step: int, version: int, batch: tuple, asked: float) -> None:
        got = time.perf_counter()
        loss, samples, gradients = compute_gradient(
            self.model, self._parameters, self._loss_function, batch
        )
        require_unchanged_buffers(self.model, self._buffers)
        self._letter.pack(loss, gradients)
        self._pace.keep(got)
        sent = time.perf_counter()
        header = Header(messages.GRADIENT, version, step, samples, asked=asked, got=got)
        self._say(header, sent)
        self._team.send(self._letter.buffer, self._server, messages.TAG_BODY)
        record = self.record
        record.versions.append(version)
        record.losses.append(loss)
        record.waited.append(got - asked)
        record.computing.append(sent - got)

    def _say(self, header: Header, now: float | None = None) -> None:
        header.sent = time.perf_counter() if now is None else now
        self._team.send(header.encode(), self._server, messages.TAG_HEADER)
