"""Finds wrong answers that the checks of the exercises accept: ``make mutants``.

Each right answer is changed as a learner might get it wrong (:mod:`.changes`), and checked
(:mod:`.trials`). A mutant that is called right survives. It shows a mistake that no judge
recognises; or the change is equivalent, which mistakes.md lists below "Equivalent changes", with
the reason.

The survivors are printed as they would stand in mistakes.md, and a table with a row for each
lesson. The program fails if more than 2% of a lesson's mutants survive, if a check itself fails,
or if a change that is noted as equivalent is called wrong.
"""

from __future__ import annotations

import argparse
import os
import queue
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from course_lib.teaching import catalogue, lessons, mistakes
from course_lib.teaching.exercise import Exercise
from course_lib.teaching.solution_marks import unmarked

from .changes import Mutant, mutants
from .trials import BROKEN, LOST, RIGHT, VOID, Outcome, Trials

MOST_SURVIVE = 0.02
SOLUTION = "the solution"
_AT_ONCE = 2
_DEADLINES = {"engines": 12.0, "notebook": 3.0}  # seconds


@dataclass
class Tried:
    """The outcome of the mutants of an exercise.

    Attributes:
        made: how many there are.
        wrong_notes: noted as equivalent, but called wrong.
        spoiled: right answers that were called wrong, which makes the mutants' outcome meaningless.
    """

    exercise: str
    made: int = 0
    killed: list[tuple[Mutant, Outcome]] = field(default_factory=list)
    survivors: list[Mutant] = field(default_factory=list)
    equivalent: list[Mutant] = field(default_factory=list)
    broken: list[tuple[Mutant, Outcome]] = field(default_factory=list)
    wrong_notes: list[tuple[Mutant, Outcome]] = field(default_factory=list)
    spoiled: list[tuple[str, Outcome]] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def lesson(self) -> str:
        return self.exercise.partition(".")[0]


def answers_to(exercise: Exercise) -> dict[str, str]:
    """Return the right answers to an exercise by style, its solution first."""
    found = {}
    if list(lessons.NOTEBOOKS.glob(f"lesson_*/{exercise.id.partition('.')[0]}_*.py")):
        found[SOLUTION] = unmarked(lessons.exercise_cell(exercise.id))
    return found | mistakes.read(mistakes.path_of(exercise)).right.get(exercise.id, {})


def mutants_of(exercise: Exercise) -> list[Mutant]:
    """Return all mutants of all right answers to an exercise."""
    return mutants(exercise.id, answers_to(exercise), exercise.function)


def sample(found: Sequence[Mutant], most: int, seed: int) -> list[Mutant]:
    """Return at most this many, the same ones for the same seed, answer by answer."""
    chosen = sorted(found, key=lambda mutant: mutant.place(seed))[:most]
    order = {id(mutant): number for number, mutant in enumerate(found)}
    return sorted(chosen, key=lambda mutant: order[id(mutant)])


def try_all(
    exercise: Exercise, chosen: Sequence[Mutant], made: int, trials: Trials, seconds: float | None
) -> Tried:
    """Check the mutants of an exercise, and the right answers before and after them."""
    tried = Tried(exercise.id, made)
    began = time.monotonic()
    deadline = seconds or _DEADLINES[exercise.where]
    noted = mistakes.read(mistakes.path_of(exercise)).equivalent.get(exercise.id, {})
    answers = answers_to(exercise)

    def check_unchanged(answer: str) -> None:
        outcome = trials.run(exercise.id, answers[answer], exercise.deadline)
        if outcome.kind != RIGHT:
            tried.spoiled.append((answer, outcome))
            trials.end()

    for number, mutant in enumerate(chosen):
        if number == 0 or chosen[number - 1].answer != mutant.answer:
            check_unchanged(mutant.answer)  # and its imports take no mutant's time
        outcome = trials.run(exercise.id, mutant.code, deadline)
        if outcome.kind == VOID:
            tried.made -= 1
        elif outcome.kind == BROKEN:
            tried.broken.append((mutant, outcome))
        elif outcome.kind != RIGHT:
            place = tried.wrong_notes if mutant.change in noted else tried.killed
            place.append((mutant, outcome))
        elif mutant.change in noted:
            tried.equivalent.append(mutant)
        else:
            tried.survivors.append(mutant)
        if number + 1 == len(chosen) or chosen[number + 1].answer != mutant.answer:
            check_unchanged(mutant.answer)
    tried.seconds = time.monotonic() - began
    return tried


def tries(exercises: Sequence[Exercise], asked: argparse.Namespace) -> Iterator[Tried]:
    """Yield the outcome of each exercise as it is done, several at a time."""
    waiting: queue.SimpleQueue[Exercise] = queue.SimpleQueue()
    done: queue.SimpleQueue[Tried] = queue.SimpleQueue()
    for exercise in exercises:
        waiting.put(exercise)
    stop = threading.Event()

    def work() -> None:
        with Trials(asked.rooms) as trials:
            while not stop.is_set():
                try:
                    exercise = waiting.get_nowait()
                except queue.Empty:
                    return
                found = mutants_of(exercise)
                chosen = sample(found, asked.most, asked.seed)
                done.put(try_all(exercise, chosen, len(found), trials, asked.seconds))

    with ThreadPoolExecutor(asked.at_once) as pool:
        workers = [pool.submit(work) for _ in range(asked.at_once)]
        try:
            for _ in exercises:
                while True:
                    try:
                        yield done.get(timeout=1)
                        break
                    except queue.Empty:
                        for worker in workers:
                            if worker.done():
                                worker.result()  # raises the error of that exercise
        finally:
            stop.set()


