"""Ranks whose random numbers differ resume each with its own."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from course_lib.training.checkpoint import CheckpointError, load_checkpoint, save_checkpoint
from tests.training import interrupted


def folder_of_all() -> Path:
    """Return a new folder, the same on all ranks."""
    made = [tempfile.mkdtemp(prefix="resume") if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(made)
    return Path(made[0])


def error_of(function, *arguments, **options) -> str:
    """Return what every rank's CheckpointError says."""
    message = None
    try:
        function(*arguments, **options)
    except CheckpointError as error:
        message = str(error)
    messages = [None] * dist.get_world_size()
    dist.all_gather_object(messages, message)
    assert None not in messages, messages
    assert len(set(messages)) == 1, messages
    return message


def case_resume_is_bitwise_exact(rank, size):
    wanted = interrupted.uninterrupted(rank)
    path = folder_of_all() / "run.pt"
    interrupted.save_after(7, path, rank)
    assert interrupted.resume(path) == wanted


def case_failed_write_or_read_raises_on_all_ranks(rank, size):
    layer = nn.Linear(1, 1)
    parts = {"model": layer, "optimizer": torch.optim.SGD(layer.parameters(), lr=1.0)}
    place = {"epoch": 0, "step": 0, "sampler_seed": 0}
    nowhere = folder_of_all() / "missing" / "run.pt"
    assert "could not write" in error_of(save_checkpoint, nowhere, **parts, **place)
    path = folder_of_all() / "run.pt"
    save_checkpoint(path, **parts, **place)
    mine = nowhere if rank == size - 1 else path
    message = None
    try:
        load_checkpoint(mine, **parts)
    except CheckpointError as error:
        message = str(error)
    assert "FileNotFoundError" in str(message)
    if size > 1:
        assert f"on rank {size - 1}" in message


def case_resume_with_another_number_of_ranks(rank, size):
    path = folder_of_all() / "run.pt"
    layer = nn.Linear(1, 1)
    parts = {"model": layer, "optimizer": torch.optim.SGD(layer.parameters(), lr=1.0)}
    save_checkpoint(path, **parts, epoch=1, step=2, sampler_seed=3)
    if rank == 0:
        content = torch.load(path, weights_only=True)
        content["generators"].append(content["generators"][0])
        torch.save(content, path)
    dist.barrier()
    message = error_of(load_checkpoint, path, **parts)
    assert f"written on {size + 1} ranks, and there are now {size}" in message
    found = load_checkpoint(path, **parts, restore_generators=False)
    assert (found.epoch, found.step, found.sampler_seed) == (1, 2, 3)
