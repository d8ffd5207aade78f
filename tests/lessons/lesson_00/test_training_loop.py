"""The loop in one process learns, repeats exactly, and writes down what it did."""

from __future__ import annotations

import torch
from rank_by_rank.lesson_00.training_loop import History, train

from course_lib.training import data
from course_lib.training.loops import set_seed
from course_lib.training.models import MLP


def run_once() -> tuple[torch.Tensor, History]:
    set_seed(1)
    training, test = data.load("digits")
    model = MLP()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    history = train(model, optimizer, training, test, epochs=4, batch_size=64)
    return torch.nn.utils.parameters_to_vector(model.parameters()).detach(), history


def test_training_learns_digits_and_is_deterministic() -> None:
    weights, history = run_once()
    assert history.loss[-1] < history.loss[0] / 3
    # A linear classifier reaches about 0.95 here; four epochs of the MLP must come near it.
    assert history.accuracy[-1] > 0.90
    assert history.samples == [1437, 2874, 4311, 5748]
    assert history.samples_per_second > 0
    again, _ = run_once()
    assert torch.equal(weights, again)


def test_progress_bar_is_shown_only_interactively(monkeypatch, capsys) -> None:
    run_once()
    assert capsys.readouterr() == ("", "")
    for watched in ("", "0", None):
        if watched is None:
            monkeypatch.delenv("IPP_NONINTERACTIVE")
        else:
            monkeypatch.setenv("IPP_NONINTERACTIVE", watched)
        _, history = run_once()
        shown, errors = capsys.readouterr()
        assert errors == ""
        first, *_, blank, end = shown.removeprefix("\r").split("\r")
        assert first.startswith("one process:   0%|          | 0/4 [")
        assert all(f"loss={loss:.3f}" in shown for loss in history.loss)
        assert blank.strip() == end == "", "nothing of it stays"


def test_history_adds_up_phases_and_time() -> None:
    history = History(label="x")
    history.record(loss=2.0, accuracy=0.1, seconds=0.5, samples=10)
    history.record(loss=1.0, accuracy=0.2, seconds=0.5, samples=10)
    assert history.seconds == [0.5, 1.0]
    assert history.samples_per_second == 20
    with history.phase("forward"):
        pass
    with history.phase("forward"):
        pass
    assert list(history.phases) == ["forward"]
    assert history.phases["forward"] >= 0


def test_training_measures_its_phases_and_steps_the_scheduler() -> None:
    training, test = data.load("digits")
    model = MLP()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    history = train(model, optimizer, training, test, epochs=2, batch_size=512, scheduler=scheduler)
    assert list(history.phases) == ["data", "forward", "backward", "update"]
    assert all(seconds > 0 for seconds in history.phases.values())
    assert sum(history.phases.values()) <= history.seconds[-1]
    assert scheduler.last_epoch == 6  # 1,437 samples are three steps an epoch
