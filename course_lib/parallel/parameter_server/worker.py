"""A worker of the parameter server: it asks for parameters, computes, and sends the gradient."""

from __future__ import annotations

import time
from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import nn
from torch_mpi4py.core.errors import RankFailedError
from torch_mpi4py.emulation.machine import clock_identity

from ..arguments import function, seconds
from . import messages
from .messages import (
    GradientMessage,
    Header,
    LossFunction,
    ParameterMessage,
    compute_gradient,
    parameters_of,
)
from .transport import Team


class Worker:
    """One worker: call :meth:`run` while the rank ``server`` runs a ``Server``.

    Args:
        model: of the server's shapes and dtypes; its parameters are overwritten.
        loss_function: of (outputs, targets), a mean over samples.
        batches: yields (inputs, targets); it may be endless.
        group: process group on backend mpi4py, the default group if None.
        server: rank of the server in the group.
        slowdown: seconds of sleep added to every gradient: a simulated straggler.
        step_seconds: every gradient takes at least this long, because the rank sleeps for the rest:
            a simulated device, so that ranks which share cores do not slow each other down.
        timeout: seconds that one message may take, the group's own timeout if None. It must
            be longer than the slowest worker takes for a gradient where others wait for it.

    Attributes:
        steps: how many gradients it has computed and sent.

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
        self._slowdown = seconds("slowdown", slowdown)
        self._step_seconds = seconds("step_seconds", step_seconds)
        self._loss_function = function("loss_function", loss_function, "cross_entropy")
        if not hasattr(batches, "__iter__") and not hasattr(batches, "__getitem__"):
            raise TypeError(f"batches must be an iterable of (inputs, targets), not {batches!r}")
        self._batches = batches
        self.steps = 0

    def run(self) -> str:
        """Work until the end; return ``"batches used up"`` or ``"told to stop"``.

        Raises:
            RankFailedError: if the server died.
            DeadlineError: if the server does not answer in time.
            ValueError: if the server's model is another.
        """
        self._received = ParameterMessage(self._parameters)
        self._gradients = GradientMessage(self._parameters)
        self._run_is_over = False  # the server expects nothing more from this worker
        self.steps = 0
        with self._team.surviving_failures():
            try:
                return self._work()
            except dist.DistBackendError as error:
                if self._server not in self._team.dead():
                    raise
                raise RankFailedError(
                    f"worker {self._team.rank}: the parameter server, rank {self._server}, died, "
                    "and the model and optimizer are lost with it. Start again from its last "
                    "checkpoint, in a new group"
                ) from error

    def _work(self) -> str:
        try:
            for step, batch in enumerate(self._batches):
                asked = time.perf_counter()
                version = self._fetch(step)
                if version is None:
                    return "told to stop"
                self._contribute(step, version, batch, asked)
        except dist.DistBackendError:
            raise
        except Exception:
            if not self._run_is_over:
                self._tell(Header(messages.BYE))  # the others need not wait for this one
            raise
        self._tell(Header(messages.BYE))
        return "batches used up"

    def _fetch(self, step: int) -> int | None:
        """Ask for parameters; return their version, or None if the run is over."""
        self._tell(Header(messages.HELLO, step=step, layout=self._received.layout))
        numbers = Header.room()
        self._team.receive(numbers, self._server, messages.TAG_REPLY)
        answer = Header.decode(numbers)
        self._run_is_over = answer.kind != messages.READY
        if answer.kind == messages.STOP:
            return None
        if answer.kind == messages.REFUSED:
            raise ValueError(f"worker {self._team.rank}: this model has {messages.OTHER_MODEL}")
        if answer.kind == messages.FAILED:
            raise RuntimeError(f"worker {self._team.rank}: the server failed; see its error")
        self._team.receive(self._received.buffer, self._server, messages.TAG_BODY)
        self._received.unpack(self._parameters)
        return answer.version

    def _contribute(self, step: int, version: int, batch: tuple, asked: float) -> None:
        began = time.perf_counter()
        loss, samples, gradients = compute_gradient(
            self.model, self._parameters, self._loss_function, batch
        )
        self._gradients.write(loss, gradients)
        left = began + self._step_seconds - time.perf_counter()
        time.sleep(max(0.0, left) + self._slowdown)
        self._tell(Header(messages.GRADIENT, version, step, samples, waited=began - asked))
        self._team.send(self._gradients.buffer, self._server, messages.TAG_BODY)
        self.steps += 1

    def _tell(self, header: Header) -> None:
        header.sent, header.machine = time.perf_counter(), clock_identity()
        self._team.send(header.encode(), self._server, messages.TAG_HEADER)
