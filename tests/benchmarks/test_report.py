"""The report of the benchmark says which targets are missed, and by how much."""

from __future__ import annotations

from benchmarks import report

SIZES = (4, 2**20, 64 * 2**20)


def result(ours: float, ddp: float = 0.5, check: float = 0.0) -> dict:
    """Return samples in which gloo takes 10 s, raw MPI 1 s, ours and its check what is asked."""

    def samples(**seconds: float) -> dict:
        return {name: [value] * 4 for name, value in seconds.items()}

    times = samples(ours=ours, gloo=10, raw=1, checked=ours, unchecked=ours - check)
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
    found = missed(ours=11)
    assert "all_reduce against gloo, 2 ranks, every size" in found
    assert "all_reduce against gloo, 4 ranks, geometric mean" in found


def test_slow_training_step_is_named_with_its_floor():
    assert missed(ours=1, ddp=0.7) == ["DDP step against gloo, MLP, batch 8, 2 ranks"]
    text = report.markdown(result(ours=1, ddp=0.7))
    assert "DDP that sends nothing takes 0.40x of gloo's step, which is the floor" in text
    assert "communication adds 0.50x of what it adds with gloo" in text
    assert "0.6x of the step, promised first, is missed" in text
    assert "promised first, is kept" in report.markdown(result(ours=1, ddp=0.59))


def test_each_step_has_its_floor_beside_it_and_the_target_its_scope():
    text = report.markdown(result(ours=1))
    assert "| ours / gloo | silent / gloo | added / added by gloo |" in text
    assert text.count("| 0.50 | 0.40 | 0.17 |") == 4
    assert text.count("Target: at most 0.55x of gloo's step with 2 ranks, 8 and 32 images") == 2


def test_plot_is_written(tmp_path):
    report.plot(result(ours=1), tmp_path / "plot.svg")
    assert "<svg" in (tmp_path / "plot.svg").read_text()


def test_the_step_target_is_that_of_two_ranks_and_usual_batches_only():
    assert missed(ours=1, ddp=0.55) == []
    assert missed(ours=1, ddp=0.56) == ["DDP step against gloo, MLP, batch 8, 2 ranks"]


def test_the_check_may_cost_more_where_messages_are_small():
    assert missed(ours=1, check=0.02) == []
    found = missed(ours=1, check=0.1)
    assert found == [f"mismatch check, {n} ranks, from 1 MiB, geometric mean" for n in (2, 4)]
    assert len(missed(ours=1, check=0.25)) == 4
