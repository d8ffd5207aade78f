"""All-reduces from send and recv: their schedules, for 1 to 17 ranks."""

from __future__ import annotations

import math

import pytest
import torch
from torch.distributed import ReduceOp

from course_lib.parallel.all_reduces import ALGORITHMS, Part, Step
from tests.parallel.all_reduce_formulas import FORMULAS, count
from tests.parallel.schedules_in_one_process import run_in_one_process

SIZES = range(1, 18)
LENGTHS = (0, 1, 2, 3, 5, 7, 8, 16, 17, 64, 100)


@pytest.fixture(params=ALGORITHMS)
def algorithm(request):
    return ALGORITHMS[request.param]


@pytest.mark.parametrize("size", SIZES)
def test_every_tensor_is_added_exactly_once(algorithm, size) -> None:
    """Rank r counts in the bits 3r to 3r + 2, where up to seven copies would show."""
    for numel in LENGTHS:
        tensors = [torch.full((numel,), 8**rank) for rank in range(size)]
        run_in_one_process(algorithm.schedule, tensors)
        expected = torch.full((numel,), sum(8**rank for rank in range(size)))
        assert all(torch.equal(tensor, expected) for tensor in tensors)


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("size", SIZES)
def test_schedule_costs_match_the_formulas(name, size) -> None:
    for numel in LENGTHS:
        for rank in range(size):
            counts = count(ALGORITHMS[name].schedule(rank, size, numel))
            assert counts == FORMULAS[name](rank, size, numel), (rank, numel)


@pytest.mark.parametrize("size", SIZES)
def test_elements_stay_in_their_own_chunk(algorithm, size) -> None:
    """All elements differ, so one put in the wrong place shows."""
    numel = 3 * size + 1
    tensors = [torch.arange(numel) * (rank + 1) for rank in range(size)]
    run_in_one_process(algorithm.schedule, tensors)
    for tensor in tensors:
        assert torch.equal(tensor, torch.arange(numel) * (size * (size + 1) // 2))


@pytest.mark.parametrize("size", SIZES)
def test_float_results_have_the_same_bits_on_all_ranks(algorithm, size) -> None:
    generator = torch.Generator().manual_seed(size)
    for op in (ReduceOp.SUM, ReduceOp.AVG, ReduceOp.PRODUCT):
        tensors = [torch.randn(101, generator=generator) for _ in range(size)]
        exact = torch.stack(tensors).double()
        scale = exact.abs().prod(0) if op == ReduceOp.PRODUCT else exact.abs().sum(0)
        exact = exact.prod(0) if op == ReduceOp.PRODUCT else exact.sum(0)
        if op == ReduceOp.AVG:
            exact /= size
        run_in_one_process(algorithm.schedule, tensors, op)
        assert all(torch.equal(tensor, tensors[0]) for tensor in tensors)
        # p operations, each off by at most half a unit in the last place of the magnitudes.
        off = (tensors[0] - exact).abs()
        assert (off <= size * torch.finfo(torch.float32).eps * scale).all()


@pytest.mark.parametrize("size", [1, 2, 4, 8, 16])
def test_costs_match_published_values_for_powers_of_two(size) -> None:
    """Thakur et al. 2005, table of all-reduces; n divisible by p, the slowest rank counts."""
    numel = 32 * size
    lg = int(math.log2(size))
    share = (size - 1) * numel // size
    published = {  # steps, elements through the busiest link, elements combined
        "naive": (2 * (size - 1), (size - 1) * numel, (size - 1) * numel),
        "tree": (2 * lg, lg * numel, lg * numel),
        "recursive doubling": (lg, lg * numel, lg * numel),
        "ring": (2 * (size - 1), 2 * share, share),
        "rabenseifner": (2 * lg, 2 * share, share),
    }
    for name, (steps, elements, combined) in published.items():
        counts = [count(ALGORITHMS[name].schedule(rank, size, numel)) for rank in range(size)]
        assert {c.steps for c in counts} == {steps}, name
        assert max(c.elements_sent for c in counts) == elements, name
        assert max(c.elements_received for c in counts) == elements, name
        assert max(c.elements_combined for c in counts) == combined, name


def test_ring_ranks_send_the_minimum() -> None:
    """Patarasuk and Yuan 2009: 2 (p - 1) / p n is the least."""
    for size in SIZES:
        for rank in range(size):
            counts = count(ALGORITHMS["ring"].schedule(rank, size, 5 * size))
            assert counts.elements_sent == counts.elements_received == 2 * (size - 1) * 5
            assert counts.messages_sent == 2 * (size - 1)


def test_hanging_schedule_raises() -> None:
    def nobody_receives(rank, world_size, numel):
        return [Step(send=Part(1, 0, numel)) if rank == 0 else Step()]

    def nobody_sends(rank, world_size, numel):
        return [Step(receive=Part(1, 0, numel)) if rank == 0 else Step()]

    def unlike(rank, world_size, numel):
        return [Step()] * rank

    for schedule, told in (
        (nobody_receives, "nobody receives"),
        (nobody_sends, "never comes"),
        (unlike, "different numbers of steps"),
    ):
        with pytest.raises(ValueError, match=told):
            run_in_one_process(schedule, [torch.ones(3), torch.ones(3)])
