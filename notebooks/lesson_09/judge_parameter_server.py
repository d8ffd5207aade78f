"""The judges of lesson 09's exercises on the worker and on the server.

Both are right if they send the right messages in the right order. A judge is given what happened on
every rank and raises :class:`WrongAnswer` with the name of the mistake that it recognises. Nothing
is judged by how long it took.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch_mpi4py import world

from course_lib.teaching.exercise import WrongAnswer
from course_lib.teaching.judges.failures import not_attempted
from course_lib.teaching.judges.messages import all_waited, judge_hang, no_collective
from course_lib.teaching.message_log import Observation

from .message_recording import Message, observe_messages, recorded_messages

HELLO, READY, GRADIENT, PARAMETERS = 1, 2, 3, 4
WORDS = {HELLO: "hello", READY: "ready", GRADIENT: "gradient", PARAMETERS: "parameters"}
N = 5  # parameters
BYTES = 4 * (N + 1)
ROUNDS = 3  # of each worker
_NOWHERE = object()  # no group: every message is refused


def judge_first(seen: Observation) -> None:
    """Raise the mistakes that can occur in each of these exercises."""
    not_attempted(seen.errors)
    for error in seen.errors:
        if type(error).__name__ == "OutsideTheGroupError" or "OutsideTheGroupError" in str(error):
            raise WrongAnswer("forgets-the-group")
    no_collective(seen)


def _judge_tags(log: list, who: str, tags: dict[str, tuple[int, int]]) -> None:
    """Raise if a message has a tag that this side does not send or receive."""
    for event in log:
        if event.tag not in tags[event.kind]:
            first, second = (f"{tag} ({WORDS[tag]})" for tag in tags[event.kind])
            does = "sends" if event.kind == "send" else "receives"
            raise WrongAnswer(
                "wrong-tag", who=who, does=does, tag=event.tag, first=first, second=second
            )


def attempted(function: Callable, *args) -> None:
    """Find out without any message whether the function is still the stub."""
    with recorded_messages(only=_NOWHERE):
        try:
            inspect.unwrap(function)(*args)
        except NotImplementedError:
            raise
        except Exception:  # the trials below will find whatever else is wrong
            return


# ---- the worker's side ------------------------------------------------------------------------


def gradient_at(parameters: torch.Tensor, worker: int) -> torch.Tensor:
    """Return whole numbers that show which worker computed them, and at which parameters."""
    loss = parameters.sum().view(1) + 100 * worker
    return torch.cat([parameters + worker, loss])


def observe_work(work: Callable) -> Observation:
    """Return per worker its losses, the inputs of ``compute`` with times, and its parameters."""

    def call(group):
        if dist.get_rank(group) == 0:
            return _reference_server(group, ROUNDS * (dist.get_world_size(group) - 1))
        parameters, inputs, times = torch.ones(N), [], []

        def compute(at: torch.Tensor) -> torch.Tensor:
            inputs.append(at.tolist())
            times.append(time.perf_counter())
            return gradient_at(at, dist.get_rank(group))

        losses = work(compute, parameters, ROUNDS, group)
        return losses, inputs, times, parameters.tolist()

    return observe_messages(call)


def _reference_server(group, rounds: int) -> list[list]:
    """Serve with parameters that are different each time; return what each worker was sent."""
    sent: list[list] = [[] for _ in range(dist.get_world_size(group))]
    hello, message = torch.zeros(1), torch.zeros(N + 1)
    for version in range(1, rounds + 1):
        worker = dist.recv(hello, group=group, tag=HELLO)
        dist.send(torch.ones(1), worker, group=group, tag=READY)
        dist.recv(message, worker, group=group, tag=GRADIENT)
        parameters = torch.arange(N).float() + 10 * version
        dist.send(parameters, worker, group=group, tag=PARAMETERS)
        sent[worker].append(parameters.tolist())
    return sent


def judge_work(seen: Observation) -> None:
    judge_first(seen)
    for worker in range(1, len(seen.logs)):
        _judge_conversation(seen, worker)
    judge_hang(seen)
    all_waited(seen)  # otherwise the parameters depend on when messages came
    for worker in range(1, len(seen.logs)):
        _judge_worked(seen, worker, seen.results[0][worker])


def _judge_conversation(seen: Observation, worker: int) -> None:
    log = [event for event in seen.logs[worker] if event.kind in ("send", "recv")]
    said = [event.tag for event in log if event.kind == "send"]
    who = f"worker {worker}"
    _judge_tags(log, who, {"send": (HELLO, GRADIENT), "recv": (READY, PARAMETERS)})
    if GRADIENT in said and HELLO not in said[: said.index(GRADIENT)]:
        raise WrongAnswer("no-hello", who=who)
    if any(event.kind == "recv" and event.any_source for event in log):
        raise WrongAnswer("from-anyone", who=who)
    hello_open = False  # sent, and not answered yet
    for event in log:
        if event.tag == READY:
            hello_open = False
        elif event.tag == HELLO:
            hello_open = True
        elif event.tag == GRADIENT and hello_open:
            raise WrongAnswer("does-not-wait-for-ready", who=who)
    for event in log:
        if event.kind == "send" and event.tag == HELLO and not _is_one(event):
            raise WrongAnswer("wrong-words", who=who, content=event.content, nbytes=event.nbytes)
        if event.kind == "send" and event.tag == GRADIENT and event.nbytes == BYTES - 4:
            raise WrongAnswer("forgets-the-loss", who=who, n=N, together=N + 1)
    rounds = said.count(GRADIENT)
    fetched = sum(event.kind == "recv" and event.tag == PARAMETERS for event in log)
    if rounds and not fetched:
        raise WrongAnswer("never-fetches", who=who)
    hellos = said.count(HELLO)
    if hellos > ROUNDS:
        raise WrongAnswer("wrong-number-of-rounds", who=who, hellos=hellos, rounds=ROUNDS)
    if seen.hung and seen.errors[worker] is None and hellos < ROUNDS:
        raise WrongAnswer("wrong-number-of-rounds: too few", who=who, hellos=hellos, rounds=ROUNDS)


def _is_one(event: Message) -> bool:
    """Tell whether a message is the tensor ``[1.0]``, in float32."""
    return event.content == [1.0] and event.nbytes == 4


def _judge_worked(seen: Observation, worker: int, sent: list[list]) -> None:
    losses, inputs, times, parameters = seen.results[worker]
    log, who = seen.logs[worker], f"worker {worker}"
    if len(inputs) != ROUNDS:
        raise WrongAnswer("wrong-number-of-gradients", who=who, count=len(inputs), rounds=ROUNDS)
    if inputs[1:] != sent[:-1]:
        raise WrongAnswer("computes-at-old-parameters", who=who, given=inputs[1], wanted=sent[0])
    if parameters not in ([1.0] * N, *sent):  # the initial ones, or any that were sent
        raise WrongAnswer("changes-them", who=who, parameters=parameters, wanted=sent[-1])
    fetched = sum(event.kind == "recv" and event.tag == PARAMETERS for event in log)
    if fetched < ROUNDS:
        raise WrongAnswer("never-fetches: the last", who=who, fetched=fetched, rounds=ROUNDS)
    if parameters != sent[-1]:
        raise WrongAnswer("another-tensor", who=who, parameters=parameters, wanted=sent[-1])
    hellos = [event.start for event in log if event.kind == "send" and event.tag == HELLO]
    if any(computed > hello for computed, hello in zip(times, hellos, strict=False)):
        raise WrongAnswer("keeps-the-server-waiting", who=who)
    expected = [sum(at) + 100 * worker for at in inputs]
    if not isinstance(losses, list) or [_number(loss) for loss in losses] != expected:
        raise WrongAnswer("wrong-losses", who=who, losses=repr(losses), expected=expected)
    if any(not isinstance(loss, float) for loss in losses):
        raise WrongAnswer("wrong-losses: as tensors", who=who, losses=repr(losses))


def _number(value) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


# ---- the server's side ------------------------------------------------------------------------


def observe_serve(serve: Callable) -> Observation:
    """Return on rank 0 what ``serve`` did, and on a worker the parameters that it was sent."""

    def call(group):
        size = dist.get_world_size(group)
        if dist.get_rank(group) > 0:
            return _reference_worker(group, dist.get_rank(group), size)
        parameters, lengths = torch.zeros(N), []

        def update(values: torch.Tensor, gradient: torch.Tensor) -> None:
            lengths.append(len(gradient))
            values += gradient[:N]

        served = serve(parameters, update, 2 * (size - 1), group)
        return served, lengths, parameters.tolist()

    return observe_messages(call)


def _reference_worker(group, rank: int, size: int) -> list[list]:
    """Hand in two gradients; worker 1 is the straggler, which waits until the others are done."""
    comm, tag = world(), 77
    if rank == 1:
        for other in range(2, size):
            comm.recv(source=other, tag=tag)
    try:
        return _two_gradients(group, rank)
    finally:
        if rank != 1:
            comm.send(None, dest=1, tag=tag)  # even after a failure: worker 1 waits


def _two_gradients(group, rank: int) -> list[list]:
    ready, parameters, got = torch.zeros(1), torch.zeros(N), []
    for _ in range(2):
        dist.send(torch.ones(1), 0, group=group, tag=HELLO)
        dist.recv(ready, 0, group=group, tag=READY)
        message = torch.full((N + 1,), 10.0**rank)
        message[N] = 0.5  # the loss
        dist.send(message, 0, group=group, tag=GRADIENT)
        dist.recv(parameters, 0, group=group, tag=PARAMETERS)
        got.append(parameters.tolist())
    return got


def judge_serve(seen: Observation) -> None:
    judge_first(seen)
    log = [event for event in seen.logs[0] if event.kind in ("send", "recv")]
    _judge_listening(seen, log)
    judge_hang(seen)
    served, lengths, parameters = seen.results[0]
    if any(length == N + 1 for length in lengths):
        raise WrongAnswer("loss-in-the-gradient", together=N + 1, n=N)
    for length in lengths:
        if length != N:
            raise WrongAnswer("part-of-the-gradient", given=length, n=N)
    _judge_parameters(seen, log, lengths, parameters)
    order = [event.peer for event in log if event.kind == "recv" and event.tag == GRADIENT]
    if served != order:
        raise WrongAnswer("wrong-order", served=repr(served), order=order)
    all_waited(seen)


def _judge_listening(seen: Observation, log: list) -> None:
    heard = [event for event in log if event.kind == "recv" and event.tag == HELLO]
    if any(event.any_source for event in heard):
        _judge_tags(log, "the server", {"recv": (HELLO, GRADIENT), "send": (READY, PARAMETERS)})
    if not heard:
        raise WrongAnswer("nobody-listens")
    if not any(event.any_source for event in heard):
        raise WrongAnswer("fixed-order", worker=heard[0].peer or 1)
    if any(e.kind == "recv" and e.tag == GRADIENT and e.any_source for e in log):
        raise WrongAnswer("gradient-from-anyone")
    _judge_answers(seen, log)
    if not any(event.kind == "send" and event.tag == READY for event in log):
        raise WrongAnswer("no-answer")
    for event in log:
        if event.kind == "send" and event.tag == READY and not _is_one(event):
            raise WrongAnswer("wrong-words", peer=event.peer, content=event.content)
    finished = all(seen.errors[worker] is None for worker in range(1, len(seen.logs)))
    if seen.hung and finished:
        raise WrongAnswer("serves-too-many")


def _judge_answers(seen: Observation, log: list) -> None:
    """Raise if the server answers another worker than the one that said hello last."""
    unanswered = None
    for event in log:
        if event.tag == HELLO and unanswered is not None and seen.hung:
            raise WrongAnswer("collects-hellos", unanswered=unanswered)
        if event.tag == HELLO and event.finished:
            unanswered = event.peer
        elif event.tag == READY and unanswered not in (None, event.peer):
            raise WrongAnswer("answers-another", unanswered=unanswered, peer=event.peer)
        elif event.tag == READY:
            unanswered = None


def _judge_parameters(seen: Observation, log, lengths: list[int], parameters: list) -> None:
    total = sum(2 * 10.0**worker for worker in range(1, len(seen.logs)))
    if not lengths:
        raise WrongAnswer("never-updates")
    if parameters != [total] * N:
        raise WrongAnswer("wrong-parameters", parameters=parameters, wanted=[total] * N)
    so_far, heard = 0.0, 0.0
    for event in log:
        if event.kind == "recv" and event.tag == GRADIENT:
            heard = 10.0**event.peer
        elif event.kind == "send" and event.tag == PARAMETERS:
            if event.content == [so_far] * N:
                raise WrongAnswer("sends-before-updating", peer=event.peer)
            so_far += heard
