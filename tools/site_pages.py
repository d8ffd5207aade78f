"""The pages of the site: which are shown, under which names, and with which changes.

The site shows the repository's own texts. A ``README.md`` becomes its folder's ``index.md``;
everything else keeps its place, so that links and pictures between texts still work. Lessons come
with their stored outputs, and with each solution folded below the cell that a learner gets.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
import re
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from course_lib.teaching.solution_marks import BEGIN, END, blanked

ROOT = Path(__file__).resolve().parent.parent

# The front page's side: captions with the pages below them.
LESSONS = "notebooks/[0-9]*.ipynb"
MORE = (
    "docs/*.md",
    "packages/*/*.md",
    "benchmarks/results/results.md",
    "data/README.md",
    "INSTRUCTOR.md",
    "CONTRIBUTING.md",
    "CODE_OF_CONDUCT.md",
    "SECURITY.md",
    "LICENSING.md",
    "AGENTS.md",
    "course_lib/teaching/tutor.md",
    "CHANGELOG.md",
)

# The reference: pages, and the modules on each. Words after a module choose names of it.
REFERENCE = {
    "torch_mpi4py": ("torch_mpi4py",),
    "torch_mpi4py.launch": ("torch_mpi4py.launch",),
    "torch_mpi4py.tools.traffic": (
        "torch_mpi4py.tools.traffic",
        "torch_mpi4py.tools.traffic_matrix",
    ),
    "torch_mpi4py.emulation.link_emulation": ("torch_mpi4py.emulation.link_emulation",),
    "torch_mpi4py.log.events": ("torch_mpi4py.log.events",),
    "torch_mpi4py.board.event_board": ("torch_mpi4py.board.event_board",),
    "torch_mpi4py.board.diagnosis": ("torch_mpi4py.board.diagnosis",),
    "ipyranks": ("ipyranks",),
    "course_lib.parallel.invariants": ("course_lib.parallel.invariants",),
    "course_lib.parallel.initial_weights": ("course_lib.parallel.initial_weights",),
    "course_lib.parallel.gradient_sync": ("course_lib.parallel.gradient_sync",),
    "course_lib.parallel.all_reduces": (
        "course_lib.parallel.all_reduces",
        "course_lib.parallel.all_reduces.schedules naive_schedule tree_schedule"
        " recursive_doubling_schedule ring_schedule rabenseifner_schedule",
    ),
    "course_lib.parallel.batch_norm": ("course_lib.parallel.batch_norm",),
    "course_lib.parallel.data_parallel": ("course_lib.parallel.data_parallel",),
    "course_lib.parallel.parameter_server": ("course_lib.parallel.parameter_server",),
    "course_lib.parallel.launching": ("course_lib.parallel.launching",),
    "course_lib.training": (
        "course_lib.training",
        "course_lib.training.data",
        "course_lib.training.models",
        "course_lib.training.loops",
        "course_lib.training.checkpoint",
    ),
    "course_lib.teaching": ("course_lib.teaching",),
    "course_lib.teaching.exercise": ("course_lib.teaching.exercise",),
    "course_lib.teaching.timelines": ("course_lib.teaching.timelines",),
    "course_lib.teaching.cost": ("course_lib.teaching.cost",),
}

# The block of the course's addresses, with pictures from elsewhere, which the site leaves out.
_BADGES = re.compile(r"^<!-- from pyproject.toml: badges -->.*?^<!-- to here -->\n", re.M | re.S)
_LINK = re.compile(r"(?P<text>!?\[(?:[^][]|\[[^][]*\])*\])\((?P<target>[^)\s]+)\)")
_HTML_PICTURE = re.compile(r'<(?:img|source)\b[^>]*?\bsrc(?:set)?="(?P<target>[^"\s]+)"')
_FENCE = re.compile(r"^(```|~~~).*?^\1[ \t]*$", re.M | re.S)
_LESSON = re.compile(r"\(lesson (\d\d[a-z]?)\)")

EXECUTED = """\
:::{note}
This page shows the lesson as it was executed, with its outputs. To predict, run and solve it \
yourself, start it with `make lab`: the [front page](../README.md) says how. Each solution is \
folded below its exercise.
:::"""


class PageError(Exception):
    """A page can't be made; the text names it and the reason."""


