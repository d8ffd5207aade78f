"""The judges of lesson 08's exercises on a padded test set and on resuming from a checkpoint.

A padded sample must not count twice, and a resumed run must take the same steps as an uninterrupted
one.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler
from torch_mpi4py import world

from course_lib.teaching.distributed_log import recorded
from course_lib.teaching.exercise import WrongAnswer
from course_lib.teaching.judges.collective_calls import need_group, need_one_all_reduce
from course_lib.teaching.judges.failures import in_one_line, need_training_mode, was_kept_waiting
from course_lib.teaching.judges.formulas import name_the_mistake
from course_lib.teaching.judges.rank_groups import TIMEOUT, Findings, judge_findings
from course_lib.teaching.message_log import portable

# ---- accuracy over a padded test set ------------------------------------------------------------


def accuracy_case(samples: int, p: int) -> tuple[list[torch.Tensor], float]:
    """Return what each of ``p`` ranks got right of ``samples``, padded, and the true fraction.

    The right ones are chosen so that each usual mistake gives a different fraction: of the two
    repeated samples, 0 and 1, only the second is right in a small test set, and both in a large.
    """
    truth = torch.tensor([i % 9 != (0 if samples < 100 else 5) for i in range(samples)])
    padded = [list(DistributedSampler(range(samples), p, r, shuffle=False)) for r in range(p)]
    return [truth[indices] for indices in padded], truth.sum().item() / samples


def try_accuracy(global_accuracy, samples: int, group: dist.ProcessGroup) -> dict[str, Any]:
    rank, p = dist.get_rank(group), dist.get_world_size(group)
    right = accuracy_case(samples, p)[0][rank]
    before = right.clone()
    with recorded(group) as log:
        result = global_accuracy(right, samples, group)
    return {"result": result, "calls": log, "changed": not torch.equal(right, before)}


def judge_accuracy(everyone: Findings, samples: int, p: int) -> None:
    judge_findings(everyone)
    shares, truth = accuracy_case(samples, p)
    rights = [int(share.sum()) for share in shares]
    padded = sum(len(share) for share in shares)
    for rank, found in enumerate(everyone[:p]):
        result, calls = found["result"], found["calls"]
        need_group(calls)
        if isinstance(result, int) and result == round(truth * samples):
            raise WrongAnswer("count-not-fraction", rank=rank, result=result, samples=samples)
        if not isinstance(result, float):
            raise WrongAnswer("not-a-float", rank=rank, result=repr(result))
        if not calls:
            raise WrongAnswer("no-communication", rank=rank, result=result)
        if not all(call.waited for call in calls if call.call == "all_reduce"):
            raise WrongAnswer("never-waits")
        if _is(result, truth):
            continue
        if samples > 100 and calls[0].nbytes <= 2:  # with fewer samples it was right
            raise WrongAnswer(
                "too-few-bits",
                samples=samples,
                rank=rank,
                result=result,
                truth=truth,
                bits=8 * calls[0].nbytes,
            )
        if calls[0].call == "reduce" and _is(everyone[0]["result"], truth):
            raise WrongAnswer("only-rank-0", rank=rank, result=result)
        if _is(result, sum(rights) / padded):
            raise WrongAnswer(
                "counts-duplicates",
                rank=rank,
                result=result,
                truth=truth,
                samples=samples,
                padded=padded,
                repeats=padded - samples,
            )
        if _is(result, sum(rights) / samples):
            raise WrongAnswer(
                "duplicates-in-the-numerator",
                rank=rank,
                result=result,
                truth=truth,
                samples=samples,
                padded=padded,
            )
        _name_the_accuracy(rank, result, truth, samples, shares)
        whole = sum(int(share[: samples // p].sum()) for share in shares)
        if _is(result, whole / samples) or _is(result, whole / (samples // p * p)):
            raise WrongAnswer("drops-real-samples", rank=rank, result=result, truth=truth)
        raise WrongAnswer("wrong-value", rank=rank, result=repr(result), truth=repr(truth))
    calls = everyone[0]["calls"]
    need_one_all_reduce(calls)
    if calls[0].nbytes > 16:
        raise WrongAnswer("gathers-everything: by an all-reduce", nbytes=calls[0].nbytes)
    if any(found["changed"] for found in everyone[:p]):
        raise WrongAnswer("changes-its-input")


def _is(result: float, fraction: float) -> bool:
    # Counts in float32 are exact, and fractions have seven digits; one more sample of the larger
    # test set is 3e-4.
    return abs(result - fraction) < 1e-6


def _name_the_accuracy(rank: int, result: float, truth: float, samples: int, shares: list) -> None:
    """Raise the mistake that gives ``result``, if it is one of these."""
    p, entries = len(shares), len(shares[0])
    padded, right = p * entries, round(truth * samples)
    more = round(result * samples) - right
    if 0 < more < padded - samples and _is(result, (right + more) / samples):
        raise WrongAnswer(
            "counts-duplicates: of some",
            rank=rank,
            result=result,
            truth=truth,
            repeats=padded - samples,
            more=more,
        )
    in_blocks = sum(
        int(share[: max(0, min(entries, samples - r * entries))].sum())
        for r, share in enumerate(shares)
    )
    own = [share[: -(-(samples - r) // p)] for r, share in enumerate(shares)]
    any_rank = int(torch.stack(shares).any(dim=0).sum())
    names = {
        "per-cent": 100 * truth,
        "duplicates-in-the-denominator": right / padded,
        "mean-of-means": sum(float(share.double().mean()) for share in own) / p,
        "in-blocks": in_blocks / samples,
        "adds-booleans": any_rank / samples,
    }
    told = {"rank": rank, "result": result, "truth": truth}
    told |= {"padded": padded, "samples": samples, "entries": entries}
    name_the_mistake(names, lambda fraction: _is(result, fraction), **told)


# ---- resume -----------------------------------------------------------------------------------


class _Dropping(nn.Module):
    """A network with dropout, so that the generator's state matters, and with a buffer."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.layers = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5), nn.Linear(6, 1))
        self.register_buffer("batches", torch.zeros(()))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.batches += 1
        return self.layers(inputs)


