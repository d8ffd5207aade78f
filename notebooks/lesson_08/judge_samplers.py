"""A padded sample must not count twice, nor an interrupted run begin differently.

The judges behind the checks of lesson 08 about accuracy over a padded test set and about what a
checkpoint brings back.
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
from course_lib.teaching.judges.failures import in_one_line, was_kept_waiting
from course_lib.teaching.judges.rank_groups import TIMEOUT, Findings, judge_findings
from course_lib.teaching.judges.watched_all_reduces import watched_all_reduces
from course_lib.teaching.message_log import portable

# ---- accuracy over a padded test set ------------------------------------------------------------


def accuracy_case(samples: int, p: int) -> tuple[list[torch.Tensor], float]:
    """Return what each of ``p`` ranks got right of ``samples``, padded, and the true fraction.

    Which ones are right is chosen so that each usual mistake gives another fraction: of the two
    samples that are repeated, 0 and 1, only the second in a small test set, both in a large one.
    """
    truth = torch.tensor([i % 9 != (0 if samples < 100 else 5) for i in range(samples)])
    padded = [list(DistributedSampler(range(samples), p, r, shuffle=False)) for r in range(p)]
    return [truth[indices] for indices in padded], truth.sum().item() / samples


def try_accuracy(global_accuracy, samples: int, group: dist.ProcessGroup) -> dict[str, Any]:
    rank, p = dist.get_rank(group), dist.get_world_size(group)
    right = accuracy_case(samples, p)[0][rank]
    with recorded(group) as log, watched_all_reduces(group, lambda: "inside") as all_reduces:
        result = global_accuracy(right, samples, group)
        waited = all(call.waited or call.told for call in all_reduces)
    return {"result": result, "calls": log, "waited": waited}


def judge_accuracy(everyone: Findings, samples: int, p: int) -> None:
    judge_findings(everyone)
    shares, truth = accuracy_case(samples, p)
    rights = [int(share.sum()) for share in shares]
    padded = sum(len(share) for share in shares)
    for rank, found in enumerate(everyone[:p]):
        result, calls = found["result"], found["calls"]
        need_group(calls)
        if isinstance(result, int) and result == round(truth * samples):
            raise WrongAnswer(
                "count-not-fraction",
                f"rank {rank} returned {result}: so many are right. Divide by the {samples} there "
                "are",
            )
        if not isinstance(result, float):
            raise WrongAnswer(
                "not-a-float", f"rank {rank} returned {result!r}, which is no Python float"
            )
        if not calls:
            raise WrongAnswer(
                "no-communication",
                f"rank {rank} returned {result:.4g}, and asked nobody. Its own samples are only a "
                "part of the test set",
            )
        if not found["waited"]:
            raise WrongAnswer(
                "never-waits",
                "the all-reduce is asked for with `async_op=True`, and nobody waits for it: its "
                "tensor may still hold this rank's own number when it is read",
            )
        if _is(result, truth):
            continue
        if samples > 100 and calls[0].nbytes <= 2:  # with fewer samples it was right
            raise WrongAnswer(
                "too-few-bits",
                f"with {samples} samples rank {rank} returned {result:.4g}, not {truth:.4g}: so "
                f"large a count does not fit into the {8 * calls[0].nbytes} bits of a number that "
                "is added up",
            )
        if calls[0].call == "reduce" and _is(everyone[0]["result"], truth):
            raise WrongAnswer(
                "only-rank-0",
                f"rank 0 returned the right fraction, but rank {rank} {result:.4g}. `dist.reduce` "
                "leaves the sum with one rank, `dist.all_reduce` with all of them",
            )
        if _is(result, sum(rights) / padded):
            raise WrongAnswer(
                "counts-duplicates",
                f"rank {rank} returned {result:.4g}; the test set has {truth:.4g}. The sampler "
                f"filled up {samples} samples to {padded}, so {padded - samples} count twice",
            )
        if _is(result, sum(rights) / samples):
            raise WrongAnswer(
                "duplicates-in-the-numerator",
                f"rank {rank} returned {result:.4g}, not {truth:.4g}: it divides by the {samples} "
                f"samples there are, but counts the right ones among {padded}",
            )
        _name_the_accuracy(rank, result, truth, samples, shares)
        whole = sum(int(share[: samples // p].sum()) for share in shares)
        if _is(result, whole / samples) or _is(result, whole / (samples // p * p)):
            raise WrongAnswer(
                "drops-real-samples",
                f"rank {rank} returned {result:.4g}, not {truth:.4g}: it leaves out the last entry "
                "of every rank. Only some of those are padding",
            )
        raise WrongAnswer("wrong-value", f"rank {rank} returned {result!r}, not {truth!r}")
    calls = everyone[0]["calls"]
    need_one_all_reduce(calls, "moves every rank's list. The sum of a single number is enough")
    if calls[0].nbytes > 16:
        raise WrongAnswer(
            "gathers-everything",
            f"right, but the all_reduce moves {calls[0].nbytes} bytes. A single number is enough",
        )


def _is(result: float, fraction: float) -> bool:
    # Counts in float32 are exact, their fraction is to seven digits; one sample more of the
    # larger test set is 3e-4.
    return abs(result - fraction) < 1e-6


def _name_the_accuracy(rank: int, result: float, truth: float, samples: int, shares: list) -> None:
    """Raise the mistake that gives ``result``, if it is one of these."""
    p, entries = len(shares), len(shares[0])
    padded, right = p * entries, round(truth * samples)
    told = f"rank {rank} returned {result:.4g}, not {truth:.4g}"
    more = round(result * samples) - right
    if 0 < more < padded - samples and _is(result, (right + more) / samples):
        raise WrongAnswer(
            "counts-duplicates",
            f"{told}: of the {padded - samples} repeats it still counts {more}",
        )
    in_blocks = sum(
        int(share[: max(0, min(entries, samples - r * entries))].sum())
        for r, share in enumerate(shares)
    )
    own = [share[: -(-(samples - r) // p)] for r, share in enumerate(shares)]
    any_rank = int(torch.stack(shares).any(dim=0).sum())
    names = {
        "per-cent": (100 * truth, "it is in per cent. Return a fraction, between 0 and 1"),
        "duplicates-in-the-denominator": (
            right / padded,
            f"it counts the right ones without repeats, but divides by {padded} entries instead of "
            f"{samples} samples",
        ),
        "mean-of-means": (
            sum(float(share.double().mean()) for share in own) / p,
            "it is the mean of the ranks' own fractions. Without repeats not all ranks have "
            "equally many samples: add up counts, and divide once",
        ),
        "in-blocks": (
            in_blocks / samples,
            f"it takes rank r for the one with the samples from r * {entries} on. The sampler "
            "deals them out in turn: entry k of rank r is sample r + k * p",
        ),
        "adds-booleans": (
            any_rank / samples,
            "added up, booleans say only whether *any* rank is right. Count first, then add up "
            "numbers",
        ),
    }
    for name, (fraction, explanation) in names.items():
        if _is(result, fraction):
            raise WrongAnswer(name, f"{told}: {explanation}")


# ---- resume -----------------------------------------------------------------------------------


class _Dropping(nn.Module):
    """A layer and dropout, so that the generator's state matters."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.layers = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5), nn.Linear(6, 1))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.layers(inputs)


