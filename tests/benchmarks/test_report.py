"""The one idea: the report of the benchmark says which targets are missed, and by how much."""

from __future__ import annotations

from benchmarks import report

SIZES = (4, 2**20, 64 * 2**20)


def result(ours: float, ddp: float = 0.5) -> dict:
    """Return samples in which gloo takes 10 s, raw MPI 1 s and ours what is asked."""

    def samples(**seconds: float) -> dict:
        return {name: [value] * 4 for name, value in seconds.items()}

    sweep = [{"bytes": size, "samples": samples(ours=ours, gloo=10, raw=1)} for size in SIZES]
    step = {"model": "MLP", "parameters": 7, "samples": samples(ours=ddp, gloo=1, alone=0.4)}
    runs = [
        {"ranks": n, "library": "L", "torch": "T", "all_reduce": sweep, "ddp_step": [step]}
        for n in (2, 4)
    ]
    return {"machine": "M", "python": "P", "load": 0.5, "runs": runs}


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
    assert missed(ours=1, ddp=0.7) == ["DDP step against gloo, MLP, 2 ranks"]
    text = report.markdown(result(ours=1, ddp=0.7))
    assert "without any communication takes 0.40x" in text


def test_plot_is_written(tmp_path):
    report.plot(result(ours=1), tmp_path / "plot.svg")
    assert "<svg" in (tmp_path / "plot.svg").read_text()


def test_the_step_target_is_that_of_two_ranks_only():
    assert missed(ours=1, ddp=0.6) == []
    assert missed(ours=1, ddp=0.61) == ["DDP step against gloo, MLP, 2 ranks"]
