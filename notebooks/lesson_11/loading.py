"""A data set on slow storage, and a sampler that counts what it has been asked for.

They are in a module of their own because worker processes have to import them, unless they start
as copies of their parent.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Iterator

import torch
from torch.utils.data import Dataset, Sampler

# A forked worker is ready at once. Outside Linux forking is not safe, so each worker has to import
# PyTorch again.
START_METHOD = "fork" if sys.platform == "linux" else "spawn"

# PyTorch warns if there are more workers than cores. These workers sleep and need no core.
warnings.filterwarnings("ignore", message="This DataLoader will create")


class SlowStorage(Dataset):
    """Samples that take ``seconds`` each to arrive, as if the storage were far away.

    Sample i is a tensor of three numbers i. Like waiting for a disk, the wait needs no core.
    """

    def __init__(self, samples: int, seconds: float) -> None:
        self.samples, self.seconds = samples, seconds

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> torch.Tensor:
        """Return sample ``index``, float32 (3,)."""
        time.sleep(self.seconds)
        return torch.full((3,), float(index))


class CountingSampler(Sampler):
    """The batches 0 to 7, 8 to 15, ...; ``drawn`` says how many have been asked for."""

    def __init__(self, samples: int, batch: int) -> None:
        self.samples, self.batch, self.drawn = samples, batch, 0

    def __len__(self) -> int:
        return self.samples // self.batch

    def __iter__(self) -> Iterator[list[int]]:
        for number in range(len(self)):
            self.drawn += 1
            yield list(range(number * self.batch, (number + 1) * self.batch))