def _train(ddp, optimizer, steps: range) -> None:
    for step in steps:
        inputs = torch.full((2, 6), 1.0 + step + dist.get_rank())
        optimizer.zero_grad()
        ddp(inputs).square().mean().backward()
        optimizer.step()


def _replica(seed: int):
    ddp = DistributedDataParallel(_Dropping(seed))
    return ddp, torch.optim.SGD(ddp.parameters(), lr=1e-3, momentum=0.9)


SAVED_AT, GOES_ON = 3, 2
_UNSET = 55  # seed of a fresh start's generator


def judge_resume(resume) -> None:
    """Save a run after three steps, let the learner's ``resume`` load it, and go on with both."""
    before = torch.get_rng_state()
    try:
        _judge_going_on(*_judged_restoring(resume))
    finally:
        torch.set_rng_state(before)


def _judged_restoring(resume) -> tuple[tuple, tuple]:
    """Return the run that was saved and the one resumed, each model, optimizer and generator."""
    comm = world()
    rank = comm.rank
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "checkpoint.pt")  # a copy each: the ranks may be on several hosts
        ddp, optimizer = _replica(seed=0)
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
        fresh, fresh_optimizer = _replica(seed=7)
        torch.manual_seed(_UNSET)
        try:
            with _short_deadline():
                step = resume(path, fresh, fresh_optimizer)
            found = {"step": step, **_restored(fresh, fresh_optimizer, saved, rank)}
        except Exception as error:  # told to every rank below, and judged there
            found = {"error": portable(error)}
        _judge_restored(comm.allgather(found))
    return (ddp, optimizer, states[rank]), (fresh, fresh_optimizer, torch.get_rng_state())


@contextmanager
def _short_deadline() -> Iterator[None]:
    """Let a collective of the whole world that not all ranks call end soon."""
    group = dist.group.WORLD
    before = group.timeout
    group.set_timeout(TIMEOUT)
    try:
        yield
    finally:
        group.set_timeout(before)


def _restored(ddp, optimizer, saved: dict, rank: int) -> dict[str, Any]:
    model = ddp.module.state_dict()
    weights = all(torch.equal(model[name], tensor) for name, tensor in saved["model"].items())
    state, wanted = optimizer.state_dict()["state"], saved["optimizer"]["state"]
    momentum = state.keys() == wanted.keys() and all(
        torch.equal(state[i]["momentum_buffer"], wanted[i]["momentum_buffer"]) for i in wanted
    )
    rng = torch.get_rng_state()
    whose = [r for r, state in enumerate(saved["rng"]) if torch.equal(rng, state)]
    untouched = torch.equal(rng, torch.Generator().manual_seed(_UNSET).get_state())
    return {
        "weights": weights,
        "momentum": momentum,
        "rng": whose[0] if whose else "untouched" if untouched else "another",
    }


