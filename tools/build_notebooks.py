"""Builds the notebooks: executes the lessons' sources, and checks the results.

``python -m tools.build_notebooks`` reads ``notebooks/lesson_NN/NN_name.py``, executes those
whose source changed since, and writes ``notebooks/NN_name.ipynb``. Where the source is the same,
the notebook stays as it is, to the byte. An executed lesson does not show which
machine executed it, and hides no failure.
"""

from __future__ import annotations

import argparse
import re
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from course_lib.places import ROOT
from course_lib.teaching import lessons
from course_lib.teaching.execution import execute
from course_lib.teaching.lessons import write_atomically

from .lint_lessons import lint, pictures_without_words

ANSI = re.compile(r"\x1b\[[0-9;]*m")
_KERNEL_FILE = re.compile(r"/\S*?/ipykernel_\d+/\d+\.py")
_STYLE = re.compile(r"""\bstyle="([^"]*)""")
_MACHINE_PATH = re.compile(
    r"(?<![\w.:/<])(?:/(?:home|root|Users|tmp|var|work|opt|usr|mnt|srv|private|data)/|~/)[^\s'\"<>]+"
)


class LessonError(Exception):
    """A lesson cannot be built; the message gives the cell and the problem."""


def target(source: Path) -> Path:
    """Return the path of a source's notebook."""
    return source.parent.parent / f"{source.stem}.ipynb"


def in_step(source: Path) -> bool:
    """Return whether the notebook was made from the current source."""
    import nbformat

    path = target(source)
    if not path.is_file():
        return False
    notebook = nbformat.read(path, as_version=4)
    return notebook.metadata.get("course", {}).get("sha256") == lessons.fingerprint(source)


def build(source: Path) -> Path:
    """Execute one lesson and write its notebook.

    Raises:
        LessonError: if the source breaks a rule, a cell fails, or an output cannot be shown to
            others. The notebook on disk is then left as it was.
    """
    import nbformat
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    wrong = [p for p in lint(source) if not p.warning]
    if wrong:
        raise LessonError("\n".join(map(str, wrong)))
    notebook = lessons.read_source(source)
    try:
        execute(notebook, source.parent.parent)
    except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
        raise LessonError(f"{source.name}: {ANSI.sub('', str(error)).strip()}") from None
    sanitise(notebook)
    notebook.metadata["language_info"].pop("version", None)  # of the Python that built it
    found = problems(notebook)
    if found:
        raise LessonError("\n".join(f"{source.name}: {problem}" for problem in found))
    nbformat.validate(notebook)
    path = target(source)
    write_atomically(path, nbformat.writes(notebook).rstrip("\n") + "\n")
    return path


def problems(notebook: Any) -> list[str]:
    """Return the problems of an executed lesson: failures that nothing else would show."""
    found = []
    code = [(i, cell) for i, cell in enumerate(notebook.cells, 1) if cell.cell_type == "code"]
    for number, (position, cell) in enumerate(code, 1):
        raised = [o.ename for o in cell.outputs if o.output_type == "error"]
        expected = "raises-exception" in cell.metadata.get("tags", ())
        where = f"cell {position} ({cell.source.splitlines()[0] if cell.source else 'empty'})"
        if cell.execution_count != number:
            found.append(f"{where}: run as number {cell.execution_count}, not {number}")
        if raised and not expected:
            found.append(f"{where}: raised {raised[0]}")
        if expected and not raised:
            found.append(f"{where}: is tagged raises-exception, but raised nothing")
        for output in cell.outputs:
            if output.output_type == "stream" and output.name == "stderr":
                found.append(f"{where}: wrote to stderr: {output.text.strip()[:200]}")
            for kind in output.get("data", ()):
                if "widget" in kind:
                    found.append(f"{where}: shows a widget, whose state is not kept")
            for picture in pictures_without_words(output):
                found.append(f"{where}: shows a picture without alternative text: {picture}")
            for style in _colours_without_paper(output):
                found.append(f"{where}: has text of one colour on any page, dark or light: {style}")
        found += [f"{where}: {path}" for path in _machine_paths(cell.outputs)]
        if "check" in cell.metadata.get("tags", ()) and ": right." not in _printed(cell):
            found.append(f"{where}: the worked solution is not right: {_printed(cell).strip()}")
    return found