def sources() -> list[str]:
    """Return the texts of the site, as paths in the repository."""
    patterns = ("README.md", LESSONS, "notebooks/glossary.md", "slides/README.md", *MORE)
    found = (sorted(ROOT.glob(pattern)) for pattern in patterns)
    return [path.relative_to(ROOT).as_posix() for paths in found for path in paths]


def staged(source: str) -> str:
    """Return the place of a repository's text among the site's pages."""
    path = PurePosixPath(source)
    return str(path.with_name("index.md") if path.name == "README.md" else path)


def gather(folder: Path) -> None:
    """Write all pages, and the pictures and files that they name, into ``folder``."""
    pages = sources()
    for source in pages:
        text = (ROOT / source).read_text(encoding="utf-8")
        is_lesson = source.endswith(".ipynb")
        text = lesson(text, source, pages) if is_lesson else relinked(text, source, pages)
        if source == "README.md":
            text = _BADGES.sub("", text) + contents(pages)
        elif source == "notebooks/glossary.md":
            text = with_lessons(text)
        write(folder / staged(source), text)
        for name in named_files(text, source):
            if name not in pages:
                write(folder / name, (ROOT / name).read_bytes())
    for name, text in reference():
        write(folder / "reference" / name, text)


def write(path: Path, content: str | bytes) -> None:
    """Write a file unless it has this content: unchanged pages are not rebuilt."""
    data = content.encode() if isinstance(content, str) else content
    if not path.exists() or path.read_bytes() != data:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


# ---- links --------------------------------------------------------------------------------------


def relinked(text: str, source: str, pages: list[str]) -> str:
    """Return Markdown whose links fit the site.

    Raises:
        PageError: if a link leads to no file.
    """

    def changed(match: re.Match[str]) -> str:
        target = new_target(match["target"], source, pages)
        return f"{match['text']}({target})" if target else match["text"].strip("[]")

    return outside_fences(text, lambda part: _LINK.sub(changed, part))