def _judge_going_on(saved: tuple, resumed: tuple) -> None:
    """Raise unless both runs make the same steps from here on, to the bit."""
    ends, difference = [], ""
    for ddp, optimizer, state in (saved, resumed):
        torch.set_rng_state(state)
        try:
            with _short_deadline():
                _train(ddp, optimizer, range(SAVED_AT, SAVED_AT + GOES_ON))
        except Exception as error:  # in what the learner's function has left behind
            difference = f"the next step raises {in_one_line(error)}"
        ends.append([parameter.detach().clone() for parameter in ddp.parameters()])
    if not difference and not all(map(torch.equal, *ends)):
        difference = f"{GOES_ON} steps later the weights are not those of the run that went on"
    for found in world().allgather(difference):
        if found:
            raise WrongAnswer(
                "goes-on-differently",
                f"all numbers are back, but {found}. Is the model in training mode, and does the "
                "optimizer know its momentum as that of its parameters? "
                "`optimizer.load_state_dict` sees to it",
            )


def _judge_restored(everyone: Findings) -> None:
    for found in everyone:
        text = str(found.get("error"))
        if "Missing key" in text and "module." in text:
            raise WrongAnswer(
                "module-prefix",
                "the names do not fit: DDP's own `state_dict` has `module.` before each name, the "
                "checkpoint has not. Load into `ddp.module`",
            ) from found["error"]
    waiting = [r for r, found in enumerate(everyone) if was_kept_waiting(found.get("error"))]
    done = [r for r, found in enumerate(everyone) if "error" not in found]
    if waiting and len(waiting) + len(done) == len(everyone):
        raise WrongAnswer(
            "it-hangs",
            f"rank {waiting[0]} waits in a collective call, {_waits_in(everyone[waiting[0]])}, for "
            f"ranks that never make it: on {len(done)} of {len(everyone)} ranks, {done[0]} among "
            "them, `resume` ended without it. What one rank calls, all must call",
        )
    judge_findings(everyone)
    lacking = [rank for rank, found in enumerate(everyone) if not found["weights"]]
    if lacking and 0 not in lacking:
        raise WrongAnswer(
            "only-rank-0-loads",
            f"rank {lacking[0]} still has its fresh weights. DDP broadcast them when it was built, "
            "and does not again: every rank has to load",
        )
    if lacking:
        raise WrongAnswer(
            "weights-not-restored",
            "the weights are not those of the checkpoint. (With `strict=False` names that do not "
            "fit are skipped without a word.)",
        )
    if not all(found["momentum"] for found in everyone):
        raise WrongAnswer(
            "forgets-the-optimizer",
            "the weights are back, but the optimizer begins without its momentum, and its first "
            "steps will differ. Load its state too",
        )
    for rank, found in enumerate(everyone):
        if found["rng"] == "untouched":
            raise WrongAnswer(
                "forgets-the-generator",
                "weights and momentum are back, but dropout will draw other masks than the run "
                "that was not interrupted: restore the random state",
            )
        if found["rng"] == "another":
            raise WrongAnswer(
                "another-generator",
                f"rank {rank} set its random state, but not to what was saved; or something has "
                "drawn from it since. `torch.manual_seed` begins anew, `torch.set_rng_state` goes "
                "on",
            )
    whose = [found["rng"] for found in everyone]
    if whose[1:] and set(whose) == {0}:
        raise WrongAnswer(
            "same-masks-everywhere",
            "every rank took rank 0's random state, so all will drop the same units. Rank r's "
            'own state is `checkpoint["rng"][r]`',
        )
    for rank, found in enumerate(whose):
        if found != rank:
            raise WrongAnswer(
                "another-ranks-generator",
                f"rank {rank} took the random state of rank {found}. Its own is "
                f'`checkpoint["rng"][{rank}]`',
            )
    for rank, found in enumerate(everyone):
        if found["step"] is None:
            raise WrongAnswer("wrong-step", f"it returned nothing on rank {rank}: return the step")
        if not isinstance(found["step"], int):
            kind = type(found["step"]).__name__
            raise WrongAnswer(
                "wrong-step", f"it returned a {kind}. Return the number of the next step"
            )
        if found["step"] != SAVED_AT:
            raise WrongAnswer(
                "wrong-step",
                f"it returned {found['step']}. The checkpoint counts the steps that were *done*, "
                f"{SAVED_AT}, which is also the number of the next one, counted from 0",
            )


def _waits_in(found: dict[str, Any]) -> str:
    """Return the name of the call that was given up, which begins the error's text."""
    return f"`{str(found['error']).partition(':')[0]}`"