# ---- what is printed --------------------------------------------------------------------------


def diff(mutant: Mutant) -> str:
    """Return a change as it stands in mistakes.md."""
    return "\n".join([*(f"-{line}" for line in mutant.old), *(f"+{line}" for line in mutant.new)])


def by_lesson(all_tried: Sequence[Tried]) -> dict[str, list[Tried]]:
    """Return the outcomes of each lesson's exercises."""
    found: dict[str, list[Tried]] = {}
    for tried in sorted(all_tried, key=lambda one: one.lesson):
        found.setdefault(tried.lesson, []).append(tried)
    return found


def table(all_tried: Sequence[Tried]) -> str:
    """Return a row for each lesson, and one for all: "lost" are some of those that are killed."""
    head = ("lesson", "made", "tried", "killed", "lost", "equivalent", "survived", "", "seconds")
    rows = [list(head)]
    for lesson, own in [*by_lesson(all_tried).items(), ("all", list(all_tried))]:
        killed, survived = counted(own)
        equivalent = sum(len(tried.equivalent) for tried in own)
        lost = sum(outcome.kind == LOST for tried in own for _, outcome in tried.killed)
        numbers = (
            *(sum(tried.made for tried in own), killed + survived + equivalent),
            *(killed, lost, equivalent, survived),
        )
        share = f"{survived / max(1, killed + survived):.1%}"
        seconds = f"{sum(tried.seconds for tried in own):.0f}"
        rows.append([lesson, *map(str, numbers), share, seconds])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    )


def counted(all_tried: Sequence[Tried]) -> tuple[int, int]:
    """Return how many were killed, and how many non-equivalent ones survived."""
    killed = sum(len(one.killed) + len(one.wrong_notes) + len(one.broken) for one in all_tried)
    return killed, sum(len(one.survivors) for one in all_tried)


def problems(all_tried: Sequence[Tried]) -> list[str]:
    """Return why the program fails, apart from survivors: a paragraph each."""
    found = []
    for tried in all_tried:
        for mutant, outcome in tried.broken:
            found.append(f"the check of {tried.exercise} failed:\n{diff(mutant)}\n{outcome.said}")
        for mutant, outcome in tried.wrong_notes:
            said = f"is noted as equivalent, but {outcome.said}"
            found.append(f"{tried.exercise}, {mutant.answer}:\n{diff(mutant)}\n{said}")
        for answer, outcome in tried.spoiled:
            found.append(f"{tried.exercise}, {answer}, unchanged: {outcome.said}")
    return found


def print_one(tried: Tried, everything: bool) -> None:
    """Print the outcome of an exercise: its survivors, or every mutant."""
    for mutant in tried.survivors:
        print(f"\n{tried.exercise} survived ({mutant.answer}: {mutant.kind})\n{diff(mutant)}")
    if everything:
        for mutant, outcome in tried.killed:
            print(f"\n{tried.exercise} {outcome.kind} {outcome.seconds:.1f} s ({mutant.kind})")
            print(diff(mutant))
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__.partition("\n")[0])
    parser.add_argument("--lesson", nargs="*", default=[], help="such as 05 10b; all if left out")
    parser.add_argument("--exercise", nargs="*", default=[], help="such as 05.train_step")
    parser.add_argument("--most", type=int, default=60, help="mutants of an exercise (60)")
    parser.add_argument("--seed", type=int, default=1, help="of the sample (1)")
    parser.add_argument("--at-once", type=int, default=_AT_ONCE, help="exercises (2)")
    parser.add_argument("--seconds", type=float, help="for a mutant (12 on ranks, 3 without)")
    parser.add_argument("--all", action="store_true", help="print those that were killed too")
    parser.add_argument("--rooms", nargs="*", default=list(catalogue.PACKAGES), help="packages")
    asked = parser.parse_args()
    catalogue.PACKAGES[:] = asked.rooms
    exercises = [
        exercise
        for id, exercise in catalogue.all_exercises().items()
        if (not asked.lesson or id.partition(".")[0] in asked.lesson)
        and (not asked.exercise or id in asked.exercise)
    ]
    if not exercises:
        parser.error("no such exercise")
    all_tried = []
    for tried in tries(exercises, asked):
        all_tried.append(tried)
        print_one(tried, asked.all)
    found = problems(all_tried)
    print("", *found, table(all_tried), sep="\n\n")
    counts = {lesson: counted(own) for lesson, own in by_lesson(all_tried).items()}
    many = [
        lesson
        for lesson, (killed, survived) in counts.items()
        if survived > MOST_SURVIVE * (killed + survived)
    ]
    if many:
        print(f"\nmore than {MOST_SURVIVE:.0%} survived in {', '.join(many)}")
    return bool(many or found)


if __name__ == "__main__":
    os.environ.setdefault("IPP_NONINTERACTIVE", "1")
    sys.exit(main())
