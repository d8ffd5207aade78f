"""What cases share: sizes they run on, exact inputs, and errors they expect."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from datetime import timedelta

import torch
import torch.distributed as dist

from tests import ranks


def sizes(*n: int):
    """Say on how many ranks a case runs."""
    return ranks.case(sizes=n, seconds=90)


def equal(actual: torch.Tensor, expected: object) -> None:
    """Raise AssertionError unless values and shape are exactly ``expected``."""
    wanted = torch.as_tensor(expected).to(actual.device, actual.dtype)
    assert actual.shape == wanted.shape, f"shape {tuple(actual.shape)}, not {tuple(wanted.shape)}"
    same = actual == wanted
    assert same.all(), f"{actual} is not {wanted}"


def close(actual: torch.Tensor, expected: torch.Tensor, rtol: float = 1e-5) -> None:
    """Raise AssertionError unless the values are ``expected`` up to rounding."""
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=1e-6)


class raises:
    """Expect an error whose message holds all ``words``, within so many seconds."""

    def __init__(self, kind: type[BaseException] | tuple, *words: str, within: float = 15) -> None:
        self.kind, self.words, self.within = kind, words, within

    def __enter__(self) -> raises:
        self.started = time.monotonic()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, _: object) -> bool:
        took = time.monotonic() - self.started
        assert kind is not None, f"no {self.kind} was raised"
        if not issubclass(kind, self.kind):
            return False
        missing = [word for word in self.words if word not in str(error)]
        assert not missing, f"the message lacks {missing}: {error}"
        assert took < self.within, f"the error came after {took:.1f} s, not in {self.within} s"
        return True


@contextlib.contextmanager
def group_of_all(seconds: float = 20) -> Iterator[dist.ProcessGroup]:
    """Give a group of all ranks that a case may break."""
    group = dist.new_group(backend="mpi4py", timeout=timedelta(seconds=seconds))
    try:
        yield group
    finally:
        if not isinstance(group, int):
            dist.destroy_process_group(group)


def still_works(group: dist.ProcessGroup | None = None) -> None:
    """Raise AssertionError unless a sum over the group is right."""
    value = torch.ones(3)
    dist.all_reduce(value, group=group)
    equal(value, [float(dist.get_world_size(group))] * 3)
