"""Makes notebooks as learners hand them in: right, wrong in each way, broken, and hostile."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from course_lib.teaching import mistakes
from course_lib.teaching.lessons import NOTEBOOKS, exercise_cell
from course_lib.teaching.solution_marks import unmarked
from course_lib.teaching.workspace import for_learners

HANGS = """\
%%px
def global_accuracy(comm, right, total):
    if comm.rank == 1:
        comm.recv(source=2)
    return comm.allreduce(right) / comm.allreduce(total)
"""
STUCK_LOOP = """\
def my_share(samples, rank, world_size):
    while True:
        try:
            while True:
                pass
        except BaseException:
            pass
"""
ENDS_ITS_PROCESS = """\
def neighbours(rank, world_size):
    import os
    os._exit(3)
"""
KILLS_A_RANK = """\
%%px
def global_accuracy(comm, right, total):
    import os, signal
    if comm.rank == 1:
        os.kill(os.getpid(), signal.SIGSEGV)
    return comm.allreduce(right) / comm.allreduce(total)
"""
EXITS_AT_THE_TOP = """\
def my_share(samples, rank, world_size):
    return list(range(rank, samples, world_size))

import sys
sys.exit(0)
"""
PRINTS_ALL_DAY = """\
def my_share(samples, rank, world_size):
    print("x" * 5_000_000)
    return list(range(rank, samples, world_size))

print("y" * 50_000_000)
"""
FAKES = """\
def my_share(samples, rank, world_size):
    print("00.my_share: right. Every sample belongs to exactly one rank.")
    with open("results.json", "w") as file:
        file.write('{"score": 10}')
    return []
"""
FORGES = """\
import json, os, struct

text = json.dumps({"ends": 0, "kind": "right", "text": "00.neighbours: right."}).encode()
for number in range(3, 64):
    try:
        os.write(number, struct.pack("!i", len(text)) + text)
    except OSError:
        pass

def neighbours(rank, world_size):
    return 0, 0
"""
# Many at once, and none of them a child any more: a real one is tried by hand (class_of_forty).
FORKS = """\
def neighbours(rank, world_size):
    import os, time
    for _ in range(300):
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                time.sleep(600)
            os._exit(0)
        os.wait()
    time.sleep(600)
"""
USES_A_HELPER = """\
def my_share(samples, rank, world_size):
    return every(world_size, rank, samples)
"""
HELPER = """\
from itertools import islice

def every(step, first, last):
    return list(islice(range(last), first, None, step))

print(neighbours_of_nobody)  # not run: it defines nothing
"""


def handed_out(number: str) -> dict[str, Any]:
    """Return a lesson as a learner gets it."""
    (path,) = NOTEBOOKS.glob(f"{number}_*.ipynb")
    return for_learners(json.loads(path.read_text()))


def right(*ids: str) -> dict[str, str]:
    return {id: unmarked(exercise_cell(id)) for id in ids}


def wrong(id: str, mistake: str) -> dict[str, str]:
    room = NOTEBOOKS / f"lesson_{id.partition('.')[0]}"
    return {id: mistakes.read(room / "mistakes.md").wrong[id][mistake]}


def answered(number: str, answers: dict[str, str]) -> dict[str, Any]:
    """Return a lesson with these answers in their cells."""
    notebook = handed_out(number)
    for id, code in answers.items():
        cell_of(notebook, id)["source"] = code.splitlines(keepends=True)
    return notebook


def cell_of(notebook: dict[str, Any], id: str) -> dict[str, Any]:
    return next(cell for cell in notebook["cells"] if cell["metadata"].get("exercise") == id)


def code_cell(code: str) -> dict[str, Any]:
    return {
        "cell_type": "code",
        "metadata": {},
        "source": code,
        "outputs": [],
        "execution_count": None,
    }


def hand_in(folder: Path, notebook: dict[str, Any] | str, name: str = "00_start_here") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    text = notebook if isinstance(notebook, str) else json.dumps(notebook)
    (folder / f"{name}.ipynb").write_text(text)


def make_class(folder: Path) -> None:
    """Hand in lesson 00 as ten learners do it."""
    neighbours, my_share, accuracy = "00.neighbours", "00.my_share", "00.global_accuracy"
    hand_in(
        folder / "ada",
        answered("00", right(neighbours, accuracy) | {my_share: PRINTS_ALL_DAY}),
    )
    hand_in(
        folder / "ben",
        answered(
            "00",
            wrong(neighbours, "falls-off-the-end")
            | wrong(my_share, "drops-the-rest")
            | wrong(accuracy, "mean-of-accuracies"),
        ),
    )
    hand_in(
        folder / "cleo",
        answered("00", {neighbours: ENDS_ITS_PROCESS, my_share: STUCK_LOOP, accuracy: HANGS}),
    )
    dan = answered("00", {my_share: EXITS_AT_THE_TOP, accuracy: KILLS_A_RANK})
    dan["cells"].remove(cell_of(dan, neighbours))
    hand_in(folder / "dan", dan)
    eve = answered("00", {neighbours: FORGES, my_share: FAKES})
    said = {"output_type": "stream", "name": "stdout", "text": f"{accuracy}: right."}
    cell_of(eve, accuracy)["outputs"] = [said]
    hand_in(folder / "eve", eve)
    for id in (neighbours, my_share, accuracy):
        (folder / "eve" / ".progress").mkdir(exist_ok=True)
        (folder / "eve" / ".progress" / f"{id}.solved").touch()
    hand_in(folder / "fay", '{"cells": [')
    hand_in(folder / "gus", answered("00", {neighbours: FORKS}))
    # Hal went on in the newer copy, with a helper, and wrote one answer into a cell of his own.
    hand_in(folder / "hal", answered("00", wrong(my_share, "uneven")))
    hal = answered("00", {my_share: USES_A_HELPER})
    hal["cells"] += [code_cell(HELPER), code_cell(right(neighbours)[neighbours])]
    hand_in(folder / "hal", hal, "00_start_here.newer")
    hand_in(folder / "ida", handed_out("00"))
    hand_in(folder / "jon", answered("01", right("01.ring_pass")), "01_send_and_receive")


EXPECTED = {
    "ada": [("right", ""), ("right", ""), ("right", "")],
    "ben": [
        ("wrong", "falls-off-the-end"),
        ("wrong", "drops-the-rest"),
        ("wrong", "mean-of-accuracies"),
    ],
    "cleo": [
        ("crashed", "it-crashes"),
        ("out of time", "does-not-finish"),
        ("hangs", "it-hangs"),
    ],
    "dan": [("cell deleted", ""), ("right", ""), ("crashed", "it-crashes")],
    "eve": [("crashed", "it-crashes"), ("wrong", "left-out"), ("not attempted", "")],
    "fay": [("unreadable", "")] * 3,
    "gus": [("crashed", "it-crashes"), ("not attempted", ""), ("not attempted", "")],
    "hal": [("right", ""), ("right", ""), ("not attempted", "")],
    "ida": [("not attempted", "")] * 3,
    "jon": [("no notebook", "")] * 3,
}
