"""A padded sample must not count twice, nor an interrupted run begin differently.

The judges behind the checks of lesson 08 about accuracy over a padded test set and about what a
checkpoint brings back.
"""

from __future__ import annotations

import tempfile
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
from course_lib.teaching.judges.rank_groups import Findings, judge_findings
from course_lib.teaching.message_log import portable

# ---- accuracy over a padded test set ------------------------------------------------------------


def accuracy_case(samples: int, p: int) -> tuple[list[torch.Tensor], float]:
    """Return what each of ``p`` ranks got right of ``samples``, padded, and the true fraction."""
    truth = torch.tensor([i % 3 == 0 for i in range(samples)])
    padded = [list(DistributedSampler(range(samples), p, r, shuffle=False)) for r in range(p)]
    return [truth[indices] for indices in padded], truth.sum().item() / samples


def try_accuracy(global_accuracy, samples: int, group: dist.ProcessGroup) -> dict[str, Any]:
    rank, p = dist.get_rank(group), dist.get_world_size(group)
    right = accuracy_case(samples, p)[0][rank]
    with recorded(group) as log:
        result = global_accuracy(right, samples, group)
    return {"result": result, "calls": log}


def judge_accuracy(everyone: Findings, samples: int, p: int) -> None:
    judge_findings(everyone)
    shares, truth = accuracy_case(samples, p)
    rights = [int(share.sum()) for share in shares]
    padded = sum(len(share) for share in shares)
    for rank, found in enumerate(everyone[:p]):
        result, calls = found["result"], found["calls"]
        need_group(calls)
        if not isinstance(result, float):
            kind = type(result).__name__
            raise WrongAnswer("not-a-float", f"rank {rank} returned a {kind}, not a Python float")
        if not calls:
            raise WrongAnswer(
                "no-communication",
                f"rank {rank} returned {result:.4g}, and asked nobody. Its own samples are only a "
                "part of the test set",
            )
        if abs(result - truth) < 1e-6:
            continue
        if calls[0].call == "reduce" and abs(everyone[0]["result"] - truth) < 1e-6:
            raise WrongAnswer(
                "only-rank-0",
                f"rank 0 returned the right fraction, but rank {rank} {result:.4g}. `dist.reduce` "
                "leaves the sum with one rank, `dist.all_reduce` with all of them",
            )
        if abs(result - sum(rights) / padded) < 1e-6:
            raise WrongAnswer(
                "counts-duplicates",
                f"rank {rank} returned {result:.4g}; the test set has {truth:.4g}. The sampler "
                f"filled up {samples} samples to {padded}, so {padded - samples} count twice",
            )
        if abs(result - sum(rights) / samples) < 1e-6:
            raise WrongAnswer(
                "duplicates-in-the-numerator",
                f"rank {rank} returned {result:.4g}, not {truth:.4g}: it divides by the {samples} "
                f"samples there are, but counts the right ones among {padded}",
            )
        whole = sum(int(share[: samples // p].sum()) for share in shares)
        if abs(result - whole / samples) < 1e-6 or abs(result - whole / (samples // p * p)) < 1e-6:
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


SAVED_AT = 3


def try_resume(resume) -> Findings:
    """Save a run after three steps, let the learner's ``resume`` load it, and look closely."""
    comm = world()
    rank = comm.rank
    before = torch.get_rng_state()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(comm.bcast(folder if rank == 0 else None, root=0)) / "checkpoint.pt"
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
        if rank == 0:
            torch.save(saved, path)
        comm.barrier()
        fresh, fresh_optimizer = _replica(seed=7)
        torch.manual_seed(55)
        try:
            step = resume(path, fresh, fresh_optimizer)
            found = {"step": step, **_restored(fresh, fresh_optimizer, saved, rank)}
        except Exception as error:  # told to every rank below, and judged there
            found = {"error": portable(error)}
        everyone = comm.allgather(found)
    torch.set_rng_state(before)
    return everyone


def _restored(ddp, optimizer, saved: dict, rank: int) -> dict[str, Any]:
    model = ddp.module.state_dict()
    weights = all(torch.equal(model[name], tensor) for name, tensor in saved["model"].items())
    state, wanted = optimizer.state_dict()["state"], saved["optimizer"]["state"]
    momentum = state.keys() == wanted.keys() and all(
        torch.equal(state[i]["momentum_buffer"], wanted[i]["momentum_buffer"]) for i in wanted
    )
    rng = torch.get_rng_state()
    own = torch.equal(rng, saved["rng"][rank])
    return {
        "weights": weights,
        "momentum": momentum,
        "rng": "own" if own else "first" if torch.equal(rng, saved["rng"][0]) else "other",
    }


def judge_resume(everyone: Findings) -> None:
    for found in everyone:
        text = str(found.get("error"))
        if "Missing key" in text and "module." in text:
            raise WrongAnswer(
                "module-prefix",
                "the names do not fit: DDP's own `state_dict` has `module.` before each name, the "
                "checkpoint has not. Load into `ddp.module`",
            ) from found["error"]
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
    kinds = [found["rng"] for found in everyone]
    if "other" in kinds:
        raise WrongAnswer(
            "forgets-the-generator",
            "weights and momentum are back, but dropout will draw other masks than the run that "
            "was not interrupted: restore the random state",
        )
    if "first" in kinds[1:]:
        raise WrongAnswer(
            "same-masks-everywhere",
            "every rank took rank 0's random state, so all will drop the same units. Rank r's "
            'own state is `checkpoint["rng"][r]`',
        )
    steps = {found["step"] for found in everyone}
    if steps != {SAVED_AT}:
        raise WrongAnswer(
            "wrong-step",
            f"it returned {sorted(map(str, steps))[0]}. The checkpoint counts the steps that were "
            f"*done*, {SAVED_AT}, which is also the number of the next one, counted from 0",
        )
