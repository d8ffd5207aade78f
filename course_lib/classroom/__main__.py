"""``rank-by-rank class``: writes or serves the page on which a teacher sees who is stuck."""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import threading
from pathlib import Path

from course_lib.teaching import lessons
from course_lib.teaching.class_record import FOLDER

from . import page, reading, serving
from .reading import Learner

_EVERY_S = 10.0


class Classroom:
    """The class of one command, whose page is made again and again.

    Args:
        given: the command's arguments.
        ids: the exercises that may have a column.
    """

    def __init__(self, given: argparse.Namespace, ids: list[str]) -> None:
        self._given, self._ids = given, ids
        self._numbers: dict[str, str] = {}

    def page(self) -> str:
        """Return the current page.

        Raises:
            NothingToReadError: if there is nowhere to read.
        """
        given = self._given
        if given.homes:
            learners = reading.homes(given.homes, f"{given.folder}", self._ids)
        else:
            learners = reading.shared(given.folder, self._ids)
        every = 0.0 if given.once else _EVERY_S
        return page.page(learners, self._columns(learners), every, self._called(learners))

    def _columns(self, learners: list[Learner]) -> list[str]:
        """Return the exercises asked for, or else those of lessons that some learner has begun."""
        begun = {id.partition(".")[0] for one in learners for id in one.work}
        return [id for id in self._ids if self._given.lessons or id.partition(".")[0] in begun]

    def _called(self, learners: list[Learner]) -> dict[str, str]:
        names = [one.name for one in learners]
        if self._given.names:
            return dict(zip(names, names, strict=True))
        # Kept while the command runs, in an order that identifies no learner.
        for name in random.sample(names, len(names)):
            self._numbers.setdefault(name, f"learner {len(self._numbers) + 1}")
        return self._numbers


def main(arguments: list[str] | None = None) -> int:
    """Show the page until interrupted; return 0, or 1 and say in one sentence why it failed."""
    parser = _parser()
    given = parser.parse_args(arguments)
    if given.folder is None:
        if not given.homes:
            parser.error("give the folder that learners write to, or their homes with --homes")
        given.folder = Path(reading.IN_A_HOME)
    try:
        numbers = lessons.chosen(given.lessons) if given.lessons else []
    except ValueError as error:
        parser.error(f"--lessons {error}")
    ids = [
        id
        for source in lessons.sources()
        if not numbers or lessons.number(source) in numbers
        for id in lessons.exercise_ids(source)
    ]
    try:
        if not given.homes:
            _make(given.folder)
        classroom = Classroom(given, ids)
        if given.port is None:
            _write_again_and_again(classroom, given)
        else:
            _serve(classroom, given.port)
    except OSError as error:
        print(f"class: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        pass
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="rank-by-rank class",
        description="Show who in a class is stuck: a table of learners and exercises, on a page "
        f"that the browser reloads every {_EVERY_S:g} s. It shows learners who have {FOLDER} set.",
    )
    parser.add_argument(
        "folder",
        type=Path,
        nargs="?",
        help=f"the learners' {FOLDER}, created if missing; with --homes, a folder inside each home "
        f"({reading.IN_A_HOME})",
    )
    parser.add_argument("--homes", metavar="PATTERN", help="learners' homes, such as '/home/*'")
    parser.add_argument("--lessons", metavar="01-05", help="lessons to show (default: those begun)")
    parser.add_argument(
        "--no-names", action="store_false", dest="names", help="show numbers instead of names"
    )
    parser.add_argument("--once", action="store_true", help="write the page once, then exit")
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--out",
        type=Path,
        default=Path("class.html"),
        help="the file for the page (default: %(default)s)",
    )
    where.add_argument(
        "--port", type=int, help="serve the page on 127.0.0.1 instead (0: any free port)"
    )
    return parser


def _make(folder: Path) -> None:
    if folder.exists():
        return
    folder.mkdir(parents=True)
    folder.chmod(0o1733)
    print(
        f"created {folder}: everybody may write to it, and only you can list its files", flush=True
    )


def _write_again_and_again(classroom: Classroom, given: argparse.Namespace) -> None:
    _write(given.out, classroom.page())
    print(f"the page is {given.out.resolve()}; only you can read it", flush=True)
    while not given.once:
        threading.Event().wait(_EVERY_S)
        try:
            _write(given.out, classroom.page())
        except OSError as error:  # a disk that is not there for a moment
            print(f"class: {error}", file=sys.stderr, flush=True)


def _write(path: Path, text: str) -> None:
    """Put the page in its place in one step, readable by its owner alone."""
    handle, part = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with open(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
        os.replace(part, path)
    except BaseException:
        Path(part).unlink(missing_ok=True)  # interrupted after the replacement, it has gone
        raise


def _serve(classroom: Classroom, port: int) -> None:
    classroom.page()  # an error appears now if it cannot be made
    with serving.served(classroom.page, port) as (address, server):
        print(f"the page is at {address}", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    sys.exit(main())
