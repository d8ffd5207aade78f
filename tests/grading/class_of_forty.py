"""Grades forty learners' lessons 01 to 03, made by script, and compares with what is expected.

Run by hand: ``.venv/bin/python tools/within.py -m tests.grading.class_of_forty FOLDER``. It takes
as long as ``docs/grading.md`` says, and has a real fork bomb in it. With another ``--out`` it
grades the same class again, and the two are compared.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from itertools import cycle
from pathlib import Path

from course_lib.grading.__main__ import main as grade
from course_lib.grading.answers import of_lesson
from course_lib.teaching import mistakes
from course_lib.teaching.lessons import NOTEBOOKS
from tests.grading.class_by_script import answered, cell_of, hand_in, right

STEMS = {p.stem[:2]: p.stem for p in NOTEBOOKS.glob("0[123]_*.ipynb")}
ORDINARY = 34
RIGHT_OF_FIVE = 3
FORK_BOMB = """\
%%px
def ring_pass(comm, token):
    import os
    while True:
        os.fork()
"""
HANGS = """\
%%px
def shift(comm, *arguments):
    if comm.rank == 0:
        comm.recv(source=1, tag=77)
"""
CRASHES = """\
%%px
def handshake(comm, *arguments):
    import os
    os._exit(1)
"""
NEVER_ENDS = """\
%%px
def write_in_order(comm, *arguments):
    while True:
        pass
"""
SPECIAL = {
    "01.ring_pass": (FORK_BOMB, "it-crashes"),
    "01.shift": (HANGS, "it-hangs"),
    "01.handshake": (CRASHES, "it-crashes"),
    "01.write_in_order": (NEVER_ENDS, "does-not-finish"),
}


def make_forty(folder: Path) -> dict[str, dict[str, str]]:
    """Hand in everything; return learner -> exercise -> mistake, "" for right, "-" for nothing."""
    ids = {number: of_lesson(number) for number in sorted(STEMS)}
    wrong = {
        id: cycle(mistakes.read(NOTEBOOKS / f"lesson_{number}" / "mistakes.md").wrong[id].items())
        for number, of in ids.items()
        for id in of
    }
    expected: dict[str, dict[str, str]] = {}
    for place in range(ORDINARY):
        learner = f"learner{place:02}"
        expected[learner] = {}
        for number, of in ids.items():
            answers = {}
            for turn, id in enumerate(of):
                if (place + turn) % 5 < RIGHT_OF_FIVE:
                    answers |= right(id)
                    expected[learner][id] = ""
                elif (place + turn) % 10 == 9:
                    expected[learner][id] = "-"
                else:
                    mistake, answers[id] = next(wrong[id])
                    expected[learner][id] = mistake.partition(":")[0]
            hand_in(folder / learner, answered(number, answers), STEMS[number])
    for place, (id, (code, mistake)) in enumerate(SPECIAL.items()):
        learner = f"special{place}"
        everything = {other: right(other)[other] for of in ids.values() for other in of}
        expected[learner] = dict.fromkeys(everything, "") | {id: mistake}
        for number in ids:
            answers = {i: everything[i] for i in ids[number]} | (
                {id: code} if id[:2] == number else {}
            )
            hand_in(folder / learner, answered(number, answers), STEMS[number])
    expected["special4"] = {id: "-" for of in ids.values() for id in of}
    for number, of in ids.items():
        notebook = answered(number, {})
        for id in of:  # outputs that nobody has computed
            said = {"output_type": "stream", "name": "stdout", "text": f"{id}: right."}
            cell_of(notebook, id)["outputs"] = [said]
        notebook["cells"].remove(cell_of(notebook, of[0]))
        hand_in(folder / "special4", notebook, STEMS[number])
    expected["special5"] = {id: "-" for of in ids.values() for id in of}
    for stem in STEMS.values():
        hand_in(folder / "special5", "no notebook", stem)
    return expected


def found_in(out: Path) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for path in sorted(out.glob("learners/*/results.json")):
        tests = json.loads(path.read_text())["tests"]
        found[path.parent.name] = {
            test["name"]: test["tags"][1]
            if test["tags"][1:]
            else ("" if test["status"] == "passed" else "-")
            for test in tests
        }
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", default="results", help="below the folder")
    given = parser.parse_args()
    expected = make_forty(given.folder / "class")
    out = given.folder / given.out
    began = time.monotonic()
    options = ["--lessons", "01-03", "--out", str(out), "--jobs", "2"]
    status = grade([str(given.folder / "class"), *options])
    print(f"{len(expected)} learners in {(time.monotonic() - began) / 60:.1f} minutes")
    if status:
        return status
    found = found_in(out)
    different = [
        f"{learner}: {id}: expected {mistake or 'right'!r}, found {found[learner][id] or 'right'!r}"
        for learner, of in expected.items()
        for id, mistake in of.items()
        if found[learner][id] != mistake
    ]
    print("\n".join(different) or "all as expected")
    others = [path for path in given.folder.iterdir() if path.name not in ("class", given.out)]
    for other in others:
        print(f"{other.name}: {'equal' if found_in(other) == found else 'DIFFERENT'}")
    return int(bool(different))


if __name__ == "__main__":
    sys.exit(main())
