"""The checks of lesson 09: an asynchronous program is judged by its messages, never by their times.

Three of them run on the real ranks, two of these against the check's own server or workers. Two are
arithmetic and run in the notebook.
"""

from __future__ import annotations

import random
from math import pi, sin

from course_lib.teaching.exercise import WrongAnswer, as_mistake, exercise
from course_lib.teaching.judges.formulas import Mistake, judge_formula
from course_lib.teaching.judges.trials import second_call

# ---- the worker's side ------------------------------------------------------------------------

WORK_HINTS = [
    "One round is five lines, in the order of the list: compute, send, receive, send, receive. "
    "Everything goes to rank 0 and comes from rank 0.",
    "`dist.recv` fills the tensor that you give it. Create a tensor of one number for ready, and "
    "receive the parameters into `parameters` itself, where the next `compute(parameters)` sees "
    "them. The loss is the last number of the vector that `compute` returned.",
    "```python\n"
    "losses, ready = [], torch.zeros(1)\n"
    "for _ in range(rounds):\n"
    "    message = compute(parameters)\n"
    "    dist.send(torch.ones(1), 0, group=group, tag=1)\n"
    "    ...  # receive ready, tag 2\n"
    "    ...  # send the message, tag 3\n"
    "    ...  # receive the parameters, tag 4\n"
    "    losses.append(message[-1].item())\n"
    "return losses\n"
    "```",
]


@exercise("09.work", function="work", where="engines", hints=WORK_HINTS)
def check_work(work) -> str:
    from .judge_parameter_server import ROUNDS, attempted, judge_work, observe_work

    attempted(work, None, None, 0, None)
    judge_work(observe_work(work))
    with second_call():
        judge_work(observe_work(work))
    return f"Every worker knocked, was served alone, and handed in {ROUNDS} gradients."


# ---- the server's side ------------------------------------------------------------------------

SERVE_HINTS = [
    "The loop runs once per gradient, not once per worker. Only the hello is received "
    "without a source; all messages after it go to or come from the worker that sent it.",
    "`worker = dist.recv(hello, group=group, tag=1)`, without a source, returns the sender. The "
    "gradient message has `len(parameters) + 1` numbers: the last one is the loss.",
    "```python\n"
    "served = []\n"
    "hello, message = torch.zeros(1), torch.zeros(len(parameters) + 1)\n"
    "for _ in range(rounds):\n"
    "    worker = dist.recv(hello, group=group, tag=1)\n"
    "    ...  # ready, tag 2\n"
    "    dist.recv(message, worker, group=group, tag=3)\n"
    "    update(parameters, message[:-1])\n"
    "    ...  # the parameters, tag 4\n"
    "    served.append(worker)\n"
    "return served\n"
    "```",
]


@exercise("09.serve", function="serve", where="engines", hints=SERVE_HINTS)
def check_serve(serve) -> str:
    from .judge_parameter_server import attempted, judge_serve, observe_serve

    attempted(serve, [], None, 0, None)
    judge_serve(observe_serve(serve))
    with second_call():
        judge_serve(observe_serve(serve))
    return "Your server took the workers as they came, and did not wait for the straggler."


# ---- staleness from the order -----------------------------------------------------------------

STALENESS_HINTS = [
    "For each worker, remember one number: the version at which it fetched its parameters. At "
    "the beginning this is 0 for all of them.",
    "Update v is made when the server is at version v. The staleness is v minus the version that "
    "this worker had fetched. After the update the server is at version v + 1, and the worker "
    "fetches that version now.",
    "```python\n"
    "fetched, result = {}, []\n"
    "for version, worker in enumerate(order):\n"
    "    result.append(version - fetched.get(worker, 0))\n"
    "    fetched[worker] = ...\n"
    "return result\n"
    "```",
]


def _orders() -> list[list[int]]:
    generator = random.Random(9)
    chance = [[generator.choice([1, 1, 2, 3]) for _ in range(12)] for _ in range(5)]
    return [[1, 2, 3, 1, 2, 3], [1, 1, 1], [2, 1, 1, 2], *chance, [5, 8, 5, 0, 8, 5]]


def _staleness(order: list[int], *, first_is_fresh=False, at_end=1, forget=False) -> list[int]:
    fetched: dict[int, int] = {}
    result = []
    for version, worker in enumerate(order):
        result.append(version - fetched.get(worker, version if first_is_fresh else 0))
        fetched[worker] = 0 if forget else version + at_end
    return result


