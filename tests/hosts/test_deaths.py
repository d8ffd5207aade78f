"""A rank on another host dies, or raises: the others hear of it in time, and can go on."""

from __future__ import annotations

from collections.abc import Callable

from tests import ranks


def test_survivors_continue_after_a_death_on_another_host(on_two_hosts: Callable) -> None:
    done = ranks.run(4, "-m", "tests.hosts.dying", limit=120, library=on_two_hosts(4))
    for rank in range(3):
        said = f"rank {rank} of 3 passed: a death on the other host"
        assert said in done.output.splitlines(), done.output
    assert (done.returncode, done.left_behind) == (7, []), done.output


RAISES = """
from datetime import timedelta
import torch, torch.distributed as dist
dist.init_process_group("mpi4py", init_method="mpi://", timeout=timedelta(seconds=100))
dist.all_reduce(torch.ones(1))
if dist.get_rank() == 3:
    raise ValueError("on the other host")
dist.all_reduce(torch.ones(1))
"""


def test_exception_on_another_host_ends_all_ranks(on_two_hosts: Callable) -> None:
    """They end long before the group's time-out."""
    done = ranks.run(4, "-c", RAISES, limit=90, library=on_two_hosts(4))
    assert "ValueError: on the other host" in done.output
    assert done.returncode not in (0, None), done.output
    assert not done.left_behind