def outside_fences(text: str, change: Callable[[str], str]) -> str:
    """Return ``text`` with ``change`` applied to everything outside code blocks."""
    parts, end = [], 0
    for fence in _FENCE.finditer(text):
        parts += [change(text[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, change(text[end:])])


def new_target(target: str, source: str, pages: list[str]) -> str:
    """Return the name of a link's target on the site, "" for a folder, which has no page."""
    path, _, anchor = target.partition("#")
    if not path or "://" in path or path.startswith(("mailto:", "figure:")):
        return target
    place = resolved(path, source)
    if not (ROOT / place).exists():
        raise PageError(f"{source}: there is no {target}")
    if (ROOT / place).is_dir():
        place = f"{place}/README.md"
        if place not in pages:
            return ""
    if place in pages:
        here = posixpath.dirname(staged(source))
        return posixpath.relpath(staged(place), here or ".") + (f"#{anchor}" if anchor else "")
    if place.startswith("slides/") and place.endswith(".html"):
        return f"asis:{path}"
    return target


def resolved(target: str, source: str) -> str:
    """Return the path in the repository that a relative target in a text refers to."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(source), target))


def named_files(text: str, source: str) -> Iterator[str]:
    """Yield the files beside the pages that a page shows or offers."""
    for match in _LINK.finditer(text):
        path = match["target"].partition("#")[0]
        if path and ":" not in path and (ROOT / resolved(path, source)).is_file():
            yield resolved(path, source)


def copied_as_they_are() -> list[str]:
    """Return the files that the site has at their own places: decks, and pictures in HTML."""
    found = {path.relative_to(ROOT).as_posix() for path in ROOT.glob("slides/*.html")}
    for source in sources():
        if source.endswith(".md"):
            text = (ROOT / source).read_text(encoding="utf-8")
            targets = [match["target"] for match in _HTML_PICTURE.finditer(text)]
            found.update(resolved(path, source) for path in targets if ":" not in path)
    missing = [name for name in found if not (ROOT / name).is_file()]
    if missing:
        raise PageError(f"pages show pictures that are not there: {', '.join(missing)}")
    return sorted(found)


def contents(pages: list[str]) -> str:
    """Return the site's table of contents, which only its side shows."""
    more = [page for page in pages if page not in ("README.md", "notebooks/glossary.md")]
    chapters = {
        "Lessons": [page for page in more if page.endswith(".ipynb")],
        "Beside the lessons": ["notebooks/glossary.md", "slides/README.md"],
        "Reference": ["reference/index.rst"],
        "More": [p for p in more if not p.endswith(".ipynb") and p != "slides/README.md"],
    }
    text = ""
    for caption, entries in chapters.items():
        lines = "\n".join(re.sub(r"\.\w+$", "", staged(entry)) for entry in entries)
        text += f"\n\n:::{{toctree}}\n:hidden:\n:caption: {caption}\n\n{lines}\n:::\n"
    return text


def with_lessons(glossary: str) -> str:
    """Return the glossary with its "(lesson 03)" as links."""
    names = {path.name.partition("_")[0]: path.name for path in ROOT.glob(LESSONS)}

    def linked(match: re.Match[str]) -> str:
        if match[1] not in names:
            return match[0]
        return f"([lesson {match[1]}]({names[match[1]]}))"

    return _LESSON.sub(linked, glossary)


# ---- lessons ------------------------------------------------------------------------------------


def lesson(text: str, source: str, pages: list[str]) -> str:
    """Return an executed notebook as the site shows it."""
    notebook = json.loads(text)
    notebook["cells"] = list(shown_cells(notebook["cells"], source, pages))
    return json.dumps(notebook, ensure_ascii=False, indent=1)


def shown_cells(cells: list[dict[str, Any]], source: str, pages: list[str]) -> Iterator[Any]:
    """Yield the cells of a lesson: links that fit, stubs, and solutions folded below them."""
    is_first = True
    for cell in cells:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            yield cell | {"source": relinked(text, source, pages)}
            if is_first:
                yield markdown(relinked(EXECUTED, source, pages))
                is_first = False
        elif BEGIN in text:
            yield cell | {"source": blanked(text)}
            yield markdown(folded(text))
        else:
            yield cell | {"metadata": cell["metadata"] | wishes(cell)}


def wishes(cell: dict[str, Any]) -> dict[str, Any]:
    """Return a code cell's options for MyST-NB: no Python colours in errors that are prose."""
    errors = [o for o in cell.get("outputs", ()) if o["output_type"] == "error"]
    if all("Traceback (most recent" in "".join(each["traceback"]) for each in errors):
        return {}
    return {"mystnb": {"error_lexer": "none"}}


def markdown(text: str) -> dict[str, Any]:
    """Return a cell of Markdown."""
    name = hashlib.sha256(text.encode()).hexdigest()[:8]
    return {"id": name, "cell_type": "markdown", "metadata": {}, "source": text}


def folded(text: str) -> str:
    """Return a marked solution as a fold that opens by a click or a key."""
    lines = [line for line in text.split("\n") if line.strip() not in (BEGIN, END)]
    code = "\n".join(lines)
    return (
        f"::::{{dropdown}} Solution\n:class-container: solution\n\n```ipython3\n{code}\n```\n::::"
    )


# ---- reference ----------------------------------------------------------------------------------


def shortened(module: str) -> str:
    """Return a module's name in the narrow sidebar."""
    return module.removeprefix("course_lib.").removeprefix("torch_mpi4py") or module


def reference() -> Iterator[tuple[str, str]]:
    """Yield the reference's pages, as names and reStructuredText."""
    entries = "\n".join(f"   {shortened(name)} <{name}>" for name in REFERENCE)
    yield (
        "index.rst",
        f"""\
Reference
=========

What programs may import: the backend ``torch_mpi4py``, the ranks of a notebook ``ipyranks``, which
need nothing of the course, and the parts of ``course_lib`` that are of use without it. All of it is
read from the docstrings.

.. toctree::
   :maxdepth: 1

{entries}
""",
    )
    for name, modules in REFERENCE.items():
        first, *others = modules
        text = f"{name}\n{'=' * len(name)}\n\n.. api:: {first}\n"
        for module in others:
            title = shortened(module.partition(" ")[0])
            text += f"\n{title}\n{'-' * len(title)}\n\n.. api:: {module}\n"
        yield f"{name}.rst", text
