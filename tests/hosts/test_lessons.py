"""A lesson runs unchanged where COURSE_CLUSTER puts its ranks on two hosts."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

WHERE = "hosts:h1:2,h2:2"
CELL_SECONDS = 180


@pytest.mark.parametrize("lesson", ["02"])
def test_a_lesson_runs_on_two_hosts(
    root: Path, lesson: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COURSE_CLUSTER", WHERE)
    (path,) = (root / "notebooks").glob(f"{lesson}_*.ipynb")
    notebook = nbformat.read(path, as_version=4)
    where = {"metadata": {"path": str(path.parent)}}
    # It ends with the first cell that fails, unless that is tagged as one that fails on purpose.
    NotebookClient(notebook, timeout=CELL_SECONDS, resources=where).execute()
    said = "".join(str(cell.get("outputs", "")) for cell in notebook.cells)
    table = re.search(r"4 ranks ready.*?(h\d)\\n.*?(h\d)\\n.*?(h\d)\\n.*?(h\d)\\n", said)
    assert table is not None, said[:2000]
    assert table.groups() == ("h1", "h1", "h2", "h2")
    for cell in notebook.cells:
        if "raises-exception" in cell.metadata.get("tags", []):
            assert any(out.output_type == "error" for out in cell.outputs), cell.source
