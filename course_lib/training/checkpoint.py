"""Saves a run so that a resumed run ends with the same bits as one that never stopped.

A checkpoint holds everything the next step depends on: model, optimizer, scheduler,
the place in the order of samples, and each rank's random number generators. The file appears
whole or not at all: it is written beside its place and then renamed.

The bits of a sum also depend on the number of compute threads: resume with the same number.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy
import torch
import torch.distributed as dist
from torch import nn

from course_lib.parallel.agreement import exchange, outcomes, rank_and_size
from course_lib.parallel.replica import unwrap

_FORMAT = 2


class CheckpointError(RuntimeError):
    """A checkpoint could not be written, read, or applied; raised on all ranks of the group."""


@dataclass(frozen=True)
class Checkpoint:
    """The state of a run.

    Attributes:
        epoch: epochs finished.
        step: steps done in the epoch after those; the next is batch number ``step``.
        sampler_seed: seed of the order of the samples.
        extra: whatever else was saved.
    """

    epoch: int
    step: int
    sampler_seed: int
    extra: dict[str, Any] = field(default_factory=dict)


def save_checkpoint(
    path: str | os.PathLike[str],
    *,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scheduler: Any = None,
    step: int,
    epoch: int,
    sampler_seed: int,
    extra: dict[str, Any] | None = None,
    group: dist.ProcessGroup | None = None,
) -> None:
    """Write a checkpoint; where there is a process group, every rank calls it.

    Rank 0 writes its model, optimizer and scheduler, which are every replica's, together with
    the generators of all ranks (Python, NumPy, PyTorch on CPU and the current CUDA device).
    When it returns, on any rank, the file is complete on rank 0's disk.

    Args:
        path: file to write; an older one is replaced only when the new one is complete.
        model: plain, or inside DataParallel or DistributedDataParallel.
        optimizer: its state is saved.
        scheduler: anything with ``state_dict``, or None.
        step: steps done in the current epoch.
        epoch: epochs finished.
        sampler_seed: seed of the order of the samples.
        extra: tensors, numbers, strings, and lists and dicts of them.
        group: process group, the default one if None (and there is one).

    Raises:
        CheckpointError: on every rank, if rank 0 could not write.
    """
    rank, _ = rank_and_size(group)
    generators = exchange(_generator_states(), group)

    def write() -> None:
        content = {
            "format": _FORMAT,
            "model": unwrap(model).state_dict(),
            "optimizer": optimizer.state_dict(),
            "scheduler": None if scheduler is None else scheduler.state_dict(),
            "place": {"epoch": epoch, "step": step, "sampler_seed": sampler_seed},
            "extra": extra or {},
            "generators": generators,
        }
        _write_whole(Path(path), content)

    _together(write if rank == 0 else lambda: None, f"could not write {path}", group)


def load_checkpoint(
    path: str | os.PathLike[str],
    *,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scheduler: Any = None,
    group: dist.ProcessGroup | None = None,
    restore_generators: bool = True,
) -> Checkpoint:
    """Restore a run; where there is a process group, every rank calls it and reads the file.

    Args:
        path: file that :func:`save_checkpoint` wrote, readable on every rank.
        model: of the same architecture; its tensors are filled in place.
        optimizer: of the same kind, over the same parameters.
        scheduler: given if and only if one was saved.
        group: process group, the default one if None (and there is one).
        restore_generators: False leaves the random number generators alone, which allows
            another number of ranks than the checkpoint was written on.

    Returns:
        The state of the run. Continue with batch ``step`` of the epoch's order.

    Raises:
        CheckpointError: on every rank, before anything is changed if the file is missing,
            damaged, or from another number of ranks.
    """
    rank, size = rank_and_size(group)
    content: dict[str, Any] = {}

    def read() -> None:
        content.update(torch.load(path, map_location="cpu", weights_only=True))
        if content.get("format") != _FORMAT:
            raise ValueError(f"it is of format {content.get('format')}, not {_FORMAT}")
        if (scheduler is None) != (content["scheduler"] is None):
            has = "no scheduler" if content["scheduler"] is None else "a scheduler"
            raise ValueError(f"it holds {has}; load it with scheduler= accordingly")
        ranks = len(content["generators"])
        if restore_generators and ranks != size:
            raise ValueError(
                f"it was written on {ranks} ranks, and there are now {size}, so an exact resume is "
                "not possible; restore_generators=False resumes with different random numbers"
            )

    def apply() -> None:
        unwrap(model).load_state_dict(content["model"])
        optimizer.load_state_dict(content["optimizer"])
        if scheduler is not None:
            scheduler.load_state_dict(content["scheduler"])

    _together(read, f"could not read {path}", group)
    _together(apply, f"{path} does not fit this model and optimizer", group)
    if restore_generators:
        _set_generator_states(content["generators"][rank])
    return Checkpoint(**content["place"], extra=content["extra"])


def _write_whole(path: Path, content: dict[str, Any]) -> None:
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with open(partial, "wb") as file:
            torch.save(content, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            partial.unlink()
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Make the new name survive a power cut too, where the system can."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


# --- random number generators -------------------------------------------------------------


def _generator_states() -> dict[str, Any]:
    """Return the states of this process's generators, in types that ``weights_only`` admits."""
    of_numpy: Any = numpy.random.get_state(legacy=False)
    of_numpy["state"]["key"] = of_numpy["state"]["key"].tolist()
    states = {"python": random.getstate(), "numpy": of_numpy, "torch": torch.get_rng_state()}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def _set_generator_states(states: dict[str, Any]) -> None:
    random.setstate(states["python"])
    numpy.random.set_state(states["numpy"])
    torch.set_rng_state(states["torch"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])


# --- all ranks together -------------------------------------------------------------------


def _together(action: Callable[[], None], what: str, group: dist.ProcessGroup | None) -> None:
    """Do ``action``; if it raised on any rank, raise CheckpointError on all."""
    everyone, own_error = outcomes(action, group)
    for rank, outcome in enumerate(everyone):
        if outcome.error is not None:
            where = "" if len(everyone) == 1 else f" on rank {rank}"
            raise CheckpointError(f"{what}{where} ({outcome.error[1]})") from own_error
