"""Models, the serial loop and its history."""

from __future__ import annotations

import pytest
import torch

from course_lib.training import data, loops
from course_lib.training.history import History
from course_lib.training.models import MLP, LeNet, parameter_count


def test_lenet_has_the_published_number_of_parameters() -> None:
    # Fully connected variant: 156 + 2,416 + 48,120 + 10,164 + 850.
    assert parameter_count(LeNet()) == 61_706
    assert LeNet(size=28)(torch.zeros(2, 1, 28, 28)).shape == (2, 10)
    assert LeNet(channels=3, size=32)(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
    with pytest.raises(ValueError, match="28 or 32"):
        LeNet(size=30)


def test_mlp_takes_images() -> None:
    assert parameter_count(MLP(64, (128,), 10)) == 64 * 128 + 128 + 128 * 10 + 10
    assert MLP()(torch.zeros(5, 1, 8, 8)).shape == (5, 10)


def run_once() -> tuple[torch.Tensor, History]:
    loops.set_seed(1)
    training, test = data.load("digits")
    model = MLP()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    history = loops.train(model, optimizer, training, test, epochs=4, batch_size=64)
    return torch.nn.utils.parameters_to_vector(model.parameters()).detach(), history


def test_training_learns_the_digits_and_repeats_exactly() -> None:
    weights, history = run_once()
    assert history.loss[-1] < history.loss[0] / 3
    # A linear classifier reaches about 0.95 here; four epochs of the MLP must come near it.
    assert history.accuracy[-1] > 0.90
    assert history.samples == [1437, 2874, 4311, 5748]
    assert history.samples_per_second > 0
    again, _ = run_once()
    assert torch.equal(weights, again)


def test_batches_cover_every_sample_once() -> None:
    seen = torch.cat(list(loops.batches(10, 4, seed=3)))
    assert sorted(seen.tolist()) == list(range(10))
    assert [len(batch) for batch in loops.batches(10, 4, seed=3)] == [4, 4, 2]
    assert not torch.equal(seen, torch.cat(list(loops.batches(10, 4, seed=4))))


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
