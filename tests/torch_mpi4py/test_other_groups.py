"""What PyTorch's flight recorder says of groups that are not ours, and what a report says then."""

from __future__ import annotations

import pytest
from torch_mpi4py.board.hang_report import HangReport
from torch_mpi4py.board.rank_states import RankState
from torch_mpi4py.log import other_groups

from tests.torch_mpi4py.calls import call

GROUP = "group 1 of PyTorch's nccl"


@pytest.mark.parametrize(
    ("enqueued", "completed", "unfinished"),
    [(-1, -1, {}), (1, -1, {"1": 1}), (1, 1, {}), (7, 4, {"1": 5}), (0, 0, {})],
)
def test_unfinished_finds_the_first_incomplete_collective(
    enqueued: int, completed: int, unfinished: dict[str, int]
) -> None:
    status = {"last_enqueued_collective": enqueued, "last_completed_collective": completed}
    assert other_groups.unfinished({"pg_status": {"1": status}}) == unfinished


def test_unknown_record_format_is_ignored() -> None:
    assert other_groups.unfinished({}) == {}
    assert other_groups.unfinished({"pg_status": {"1": {}}}) == {}
    assert other_groups.entry_of({}, "1", 1) is None


def test_entry_matches_group_and_number_and_skips_messages() -> None:
    entries = [
        {"pg_id": 0, "collective_seq_id": 5, "is_p2p": False},
        {"pg_id": 1, "collective_seq_id": 5, "is_p2p": True},
        wanted := {"pg_id": 1, "collective_seq_id": 5, "is_p2p": False},
        {"pg_id": 1, "collective_seq_id": 6, "is_p2p": False},
    ]
    assert other_groups.entry_of({"entries": entries}, "1", 5) is wanted


def report(**kinds: str) -> HangReport:
    """A report on three ranks, of which some are in a collective of an NCCL group."""
    ranks = (0, 1, 2)
    seen = []
    for rank in ranks:
        kind = kinds.get(f"rank_{rank}")
        operations = (call(kind, waiting=False, group=GROUP, ranks=ranks),) if kind else ()
        seen.append(
            RankState(
                rank,
                notebook=True,
                cell=4,
                running=kind is not None,
                seconds=5.0,
                site="cell 4, line 2",
                operations=operations,
            )
        )
    return HangReport.of(seen)


def test_report_names_ranks_outside_the_collective() -> None:
    found = report(rank_0="all_reduce", rank_1="all_reduce").with_stuck({0: 0, 1: 0})
    assert found.diagnosis == (
        "Ranks 0 and 1 are stuck in C code [cell 4, line 2], where no signal reaches it. Ranks 0 "
        "and 1 are in all_reduce, in group 1 of PyTorch's nccl. Rank 2 is not. A rank cannot be "
        "freed from such a group."
    )
    assert "open: all_reduce, in group 1 of PyTorch's nccl" in found.table()


def test_report_names_the_collective_of_each_rank() -> None:
    found = report(rank_0="all_reduce", rank_1="broadcast", rank_2="broadcast")
    assert "Rank 0 is in all_reduce, in group" in found.diagnosis
    assert "Ranks 1 and 2 are in broadcast" in found.diagnosis
    assert not found.is_out_of_step, "such a group is lost alone"
