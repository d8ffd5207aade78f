"""Loads the data sets of the lessons, each as the same two pairs of tensors: images and labels.

The digits come with the course. The others come through ``torchvision.datasets`` from a data
root, and are downloaded at most once per machine, however many ranks ask: a file lock in the data
root decides who downloads. The system releases it when its holder dies, so a killed download
never blocks the next, and no rank waits longer than a deadline.
"""

from __future__ import annotations

import os
import socket
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import torch
import torch.nn.functional as F
from filelock import FileLock, Timeout

from course_lib.places import ROOT

_DIGITS_FILE = Path(__file__).with_name("digits.npz")
_DIGITS_FOR_TRAINING = 1437  # four fifths; the rest, 360, is the test set

NAMES = ("digits", "mnist", "fashion_mnist", "cifar10")
_TORCHVISION_NAME = {"mnist": "MNIST", "fashion_mnist": "FashionMNIST", "cifar10": "CIFAR10"}

DOWNLOAD_SECONDS = 600.0
_SILENCE_SECONDS = 20.0  # a server that is silent for this long counts as unreachable


class DataUnavailableError(RuntimeError):
    """A data set is missing; the message names the data root and the remedy."""


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
    """Return where downloaded data are: ``root``, else ``COURSE_DATA``, else data/downloads."""
    chosen = root or os.environ.get("COURSE_DATA") or ROOT / "data" / "downloads"
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
        root: where downloaded data are or will be; see :func:`data_root`.

    Raises:
        ValueError: for another name.
        DataUnavailableError: if the data are not there and cannot be downloaded, or damaged.
    """
    if name == "digits":
        return _load_digits()
    if name not in _TORCHVISION_NAME:
        raise ValueError(f"no data set is called {name!r}; choose one of {', '.join(NAMES)}")
    return _load_from_torchvision(name, data_root(root))


def load_available(
    *names: str, size: int | None = None, root: str | os.PathLike[str] | None = None
) -> tuple[DataSet, DataSet, str]:
    """Return training set, test set and name of the first data set that is on disk already.

    Nothing is downloaded, so all ranks that see the same files choose the same data set.

    Args:
        names: in order of preference, e.g. ``"mnist", "digits"``; "digits" is always there.
        size: height and width in pixels that images are resized to (bilinear; smoothed first
            where they shrink); None leaves them as they are.
        root: where downloaded data are; see :func:`data_root`.

    Raises:
        ValueError: for an unknown name, none at all, or a size that is not positive.
        DataUnavailableError: if none of them is there, or the one chosen is damaged.
    """
    if not names:
        raise ValueError(f"name at least one data set: {', '.join(NAMES)}")
    if unknown := [name for name in names if name not in NAMES]:
        raise ValueError(f"no data set is called {unknown[0]!r}; choose from {', '.join(NAMES)}")
    if size is not None and size < 1:
        raise ValueError(f"images are resized to at least 1 pixel a side, not {size}")
    for name in names:
        if name == "digits" or _files_there(data_root(root), _torchvision_class(name)):
            train, test = load(name, root)
            return _resized(train, size), _resized(test, size), name
    raise DataUnavailableError(
        f"none of {', '.join(names)} is below the data root {data_root(root)}; load() downloads "
        'one; or add "digits", which comes with the course, to the names'
    )


def _torchvision_class(name: str) -> Callable[..., Any]:
    from .vision import torchvision

    return getattr(torchvision.datasets, _TORCHVISION_NAME[name])


def _resized(data: DataSet, size: int | None) -> DataSet:
    if size is None or data.images.shape[-2:] == (size, size):
        return data
    smaller = size < max(data.images.shape[-2:])
    images = F.interpolate(data.images, size=(size, size), mode="bilinear", antialias=smaller)
    return DataSet(images, data.labels)


def _load_digits() -> tuple[DataSet, DataSet]:
    try:
        with numpy.load(_DIGITS_FILE) as packed:
            images = torch.from_numpy(packed["images"]).float().unsqueeze(1) / 16
            labels = torch.from_numpy(packed["labels"]).long()
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise DataUnavailableError(
            f"{_DIGITS_FILE} is missing or damaged ({error}); it comes with the course; restore it "
            "with git checkout course_lib/training/digits.npz"
        ) from error
    split = _DIGITS_FOR_TRAINING
    return DataSet(images[:split], labels[:split]), DataSet(images[split:], labels[split:])


def _load_from_torchvision(name: str, root: Path) -> tuple[DataSet, DataSet]:
    dataset_class = _torchvision_class(name)
    _fetch_once(name, root, dataset_class)
    return _open(name, root, dataset_class, True), _open(name, root, dataset_class, False)


def _open(name: str, root: Path, dataset_class: Callable[..., Any], train: bool) -> DataSet:
    try:
        dataset = dataset_class(root, train=train, download=False)
        pixels = torch.as_tensor(dataset.data)
        labels = torch.as_tensor(dataset.targets).long()
        if len(pixels) != len(labels) or not len(labels):
            raise ValueError(f"{len(pixels)} images but {len(labels)} labels")
    except Exception as error:  # torchvision raises any error that arises while it reads the bytes
        raise DataUnavailableError(
            f"the {name} files below {root} are damaged ({type(error).__name__}: {error}); delete "
            "them and load again, or continue with load('digits')"
        ) from error
    images = pixels.float().div_(255)
    images = images.unsqueeze(1) if images.dim() == 3 else images.permute(0, 3, 1, 2).contiguous()
    return DataSet(images, labels)


# --- downloads ------------------------------------------------------------------------------------


def _fetch_once(
    name: str, root: Path, dataset_class: Callable[..., Any], seconds: float = DOWNLOAD_SECONDS
) -> None:
    """Download a data set if it is not there; wait ``seconds`` if another process does so."""
    if _files_there(root, dataset_class):
        return
    if os.environ.get("COURSE_OFFLINE") == "1":
        raise _unavailable(name, root, "COURSE_OFFLINE=1 forbids downloads")
    try:
        root.mkdir(parents=True, exist_ok=True)
        lock = FileLock(root / f".{name}.lock", timeout=seconds)
        with lock:
            if not _files_there(root, dataset_class):
                _download(root, dataset_class)
    except Timeout as error:
        raise _unavailable(
            name, root, f"another process has been downloading them for {seconds:g} s"
        ) from error
    except (OSError, RuntimeError) as error:
        raise _unavailable(name, root, f"{type(error).__name__}: {error}") from error


def _download(root: Path, dataset_class: Callable[..., Any]) -> None:
    patience = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_SILENCE_SECONDS)
    try:
        dataset_class(root, train=True, download=True)
        dataset_class(root, train=False, download=True)
    finally:
        socket.setdefaulttimeout(patience)


def _files_there(root: Path, dataset_class: Callable[..., Any]) -> bool:
    """Return whether the files of a torchvision data set lie below ``root``, damaged or not."""
    folder = root / getattr(dataset_class, "base_folder", dataset_class.__name__)
    if not folder.is_dir():
        return False
    try:
        for train in (True, False):
            dataset_class(root, train=train, download=False)
    except RuntimeError as error:
        # This is torchvision's way to say that files are missing; damage is found on reading.
        return "not found" not in str(error).lower()
    except Exception:
        return True  # they are there, but damaged: downloading would hide that
    return True


def _unavailable(name: str, root: Path, why: str) -> DataUnavailableError:
    return DataUnavailableError(
        f"the {name} files are not below the data root {root} and could not be downloaded ({why}). "
        "Put them there, or set COURSE_DATA to a folder that has them; without a network, use the "
        "digits: load('digits')"
    )
