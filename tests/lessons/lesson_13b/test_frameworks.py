"""The frameworks' scripts train as one process does, and lines are counted as a reader would."""

import pytest
from rank_by_rank.lesson_13b import frameworks
from rank_by_rank.lesson_13b.steps import toy

TOLERANCE = 5e-6  # as the lesson says and explains


@pytest.fixture(scope="module")
def serial() -> list[float]:
    return frameworks.run("serial")["losses"]


@pytest.mark.parametrize("name", ["plain", "ddp"])
def test_always_available_frameworks_train_as_one_process(name: str, serial) -> None:
    found = frameworks.run(name)
    assert found["losses"] == pytest.approx(serial, rel=0, abs=TOLERANCE)
    assert found["where"] == "measured here"


def test_stored_runs_match_this_training_and_agree(serial) -> None:
    ran = [name for name in frameworks.FRAMEWORKS if "losses" in frameworks.stored(name)]
    assert {"fabric", "accelerate", "tensorflow"} <= set(ran)
    for name in ran:
        assert frameworks.stored(name)["losses"] == pytest.approx(serial, rel=0, abs=TOLERANCE)


def test_each_framework_has_a_record_with_a_date_and_a_version() -> None:
    for name in frameworks.FRAMEWORKS:
        found = frameworks.stored(name)
        assert found["date"] in found["where"]
        assert found["version"]
        assert ("losses" in found) != ("error" in found)


def test_only_new_or_changed_lines_are_counted() -> None:
    assert frameworks.added_lines("serial") == []
    ddp = frameworks.added_lines("ddp")
    assert "model = DistributedDataParallel(model)" in ddp
    assert "optimizer.zero_grad()" not in ddp
    assert len(ddp) < len(frameworks.added_lines("plain"))


def test_failing_program_raises_its_error(monkeypatch) -> None:
    broken = frameworks.Framework("a broken one", "toy.py", launcher="none")
    monkeypatch.setitem(frameworks.FRAMEWORKS, "broken", broken)
    with pytest.raises(RuntimeError, match="a broken one failed"):
        frameworks.run("broken")


def test_numbers_are_deterministic() -> None:
    one, other = toy.numbers(), toy.numbers()
    assert all((one[name] == other[name]).all() for name in one)
    assert one["inputs"].shape == (toy.BATCH, toy.INPUTS)
