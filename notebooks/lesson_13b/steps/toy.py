"""The model and the data of all scripts here, the same numbers for every framework."""

import json

import numpy as np

BATCH, INPUTS, HIDDEN, CLASSES = 64, 8, 16, 4
STEPS, RATE = 10, 0.5


def numbers() -> dict[str, np.ndarray]:
    """Return images, labels and initial weights, which depend on no framework's generator."""
    draw = np.random.default_rng(0)
    return {
        "inputs": draw.standard_normal((BATCH, INPUTS)).astype(np.float32),
        "labels": draw.integers(0, CLASSES, BATCH),
        "first": draw.standard_normal((HIDDEN, INPUTS)).astype(np.float32) / 3,
        "second": draw.standard_normal((CLASSES, HIDDEN)).astype(np.float32) / 4,
    }


def model_and_data():
    """Return a PyTorch model with these weights, and all samples."""
    import torch
    from torch import nn

    given = {name: torch.from_numpy(array) for name, array in numbers().items()}
    model = nn.Sequential(
        nn.Linear(INPUTS, HIDDEN, bias=False), nn.Tanh(), nn.Linear(HIDDEN, CLASSES, bias=False)
    )
    with torch.no_grad():
        model[0].weight.copy_(given["first"])
        model[2].weight.copy_(given["second"])
    return model, given["inputs"], given["labels"]


def report(losses, rank: int = 0) -> None:
    """Print the losses, on rank 0."""
    if rank == 0:
        print(json.dumps({"losses": [float(loss) for loss in losses]}), flush=True)