def _train(ddp, optimizer, steps: range) -> None:
    for step in steps:
        inputs = torch.full((2, 6), 1.0 + step + dist.get_rank())
        optimizer.zero_grad()
        ddp(inputs).square().mean().backward()
        optimizer.step()


def _replica(seed: int, rate: float):
    ddp = DistributedDataParallel(_Dropping(seed))
    return ddp, torch.optim.SGD(ddp.parameters(), lr=rate, momentum=0.9)


SAVED_AT, GOES_ON = 4, 2  # the lesson's own example saves at 3
_UNSET = 55  # seed of a fresh start's generator


def judge_resume(resume) -> None:
    """Save a run after four steps, let the learner's ``resume`` load it, and go on with both."""
    before = torch.get_rng_state()
    try:
        _judge_going_on(*_judged_restoring(resume))
    finally:
        torch.set_rng_state(before)


def _judged_restoring(resume) -> tuple[tuple, tuple]:
    """Return the saved run and the resumed one, each as model, optimizer and random state."""
    comm = world()
    rank = comm.rank
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "checkpoint.pt")  # a copy each: the ranks may be on several hosts
        ddp, optimizer = _replica(seed=0, rate=1e-3)
        torch.manual_seed(100 + rank)
        _train(ddp, optimizer, range(SAVED_AT))
        states = comm.allgather(torch.get_rng_state())
        saved = {
            "model": ddp.module.state_dict(),
            "optimizer": optimizer.state_dict(),
            "step": SAVED_AT,
            "rng": states,
        }
        torch.save(saved, path)
        # A schedule has lowered the rate since; a fresh optimizer has the rate of the first step.
        fresh, fresh_optimizer = _replica(seed=7, rate=1e-2)
        torch.manual_seed(_UNSET)
        try:
            with _short_deadline():
                step = resume(path, fresh, fresh_optimizer)
            found = {"step": step, "kept": path.exists()}
            found |= _restored(fresh, fresh_optimizer, saved, rank)
        except Exception as error:  # told to every rank below, and judged there
            found = {"error": portable(error)}
        _judge_restored(comm.allgather(found))
    return (ddp, optimizer, states[rank]), (fresh, fresh_optimizer, torch.get_rng_state())


@contextmanager
def _short_deadline() -> Iterator[None]:
    """Give collectives of the whole world a short time-out, in case not all ranks call one."""
    group = dist.group.WORLD
    before = group.timeout
    group.set_timeout(TIMEOUT)
    try:
        yield
    finally:
        group.set_timeout(before)


