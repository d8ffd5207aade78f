"""Who is who among the ranks, at the start and after some have died."""

from __future__ import annotations

import pytest
from ipyranks.rank_table import RankTable

SAYS = {
    "device": "cpu",
    "gpu": "",
    "takes_cuda": False,
    "nccl": False,
    "threads": 1,
    "mpi": "Open MPI",
    "survives_deaths": True,
    "pid": 71,
    "host": "here",
}


def test_at_the_start_ranks_and_engines_have_the_same_numbers() -> None:
    who = RankTable(range(3), [SAYS] * 3)
    assert who.engines_of([2, 0]) == [2, 0]
    assert who.ranks_of([0, 1, 2]) == who.ranks == [0, 1, 2]


def test_after_deaths_each_engine_keeps_its_number() -> None:
    who = RankTable([0, 2, 5], [SAYS] * 3)
    assert who.engines_of(who.ranks) == [0, 2, 5]
    assert [who.rank_of(engine) for engine in (5, 2)] == [2, 1]
    assert who.rank_of(3) == 3, "of one that has been left out its own number"
    assert who.ranks_of([5, 3, 0]) == [2, 0]
    assert [(row.rank, row.engine) for row in who.rows] == [(0, 0), (1, 2), (2, 5)]


@pytest.mark.parametrize("rank", [3, -1])
def test_unknown_rank_is_rejected(rank: int) -> None:
    with pytest.raises(ValueError, match=f"the ranks are 0 to 2, not {rank}"):
        RankTable([0, 2, 5], [SAYS] * 3).engine_of(rank)


def test_table_as_text() -> None:
    assert str(RankTable([0, 2], [SAYS, SAYS])).splitlines() == [
        "rank  device  threads  MPI library      pid  host",
        "   0  cpu           1  Open MPI          71  here",
        "   1  cpu           1  Open MPI          71  here",
    ]


@pytest.mark.parametrize(
    ("gpus", "takes_cuda", "carrier"),
    [
        (("here 0:1:0", "here 0:2:0"), False, "MPI, staged; or NCCL"),
        (("here 0:1:0", "there 0:1:0"), True, "MPI, directly; or NCCL"),
        (("here 0:1:0", "here 0:1:0"), False, "MPI, staged"),
    ],
)
def test_table_shows_how_gpu_tensors_travel(
    gpus: tuple[str, str], takes_cuda: bool, carrier: str
) -> None:
    with_gpu = {**SAYS, "device": "cuda:0", "takes_cuda": takes_cuda, "nccl": True}
    titles, *rows = str(RankTable([0, 1], [{**with_gpu, "gpu": gpu} for gpu in gpus])).splitlines()
    assert titles.split("  ")[2].strip() == "GPU tensors by"
    assert [carrier in row for row in rows] == [True, True]
    assert "NCCL" in carrier or "NCCL" not in rows[0]


def test_table_with_one_rank_without_a_gpu() -> None:
    with_gpu = {**SAYS, "device": "cuda:0", "gpu": "here 0:1:0", "nccl": True}
    _, first, second = str(RankTable([0, 1], [with_gpu, SAYS])).splitlines()
    assert first.split()[1:4] == ["cuda:0", "MPI,", "staged"]
    assert second.split()[1:3] == ["cpu", "1"]
