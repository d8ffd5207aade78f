"""A notebook follows from its source, is the same whoever builds it, and hides no failure."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path

import nbformat
import pytest

from course_lib.places import ROOT
from course_lib.teaching import execution, lessons
from tests.teaching.lessons_of_our_own import SHORT
from tools import build_notebooks as build
from tools.build_notebooks import LessonError, anonymous, in_step, problems


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A course of one short lesson."""
    folder = tmp_path / "the course" / "notebooks" / "lesson_90"
    folder.mkdir(parents=True)
    monkeypatch.setattr(lessons, "NOTEBOOKS", folder.parent)
    monkeypatch.setattr(build, "ROOT", tmp_path)
    monkeypatch.setattr(build, "lint", lambda path: [])
    path = folder / "90_short.py"
    path.write_text(SHORT)
    return path


def built(source: Path):
    return nbformat.read(build.target(source), as_version=4)


def test_notebook_is_rebuilt_only_when_its_source_changes(source, capsys) -> None:
    assert build.main(["--check"]) == 1
    assert not build.target(source).exists()
    assert build.main([]) == 0
    first = build.target(source).read_bytes()
    printed = [c.outputs[0].get("text") for c in built(source).cells if c.cell_type == "code"]
    assert printed == ["4\n", None, "3\n"]
    assert problems(built(source)) == []
    changed = build.target(source).stat().st_mtime_ns
    assert build.main([]) == build.main(["--check"]) == 0
    assert build.target(source).stat().st_mtime_ns == changed
    assert "90_short.ipynb: unchanged" in capsys.readouterr().out
    assert build.main(["--all"]) == 0
    assert build.target(source).read_bytes() == first, "executed again it is the same"
    source.write_text(SHORT.replace("print(3)", "print(5)"))
    assert build.main(["--check"]) == 1
    assert not in_step(source)
    assert build.main(["--only", "90"]) == 0
    before, after = json.loads(first)["cells"], built(source).cells
    assert [c["id"] for c in before[:-1]] == [c.id for c in after[:-1]]
    assert before[-1]["id"] != after[-1].id
    with pytest.raises(SystemExit):
        build.main(["--only", "91"])
    assert "no such lesson" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("print(3)", "{}[3]", "KeyError: 3"),
        ("1 / 0", "1 / 1", "tagged raises-exception, but raised nothing"),
        ("print(3)", "import warnings; warnings.warn('old')", "wrote to stderr"),
        ("print(3)", "# twice\n%%px\nprint(3)", "UsageError: Line magic"),
        ("print(3)", "print('/home/' + 'somebody/data')", "path of this machine: /home/somebody"),
    ],
)
def test_forbidden_content_fails_the_build(source, capsys, old, new, said) -> None:
    source.write_text(SHORT.replace(old, new))
    assert build.main([]) == 1
    assert said in capsys.readouterr().err
    assert not build.target(source).exists()


def test_paths_of_the_machine_are_made_relative(source) -> None:
    source.write_text(SHORT.replace("print(3)", "import sys\n\nprint(sys.prefix + '/lib')"))
    assert build.main([]) == 0
    assert built(source).cells[-1].outputs[0].text == ".venv/lib\n"
    assert "version" not in built(source).metadata.language_info


def test_failed_build_keeps_the_old_notebook(source) -> None:
    build.target(source).write_text("the old one")
    source.write_text(SHORT.replace("print(3)", "{}[3]"))
    with pytest.raises(LessonError):
        build.build(source)
    assert build.target(source).read_text() == "the old one"


def test_source_that_breaks_the_rules_is_not_executed(source, monkeypatch) -> None:
    monkeypatch.undo()
    with pytest.raises(LessonError, match="the first cell has to say the one idea"):
        build.build(source)


def test_slow_cell_times_out(source) -> None:
    from nbclient.exceptions import CellTimeoutError

    source.write_text("# %%\nimport time\n\ntime.sleep(60)\n")
    with pytest.raises(CellTimeoutError):
        execution.execute(lessons.read_source(source), source.parent, cell_seconds=1)


def test_executed_notebook_takes_no_port_and_leaves_no_socket(tmp_path: Path) -> None:
    source = tmp_path / "00_where.py"
    asks = "app = get_ipython().kernel.parent\nprint(app.transport, app.abs_connection_file)"
    source.write_text(f"# %%\n{asks}\n")
    notebook = lessons.read_source(source)
    execution.execute(notebook, tmp_path)
    transport, connection_file = notebook.cells[0].outputs[0].text.split()
    assert transport == "ipc"
    assert not Path(connection_file).parent.exists()


def test_host_names_and_paths_are_removed() -> None:
    host = socket.gethostname()
    table = f"rank  pid  host\n   0  4711  {host}\nthis is {host} speaking"
    assert anonymous(table) == f"rank  pid  host\n   0  4711  localhost\nthis is {host} speaking"
    assert anonymous(f"{ROOT}/data/x.npz") == "data/x.npz"
    assert anonymous(f"{sys.prefix}/lib/torch") == ".venv/lib/torch"
    assert anonymous("File /somewhere/ipykernel_12/345.py:1") == "File cell:1"


def test_failed_checks_widgets_and_unreadable_text_are_problems() -> None:
    notebook = nbformat.v4.new_notebook()
    said = nbformat.v4.new_output("stream", name="stdout", text="90.x: not yet: no (m)\n")
    widget = nbformat.v4.new_output(
        "display_data", {"application/vnd.jupyter.widget-view+json": {}, "text/plain": "w"}
    )
    cell = nbformat.v4.new_code_cell("check('90.x')", metadata={"tags": ["check"]})
    page = nbformat.v4.new_output(
        "display_data",
        {"text/html": '<p style="margin: 0; color: #B42318">no</p><b style="width: 2em">b</b>'},
    )
    paper = nbformat.v4.new_output(
        "display_data", {"text/html": '<p style="color: #B42318; background: #FFF">no</p>'}
    )
    cell.outputs, cell.execution_count = [said, widget, page, paper], 2
    notebook.cells = [cell]
    found = "\n".join(problems(notebook))
    assert "the worked solution is not right: 90.x: not yet" in found
    assert "shows a widget" in found
    assert found.count("text of one colour on any page, dark or light: margin: 0; color:") == 1
    assert found.count("text of one colour") == 1
    assert "run as number 2, not 1" in found
