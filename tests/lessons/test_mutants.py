"""A few changed answers of each lesson, whose verdicts are known; `make mutants` tries them all.

And what mistakes.md notes as equivalent is a change that `make mutants` makes.
"""

from __future__ import annotations

import pytest

from course_lib.teaching import mistakes
from course_lib.teaching.catalogue import all_exercises, find
from tools.mutants.__main__ import mutants_of
from tools.mutants.trials import kind_of, told

NOTED = {
    id: notes
    for id, exercise in all_exercises().items()
    if (notes := mistakes.read(mistakes.path_of(exercise)).equivalent.get(id))
}

# Exercise, the line that goes, the one that comes, the mistake that is recognised.
KNOWN = [
    (
        "00.neighbours",
        "return ((rank - 1) % world_size, (rank + 1) % world_size)",
        "return (rank - 1, (rank + 1) % world_size)",
        "falls-off-the-end",
    ),
    (
        "00.neighbours",
        "return ((rank - 1) % world_size, (rank + 1) % world_size)",
        "return str(((rank - 1) % world_size, (rank + 1) % world_size))",
        "not-two-numbers",
    ),
    ("01.ring_pass", "if comm.rank == 0:", "if False:", "everyone-receives-first"),
    ("01.write_in_order", "if comm.rank < comm.size - 1:", "if True:", "falls-off-the-end"),
    (
        "02.broadcast",
        "for dest in range(comm.size):",
        "for dest in range(comm.size - 1):",
        "somebody-gets-nothing",
    ),
    (
        "02.transpose",
        "dist.all_to_all_single(received, blocks, group=group)",
        "dist.all_to_all_single(received, blocks)",
        "forgets-the-group",
    ),
    (
        "03.crossover",
        "fewer_steps = (2 * (p - 1) - lg) * alpha",
        "fewer_steps = 2 * (p - 1) * alpha",
        "rings-steps-only",
    ),
    ("04.gradients", "h = max(u, 0)", "h = min(u, 0)", "wrong-loss"),
    ("05.batches_of_rank", "parts = steps * world_size", "parts = steps", "steps-differ"),
    (
        "06.epoch_seconds",
        "return steps * (comp + (sync if ranks > 1 else 0))",
        "return steps * (comp + sync)",
        "one-rank-synchronises",
    ),
    (
        "07.mean_loss",
        "total = sum((loss * size for loss, size in zip(losses, sizes, strict=True) if size > 0))",
        "total = sum((loss * size for loss, size in zip(losses, sizes, strict=True)))",
        "an-empty-shard-spoils-it",
    ),
    ("08.train_epochs", "sampler.set_epoch(epoch)", "", "same-order-every-epoch"),
    (
        "09.rate_for",
        "return base / max(1, staleness)",
        "return base / staleness",
        "division-by-zero",
    ),
    (
        "09.staleness",
        "def staleness(order):",
        "@changes_its_arguments\ndef staleness(order):",
        "changes-its-input",
    ),
    (
        "10.order",
        "ahead = min(stages - 1 - number, micro_batches)",
        "ahead = micro_batches",
        "holds-too-many",
    ),
    (
        "10b.bytes_per_rank",
        "weights = 2 / ranks if stage >= 3 else 2",
        "weights = 2 / ranks if stage > 3 else 2",
        "wrong-number",
    ),
    (
        "10c.average_gradients",
        "gradient /= dist.get_world_size(everyone)",
        "",
        "sum-not-mean",
    ),
    (
        "11.least_seconds",
        "return sum((max(flops / peak, moved / bandwidth) for flops, moved in layers))",
        "return sum((min(flops / peak, moved / bandwidth) for flops, moved in layers))",
        "takes-the-smaller-time",
    ),
    (
        "12.rest_of_epoch",
        "return order[done:][rank::world_size]",
        "return order[:][rank::world_size]",
        "starts-the-epoch-again",
    ),
    ("12.save_whole", "os.replace(beside, path)", "", "nothing-is-there"),
    (
        "13.job_request",
        "per_node = max((k for k in range(1, gpus + 1) if ranks % k == 0))",
        "per_node = max((k for k in range(1, gpus + 1)))",
        "too-few-ranks",
    ),
    (
        "13b.effective_batch",
        "if setting in ('accelerate split_batches', 'keras'):",
        "if False:",
        "wrong-value",
    ),
    ("14.time_to_target", "if accuracy >= target:", "if accuracy > target:", "above-only"),
]


@pytest.mark.parametrize("id", NOTED)
def test_noted_equivalent_changes_are_generated(id: str) -> None:
    made = {mutant.change for mutant in mutants_of(find(id))}
    assert [change for change in NOTED[id] if change not in made] == []


@pytest.mark.parametrize(("id", "old", "new", "mistake"), KNOWN)
def test_a_changed_answer_is_recognised(cluster, id: str, old: str, new: str, mistake: str) -> None:
    (code,) = {
        mutant.code
        for mutant in mutants_of(find(id))
        if mutant.change == (tuple(old.splitlines()), tuple(new.splitlines()))
    }
    assert kind_of(id, told(id, code, cluster)) == mistake


def test_each_lesson_with_exercises_has_a_changed_answer() -> None:
    assert {id.partition(".")[0] for id in all_exercises()} == {
        id.partition(".")[0] for id, *_ in KNOWN
    }
