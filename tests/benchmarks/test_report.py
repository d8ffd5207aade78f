"""The report of the benchmark says which targets are missed, and by how much."""

from __future__ import annotations

from benchmarks import report

SIZES = (4, 2**20, 64 * 2**20)


def result(ours: float, ddp: float = 0.5, check: float = 0.0) -> dict:
    """Return samples in which gloo takes 13 s, raw MPI 1 s, ours and its check what is asked."""

    def samples(**seconds: float) -> dict:
        return {name: [value] * 4 for name, value in seconds.items()}

    times = samples(ours=ours, gloo=13, raw=1, checked=ours, unchecked=ours - check)
    sweep = [{"bytes": size, "samples": times} for size in SIZES]
    step = {"model": "MLP", "parameters": 7, "samples": samples(ours=ddp, gloo=1, silent=0.4)}
    steps = [step | {"batch": batch} for batch in (8, 256)]
    runs = [
        {"ranks": n, "library": "L", "torch": "T", "all_reduce": sweep, "ddp_step": steps}
        for n in (2, 4)
    ]
    return {"date": "D", "machine": "M", "python": "P", "load": 0.5, "runs": runs}


def missed(**values: float) -> list[str]:
    return [row.what for row in report.targets(result(**values)["runs"]) if not row.met]


def test_all_met_when_ours_is_as_fast_as_raw_mpi():
    assert missed(ours=1) == []


def test_slow_at_two_ranks_only_misses_what_is_asked_there():
    found = missed(ours=1.2)
    assert "all_reduce over raw MPI, 1 MiB" in found
    assert "all_reduce against gloo, 4 ranks, geometric mean" not in found


def test_slower_than_gloo():
    found = missed(ours=14)
    assert "all_reduce against gloo, 2 ranks, every size" in found
    assert "all_reduce against gloo, 4 ranks, geometric mean" in found


STEPS = [
    f"what communication adds to a DDP step, against gloo, MLP, batch {batch}, {n} ranks"
    for n in (2, 4)
    for batch in (8, 256)
]


def test_slow_training_step_is_named_with_its_floor():
    assert missed(ours=1, ddp=0.54) == []
    assert missed(ours=1, ddp=0.56) == STEPS
    text = report.markdown(result(ours=1, ddp=0.7))
    assert "the whole step takes 0.70x of gloo's, DDP that sends nothing 0.40x" in text
    assert "communication adds 300.00 ms" in text


def test_each_step_has_its_floor_beside_it_and_the_target_its_scope():
    text = report.markdown(result(ours=1))
    assert "| ours / gloo | silent / gloo | added / added by gloo |" in text
    assert text.count("| 0.50 | 0.40 | 0.17 |") == 4
    assert text.count("Target: communication adds at most 0.25x of what it adds with gloo") == 2


def test_plot_is_written(tmp_path):
    report.plot(result(ours=1), tmp_path / "plot.svg")
    assert "<svg" in (tmp_path / "plot.svg").read_text()


def test_the_check_may_cost_more_where_messages_are_small():
    assert missed(ours=1, check=0.02) == []
    found = missed(ours=1, check=0.1)
    assert found == [f"mismatch check, {n} ranks, from 1 MiB, geometric mean" for n in (2, 4)]
    assert len(missed(ours=1, check=0.25)) == 4