def _colours_without_paper(output: Any) -> Iterator[str]:
    """Yield the styles of an output's HTML that set the text's colour but no background."""
    for style in _STYLE.findall(output.get("data", {}).get("text/html", "")):
        given = {declaration.partition(":")[0].strip() for declaration in style.split(";")}
        if "color" in given and not given & {"background", "background-color"}:
            yield style


def _printed(cell: Any) -> str:
    return "".join(o.text for o in cell.outputs if o.output_type == "stream")


def _machine_paths(outputs: list) -> list[str]:
    found = []
    for text in _texts(outputs):
        found += [f"names a path of this machine: {path}" for path in _MACHINE_PATH.findall(text)]
    return found


def _texts(outputs: list) -> Iterator[str]:
    for output in outputs:
        parts = [output.get("text", ""), output.get("evalue", ""), *output.get("traceback", ())]
        parts += [text for text in output.get("data", {}).values() if isinstance(text, str)]
        # Pictures are base64, in which any text may look like a path.
        yield from (ANSI.sub("", part) for part in parts if not part.startswith("iVBOR"))


def sanitise(notebook: Any) -> None:
    """Remove this machine's paths and name from the outputs."""
    for cell in notebook.cells:
        if cell.cell_type != "code":
            continue
        cell.metadata.pop("execution", None)
        for output in cell.outputs:
            for key in ("text", "evalue"):
                if key in output:
                    output[key] = anonymous(output[key])
            if "traceback" in output:
                output["traceback"] = [anonymous(line) for line in output["traceback"]]
            for kind, text in output.get("data", {}).items():
                if isinstance(text, str) and kind.startswith("text/"):
                    output["data"][kind] = anonymous(text)


def anonymous(text: str) -> str:
    """Return ``text`` with this machine's paths made relative, and its name ``localhost``."""
    text = _KERNEL_FILE.sub("cell", text)
    folders = {str(ROOT): "", sys.prefix: ".venv", sys.base_prefix: "python"}
    for folder, short in folders.items():
        for written in (folder, folder.replace(str(Path.home()), "~", 1)):
            text = text.replace(f"{written}/", f"{short}/" if short else "")
    host = re.escape(socket.gethostname())
    # Only in the last column of the rank table: elsewhere it could be any word.
    return re.sub(rf"(?m)(\s\d+  ){host}$", r"\1localhost", text)


# ---- the command --------------------------------------------------------------------------------


def main(arguments: list[str] | None = None) -> int:
    """Build what changed; return 1 if a lesson could not be built or is out of step."""
    parser = argparse.ArgumentParser(prog="make notebooks", description=__doc__)
    parser.add_argument("--all", action="store_true", help="also where nothing changed")
    parser.add_argument("--only", nargs="+", default=[], metavar="NN", help="these lessons alone")
    parser.add_argument("--check", action="store_true", help="build nothing; say what is to do")
    given = parser.parse_args(arguments)
    chosen = [s for s in lessons.sources() if not given.only or lessons.number(s) in given.only]
    if not chosen:
        parser.error(f"there is no such lesson in {lessons.NOTEBOOKS.relative_to(ROOT)}")
    failed = False
    for source in chosen:
        if in_step(source) and not given.all:
            print(f"{target(source).name}: unchanged")
            continue
        if given.check:
            print(f"{target(source).name}: does not fit its source; run make notebooks")
            failed = True
            continue
        failed |= not _built(source)
    return int(failed)


def _built(source: Path) -> bool:
    for problem in lint(source):
        if problem.warning:
            print(problem)
    began = time.monotonic()
    try:
        path = build(source)
    except LessonError as error:
        print(error, file=sys.stderr)
        return False
    print(f"{path.name}: executed in {time.monotonic() - began:.0f} s", flush=True)
    return True


if __name__ == "__main__":
    sys.exit(main())
