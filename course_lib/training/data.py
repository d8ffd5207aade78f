"""The one idea: every data set comes as the same two pairs of tensors, images and labels.

The digits come with the course. The others come through ``torchvision.datasets`` from a data
root, and are downloaded at most once per machine, however many ranks ask
(:mod:`course_lib.training.download`).
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import torch

from .download import DataUnavailableError, fetch_once

__all__ = ["NAMES", "DataSet", "DataUnavailableError", "data_root", "load"]

_COURSE_DATA = Path(__file__).resolve().parents[2] / "data"
_DIGITS_FILE = _COURSE_DATA / "digits.npz"
_DIGITS_FOR_TRAINING = 1437  # four fifths; the rest, 360, is the test set

NAMES = ("digits", "mnist", "fashion_mnist", "cifar10")
_TORCHVISION_NAME = {"mnist": "MNIST", "fashion_mnist": "FashionMNIST", "cifar10": "CIFAR10"}


@dataclass(frozen=True)
class DataSet:
    """Labelled images in memory; works with ``torch.utils.data.DataLoader``.

    Attributes:
        images: float32 (N, channels, height, width), values from 0 to 1.
        labels: int64 (N,), classes from 0 to 9.
    """

    images: torch.Tensor
    labels: torch.Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (images, labels) at ``index``: a number, slice, or tensor of numbers."""
        return self.images[index], self.labels[index]


def data_root(root: str | os.PathLike[str] | None = None) -> Path:
    """Return where downloaded data lie: ``root``, else ``COURSE_DATA``, else data/downloads."""
    chosen = root or os.environ.get("COURSE_DATA") or _COURSE_DATA / "downloads"
    return Path(chosen).expanduser().absolute()


def load(
    name: str = "digits", root: str | os.PathLike[str] | None = None
) -> tuple[DataSet, DataSet]:
    """Return the training set and the test set.

    ============= =========== ========== ==============================================
    name          training N  test N     one image (channels, height, width)
    ============= =========== ========== ==============================================
    digits        1,437       360        (1, 8, 8); needs no download
    mnist         60,000      10,000     (1, 28, 28)
    fashion_mnist 60,000      10,000     (1, 28, 28)
    cifar10       50,000      10,000     (3, 32, 32)
    ============= =========== ========== ==============================================

    (A data root that holds part of a data set gives as many as it holds.)

    Args:
        name: one of the four.
        root: where downloaded data lie or go; see :func:`data_root`.

    Raises:
        ValueError: for another name.
        DataUnavailableError: if the data are not there and cannot be downloaded, or damaged.
    """
    if name == "digits":
        return _load_digits()
    if name not in _TORCHVISION_NAME:
        raise ValueError(f"no data set is called {name!r}; choose one of {', '.join(NAMES)}")
    return _load_from_torchvision(name, data_root(root))


def _load_digits() -> tuple[DataSet, DataSet]:
    try:
        with numpy.load(_DIGITS_FILE) as packed:
            images = torch.from_numpy(packed["images"]).float().unsqueeze(1) / 16
            labels = torch.from_numpy(packed["labels"]).long()
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise DataUnavailableError(
            f"{_DIGITS_FILE} is missing or damaged ({error}); it comes with the course: "
            "git checkout data/digits.npz"
        ) from error
    split = _DIGITS_FOR_TRAINING
    return DataSet(images[:split], labels[:split]), DataSet(images[split:], labels[split:])


def _load_from_torchvision(name: str, root: Path) -> tuple[DataSet, DataSet]:
    from .vision import torchvision

    dataset_class = getattr(torchvision.datasets, _TORCHVISION_NAME[name])
    fetch_once(name, root, dataset_class)
    return _open(name, root, dataset_class, True), _open(name, root, dataset_class, False)


def _open(name: str, root: Path, dataset_class: Callable[..., Any], train: bool) -> DataSet:
    try:
        dataset = dataset_class(root, train=train, download=False)
        pixels = torch.as_tensor(dataset.data)
        labels = torch.as_tensor(dataset.targets).long()
        if len(pixels) != len(labels) or not len(labels):
            raise ValueError(f"{len(pixels)} images but {len(labels)} labels")
    except Exception as error:  # torchvision raises whatever reading the bytes led to
        raise DataUnavailableError(
            f"the {name} files below {root} are damaged ({type(error).__name__}: {error}); "
            f"delete them and load again, or go on with load('digits')"
        ) from error
    images = pixels.float().div_(255)
    images = images.unsqueeze(1) if images.dim() == 3 else images.permute(0, 3, 1, 2).contiguous()
    return DataSet(images, labels)