def _restored(ddp, optimizer, saved: dict, rank: int) -> dict[str, Any]:
    model = ddp.module.state_dict()
    same = {name: torch.equal(model[name], tensor) for name, tensor in saved["model"].items()}
    weights = {name for name, _ in ddp.module.named_parameters()}
    state, wanted = optimizer.state_dict()["state"], saved["optimizer"]["state"]
    momentum = state.keys() == wanted.keys() and all(
        torch.equal(state[i]["momentum_buffer"], wanted[i]["momentum_buffer"]) for i in wanted
    )
    rng = torch.get_rng_state()
    whose = [r for r, state in enumerate(saved["rng"]) if torch.equal(rng, state)]
    untouched = torch.equal(rng, torch.Generator().manual_seed(_UNSET).get_state())
    return {
        "weights": all(same[name] for name in weights),
        "buffers": all(same.values()),
        "training": all(module.training for module in ddp.modules()),
        "momentum": momentum,
        "rate": optimizer.param_groups[0]["lr"],
        "rng": whose[0] if whose else "untouched" if untouched else "another",
    }


def _judge_going_on(saved: tuple, resumed: tuple) -> None:
    """Raise unless both runs make the same steps from here on, to the bit."""
    ends: list[list[torch.Tensor]] = []
    mistake: WrongAnswer | None = None
    for ddp, optimizer, state in (saved, resumed):
        torch.set_rng_state(state)
        try:
            with _short_deadline():
                _train(ddp, optimizer, range(SAVED_AT, SAVED_AT + GOES_ON))
        except Exception as error:  # because of what the learner's function left behind
            told = in_one_line(error)
            mistake = WrongAnswer("goes-on-differently: with an exception", error=told)
        ends.append([parameter.detach().clone() for parameter in ddp.parameters()])
    if mistake is None and not all(map(torch.equal, *ends)):
        mistake = WrongAnswer("goes-on-differently", steps=GOES_ON)
    for found in world().allgather(mistake):
        if found is not None:
            raise found


def _judge_restored(everyone: Findings) -> None:
    for found in everyone:
        text = str(found.get("error"))
        if "Missing key" in text and "module." in text:
            raise WrongAnswer("module-prefix") from found["error"]
    waiting = [r for r, found in enumerate(everyone) if was_kept_waiting(found.get("error"))]
    done = [r for r, found in enumerate(everyone) if "error" not in found]
    if waiting and len(waiting) + len(done) == len(everyone):
        raise WrongAnswer(
            "it-hangs",
            rank=waiting[0],
            call=_waits_in(everyone[waiting[0]]),
            count=len(done),
            p=len(everyone),
            other=done[0],
        )
    judge_findings(everyone)
    lacking = [rank for rank, found in enumerate(everyone) if not found["weights"]]
    if lacking and 0 not in lacking:
        raise WrongAnswer("only-rank-0-loads", rank=lacking[0])
    if lacking:
        raise WrongAnswer("weights-not-restored")
    if not all(found["buffers"] for found in everyone):
        raise WrongAnswer("forgets-the-buffers")
    if not all(found["momentum"] for found in everyone):
        raise WrongAnswer("forgets-the-optimizer")
    rates = [found["rate"] for found in everyone]
    if set(rates) != {1e-3}:
        raise WrongAnswer("forgets-the-rate", rate=max(rates), saved=1e-3)
    for rank, found in enumerate(everyone):
        if found["rng"] == "untouched":
            raise WrongAnswer("forgets-the-generator")
        if found["rng"] == "another":
            raise WrongAnswer("another-generator", rank=rank)
    whose = [found["rng"] for found in everyone]
    if whose[1:] and set(whose) == {0}:
        raise WrongAnswer("same-masks-everywhere")
    for rank, found in enumerate(whose):
        if found != rank:
            raise WrongAnswer("another-ranks-generator", rank=rank, found=found)
    for rank, found in enumerate(everyone):
        if found["step"] is None:
            raise WrongAnswer("wrong-step: none at all", rank=rank)
        if not isinstance(found["step"], int):
            kind = type(found["step"]).__name__
            raise WrongAnswer("wrong-step: of another kind", kind=kind)
        if found["step"] != SAVED_AT:
            raise WrongAnswer("wrong-step", step=found["step"], saved_at=SAVED_AT)
    need_training_mode(all(found["training"] for found in everyone))
    if not all(found["kept"] for found in everyone):
        raise WrongAnswer("removes-the-file")


def _waits_in(found: dict[str, Any]) -> str:
    """Return the name of the call that timed out, with which the error's text begins."""
    return f"`{str(found['error']).partition(':')[0]}`"