def _own_updates(order: list[int]) -> list[int]:
    return [order[:version].count(worker) for version, worker in enumerate(order)]


STALENESS_MISTAKES = (
    Mistake("counts-its-own-update", lambda order: _staleness(order, at_end=0)),
    Mistake("counts-itself", lambda order: [s + 1 for s in _staleness(order)]),
    Mistake("first-is-fresh", lambda order: _staleness(order, first_is_fresh=True)),
    Mistake("never-fetches", lambda order: _staleness(order, forget=True)),
    Mistake(
        "counts-workers",
        lambda order: [len(set(order[v - s : v])) for v, s in enumerate(_staleness(order))],
    ),
    Mistake("counts-own-updates", _own_updates),
)


@exercise("09.staleness", function="staleness", where="notebook", hints=STALENESS_HINTS)
def check_staleness(staleness) -> str:
    orders = _orders()
    first = staleness(orders[0])
    if isinstance(first, (int, float)):
        raise WrongAnswer("one-number", first=repr(first))
    if orders != _orders():
        raise WrongAnswer("changes-its-input")
    judge_formula(staleness, _staleness, STALENESS_MISTAKES, [(order,) for order in orders])
    return "Note that for W workers the mean of a long list is just below W - 1."


# ---- the rate over staleness ------------------------------------------------------------------

RATE_HINTS = [
    "The rule is `base / staleness`. For which staleness does this division fail, and what should "
    "the result be in that case?",
    "A fresh gradient, with staleness 0, is the best there is, so it gets `base`. So does one "
    "with staleness 1. The rate falls only from staleness 2 on.",
    "`max(1, staleness)` is 1 for staleness 0 and 1, and equals the staleness from there on.",
]


def _rate(base: float, staleness: int) -> float:
    return base / max(1, staleness)


RATE_MISTAKES = (
    Mistake("stability-bound", lambda base, s: base * sin(pi / (4 * s + 2))),
    Mistake("stability-bound", lambda base, s: base * 2 * sin(pi / (4 * s + 2))),
    Mistake("stability-bound", lambda base, s: min(base, 2 * sin(pi / (4 * s + 2)))),
    Mistake("plus-one", lambda base, s: base / (s + 1)),
    Mistake("multiplies", lambda base, s: base * max(1, s)),
    Mistake("square-root", lambda base, s: base / max(1, s) ** 0.5),
    Mistake("whole-numbers", lambda base, s: base // max(1, s)),
    Mistake("constant", lambda base, s: base),
)


@exercise("09.rate_for", function="rate_for", where="notebook", hints=RATE_HINTS)
def check_rate_for(rate_for) -> str:
    try:
        fresh = rate_for(0.5, 0)
    except ZeroDivisionError as error:
        raise WrongAnswer("division-by-zero") from error
    cases = [*((0.5, age) for age in (0, 1, 2, 4, 10, 40)), (0.03, 7)]
    if any(rate_for(*case) is None for case in cases):
        raise WrongAnswer("returns-nothing")
    only_fresh = Mistake("fresh-is-special", lambda base, s: _rate(base, s) if s else fresh)
    judge_formula(rate_for, _rate, [*RATE_MISTAKES, only_fresh], cases)
    return "Fresh gradients keep the full rate; the older a gradient is, the less it counts."


# ---- gossip -----------------------------------------------------------------------------------

GOSSIP_HINTS = [
    "Both ranks run the same lines, so both would send first. What can a rank *start* without "
    "waiting for it to finish? And where do you receive while `value` is still being sent?",
    "`sending = dist.isend(value, partner, group=group)` returns at once. Then receive into a new "
    "tensor, call `sending.wait()`, and return the mean of both as a new tensor.",
    "```python\n"
    "theirs = torch.empty_like(value)\n"
    "sending = dist.isend(value, partner, group=group)\n"
    "...  # receive from the partner into `theirs`\n"
    "sending.wait()\n"
    "return ...  # the mean of value and theirs\n"
    "```",
]


@exercise("09.gossip", function="gossip", where="engines", hints=GOSSIP_HINTS)
def check_gossip(gossip) -> str:
    from .judge_gossip import SECOND_NEXT, judge_digits, judge_gossip, observe_gossip

    judge_gossip(observe_gossip(gossip))
    seen = observe_gossip(gossip, SECOND_NEXT)
    judge_digits(seen)
    with as_mistake("partner-is-fixed"):
        judge_gossip(seen, SECOND_NEXT)
    return "Both partners hold their mean, so the mean over all ranks has not changed."
