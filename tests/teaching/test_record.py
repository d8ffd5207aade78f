"""What a learner has solved is kept, whoever writes at the same time and whatever is damaged."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from course_lib.teaching.lessons import number, sources
from course_lib.teaching.record import ProgressTable, progress

WITHIN_S = 100
RIGHT = "check('00.neighbours', lambda r, n: ((r - 1) % n, (r + 1) % n))"
WRONG = "check('00.neighbours', lambda r, n: (r, r))"


class Course:
    """A checkout's lessons and a workspace, and kernels' processes in it."""

    def __init__(self, folder: Path, root: Path) -> None:
        for part in ("course_lib", "notebooks"):
            shutil.copytree(root / part, folder / part, ignore=shutil.ignore_patterns("*.ipynb"))
        self.folder, self.workspace = folder, folder / "workspace"
        self.workspace.mkdir()

    @property
    def record(self) -> Path:
        return self.workspace / ".progress"

    def start(self, code: str, where: str = "workspace") -> subprocess.Popen:
        code = f"from course_lib.teaching import check, progress\n{code}"
        return subprocess.Popen(
            [sys.executable, "-c", code],
            cwd=self.folder / where,
            env=os.environ | {"PYTHONPATH": str(self.folder)},
            stdout=subprocess.PIPE,
            text=True,
        )

    def says(self, code: str, where: str = "workspace") -> str:
        with self.start(code, where) as process:
            said, _ = process.communicate(timeout=WITHIN_S)
        assert process.returncode == 0, said
        return said

    def row(self, lesson: str) -> list[str]:
        """What progress() says of a lesson in another kernel: solved, tried, skipped."""
        line = re.search(rf"^{lesson} .*", self.says("print(progress())"), re.MULTILINE)
        assert line
        return re.split(r"  +", line[0])[1:]


@pytest.fixture
def course(tmp_path: Path, root: Path) -> Course:
    return Course(tmp_path, root)


def test_progress_lists_solved_tried_and_skipped(course) -> None:
    assert course.row("00") == ["0 of 3", "none", "none"]
    course.says("check('00.my_share', lambda n, r, s: [])")
    assert course.row("00") == ["0 of 3", "my_share", "neighbours"]
    assert "not attempted yet" in course.says("check('00.neighbours')")
    assert course.row("00") == ["0 of 3", "my_share", "neighbours"], "not tried by that"
    assert "right" in course.says(RIGHT)
    assert course.row("00") == ["1 of 3", "my_share", "none"]
    course.says("check('00.my_share', lambda n, r, s: list(range(n))[r::s])")
    assert course.row("00") == ["2 of 3", "none", "none"]
    assert "not yet" in course.says(WRONG)
    assert course.row("00") == ["2 of 3", "none", "none"], "solved stays solved"
    assert course.says("print(progress())").startswith("2 of ")


def test_skipped_exercises_follow_lesson_order(course) -> None:
    ids = re.findall(r'exercise="(03\.\w+)"', sources()[3].read_text())
    course.record.mkdir()
    (course.record / f"{ids[2]}.tried").touch()
    before = ", ".join(id.removeprefix("03.") for id in ids[:2])
    assert course.row("03") == ["0 of 5", ids[2].removeprefix("03."), before]


def test_concurrent_notebooks_lose_no_records(course) -> None:
    # Both wait for the other one before each of their writes.
    code = (
        "import sys; from course_lib.teaching import record\n"
        "for number in range(200):\n"
        "    print(flush=True); sys.stdin.readline()\n"
        "    record.note(f'00.{name}{number}', 'right')"
    )
    begin = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "cwd": course.workspace}
    begin |= {"env": os.environ | {"PYTHONPATH": str(course.folder)}, "text": True}
    both = [
        subprocess.Popen([sys.executable, "-c", f"name = {name!r}\n{code}"], **begin)
        for name in ("a", "b")
    ]
    for _ in range(200):
        for process in both:
            process.stdout.readline()
        for process in both:
            process.stdin.write("\n")
            process.stdin.flush()
    for process in both:
        process.communicate(timeout=WITHIN_S)
        assert process.returncode == 0
    assert len(list(course.record.iterdir())) == 400


def test_killed_kernel_leaves_a_readable_record(course) -> None:
    code = (
        "from course_lib.teaching import record\n"
        f"{RIGHT}\nprint('go', flush=True)\n"
        "while True: record.note('00.my_share', 'wrong')"
    )
    for _ in range(5):
        with course.start(code) as process:
            assert "right" in process.stdout.readline()
            assert process.stdout.readline() == "go\n"
            process.send_signal(signal.SIGKILL)
        assert course.row("00")[0] == "1 of 3"


def test_damaged_and_outdated_records_are_ignored(course) -> None:
    course.says(RIGHT)
    (course.record / "00.neighbours.solved").write_bytes(b'{"half\xff')
    (course.record / "00.no_longer_there.solved").touch()
    (course.record / "98.of_a_lesson_gone.tried").touch()
    (course.record / "nothing").mkdir()
    (course.record / "00.my_share.tried").mkdir()
    assert course.row("00") == ["1 of 3", "my_share", "none"]
    assert course.says("print(progress())").startswith("1 of ")
    assert "right" in course.says(RIGHT)
    shutil.rmtree(course.record)
    assert course.row("00") == ["0 of 3", "none", "none"]


def test_check_works_if_record_cannot_be_written(course) -> None:
    course.record.write_text("a file in the folder's place")
    said = course.says(f"{RIGHT}\nprint(progress())")
    assert "(progress() will forget this when the kernel ends: " in said
    assert "00.neighbours: right." in said
    assert "\n1 of " in said


def test_learners_record_is_untouched_outside_the_workspace(course) -> None:
    assert "\n1 of " in course.says(f"{RIGHT}\nprint(progress())", where="notebooks")
    assert not course.record.exists()
    course.says(f"import os; os.chdir('/'); {RIGHT}")
    assert course.row("00")[0] == "1 of 3", "a cell may go elsewhere"


def test_table_has_headers_for_screen_readers() -> None:
    rows = [("00 start <here>", "1 of 3", "a, b", "none")]
    table = ProgressTable("1 of 3 exercises solved", rows)

    shown = table._repr_html_()
    assert shown.startswith("<table><caption>1 of 3 exercises solved</caption><thead>")
    titles = ["lesson", "solved", "tried, not yet right", "skipped"]
    assert re.findall(r'<th scope="col">(.*?)</th>', shown) == titles
    cells = '<th scope="row">00 start &lt;here&gt;</th><td>1 of 3</td><td>a, b</td><td>none</td>'
    assert f"<tbody><tr>{cells}</tr></tbody>" in shown
    assert repr(table).splitlines()[2:] == [
        "lesson           solved  tried, not yet right  skipped",
        "00 start <here>  1 of 3  a, b                  none",
    ]


def test_every_lesson_and_exercise_is_in_the_table() -> None:
    from course_lib.teaching.catalogue import all_exercises

    shown = progress()
    assert [row[0].partition(" ")[0] for row in shown.rows] == [number(path) for path in sources()]
    of_lessons = [id for id in all_exercises() if id < "90"]
    assert shown.summary.endswith(f" of {len(of_lessons)} exercises solved")
