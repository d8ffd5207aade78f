"""Nothing in a journal changes unnoticed, and only what was predicted before a run counts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from rank_by_rank.lesson_14 import journal as journal_module
from rank_by_rank.lesson_14.journal import Journal, own_folder
from rank_by_rank.lesson_14.tasks import STRATEGIES, TASKS, Plan, best_rate

PLAN = Plan("flattened", 16, 0.4)
OTHER = Plan("local SGD", 16, 0.4, {"every": 4})


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path)


def test_new_journal_is_empty(journal: Journal) -> None:
    assert journal.entries() == []
    assert journal.broken_from() is None
    assert journal.counting_prediction("A", PLAN) is None


def test_the_last_prediction_before_the_first_run_counts(journal: Journal, capsys) -> None:
    journal.predict("A", PLAN, 3)
    journal.predict("A", PLAN, 2.5, why="a pilot")
    journal.predict("A", OTHER, 9)
    journal.predict("B", PLAN, 8)
    assert "does not count" not in capsys.readouterr().out
    journal.ran("A", PLAN, {"speed_up": 2.0})
    journal.predict("A", PLAN, 2.0)
    assert "You have seen this plan run before" in capsys.readouterr().out
    journal.ran("A", PLAN, {"speed_up": 2.0})
    counting = journal.counting_prediction("A", PLAN)
    assert counting is not None
    assert (counting.content["speed_up"], counting.content["why"]) == (2.5, "a pilot")
    assert [one.content["speed_up"] for one in journal.late_predictions("A", PLAN)] == [2.0]
    assert journal.late_predictions("A", OTHER) == []
    assert journal.broken_from() is None
    assert [one.number for one in journal.entries()] == list(range(1, 8))


def test_missing_prediction_writes_nothing(journal: Journal, capsys) -> None:
    journal.predict("A", PLAN, None)
    assert "No prediction" in capsys.readouterr().out
    assert journal.entries() == []


@pytest.mark.parametrize("speed_up", [0, -1, float("inf"), float("nan"), "2", True, [2]])
def test_predict_rejects_bad_speed_ups_and_tasks(journal: Journal, speed_up) -> None:
    with pytest.raises(ValueError, match=r"speed-up|number"):
        journal.predict("A", PLAN, speed_up)
    with pytest.raises(ValueError, match="no task 'Z'; there are A, B, C"):
        journal.predict("Z", PLAN, 2)
    assert journal.entries() == []


def lines_of(journal: Journal) -> list[str]:
    return (journal.folder / "journal.jsonl").read_text().splitlines()


def filled(journal: Journal) -> list[str]:
    for number in (1.5, 2.5, 3.5):
        journal.predict("A", PLAN, number)
    journal.ran("A", PLAN, {"speed_up": 3.0})
    return lines_of(journal)


@pytest.mark.parametrize("number", [1, 2, 3, 4])
@pytest.mark.parametrize("how", ["changed", "spoilt"])
def test_edited_line_breaks_the_seals(journal: Journal, number, how) -> None:
    lines = filled(journal)
    assert journal.broken_from() is None
    if how == "changed":
        lines[number - 1] = lines[number - 1].replace(".5", ".6").replace("3.0", "3.6")
    else:
        lines[number - 1] = "{" + lines[number - 1]
    (journal.folder / "journal.jsonl").write_text("\n".join(lines) + "\n")
    assert journal.broken_from() == number


@pytest.mark.parametrize("number", [1, 2, 3])  # the last one can be cut off: its seal is known
def test_removed_line_breaks_the_seals(journal: Journal, number: int) -> None:
    lines = filled(journal)
    del lines[number - 1]
    (journal.folder / "journal.jsonl").write_text("\n".join(lines) + "\n")
    assert journal.broken_from() == number


def test_forged_seal_is_detected(journal: Journal) -> None:
    lines = filled(journal)
    text = lines[0].rpartition(" ")[0].replace("1.5", "2.9")
    lines[0] = f"{text} {journal_module._seal(text, '')}"
    (journal.folder / "journal.jsonl").write_text("\n".join(lines) + "\n")
    assert journal.broken_from() == 2


def test_two_notebooks_share_one_journal(tmp_path: Path) -> None:
    first, second = Journal(tmp_path), Journal(tmp_path)
    first.predict("A", PLAN, 2)
    second.predict("A", PLAN, 3)
    first.ran("A", PLAN, {"speed_up": None})
    assert first.broken_from() is None
    assert [one.kind for one in second.entries()] == ["prediction", "prediction", "run"]


def test_plans_differ_in_any_field(journal: Journal) -> None:
    journal.predict("A", PLAN, 2)
    for other in (Plan("flattened", 16, 0.2), Plan("flattened", 32, 0.4), OTHER):
        assert journal.counting_prediction("A", other) is None


def test_folder_outside_the_workspace_is_temporary(tmp_path: Path) -> None:
    code = "from rank_by_rank.lesson_14.journal import own_folder; print(own_folder())"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert not Path(done.stdout.strip()).exists()
    assert own_folder() != own_folder()


def test_folder_in_the_workspace_is_the_learners(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(journal_module, "WORKSPACE", tmp_path)
    monkeypatch.chdir(tmp_path)
    assert own_folder() == tmp_path / "capstone"
    Journal().predict("A", PLAN, 2)
    assert json.loads(lines_of(Journal())[0].rpartition(" ")[0])[0] == "prediction"


def test_custom_strategy_accepts_any_options(monkeypatch) -> None:
    monkeypatch.setitem(STRATEGIES, "mine", "a try")
    assert Plan("mine", 16, 0.4, {"share": 0.5}).options == {"share": 0.5}


def test_the_best_rate_is_the_one_with_the_fewest_steps() -> None:
    assert best_rate({0.1: 300, 0.2: 208, 0.4: 128, 0.8: 128}) == (0.4, 128)
    assert best_rate({0.1: None, 0.2: 208}) == (0.2, 208)
    with pytest.raises(ValueError, match=r"none of the rates 0\.1, 0\.2 reached the target"):
        best_rate({0.1: None, 0.2: None})


def test_plans_and_tasks_describe_and_validate_themselves() -> None:
    assert OTHER.in_words() == "local SGD, batch 16, rate 0.4, every 4"
    assert Plan("local SGD", 16, 0.4).options == {"every": 8}
    with pytest.raises(ValueError, match="local SGD has no option 'often'; known: every"):
        Plan("local SGD", 16, 0.4, {"often": 4})
    with pytest.raises(ValueError, match="batch must be"):
        Plan("flattened", 0, 0.4)
    with pytest.raises(ValueError, match="rate must be"):
        Plan("flattened", 1, 0.0)
    with pytest.raises(ValueError, match=r"no strategy is called 'flatened'; there are alone, per"):
        Plan("flatened", 16, 0.4)
    for wrong in (0, 2.5, "8", True):
        with pytest.raises(ValueError, match="every must be a whole number"):
            Plan("local SGD", 16, 0.4, {"every": wrong})
    for task in TASKS.values():
        assert "digits" in task.targets, "there without a download"
        assert task.latency >= 0.005, "shorter ones drown in what a busy machine adds"
