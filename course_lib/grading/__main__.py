"""``rank-by-rank grade``: grades collected notebooks, and writes files for other programs."""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import FrameType

from course_lib.teaching import lessons
from course_lib.teaching.checking import encodable
from course_lib.teaching.lessons import write_atomically

from . import answers, formats, one_notebook, page, processes, rubric, submissions, worker
from .formats import Report
from .one_notebook import StoppedError
from .outcomes import Graded, Kept, Outcome
from .submissions import Learner, NoSubmissionsError


def main(arguments: list[str] | None = None) -> int:
    """Grade according to the arguments; return 0, 1 if nothing could be graded, 130 if stopped."""
    given = _parser().parse_args(arguments)
    try:
        points = rubric.read(given.rubric) if given.rubric else rubric.Rubric()
        learners = submissions.find(given.submissions, given.lessons)
    except (OSError, rubric.RubricError, NoSubmissionsError) as error:
        print(f"grade: {error}", file=sys.stderr)
        return 1
    if not processes.something_bounds_them():
        print(
            "grade: you are root and cannot create a cgroup, so nothing limits how many processes "
            "learners' code starts: see docs/grading.md",
            file=sys.stderr,
        )
    try:
        graded = _grade(given, learners)
    except (KeyboardInterrupt, StoppedError):
        print("grade: stopped; run the same command again to continue from here", file=sys.stderr)
        return 130
    _write(Report(given.lessons, learners, graded, points), given.out)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="rank-by-rank grade",
        description="Grade collected notebooks. The learners' code runs in separate processes, but "
        "with your permissions: docs/grading.md says how to isolate it.",
    )
    parser.add_argument("submissions", type=Path, help="a folder with one subfolder per learner")
    parser.add_argument(
        "--lessons", type=_lessons, required=True, metavar="01-05", help="such as 03, or 01-05,10b"
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the results")
    parser.add_argument(
        "--jobs",
        type=_at_least_one,
        default=max(1, (os.cpu_count() or 1) // 2),
        help="notebooks graded at the same time (default: half of the cores, here %(default)s)",
    )
    parser.add_argument("--rubric", type=Path, metavar="FILE", help="points and shares, in TOML")
    parser.add_argument(
        "--seconds",
        type=_at_least_one,
        help="how long checking an answer may take (default: what its exercise says, mostly 40)",
    )
    return parser


def _lessons(text: str) -> list[str]:
    try:
        return lessons.chosen(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{error}") from None


def _at_least_one(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: give a whole number, 1 or more")
    return int(text)


def _grade(given: argparse.Namespace, learners: list[Learner]) -> dict[str, list[Graded]]:
    """Return the outcomes of each learner's lessons; print them line by line."""
    kept, stopping = Kept(given.out / "kept"), threading.Event()
    found: dict[tuple[str, str], Graded] = {}
    with _stopped_by_signals(stopping), ThreadPoolExecutor(given.jobs) as pool:
        try:
            waiting = [
                pool.submit(_surely_one, learner, number, given.seconds, kept, stopping)
                for learner in learners
                for number in given.lessons
            ]
            for count, future in enumerate(as_completed(waiting), 1):
                graded = future.result()
                found[graded.learner, graded.lesson] = graded
                right = sum(outcome.kind == "right" for outcome in graded)
                print(
                    f"{count} of {len(waiting)}: {graded.learner}, lesson {graded.lesson}: "
                    f"{right} of {len(graded.outcomes)} right, {graded.seconds:.0f} s",
                    flush=True,
                )
        except BaseException:
            stopping.set()
            pool.shutdown(cancel_futures=True)
            raise
    return {one.name: [found[one.name, number] for number in given.lessons] for one in learners}


@contextmanager
def _stopped_by_signals(stopping: threading.Event) -> Iterator[None]:
    """End like an interrupt on SIGTERM, too: everything started has to be ended."""

    def stop(signum: int, frame: FrameType | None) -> None:
        stopping.set()
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _surely_one(
    learner: Learner, number: str, seconds: float | None, kept: Kept, stopping: threading.Event
) -> Graded:
    """Grade one lesson of one learner; a failure of the grader's own must not end the others."""
    try:
        return _one(learner, number, seconds, kept, stopping)
    except StoppedError:
        raise
    except Exception as error:
        traceback.print_exc()
        text = f"The grader itself failed; please report this: {type(error).__name__}: {error}"
        outcomes = [Outcome(id, "not judged", text=text) for id in answers.of_lesson(number)]
        return Graded(learner.name, number, outcomes=outcomes)


def _one(
    learner: Learner, number: str, seconds: float | None, kept: Kept, stopping: threading.Event
) -> Graded:
    """Grade one lesson of one learner, or use the outcome of an earlier run."""
    if stopping.is_set():
        raise StoppedError
    ids = answers.of_lesson(number)
    graded = Graded(learner.name, number)
    copies = learner.notebooks.get(number)
    if not copies:
        graded.outcomes = [Outcome(id, "no notebook") for id in ids]
        return graded
    try:
        path, taken = answers.choose(copies, number)
    except (OSError, answers.UnreadableError) as error:
        graded.outcomes = [Outcome(id, "unreadable", text=f"{error}") for id in ids]
        return graded
    graded.notebook = encodable(path.name)  # of any bytes
    mark = _fingerprint(taken, seconds, number)
    found = kept.find(learner.name, number, mark)
    if found is None:
        by_id = {outcome.id: outcome for outcome in one_notebook.judge(taken, seconds, stopping)}
        found = [by_id[id] for id in ids]
    graded.outcomes = found
    if not any(outcome.kind == "not judged" for outcome in found):
        kept.keep(graded, mark)
    return graded


def _fingerprint(taken: list[answers.Answer], seconds: float | None, number: str) -> str:
    """Return the fingerprint of these answers and this way of judging them."""
    told = json.dumps([[asdict(answer) for answer in taken], seconds, _judges(number)])
    return hashlib.sha256(told.encode()).hexdigest()


@functools.cache
def _judges(number: str) -> str:
    digest = hashlib.sha256()
    room = lessons.NOTEBOOKS / f"lesson_{number}"
    paths = [Path(str(module.__file__)) for module in (one_notebook, worker)]
    for folder in (Path(lessons.__file__).parent, room):
        paths += sorted([*folder.rglob("*.py"), *folder.rglob("mistakes*.md")])
    for path in paths:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _write(report: Report, out: Path) -> None:
    files = {
        "grades_moodle.csv": formats.moodle(report),
        "grades_canvas.csv": formats.canvas(report),
        "junit.xml": formats.junit(report),
        "index.html": page.page(report),
    }
    for learner in report.learners:
        (out / "learners" / learner.name).mkdir(parents=True, exist_ok=True)
        files[f"learners/{learner.name}/results.json"] = formats.gradescope(report, learner)
    for name, text in files.items():
        write_atomically(out / name, text)
    print(f"{out / 'index.html'}: {len(report.learners)} learners", flush=True)


if __name__ == "__main__":
    sys.exit(main())
